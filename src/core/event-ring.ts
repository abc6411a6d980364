/**
 * What one stream remembers of its event IDs: the last `capacity` of them with their positions and lengths, and
 * a trace of those it had to drop. Forgetting must fail open (behaviour.md section 12): if a cursor *may* belong to a
 * dropped ID of an open stream, another stream that is delivered must not decide about it alone. The trace is a Bloom
 * filter: it may say "perhaps" wrongly, which only forwards, and never "no" wrongly.
 *
 * Two plain arrays of doubles cost 16 bytes an event and search at memory speed; no object per event, no map of IDs.
 */
import type { EventKey, Millis, Position } from './terms.ts';

/** Lengths are packed beside positions; a longer block is never a candidate for dropping (`tap.maxHeldBytes`). */
const LENGTH_RANGE = 2 ** 24;
const FILTER_WORDS = 2048;
/** After this many streams a filter is full enough to be set aside. */
const STREAMS_PER_FILTER = 1_000;

/** A set of keys of fixed size (8 KiB) that answers "perhaps" or "no". */
export class KeyFilter {
  readonly #words = new Uint32Array(FILTER_WORDS);

  add(key: EventKey): void {
    this.#words[wordOf(key)]! |= 1 << (key & 31);
    this.#words[wordOf(key >>> 16)]! |= 1 << ((key >>> 16) & 31);
  }

  merge(other: KeyFilter): void {
    for (let i = 0; i < FILTER_WORDS; i++) this.#words[i]! |= other.#words[i]!;
  }

  /** From now on everything may be in it. */
  fill(): void {
    this.#words.fill(0xffffffff);
  }

