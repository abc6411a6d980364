// Storms: clients that come back as fast as they can with a cursor that nobody can honour.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createClient } from '../support/client.ts';
import type { Exchange } from '../support/exchange.ts';
import { startGuard } from '../support/guard.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  refusalOf,
} from '../support/session.ts';
import { startTimedGuard, type TimedGuard } from '../support/timed-guard.ts';
import { pause } from '../support/waiting.ts';

const ROUNDS = 200;
const STEP = 50;

/** Two hundred resumes, 50 ms apart on the proxy's clock: when upstream saw one, and what the client got. */
async function storm(
  { client, upstream, clock }: TimedGuard,
  options: { session: string; lei: string },
  answer: (exchange: Exchange) => Promise<void>,
): Promise<{ seen: number[]; answers: string[] }> {
  const start = clock.now();
  const seen: number[] = [];
  const answers: string[] = [];
  upstream.handle((exchange) => {
    seen.push(clock.now() - start);
    return answer(exchange);
  });
  for (let round = 0; round < ROUNDS; round += 1) {
    const reply = await client.get(options);
    const { status } = await reply.head;
    const rule = /"rule":"([a-z-]+)"/.exec(await reply.text())?.[1];
    answers.push(`${status} ${rule ?? 'upstream'}`);
    reply.destroy();
    clock.advance(STEP);
  }
  return { seen, answers };
}

const count = (answers: readonly string[], wanted: string): number =>
  answers.filter((given) => given === wanted).length;

test('a dead cursor, tried 200 times in 10 s, reaches upstream once and at the moments of the probe schedule', async (t) => {
  const guard = await startTimedGuard(t);
  const { client, upstream, metric } = guard;
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  const { seen, answers } = await storm(guard, { session, lei: 'e1' }, answerEmpty);
  assert.deepEqual(seen, [0, 50, 1_050, 3_050, 7_050], 'the first, one at once, then after 1, 2 and 4 s');
  assert.equal(count(answers, '409 empty-replay'), 5);
  assert.equal(count(answers, '409 below-replay-floor'), 195);
  assert.equal(await metric('storm_requests_absorbed_total'), 195);
});

test('in real time the storm reaches upstream five times at most, and 200 times without the proxy', async (t) => {
  const counted = { direct: 0, guarded: 0 };
  const { client, upstream, metric } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  upstream.handle((exchange) => {
    counted[exchange.field('x-direct') === undefined ? 'guarded' : 'direct'] += 1;
    return answerEmpty(exchange);
  });
  const direct = createClient(upstream.url);
  t.after(() => direct.close());

  const statuses = new Map<number, number>();
  const start = performance.now();
  for (let round = 0; round < ROUNDS; round += 1) {
    const [guarded, bare] = await Promise.all([
      client.get({ session, lei: 'e1' }),
      direct.get({ session, lei: 'e1', fields: { 'X-Direct': '1' } }),
    ]);
    const { status } = await guarded.head;
    statuses.set(status, (statuses.get(status) ?? 0) + 1);
    assert.equal((await bare.head).status, 200);
    await Promise.all([guarded.ended, bare.ended]);
    guarded.destroy();
    bare.destroy();
    await pause(start + (round + 1) * STEP - performance.now());
  }
  const took = performance.now() - start;
  // One more probe is due 15 s after the first answer; a slow machine may get that far.
  assert.ok(took < 15_000, `took ${took} ms`);
  assert.deepEqual([...statuses], [[409, ROUNDS]]);
  assert.equal(counted.direct, ROUNDS);
  assert.ok(counted.guarded >= 4 && counted.guarded <= 5, `${counted.guarded} reached upstream`);
  assert.equal(await metric('storm_requests_absorbed_total'), ROUNDS - counted.guarded);
});

