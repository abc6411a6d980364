// Public cases, family 8: revision 2026-07-28, and the HTTP+SSE transport of 2024-11-05.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startGuard } from '../support/guard.ts';
import { block, initializeRequest, notification, priming, request, result } from '../support/messages.ts';
import {
  answerEmpty,
  failureOf,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  refusalOf,
} from '../support/session.ts';
import { pause } from '../support/waiting.ts';
import type { Field } from '../support/wire.ts';

const MODERN = '2026-07-28';

test('B91 GET and DELETE of a revision without them get the 405 of upstream, cursor and all', async (t) => {
  const { client, upstream } = await startGuard(t);
  for (const [method, lei] of [
    ['GET', 'e1'],
    ['GET', undefined],
    ['DELETE', undefined],
  ] as const) {
    const options = { version: MODERN, ...(lei === undefined ? {} : { lei }) };
    const reply = await (method === 'GET' ? client.get(options) : client.delete(options));
    const exchange = await upstream.next({ method });
    assert.equal(exchange.field('last-event-id'), lei);
    await exchange.answer(405, { Allow: 'POST' }, 'no');
    const head = await reply.head;
    assert.deepEqual([head.status, head.field('allow'), head.field('proxy-status')], [405, 'POST', undefined]);
    assert.equal(await reply.text(), 'no');
  }
});

test('B91 a 405 to DELETE does not end the session', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  const reply = await client.delete({ session });
  await (await upstream.next()).answer(405, { Allow: 'POST' });
  assert.equal((await reply.head).status, 405);
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
});

test('B91 at a revision without resumption a finished cursor passes and an empty answer is no replay', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  for (const version of [MODERN, '2027-01-01']) {
    const { reply, exchange } = await forwardedGet(client, upstream, { session, version, lei: 'e2' });
    assert.equal(exchange.field('last-event-id'), 'e2');
    await answerEmpty(exchange);
    assert.equal((await reply.head).status, 200);
    assert.equal((await reply.bytes()).length, 0);
  }
});

test('B93 routing fields, known and unknown, pass byte for byte', async (t) => {
  const { client, upstream } = await startGuard(t);
  const fields: Field[] = [
    ['Mcp-Method', 'tools/call'],
    ['Mcp-Name', 'work'],
    ['Mcp-Param-Region', '=?base64?4pyT?='],
    ['mcp-param-ZZ', 'a, b;c="d"\tq'],
  ];
  const reply = await client.post(1, { version: MODERN, fields });
  const exchange = await upstream.next();
  const sent = new Map(fields);
  const seen = exchange.fields.filter(([name]) => /^mcp-(?!protocol|session)/i.test(name));
  assert.deepEqual(
    seen.map(([name, value]) => [name.toLowerCase(), value]),
    [...sent].map(([name, value]) => [name.toLowerCase(), value]),
  );
  await exchange.json(200, result(1), fields);
  const head = await reply.head;
  for (const [name, value] of fields) assert.deepEqual(head.values(name), [value]);
  assert.equal(await reply.text(), result(1));
  const bare = await client.post(2, { version: MODERN });
  const second = await upstream.next();
  assert.equal(second.field('mcp-method'), undefined, 'none is added');
  await second.json(200, result(2));
  await bare.bytes();
});

test('B95 Last-Event-ID on a POST passes untouched, and an empty answer to a POST is its answer', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, priming('e1'), block({ id: 'e2', data: result(1) }));
  for (const version of ['2025-11-25', MODERN]) {
    for (const lei of ['e1', 'e2', 'unknown']) {
      const reply = await client.post(2, { session, version, lei });
      const exchange = await upstream.next({ method: 'POST' });
      assert.deepEqual(exchange.values('last-event-id'), [lei]);
      await answerEmpty(exchange);
      assert.equal((await reply.head).status, 200);
      assert.equal((await reply.bytes()).length, 0);
    }
  }
});

test('B96 a hundred subscription streams without a terminal event live as long as upstream lets them', async (t) => {
  const { client, upstream, warnings } = await startGuard(t, { file: { replayHold: '20ms', replayDeadline: '50ms' } });
  const body = request(1, 'subscriptions/listen', {});
  const expected = Array.from({ length: 9 }, (_, n) => block({ data: notification('notifications/n', { n }) }));
  const one = async (): Promise<void> => {
    const reply = await client.post({ body }, { version: MODERN });
    const exchange = await upstream.next();
    await exchange.events();
    for (const event of expected) {
      await exchange.write(event);
      await pause(100);
    }
    await exchange.end();
    assert.equal((await reply.head).status, 200);
    assert.equal(await reply.text(5_000), expected.join(''));
  };
  await Promise.all(Array.from({ length: 100 }, one));
  assert.deepEqual(warnings(), []);
});

test('B97 while upstream is down every request gets a plain 502 that no SDK takes for an answer', async (t) => {
  const { client, upstream } = await startGuard(t);
  await upstream.kill();
  for (const reply of [
    await client.post(1, { version: MODERN }),
    await client.post({ body: initializeRequest() }),
    await client.get({ session: 's-1' }),
    await client.get({ session: 's-1', lei: 'e1' }),
    await client.delete({ session: 's-1' }),
  ]) {
    assert.equal(await failureOf(reply), 502);
  }
  await upstream.restart();
});

test('B99 an answer whose body never comes keeps its status and is cut', async (t) => {
  const { client, upstream } = await startGuard(t, { path: '' });
  const reply = await client.post(1, { path: '/messages?sessionId=1' });
  const exchange = await upstream.next();
  await exchange.head(202, {}, { framing: 'length:8' });
  assert.equal((await reply.head).status, 202);
  exchange.cut();
  assert.equal(await reply.ended, 'cut');
});

test('B99 an answer whose connection closes in the moment of its head keeps its status and is cut', async (t) => {
  const { client, upstream } = await startGuard(t, { path: '' });
  const reply = await client.post(1, { path: '/messages?sessionId=1' });
  const exchange = await upstream.next();
  exchange.socket.end('HTTP/1.1 202 Accepted\r\nContent-Length: 8\r\n\r\n');
  assert.equal((await reply.head).status, 202);
  assert.equal(await reply.ended, 'cut');
});

test('B99 the event stream of the old transport passes, and a resume of it is watched like any other', async (t) => {
  const { client, upstream } = await startGuard(t, { path: '' });
  const { reply, exchange } = await forwardedGet(client, upstream, { path: '/sse' });
  const endpoint = block({ event: 'endpoint', data: '/messages?sessionId=1' });
  await exchange.events(endpoint);
  await reply.until(endpoint);
  await exchange.write(block({ event: 'message', data: result(1) }));
  await reply.until(result(1));
  const resumed = await forwardedGet(client, upstream, { path: '/sse', lei: 'e1' });
  assert.equal(resumed.exchange.field('last-event-id'), 'e1');
  await answerEmpty(resumed.exchange);
  assert.equal((await refusalOf(resumed.reply)).rule, 'empty-replay');
});
