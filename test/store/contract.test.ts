// What every store promises, whatever it is made of. The clock is the test's.

import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { parseStore } from '../../src/config-store.ts';
import { addRequests, endSession, NO_IDENTITY, openStream } from '../../src/core/ledger.ts';
import { MemoryStore } from '../../src/store/memory.ts';
import { RedisShelf } from '../../src/store/redis.ts';
import { SharedStore } from '../../src/store/shared.ts';
import type { MemoryBounds, SessionStore } from '../../src/store/store.ts';
import { requestsOf } from '../support/ledger.ts';
import { startRedis } from '../support/redis.ts';
import { HandStore, STORE_BOUNDS } from '../support/shared.ts';
import { MemoryShelf } from '../support/shelf.ts';
import { eventually } from '../support/waiting.ts';

type Make = (t: TestContext, bounds: MemoryBounds) => Promise<SessionStore>;

async function redisStore(t: TestContext, bounds: MemoryBounds): Promise<SessionStore> {
  const redis = await startRedis(t);
  const shelf = await RedisShelf.open({ address: parseStore(redis.url)!, troubled: () => {} });
  t.after(() => shelf.close());
  await eventually('the shelf to be connected', () =>
    shelf.read('x').then(
      () => true,
      () => false,
    ),
  );
  return new HandStore(shelf, bounds).store;
}

const STORES: Readonly<Record<string, Make>> = {
  'in memory': async (_t, bounds) => new MemoryStore(bounds),
  'shared, on a shelf in memory': async (_t, bounds) => new HandStore(new MemoryShelf(), bounds).store,
  'shared, in Redis': redisStore,
};

const HOW = { anonymous: false, upstream: NO_IDENTITY } as const;

for (const [name, make] of Object.entries(STORES)) {
  describe(`a store ${name}`, () => {
    const start = (t: TestContext, bounds: Partial<MemoryBounds> = {}) => make(t, { ...STORE_BOUNDS, ...bounds });

    test('knows no session that it has not learnt', async (t) => {
      const store = await start(t);
      assert.equal(store.recall('a\ns', 0), null);
      assert.deepEqual(store.counts, { sessions: 0, bytes: 0, evicted: 0 });
    });

    test('has one record for a session, however often it is learnt', async (t) => {
      const store = await start(t);
      const session = store.learn('a\ns', HOW, 0);
      assert.equal(store.learn('a\ns', { ...HOW, anonymous: true }, 1), session);
      assert.equal(store.recall('a\ns', 2), session);
      assert.notEqual(store.learn('b\ns', HOW, 3), session, 'another route');
      assert.equal(session.anonymous, false);
    });

    test('remembers an ended session for sessionMemory, and not longer', async (t) => {
      const store = await start(t, { sessionMemory: 1_000 });
      endSession(store.learn('a\ns', HOW, 0), 500);
      assert.notEqual(store.recall('a\ns', 1_499), null);
      assert.equal(store.recall('a\ns', 1_500), null);
      assert.equal(store.counts.sessions, 0);
    });

    test('forgets the session that was used least lately, where there are too many', async (t) => {
      const store = await start(t, { sessions: 2 });
      store.learn('a\n1', HOW, 0);
      store.learn('a\n2', HOW, 1);
      store.recall('a\n1', 2);
      store.learn('a\n3', HOW, 3);
      assert.deepEqual(
        [...store.entries()].map(([key]) => key),
        ['a\n3', 'a\n1'],
      );
      assert.equal(store.counts.evicted, 1);
    });

    test('forgets sessions that take too much memory, the least used first', async (t) => {
      const store = await start(t, { memory: 5_000 });
      for (const key of ['a\n1', 'a\n2', 'a\n3']) {
        const session = store.learn(key, HOW, 0);
        addRequests(session, openStream(session, 'request', STORE_BOUNDS, 0), requestsOf([1]));
      }
      store.sweep(1);
      assert.deepEqual(
        [...store.entries()].map(([key]) => key),
        ['a\n3'],
      );
      assert.ok(store.counts.bytes <= 5_000, `${store.counts.bytes} bytes`);
    });

    test('forgets streams that nobody has come back for, in its sweep', async (t) => {
      const store = await start(t, { openStreamMemory: 50_000 });
      const session = store.learn('a\ns', HOW, 0);
      openStream(session, 'request', STORE_BOUNDS, 0);
      store.sweep(49_999);
      assert.equal(session.streams.size, 1);
      store.sweep(60_000);
      assert.equal(session.streams.size, 0);
    });

    test('takes nothing away from a session when others are asked about it', async (t) => {
      const store = await start(t);
      const session = store.learn('a\ns', HOW, 0);
      const stream = openStream(session, 'request', STORE_BOUNDS, 0);
      if (store instanceof SharedStore) await store.flush();
      const asked = await store.consult('a\ns', { anonymous: false, upstream: () => Promise.resolve(NO_IDENTITY) });
      assert.ok(asked === 'own' || asked === 'whole', asked);
      assert.equal(store.recall('a\ns', 1), session);
      assert.deepEqual([...session.streams], [stream]);
      assert.equal(
        await store.consult('a\nt', { anonymous: false, upstream: () => Promise.resolve(NO_IDENTITY) }),
        asked,
      );
      assert.equal(store.recall('a\nt', 1), null, 'nobody knows that one');
    });
  });
}
