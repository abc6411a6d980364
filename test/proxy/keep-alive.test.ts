// Comments on a quiet stream: the bare line, between events, and never where they could be taken for anything else.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import type { HeadOptions } from '../support/exchange.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import { fateOf, openSession, type Pair } from '../support/session.ts';
import { eventually, pause } from '../support/waiting.ts';

const EVERY = 80;
const COMMENT = ':\n';
const EVENTS = { 'Content-Type': 'text/event-stream' } as const;

const guardWith = (t: TestContext, keepAlive: string | undefined): Promise<Guard> =>
  startGuard(t, { file: keepAlive === undefined ? {} : { keepAlive } });

/** An open stream of a POST. */
async function opened(guard: Guard, fields: Record<string, string> = EVENTS, options: HeadOptions = {}): Promise<Pair> {
  const reply = await guard.client.post(1, { session: 's-1' });
  const exchange = await guard.upstream.next();
  await exchange.head(200, fields, options);
  await reply.head;
  return { reply, exchange };
}

const comments = (text: string): number => text.split('\n').filter((line) => line === ':').length;
const without = (text: string): string => text.replaceAll(/^:\n/gm, '');

test('a quiet stream gets the bare comment line, again and again, from its beginning on', async (t) => {
  const guard = await guardWith(t, `${EVERY}ms`);
  const before = performance.now();
  const { reply, exchange } = await opened(guard);
  await reply.until(COMMENT.repeat(3));
  assert.equal(reply.body.toString(), COMMENT.repeat(reply.body.length / COMMENT.length));
  for (const [n, { at }] of reply.arrivals.slice(0, 3).entries()) {
    assert.ok(at - before >= (n + 1) * EVERY - 1, `comment ${n + 1} after ${at - before} ms`);
  }
  await exchange.write(priming('e1'));
  await reply.until(`${priming('e1')}${COMMENT}`);
  await exchange.end(block({ id: 'e2', data: result(1) }));
  const text = await reply.text();
  assert.equal(without(text), priming('e1') + block({ id: 'e2', data: result(1) }));
  assert.equal(await fateOf(guard.client, guard.upstream, { session: 's-1', lei: 'e2' }), 'stripped');
});

test('it is off by default', async (t) => {
  const { reply } = await opened(await guardWith(t, undefined));
  await reply.quiet(300);
});

test('a stream that is not quiet gets none', async (t) => {
  const { reply, exchange } = await opened(await guardWith(t, '1s'));
  let sent = '';
  const began = performance.now();
  for (let n = 0; performance.now() - began < 1_500; n += 1) {
    const event = block({ data: progress(1, n) });
    await exchange.write(event);
    sent += event;
    await pause(20);
  }
  await exchange.end();
  assert.equal(await reply.text(), sent);
});

test('nothing is written inside an event, a comment or a line', async (t) => {
  const guard = await guardWith(t, `${EVERY}ms`);
  const parts = ['d', 'ata: {"a":', '1}', '\n', 'id: e1', '\n', 'data: {}\n', 'event: x\n'];
  for (const part of [...parts, ': a comment', ': a line of comment\n', '\ufeff', 'data: x\r']) {
    const { reply, exchange } = await opened(guard);
    await exchange.write(part);
    await reply.until(part.replace('\n', ''));
    const before = reply.body.toString();
    assert.equal(without(before), part === '\n' ? before : part);
    if (part !== '\n') await reply.quiet(EVERY * 3);
    reply.destroy();
    await exchange.left();
  }
});

test('after an event has ended, however its lines end, there may be one', async (t) => {
  const guard = await guardWith(t, `${EVERY}ms`);
  for (const end of ['\n\n', '\r\n\r\n', '\r\r', '\r\n\n']) {
    const { reply, exchange } = await opened(guard);
    const event = `data: ${progress(1)}${end}`;
    await exchange.write(event);
    await reply.until(event + COMMENT);
    await exchange.end();
    assert.equal((await reply.text()).replaceAll(COMMENT, ''), event);
  }
});