for (const status of [405, 409]) {
  test(`a finished cursor that upstream answers with ${status} is stripped ten times, refused, and then probed`, async (t) => {
    const guard = await startTimedGuard(t);
    const { client, upstream, metric } = guard;
    const session = await openSession(client, upstream, 's-1');
    await finishedPost(client, upstream, 7, { session }, block({ id: 'e2', data: result(7) }));
    const { seen, answers } = await storm(guard, { session, lei: 'e2' }, async (exchange) => {
      assert.deepEqual(exchange.values('last-event-id'), []);
      await exchange.answer(status, { Allow: 'POST' });
    });
    const strips = Array.from({ length: 10 }, (_, round) => round * STEP);
    assert.deepEqual(seen, [...strips, 550, 1_550, 3_550, 7_550], 'refused at 500 ms, then the schedule');
    assert.equal(count(answers, `${status} upstream`), 14);
    assert.equal(count(answers, '409 finished-storm'), 186);
    assert.equal(await metric('storm_requests_absorbed_total'), 186);
  });
}

/** A session with a request whose cursor upstream has just answered with nothing. */
async function withFloor(guard: TimedGuard, session = 's-1'): Promise<{ session: string; lei: string }> {
  const { client, upstream } = guard;
  await openSession(client, upstream, session);
  await cutPost(client, upstream, 7, { session }, priming('e1'), block({ id: 'e2', data: progress(7) }));
  await probe(guard, { session, lei: 'e1' }, answerEmpty, 409);
  return { session, lei: 'e1' };
}

/** A resume that must reach upstream. */
async function probe(
  { client, upstream }: TimedGuard,
  options: { session: string; lei: string },
  answer: (exchange: Exchange) => unknown,
  status: number,
): Promise<void> {
  const { reply, exchange } = await forwardedGet(client, upstream, options);
  assert.equal(exchange.field('last-event-id'), options.lei);
  await answer(exchange);
  assert.equal((await reply.head).status, status);
  await reply.ended;
}

async function refused({ client, upstream }: TimedGuard, options: { session: string; lei: string }): Promise<void> {
  const before = upstream.requests.length;
  const { status, rule } = await refusalOf(await client.get(options));
  assert.deepEqual([status, rule], [409, 'below-replay-floor']);
  assert.equal(upstream.requests.length, before);
}

test('probes that bring nothing come ever less often, up to one a minute', async (t) => {
  const guard = await startTimedGuard(t);
  const { clock } = guard;
  const cursor = await withFloor(guard);
  await probe(guard, cursor, answerEmpty, 409);
  for (const seconds of [1, 2, 4, 8, 16, 32, 60, 60]) {
    clock.advance(seconds * 1_000 - 1);
    await refused(guard, cursor);
    clock.advance(1);
    await probe(guard, cursor, answerEmpty, 409);
  }
});

test('a probe that comes to anything else than nothing re-arms the same interval, a second after the immediate one', async (t) => {
  const guard = await startTimedGuard(t);
  const { client, upstream, clock } = guard;
  const cursor = await withFloor(guard);
  const unavailable = (exchange: Exchange) => exchange.answer(503);
  await probe(guard, cursor, unavailable, 503);
  for (const answer of [unavailable, (exchange: Exchange) => exchange.cut()]) {
    clock.advance(999);
    await refused(guard, cursor);
    clock.advance(1);
    await probe(guard, cursor, answer, answer === unavailable ? 503 : 502);
  }
  clock.advance(1_000);
  const abandoned = await forwardedGet(client, upstream, cursor);
  abandoned.reply.destroy();
  await abandoned.exchange.left();
  clock.advance(999);
  await refused(guard, cursor);
  clock.advance(1);
  await probe(guard, cursor, answerEmpty, 409);
  clock.advance(1_999);
  await refused(guard, cursor);
  clock.advance(1);
  await probe(guard, cursor, answerEmpty, 409);
});

