// Several upstreams behind one listener: by host and by the longest path, each with its own options.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type ConfigFile, configFrom } from '../../src/config.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { answerEmpty, cutPost, failureOf, fateOf, finishedPost, openSession } from '../support/session.ts';
import { startUpstream, type Upstream } from '../support/upstream.ts';
import { eventually } from '../support/waiting.ts';

type Route = NonNullable<ConfigFile['routes']>[number];

/** An upstream that answers with its name. */
async function named(t: TestContext, name: string): Promise<Upstream> {
  const upstream = await startUpstream((exchange) => exchange.answer(200, { 'X-Name': name }, exchange.target));
  t.after(() => upstream.kill());
  return upstream;
}

async function routed(t: TestContext, routes: Route[], file: ConfigFile = {}): Promise<Guard> {
  return startGuard(t, { file: { routes, ...file } });
}

async function ask(guard: Guard, path: string, host?: string): Promise<string> {
  const reply = await guard.client.send({
    method: 'GET',
    path,
    ...(host === undefined ? {} : { fields: { Host: host } }),
  });
  const { status, field } = await reply.head;
  await reply.bytes();
  return status === 200 ? (field('x-name') ?? '') : String(status);
}

test('a request goes to the route with its host first, then to the one with the longest path', async (t) => {
  const [any, long, tools, toolsLong] = await Promise.all(
    ['any', 'long', 'tools', 'tools-long'].map((name) => named(t, name)),
  );
  const guard = await routed(
    t,
    [
      { path: '/mcp', upstream: any!.url },
      { path: '/mcp/long', upstream: long!.url },
      { host: 'tools.localhost', path: '/', upstream: tools!.url },
      { host: 'Tools.localhost', path: '/mcp/long/er', upstream: toolsLong!.url },
    ],
    { allowedHosts: ['localhost', '127.0.0.1', 'tools.localhost'] },
  );
  for (const [path, host, expected] of [
    ['/mcp', undefined, 'any'],
    ['/mcp/', undefined, 'any'],
    ['/mcp?x=/mcp/long', undefined, 'any'],
    ['/mcp/x', undefined, 'any'],
    ['/mcp/longer', undefined, 'any'],
    ['/mcp/long', undefined, 'long'],
    ['/mcp/long?', undefined, 'long'],
    ['/mcp/long/er', undefined, 'long'],
    ['/mcpx', undefined, '404'],
    ['/MCP', undefined, '404'],
    ['/', undefined, '404'],
    ['/%6dcp', undefined, '404'],
    ['//mcp', undefined, '404'],
    ['/', 'tools.localhost', 'tools'],
    ['/mcp', 'TOOLS.localhost:99', 'tools'],
    ['/mcp/long/er', 'tools.localhost', 'tools-long'],
    ['/mcp/long/e', 'tools.localhost', 'tools'],
    ['http://tools.localhost/mcp', 'localhost', 'tools'],
    ['http://localhost/mcp', 'tools.localhost', 'any'],
  ] as const) {
    assert.equal(await ask(guard, path, host), expected, `${host ?? ''} ${path}`);
  }
});

test('a path that no route covers is a 404 in plain JSON', async (t) => {
  const only = await named(t, 'only');
  const guard = await routed(t, [{ path: '/mcp', upstream: only.url }]);
  for (const method of ['GET', 'POST', 'DELETE', 'OPTIONS']) {
    const reply = await guard.client.send({ method, path: '/other', ...(method === 'POST' ? { body: '{}' } : {}) });
    assert.equal(await failureOf(reply), 404, method);
    assert.equal((await reply.head).field('connection'), 'keep-alive');
  }
  const head = await guard.client.send({ method: 'HEAD', path: '/other' });
  assert.equal((await head.head).status, 404);
  assert.equal(only.requests.length, 0);
});

test('the path passes unchanged', async (t) => {
  const only = await named(t, 'only');
  const guard = await routed(t, [{ path: '/mcp', upstream: only.url }]);
  for (const path of ['/mcp', '/mcp/../x', '/mcp/%2e%2e//a?b']) {
    const reply = await guard.client.send({ method: 'GET', path });
    assert.equal(await reply.text(), path);
  }
});

test('sessions of two routes are two sessions, though they have one ID', async (t) => {
  const [a, b] = [await startUpstream(), await startUpstream()];
  t.after(() => Promise.all([a.kill(), b.kill()]));
  const { client } = await routed(t, [
    { path: '/a', upstream: a.url },
    { path: '/b', upstream: b.url },
  ]);
  for (const [path, upstream] of [
    ['/a', a],
    ['/b', b],
  ] as const) {
    await openSession(client, upstream, 's-1', { path });
  }
  await finishedPost(client, a, 1, { session: 's-1', path: '/a' }, block({ id: 'e2', data: result(1) }));
  assert.equal(await fateOf(client, a, { session: 's-1', path: '/a', lei: 'e2' }), 'stripped');
  assert.equal(await fateOf(client, b, { session: 's-1', path: '/b', lei: 'e2' }), 'forwarded e2');
});

