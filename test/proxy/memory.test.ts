// Whatever upstream sends and however slowly the client reads, a stream costs the proxy next to nothing. Measured on
// the process itself.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import net from 'node:net';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { type Client, createClient } from '../support/client.ts';
import type { Exchange } from '../support/exchange.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import { type ProxyProcess, startProcess } from '../support/proxy-process.ts';
import { cutPost, fateOf, forwardedGet, openSession } from '../support/session.ts';
import { startUpstream, type Upstream } from '../support/upstream.ts';
import { eventually, pause } from '../support/waiting.ts';
import { chunk } from '../support/wire.ts';

const MIB = 1_048_576;
const EVENTS = { 'Content-Type': 'text/event-stream' } as const;

interface Setup {
  readonly upstream: Upstream;
  readonly client: Client;
  readonly proxy: ProxyProcess;
  readonly session: string;
}

/**
 * All three, warm: garbage that waits to be collected is a matter of how much has passed lately, and 100 MiB are
 * enough to see most of it.
 */
async function setUp(t: TestContext): Promise<Setup> {
  const upstream = await startUpstream();
  const proxy = await startProcess(t, [`${upstream.url}/mcp`, '--log-level', 'warn']);
  const client = createClient(proxy.url);
  t.after(async () => {
    client.close();
    await upstream.kill();
    assert.deepEqual(upstream.failures, []);
  });
  const session = await openSession(client, upstream, 's-1');
  const body = 'x'.repeat(MIB);
  for (let round = 0; round < 100; round += 1) {
    const reply = await client.post(round, { session });
    const exchange = await upstream.next();
    await exchange.events(block({ id: `warm-${round}`, data: result(round, body) }));
    await exchange.end();
    await reply.bytes();
    reply.destroy();
  }
  return { upstream, client, proxy, session };
}

/** In MiB. */
const BOUND = 32;

/**
 * Runs it, and fails if the process grew by more than the bound. Garbage is collected when it pleases the collector, so
 * a run that grew too much is run again, twice at most: what the proxy really keeps is there every time.
 */
async function costsLittle(t: TestContext, proxy: ProxyProcess, run: () => Promise<void>): Promise<void> {
  const grown: number[] = [];
  do {
    proxy.forgetPeak();
    const before = proxy.resident();
    await run();
    grown.push(Math.round((proxy.peak() - before) / MIB));
  } while (Math.min(...grown) >= BOUND && grown.length < 3);
  t.diagnostic(`grew by ${grown.join(', then ')} MiB`);
  assert.ok(Math.min(...grown) < BOUND, `${grown.join(', ')} MiB`);
}

/** Writes `pieces` one after another, as fast as they are taken, and stops when nobody takes any for a while. */
async function push(exchange: Exchange, piece: Buffer, count: number, stalledFor = 1_000): Promise<number> {
  const { socket } = exchange;
  for (let sent = 0; sent < count; sent += 1) {
    if (socket.destroyed) return sent;
    if (socket.write(piece)) continue;
    const drained = await new Promise<boolean>((resolve) => {
      const timer = setTimeout(() => resolve(false), stalledFor);
      socket.once('drain', () => {
        clearTimeout(timer);
        resolve(true);
      });
    });
    if (!drained) return sent;
  }
  return count;
}

