// Restarts of upstream: by a refused connect, by who listens on its port, and while it is down.

import assert from 'node:assert/strict';
import net from 'node:net';
import { type TestContext, test } from 'node:test';
import { type ConfigFile, configFrom } from '../../src/config.ts';
import { restartedBetween } from '../../src/core/ledger.ts';
import { startProxy } from '../../src/main.ts';
import { type KernelTables, kernelTables } from '../../src/proxy/kernel.ts';
import { type Hop, Upstream } from '../../src/proxy/upstream.ts';
import { createClient } from '../support/client.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { hideTables } from '../support/kernel-tables.ts';
import { block, priming, result } from '../support/messages.ts';
import { cutPost, failureOf, fateOf, finishedPost, openSession, postStream } from '../support/session.ts';

const SESSION = { session: 's-1' } as const;
const OLD = { ...SESSION, lei: 'e1' } as const;
const MISMATCH = 'refused 409 generation-mismatch';

/** A guard whose session has an open request with the cursor `e1`. Every look at the kernel's table is a new one. */
async function start(t: TestContext, upstreamFile: ConfigFile['upstream'] = {}): Promise<Guard> {
  const guard = await startGuard(t, { file: { bounds: { kernelReading: 0 } }, upstreamFile });
  await openSession(guard.client, guard.upstream, 's-1');
  await cutPost(guard.client, guard.upstream, 1, SESSION, priming('e1'));
  return guard;
}

const fate = ({ client, upstream }: Guard, options: Parameters<typeof fateOf>[2] = OLD) =>
  fateOf(client, upstream, options);

const generations = ({ metric }: Guard, cause: string): Promise<number> => metric('generations_total', { cause });

test('after a refused connect and a later one a used session is in a new generation', async (t) => {
  const guard = await start(t);
  await guard.upstream.kill();
  assert.equal(await failureOf(await guard.client.post(2, SESSION)), 502);
  await guard.upstream.restart();
  await finishedPost(guard.client, guard.upstream, 3, SESSION, block({ id: 'g2', data: result(3) }));
  assert.equal(await fate(guard), MISMATCH);
  assert.equal(await fate(guard, { ...SESSION, lei: 'g2' }), 'stripped');
  assert.equal(await generations(guard, 'restart'), 1);
});

test('while upstream is down a resume is answered with 502, and decided after the first connect', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  await finishedPost(client, upstream, 2, SESSION, block({ id: 'f2', data: result(2) }));
  await upstream.kill();
  for (const lei of ['e1', 'f2', 'unknown']) assert.equal(await failureOf(await client.get({ ...SESSION, lei })), 502);
  await upstream.restart();
  const before = upstream.requests.length;
  // The first thing that upstream would see after its restart.
  assert.equal(await fate(guard), MISMATCH);
  assert.equal(await fate(guard, { ...SESSION, lei: 'f2' }), MISMATCH);
  assert.equal(upstream.requests.length, before, 'it was connected to, and not asked');
});

test('a restart too short for a refused connect is seen by who listens, at the next resume', async (t) => {
  const guard = await start(t);
  await guard.upstream.kill();
  await guard.upstream.restart();
  assert.equal(await fate(guard), MISMATCH);
  assert.equal(await generations(guard, 'restart'), 1);
});

test('the same restart is seen at the next connection, and the session begins anew with what came over it', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  await upstream.kill();
  await upstream.restart();
  await cutPost(client, upstream, 2, SESSION, priming('f1'));
  assert.equal(await generations(guard, 'restart'), 1);
  assert.equal(await fate(guard, { ...SESSION, lei: 'f1' }), 'forwarded f1');
  assert.equal(await fate(guard), MISMATCH);
  assert.equal(await generations(guard, 'restart'), 1, 'once for one restart');
});

test('durableEvents keeps the cursors of before a restart', async (t) => {
  for (const refused of [false, true]) {
    const guard = await start(t, { durableEvents: true });
    await guard.upstream.kill();
    if (refused) assert.equal(await failureOf(await guard.client.post(2, SESSION)), 502);
    await guard.upstream.restart();
    assert.equal(await fate(guard), 'forwarded e1');
    assert.equal(await guard.metric('generations_total'), 0);
  }
});

/** A door in front of a server that can be hung anew: those who are inside stay. */
async function startDoor(
  t: TestContext,
  port: number,
): Promise<{ url: string; shut(): Promise<void>; replace(): Promise<void> }> {
  const sockets = new Set<net.Socket>();
  const hang = (at: number): Promise<net.Server> => {
    const server = net.createServer((outside) => {
      const inside = net.connect(port, '127.0.0.1');
      for (const socket of [outside, inside]) {
        sockets.add(socket);
        socket.on('error', () => {});
        socket.on('close', () => (socket === outside ? inside : outside).destroy());
      }
      outside.pipe(inside).pipe(outside);
    });
    return new Promise((resolve) => server.listen(at, '127.0.0.1', () => resolve(server)));
  };
  let server = await hang(0);
  const { port: at } = server.address() as net.AddressInfo;
  t.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return {
    url: `http://127.0.0.1:${at}/mcp`,
    /** Nobody comes in any more. Whoever is inside keeps the callback of `close` waiting, but not the port. */
    async shut() {
      server.close();
    },
    async replace() {
      server.close();
      server = await hang(at);
    },
  };
}

