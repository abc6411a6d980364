/** The store of a single process: an LRU of sessions within the bounds of section 12. */
import { LRUCache } from 'lru-cache';
import { forgetExpired, newSession, type Session, type UpstreamIdentity } from '../core/ledger.ts';
import type { Millis } from '../core/terms.ts';
import type { Consulted, MemoryBounds, SessionKey, SessionStore, StoreCounts } from './store.ts';

/** Looking through every stream is worth it this often, in ms. */
const EXPIRY_EVERY: Millis = 10_000;

const OWN: Promise<Consulted> = Promise.resolve('own');

export class MemoryStore implements SessionStore {
  readonly #bounds: MemoryBounds;
  readonly #sessions: LRUCache<SessionKey, Session>;
  #evicted = 0;
  #bytes = 0;
  #expiredAt: Millis = 0;

  /** `gone`: a session is forgotten, for whatever reason. */
  constructor(bounds: MemoryBounds, gone: (key: SessionKey, session: Session) => void = () => {}) {
    this.#bounds = bounds;
    this.#sessions = new LRUCache({
      max: bounds.sessions,
      dispose: (session, key, reason) => {
        if (reason === 'evict') this.#evicted += 1;
        gone(key, session);
      },
    });
  }

  get counts(): StoreCounts {
    return { sessions: this.#sessions.size, bytes: this.#bytes, evicted: this.#evicted };
  }

  consult(): Promise<Consulted> {
    return OWN;
  }

  settled(): Promise<void> {
    return Promise.resolve();
  }

  recall(key: SessionKey, now: Millis): Session | null {
    const session = this.#sessions.get(key);
    if (session === undefined) return null;
    if (this.#isOver(session, now)) {
      this.#sessions.delete(key);
      return null;
    }
    return session;
  }

  learn(key: SessionKey, how: { anonymous: boolean; upstream: UpstreamIdentity }, now: Millis): Session {
    const known = this.recall(key, now);
    if (known !== null) return known;
    const session = newSession(how.anonymous, how.upstream);
    this.#sessions.set(key, session);
    return session;
  }

  sweep(now: Millis): void {
    const expire = now - this.#expiredAt >= EXPIRY_EVERY;
    if (expire) this.#expiredAt = now;
    let bytes = 0;
    for (const [key, session] of [...this.#sessions.entries()]) {
      if (this.#isOver(session, now)) {
        this.#sessions.delete(key);
        continue;
      }
      if (expire) forgetExpired(session, this.#bounds, now);
      bytes += session.bytes;
    }
    while (bytes > this.#bounds.memory) {
      // The least recently used session goes, whatever it holds: its cursors become unrecorded.
      const session = this.#sessions.pop();
      if (session === undefined) break;
      bytes -= session.bytes;
    }
    this.#bytes = bytes;
  }

  *entries(): Iterable<readonly [SessionKey, Session]> {
    yield* this.#sessions.entries();
  }

  #isOver(session: Session, now: Millis): boolean {
    return session.endedAt !== null && now - session.endedAt >= this.#bounds.sessionMemory;
  }
}
