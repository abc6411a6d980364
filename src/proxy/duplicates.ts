/**
 * Takes dropped blocks out of a resumed stream, whole, and nothing else (behaviour.md section 4, Duplicates).
 *
 * Until the first block past the cursor an unfinished block is held, because its ID may stand at its end; after that
 * bytes pass as they come, and a block can only be dropped if all of it is at hand.
 *
 *     chunk    | …end of block 7 | block 8 (duplicate) | block 9 … |
 *     passes   | …end of block 7 |                     | block 9 … |
 */
import type { Duplicate } from '../core/resolve.ts';

interface Boundary {
  /** Where the block ends in the chunk. */
  readonly end: number;
  readonly drop: boolean;
}

export class DuplicateFilter {
  /** False in `mode: observe`: says what it would drop, and passes everything. */
  readonly drops: boolean;
  readonly #maxHeldBytes: number;
  #inPrefix = true;
  /** Bytes of the current block from earlier chunks, where they are held. */
  #held: Buffer[] = [];
  #heldBytes = 0;
  /** Bytes of the current block have gone out already, so it cannot be dropped whole. */
  #torn = false;
  #boundaries: Boundary[] = [];
  /** The dropped block's CR was the last byte: a LF that follows belongs to it. */
  #dropLineFeed = false;

  constructor(maxHeldBytes: number, drops: boolean) {
    this.#maxHeldBytes = maxHeldBytes;
    this.drops = drops;
  }

  /** Whether a block may still turn out to be at or before the cursor. */
  get inPrefix(): boolean {
    return this.#inPrefix;
  }

  /** Bytes held back. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** The block that is ending can be dropped. */
  get droppable(): boolean {
    return !this.#torn || this.#boundaries.length > 0;
  }

  /** Tells where a block ended in the chunk being read and what it was. */
  ended(end: number, duplicate: Duplicate | null, isEvent: boolean): void {
    this.#boundaries.push({ end, drop: duplicate !== null });
    if (isEvent && duplicate === null) this.#inPrefix = false;
  }

  /** What of `chunk`, and of what was held, goes on to the client. Call after the scanner has read the chunk. */
  pass(chunk: Buffer, terminatorPending: boolean): Buffer[] {
    if (!this.drops) {
      this.#boundaries = [];
      return [chunk];
    }
    const out: Buffer[] = [];
    let from = 0;
    if (this.#dropLineFeed && chunk.length > 0) {
      if (chunk[0] === 0x0a) from = 1;
      this.#dropLineFeed = false;
    }
    for (const { end, drop } of this.#boundaries) {
      if (!drop) {
        out.push(...this.#held);
        if (end > from) out.push(chunk.subarray(from, end));
      } else if (end === chunk.length && terminatorPending) {
        this.#dropLineFeed = true;
      }
      this.#held = [];
      this.#heldBytes = 0;
      this.#torn = false;
      from = Math.max(from, end);
    }
    this.#boundaries = [];
    const rest = chunk.subarray(from);
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
  release(): Buffer[] {
    if (this.#heldBytes > 0) {
      this.#torn = true;
      this.#inPrefix = false;
    }
    return this.#takeHeld();
  }

  #takeHeld(): Buffer[] {
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    return held;
  }
}
