/**
 * From the bytes of an event ID to the number the ledger keeps.
 *
 * The same ID is met in two places: as the value of an `id` line in a stream, and as the value of a `Last-Event-ID`
 * field. A field value loses outer spaces and tabs on its way (RFC 9110 section 5.5), so both forms are read without
 * them. Inner blanks stay: two IDs that differ there are two IDs.
 *
 * The hash has two lanes of 32 bits. Each takes four bytes at a time through exclusive-or, multiply, rotate. The
 * multipliers and rotations differ, so that a pair of IDs that meets in one lane is no likelier to meet in the other.
 * The end stirs the lanes into each other and keeps 53 bits, the integers a JavaScript number holds exactly. The seed
 * makes keys of one process meaningless in another.
 */

import type { EventKey } from './terms.ts';
import { wordAt } from './words.ts';

const SPACE = 32;
const TAB = 9;

/** An ID with more bytes than this, outer blanks not counted, gets no key. Fields cannot carry such an ID anyway. */
export const MAX_ID_BYTES = 65_536;

/**
 * Hashes one ID that may arrive in pieces, in constant memory. `start`, any number of `update`, then `finish`.
 * The value does not depend on where the pieces were cut.
 */
export class KeyHasher {
  readonly #seedA: number;
  readonly #seedB: number;
  // Everything since the first byte that is no blank. Blanks at the end are hashed too: more of the ID may follow.
  #a = 0;
  #b = 0;
  #word = 0;
  #length = 0;
  // The same as it was after the last byte that is no blank: what counts if nothing follows.
  #keptA = 0;
  #keptB = 0;
  #keptWord = 0;
  #keptLength = 0;
  // Not zero once a NUL was among the bytes.
  #nul = 0;

  /** @param seed any safe integer; both its halves count */
  constructor(seed: number) {
    this.#seedA = (seed | 0) ^ 0x3c6ef372;
    this.#seedB = ((seed / 0x1_0000_0000) | 0) ^ 0x510e527f;
  }

  /** Forgets the previous ID. */
  start(): void {
    this.#a = this.#seedA;
    this.#b = this.#seedB;
    this.#word = 0;
    this.#length = 0;
    this.#keptLength = 0;
    this.#nul = 0;
  }

