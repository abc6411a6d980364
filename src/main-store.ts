/** The store that a configuration asks for: in this process alone, or shared by several replicas through Redis. */
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Config } from './config.ts';
import { parseStore } from './config-store.ts';
import { proveByConnection } from './core/delivery.ts';
import type { Logger } from './ops/logger.ts';
import { MemoryStore } from './store/memory.ts';
import { RedisShelf } from './store/redis.ts';
import { BEAT_EVERY, FLUSH_EVERY, SharedStore, type StoreHealth } from './store/shared.ts';
import type { MemoryBounds, SessionStore } from './store/store.ts';

export interface Storage {
  readonly store: SessionStore;
  /** Failures so far. */
  errors(): number;
  /** Events and sessions so far that were dropped untold. */
  dropped(): number;
  /** Sessions that are still to be told. */
  pending(): number;
  /** What an operator should know, for `/readyz`. It is no reason to take the replica out: it works on its own. */
  complaints(): readonly string[];
  close(): Promise<void>;
}

interface Surroundings {
  readonly bounds: MemoryBounds;
  readonly logger: Logger;
  readonly now: () => number;
  readonly wall: () => number;
  readonly lookupDeadline: number | undefined;
}

/** What hashes and mints: with a shared store the same for all replicas, else random and of this process. */
export function tokenKey({ storeSecret, store }: Config): Buffer {
  if (store === 'memory' || storeSecret === undefined) return randomBytes(32);
  return createHash('sha256').update(`tokens\0${storeSecret}`).digest();
}

const NONE = (): number => 0;

/** @throws {GuardError} `config-invalid` where the client of the store is not installed. */
export async function openStore(config: Config, surroundings: Surroundings): Promise<Storage> {
  const { bounds, logger, now, wall, lookupDeadline } = surroundings;
  const address = config.store === 'memory' ? null : parseStore(config.store);
  if (address === null || config.storeSecret === undefined) {
    const store = new MemoryStore(bounds);
    return { store, errors: NONE, dropped: NONE, pending: NONE, complaints: () => [], close: () => Promise.resolve() };
  }
  const health = storeHealth(logger);
  const shelf = await RedisShelf.open({
    address,
    ...(config.storeCa === undefined ? {} : { ca: readFileSync(config.storeCa, 'utf8') }),
    troubled: health.failed,
  });
  const store = new SharedStore({
    bounds,
    proofMemory: config.proofMemory,
    shelf,
    secret: config.storeSecret,
    now,
    wall,
    ...(lookupDeadline === undefined ? {} : { lookupDeadline }),
    newId: () => randomBytes(9).toString('base64url'),
    proven: (receipt, at) => proveByConnection(receipt, at, undefined) === 'proven',
    health,
  });
  await store.beat();
  const timers = [setInterval(() => void store.flush(), FLUSH_EVERY), setInterval(() => void store.beat(), BEAT_EVERY)];
  return {
    store,
    errors: health.errors,
    dropped: health.drops,
    pending: () => store.pending,
    complaints: health.complaints,
    async close() {
      for (const timer of timers) clearInterval(timer);
      await store.close();
      shelf.close();
    },
  };
}

/** Counts every failure, and says once that the store is away and once that it is back. */
function storeHealth(logger: Logger) {
  let errors = 0;
  let drops = 0;
  let failing: string | null = null;
  return {
    failed(error: Error) {
      errors += 1;
      if (failing === null) {
        logger.error(
          { event: 'store-failing', err: { message: error.message } },
          'the shared store fails: going on with what is known here',
        );
      }
      failing = error.message;
    },
    recovered() {
      if (failing === null) return;
      failing = null;
      logger.info({ event: 'store-recovered', errors, dropped: drops }, 'the shared store works again');
    },
    dropped(count: number) {
      drops += count;
    },
    errors: () => errors,
    drops: () => drops,
    complaints: () => (failing === null ? [] : [`the shared store fails: ${failing}`]),
  } satisfies StoreHealth & Record<string, unknown>;
}
