// The end of a process, and a new configuration without one: who may still come in, what may still finish, and when.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { type ConfigFile, configFrom } from '../../src/config.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { type ProxyProcess, startProcess } from '../support/proxy-process.ts';
import { failureOf, fateOf, finishedPost, openSession, postStream } from '../support/session.ts';
import { startUpstream, type Upstream } from '../support/upstream.ts';
import { eventually, fastestOf, pause, within } from '../support/waiting.ts';

const readiness = async ({ proxy }: Pick<Guard, 'proxy'>): Promise<number> =>
  (await fetch(`${proxy.adminUrl}/readyz`)).status;

async function isListening(url: string): Promise<boolean> {
  const socket = net.connect(Number(new URL(url).port), '127.0.0.1');
  return new Promise((resolve) => {
    socket.once('connect', () => resolve(true));
    socket.once('error', () => resolve(false));
  }).then((is) => {
    socket.destroy();
    return is as boolean;
  });
}

function lastLine({ logs }: Guard): Readonly<Record<string, unknown>> {
  return logs.at(-1) ?? assert.fail('nothing was logged');
}

describe('closing', () => {
  test('fails readiness at once, takes requests through drainDelay, and then no more', async (t) => {
    const guard = await startGuard(t, {
      file: { drainDelay: '400ms' },
      handler: (exchange) => exchange.answer(200, {}, 'ok'),
    });
    const { client, proxy } = guard;
    assert.equal(await readiness(guard), 200);
    const kept = await client.connect();
    assert.equal(await kept.send({ method: 'GET', path: '/mcp' }).text(), 'ok');
    const began = performance.now();
    const closed = proxy.close();
    assert.equal(await readiness(guard), 503);
    assert.equal((await fetch(`${proxy.adminUrl}/livez`)).status, 200);
    const late = await client.get();
    assert.equal((await late.head).field('connection'), 'close');
    assert.equal(await late.text(), 'ok');
    assert.equal(await kept.send({ method: 'GET', path: '/mcp' }).text(), 'ok');
    await within('the end', closed);
    assert.ok(performance.now() - began >= 400);
    assert.equal(await isListening(proxy.url), false);
    await assert.rejects(fetch(`${proxy.adminUrl}/livez`));
  });

  test('waits for what is open, answers what is new with 503, and ends with the last of it', async (t) => {
    const guard = await startGuard(t, { file: { drainTimeout: '5s' } });
    const { client, upstream, proxy } = guard;
    const { reply, exchange } = await postStream(client, upstream, 1, {}, priming('e1'));
    const busy = await client.connect();
    const pending = busy.send({ method: 'POST', path: '/mcp', body: '{}' });
    const waiting = await upstream.next();
    const idle = await client.connect();
    await idle.send({ method: 'OPTIONS', path: '*' }).bytes();
    let isOver = false;
    const closed = proxy.close().then(() => {
      isOver = true;
    });
    await idle.closed(1_000);
    assert.equal(await isListening(proxy.url), false);
    await waiting.answer(200, {}, 'ok');
    assert.equal(await pending.text(), 'ok');
    assert.equal((await pending.head).field('connection'), 'close');
    await exchange.write(block({ id: 'e2', data: result(1) }));
    await reply.until('e2');
    assert.equal(isOver, false);
    const ended = performance.now();
    await exchange.end();
    assert.equal(await reply.ended, 'end');
    await within('the end', closed);
    assert.ok(performance.now() - ended < 500, 'not after drainTimeout');
    assert.equal(lastLine(guard)['cut'], 0);
  });

  test('answers a request that comes on a kept connection with 503', async (t) => {
    const { client, upstream, proxy } = await startGuard(t, { file: { drainTimeout: '1s' } });
    const connection = await client.connect();
    // Two requests at once: the connection is busy with the first when the second comes.
    const first = connection.send({ method: 'GET', path: '/mcp?1' });
    const exchange = await upstream.next();
    await exchange.events(priming('e1'));
    await first.until('e1');
    const closed = proxy.close();
    const second = connection.send({ method: 'GET', path: '/mcp?2' });
    await pause(50);
    await exchange.end();
    assert.equal(await first.text(), priming('e1'));
    assert.equal(await failureOf(second), 503);
    assert.equal((await second.head).field('connection'), 'close');
    await closed;
    assert.equal(upstream.requests.length, 1);
  });

  test('destroys after drainTimeout what is still open, so that nobody takes it for the end', async (t) => {
    const guard = await startGuard(t, { file: { drainTimeout: '300ms' } });
    const { client, upstream, proxy } = guard;
    const session = await openSession(client, upstream, 's-1');
    const streams = [];
    for (let id = 1; id <= 3; id += 1)
      streams.push(await postStream(client, upstream, id, { session }, priming(`e${id}`)));
    const old = await client.connect();
    const unframed = old.expect();
    old.write('GET /mcp HTTP/1.0\r\n\r\n');
    const endless = await upstream.next();
    await endless.events(priming('e9'));
    await unframed.until('e9');
    const headless = await client.post(4, { session });
    const waiting = await upstream.next();
    const held = await client.get({ session, lei: 'e1' });
    const resumed = await upstream.next();
    const upgrade = { Connection: 'Upgrade', Upgrade: 'websocket' };
    const socket = await client.send({ method: 'GET', path: '/mcp', fields: upgrade });
    const frames = await upstream.next();
    await frames.head(101, upgrade);
    await socket.head;

    const began = performance.now();
    await within('the end', proxy.close());
    const took = performance.now() - began;
    assert.ok(took >= 300 && took < 1_000, `${took} ms`);
    const { event, cut, durationMs } = lastLine(guard);
    assert.deepEqual([event, cut], ['stopped', 7]);
    assert.ok(Number(durationMs) >= 300 && Number(durationMs) <= Math.ceil(took), `${durationMs} of ${took} ms`);
    for (const { reply } of streams) assert.equal(await reply.ended, 'cut');
    for (const reply of [unframed, headless, held]) assert.equal(await reply.ended, 'cut');
    assert.equal(headless.headed, false);
    await socket.connection.closed();
    const all = [...streams.map(({ exchange }) => exchange), endless, waiting, resumed, frames];
    await Promise.all(all.map((exchange) => exchange.left(500)));
  });

  test('does not wait for clients that were refused and will not hang up', async (t) => {
    const { client, proxy } = await startGuard(t, { file: { drainTimeout: '5s' } });
    const upgrade = { Connection: 'Upgrade', Upgrade: 'websocket', Host: 'evil.example' };
    for (const outgoing of [
      { method: 'GET', path: '/mcp', fields: upgrade },
      { method: 'GET', path: '/mcp', fields: { 'Transfer-Encoding': 'gzip, chunked' } },
      { method: 'CONNECT', path: 'localhost:1' },
    ]) {
      const connection = await client.connect();
      connection.socket.allowHalfOpen = true;
      await connection.send(outgoing).bytes();
    }
    const garbage = await client.connect();
    garbage.socket.allowHalfOpen = true;
    const reply = garbage.expect();
    garbage.write('garbage\r\n\r\n');
    await reply.bytes();
    const began = performance.now();
    await within('the end', proxy.close());
    assert.ok(performance.now() - began < 1_000);
  });

  test('that is asked for twice is one', async (t) => {
    const { client, upstream, proxy } = await startGuard(t, { file: { drainTimeout: '200ms' } });
    const { reply } = await postStream(client, upstream, 1, {}, priming('e1'));
    const [one, two] = [proxy.close(), proxy.close()];
    await within('both', Promise.all([one, two]));
    assert.equal(await reply.ended, 'cut');
  });

  test('while a client pushes requests through does not hang, and none of them is half done', async (t) => {
    const { client, proxy, upstream } = await startGuard(t, {
      file: { drainTimeout: '2s' },
      handler: async (exchange) => {
        await exchange.events(priming('e1'));
        await exchange.end(block({ id: 'e2', data: result(1) }));
      },
    });
    let stop = false;
    const ends = new Set<string>();
    const pusher = async (): Promise<void> => {
      while (!stop) {
        const connection = await client.connect().catch(() => null);
        if (connection === null) return;
        for (let n = 0; n < 20 && !stop; n += 1) {
          const reply = connection.send({ method: 'POST', path: '/mcp', body: '{}' });
          const ending = await reply.ended;
          if (ending === 'cut') {
            ends.add(reply.headed ? 'cut in the middle' : 'closed before');
            break;
          }
          ends.add(String((await reply.head).status));
        }
        connection.destroy();
      }
    };
    const pushers = Array.from({ length: 8 }, pusher);
    await pause(200);
    await within('the end', proxy.close(), 4_000);
    stop = true;
    await Promise.all(pushers);
    assert.ok(ends.has('200'));
    assert.ok(!ends.has('cut in the middle'), [...ends].join());
    assert.ok(upstream.requests.length > 0);
  });
});