/** A POST whose reply nobody reads. */
async function unreadPost({ proxy, session }: Setup): Promise<net.Socket> {
  const { hostname, port } = new URL(proxy.url);
  const socket = net.connect({ host: hostname, port: Number(port) });
  socket.on('error', () => {});
  socket.pause();
  const body = '{"jsonrpc":"2.0","id":7,"method":"tools/call"}';
  socket.write(
    `POST /mcp HTTP/1.1\r\nHost: ${hostname}\r\nMcp-Session-Id: ${session}\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
  );
  return socket;
}

test('the memory of a stream is bounded', { timeout: 120_000 }, async (t) => {
  const setup = await setUp(t);

  await t.test(
    '300 MiB pushed at a client that does not read stay at upstream; a client that leaves then frees it at once',
    async (t) => {
      const { upstream, proxy } = setup;
      const took: number[] = [];
      for (const how of ['resetAndDestroy', 'destroy'] as const) {
        const client = await unreadPost(setup);
        const exchange = await upstream.next();
        await exchange.head(200, EVENTS);
        const event = block({ id: 'e', data: progress(7, 1, 2).padEnd(65_000) });
        const count = Math.ceil((300 * MIB) / event.length);
        await costsLittle(t, proxy, async () => {
          const sent = await push(exchange, chunk(event), count);
          assert.ok(sent < count, 'it was held up');
        });
        const left = performance.now();
        client[how]();
        await exchange.left(2_000);
        took.push(performance.now() - left);
      }
      assert.ok(Math.min(...took) < 100, `${took.join(', ')} ms`);
    },
  );

  await t.test('300 MiB sent toward an upstream that does not read stay at the client', async (t) => {
    const { proxy, client, upstream } = setup;
    await costsLittle(t, proxy, async () => {
      const connection = await client.connect();
      const reply = connection.send({ method: 'POST', path: '/mcp', fields: { 'Content-Length': String(300 * MIB) } });
      connection.write('x');
      const exchange = await upstream.next({ when: 'head' });
      exchange.socket.pause();
      for (let sent = 0; sent < 300; sent += 1) connection.write(Buffer.alloc(MIB));
      await pause(1_500);
      assert.ok(connection.socket.writableLength > 250 * MIB, 'it was held up');
      await exchange.answer(413, {}, 'no');
      assert.equal((await reply.head).status, 413);
      connection.destroy();
      exchange.socket.destroy();
    });
  });

  await t.test('an event of 512 MiB without a line end passes, and what comes after it is read', async (t) => {
    const { upstream, client, proxy, session } = setup;
    const begin = 'data: {"jsonrpc":"2.0","method":"notifications/large","params":"';
    const answer = block({ id: 'e2', data: result(7) });
    await costsLittle(t, proxy, async () => {
      let received = 0;
      const reply = await client.post(7, { session });
      const exchange = await upstream.next();
      await exchange.events(priming('e1'));
      await reply.until('e1');
      // Counted, not kept.
      reply.takeBody = (pieces) => {
        for (const piece of pieces) received += piece.length;
      };
      await exchange.write(begin);
      assert.equal(await push(exchange, chunk(Buffer.alloc(MIB, 'x')), 512, 10_000), 512);
      await exchange.write('"}\n\n');
      await exchange.end(answer);
      assert.equal(await reply.endedWithin(30_000), 'end');
      assert.equal(received, begin.length + 512 * MIB + '"}\n\n'.length + answer.length);
    });
    assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
  });

  await t.test('a result of 50 MB reaches a slow reader whole, is found, and is not kept', async (t) => {
    const { upstream, client, proxy, session } = setup;
    await costsLittle(t, proxy, async () => {
      const reply = await client.post(7, { session });
      const exchange = await upstream.next();
      await exchange.events(priming('e1'));
      await reply.until('e1');
      let received = 0;
      reply.takeBody = (pieces) => {
        for (const piece of pieces) received += piece.length;
        reply.pause();
        setTimeout(() => reply.resume(), 3);
      };
      const sent = '{"jsonrpc":"2.0","result":"'.length;
      await exchange.write('id: e2\ndata: {"jsonrpc":"2.0","result":"');
      assert.equal(await push(exchange, chunk(Buffer.alloc(50_000, 'x')), 1_000, 10_000), 1_000);
      await exchange.write('","id":7}\n\n');
      await exchange.end();
      assert.equal(await reply.endedWithin(60_000), 'end');
      assert.equal(received, 50_000_000 + sent + 'id: e2\ndata: ","id":7}\n\n'.length);
    });
    assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
  });

  await t.test('a replay that is held back holds no more than it may', async (t) => {
    const { upstream, client, proxy, session } = setup;
    await costsLittle(t, proxy, async () => {
      await cutPost(client, upstream, 7, { session }, priming('e1'));
      const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
      await exchange.events();
      // No event, and no end of one.
      assert.equal(await push(exchange, chunk(`:${'x'.repeat(99_999)}`), 1_000, 10_000), 1_000);
      await reply.headWithin(2_500);
      await exchange.end();
      assert.equal((await reply.bytes(20_000)).length, 100_000_000);
    });
  });

  await t.test('a compressed stream waits for its decoder, not in memory', async (t) => {
    const { upstream, client, proxy, session } = setup;
    // Hard to compress, and therefore slow to decode by the byte that comes in.
    const text = randomBytes(15 * MIB).toString('base64');
    const member = gzipSync(`: ${text}\n\n`, { level: 1 });
    const last = gzipSync(block({ id: 'z2', data: result(7) }));
    await costsLittle(t, proxy, async () => {
      let received = 0;
      const reply = await client.post(7, { session });
      reply.takeBody = (pieces) => {
        for (const piece of pieces) received += piece.length;
      };
      const exchange = await upstream.next();
      await exchange.head(200, { ...EVENTS, 'Content-Encoding': 'gzip' });
      assert.equal(await push(exchange, chunk(member), 8, 20_000), 8);
      await exchange.end(last);
      assert.equal(await reply.endedWithin(30_000), 'end');
      assert.equal(received, member.length * 8 + last.length);
    });
    assert.equal(await fateOf(client, upstream, { session, lei: 'z2' }), 'stripped');
  });

  await t.test('two hundred stalled clients that leave leave nothing behind', async () => {
    const { upstream, proxy } = setup;
    const clients: net.Socket[] = [];
    const event = chunk(block({ data: 'x'.repeat(60_000) }));
    const before = proxy.resident();
    for (let n = 0; n < 200; n += 1) {
      clients.push(await unreadPost(setup));
      const exchange = await upstream.next();
      await exchange.head(200, EVENTS);
      for (let piece = 0; piece < 4; piece += 1) exchange.socket.write(event);
    }
    for (const client of clients) client.destroy();
    await eventually('upstream to be left alone', () => upstream.open === 0);
    assert.ok((proxy.resident() - before) / MIB < 64);
  });
});