for (const [name, fields, options] of [
  ['of known length', EVENTS, { framing: 'length:1000' }],
  ['that is compressed', { ...EVENTS, 'Content-Encoding': 'gzip' }, {}],
  ['that is no event stream', { 'Content-Type': 'application/json' }, {}],
  ['without a media type', {}, {}],
] as const) {
  test(`a response ${name} gets none`, async (t) => {
    const { reply, exchange } = await opened(await guardWith(t, `${EVERY}ms`), fields, options);
    await reply.quiet(EVERY * 4);
    exchange.cut();
    assert.equal(await reply.ended, 'cut');
    assert.equal(reply.body.length, 0);
  });
}

test('a compressed stream gets none between its events either', async (t) => {
  const { reply, exchange } = await opened(await guardWith(t, `${EVERY}ms`), { ...EVENTS, 'Content-Encoding': 'gzip' });
  const bytes = gzipSync(block({ data: progress(1) }));
  await exchange.write(bytes);
  await eventually('the event', () => reply.body.equals(bytes));
  await reply.quiet(EVERY * 4);
});

test('a client that speaks HTTP/1.0 gets none: it has no chunks', async (t) => {
  const { client, upstream } = await guardWith(t, `${EVERY}ms`);
  const connection = await client.connect();
  const reply = connection.expect();
  connection.write('GET /mcp HTTP/1.0\r\n\r\n');
  const exchange = await upstream.next();
  await exchange.events(priming('e1'));
  await reply.until('e1');
  await reply.quiet(EVERY * 4);
});

test('a path that is not guarded gets none', async (t) => {
  const { client, upstream } = await guardWith(t, `${EVERY}ms`);
  const reply = await client.send({ method: 'GET', path: '/free' });
  await (await upstream.next()).events();
  await reply.head;
  await reply.quiet(EVERY * 4);
});

test('a replay that is held back gets none, and is as empty as it was', async (t) => {
  const guard = await startGuard(t, { file: { keepAlive: `${EVERY}ms`, replayHold: '1s' } });
  const { client, upstream } = guard;
  const session = await openSession(client, upstream, 's-1');
  const { reply: first, exchange: post } = await opened(guard);
  await post.write(priming('e1'));
  await first.until('e1');
  post.cut();
  await first.ended;
  const reply = await client.get({ session, lei: 'e1' });
  const exchange = await upstream.next();
  await exchange.events();
  await pause(EVERY * 4);
  assert.equal(reply.headed, false);
  await exchange.end();
  assert.equal((await reply.head).status, 409);
});

test('nothing is written after upstream has ended or broken off', async (t) => {
  const guard = await guardWith(t, `${EVERY}ms`);
  for (const end of ['end', 'cut', 'reset'] as const) {
    const { reply, exchange } = await opened(guard);
    await exchange.write(priming('e1'));
    await reply.until(`${priming('e1')}${COMMENT}`);
    await exchange[end]();
    assert.equal(await reply.ended, end === 'end' ? 'end' : 'cut');
    const { length } = reply.body;
    await pause(EVERY * 3);
    assert.equal(reply.body.length, length);
    assert.ok(comments(reply.body.toString()) >= 1);
  }
});

test('a client that does not read gets none piled up, and what it reads in the end is whole', async (t) => {
  const guard = await guardWith(t, '10ms');
  const { reply, exchange } = await opened(guard);
  reply.pause();
  const event = block({ data: progress(1).padEnd(60_000) });
  let sent = 0;
  while (exchange.socket.writableLength === 0 && sent < 2_000) {
    exchange.write(event).catch(() => {});
    sent += 1;
    await new Promise((resolve) => setImmediate(resolve));
  }
  await pause(300);
  reply.resume();
  await reply.until(event, 10_000);
  await exchange.end();
  const text = await reply.text(20_000);
  assert.equal(without(text), event.repeat(sent));
  assert.ok(comments(text) < 20, `${comments(text)} comments`);
});
