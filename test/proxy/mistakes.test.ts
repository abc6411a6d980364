/** Mistakes of an operator that would otherwise go unnoticed. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { configFrom, loadConfig } from '../../src/config.ts';
import { sayAdminAccess } from '../../src/serve-admin.ts';
import { sayUnreachable } from '../../src/serve-reachable.ts';
import { startGuard } from '../support/guard.ts';
import { openSession } from '../support/session.ts';
import { within } from '../support/waiting.ts';

for (const [listen, upstream] of [
  ['127.0.0.1:8808', 'http://127.0.0.1:8808/mcp'],
  ['127.0.0.1:8808', 'http://localhost:8808/mcp'],
  ['0.0.0.0:9000', 'http://[::1]:9000'],
  ['192.0.2.7:9000', 'http://192.0.2.7:9000'],
] as const) {
  test(`a guard on ${listen} in front of ${upstream} is told that this is itself`, () => {
    const loaded = loadConfig({ settings: { upstream: { url: upstream }, listen } });
    assert.ok(!loaded.ok, 'it is no configuration');
    assert.match(JSON.stringify(loaded.faults), /is this proxy itself/);
  });
}

test('another port, or another machine, is not itself', () => {
  for (const url of ['http://127.0.0.1:8809/mcp', 'http://192.0.2.7:8808/mcp']) {
    assert.ok(loadConfig({ settings: { upstream: { url }, listen: '127.0.0.1:8808' } }).ok, url);
  }
});

test('a request that went in a circle is answered with 508 and reaches nobody', async (t) => {
  const { client, upstream, warnings } = await startGuard(t);
  const via = Array(8).fill('1.1 mcp-resume-guard').join(', ');
  const reply = await client.send({ method: 'GET', path: '/mcp', fields: [['Via', via]] });
  assert.equal((await reply.head).status, 508);
  assert.equal(upstream.requests.length, 0);
  assert.equal(warnings()[0]?.['error'], 'loop-detected');
});

test('MCP on a path that is not guarded is said once, with both paths', async (t) => {
  const { client, upstream, logs } = await startGuard(t, { path: '/api/mcp' });
  await openSession(client, upstream, 's-1');
  for (let i = 0; i < 3; i++) {
    const reply = await client.send({ method: 'GET', path: '/mcp', fields: [['Mcp-Session-Id', 's-1']] });
    await (await upstream.next({ method: 'GET' })).json(405, '{}');
    assert.equal((await reply.head).status, 405);
  }
  const said = logs.filter(({ event }) => event === 'unguarded');
  assert.equal(said.length, 1);
  assert.deepEqual([said[0]?.['path'], said[0]?.['guarded']], ['/mcp', '/api/mcp']);
});

test('the first request of a client on a path that is not guarded is said too', async (t) => {
  const { client, upstream, warnings } = await startGuard(t);
  const fields = [['Accept', 'application/json, text/event-stream']] as const;
  for (const [method, path] of [
    ['GET', '/sse'],
    ['POST', '/mpc'],
  ] as const) {
    const reply = await client.send({ method, path, fields });
    await (await upstream.next({ method })).answer(404, {}, 'no');
    await reply.text();
  }
  assert.deepEqual(
    warnings().map(({ event, path }) => [event, path]),
    [['unguarded', '/mpc']],
  );
});

test('a Host that is not let in is named in the log with the setting that would let it in', async (t) => {
  const { client, logs } = await startGuard(t);
  const reply = await client.send({ method: 'GET', path: '/mcp', fields: [['Host', 'guard.example']] });
  assert.equal((await reply.head).status, 403);
  const [line] = logs.filter(({ event }) => event === 'refused');
  assert.deepEqual([line?.['host'], line?.['setting']], ['guard.example', 'allowedHosts']);
});

test('an upstream that does not listen is said at start', async () => {
  const config = configFrom({ upstream: { url: 'http://127.0.0.1:1/mcp' } });
  const line = await new Promise<object>((resolve) => {
    sayUnreachable(config, { warn: ((fields: object) => resolve(fields)) as never });
  });
  assert.deepEqual(line, { event: 'upstream-unreachable', upstream: 'http://127.0.0.1:1', cause: 'ECONNREFUSED' });
});

test('a server that speaks no TLS is said at start', async (t) => {
  const server = createServer().listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const config = configFrom({ upstream: { url: `https://127.0.0.1:${port}/mcp` } });
  const said = new Promise<string>((resolve) => {
    sayUnreachable(config, { warn: ((_: object, message: string) => resolve(message)) as never });
  });
  assert.match(await within('a warning', said), /^https:\S+ is there, but TLS fails \(is it http\?\)$/);
});

for (const [name, admin, expected] of [
  [
    'closed where it has no token',
    { listen: '0.0.0.0:8809' },
    /^nobody can see .* set admin\.token .*admin\.open: true/,
  ],
  ['closed on every address of IPv6', { listen: '[::]:8809' }, /^nobody can see /],
  ['open where that was asked for', { listen: '0.0.0.0:8809', open: true }, /open to everybody .* set admin\.token/],
  ['open with a token that nobody needs', { listen: '0.0.0.0:8809', open: true, token: 'hush' }, /open to everybody/],
  ['nothing where a token is wanted', { listen: '0.0.0.0:8809', token: 'hush' }, null],
  ['nothing on a loopback address', { listen: 'localhost:8809' }, null],
  ['nothing where there is none', { listen: 'off' }, null],
] as const) {
  test(`of the admin page off a loopback address is said at start: ${name}`, () => {
    const said: string[] = [];
    const config = configFrom({ upstream: { url: 'http://127.0.0.1:1' }, admin });
    sayAdminAccess(config, { warn: ((_fields: object, message: string) => said.push(message)) as never });
    if (expected === null) assert.deepEqual(said, []);
    else assert.match(said.join(), expected);
    assert.doesNotMatch(said.join(), /hush/);
  });
}
