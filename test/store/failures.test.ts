// Redis is away, slow, full, read-only, or another: traffic goes on with what is known here, loudly, and recovers by itself.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import type { StartOptions } from '../../src/main.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import { type RedisServer, startRedis } from '../support/redis.ts';
import { type ReplicaGuard, startReplicas } from '../support/replicas.ts';
import { cutPost, failureOf, fateOf, finishedPost, openSession, postStream } from '../support/session.ts';
import { eventually } from '../support/waiting.ts';

const SESSION = { session: 's-1' } as const;
const answer = (id: number, event: string): string => block({ id: event, data: result(id) });
const fate = ({ client, upstream }: ReplicaGuard, lei: string) => fateOf(client, upstream, { ...SESSION, lei });

/** Two replicas, with a session that both know. */
async function start(t: TestContext, file: ConfigFile = {}, options: StartOptions = {}) {
  const redis = await startRedis(t);
  const replicas = await startReplicas(t, redis.url, file);
  const [a, b] = [await replicas.start({}, options), await replicas.start({}, options)];
  await openSession(a.client, a.upstream, 's-1');
  await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
  await a.told();
  assert.equal(await fate(b, 'e2'), 'stripped');
  return { redis, replicas, a, b };
}

const said = ({ logs }: ReplicaGuard, event: string): number => logs.filter((line) => line['event'] === event).length;

/** It says that the store fails: once in the log, in its metrics, and where readiness is asked for. */
async function complains(replica: ReplicaGuard): Promise<void> {
  await eventually('the failure to be noticed', () => said(replica, 'store-failing') > 0, 8_000);
  assert.ok((await replica.metric('store_errors_total')) > 0, 'counted');
  const { status, reasons } = JSON.parse(await replica.admin('/readyz'));
  assert.equal(status, 'ready');
  assert.match(reasons.join(), /^the shared store fails: \S/);
}

/** It has said that the store works again, and nothing more. */
async function recovers(replica: ReplicaGuard): Promise<void> {
  await eventually('the recovery', () => said(replica, 'store-recovered') > 0, 10_000);
  assert.equal(JSON.parse(await replica.admin('/readyz')).reasons.length, 0);
}

/** What one replica learns reaches the other. */
async function shares(a: ReplicaGuard, b: ReplicaGuard, event: string): Promise<void> {
  await finishedPost(
    a.client,
    a.upstream,
    event,
    SESSION,
    priming(`${event}-1`),
    block({ id: event, data: result(event) }),
  );
  await eventually('the first to tell', async () => (await a.metric('store_pending')) === 0, 10_000);
  await eventually('the other to know', async () => (await fate(b, event)) === 'stripped', 10_000);
}

/** A request and a resume work as with one replica. */
async function goesOn(replica: ReplicaGuard): Promise<void> {
  await finishedPost(replica.client, replica.upstream, 2, SESSION, priming('f1'), answer(2, 'f2'));
  assert.equal(await fate(replica, 'f2'), 'stripped');
  assert.equal(await fate(replica, 'e2'), 'stripped', 'known before');
  await cutPost(replica.client, replica.upstream, 3, SESSION, priming('g1'), block({ id: 'g2', data: progress(3) }));
  assert.equal(await fate(replica, 'g2'), 'forwarded g2');
}

interface Failure {
  readonly name: string;
  readonly begin: (redis: RedisServer) => unknown;
  readonly over: (redis: RedisServer) => unknown;
}

const FAILURES: readonly Failure[] = [
  { name: 'killed, and empty when it comes back', begin: (redis) => redis.kill(), over: (redis) => redis.restart() },
  { name: 'hanging, with its connections open', begin: (redis) => redis.freeze(), over: (redis) => redis.thaw() },
  {
    name: 'full',
    begin: (redis) => redis.command('CONFIG', 'SET', 'maxmemory', '1'),
    over: (redis) => redis.command('CONFIG', 'SET', 'maxmemory', '0'),
  },
  {
    name: 'read-only',
    begin: (redis) => redis.command('REPLICAOF', '127.0.0.1', '1'),
    over: (redis) => redis.command('REPLICAOF', 'NO', 'ONE'),
  },
  {
    name: 'emptied',
    begin: (redis) => redis.command('FLUSHALL').then(() => redis.kill()),
    over: (redis) => redis.restart(),
  },
];

for (const { name, begin, over } of FAILURES) {
  test(`Redis is ${name}: each replica goes on with what it knows, says so, and shares again afterwards`, async (t) => {
    const { redis, a, b } = await start(t);
    await begin(redis);
    await goesOn(a);
    await goesOn(b);
    for (const replica of [a, b]) await complains(replica);
    await over(redis);
    for (const replica of [a, b]) await recovers(replica);
    await shares(a, b, 'h1');
    await shares(b, a, 'h2');
    for (const replica of [a, b]) assert.equal(await replica.metric('store_dropped_total'), 0);
  });
}