test('each route has its own mode, form of refusal, Host and treatment of unknown cursors', async (t) => {
  const upstreams = new Map<string, Upstream>();
  const options: Record<string, Partial<Route>> = {
    '/plain': {},
    '/observe': { mode: 'observe' },
    '/event': { refuseWith: 'event' },
    '/host': { preserveHost: true },
    '/unknown': { unrecorded: 'refuse' },
    '/repeats': { dedupe: false },
  };
  const routes: Route[] = [];
  for (const [path, own] of Object.entries(options)) {
    const upstream = await startUpstream();
    t.after(() => upstream.kill());
    upstreams.set(path, upstream);
    routes.push({ path, upstream: upstream.url, ...own });
  }
  const guard = await routed(t, routes);
  const { client } = guard;
  for (const [path, upstream] of upstreams) {
    const session = await openSession(client, upstream, 's-1', { path });
    const { exchange: first } = await cutPost(client, upstream, 7, { session, path }, priming('e1'));
    assert.equal(first.field('host'), path === '/host' ? guard.authority : new URL(upstream.url).host);

    const reply = await client.get({ session, path, lei: 'e1', version: '2025-11-25' });
    await answerEmpty(await upstream.next());
    const { status, field } = await reply.head;
    const expected = { '/observe': [200, 'text/event-stream'], '/event': [200, 'text/event-stream'] }[path];
    assert.deepEqual([status, field('content-type')], expected ?? [409, 'application/json'], path);
    assert.equal((await reply.bytes()).length > 0, path !== '/observe', path);

    const fate = await fateOf(client, upstream, { session, path, lei: 'never-seen' });
    assert.equal(fate, path === '/unknown' ? 'refused 409 cursor-unrecorded' : 'forwarded never-seen', path);

    const again = await client.get({ session, path, lei: 'e1' });
    const exchange = await upstream.nextUnless(again.ended);
    if (exchange !== undefined) {
      await exchange.events(priming('e1'), priming('e2'));
      await again.until('e2');
      assert.equal((await again.body).includes('e1'), path === '/repeats' || path === '/observe', path);
      await exchange.end();
    }
    await again.ended;
  }
  const observed = guard.logs.filter(({ event, observed }) => event === 'exchange' && observed === true);
  assert.ok(observed.length > 0 && observed.every(({ route }) => route === '*/observe'));
});

test('a route whose upstream is down does not touch the others', async (t) => {
  const [up, down] = [await named(t, 'up'), await named(t, 'down')];
  const guard = await routed(t, [
    { path: '/up', upstream: up.url },
    { path: '/down', upstream: down.url },
  ]);
  assert.equal(await ask(guard, '/down'), 'down');
  await down.kill();
  assert.equal(await ask(guard, '/down'), '502');
  assert.equal(await ask(guard, '/up'), 'up');
  await down.restart();
  assert.equal(await ask(guard, '/down'), 'down');
});

test('a reload moves routes, keeps the streams of old ones, and closes what nobody uses any more', async (t) => {
  const [a, b] = [await startUpstream(), await startUpstream()];
  t.after(() => Promise.all([a.kill(), b.kill()]));
  const base: ConfigFile = { listen: '127.0.0.1:0', admin: { listen: '127.0.0.1:0' } };
  const guard = await startGuard(t, { file: { ...base, routes: [{ path: '/a', upstream: a.url }] } });
  const { client, proxy } = guard;
  const idle = await client.send({ method: 'GET', path: '/a' });
  const reply = await client.send({ method: 'GET', path: '/a' });
  const [first, second] = [await a.next(), await a.next()];
  await first.answer(200, {}, 'ok');
  await idle.text();
  await second.events(priming('e1'));
  await reply.until('e1');

  proxy.reload(configFrom({ ...base, routes: [{ path: '/b', upstream: b.url }] }));
  const moved = await client.send({ method: 'GET', path: '/b' });
  await (await b.next()).answer(200, {}, 'b');
  assert.equal(await moved.text(), 'b');
  assert.equal(await failureOf(await client.send({ method: 'GET', path: '/a' })), 404);
  await eventually('the idle connection to go', () => a.open === 1);
  await second.end(priming('e2'));
  assert.equal(await reply.text(), priming('e1') + priming('e2'));
  await eventually('the last connection to go', () => a.open === 0);

  proxy.reload(configFrom({ ...base, routes: [{ path: '/b', upstream: a.url }] }));
  const swapped = await client.send({ method: 'GET', path: '/b' });
  await (await a.next()).answer(200, {}, 'a now');
  assert.equal(await swapped.text(), 'a now');
});
