/**
 * The tap: reads an event stream on its way through and tells the ledger. It sits beside the bytes, never in their
 * way: what it cannot read, or whatever goes wrong in it, makes it blind for this stream, and forwarding goes on.
 *
 *     upstream ──bytes──┬────────────────> client
 *                       └─> [decoder] ─> scanner ─> messages ─> ledger
 */

import type { Transform } from 'node:stream';
import { constants, createBrotliDecompress, createGunzip, createInflate, createInflateRaw } from 'node:zlib';
import { MessageScanner, type ResponseHead } from '../core/jsonrpc.ts';
import { type Leg, recordEvent, type Session } from '../core/ledger.ts';
import { type Block, type BlockSink, SseScanner } from '../core/sse-scanner.ts';

export interface TapListener {
  /**
   * A block is complete; `end` is where it ends in the chunk being pushed (meaningless in a decoded stream). Returning
   * true leaves it out of the ledger.
   */
  block(block: Block, answers: readonly ResponseHead[], end: number): boolean;
  /** Events or answers were recorded while the last bytes were read. */
  recorded(events: number, answers: readonly ResponseHead[]): void;
  blind(cause: string): void;
}

const LINE_FEED = Uint8Array.of(0x0a);
const NO_ANSWERS: readonly ResponseHead[] = [];
/** A decoder that falls behind this far would hold the stream in memory. */
const MOST_UNDECODED = 1_048_576;

export class Tap implements BlockSink {
  readonly #session: Session;
  readonly #leg: Leg;
  readonly #listener: TapListener;
  readonly #scanner: SseScanner;
  readonly #messages = new MessageScanner('responses');
  readonly #encoding: string;
  #decoder: Transform | null = null;
  #blind = false;

  /** `encoding`: the `Content-Encoding` of the response, empty for none. */
  constructor(session: Session, leg: Leg, encoding: string, seed: number, listener: TapListener) {
    this.#session = session;
    this.#leg = leg;
    this.#listener = listener;
    this.#encoding = encoding.trim().toLowerCase();
    this.#scanner = new SseScanner(this, seed);
    if (!this.isPlain && !(this.#encoding in DECODERS)) this.#goBlind('encoding');
  }

  /** The bytes are the event stream itself. */
  get isPlain(): boolean {
    return this.#encoding === '' || this.#encoding === 'identity';
  }

  get isBlind(): boolean {
    return this.#blind;
  }

  /** Bytes of an unfinished block that may become an event. */
  get contentPending(): boolean {
    return this.#scanner.contentPending;
  }

  /** The last byte is inside a block (or a comment) that no blank line has ended yet. */
  get blockOpen(): boolean {
    return this.#scanner.blockOpen;
  }

  get terminatorPending(): boolean {
    return this.#scanner.terminatorPending;
  }

  push(chunk: Buffer): void {
    if (this.#blind) return;
    if (this.isPlain) this.#scan(chunk);
    else this.#decode(chunk);
  }

  /** The body is over: calls back when everything in it has been read. */
  finish(done: () => void): void {
    if (this.#decoder === null || this.#blind) done();
    else {
      this.#decoder.once('close', done);
      this.#decoder.end();
    }
  }

  /** Nobody will read any more. */
  close(): void {
    this.#blind = true;
    this.#decoder?.destroy();
  }

  data(bytes: Uint8Array, start: number, end: number): void {
    this.#messages.push(bytes, start, end);
  }

  dataBreak(): void {
    this.#messages.push(LINE_FEED, 0, 1);
  }

  block(block: Block, end: number): void {
    let answers = NO_ANSWERS;
    if (block.hasData) {
      if (block.isMessage) answers = this.#messages.end().responses;
      else this.#messages.reset();
    }
    if (this.#listener.block(block, answers, end) || !block.isEvent) return;
    recordEvent(this.#session, this.#leg, block, answers);
    this.#listener.recorded(1, answers);
  }

  #scan(chunk: Uint8Array): void {
    try {
      this.#scanner.push(chunk);
    } catch {
      this.#goBlind('failure');
    }
  }

  #decode(chunk: Buffer): void {
    if (this.#decoder === null) {
      this.#decoder = DECODERS[this.#encoding]!(chunk);
      this.#decoder.on('data', (decoded: Buffer) => this.#scan(decoded));
      this.#decoder.on('error', () => this.#goBlind('decoding'));
    }
    this.#decoder.write(chunk);
    if (this.#decoder.writableLength > MOST_UNDECODED) this.#goBlind('decoding');
  }

  #goBlind(cause: string): void {
    if (this.#blind) return;
    this.#blind = true;
    this.#session.complete = false;
    this.#decoder?.destroy();
    this.#listener.blind(cause);
  }
}

const zlibOptions = { flush: constants.Z_SYNC_FLUSH, finishFlush: constants.Z_SYNC_FLUSH };

/** Decoders that give out what they can after every chunk. `deflate` comes with and without zlib's wrapper. */
const DECODERS: Readonly<Record<string, (first: Buffer) => Transform>> = {
  gzip: () => createGunzip(zlibOptions),
  'x-gzip': () => createGunzip(zlibOptions),
  deflate: (first) => ((first[0]! & 0x0f) === 8 ? createInflate(zlibOptions) : createInflateRaw(zlibOptions)),
  br: () =>
    createBrotliDecompress({
      flush: constants.BROTLI_OPERATION_FLUSH,
      finishFlush: constants.BROTLI_OPERATION_FLUSH,
    }),
};
