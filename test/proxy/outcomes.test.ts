// What becomes of a replay that brings no event at once: outcome by outcome. How its head is held is in watch.test.ts.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import type { Exchange } from '../support/exchange.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  failureOf,
  finishedPost,
  forwardedGet,
  openSession,
  type Pair,
  postStream,
  refusalOf,
} from '../support/session.ts';
import { eventually, pause } from '../support/waiting.ts';

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;
const SESSION = { session: 's-1' } as const;
const CURSOR = { ...SESSION, lei: 'e1' } as const;
/** How much later than its timer something may come on a busy machine. */
const SLACK = 400;

/** A guard whose session has an open request with the cursor `e1`. */
async function start(t: TestContext, file: ConfigFile = {}): Promise<Guard> {
  const guard = await startGuard(t, { file: { replayHold: '200ms', ...file } });
  await openSession(guard.client, guard.upstream, 's-1');
  await cutPost(guard.client, guard.upstream, 7, SESSION, priming('e1'));
  return guard;
}

/** A guard whose session has a finished request that nothing proves delivered at the cursor `e1`. */
async function startUndelivered(t: TestContext, file: ConfigFile = {}): Promise<Guard> {
  const guard = await startGuard(t, { file: { replayHold: '50ms', deliveryProof: 'event-id', ...file } });
  await openSession(guard.client, guard.upstream, 's-1');
  await finishedPost(guard.client, guard.upstream, 7, SESSION, priming('e1'), block({ id: 'e2', data: result(7) }));
  return guard;
}

const resume = ({ client, upstream }: Guard, options = {}): Promise<Pair> =>
  forwardedGet(client, upstream, { ...CURSOR, ...options });

/** Waits for the outcome of the only resume so far. */
async function outcomeIs({ metric }: Guard, outcome: string, count = 1): Promise<void> {
  const counted = async () => (await metric('replays_total', { outcome })) === count;
  await eventually(`${count} of the outcome ${outcome}`, counted);
}

/** The resume came to nothing, and the client was told so. */
async function isEmpty({ reply }: Pair): Promise<void> {
  const { status, rule } = await refusalOf(reply);
  assert.deepEqual([status, rule], [409, 'empty-replay']);
}

// `late-empty` in a row.

/** A resume that ends without an event after its head went out. */
async function lateEmpty(guard: Guard): Promise<void> {
  const { reply, exchange } = await resume(guard);
  await exchange.events(': quiet\n\n');
  await reply.head;
  await exchange.end();
  assert.equal(await reply.text(), ': quiet\n\n');
}

test('the tenth late-empty in a row passes and counts as an empty replay', async (t) => {
  const guard = await start(t, { replayHold: '20ms' });
  for (let round = 0; round < 10; round += 1) await lateEmpty(guard);
  await outcomeIs(guard, 'late-empty', 10);
  // One probe goes up at once; then the floor holds.
  const probe = await resume(guard);
  await probe.exchange.answer(503);
  await probe.reply.bytes();
  const { rule } = await refusalOf(await guard.client.get(CURSOR));
  assert.equal(rule, 'below-replay-floor');
});

test('a row of late-empties is broken by an event, also on a stream whose head had passed before', async (t) => {
  const guard = await start(t, { replayHold: '20ms' });
  for (const interruption of ['replayed', 'late event, then the end', 'late event, then a cut']) {
    for (let round = 0; round < 9; round += 1) await lateEmpty(guard);
    const { reply, exchange } = await resume(guard);
    await exchange.events();
    if (interruption !== 'replayed') await reply.head;
    await exchange.write(block({ id: 'e2', data: progress(7) }));
    await reply.until('e2');
    if (interruption.endsWith('cut')) exchange.cut();
    else await exchange.end();
    await reply.ended;
  }
  for (let round = 0; round < 9; round += 1) await lateEmpty(guard);
  const { reply, exchange } = await resume(guard);
  await exchange.answer(503);
  assert.equal((await reply.head).status, 503, 'no floor was set');
});

// `polled`.

test('a server that announced polling may answer with nothing, again and again, until it breaks its word', async (t) => {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 7, SESSION, priming('e1', 100));
  for (let round = 0; round < 3; round += 1) {
    const { reply, exchange } = await resume(guard);
    await answerEmpty(exchange);
    assert.equal((await reply.head).status, 200);
    assert.equal((await reply.bytes()).length, 0);
  }
  await outcomeIs(guard, 'polled', 3);
  const progressed = await resume(guard);
  await progressed.exchange.events(block({ id: 'e2', data: progress(7) }));
  await progressed.exchange.end();
  await progressed.reply.bytes();
  const pair = await resume(guard, { lei: 'e2' });
  await answerEmpty(pair.exchange);
  await isEmpty(pair);
});

test('polling is announced by a clean end only, and for a request that is still open', async (t) => {
  const guard = await startGuard(t, { file: { deliveryProof: 'event-id' } });
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, SESSION, priming('e1', 100));
  const cut = await resume(guard);
  await answerEmpty(cut.exchange);
  await isEmpty(cut);
  await finishedPost(client, upstream, 8, SESSION, priming('f1', 100), block({ id: 'f2', data: result(8) }));
  const finished = await resume(guard, { lei: 'f1' });
  await answerEmpty(finished.exchange);
  await isEmpty(finished);
});

