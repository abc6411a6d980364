// Delivered or not: what the proxy takes for proof that a client has its result, and what it does not.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { hideTables, holdTables } from '../support/kernel-tables.ts';
import { block, error, notification, priming, progress, request, result } from '../support/messages.ts';
import type { Reply } from '../support/reply.ts';
import { cutPost, fateOf, finishedPost, forwardedGet, openSession, type Pair, postStream } from '../support/session.ts';
import { startTimedGuard, type TimedGuard } from '../support/timed-guard.ts';
import { eventually } from '../support/waiting.ts';

const TERMINAL = block({ id: 'e2', data: result(7) });
const AT_PRIMING = { session: 's-1', lei: 'e1' } as const;
const AT_TERMINAL = { session: 's-1', lei: 'e2' } as const;
const SHORTLY = { session: 's-1' } as const;

async function start(t: TestContext, ...config: [file?: object, upstreamFile?: object]): Promise<TimedGuard> {
  const guard = await startTimedGuard(t, ...config);
  await openSession(guard.client, guard.upstream, 's-1');
  return guard;
}

/** The proof in the log line of the latest resume that was decided as finished. */
async function lastProof({ logs }: TimedGuard): Promise<unknown> {
  const decided = () => logs.filter(({ rule }) => rule === 'finished');
  await eventually('the line of the resume', () => decided().length > 0);
  return decided().at(-1)?.['proof'];
}

/** Waits until the proxy has written down the end of a POST. */
async function postsOver({ logs }: TimedGuard, count: number): Promise<void> {
  await eventually(`${count} POSTs to be over`, () => logs.filter(({ method }) => method === 'POST').length >= count);
}

/** A POST, in a session, whose result arrived and whose response ended. */
async function finished(guard: TimedGuard, options: object = {}, on?: Reply['connection']): Promise<Pair> {
  const { client, upstream } = guard;
  const how = { ...SHORTLY, ...options, ...(on === undefined ? {} : { on }) };
  const before = guard.logs.filter(({ method }) => method === 'POST').length;
  const pair = await finishedPost(client, upstream, 7, how, priming('e1'), TERMINAL);
  await postsOver(guard, before + 1);
  return pair;
}

/** Sockets are read in the order in which there was something to read: what came before this request has been noticed. */
async function leavingNoticed({ client }: TimedGuard): Promise<void> {
  const reply = await client.get({ fields: { Host: 'not-allowed.example' } });
  assert.equal((await reply.head).status, 403);
  await reply.bytes();
}

const fate = ({ client, upstream }: TimedGuard, options: Parameters<typeof fateOf>[2] = AT_PRIMING) =>
  fateOf(client, upstream, options);

test('a cursor at the terminal event is proof by itself, one before it needs the connection, and the log says which', async (t) => {
  const guard = await start(t);
  await finished(guard);
  assert.equal(await fate(guard, AT_TERMINAL), 'stripped');
  assert.equal(await lastProof(guard), 'event-id');
  assert.equal(await fate(guard, AT_PRIMING), 'stripped');
  await eventually('the second line', () => guard.logs.filter(({ rule }) => rule === 'finished').length === 2);
  assert.equal(await lastProof(guard), 'connection');
});

test('a priming event minted after the terminal event proves it', async (t) => {
  const guard = await start(t, { deliveryProof: 'event-id' });
  await finishedPost(guard.client, guard.upstream, 7, SHORTLY, TERMINAL, priming('e3'));
  assert.equal(await fate(guard, { ...SHORTLY, lei: 'e3' }), 'stripped');
});

test('where the terminal event has no ID an earlier one proves nothing, and a later one does', async (t) => {
  const guard = await start(t, { deliveryProof: 'event-id' });
  const { client, upstream } = guard;
  await finishedPost(client, upstream, 7, SHORTLY, priming('e1'), block({ data: result(7) }));
  assert.equal(await fate(guard), 'forwarded e1');
  await finishedPost(client, upstream, 8, SHORTLY, block({ data: result(8) }), priming('f1'));
  assert.equal(await fate(guard, { ...SHORTLY, lei: 'f1' }), 'stripped');
});

