/**
 * Watching one replay: holds the head and what comes with it until the outcome is known (core/replay.ts), then lets go,
 * once. In `mode: observe` it holds nothing and only says what it saw.
 *
 *     upstream ──> [ duplicates ] ──> [ held until the outcome ] ──> client
 */
import { type Outcome, outcomeOf, type ReplaySeen } from './replay.ts';
import type { Millis } from './terms.ts';

export interface WatchOptions {
  /** False: let everything pass, only tell the outcome. */
  readonly holds: boolean;
  readonly mustReplay: boolean;
  readonly replayHold: Millis;
  readonly replayDeadline: Millis;
  readonly maxHeldBytes: number;
  /** Asked when the body ends. */
  readonly polling: () => boolean;
  readonly displaced: () => boolean;
  /** The outcome, once. What is held is still held. */
  readonly decided: (outcome: Outcome) => void;
}

/** Starts a timer of so many ms and returns what stops it. */
export type StartTimer = (ms: Millis, run: () => void) => () => void;

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

export class Watch<Bytes extends Uint8Array = Uint8Array> {
  readonly #options: WatchOptions;
  readonly #timerOf: StartTimer;
  readonly #seen: Mutable<ReplaySeen>;
  #outcome: Outcome | null = null;
  #stop: (() => void) | null = null;
  #held: Bytes[] = [];
  #heldBytes = 0;

  /** Starts with the request. */
  constructor(options: WatchOptions, timerOf: StartTimer) {
    this.#options = options;
    this.#timerOf = timerOf;
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
  hold(pieces: readonly Bytes[], alsoHeld: number): void {
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
  take(): Bytes[] {
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    return held;
  }

  /** A refusal turned out to be impossible: waits on as if nothing had to come. */
  giveUp(): void {
    this.#stopTimer();
  }

  #startTimer(ms: Millis): void {
    this.#stop = this.#timerOf(ms, () => {
      this.#seen.timeUp = true;
      this.#judge();
    });
  }

  #stopTimer(): void {
    this.#stop?.();
    this.#stop = null;
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