// `displaced`.

test('an empty end while an older exchange of the stream is open upstream passes', async (t) => {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1');
  const post = await postStream(client, upstream, 7, SESSION, priming('e1'));
  const displaced = await resume(guard);
  await answerEmpty(displaced.exchange);
  assert.equal((await displaced.reply.head).status, 200);
  await outcomeIs(guard, 'displaced');
  await post.exchange.end();
  await post.reply.bytes();
  const pair = await resume(guard);
  await answerEmpty(pair.exchange);
  await isEmpty(pair);
});

test('an empty end while a newer exchange of the stream is open upstream passes, and the newer one is judged alone', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  const older = await resume(guard);
  const newer = await resume(guard);
  await older.exchange.events();
  await newer.exchange.events();
  await older.exchange.end();
  assert.equal((await older.reply.headWithin(1_000)).status, 200);
  assert.equal((await older.reply.bytes()).length, 0);
  await newer.exchange.end();
  await isEmpty(newer);
});

test('an exchange whose client has left displaces nobody', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  const older = await resume(guard);
  await older.exchange.events();
  older.reply.destroy();
  await older.exchange.left();
  const pair = await resume(guard);
  await answerEmpty(pair.exchange);
  await isEmpty(pair);
  await outcomeIs(guard, 'abandoned');
});

// `silent`.

const DEADLINE = 400;

for (const [name, begin] of [
  ['without a head', async () => {}],
  [
    'with a head that came late',
    async (exchange: Exchange) => {
      await pause(DEADLINE / 2);
      await exchange.events();
    },
  ],
  ['with a head and comments', (exchange: Exchange) => exchange.events(': hello\n\n')],
] as const) {
  test(`an undelivered result whose replay is silent ${name} is a 409 replayDeadline after the request`, async (t) => {
    const guard = await startUndelivered(t, { replayDeadline: `${DEADLINE}ms` });
    const asked = performance.now();
    const pair = await resume(guard);
    await begin(pair.exchange);
    const { at } = await pair.reply.head;
    await isEmpty(pair);
    assert.ok(at - asked >= DEADLINE - 5 && at - asked < DEADLINE + SLACK, `after ${at - asked} ms`);
    await pair.exchange.left(1_000);
    await outcomeIs(guard, 'silent');
    assert.equal(await guard.metric('resumes_total', { rule: 'finished-undelivered' }), 1);
  });
}

test('an undelivered result that comes before replayDeadline passes', async (t) => {
  const guard = await startUndelivered(t, { replayDeadline: '1s' });
  const { reply, exchange } = await resume(guard);
  await exchange.events();
  await pause(600);
  assert.equal(reply.headed, false, 'replayHold does not apply');
  await exchange.end(block({ id: 'e2', data: result(7) }));
  assert.equal(await reply.text(), block({ id: 'e2', data: result(7) }));
  await outcomeIs(guard, 'replayed');
});

test('an undelivered result whose replay ends with nothing is a 409 at once', async (t) => {
  const guard = await startUndelivered(t);
  const pair = await resume(guard);
  await answerEmpty(pair.exchange);
  const { at } = await pair.reply.headWithin(500);
  assert.ok(at > 0);
  await isEmpty(pair);
  await outcomeIs(guard, 'empty');
});

// `broken` and `abandoned`.

test('a replay that cannot be fetched is a 502', async (t) => {
  const guard = await start(t);
  await guard.upstream.kill();
  assert.equal(await failureOf(await guard.client.get(CURSOR)), 502);
  await outcomeIs(guard, 'broken');
  await guard.upstream.restart();
});

test('a replay that breaks is a 502 before its head went out, and a destroyed connection after it', async (t) => {
  const guard = await start(t, { replayHold: '50ms' });
  for (const how of ['cut', 'reset'] as const) {
    const before = await resume(guard);
    await before.exchange.events(': hello\n\n');
    before.exchange[how]();
    assert.equal(await failureOf(before.reply), 502, how);

    const after = await resume(guard);
    await after.exchange.events(': hello\n\n');
    await after.reply.head;
    after.exchange[how]();
    assert.equal(await after.reply.endedWithin(1_000), 'cut', how);
    assert.equal(after.reply.body.toString(), ': hello\n\n');
  }
  await outcomeIs(guard, 'broken', 2);
  await outcomeIs(guard, 'live', 2);
});

test('a replay shorter than its Content-Length is broken', async (t) => {
  const guard = await start(t);
  const { reply, exchange } = await resume(guard);
  await exchange.head(200, EVENTS, { framing: 'length:100' });
  await exchange.raw(': hello\n\n');
  exchange.cut();
  assert.equal(await failureOf(reply), 502);
  await outcomeIs(guard, 'broken');
});

test('a client that leaves while its replay is held takes upstream’s leg with it', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  for (const [round, how] of (['destroy', 'reset'] as const).entries()) {
    const { reply, exchange } = await resume(guard);
    if (round === 0) await exchange.events();
    reply[how]();
    await exchange.left(1_000);
  }
  await outcomeIs(guard, 'abandoned', 2);
});