test('an error is a terminal event like a result', async (t) => {
  const guard = await start(t);
  await finishedPost(guard.client, guard.upstream, 7, SHORTLY, block({ id: 'e2', data: error(7) }));
  assert.equal(await fate(guard, AT_TERMINAL), 'stripped');
});

// The connection after the response ended in order.

test('a client that still listens and has acknowledged every byte has the result at once', async (t) => {
  const guard = await start(t);
  await finished(guard);
  assert.equal(await fate(guard), 'stripped');
});

test('a client that sent another request on the connection has the result, however soon it left', async (t) => {
  const guard = await start(t);
  const { client, upstream, clock } = guard;
  const connection = await client.connect();
  await finished(guard, {}, connection);
  clock.advance(1);
  const next = await client.post(8, { ...SHORTLY, on: connection });
  await (await upstream.next({ method: 'POST' })).json(200, result(8));
  await next.bytes();
  connection.destroy();
  await connection.closed();
  assert.equal(await fate(guard), 'stripped');
});

for (const [wait, wanted] of [
  [0, 'forwarded e1'],
  [99, 'forwarded e1'],
  [100, 'stripped'],
] as const) {
  test(`a client that leaves ${wait} ms after the end is ${wanted}`, async (t) => {
    const guard = await start(t);
    const { reply } = await finished(guard);
    guard.clock.advance(wait);
    reply.destroy();
    await reply.connection.closed();
    assert.equal(await fate(guard), wanted);
    // Only the moment of leaving counts, not how long ago that was.
    guard.clock.advance(1_000);
    assert.equal(await fate(guard), wanted);
  });
}

test('a reset after the end, however late, leaves the result unproven', async (t) => {
  const guard = await start(t);
  const { reply } = await finished(guard);
  guard.clock.advance(5_000);
  reply.reset();
  await reply.connection.closed();
  assert.equal(await fate(guard), 'forwarded e1');
  assert.equal(await fate(guard, AT_TERMINAL), 'stripped', 'the cursor itself still proves it');
});

test('with Connection: close, the connection that we closed and the client read to its end is proof', async (t) => {
  const guard = await start(t);
  const { reply } = await finished(guard, { fields: { Connection: 'close' } });
  await reply.connection.closed();
  assert.equal(await fate(guard), 'stripped');
});

test('a response that broke after the terminal event proves nothing', async (t) => {
  const guard = await start(t);
  await cutPost(guard.client, guard.upstream, 7, SHORTLY, priming('e1'), TERMINAL);
  guard.clock.advance(1_000);
  assert.equal(await fate(guard), 'forwarded e1');
});

const BULK = block({ id: 'bulk', data: notification('notifications/message', { data: 'x'.repeat(60_000) }) });

/** A POST whose terminal event the kernel has taken and the client's side has not acknowledged. */
async function stalled(guard: TimedGuard, id = 7, lei = 'e1'): Promise<Pair> {
  const { client, upstream } = guard;
  const before = guard.logs.filter(({ method }) => method === 'POST').length;
  const pair = await postStream(client, upstream, id, SHORTLY, priming(lei));
  pair.reply.pause();
  for (let written = 0; written < 10; written += 1) await pair.exchange.write(BULK);
  await pair.exchange.end(block({ id: `${lei}-end`, data: result(id) }));
  await postsOver(guard, before + 1);
  return pair;
}

test('a client that has stalled does not have the result until its side acknowledges the bytes', async (t) => {
  const guard = await start(t);
  const { reply } = await stalled(guard);
  assert.equal(await fate(guard), 'forwarded e1');
  guard.clock.advance(1_000);
  assert.equal(await fate(guard), 'forwarded e1');
  reply.resume();
  await reply.bytes();
  guard.clock.advance(1_000);
  assert.equal(await fate(guard), 'stripped');
});

test('what the kernel said before the result was written proves nothing about the result', async (t) => {
  const guard = await start(t);
  const { client, upstream, clock } = guard;
  await finishedPost(client, upstream, 6, SHORTLY, priming('d1'), block({ id: 'd2', data: result(6) }));
  const slow = await postStream(client, upstream, 7, SHORTLY, priming('e1'));
  slow.reply.pause();
  // This resume reads the table, which shows the connection of the other request without a byte in its queue.
  assert.equal(await fate(guard, { ...SHORTLY, lei: 'd1' }), 'stripped');
  clock.advance(1);
  for (let written = 0; written < 10; written += 1) await slow.exchange.write(BULK);
  await slow.exchange.end(TERMINAL);
  await postsOver(guard, 3);
  clock.advance(1);
  assert.equal(await fate(guard), 'forwarded e1');
});