test('when another process takes over the port, streams of the old one are read on and belong to its generation', async (t) => {
  const behind = await startGuard(t);
  const door = await startDoor(t, behind.upstream.port);
  const guard = { ...behind, ...(await startInFront(t, door.url)) };
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1');
  const old = await postStream(client, upstream, 1, SESSION, priming('e1'));
  await door.replace();

  const young = await postStream(client, upstream, 2, SESSION, priming('f1'));
  assert.equal(await fate(guard), MISMATCH);
  assert.equal(await fate(guard, { ...SESSION, lei: 'f1' }), 'forwarded f1');

  await old.exchange.end(block({ id: 'e2', data: result(1) }));
  await young.exchange.end(block({ id: 'f2', data: result(2) }));
  assert.match(await old.reply.text(), /"id":1/);
  await young.reply.bytes();
  assert.equal(await fate(guard, { ...SESSION, lei: 'e2' }), MISMATCH);
  assert.equal(await fate(guard, { ...SESSION, lei: 'f2' }), 'stripped');

  // Connections are used again, the latest first; one of the old process may be among them for a while.
  const seen: string[] = [];
  for (const id of [3, 4]) {
    const { exchange } = await cutPost(client, upstream, id, SESSION, priming(`g${id}`));
    const isOld = exchange.socket === old.exchange.socket;
    seen.push(isOld ? 'old' : 'young');
    assert.equal(await fate(guard, { ...SESSION, lei: `g${id}` }), isOld ? MISMATCH : `forwarded g${id}`);
  }
  assert.ok(seen.includes('old'), 'the old connection was used again');
  assert.equal(await fate(guard, { ...SESSION, lei: 'f2' }), 'stripped', 'and began no generation');
});

/** A second proxy, for another upstream URL. */
async function startInFront(t: TestContext, url: string): Promise<Pick<Guard, 'client' | 'url'>> {
  const config = configFrom({
    listen: '127.0.0.1:0',
    admin: { listen: false },
    log: { level: 'silent' },
    bounds: { kernelReading: 0 },
    upstream: { url },
  });
  const proxy = await startProxy(config);
  const client = createClient(proxy.url);
  t.after(async () => {
    client.close();
    await proxy.close();
  });
  return { client, url: proxy.url };
}

const now = (): number => performance.now();

/** A hop toward `url`, where the kernel by default does not tell who listens. */
function startHop(
  t: TestContext,
  url: string,
  kernel: KernelTables = kernelTables(0, now, '127.0.0.1', 'an operating system without such a table'),
): Upstream {
  const hop = new Upstream({
    origin: new URL(url).origin,
    tls: {},
    connectTimeout: 1_000,
    fieldBytes: 16_384,
    watchRestarts: true,
    kernel,
    now,
  });
  t.after(() => hop.close());
  return hop;
}

const ask = (hop: Upstream): Hop =>
  hop.dispatch({ method: 'GET', path: '/', fields: [], body: null }, { head() {}, data() {}, ended() {}, failed() {} });

test('where nobody tells who listens, a refused connect is a restart once a later one succeeds', async (t) => {
  const { upstream } = await startGuard(t);
  const hop = startHop(t, upstream.url);
  assert.equal(await hop.reach(), null);
  const before = await hop.identify();
  await upstream.kill();
  assert.equal((await hop.reach())?.code, 'upstream-refused');
  assert.equal(hop.isDown(await hop.identify()), true);
  assert.equal(restartedBetween(before, await hop.identify()), false, 'down is not restarted');
  await upstream.restart();
  assert.equal(await hop.reach(), null);
  assert.equal(hop.isDown(await hop.identify()), false);
  assert.equal(restartedBetween(before, await hop.identify()), true);
});

test('a connection opened while a second process joins is of both: that the first one ends is no restart', async (t) => {
  const { upstream } = await startGuard(t);
  let listening = new Set([1]);
  const hop = startHop(t, upstream.url, {
    connections: async () => ({ viewOf: () => 'unknown', readAt: now() }),
    // As `kernelTables`: a look for the one that is known does not see the other.
    listeners: async (_port, _notBefore, some) => ({
      inodes: some && listening.has(1) ? new Set([1]) : listening,
      readAt: now(),
    }),
  });
  await hop.identify();
  listening = new Set([1, 2]);
  assert.equal(await hop.reach(), null);
  const { identity } = ask(hop);
  listening = new Set([2]);
  const after = await hop.identify({ some: true });
  assert.deepEqual([...after.listeners], [2]);
  assert.equal(restartedBetween(identity, after), false);
});

test('there too a resume waits for the connect, and upstream does not see the cursor of before the restart', async (t) => {
  hideTables(t);
  const guard = await start(t);
  const { client, upstream } = guard;
  await upstream.kill();
  assert.equal(await failureOf(await client.post(2, SESSION)), 502);
  await upstream.restart();
  const before = upstream.requests.length;
  assert.equal(await fate(guard), MISMATCH);
  assert.equal(upstream.requests.length, before);
  const accepted = upstream.accepted;
  await cutPost(client, upstream, 3, SESSION, priming('f1'));
  assert.equal(upstream.accepted, accepted, 'the connection that was opened for it is used');
  assert.equal(await fate(guard, { ...SESSION, lei: 'f1' }), 'forwarded f1');
});

test('it is none while a connection from before survives', async (t) => {
  const { upstream } = await startGuard(t);
  const door = await startDoor(t, upstream.port);
  const hop = startHop(t, door.url);
  const stream = ask(hop);
  await (await upstream.next()).events();
  const before = await hop.identify();
  await door.shut();
  assert.equal((await hop.reach())?.code, 'upstream-refused');
  await door.replace();
  assert.equal(await hop.reach(), null);
  assert.equal(restartedBetween(before, await hop.identify()), false);
  stream.abort();
});
