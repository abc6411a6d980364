/** What the admin listener shows of a guard at work. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { configFrom } from '../../src/config.ts';
import { startProxy } from '../../src/main.ts';
import { createLogger } from '../../src/ops/logger.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { answerEmpty, cutPost, fateOf, finishedPost, openSession, postStream } from '../support/session.ts';
import { eventually, within } from '../support/waiting.ts';

const json = async ({ admin }: Guard, path: string) => JSON.parse(await admin(path));
const OPTIONS = { session: 'secret-session', token: 'secret-token' } as const;

describe('/api/sessions', () => {
  test('shows generation, streams, open requests and the last decisions of a session', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    await openSession(client, upstream, OPTIONS.session, { token: OPTIONS.token });
    await finishedPost(client, upstream, 1, OPTIONS, priming('secret-e1'), block({ id: 'secret-e2', data: result(1) }));
    await postStream(client, upstream, 2, OPTIONS, priming('secret-f1'));
    assert.equal(await fateOf(client, upstream, { ...OPTIONS, lei: 'secret-e2' }), 'stripped');
    await eventually('the decision', async () => {
      const { sessions } = await json(guard, '/api/sessions');
      return sessions[0]?.lastDecisions.length === 1;
    });
    const { total, sessions } = await json(guard, '/api/sessions');
    const [{ session, lastDecisions, bytes, ...rest }] = sessions;
    assert.equal(total, 1);
    assert.match(session, /^[0-9a-f]{12}$/);
    assert.ok(bytes > 0);
    assert.deepEqual(rest, { route: '*/', generation: 1, ended: false, streams: 2, openRequests: 1, listening: 0 });
    assert.deepEqual([lastDecisions[0].rule, lastDecisions[0].verdict], ['finished', 'strip']);
    await openSession(client, upstream, OPTIONS.session, { token: OPTIONS.token });
    assert.equal((await json(guard, '/api/sessions')).sessions[0].generation, 2);
  });

  test('shows the session used last first, a hundred a page', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    for (let i = 0; i < 101; i++) await openSession(client, upstream, `s-${i}`);
    const [first, second] = [await json(guard, '/api/sessions'), await json(guard, '/api/sessions?page=1')];
    assert.deepEqual([first.total, first.pages, first.sessions.length, second.sessions.length], [101, 2, 100, 1]);
    const latest = first.sessions[0].session;
    await openSession(client, upstream, 's-0');
    assert.equal((await json(guard, '/api/sessions')).sessions[0].session, second.sessions[0].session);
    assert.notEqual(latest, second.sessions[0].session);
  });
});

test('no page shows a session ID, a cursor or a credential', async (t) => {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  await openSession(client, upstream, OPTIONS.session, { token: OPTIONS.token });
  await cutPost(client, upstream, 2, OPTIONS, priming('secret-f1'));
  upstream.handle((exchange) => answerEmpty(exchange));
  await (await client.get({ ...OPTIONS, lei: 'secret-f1' })).text();
  const { decisions } = await json(guard, '/api/decisions');
  assert.match(decisions[0].session, /^[0-9a-f]{12}$/);
  for (const path of [
    '/api/overview',
    '/api/config',
    '/api/sessions',
    '/api/decisions',
    `/api/decisions?session=${decisions[0].session}`,
    '/metrics',
  ]) {
    assert.doesNotMatch(await guard.admin(path), /secret/, path);
  }
});

test('decisions come live', async (t) => {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1');
  const live = await fetch(`${guard.proxy.adminUrl}/api/decisions`, { headers: { Accept: 'text/event-stream' } });
  const reader = live.body!.pipeThrough(new TextDecoderStream()).getReader();
  await fateOf(client, upstream, { session: 's-1', lei: 'unknown' });
  const { value = '' } = await within('the decision', reader.read());
  assert.match(value, /^id: \d+\ndata: \{.*"rule":"cursor-unrecorded".*\}\n\n$/);
  await reader.cancel();
});

describe('/api/config', () => {
  test('is what is in force, also after a reload', async (t) => {
    const guard = await startGuard(t, { file: { mode: 'observe' } });
    const before = await json(guard, '/api/config');
    assert.deepEqual([before.mode, before.replayHold, before.routes[0].upstream], ['observe', 200, guard.upstream.url]);
    guard.proxy.reload(configFrom({ upstream: { url: `${guard.upstream.url}/mcp` }, mode: 'enforce' }));
    assert.equal((await json(guard, '/api/config')).mode, 'enforce');
  });

  test('masks secrets', async (t) => {
    const guard = await startGuard(t, { file: { admin: { listen: '127.0.0.1:0', token: 'secret-token' } } });
    const text = await guard.admin('/api/config');
    assert.doesNotMatch(text, /secret/);
    assert.equal(JSON.parse(text).admin.token, '***');
  });
});

describe('Host and Origin on a loopback address', () => {
  for (const [headers, status] of [
    [{}, 200],
    [{ Origin: 'http://localhost:5173' }, 200],
    [{ Origin: 'https://evil.example' }, 403],
    [{ Origin: 'null' }, 403],
  ] as const) {
    test(`${JSON.stringify(headers)} is ${status}`, async (t) => {
      const guard = await startGuard(t);
      assert.equal((await fetch(`${guard.proxy.adminUrl}/livez`, { headers })).status, status);
    });
  }
});

describe('/readyz', () => {
  test('stays ready while the server is down, and says so', async (t) => {
    const guard = await startGuard(t);
    await guard.upstream.kill();
    await (await guard.client.post(1)).text();
    const response = await fetch(`${guard.proxy.adminUrl}/readyz`);
    assert.equal(response.status, 200);
    assert.deepEqual(await response.json(), {
      status: 'ready',
      reasons: [`${guard.upstream.url} refuses connections`],
    });
    await guard.upstream.restart();
  });

  test('fails while draining, while /livez does not', async (t) => {
    const guard = await startGuard(t, { file: { drainTimeout: '10s' } });
    const { client, upstream, proxy } = guard;
    const { exchange, reply } = await postStream(client, upstream, 1, {}, priming('e1'));
    assert.equal((await fetch(`${proxy.adminUrl}/readyz`)).status, 200);
    const closed = proxy.close();
    const response = await fetch(`${proxy.adminUrl}/readyz`);
    assert.deepEqual([response.status, await response.json()], [503, { status: 'not ready', reasons: ['draining'] }]);
    assert.equal((await fetch(`${proxy.adminUrl}/livez`)).status, 200);
    await exchange.end(block({ id: 'e2', data: result(1) }));
    assert.equal(await reply.ended, 'end');
    await within('the proxy to close', closed);
    await assert.rejects(fetch(`${proxy.adminUrl}/livez`), 'the admin listener ends last');
  });
});

test('the default port of the admin listener may be taken; one that was chosen may not', async (t) => {
  const quiet = createLogger({ level: 'silent', format: 'json' }, { write: () => {} });
  const guard = await startGuard(t);
  const taken = new URL(guard.proxy.adminUrl!).host;
  const config = configFrom({ upstream: { url: guard.upstream.url }, listen: '127.0.0.1:0', admin: { listen: taken } });
  await assert.rejects(startProxy(config, { logger: quiet }), { code: 'address-unavailable' });
  const free = await startProxy({ ...config, admin: { ...config.admin, isDefault: true } }, { logger: quiet });
  t.after(() => free.close());
  assert.notEqual(new URL(free.adminUrl!).host, taken);
  assert.equal((await fetch(`${free.adminUrl}/livez`)).status, 200);
});
