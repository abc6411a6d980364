/**
 * Watching one replay: holds the head and what comes with it until the outcome is known (core/replay.ts), then lets go,
 * once. In `mode: observe` it holds nothing and only says what it saw.
 *
 *     upstream ──> [ duplicates ] ──> [ held until the outcome ] ──> client
 */
import { type Outcome, outcomeOf, type ReplaySeen } from '../core/replay.ts';

export interface WatchOptions {
  /** False: let everything pass, only tell the outcome. */
  readonly holds: boolean;
  readonly mustReplay: boolean;
  /** In ms. */
  readonly replayHold: number;
  readonly replayDeadline: number;
  readonly maxHeldBytes: number;
  /** Asked when the body ends. */
  readonly polling: () => boolean;
  readonly displaced: () => boolean;
  /** The outcome, once. What is held is still held. */
  readonly decided: (outcome: Outcome) => void;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

export class Watch {
  readonly #options: WatchOptions;
  readonly #seen: Mutable<ReplaySeen>;
  #outcome: Outcome | null = null;
  #timer: NodeJS.Timeout | null = null;
  #held: Buffer[] = [];
  #heldBytes = 0;

  /** Starts with the request. */
  constructor(options: WatchOptions) {
    this.#options = options;
    this.#seen = {
      status: null,
      eventStream: false,
      bytes: 0,
      event: false,
      content: false,
      overfull: false,
      end: 'open',
      timeUp: false,
      mustReplay: options.mustReplay,
      polling: false,
      displaced: false,
    };
    if (options.mustReplay) this.#startTimer(options.replayDeadline);
  }

  get outcome(): Outcome | null {
    return this.#outcome;
  }

  /** Bytes go through the watch's hands still. */
  get holding(): boolean {
    return this.#options.holds && this.#outcome === null;
  }

  head(status: number, eventStream: boolean): void {
    this.#seen.status = status;
    this.#seen.eventStream = eventStream;
    if (!this.#options.mustReplay) this.#startTimer(this.#options.replayHold);
    this.#judge();
  }

  /** Body bytes came in, of which `content` may be the beginning of an event. */
  bytes(count: number, content: boolean): void {
    this.#seen.bytes += count;
    this.#seen.content = content;
    this.#judge();
  }

  event(): void {
    this.#seen.event = true;
    this.#judge();
  }

  /** Nobody can read this stream, so nothing may be concluded from it. */
  unreadable(): void {
    if (this.#seen.bytes === 0) return;
    this.#seen.overfull = true;
    this.#judge();
  }

  ended(end: 'clean' | 'broken' | 'client-left'): void {
    this.#seen.end = end;
    this.#seen.polling = this.#options.polling();
    this.#seen.displaced = this.#options.displaced();
    this.#judge();
    this.#stopTimer();
  }

  /** Keeps bytes until the outcome. */
  hold(pieces: readonly Buffer[], alsoHeld: number): void {
    for (const piece of pieces) {
      this.#held.push(piece);
      this.#heldBytes += piece.length;
    }
    if (this.#heldBytes + alsoHeld > this.#options.maxHeldBytes) {
      this.#seen.overfull = true;
      this.#judge();
    }
  }

  /** What was held, for whoever commits the head. */
  take(): Buffer[] {
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    return held;
  }

  /** A refusal turned out to be impossible: waits on as if nothing had to come. */
  giveUp(): void {
    this.#stopTimer();
  }

  #startTimer(ms: number): void {
    this.#timer = setTimeout(() => {
      this.#seen.timeUp = true;
      this.#judge();
    }, ms);
  }

  #stopTimer(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }

  #judge(): void {
    if (this.#outcome !== null) return;
    const outcome = outcomeOf(this.#seen);
    if (outcome === null) return;
    this.#outcome = outcome;
    this.#stopTimer();
    this.#options.decided(outcome);
  }
}