  mayHave(key: EventKey): boolean {
    return (
      (this.#words[wordOf(key)]! & (1 << (key & 31))) !== 0 &&
      (this.#words[wordOf(key >>> 16)]! & (1 << ((key >>> 16) & 31))) !== 0
    );
  }

  static readonly bytes: number = FILTER_WORDS * 4;

  /** Its words in base 36, an empty one for zero: 2 KiB where it holds little. */
  toText(): string {
    return Array.from(this.#words, (word) => (word === 0 ? '' : word.toString(36))).join(',');
  }

  /** What is no filter may have everything. */
  static fromText(text: string): KeyFilter {
    const filter = new KeyFilter();
    const words = text.split(',');
    for (let i = 0; i < FILTER_WORDS; i++) {
      const word = words[i] === '' ? 0 : Number.parseInt(words[i] ?? '', 36);
      filter.#words[i] = Number.isNaN(word) ? 0xffffffff : word;
    }
    return filter;
  }
}

/** Of sixteen bits, the upper eleven. A key is a well mixed 53-bit hash: its lowest sixteen bits and the next are independent. */
function wordOf(bits: number): number {
  return (bits >>> 5) & (FILTER_WORDS - 1);
}

/**
 * Where an ID stands on its stream: its first and its last position. `first` is 0 where an earlier sighting may have
 * been dropped, for then nobody can say what the client that holds this ID has seen.
 */
export interface Sighting {
  readonly first: Position;
  readonly last: Position;
}

/** An event ID where it stands. */
export interface RingEntry {
  readonly key: EventKey;
  readonly position: Position;
  readonly length: number;
}

export class EventRing {
  readonly #capacity: number;
  #keys: EventKey[] = [];
  #places: number[] = [];
  #oldest = 0;
  #dropped: KeyFilter | null = null;
  /** IDs that had to make room so far. */
  drops = 0;
  /** Other changes of the trace so far. */
  traces = 0;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  get size(): number {
    return this.#keys.length;
  }

  /** Bytes held, for the ledger's memory bound. */
  get bytes(): number {
    return this.#keys.length * 16 + (this.#dropped === null ? 0 : KeyFilter.bytes);
  }

  /** True where an older ID had to make room. */
  add(key: EventKey, position: Position, length: number): boolean {
    const place = position * LENGTH_RANGE + Math.min(length, LENGTH_RANGE - 1);
    if (this.#keys.length === 0) {
      // Many a stream never has a second one, and a list that grows makes room for seventeen.
      this.#keys = [key];
      this.#places = [place];
      return false;
    }
    if (this.#keys.length < this.#capacity) {
      this.#keys.push(key);
      this.#places.push(place);
      return false;
    }
    this.#dropped ??= new KeyFilter();
    this.#dropped.add(this.#keys[this.#oldest]!);
    this.drops += 1;
    this.#keys[this.#oldest] = key;
    this.#places[this.#oldest] = place;
    this.#oldest = (this.#oldest + 1) % this.#capacity;
    return true;
  }

  /** All remembered positions of this ID, or null. */
  find(key: EventKey): Sighting | null {
    let at = this.#keys.indexOf(key);
    if (at === -1) return null;
    let first = Number.POSITIVE_INFINITY;
    let last = 0;
    for (; at !== -1; at = this.#keys.indexOf(key, at + 1)) {
      const position = Math.floor(this.#places[at]! / LENGTH_RANGE);
      first = Math.min(first, position);
      last = Math.max(last, position);
    }
    if (this.mayHaveDropped(key)) first = 0;
    return { first: first as Position, last: last as Position };
  }

  /** The first position at which an event with this ID and exactly this length was seen, or null. */
  findEqual(key: EventKey, length: number): Position | null {
    let found: number | null = null;
    // This one also stands for everything longer.
    if (length >= LENGTH_RANGE - 1) return null;
    for (let at = this.#keys.indexOf(key); at !== -1; at = this.#keys.indexOf(key, at + 1)) {
      const place = this.#places[at]!;
      const position = Math.floor(place / LENGTH_RANGE);
      if (place - position * LENGTH_RANGE === length && (found === null || position < found)) found = position;
    }
    return found as Position | null;
  }

  /** Whether the event at this position has this ID. */
  holds(key: EventKey, position: Position): boolean {
    for (let at = this.#keys.indexOf(key); at !== -1; at = this.#keys.indexOf(key, at + 1)) {
      if (Math.floor(this.#places[at]! / LENGTH_RANGE) === position) return true;
    }
    return false;
  }

  /** Leaves a trace of an ID that may have been this stream's, as if it had been dropped. */
  trace(key: EventKey): void {
    this.#dropped ??= new KeyFilter();
    this.#dropped.add(key);
    this.traces += 1;
  }

  /** What another process could no longer tell of this stream. */
  traceAll(filter: KeyFilter): void {
    this.#dropped ??= new KeyFilter();
    this.#dropped.merge(filter);
  }

  /** The trace, or null where nothing was dropped. */
  get trail(): KeyFilter | null {
    return this.#dropped;
  }

  /** The events added last, back to the first at or before this position, oldest first. */
  after(position: Position): RingEntry[] {
    const found: RingEntry[] = [];
    for (let back = 1; back <= this.size; back++) {
      const entry = this.#at((this.#oldest + this.size - back) % this.size);
      if (entry.position <= position) break;
      found.push(entry);
    }
    return found.reverse();
  }

  /** All of them, in the order they were added. */
  *entries(): Iterable<RingEntry> {
    for (let i = 0; i < this.size; i++) yield this.#at((this.#oldest + i) % this.size);
  }

  #at(index: number): RingEntry {
    const place = this.#places[index]!;
    const position = Math.floor(place / LENGTH_RANGE);
    return {
      key: this.#keys[index]!,
      position: position as Position,
      length: place - position * LENGTH_RANGE,
    };
  }

  /** From here on IDs pass that nobody reads: any ID may be one of them. */
  goBlind(): void {
    this.#dropped ??= new KeyFilter();
    this.#dropped.fill();
    this.traces += 1;
  }

  /** Whether an ID that this ring no longer holds may have been this one. */
  mayHaveDropped(key: EventKey): boolean {
    return this.#dropped?.mayHave(key) ?? false;
  }

  /** Adds every ID that was ever here to `filter`. */
  traceInto(filter: KeyFilter): void {
    for (const key of this.#keys) filter.add(key);
    if (this.#dropped !== null) filter.merge(this.#dropped);
  }
}

/**
 * The IDs of streams that were forgotten while a client might still have come back for them. Two filters take turns:
 * the older one is thrown away only when what it holds is at least `keep` old, so a busy session neither saturates
 * for ever nor forgets a client that is still on its way.
 */
export class ForgottenIds {
  #young: KeyFilter | null = null;
  #old: KeyFilter | null = null;
  #streams = 0;
  #since: Millis = 0;
  /** Changes so far. */
  changes = 0;

  add(ring: EventRing, now: Millis, keep: Millis): void {
    if (this.#young !== null && this.#streams >= STREAMS_PER_FILTER && now - this.#since >= keep) {
      this.#old = this.#young;
      this.#young = null;
    }
    if (this.#young === null) {
      this.#young = new KeyFilter();
      this.#streams = 0;
      this.#since = now;
    }
    this.#streams += 1;
    this.changes += 1;
    ring.traceInto(this.#young);
  }

  /** An ID that a forgotten stream, still running, carried since. Follows an `add`. */
  addLate(key: EventKey): void {
    this.#young?.add(key);
    this.changes += 1;
  }

  /** All of it in one filter. */
  whole(): KeyFilter {
    const all = new KeyFilter();
    for (const part of [this.#young, this.#old]) if (part !== null) all.merge(part);
    return all;
  }

  mayHave(key: EventKey): boolean {
    return (this.#young?.mayHave(key) ?? false) || (this.#old?.mayHave(key) ?? false);
  }
}
