/**
 * Reads the event-stream format of the HTML standard (section "Server-sent events") from bytes as they pass, in
 * pieces of any size. It copies nothing, decodes nothing and keeps nothing but a few numbers, whatever arrives.
 *
 *     chunk ──┬──────────────────────────────► client        the same bytes, untouched
 *             └─► SseScanner ─► data, dataBreak ─► block      what they mean
 *
 * Bytes are enough. Every name of the format is ASCII, line ends are CR and LF only, and in UTF-8 no ASCII byte is
 * ever part of another character; broken UTF-8 cannot change that. So no field is ever found or missed because of a
 * character cut in two.
 *
 * A chunk is cut into *pieces*: what lies between two line ends, or between a line end and an edge of the chunk. A
 * line is one piece, or several with chunk edges between them, and `#phase` says where in the line the last one ended.
 */

import { KeyHasher } from './event-key.ts';
import type { EventKey } from './terms.ts';
import { bytesOf, Spelling, wordAt } from './words.ts';

/** What a blank line ended. One object per scanner, reused: valid only during the call it is handed to. */
export interface Block {
  /** Key of the last valid `id` line of this block; `null` when there is none, or it is empty or over 64 KiB. */
  key: EventKey | null;
  /** A valid `id` line was there, an empty one included. One with a NUL in it is not valid. */
  hasId: boolean;
  /** The event name is absent, empty or exactly `message`. */
  isMessage: boolean;
  /** The joined data lines are not empty. One bare `data` line leaves them empty, two make a LF. */
  hasData: boolean;
  /** A valid `retry` line was there: ASCII digits only, at least one. */
  retry: boolean;
  /** Bytes from the block's first up to, not including, the terminator of its blank line. A BOM counts. */
  length: number;
  /** An event in the sense of the behaviour contract: data, an ID or a `retry`; not a bare name, not comments. */
  isEvent: boolean;
}

/** Receives what the scanner finds, in the order of the bytes, during `push`. It must not call `push` itself. */
export interface BlockSink {
  /** A part of the current block's data, as it arrives: `bytes` from `start` up to, not including, `end`. */
  data(bytes: Uint8Array, start: number, end: number): void;
  /** A further data line has begun in the current block: a LF joins it to what came before. */
  dataBreak(): void;
  /**
   * The blank line came. `end` is the offset in the current chunk just after its terminator: after the LF of a CRLF
   * if the chunk has both, after the CR if that is the chunk's last byte (see {@link SseScanner.terminatorPending}).
   */
  block(block: Block, end: number): void;
}

const LF = 10;
const CR = 13;
const SPACE = 32;
const COLON = 58;
const DIGIT_0 = 48;
const DIGIT_9 = 57;
const BOM = [0xef, 0xbb, 0xbf] as const;
const BOM_DONE = BOM.length;
const MESSAGE = new Spelling('message');
/** What most events begin with, found without a search for its end. */
const USUAL = new Spelling('event: message\n');

// Where the next byte of a line falls. UNKNOWN: a field the format does not know, or a name that can no longer match.
const LINE_START = 0;
const NAME = 1;
const AFTER_COLON = 2;
const VALUE = 3;
const UNKNOWN = 4;
const COMMENT = 5;

// The fields, as indexes into NAMES. Their first letters differ, so one byte picks the only candidate.
const DATA = 0;
const EVENT = 1;
const ID = 2;
const RETRY = 3;
const NAMES = ['data:', 'event:', 'id:', 'retry:'].map(bytesOf);
const NO_FIELD = -1;
// What a line of such a field begins with, as a word.
const DATA_WORD = wordAt(bytesOf('data'), 0);
const ID_WORD = wordAt(bytesOf('id:\0'), 0);
const EVENT_WORD = wordAt(bytesOf('even'), 0);
const T = 0x74;

// A value that can no longer become what it is compared with.
const MISMATCH = -1;

