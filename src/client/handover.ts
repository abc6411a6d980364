/**
 * Did the consumer get it? There is no network in between, so delivery (behaviour.md section 5) is nearly known: who
 * comes back for more has what was handed out before. Nearly, for behind the reader there may be further stages (a
 * decoder, a parser), which lose what they hold when the body breaks or is left.
 */
import { GRACE, type Receipt } from '../core/delivery.ts';
import type { Millis } from '../core/terms.ts';

export class Handover {
  readonly receipt: Receipt;
  readonly #now: () => Millis;
  /** Pieces with terminal events that the consumer has not come back from yet. */
  #untaken = 0;

  constructor(now: () => Millis) {
    const connection = { failed: false, closed: null, closedAt: null, requestedAt: now() };
    this.receipt = { connection, forwarded: false, flushedAt: null, response: 'open' };
    this.#now = now;
  }

  /** A piece with a terminal event goes out. An earlier one may be taken long since; the receipt speaks for all. */
  gives(): void {
    this.receipt.flushedAt = null;
    this.#untaken += 1;
  }

  /** The consumer has that piece, and wants more. */
  readonly taken = (): void => {
    this.#untaken -= 1;
    if (this.#untaken === 0) this.receipt.flushedAt = this.#now();
  };

  /** The consumer has read everything, to the end. */
  finished(): void {
    if (this.receipt.response === 'open') this.receipt.response = 'normal';
  }

  /** The consumer goes. */
  left(): void {
    const { connection } = this.receipt;
    if (connection.closed !== null) return;
    connection.closed = 'client';
    connection.closedAt = this.#now();
  }

  /** The body breaks. */
  broke(): void {
    const { flushedAt } = this.receipt;
    if (flushedAt === null || this.#now() - flushedAt < GRACE) this.receipt.response = 'broken';
  }
}