describe('a reload', () => {
  const base: ConfigFile = {
    listen: '127.0.0.1:0',
    admin: { listen: '127.0.0.1:0' },
    replayHold: '200ms',
    drainTimeout: '100ms',
  };

  test('drops no stream and forgets no session, and the new settings are in force', async (t) => {
    const { client, upstream, proxy, logs } = await startGuard(t);
    const session = await openSession(client, upstream, 's-1');
    await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
    const { reply, exchange } = await postStream(client, upstream, 2, { session }, priming('f1'));
    const url = `${upstream.url}/mcp`;
    proxy.reload(configFrom({ ...base, upstream: { url }, allowedHosts: ['mcp.example'], bounds: { bodyBytes: 10 } }));
    const own = { session, fields: { Host: 'mcp.example' } };
    assert.equal(await failureOf(await client.get({ session })), 403);
    assert.equal(await failureOf(await client.post({ body: 'x'.repeat(11) }, own)), 413);
    assert.equal(await fateOf(client, upstream, { ...own, lei: 'e2' }), 'stripped');
    await exchange.end(block({ id: 'f2', data: result(2) }));
    assert.equal(await reply.ended, 'end');
    assert.equal(await fateOf(client, upstream, { ...own, lei: 'f2' }), 'stripped');
    assert.deepEqual(
      logs.filter(({ event }) => event === 'not-reloaded'),
      [],
    );
  });

  test('names what cannot be reloaded, and leaves it as it was', async (t) => {
    const { client, upstream, proxy, logs } = await startGuard(t);
    const url = `${upstream.url}/mcp`;
    proxy.reload(
      configFrom({
        ...base,
        listen: '0.0.0.0:1',
        admin: { listen: '127.0.0.1:2' },
        sessionMemory: '1h',
        connectTimeout: '1s',
        upstream: { url, durableEvents: true },
        bounds: { memory: '1MiB', fieldBytes: '64KiB', bodyBytes: 10, concurrentStreams: 5 },
      }),
    );
    const said = logs.filter(({ event }) => event === 'not-reloaded');
    assert.equal(said.length, 1);
    assert.deepEqual(said[0]?.['keys'], [
      'listen',
      'admin',
      'sessionMemory',
      'upstream.durableEvents',
      'bounds.memory',
      'bounds.fieldBytes',
    ]);
    const foreign = await client.get({ fields: { Host: 'evil.example' } });
    assert.equal(await failureOf(foreign), 403, 'still a loopback address');
    const reply = await client.get();
    await (await upstream.next()).answer(200, {}, 'ok');
    assert.equal(await reply.text(), 'ok');
  });
});

