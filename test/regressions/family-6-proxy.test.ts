// Public cases, family 6: what reverse proxies get wrong about connections. What they get wrong about messages is in
// family-6-messages.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { failureOf, fateOf, openSession, postStream } from '../support/session.ts';
import { eventually, fastestOf, pause } from '../support/waiting.ts';

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;

for (const how of ['destroy', 'reset', 'halfClose'] as const) {
  test(`B64 a client that leaves an open stream by ${how} takes the upstream leg with it`, async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const method of ['GET', 'POST', 'DELETE']) {
      for (const headed of [true, false]) {
        const fastest = await fastestOf(3, async () => {
          const reply = await client.send({ method, path: '/mcp', ...(method === 'POST' ? { body: '{}' } : {}) });
          const exchange = await upstream.next();
          if (headed) {
            await exchange.events(priming('e1'));
            await reply.until('e1');
          }
          const left = performance.now();
          reply.connection[how]();
          await exchange.left(1_000);
          return performance.now() - left;
        });
        assert.ok(fastest < 100, `${method}, ${headed ? 'after' : 'before'} the head: ${fastest} ms`);
      }
    }
  });
}

test('B64 two hundred clients that leave leave no connections behind', async (t) => {
  const { client, upstream } = await startGuard(t);
  for (let round = 0; round < 200; round += 1) {
    const post = round % 2 === 0;
    const reply = await (post ? client.post(round) : client.get());
    const exchange = await upstream.next();
    if (round % 4 < 2) {
      await exchange.events();
      await reply.head;
    }
    reply.destroy();
  }
  await eventually('the upstream to be left alone', () => upstream.open === 0);
});

test('B67 a request from the server reaches the client at once, and its answer goes up in parallel', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const { reply, exchange } = await postStream(client, upstream, 1, { session }, priming('e1'));
  const elicitation = block({ id: 'e2', data: '{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}' });
  await exchange.write(elicitation);
  await reply.until(elicitation, 1_000);

  const answer = await client.post({ body: result(1, { action: 'accept' }) }, { session });
  const second = await upstream.next({ method: 'POST', within: 1_000 });
  assert.equal(second.text, result(1, { action: 'accept' }));
  await second.answer(202);
  assert.equal((await answer.head).status, 202);
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'forwarded e2', 'neither finished request 1');
  await exchange.write(block({ id: 'e3', data: result(1) }));
  await exchange.end();
  assert.equal(await reply.text(), priming('e1') + elicitation + block({ id: 'e3', data: result(1) }));
});

test('B72 the head and each small event of a POST arrive when upstream sends them', async (t) => {
  const { client, upstream } = await startGuard(t);
  const reply = await client.post(1);
  const exchange = await upstream.next();
  const fields = { ...EVENTS, 'X-Accel-Buffering': 'no', 'Cache-Control': 'no-transform' };
  await exchange.head(200, fields);
  const head = await reply.headWithin(1_000);
  for (const [name, value] of Object.entries(fields)) assert.equal(head.field(name), value);
  await reply.quiet(200);
  let n = 0;
  const fastest = await fastestOf(10, async () => {
    const event = block({ id: `e${(n += 1)}`, data: '{}' });
    const written = performance.now();
    await exchange.write(event);
    await reply.until(event, 1_000);
    const last = reply.arrivals.at(-1);
    assert.equal(last?.bytes.toString(), event, 'not merged with another');
    return (last?.at ?? Number.NaN) - written;
  });
  assert.ok(fastest < 20, `not held for a full buffer or another event: ${fastest} ms`);
});

test('B76 Expect: 100-continue is answered once, and the body arrives whole', async (t) => {
  const { client, upstream } = await startGuard(t);
  const connection = await client.connect();
  const body = 'x'.repeat(100_000);
  const fields = { Expect: '100-continue', 'Content-Length': String(body.length) };
  const reply = connection.send({ method: 'POST', path: '/mcp', fields });
  await connection.interims(1);
  connection.write(body);
  const exchange = await upstream.next({ method: 'POST' });
  assert.equal(exchange.text, body);
  await exchange.answer(200, {}, 'ok');
  assert.equal(await reply.text(), 'ok');
  assert.deepEqual(
    connection.interim.map(({ start }) => start.split(' ')[1]),
    ['100'],
  );
});

test('B76 an early 401 to a request with Expect reaches the client while its body is under way', async (t) => {
  const { client, upstream } = await startGuard(t);
  const connection = await client.connect();
  const fields = { Expect: '100-continue', 'Content-Length': '1000000' };
  const reply = connection.send({ method: 'POST', path: '/mcp', fields });
  await connection.interims(1);
  connection.write('x'.repeat(1_000));
  const exchange = await upstream.next({ method: 'POST', when: 'head' });
  await exchange.head(401, { 'WWW-Authenticate': 'Bearer' }, { framing: 'close' });
  await exchange.end('no');
  const head = await reply.head;
  assert.equal(head.status, 401);
  assert.equal(head.field('www-authenticate'), 'Bearer');
  assert.equal(connection.interim.length, 1);
});