  /** Takes the next piece of the ID: `bytes` from `start` up to, not including, `end`. */
  update(bytes: Uint8Array, start: number, end: number): void {
    let from = start;
    if (this.#length === 0) while (from < end && isBlank(bytes[from]!)) from++;
    let to = end;
    while (to > from && isBlank(bytes[to - 1]!)) to--;
    if (to > from) {
      this.#absorb(bytes, from, to);
      this.#keptA = this.#a;
      this.#keptB = this.#b;
      this.#keptWord = this.#word;
      this.#keptLength = this.#length;
    }
    if (end > to) this.#absorb(bytes, to, end);
  }

  /** The key of an ID that is here in whole, as `start`, one `update` and `finish` would find it, for two thirds of the price. */
  hash(bytes: Uint8Array, start: number, end: number): EventKey | null {
    let at = start;
    let to = end;
    while (at < to && isBlank(bytes[at]!)) at++;
    while (to > at && isBlank(bytes[to - 1]!)) to--;
    const length = to - at;
    let a = this.#seedA;
    let b = this.#seedB;
    let nul = 0;
    for (const last = to - 3; at < last; at += 4) {
      const word = wordAt(bytes, at);
      nul |= nulIn(word);
      a = laneA(a, word);
      b = laneB(b, word);
    }
    let word = 0;
    for (let shift = 0; at < to; at++, shift += 8) {
      if (bytes[at] === 0) nul = 1;
      word |= bytes[at]! << shift;
    }
    this.#nul = nul;
    return keyOf(a, b, word, length);
  }

  /** Whether a NUL was seen since `start`. The HTML standard ignores the whole `id` line then. */
  get hasNul(): boolean {
    return this.#nul !== 0;
  }

  /** The key of the bytes since `start`; `null` if nothing but blanks came, or more than {@link MAX_ID_BYTES}. */
  finish(): EventKey | null {
    return keyOf(this.#keptA, this.#keptB, this.#keptWord, this.#keptLength);
  }

  #absorb(bytes: Uint8Array, start: number, end: number): void {
    const length = this.#length;
    if (length + (end - start) > MAX_ID_BYTES) {
      // Too long for a key, but a NUL further on would still make the line no `id` line at all.
      for (let at = start; at < end && this.#nul === 0; at++) if (bytes[at] === 0) this.#nul = 1;
      this.#length = MAX_ID_BYTES + 1;
      return;
    }
    let a = this.#a;
    let b = this.#b;
    let word = this.#word;
    let nul = this.#nul;
    let at = start;
    let left = length & 3; // bytes of a word that an earlier piece, or the last one here, has left unfinished
    this.#length = length + (end - start);
    while (at < end) {
      if (left === 0) {
        for (const last = end - 3; at < last; at += 4) {
          word = wordAt(bytes, at);
          nul |= nulIn(word);
          a = laneA(a, word);
          b = laneB(b, word);
        }
        word = 0;
        if (at === end) break;
      }
      const byte = bytes[at++]!;
      if (byte === 0) nul = 1;
      word |= byte << (left << 3);
      left = (left + 1) & 3;
      if (left === 0) {
        a = laneA(a, word);
        b = laneB(b, word);
        word = 0;
      }
    }
    this.#a = a;
    this.#b = b;
    this.#word = word;
    this.#nul = nul;
  }
}

/**
 * The key of an event ID as it stands in a stream: `bytes` from `start` up to, not including, `end`.
 * `null` when nothing is left without outer blanks, or more than {@link MAX_ID_BYTES}.
 */
export function eventKeyOfBytes(bytes: Uint8Array, start: number, end: number, seed: number): EventKey | null {
  return new KeyHasher(seed).hash(bytes, start, end);
}

/**
 * The key of a field value as Node hands it out, one character per byte (Latin-1). Equal to the key of the same bytes
 * in a stream. `null` as for {@link eventKeyOfBytes}, and for a character no byte can stand for.
 */
export function eventKeyOfField(value: string, seed: number): EventKey | null {
  const bytes = new Uint8Array(value.length);
  for (let at = 0; at < value.length; at++) {
    const code = value.charCodeAt(at);
    if (code > 0xff) return null;
    bytes[at] = code;
  }
  return eventKeyOfBytes(bytes, 0, bytes.length, seed);
}

/**
 * The second reading of a field value: its characters as UTF-8. A client built on `fetch` decodes the stream's bytes
 * C3 A9 to U+00E9 and sends that as the one byte E9 (Fetch standard, isomorphic encode of a header value).
 * `null` when the value is all ASCII and has no second reading, and as for {@link eventKeyOfField}.
 */
export function eventKeyOfFieldAsUtf8(value: string, seed: number): EventKey | null {
  const bytes = new Uint8Array(value.length * 2);
  let size = 0;
  for (let at = 0; at < value.length; at++) {
    const code = value.charCodeAt(at);
    if (code > 0xff) return null;
    if (code < 0x80) {
      bytes[size++] = code;
    } else {
      bytes[size++] = 0xc0 | (code >> 6);
      bytes[size++] = 0x80 | (code & 0x3f);
    }
  }
  return size === value.length ? null : eventKeyOfBytes(bytes, 0, size, seed);
}

function isBlank(byte: number): boolean {
  return byte === SPACE || byte === TAB;
}

/** Not zero exactly if one of the four bytes is: only then does the borrow reach a high bit that was clear. */
function nulIn(word: number): number {
  return (word - 0x01010101) & ~word & 0x80808080;
}

/** `word` holds the bytes of the last one, which may be short; the length tells `a` from `a` and a NUL. */
function keyOf(stateA: number, stateB: number, word: number, length: number): EventKey | null {
  if (length === 0 || length > MAX_ID_BYTES) return null;
  const a = laneA(stateA, word) ^ length;
  const b = laneB(stateB, word) ^ length;
  const low = avalanche((a + b) | 0);
  const high = avalanche(b ^ low);
  return ((high & 0x1f_ffff) * 0x1_0000_0000 + (low >>> 0)) as EventKey;
}

function laneA(state: number, word: number): number {
  const mixed = Math.imul(state ^ word, 0x9e3779b1);
  return (mixed << 15) | (mixed >>> 17);
}

function laneB(state: number, word: number): number {
  const mixed = Math.imul(state ^ word, 0x85ebca77);
  return (mixed << 13) | (mixed >>> 19);
}

/** Murmur's finaliser: a bijection in which every bit of the input moves every bit of the result half the time. */
function avalanche(value: number): number {
  let mixed = value;
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return mixed ^ (mixed >>> 16);
}