test('nor does it prove what was written while it was being asked', async (t) => {
  const guard = await start(t);
  const { client, upstream, clock } = guard;
  await finishedPost(client, upstream, 6, SHORTLY, block({ id: 'same', data: result(6) }));
  const slow = await postStream(client, upstream, 7, SHORTLY, priming('same'));
  slow.reply.pause();
  const table = holdTables(t);
  const resumed = await client.get({ ...SHORTLY, lei: 'same' });
  await table.read;
  clock.advance(1);
  for (let written = 0; written < 10; written += 1) await slow.exchange.write(BULK);
  await slow.exchange.end(TERMINAL);
  await postsOver(guard, 3);
  table.release();
  const exchange = await upstream.next({ method: 'GET' });
  assert.equal(exchange.field('last-event-id'), 'same');
  resumed.destroy();
});

// Where the kernel cannot be asked.

for (const [name, wait, leave, wanted] of [
  ['stays', 99, undefined, 'forwarded e1'],
  ['stays', 100, undefined, 'stripped'],
  ['leaves', 99, 'destroy', 'forwarded e1'],
  ['leaves', 100, 'destroy', 'stripped'],
  ['resets', 5_000, 'reset', 'forwarded e1'],
] as const) {
  test(`where the kernel cannot be asked, a client that ${name} after ${wait} ms is ${wanted}`, async (t) => {
    hideTables(t);
    const guard = await start(t);
    const { reply } = await finished(guard);
    guard.clock.advance(wait);
    if (leave !== undefined) {
      reply[leave]();
      await reply.connection.closed();
      await leavingNoticed(guard);
    }
    assert.equal(await fate(guard), wanted);
  });
}

test('where the kernel cannot be asked, a connection that we closed is proof', async (t) => {
  hideTables(t);
  const guard = await start(t);
  const { reply } = await finished(guard, { fields: { Connection: 'close' } });
  await reply.connection.closed();
  await leavingNoticed(guard);
  assert.equal(await fate(guard), 'stripped');
});

// A stream that stays open after its terminal event.

test('a stream that stays open after its terminal event is delivered while the client stays', async (t) => {
  const guard = await start(t);
  await postStream(guard.client, guard.upstream, 7, SHORTLY, priming('e1'), TERMINAL);
  assert.equal(await fate(guard), 'stripped');
});

for (const [wait, wanted] of [
  [99, 'forwarded e1'],
  [100, 'stripped'],
] as const) {
  test(`a client that leaves an open stream ${wait} ms after the terminal event is ${wanted}`, async (t) => {
    const guard = await start(t);
    const { reply, exchange } = await postStream(guard.client, guard.upstream, 7, SHORTLY, priming('e1'), TERMINAL);
    guard.clock.advance(wait);
    reply.destroy();
    await exchange.left();
    assert.equal(await fate(guard), wanted);
  });
}

test('a reset of an open stream leaves the result unproven', async (t) => {
  const guard = await start(t);
  const { reply, exchange } = await postStream(guard.client, guard.upstream, 7, SHORTLY, priming('e1'), TERMINAL);
  guard.clock.advance(5_000);
  reply.reset();
  await exchange.left();
  assert.equal(await fate(guard), 'forwarded e1');
});

test('the time of the terminal event counts, not that of an earlier event on the same resumed exchange', async (t) => {
  const guard = await start(t);
  const { client, upstream, clock, logs } = guard;
  await cutPost(client, upstream, 7, SHORTLY, priming('e1'));
  const resumed = await forwardedGet(client, upstream, AT_PRIMING);
  await resumed.exchange.events(block({ id: 'p1', data: progress(7) }));
  await resumed.reply.until('p1');
  clock.advance(5_000);
  await resumed.exchange.end(TERMINAL);
  await resumed.reply.bytes();
  await eventually('the GET to be over', () => logs.some(({ method }) => method === 'GET'));
  clock.advance(5);
  resumed.reply.destroy();
  await resumed.reply.connection.closed();
  assert.equal(await fate(guard), 'forwarded e1');
});