test('B78 an upstream that resets in any phase crashes nothing and ends nothing well', async (t) => {
  const { client, upstream } = await startGuard(t);
  const before = await client.post(1);
  (await upstream.next()).reset();
  assert.equal(await failureOf(before), 502);

  const midHead = await client.post(2);
  const second = await upstream.next();
  await second.raw('HTTP/1.1 200 OK\r\nContent-Type: text/ev');
  await pause(20);
  second.reset();
  assert.equal(await failureOf(midHead), 502);

  const midBody = await client.post(3);
  const third = await upstream.next();
  await third.events(priming('e1'));
  await midBody.until('e1');
  third.reset();
  assert.equal(await midBody.ended, 'cut');

  const midChunk = await client.post(4);
  const fourth = await upstream.next();
  await fourth.head(200, EVENTS);
  await fourth.raw('ff\r\nid: e1\n');
  await midChunk.until('id: e1');
  fourth.reset();
  assert.equal(await midChunk.ended, 'cut');

  const after = await client.post(5);
  const fifth = await upstream.next();
  await fifth.events(block({ id: 'e1', data: result(5) }));
  await fifth.end();
  assert.equal(await after.ended, 'end');
  fifth.reset();

  const last = await client.post(6);
  await (await upstream.next()).answer(200, {}, 'ok');
  assert.equal(await last.text(), 'ok');
});

test('B78 a client that resets in any phase crashes nothing', async (t) => {
  const { client, upstream } = await startGuard(t);
  const midHead = await client.connect();
  midHead.write('POST /mcp HTTP/1.1\r\nHo');
  const midBody = await client.connect();
  midBody.write('POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{');
  const uploading = await upstream.next({ when: 'head' });
  midHead.reset();
  midBody.reset();
  await uploading.left();
  assert.equal(uploading.complete, false);

  const waiting = await client.post(1);
  const first = await upstream.next();
  waiting.reset();
  await first.left();
  const reading = await client.post(2);
  const second = await upstream.next();
  await second.events(priming('e1'));
  await reading.until('e1');
  reading.reset();
  await second.left();
  const last = await client.post(3);
  await (await upstream.next()).answer(200, {}, 'ok');
  assert.equal(await last.text(), 'ok');
});

test('B78 a hundred requests on one connection leave no listeners behind', async (t) => {
  // A MaxListenersExceededWarning fails the test at its end.
  const { client } = await startGuard(t, {
    handler: async (exchange) => {
      await exchange.events(priming('e1'));
      await exchange.end();
    },
  });
  const on = await client.connect();
  for (let id = 0; id < 100; id += 1) {
    const reply = await (id % 2 === 0 ? client.post(id, { on }) : client.get({ on }));
    assert.equal(await reply.text(), priming('e1'));
  }
});

test('B78 an accepted upgrade carries bytes both ways', async (t) => {
  const { client, upstream } = await startGuard(t);
  const connection = await client.connect();
  const fields = {
    Connection: 'Upgrade',
    Upgrade: 'websocket',
    'Sec-WebSocket-Key': 'x',
    'Sec-WebSocket-Version': '13',
  };
  const reply = connection.send({ method: 'GET', path: '/mcp?x=1', fields });
  const exchange = await upstream.next();
  assert.equal(exchange.target, '/mcp?x=1');
  assert.equal(exchange.field('upgrade'), 'websocket');
  assert.equal(exchange.field('sec-websocket-key'), 'x');
  await exchange.head(101, { Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Accept': 'y' });
  const head = await reply.head;
  assert.equal(head.status, 101);
  assert.equal(head.field('sec-websocket-accept'), 'y');
  await exchange.raw('from upstream');
  await reply.until('from upstream');
  connection.write('from client');
  await exchange.until('from client');
  connection.destroy();
  await exchange.left();
});

test('B78 a refused upgrade is refused with the answer of upstream', async (t) => {
  const { client, upstream } = await startGuard(t);
  const connection = await client.connect();
  const fields = {
    Connection: 'Upgrade',
    Upgrade: 'websocket',
    'Sec-WebSocket-Key': 'x',
    'Sec-WebSocket-Version': '13',
  };
  const reply = connection.send({ method: 'GET', path: '/mcp', fields });
  const exchange = await upstream.next();
  await exchange.head(403, { 'X-Why': 'no sockets' }, { framing: 'length:2' });
  await exchange.write('no');
  assert.equal((await reply.head).status, 403);
  assert.equal((await reply.head).field('x-why'), 'no sockets');
  assert.equal(await reply.text(), 'no');
});

test('B78 garbage on the port is a 400 or a closed connection, and upstream sees nothing', async (t) => {
  const { client, upstream } = await startGuard(t);
  for (const garbage of [
    '\u0016\u0003\u0001\u0002\u0000',
    'hello\r\n\r\n',
    'GET / HTTP/9.9\r\n\r\n',
    '\r\n\r\n\u0000\r\n\r\n',
  ]) {
    const connection = await client.connect();
    const reply = connection.expect();
    connection.write(garbage);
    await reply.ended;
    if (reply.headed) assert.equal((await reply.head).status, 400);
    await connection.closed();
  }
  assert.equal(upstream.requests.length, 0);
  const last = await client.post(3);
  await (await upstream.next()).answer(200, {}, 'ok');
  assert.equal(await last.text(), 'ok');
});