test('what happened while Redis was away is told when it is back', async (t) => {
  const { redis, a, b } = await start(t);
  await redis.kill();
  await complains(a);
  await finishedPost(a.client, a.upstream, 2, SESSION, priming('f1'), answer(2, 'f2'));
  assert.equal(await fate(b, 'f2'), 'forwarded f2', 'nobody has told it');
  await redis.restart();
  for (const replica of [a, b]) await recovers(replica);
  await eventually('the other to know', async () => (await fate(b, 'f2')) === 'stripped', 10_000);
  assert.equal(await fate(b, 'e2'), 'stripped');
});

test('a Redis that hangs holds a resume for 50 ms, and once that is known for no time at all', async (t) => {
  const { redis, b } = await start(t, {}, { lookupDeadline: 50 });
  redis.freeze();
  const took = async (): Promise<number> => {
    const from = performance.now();
    assert.equal(await fate(b, 'x1'), 'forwarded x1');
    return performance.now() - from;
  };
  const first = await took();
  assert.ok(first >= 49, `${first} ms`);
  const errors = await b.metric('store_errors_total');
  assert.ok(errors > 0, `${errors} errors`);
  const atOnce = async (): Promise<boolean> => {
    const [before, elapsed] = [await b.metric('store_errors_total'), await took()];
    return elapsed < 50 && (await b.metric('store_errors_total')) === before;
  };
  await eventually('it to be known', atOnce, 8_000);
  redis.thaw();
});

test('a proxy starts without Redis, and shares as soon as there is one', async (t) => {
  const redis = await startRedis(t);
  await redis.kill();
  const replicas = await startReplicas(t, redis.url);
  const [a, b] = [await replicas.start(), await replicas.start()];
  await openSession(a.client, a.upstream, 's-1');
  await complains(a);
  await redis.restart();
  for (const replica of [a, b]) await recovers(replica);
  await shares(a, b, 'h1');
});

test('storeFailure: refuse answers a resume with 503 while Redis is away, and nothing else', async (t) => {
  const { redis, a, b } = await start(t, { storeFailure: 'refuse' });
  await redis.kill();
  const reply = await b.client.get({ ...SESSION, lei: 'e2' });
  assert.equal(await failureOf(reply), 503);
  await finishedPost(a.client, a.upstream, 2, SESSION, priming('f1'), answer(2, 'f2'));
  assert.equal(await fateOf(b.client, b.upstream, { ...SESSION, lei: 'e2', version: '2026-07-28' }), 'forwarded e2');
  await redis.restart();
  await eventually(
    'resumes to be decided again',
    async () => {
      const again = await b.client.get({ ...SESSION, lei: 'e2' });
      if (
        (await again.headWithin(200).then(
          ({ status }) => status,
          () => 0,
        )) === 503
      )
        return false;
      await (await b.upstream.next({ method: 'GET' })).answer(405);
      return true;
    },
    10_000,
  );
});

test('an outage longer than a ring is long is counted, and nothing waits in a queue for its end', async (t) => {
  const { redis, a } = await start(t, { bounds: { eventIdsPerStream: 50 } });
  await redis.kill();
  await complains(a);
  const blocks = Array.from({ length: 200 }, (_, n) => block({ id: `x${n}`, data: progress(2) }));
  const { exchange } = await postStream(a.client, a.upstream, 2, SESSION, ...blocks);
  await redis.restart();
  await recovers(a);
  await eventually('it to be counted', async () => (await a.metric('store_dropped_total')) > 0, 10_000);
  const dropped = await a.metric('store_dropped_total');
  assert.ok(dropped <= 150, `${dropped} of 200, of which 50 are still known`);
  exchange.cut();
});

test('unrecorded: complete refuses nothing after an outage, for sessionMemory', async (t) => {
  const { redis, a, b } = await start(t, { unrecorded: 'complete' });
  assert.equal(await fate(b, 'x1'), 'refused 409 cursor-unrecorded');
  await redis.kill();
  assert.equal(await fate(b, 'x1'), 'forwarded x1', 'another replica may know it');
  await redis.restart();
  for (const replica of [a, b]) await recovers(replica);
  await shares(a, b, 'h1');
  assert.equal(await fate(b, 'x2'), 'forwarded x2');
});

test('unrecorded: complete waits for what another replica has not told yet', async (t) => {
  const { a, b } = await start(t, { unrecorded: 'complete' });
  // Just told, so that the next time is a whole interval away.
  await a.told();
  await cutPost(a.client, a.upstream, 2, SESSION, priming('f1'));
  assert.equal(await fate(b, 'f1'), 'forwarded f1');
});