test('in a batch every result counts from its own time', async (t) => {
  const guard = await start(t);
  const { client, upstream, clock } = guard;
  const body = `[${request(7)},${request(8)}]`;
  const { reply, exchange } = await postStream(client, upstream, { body }, SHORTLY, priming('e1'), TERMINAL);
  assert.equal(await fate(guard), 'forwarded e1', 'one of two');
  clock.advance(5_000);
  await exchange.write(block({ id: 'e3', data: result(8) }));
  await reply.until('e3');
  clock.advance(5);
  reply.destroy();
  await exchange.left();
  assert.equal(await fate(guard), 'forwarded e1');
  assert.equal(await fate(guard, { ...SHORTLY, lei: 'e3' }), 'stripped');
});

test('a result that came on the listening stream is delivered by that connection', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  await cutPost(client, upstream, 7, SHORTLY, priming('e1'));
  const listening = await forwardedGet(client, upstream, SHORTLY);
  await listening.exchange.events(block({ id: 'n1', data: result(7) }));
  await listening.reply.until('n1');
  assert.equal(await fate(guard), 'refused 409 finished-while-listening');
});

// Limits of the proof by connection.

for (const field of ['Via', 'Forwarded', 'X-Forwarded-For']) {
  const fields = { [field]: field === 'Via' ? '1.1 ingress' : field === 'Forwarded' ? 'for=192.0.2.1' : '192.0.2.1' };

  test(`${field} on the POST leaves only the proof by event ID`, async (t) => {
    const guard = await start(t);
    await finished(guard, { fields });
    guard.clock.advance(1_000);
    assert.equal(await fate(guard), 'forwarded e1');
    assert.equal(await fate(guard, AT_TERMINAL), 'stripped');
  });

  test(`${field} on the resume leaves only the proof by event ID`, async (t) => {
    const guard = await start(t);
    await finished(guard);
    guard.clock.advance(1_000);
    assert.equal(await fate(guard, { ...AT_PRIMING, fields }), 'forwarded e1');
    assert.equal(await fate(guard, { ...AT_TERMINAL, fields }), 'stripped');
    assert.equal(await fate(guard), 'stripped');
  });
}

test('deliveryProof: event-id takes nothing else for proof', async (t) => {
  const guard = await start(t, { deliveryProof: 'event-id' });
  const { client, upstream, clock } = guard;
  const connection = await client.connect();
  await finished(guard, {}, connection);
  clock.advance(1_000);
  const next = await client.post(8, { ...SHORTLY, on: connection });
  await (await upstream.next({ method: 'POST' })).json(200, result(8));
  await next.bytes();
  assert.equal(await fate(guard), 'forwarded e1');
  assert.equal(await fate(guard, AT_TERMINAL), 'stripped');
  assert.equal(await lastProof(guard), 'event-id');
});

test('the proof by connection lapses proofMemory after the delivery', async (t) => {
  for (const [wait, wanted] of [
    [60_000, 'stripped'],
    [60_001, 'forwarded e1'],
  ] as const) {
    const guard = await start(t);
    await finished(guard);
    guard.clock.advance(wait);
    assert.equal(await fate(guard), wanted);
    assert.equal(await fate(guard, AT_TERMINAL), 'stripped', 'the proof by event ID does not lapse');
  }
});

test('a resume that the proof by connection stripped renews it', async (t) => {
  const guard = await start(t, { proofMemory: '10s' });
  await finished(guard);
  for (let round = 0; round < 3; round += 1) {
    guard.clock.advance(10_000);
    assert.equal(await fate(guard), 'stripped');
  }
  guard.clock.advance(10_001);
  assert.equal(await fate(guard), 'forwarded e1');
  assert.equal(await fate(guard), 'forwarded e1', 'a forwarded one does not');
});

test('a resume that its own cursor proved does not renew the proof by connection', async (t) => {
  const guard = await start(t, { proofMemory: '10s' });
  await finished(guard);
  guard.clock.advance(9_000);
  assert.equal(await fate(guard, AT_TERMINAL), 'stripped');
  guard.clock.advance(2_000);
  assert.equal(await fate(guard), 'forwarded e1');
});