/** A scanner of one response body. Feed it every byte, in order. */
export class SseScanner {
  readonly #sink: BlockSink;
  readonly #hasher: KeyHasher;
  readonly #block: Block = {
    key: null,
    hasId: false,
    isMessage: true,
    hasData: false,
    retry: false,
    length: 0,
    isEvent: false,
  };
  #phase = LINE_START;
  #field = DATA;
  // Progress in whatever the current line is compared with: its name, then `message` or the digits of `retry`.
  #matched = 0;
  #bomMatched = 0;
  #afterCr = false;
  // Of the current block: its bytes in earlier chunks; a line that is no comment has begun; a data line has begun.
  #carried = 0;
  #hasField = false;
  #hasDataLine = false;

  /** @param seed for the keys of IDs; must be the one with which cursors are hashed (`event-key.ts`) */
  constructor(sink: BlockSink, seed: number) {
    this.#sink = sink;
    this.#hasher = new KeyHasher(seed);
  }

  /**
   * Unterminated bytes after the last blank line that may become content: a whole or partial line that is no comment
   * (and no byte order mark). Like the other two, it describes the state between two calls of `push`.
   */
  get contentPending(): boolean {
    return this.#hasField;
  }

  /** There are bytes after the last blank line, comments included: the stream is inside a block. */
  get blockOpen(): boolean {
    return this.#carried > 0;
  }

  /**
   * The last byte was a CR that ended a blank line, and a LF that comes next belongs to it. Who drops the block must
   * drop that LF too.
   */
  get terminatorPending(): boolean {
    return this.#afterCr && this.#carried === 0;
  }

  /**
   * Reads the next chunk. Time is linear in its length; for a `Buffer`, whose `indexOf` is vectorised, a long line
   * costs about as much as reading memory. If the sink throws, the error passes through and the scanner is of no
   * further use.
   */
  push(chunk: Uint8Array): void {
    const size = chunk.length;
    if (size === 0) return;
    let at = 0;
    let blockStart = 0;
    if (this.#afterCr) {
      this.#afterCr = false;
      if (chunk[0] === LF) {
        at = 1;
        if (this.#carried === 0) blockStart = 1;
      }
    } else if (this.#bomMatched < BOM_DONE) {
      at = this.#skipBom(chunk);
    }
    // The next LF and CR at or after `at`, `size` if there is none. `indexOf` has no upper bound, so a find is kept
    // until it is passed: no byte is searched twice, even where lines end in one of the two only.
    let nextLf = -1;
    let nextCr = -1;
    while (at < size) {
      if (this.#phase === LINE_START && size - at >= USUAL.length && USUAL.isAt(chunk, at)) {
        this.#hasField = true;
        this.#block.isMessage = true;
        at += USUAL.length;
        continue;
      }
      let end = at;
      let isRead = false;
      const first = chunk[at];
      if (first !== LF && first !== CR) {
        if (nextLf < at) nextLf = indexOrSize(chunk, LF, at);
        if (nextCr < at) nextCr = indexOrSize(chunk, CR, at);
        end = Math.min(nextLf, nextCr);
        isRead = this.#phase === LINE_START && end < size && this.#readLine(chunk, at, end);
        if (!isRead) this.#readPiece(chunk, at, end);
        if (end === size) break;
      }
      at = end + 1;
      if (chunk[end] === CR) {
        if (at === size) this.#afterCr = true;
        else if (chunk[at] === LF) at++;
      }
      if (isRead) continue;
      if (this.#phase === LINE_START) {
        this.#dispatch(this.#carried + end - blockStart, at);
        blockStart = at;
      } else {
        this.#endLine();
      }
    }
    this.#carried += size - blockStart;
  }

  /** Offset of the first byte that is not part of a byte order mark at the very start of the stream. */
  #skipBom(chunk: Uint8Array): number {
    let at = 0;
    while (at < chunk.length && this.#bomMatched < BOM_DONE) {
      if (chunk[at] !== BOM[this.#bomMatched]) {
        // What looked like a BOM is the beginning of a name, and no field is called that.
        if (this.#bomMatched > 0) {
          this.#phase = UNKNOWN;
          this.#hasField = true;
        }
        this.#bomMatched = BOM_DONE;
        return at;
      }
      this.#bomMatched++;
      at++;
    }
    return at;
  }

  /**
   * Reads a line that is here in whole, without its end, where it is an ordinary one; else returns false, and has done
   * nothing. Nearly every line is, and costs half of what its pieces would.
   */
  #readLine(chunk: Uint8Array, start: number, end: number): boolean {
    const field = end - start < 4 ? NO_FIELD : fieldAt(chunk, start);
    if (field === NO_FIELD) return false;
    let from = start + NAMES[field]!.length;
    if (from < end && chunk[from] === SPACE) from++;
    this.#hasField = true;
    if (field === ID) {
      this.#endId(this.#hasher.hash(chunk, from, end));
    } else if (field === EVENT) {
      this.#block.isMessage = from === end || (end - from === MESSAGE.length && MESSAGE.isAt(chunk, from));
    } else {
      this.#beginData();
      if (from < end) this.#readData(chunk, from, end);
    }
    return true;
  }

  /** Reads a part of a line: not empty, without its end. */
  #readPiece(chunk: Uint8Array, start: number, end: number): void {
    let at = start;
    if (this.#phase === LINE_START) this.#beginLine(chunk[at++]!);
    if (this.#phase === NAME) {
      const name = NAMES[this.#field]!;
      let matched = this.#matched;
      while (at < end && matched < name.length && chunk[at] === name[matched]) {
        at++;
        matched++;
      }
      this.#matched = matched;
      if (matched === name.length) this.#beginValue();
      else if (at < end) this.#phase = UNKNOWN;
    }
    if (this.#phase === AFTER_COLON && at < end) {
      if (chunk[at] === SPACE) at++;
      this.#phase = VALUE;
    }
    if (this.#phase === VALUE && at < end) this.#readValue(chunk, at, end);
  }

  #beginLine(first: number): void {
    if (first === COLON) {
      this.#phase = COMMENT;
      return;
    }
    this.#hasField = true;
    this.#matched = 1;
    this.#phase = NAME;
    if (first === NAMES[DATA]![0]) this.#field = DATA;
    else if (first === NAMES[ID]![0]) this.#field = ID;
    else if (first === NAMES[EVENT]![0]) this.#field = EVENT;
    else if (first === NAMES[RETRY]![0]) this.#field = RETRY;
    else this.#phase = UNKNOWN;
  }

  /** The field is known now; its value, perhaps an empty one, begins. */
  #beginValue(): void {
    this.#phase = AFTER_COLON;
    this.#matched = 0;
    if (this.#field === DATA) this.#beginData();
    else if (this.#field === ID) this.#hasher.start();
  }

  #beginData(): void {
    if (this.#hasDataLine) {
      this.#block.hasData = true;
      this.#sink.dataBreak();
    }
    this.#hasDataLine = true;
  }

  #readData(chunk: Uint8Array, start: number, end: number): void {
    this.#block.hasData = true;
    this.#sink.data(chunk, start, end);
  }

  #readValue(chunk: Uint8Array, start: number, end: number): void {
    switch (this.#field) {
      case DATA:
        this.#readData(chunk, start, end);
        break;
      case ID:
        this.#hasher.update(chunk, start, end);
        break;
      case EVENT:
        for (let at = start; at < end && this.#matched !== MISMATCH; at++) {
          this.#matched = chunk[at] === MESSAGE.bytes[this.#matched] ? this.#matched + 1 : MISMATCH;
        }
        break;
      case RETRY:
        for (let at = start; at < end && this.#matched !== MISMATCH; at++) {
          const byte = chunk[at]!;
          this.#matched = byte >= DIGIT_0 && byte <= DIGIT_9 ? 1 : MISMATCH;
        }
        break;
    }
  }

  #endLine(): void {
    // A line without a colon is a field with an empty value, if its name is whole.
    if (this.#phase === NAME && this.#matched === NAMES[this.#field]!.length - 1) this.#beginValue();
    if (this.#phase === AFTER_COLON || this.#phase === VALUE) this.#endValue();
    this.#phase = LINE_START;
  }

  #endValue(): void {
    const block = this.#block;
    if (this.#field === ID) this.#endId(this.#hasher.finish());
    else if (this.#field === EVENT) block.isMessage = this.#matched === 0 || this.#matched === MESSAGE.length;
    else if (this.#field === RETRY && this.#matched > 0) block.retry = true;
  }

  #endId(key: EventKey | null): void {
    if (this.#hasher.hasNul) return;
    this.#block.hasId = true;
    this.#block.key = key;
  }

  #dispatch(length: number, end: number): void {
    const block = this.#block;
    block.length = length;
    block.isEvent = block.hasData || block.hasId || block.retry;
    this.#carried = 0;
    this.#hasField = false;
    this.#hasDataLine = false;
    this.#sink.block(block, end);
    block.key = null;
    block.hasId = false;
    block.isMessage = true;
    block.hasData = false;
    block.retry = false;
  }
}

/** The field whose name and colon begin the line, which is of a word's length or more. */
function fieldAt(chunk: Uint8Array, start: number): number {
  const word = wordAt(chunk, start);
  if (word === DATA_WORD) return chunk[start + 4] === COLON ? DATA : NO_FIELD;
  if ((word & 0xff_ffff) === ID_WORD) return ID;
  if (word === EVENT_WORD) return chunk[start + 4] === T && chunk[start + 5] === COLON ? EVENT : NO_FIELD;
  return NO_FIELD;
}

function indexOrSize(chunk: Uint8Array, byte: number, from: number): number {
  const index = chunk.indexOf(byte, from);
  return index === -1 ? chunk.length : index;
}
