/** What peers did to the guard that nobody meant to: each a kind, found by attack. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { startGuard } from '../support/guard.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  postStream,
  refusalOf,
} from '../support/session.ts';
import { startTimedGuard } from '../support/timed-guard.ts';

const VERSION = '2025-11-25';

test('a storm ends although two open streams share the cursor', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 3, { session }, priming('0'));
  await cutPost(client, upstream, 4, { session }, priming('0'));
  upstream.handle((exchange) => answerEmpty(exchange));
  const before = upstream.requests.length;
  const rules = new Set<string>();
  for (let i = 0; i < 12; i++) rules.add((await refusalOf(await client.get({ session, lei: '0' }))).rule);
  assert.deepEqual([...rules], ['empty-replay', 'below-replay-floor']);
  assert.ok(upstream.requests.length - before <= 3, 'the first, the immediate probe, and one more at most');
});

test('no call is failed by a guess when several wait under one cursor', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { refuseWith: 'event' } });
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 3, { session }, priming('0'));
  await cutPost(client, upstream, 4, { session }, priming('0'));
  upstream.handle((exchange) => answerEmpty(exchange));
  const reply = await client.get({ session, version: VERSION, lei: '0' });
  assert.equal((await reply.head).status, 409);
});

test('the one call that waits is failed although a listening stream shares its cursor', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { refuseWith: 'event' } });
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 3, { session }, priming('0'));
  const listening = await client.get({ session });
  const exchange = await upstream.next({ method: 'GET' });
  await exchange.events(priming('0'));
  await listening.until('id: 0');
  exchange.cut();
  await listening.ended;
  upstream.handle((any) => answerEmpty(any));
  const reply = await client.get({ session, version: VERSION, lei: '0' });
  assert.equal((await reply.head).status, 200);
  assert.match(await reply.text(), /"id":3,"error"/);
});

test('a stranger whose resume upstream leaves unanswered is told nothing at the deadline', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { replayDeadline: '200ms', replayHold: '100ms' } });
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 3, { session }, priming('e1'), block({ id: 'e2', data: result(3) }));
  const asked = ['e1', 'nope'].map((lei) =>
    client.send({
      method: 'GET',
      path: '/mcp',
      fields: [
        ['Mcp-Session-Id', session],
        ['Last-Event-ID', lei],
        ['Authorization', 'Bearer somebody-else'],
      ],
    }),
  );
  const replies = await Promise.all(asked);
  const exchanges = [await upstream.next({ method: 'GET' }), await upstream.next({ method: 'GET' })];
  // An approved caller with the same cursor shows that the deadline has come and gone.
  const own = await client.get({ session, lei: 'e1' });
  await upstream.next({ method: 'GET' });
  assert.equal((await refusalOf(own)).rule, 'empty-replay');
  for (const exchange of exchanges) await exchange.json(401, '{}');
  for (const reply of replies) assert.equal((await reply.head).status, 401);
});

test('a storm of finished cursors is probed one at a time, however many ask at once', async (t) => {
  const { client, upstream, clock } = await startTimedGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  upstream.handle((exchange) => exchange.json(405, '{}', { Allow: 'POST' }));
  for (let i = 0; i < 11; i++) await (await client.get({ session, lei: 'e2' })).text();
  for (const wait of [0, 1_000, 2_000]) {
    clock.advance(wait);
    const before = upstream.requests.length;
    const replies = await Promise.all([1, 2, 3, 4].map(() => client.get({ session, lei: 'e2' })));
    await Promise.all(replies.map((reply) => reply.text()));
    assert.equal(upstream.requests.length - before, 1, `after ${wait} ms`);
  }
});

test('a compressed replay that ends inside its coding is not taken for an empty one', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 3, { session }, priming('e1'));
  const whole = gzipSync(block({ id: 'e2', data: progress(3, 1, 2) }));
  const reply = await client.get({ session, lei: 'e1' });
  const exchange = await upstream.next({ method: 'GET' });
  await exchange.head(200, { 'Content-Type': 'text/event-stream', 'Content-Encoding': 'gzip' });
  await exchange.write(whole.subarray(0, 12));
  await exchange.end();
  assert.equal((await reply.head).status, 200);
  assert.equal(await reply.ended, 'end');
});

test('a stream that passed unread may own any cursor', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 3, { session }, priming('0'), block({ id: '1', data: result(3) }));
  const reply = await client.post(4, { session });
  const exchange = await upstream.next({ method: 'POST' });
  await exchange.head(200, { 'Content-Type': 'text/event-stream', 'Content-Encoding': 'zstd' });
  await exchange.write('not readable here');
  await reply.until('readable');
  exchange.cut();
  await reply.ended;
  assert.equal(await fateOf(client, upstream, { session, lei: '0' }), 'forwarded 0');
});

test('a cursor from a POST that named two sessions is not refused as never seen', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { unrecorded: 'complete' } });
  const session = await openSession(client, upstream, 's-1');
  const twice: [string, string][] = [
    ['Content-Type', 'application/json'],
    ['Mcp-Session-Id', session],
    ['Mcp-Session-Id', session],
  ];
  const reply = await client.send({
    method: 'POST',
    path: '/mcp',
    fields: twice,
    body: '{"jsonrpc":"2.0","id":9,"method":"x"}',
  });
  const exchange = await upstream.next({ method: 'POST' });
  await exchange.events(priming('x1'));
  await reply.until('x1');
  exchange.cut();
  await reply.ended;
  assert.equal(await fateOf(client, upstream, { session, lei: 'x1' }), 'forwarded x1');
});

test('an absolute target does not excuse a foreign Host', async (t) => {
  const { client, upstream, authority } = await startGuard(t);
  const reply = await client.send({
    method: 'GET',
    path: `http://${authority}/mcp`,
    fields: [['Host', 'evil.example']],
  });
  assert.equal((await reply.head).status, 403);
  assert.equal(upstream.requests.length, 0);
});

test('an event ID that stamps the results of two requests does not prove that both arrived', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 3, { session }, block({ id: 's', data: result(3) }));
  const { reply, exchange } = await postStream(
    client,
    upstream,
    4,
    { session },
    block({ id: 'u1', data: progress(4, 1, 2) }),
  );
  reply.destroy();
  await exchange.left();
  const resumed = await forwardedGet(client, upstream, { session, lei: 'u1' });
  await resumed.exchange.events(block({ id: 's', data: result(4) }));
  await resumed.reply.head;
  resumed.reply.reset();
  await resumed.exchange.left();
  assert.equal(await fateOf(client, upstream, { session, lei: 's' }), 'forwarded s');
});
