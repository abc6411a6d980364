// Watching a replay: how long its head is held, and what counts as an event. The other outcomes are in
// outcomes.test.ts, and what an empty replay becomes in empty-replay.test.ts.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import type { ConfigFile } from '../../src/config.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import { answerEmpty, cutPost, forwardedGet, openSession, type Pair, refusalOf } from '../support/session.ts';
import { eventually, pause } from '../support/waiting.ts';

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;
const SESSION = { session: 's-1' } as const;
const CURSOR = { ...SESSION, lei: 'e1' } as const;
const HOLD = 300;
/** How much later than its timer something may come on a busy machine. */
const SLACK = 400;

/** A guard whose session has an open request with the cursor `e1`. */
async function start(t: TestContext, file: ConfigFile = {}): Promise<Guard> {
  const guard = await startGuard(t, { file: { replayHold: `${HOLD}ms`, ...file } });
  await openSession(guard.client, guard.upstream, 's-1');
  await cutPost(guard.client, guard.upstream, 7, SESSION, priming('e1'));
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

// The head.

test('a head without an event is held until replayHold after it came, and then passes', async (t) => {
  const guard = await start(t);
  const { reply, exchange } = await resume(guard);
  await pause(HOLD / 2);
  const answered = performance.now();
  await exchange.events();
  const held = (await reply.head).at - answered;
  assert.ok(held >= HOLD - 5 && held < HOLD + SLACK, `held for ${held} ms`);
  reply.destroy();
  await exchange.left();
  await outcomeIs(guard, 'live');
});

test('an event before replayHold takes the head with it, and nothing waits after that', async (t) => {
  const guard = await start(t, { replayHold: '1s' });
  const { reply, exchange } = await resume(guard);
  const answered = performance.now();
  await exchange.events();
  await pause(600);
  assert.equal(reply.headed, false);
  await exchange.write(block({ id: 'e2', data: progress(7) }));
  const { at } = await reply.head;
  assert.ok(at - answered < 1_000, `${at - answered} ms`);
  await reply.until('e2');
  await exchange.write('data: half');
  await reply.until('data: half', 200);
  reply.destroy();
  await outcomeIs(guard, 'replayed');
});

test('an end before replayHold is empty, one after it passes and is counted as late-empty', async (t) => {
  const guard = await start(t, { replayHold: '1s' });
  const early = await resume(guard);
  await early.exchange.events();
  await pause(700);
  await early.exchange.end();
  await isEmpty(early);
  await outcomeIs(guard, 'empty');

  const late = await resume(guard);
  await late.exchange.events();
  assert.equal((await late.reply.head).status, 200);
  await late.exchange.end();
  assert.equal((await late.reply.bytes()).length, 0);
  await outcomeIs(guard, 'live');
  await outcomeIs(guard, 'late-empty');
});

test('other heads are not held: not of another status, not of another media type once it has a byte', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  for (const status of [202, 206, 301, 400, 405, 500]) {
    const { reply, exchange } = await resume(guard);
    await exchange.head(status, { ...EVENTS, 'X-From': 'upstream' });
    const head = await reply.headWithin(500);
    assert.deepEqual([head.status, head.field('x-from'), head.field('proxy-status')], [status, 'upstream', undefined]);
    reply.destroy();
    await exchange.left();
  }
  const { reply, exchange } = await resume(guard);
  await exchange.head(200, { 'Content-Type': 'application/json' }, { framing: 'length:2' });
  await assert.rejects(reply.headWithin(100), 'it may still end without a byte');
  await exchange.raw('{}');
  assert.equal((await reply.headWithin(500)).field('content-length'), '2');
  assert.equal(await reply.text(), '{}');
  await outcomeIs(guard, 'not-a-replay', 7);
});

test('an event stream is one in any case and with any parameters', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  for (const type of ['text/event-stream;charset=utf-8', 'Text/Event-Stream ; x="a;b"', 'TEXT/EVENT-STREAM']) {
    const { reply, exchange } = await resume(guard);
    await exchange.head(200, { 'Content-Type': type });
    await exchange.write(block({ id: 'e2', data: progress(7) }));
    assert.equal((await reply.headWithin(500)).field('content-type'), type);
    reply.destroy();
    await exchange.left();
  }
  await outcomeIs(guard, 'replayed', 3);
});

test('a replay with a length arrives whole, framed anew', async (t) => {
  const guard = await start(t);
  const { reply, exchange } = await resume(guard);
  const body = block({ id: 'e2', data: progress(7) }) + block({ id: 'e3', data: result(7) });
  await exchange.answer(200, EVENTS, body);
  const head = await reply.head;
  assert.deepEqual([head.field('content-length'), head.field('transfer-encoding')], [undefined, 'chunked']);
  assert.equal(await reply.text(), body);
});

