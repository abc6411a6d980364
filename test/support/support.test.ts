import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type Client, createClient } from './client.ts';
import { block, result } from './messages.ts';
import { startUpstream, type Upstream } from './upstream.ts';

// The scripted ends against each other, with nothing in between: what they claim to send, cut and see is so.

async function ends(t: TestContext): Promise<{ upstream: Upstream; client: Client }> {
  const upstream = await startUpstream();
  const client = createClient(upstream.url);
  t.after(async () => {
    client.close();
    await upstream.kill();
    assert.deepEqual(upstream.failures, []);
  });
  return { upstream, client };
}

test('a chunked answer arrives chunk by chunk and ends well', async (t) => {
  const { upstream, client } = await ends(t);
  const reply = await client.post(7, { session: 's-1' });
  const exchange = await upstream.next({ method: 'POST' });
  assert.equal(exchange.field('mcp-session-id'), 's-1');
  assert.equal(JSON.parse(exchange.text).id, 7);
  await exchange.events(block({ id: 'e1', data: '' }), block({ id: 'e2', data: result(7) }));
  await reply.until('"result"');
  assert.equal(reply.ending, undefined);
  await exchange.end();
  assert.equal(await reply.ended, 'end');
  assert.equal(await reply.text(), block({ id: 'e1', data: '' }) + block({ id: 'e2', data: result(7) }));
});

test('a missing final chunk and a reset both read as cut', async (t) => {
  const { upstream, client } = await ends(t);
  for (const how of ['cut', 'reset'] as const) {
    const reply = await client.get();
    const exchange = await upstream.next();
    await exchange.events(block({ id: 'e1', data: '' }));
    await reply.until('e1');
    exchange[how]();
    assert.equal(await reply.ended, 'cut');
    await assert.rejects(reply.text(), /was cut/);
  }
});

test('a body that ends with the connection, one with a length and one without any end well on one socket', async (t) => {
  const { upstream, client } = await ends(t);
  const connection = await client.connect();
  const script = async (method: string, answer: (method: string) => Promise<void>): Promise<string> => {
    const reply = connection.send({ method, path: '/x' });
    await answer(method);
    await reply.head;
    return reply.text();
  };
  const next = async () => upstream.next();
  assert.equal(await script('GET', async () => (await next()).json(200, '{}')), '{}');
  assert.equal(await script('HEAD', async () => (await next()).head(200, { 'Content-Length': '42' })), '');
  assert.equal(await script('GET', async () => (await next()).head(204)), '');
  const closing = async (): Promise<void> => {
    const exchange = await next();
    await exchange.head(200, {}, { framing: 'close' });
    await exchange.end('tail');
  };
  assert.equal(await script('GET', closing), 'tail');
  assert.equal(upstream.accepted, 1);
});

test('a chunked request body is put together, whatever the borders', async (t) => {
  const { upstream, client } = await ends(t);
  const connection = await client.connect();
  const reply = connection.expect();
  for (const byte of Buffer.from(
    'POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n',
  )) {
    connection.write(Buffer.of(byte));
  }
  const exchange = await upstream.next();
  assert.equal(exchange.text, 'abc0123456789');
  await exchange.head(204);
  assert.equal((await reply.head).status, 204);
});

test('a client that leaves is seen to leave, by FIN and by reset', async (t) => {
  const { upstream, client } = await ends(t);
  const polite = await client.get();
  const first = await upstream.next();
  polite.destroy();
  assert.equal(await first.left(), 'end');
  const rude = await client.get();
  const second = await upstream.next();
  rude.reset();
  assert.equal(await second.left(), 'reset');
});

test('a wait in vain says what it waited for and what came instead', async (t) => {
  const { upstream, client } = await ends(t);
  const reply = await client.get();
  await assert.rejects(upstream.next({ method: 'POST', within: 20 }), /a request .*POST.*so far: GET \/mcp/);
  await assert.rejects(reply.headWithin(20), /the head of the reply to GET \/mcp; instead: nothing came/);
});

test('a failing handler is kept as a failure of the upstream, and its client is cut', async (t) => {
  const upstream = await startUpstream(() => {
    throw new Error('scripted fault');
  });
  t.after(() => upstream.kill());
  const reply = await createClient(upstream.url).get();
  assert.equal(await reply.ended, 'cut');
  assert.match(String(upstream.failures[0]?.cause), /scripted fault/);
});

test('a killed upstream refuses, and restarts on the same port', async (t) => {
  const { upstream, client } = await ends(t);
  const reply = await client.get();
  await upstream.next();
  await upstream.kill();
  assert.equal(await reply.ended, 'cut');
  await assert.rejects(client.get(), /ECONNREFUSED/);
  await upstream.restart();
  await client.get();
  await upstream.next();
});
