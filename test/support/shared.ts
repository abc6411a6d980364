/** A shared store with a clock in hand. Nothing in it runs by itself: the test flushes and beats. */
import { proveByConnection } from '../../src/core/delivery.ts';
import { NO_IDENTITY, type Session } from '../../src/core/ledger.ts';
import { SharedStore, type Shelf } from '../../src/store/shared.ts';
import type { Consulted, MemoryBounds } from '../../src/store/store.ts';
import { BOUNDS } from './ledger.ts';

export const STORE_BOUNDS: MemoryBounds = { ...BOUNDS, memory: 2 ** 26, sessions: 100, sessionMemory: 600_000 };

/** The key of a session, as learning makes it. */
export const sessionKey = (session: string): string => `*/\n${session}`;

let ids = 0;

export class HandStore {
  readonly store: SharedStore;
  /** Failures so far. */
  readonly failures: Error[] = [];
  recoveries = 0;
  dropped = 0;
  now = 1_000_000;

  constructor(shelf: Shelf, bounds: Partial<MemoryBounds> = {}, secret = 'a-secret-of-these-tests') {
    this.store = new SharedStore({
      bounds: { ...STORE_BOUNDS, ...bounds },
      proofMemory: 60_000,
      shelf,
      secret,
      wall: () => this.now + 7_000_000,
      now: () => this.now,
      newId: () => `id${++ids}`,
      lookupDeadline: 2_000,
      proven: (receipt, now) => proveByConnection(receipt, now, undefined) === 'proven',
      health: {
        failed: (error) => void this.failures.push(error),
        recovered: () => {
          this.recoveries += 1;
        },
        dropped: (count) => {
          this.dropped += count;
        },
      },
    });
  }

  learn(session: string): Session {
    return this.store.learn(sessionKey(session), { anonymous: false, upstream: NO_IDENTITY }, this.now);
  }

  consult(session: string): Promise<Consulted> {
    const upstream = () => Promise.resolve(NO_IDENTITY);
    return this.store.consult(sessionKey(session), { anonymous: false, upstream });
  }
}