test('in silence after an ended replay nothing is left behind: the next request on the connection is served', async (t) => {
  const guard = await start(t);
  const on = await guard.client.connect();
  for (let round = 0; round < 2; round += 1) {
    const pair = await resume(guard, { on });
    await answerEmpty(pair.exchange);
    await isEmpty(pair);
  }
});

// What counts as an event.

const EVENT_LIKE: readonly [name: string, bytes: string][] = [
  ['a priming event', priming('e2')],
  ['an ID alone', 'id: e2\n\n'],
  ['an empty ID', 'id\n\n'],
  ['a valid retry', 'retry: 10\n\n'],
  ['data', 'data: x\n\n'],
  ['two empty data lines', 'data\ndata\n\n'],
];
const NOTHING_LIKE: readonly [name: string, bytes: string][] = [
  ['a comment', ': hello\n\n'],
  ['a bare event name', 'event: ping\n\n'],
  ['an empty data line', 'data\n\n'],
  ['an odd retry', 'retry: soon\n\n'],
  ['an ID with NUL', 'id: a\u0000b\n\n'],
  ['an unknown field', 'foo: bar\n\n'],
  ['blank lines', '\n\r\n\r\n'],
  ['an unterminated comment', ': hello'],
];

test('an ID, data and a valid retry are events, and anything else is none', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  for (const [name, bytes] of EVENT_LIKE) {
    const { reply, exchange } = await resume(guard);
    await exchange.events(bytes);
    assert.equal((await reply.headWithin(500)).status, 200, name);
    await exchange.end();
    assert.equal(await reply.text(), bytes, name);
  }
  for (const [name, bytes] of NOTHING_LIKE) {
    const pair = await resume(guard);
    await pair.exchange.events(bytes);
    await pair.exchange.end();
    const { rule } = await refusalOf(pair.reply);
    assert.equal(rule, 'empty-replay', name);
    // Restore the floor, so that the next one is asked for again.
    const again = await resume(guard);
    await again.exchange.events(block({ id: 'e3', data: progress(7) }));
    await again.exchange.end();
    await again.reply.bytes();
  }
});

test('unterminated bytes are content: at the end of the body, and when replayHold is over', async (t) => {
  const guard = await start(t);
  const ended = await resume(guard);
  await ended.exchange.events('data: half');
  await ended.exchange.end();
  assert.equal(await ended.reply.text(), 'data: half');
  await outcomeIs(guard, 'live');
  await outcomeIs(guard, 'late-empty', 0);

  const open = await resume(guard);
  await open.exchange.events('data: half');
  assert.equal((await open.reply.head).status, 200);
  await open.exchange.end();
  assert.equal(await open.reply.text(), 'data: half');
  await outcomeIs(guard, 'live', 2);
  await outcomeIs(guard, 'late-empty', 0);
});

test('a compressed replay is read: an event passes at once, its bytes untouched', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  const { reply, exchange } = await resume(guard);
  const body = gzipSync(block({ id: 'e2', data: progress(7) }));
  await exchange.answer(200, { ...EVENTS, 'Content-Encoding': 'gzip' }, body);
  const head = await reply.headWithin(1_000);
  assert.deepEqual([head.status, head.field('content-encoding')], [200, 'gzip']);
  assert.deepEqual(await reply.bytes(), body);
  await outcomeIs(guard, 'replayed');
});

test('of a stream that cannot be read nothing is concluded, once it has a byte', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  const { reply, exchange } = await resume(guard);
  await exchange.head(200, { ...EVENTS, 'Content-Encoding': 'zstd' });
  await exchange.write('?');
  assert.equal((await reply.headWithin(500)).status, 200);
  await exchange.end();
  assert.equal(await reply.text(), '?');
});

test('more than tap.maxHeldBytes pass at once, comments as well as half an event', async (t) => {
  for (const piece of [': comment\n\n', 'data: x']) {
    const guard = await start(t, { replayHold: '5s', tap: { maxHeldBytes: '64KiB' } });
    const { reply, exchange } = await resume(guard);
    const most = piece.startsWith(':') ? piece.repeat(65_536 / piece.length) : piece.padEnd(65_536, 'x');
    await exchange.events(most.slice(0, 65_536));
    await assert.rejects(reply.headWithin(150));
    const over = piece.startsWith(':') ? piece : 'x';
    await exchange.write(over);
    assert.equal((await reply.headWithin(1_000)).status, 200);
    await exchange.end();
    assert.equal(await reply.text(), most + over);
    await outcomeIs(guard, 'replayed');
  }
});
