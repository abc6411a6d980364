// Streams have no idle limit, in either direction. Six minutes are more than the five after which Node.js, undici and
// many a middlebox give up by default.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { cutPost, openSession, postStream } from '../support/session.ts';
import { pause } from '../support/waiting.ts';

const SILENCE = 6 * 60_000;
const PATIENT = SILENCE + 30_000;

describe('six minutes of silence', { concurrency: true, timeout: PATIENT + 60_000 }, () => {
  test('in a stream that has begun', async (t) => {
    const { client, upstream, warnings } = await startGuard(t);
    const session = await openSession(client, upstream, 's-1');
    const { reply, exchange } = await postStream(client, upstream, 1, { session }, priming('e1'));
    await reply.quiet(SILENCE);
    await exchange.end(block({ id: 'e2', data: result(1) }));
    assert.equal(await reply.text(), priming('e1') + block({ id: 'e2', data: result(1) }));
    assert.deepEqual(warnings(), []);
  });

  test('in a listening stream, from its beginning on', async (t) => {
    const { client, upstream } = await startGuard(t);
    const session = await openSession(client, upstream, 's-1');
    const reply = await client.get({ session });
    const exchange = await upstream.next();
    await exchange.events();
    await reply.quiet(SILENCE);
    await exchange.end(block({ id: 'e1', data: '{}' }));
    assert.equal(await reply.text(), block({ id: 'e1', data: '{}' }));
  });

  test('before the head', async (t) => {
    const { client, upstream, warnings } = await startGuard(t);
    const session = await openSession(client, upstream, 's-1');
    const post = await client.post(1, { session });
    const first = await upstream.next();
    const free = await client.send({ method: 'GET', path: '/free' });
    const second = await upstream.next();
    await pause(SILENCE);
    assert.equal(post.headed || free.headed, false);
    await first.json(200, result(1));
    await second.answer(200, {}, 'ok');
    assert.equal(await post.text(), result(1));
    assert.equal(await free.text(), 'ok');
    assert.deepEqual(warnings(), []);
  });

  test('before the head of a replay', async (t) => {
    const { client, upstream } = await startGuard(t);
    const session = await openSession(client, upstream, 's-1');
    await cutPost(client, upstream, 1, { session }, priming('e1'));
    const reply = await client.get({ session, lei: 'e1' });
    const exchange = await upstream.next({ method: 'GET' });
    await pause(SILENCE);
    assert.equal(reply.headed, false);
    await exchange.events(block({ id: 'e2', data: result(1) }));
    await exchange.end();
    assert.equal(await reply.text(), block({ id: 'e2', data: result(1) }));
  });

  test('in the middle of a request body', async (t) => {
    const { client, upstream } = await startGuard(t);
    const connection = await client.connect();
    const reply = connection.send({ method: 'POST', path: '/mcp', fields: { 'Content-Length': '4' } });
    connection.write('ab');
    const exchange = await upstream.next({ when: 'head' });
    await pause(SILENCE);
    connection.write('cd');
    assert.equal((await exchange.whole()).toString(), 'abcd');
    await exchange.answer(200, {}, 'ok');
    assert.equal(await reply.text(), 'ok');
  });

  test('of a client that does not read', async (t) => {
    const { client, upstream } = await startGuard(t);
    const { reply, exchange } = await postStream(client, upstream, 1, {}, priming('e1'));
    reply.pause();
    const body = block({ id: 'e2', data: result(1, 'x'.repeat(30_000_000)) });
    const written = new Promise<void>((resolve) =>
      exchange.socket.write(`${body.length.toString(16)}\r\n${body}\r\n`, () => resolve()),
    );
    await pause(SILENCE);
    reply.resume();
    await written;
    await exchange.end();
    assert.equal((await reply.text(30_000)).length, priming('e1').length + body.length);
  });

  test('on a WebSocket', async (t) => {
    const { client, upstream } = await startGuard(t);
    const fields = { Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Key': 'x' };
    const reply = await client.send({ method: 'GET', path: '/mcp', fields });
    const exchange = await upstream.next();
    await exchange.head(101, { Connection: 'Upgrade', Upgrade: 'websocket' });
    await reply.head;
    await reply.quiet(SILENCE);
    await exchange.raw('from upstream');
    await reply.until('from upstream');
    reply.connection.write('from the client');
    await exchange.until('from the client');
    reply.destroy();
  });
});
