/**
 * Optional comments on a quiet stream, for middleboxes that cut idle connections. Only the bare comment line: a blank
 * line after it would be read as a block by some clients, and anything inside an event would break it.
 */
import type { Reading } from './reading.ts';
import type { Relay } from './relay.ts';

const COMMENT = Buffer.from(':\n');

export class KeepAlive {
  readonly #timer: NodeJS.Timeout;
  readonly #now: () => number;
  #wroteAt: number;

  /** `every`: ms of silence before a comment. */
  constructor(relay: Relay, reading: Reading, every: number, now: () => number) {
    this.#now = now;
    this.#wroteAt = now();
    this.#timer = setInterval(
      () => {
        if (now() - this.#wroteAt < every || relay.isBlocked || relay.over || !reading.betweenEvents) return;
        relay.write(COMMENT);
        this.#wroteAt = now();
      },
      Math.max(10, every / 4),
    );
  }

  /** Bytes of upstream's went out. */
  wrote(): void {
    this.#wroteAt = this.#now();
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}