test('a probe that brings a replay sets the floor back and starts the schedule anew', async (t) => {
  const guard = await startTimedGuard(t);
  const { clock } = guard;
  const cursor = await withFloor(guard);
  await probe(guard, cursor, answerEmpty, 409);
  clock.advance(1_000);
  await probe(guard, cursor, answerEmpty, 409);
  clock.advance(2_000);
  const replay = async (exchange: Exchange) => {
    await exchange.events(block({ id: 'e3', data: progress(7) }));
    await exchange.end();
  };
  await probe(guard, cursor, replay, 200);
  await probe(guard, cursor, replay, 200);
  await probe(guard, cursor, answerEmpty, 409);
  await probe(guard, cursor, answerEmpty, 409);
  clock.advance(999);
  await refused(guard, cursor);
  clock.advance(1);
  await probe(guard, cursor, answerEmpty, 409);
});

test('one probe is under way at a time, and the slot of one that hangs frees itself after 5 s', async (t) => {
  const guard = await startTimedGuard(t);
  const { client, upstream, clock } = guard;
  const cursor = await withFloor(guard);
  const hanging = await forwardedGet(client, upstream, cursor);
  await refused(guard, cursor);
  clock.advance(4_999);
  await refused(guard, cursor);
  clock.advance(1);
  await probe(guard, cursor, answerEmpty, 200);
  assert.equal(hanging.reply.headed, false);
});

test('an empty replay below the mark bars everything up to its cursor, one at the mark that position alone', async (t) => {
  const guard = await startTimedGuard(t);
  const { client, upstream } = guard;
  const session = await openSession(client, upstream, 's-1');
  const events = [1, 2, 3, 4].map((n) => block({ id: `e${n}`, data: progress(7, n, 9) }));
  await cutPost(client, upstream, 7, { session }, ...events);
  await probe(guard, { session, lei: 'e2' }, answerEmpty, 409);
  await probe(guard, { session, lei: 'e1' }, (exchange) => exchange.answer(503), 503);
  for (const lei of ['e1', 'e2']) await refused(guard, { session, lei });
  for (const lei of ['e3', 'e4']) assert.equal(await fateOf(client, upstream, { session, lei }), `forwarded ${lei}`);

  const other = await openSession(client, upstream, 's-2');
  await cutPost(client, upstream, 7, { session: other }, ...events);
  for (let round = 0; round < 2; round += 1) await probe(guard, { session: other, lei: 'e4' }, answerEmpty, 409);
  await refused(guard, { session: other, lei: 'e4' });
  for (const lei of ['e1', 'e2', 'e3']) {
    assert.equal(await fateOf(client, upstream, { session: other, lei }), `forwarded ${lei}`);
  }
});

test('ten fruitless strips are a storm only within 30 s', async (t) => {
  for (const [wait, fate] of [
    [30_000, 'refused 409 finished-storm'],
    [30_001, 'stripped'],
  ] as const) {
    const { client, upstream, clock } = await startTimedGuard(t);
    const session = await openSession(client, upstream, 's-1');
    await finishedPost(client, upstream, 7, { session }, block({ id: 'e2', data: result(7) }));
    for (let round = 0; round < 10; round += 1) {
      assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
    }
    clock.advance(wait);
    assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), fate);
  }
});

test('a strip that brings an event ends the storm, and nine strips are none', async (t) => {
  const { client, upstream } = await startTimedGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const lei = 'e2';
  await finishedPost(client, upstream, 7, { session }, block({ id: lei, data: result(7) }));
  const fruitful = async (): Promise<void> => {
    const { reply, exchange } = await forwardedGet(client, upstream, { session, lei });
    assert.equal(exchange.field('last-event-id'), undefined);
    await exchange.events(block({ id: 'n1', data: progress(1) }));
    await exchange.end();
    await reply.bytes();
  };
  for (let round = 0; round < 9; round += 1) assert.equal(await fateOf(client, upstream, { session, lei }), 'stripped');
  await fruitful();
  for (let round = 0; round < 10; round += 1)
    assert.equal(await fateOf(client, upstream, { session, lei }), 'stripped');
  assert.equal(await fateOf(client, upstream, { session, lei }), 'refused 409 finished-storm');
  await fruitful();
  for (let round = 0; round < 10; round += 1)
    assert.equal(await fateOf(client, upstream, { session, lei }), 'stripped');
  assert.equal(await fateOf(client, upstream, { session, lei }), 'refused 409 finished-storm');
});
