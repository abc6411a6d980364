/** The sessions one client process remembers: a map in order of use, within bounds. */
import { forgetExpired, type LedgerBounds, newSession, type Session, type UpstreamIdentity } from '../core/ledger.ts';
import type { Millis } from '../core/terms.ts';

export interface ClientBounds extends LedgerBounds {
  readonly sessions: number;
  /** Bytes for all sessions together, estimated. */
  readonly memory: number;
  /** How long an ended session is remembered. */
  readonly sessionMemory: Millis;
}

/** Counting bytes is worth it this often. */
const SWEEP_EVERY: Millis = 1_000;

export class SessionMemory {
  readonly #bounds: ClientBounds;
  readonly #sessions = new Map<string, Session>();
  #sweptAt: Millis = Number.NEGATIVE_INFINITY;

  constructor(bounds: ClientBounds) {
    this.#bounds = bounds;
  }

  get size(): number {
    return this.#sessions.size;
  }

  /** The session's record, or null where it was never seen or is forgotten. Counts as a use. */
  recall(key: string, now: Millis): Session | null {
    this.#sweep(now);
    const session = this.#sessions.get(key);
    if (session === undefined) return null;
    this.#sessions.delete(key);
    if (this.#isOver(session, now)) return null;
    this.#sessions.set(key, session);
    return session;
  }

  /** A 2xx in this session passed: its record, made if there is none. */
  learn(key: string, how: { anonymous: boolean; upstream: UpstreamIdentity }, now: Millis): Session {
    const known = this.recall(key, now);
    if (known !== null) return known;
    const session = newSession(how.anonymous, how.upstream);
    this.#sessions.set(key, session);
    if (this.#sessions.size > this.#bounds.sessions) this.#dropOldest();
    return session;
  }

  #sweep(now: Millis): void {
    if (now - this.#sweptAt < SWEEP_EVERY) return;
    this.#sweptAt = now;
    let bytes = 0;
    for (const [key, session] of this.#sessions) {
      if (this.#isOver(session, now)) this.#sessions.delete(key);
      else {
        forgetExpired(session, this.#bounds, now);
        bytes += session.bytes;
      }
    }
    // The least recently used session goes, whatever it holds: its cursors become unrecorded.
    while (bytes > this.#bounds.memory) bytes -= this.#dropOldest();
  }

  /** Returns the bytes it held. */
  #dropOldest(): number {
    const [key, session] = this.#sessions.entries().next().value!;
    this.#sessions.delete(key);
    return session.bytes;
  }

  #isOver(session: Session, now: Millis): boolean {
    return session.endedAt !== null && now - session.endedAt >= this.#bounds.sessionMemory;
  }
}