/** How long it takes here, now, until a process without anything to do has ended after a SIGTERM, in ms. */
async function bareExit(t: TestContext): Promise<number> {
  const script = "process.on('SIGTERM', () => process.exit(0)); setInterval(() => {}, 1000); console.log('up')";
  const child = spawn(process.execPath, ['-e', script]);
  t.after(() => child.kill('SIGKILL'));
  await once(child.stdout, 'data');
  const sent = performance.now();
  child.kill('SIGTERM');
  await once(child, 'exit');
  return performance.now() - sent;
}

describe('the process', () => {
  async function setUp(
    t: TestContext,
    ...argv: string[]
  ): Promise<{ upstream: Upstream; proxy: ProxyProcess; directory: string }> {
    const upstream = await startUpstream();
    const directory = mkdtempSync(join(tmpdir(), 'guard-'));
    t.after(async () => {
      rmSync(directory, { recursive: true });
      await upstream.kill();
    });
    const file = join(directory, 'guard.yaml');
    writeFileSync(file, `upstream: { url: "${upstream.url}/mcp" }\n${argv.join('\n')}\n`);
    return { upstream, proxy: await startProcess(t, ['--config', file]), directory };
  }

  test('ends within 100 ms of a SIGTERM when nothing is open, connections at rest or not', async (t) => {
    const run = async (): Promise<number> => {
      const { upstream, proxy } = await setUp(t);
      upstream.handle((exchange) => exchange.answer(200, {}, 'ok'));
      const idle = net.connect(Number(new URL(proxy.url).port), '127.0.0.1');
      idle.on('error', () => {});
      await once(idle, 'connect');
      assert.equal(await (await fetch(`${proxy.url}/mcp`)).text(), 'ok');
      // V8 still compiles in the background what the first request needed, and an exit waits for that.
      await pause(500);
      const bare = await bareExit(t);
      const sent = performance.now();
      proxy.child.kill('SIGTERM');
      assert.equal(await proxy.exited(), 0);
      const took = performance.now() - sent;
      idle.destroy();
      // A busy machine delays both.
      return took - 5 * bare;
    };
    const fastest = await fastestOf(5, run, 100);
    t.diagnostic(`${fastest.toFixed(0)} ms`);
    assert.ok(fastest < 100, `${fastest} ms`);
  });

  test('gives open exchanges drainTimeout, and ends with 0', async (t) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) {
      const { upstream, proxy } = await setUp(t, 'drainTimeout: 400ms');
      const response = fetch(`${proxy.url}/mcp`);
      const exchange = await upstream.next();
      await exchange.events(priming('e1'));
      const { body } = await response;
      const sent = performance.now();
      proxy.child.kill(signal);
      assert.equal(await proxy.exited(), 0);
      const took = performance.now() - sent;
      assert.ok(took >= 400 && took < 8_000, `${took} ms`);
      await assert.rejects(new Response(body).text(), 'cut, not ended');
      await exchange.left();
      assert.deepEqual(
        proxy.lines.filter(({ event }) => event === 'stopping').map((line) => line['signal']),
        [signal],
      );
    }
  });

  test('ends at once, and with 1, on a second SIGTERM', async (t) => {
    const { upstream, proxy } = await setUp(t, 'drainTimeout: 1h', 'drainDelay: 1h');
    const response = fetch(`${proxy.url}/mcp`).catch(() => {});
    await (await upstream.next()).events();
    await response;
    proxy.child.kill('SIGTERM');
    await eventually('readiness to fail', async () => (await fetch(`${proxy.adminUrl}/readyz`)).status === 503);
    proxy.child.kill('SIGTERM');
    const sent = performance.now();
    assert.equal(await proxy.exited(), 1);
    const took = performance.now() - sent;
    assert.ok(took < 8_000, `${took} ms`);
  });

  test('reads its configuration again on SIGHUP, without dropping a stream', async (t) => {
    const { upstream, proxy, directory } = await setUp(t, 'drainTimeout: 100ms');
    const response = fetch(`${proxy.url}/mcp`);
    const exchange = await upstream.next();
    await exchange.events(priming('e1'));
    const { body } = await response;
    const file = join(directory, 'guard.yaml');
    writeFileSync(
      file,
      `upstream: { url: "${upstream.url}/mcp" }\nallowedHosts: [mcp.example]\nbounds: { sessions: 5 }\n`,
    );
    proxy.child.kill('SIGHUP');
    await eventually('the news', () => proxy.lines.some(({ event }) => event === 'reloaded'));
    assert.deepEqual(proxy.lines.find(({ event }) => event === 'not-reloaded')?.['keys'], ['bounds.sessions']);
    assert.equal((await fetch(`${proxy.url}/mcp`)).status, 403);
    writeFileSync(file, 'upstream: { ulr: 1 }\n');
    proxy.child.kill('SIGHUP');
    await eventually('a complaint', () => proxy.lines.some(({ event }) => event === 'reload-failed'));
    assert.equal((await fetch(`${proxy.url}/mcp`)).status, 403, 'the old one stays in force');
    await exchange.end(priming('e2'));
    assert.equal(await new Response(body).text(), priming('e1') + priming('e2'));
    proxy.child.kill('SIGTERM');
    assert.equal(await proxy.exited(), 0);
  });
});
