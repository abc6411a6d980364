/**
 * Takes dropped blocks out of a resumed stream, whole, and nothing else (behaviour.md section 4, Duplicates).
 *
 * Until the first block past the cursor an unfinished block is held, because its ID may stand at its end; after that
 * bytes pass as they come, and a block can only be dropped if all of it is at hand.
 *
 *     chunk    | …end of block 7 | block 8 (duplicate) | block 9 … |
 *     passes   | …end of block 7 |                     | block 9 … |
 */
import type { Leg, Session } from './ledger.ts';
import {
  type Duplicate,
  duplicateBeforeCursor,
  duplicateOnLeg,
  type Owner,
  type ResolveOptions,
  type SeenBlock,
} from './resolve.ts';

interface Boundary {
  /** Where the block ends in the chunk. */
  readonly end: number;
  readonly drop: boolean;
}

export class DuplicateFilter<Bytes extends Uint8Array = Uint8Array> {
  /** False in `mode: observe`: says what it would drop, and passes everything. */
  readonly drops: boolean;
  readonly #maxHeldBytes: number;
  #inPrefix = true;
  /** Bytes of the current block from earlier chunks, where they are held. */
  #held: Bytes[] = [];
  #heldBytes = 0;
  /** Bytes of the current block have gone out already, so it cannot be dropped whole. */
  #torn = false;
  #boundaries: Boundary[] = [];
  /** The last byte was the CR that ended a block: a LF that follows belongs to that block and shares its fate. */
  #lineFeed: 'none' | 'passes' | 'drops' = 'none';

  constructor(maxHeldBytes: number, drops: boolean) {
    this.#maxHeldBytes = maxHeldBytes;
    this.drops = drops;
  }

  /** Bytes held back. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** Whether a block may still turn out to be at or before the cursor. */
  get inPrefix(): boolean {
    return this.#inPrefix;
  }

  /** None of the block that is ending has gone out. */
  get droppable(): boolean {
    return !this.#torn || this.#boundaries.length > 0;
  }

  /** The block that is ending, of this length in bytes, can be dropped. */
  canDrop(length: number): boolean {
    return this.droppable && length <= this.#maxHeldBytes;
  }

  /** Whether the block that is ending was seen before. `leg` continues `target`. */
  find(session: Session, leg: Leg, target: Owner, block: SeenBlock, options: ResolveOptions): Duplicate | null {
    if (!this.inPrefix) return duplicateOnLeg(leg, block);
    // Behind an intermediary no connection proves that the client has anything.
    const judged = leg.receipt.forwarded ? { ...options, deliveryProof: 'event-id' as const } : options;
    return duplicateBeforeCursor(session, target, block, judged);
  }

  /** Tells where a block ended in the chunk being read and what it was. */
  ended(end: number, duplicate: Duplicate | null, isEvent: boolean): void {
    this.#boundaries.push({ end, drop: duplicate !== null });
    if (isEvent && duplicate === null) this.#inPrefix = false;
  }

  /** What of `chunk`, and of what was held, goes on to the client. Call after the scanner has read the chunk. */
  pass(chunk: Bytes, terminatorPending: boolean): Bytes[] {
    if (!this.drops) {
      this.#boundaries = [];
      return [chunk];
    }
    const out: Bytes[] = [];
    let from = 0;
    if (this.#lineFeed !== 'none' && chunk.length > 0) {
      if (chunk[0] === 0x0a) from = 1;
      if (from === 1 && this.#lineFeed === 'passes') out.push(part(chunk, 0, 1));
      this.#lineFeed = 'none';
    }
    for (const { end, drop } of this.#boundaries) {
      if (!drop) {
        out.push(...this.#held);
        if (end > from) out.push(part(chunk, from, end));
      }
      if (end === chunk.length && terminatorPending) this.#lineFeed = drop ? 'drops' : 'passes';
      this.#held = [];
      this.#heldBytes = 0;
      this.#torn = false;
      from = Math.max(from, end);
    }
    this.#boundaries = [];
    const rest = part(chunk, from, chunk.length);
    if (rest.length === 0) return out;
    if (!this.#inPrefix) {
      // Only the bytes after the last boundary: whether the next block is torn depends on them alone.
      this.#torn = true;
      out.push(...this.#takeHeld(), rest);
      return out;
    }
    this.#held.push(rest);
    this.#heldBytes += rest.length;
    if (this.#heldBytes > this.#maxHeldBytes) out.push(...this.release());
    return out;
  }

  /** Gives out what is held, at the end of the body, or when it has been held for long enough. */
  release(): Bytes[] {
    if (this.#heldBytes > 0) {
      this.#torn = true;
      this.#inPrefix = false;
    }
    return this.#takeHeld();
  }

  #takeHeld(): Bytes[] {
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    return held;
  }
}

/** The type of `subarray` does not say that a `Buffer` gives a `Buffer`. */
const part = <Bytes extends Uint8Array>(bytes: Bytes, from: number, to: number): Bytes =>
  bytes.subarray(from, to) as Bytes;
