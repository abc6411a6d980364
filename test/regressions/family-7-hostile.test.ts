// Public cases, family 7: leaks between sessions and hostile input.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { Connection } from '../support/connection.ts';
import type { Exchange } from '../support/exchange.ts';
import { type Guard, type GuardOptions, startGuard } from '../support/guard.ts';
import { block, initializeResult, priming, progress, result } from '../support/messages.ts';
import { cutPost, failureOf, fateOf, finishedPost, forwardedGet, openSession } from '../support/session.ts';
import { eventually } from '../support/waiting.ts';

test('B87 a token that was refreshed does not lose what is known of the session', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1', { token: 'first' });
  await finishedPost(
    client,
    upstream,
    1,
    { session, token: 'first' },
    priming('e1'),
    block({ id: 'e2', data: result(1) }),
  );
  const { reply, exchange } = await forwardedGet(client, upstream, { session, token: 'second', lei: 'e2' });
  assert.deepEqual(exchange.values('last-event-id'), []);
  assert.equal(exchange.field('authorization'), 'Bearer second');
  await exchange.events(block({ data: progress(1) }));
  await reply.head;
});

test('B87 a caller whom upstream has not approved is refused nothing from memory', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1', { token: 'first' });
  const ended = await client.delete({ session, token: 'first' });
  await (await upstream.next()).answer(200);
  await ended.bytes();
  assert.equal(await fateOf(client, upstream, { session, token: 'first', lei: 'e2' }), 'refused 404 session-ended');
  assert.equal(await fateOf(client, upstream, { session, token: 'other', lei: 'e2' }), 'forwarded e2');
});

test('B87 tokens, cookies, session IDs and cursors appear in no log line, metric or page', async (t) => {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  const secrets = ['token-Q7', 'cookie-Q7', 'session-Q7', 'cursor-Q7a', 'cursor-Q7b', 'query-Q7'];
  const options = { token: 'token-Q7', fields: { Cookie: 'sid=cookie-Q7' } };
  const session = await openSession(client, upstream, 'session-Q7', options);
  const own = { ...options, session, path: '/mcp?key=query-Q7' };
  await cutPost(client, upstream, 1, own, priming('cursor-Q7a'));
  await finishedPost(client, upstream, 2, own, block({ id: 'cursor-Q7b', data: result(2) }));
  assert.equal(await fateOf(client, upstream, { ...own, lei: 'cursor-Q7a' }), 'forwarded cursor-Q7a');
  assert.equal(await fateOf(client, upstream, { ...own, lei: 'cursor-Q7b' }), 'stripped');
  const reply = await client.get({ ...own, lei: 'cursor-Q7a' });
  (await upstream.next()).reset();
  await reply.ended;
  const pages = await Promise.all(['/metrics', '/api/sessions', '/api/decisions', '/'].map(guard.admin));
  const shown = [JSON.stringify(guard.logs), ...pages];
  assert.ok(guard.logs.length > 4, 'there is something to search');
  for (const secret of secrets) {
    for (const text of shown) assert.ok(!text.includes(secret), `${secret} in ${text.slice(0, 500)}`);
  }
});

test('B88 forged cursors go up as sent, a reset is a 502, and nothing is remembered of them', async (t) => {
  const { client, upstream, metric } = await startGuard(t);
  await openSession(client, upstream, 's-1');
  const sessions = await metric('sessions');
  const forged = [
    '999999',
    'a'.repeat(8 * 1024),
    '../x',
    '%2e%2e%00%0a',
    '\u0080\u00c3\u00bf\u00ff',
    '"',
    '=?base64?4pyT?=',
    '-1',
    '__proto__',
  ];
  for (const session of ['s-1', 'never-seen']) {
    for (const lei of forged) {
      const { reply, exchange } = await forwardedGet(client, upstream, { session, lei });
      assert.deepEqual(exchange.values('last-event-id'), [lei]);
      exchange.reset();
      assert.equal(await failureOf(reply), 502);
    }
  }
  assert.equal(await metric('sessions'), sessions);
});

/** Answers a POST in full: `initialize` with the session of its query, anything else with events and a result. */
async function serve(exchange: Exchange): Promise<void> {
  if (exchange.method === 'DELETE') return exchange.answer(200);
  if (exchange.method === 'GET') return exchange.answer(405, { Allow: 'POST' });
  const { id, method } = JSON.parse(exchange.text);
  if (method === 'initialize') {
    return exchange.json(200, initializeResult(id), { 'Mcp-Session-Id': exchange.field('x-want-session') ?? '' });
  }
  const long = exchange.field('x-long-ids') === undefined ? '' : 'L'.repeat(4_096);
  const events = [1, 2, 3, 4].map((n) => block({ id: `${id}-${n}${long}`, data: progress(id, n) }));
  await exchange.head(200, { 'Content-Type': 'text/event-stream' });
  await exchange.writeEach([...events, block({ id: `${id}-5${long}`, data: result(id) })]);
  return exchange.end();
}

/** Runs `count` jobs, each on one of eight connections that stay open. */
async function onEight(guard: Guard, count: number, job: (n: number, on: Connection) => Promise<void>): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    const on = await guard.client.connect();
    for (let n = next; n < count; n = next) {
      next += 1;
      await job(n, on);
    }
    on.destroy();
  };
  await Promise.all(Array.from({ length: 8 }, worker));
}

function boundedGuard(t: TestContext, bounds: NonNullable<GuardOptions['file']>['bounds'] & {}): Promise<Guard> {
  return startGuard(t, { handler: serve, file: { bounds, log: { level: 'warn' } } });
}

async function resumeStatus(
  guard: Guard,
  session: string,
  lei: string,
): Promise<{ status: number; seen: string | undefined }> {
  const before = guard.upstream.requests.length;
  const reply = await guard.client.get({ session, lei });
  const { status } = await reply.head;
  await reply.bytes();
  return { status, seen: guard.upstream.requests[before]?.field('last-event-id') };
}

test('B90 a session of very many requests stays within its bounds, and what was forgotten is forwarded', async (t) => {
  const guard = await boundedGuard(t, { streamsPerSession: 100 });
  const session = 'many-requests';
  await onEight(guard, 1_500, async (id, on) => {
    const reply = await guard.client.post(id, { session, on });
    await reply.bytes();
  });
  assert.deepEqual(
    await resumeStatus(guard, session, '1499-5'),
    { status: 405, seen: undefined },
    'the newest is known',
  );
  assert.deepEqual(await resumeStatus(guard, session, '0-5'), { status: 405, seen: '0-5' }, 'the oldest is forgotten');
});

test('B90 very many sessions stay within their bound, the newest are known, the oldest forwarded', async (t) => {
  const guard = await boundedGuard(t, { sessions: 100 });
  await onEight(guard, 1_000, async (n, on) => {
    const opened = await guard.client.initialize({ on, fields: { 'X-Want-Session': `s-${n}` } });
    await opened.bytes();
    const reply = await guard.client.post(1, { on, session: `s-${n}` });
    await reply.bytes();
  });
  assert.ok((await guard.metric('sessions')) <= 100);
  assert.deepEqual(await resumeStatus(guard, 's-999', '1-5'), { status: 405, seen: undefined });
  assert.deepEqual(await resumeStatus(guard, 's-0', '1-5'), { status: 405, seen: '1-5' });
});

test('B90 the memory of the whole ledger is bounded', async (t) => {
  const guard = await boundedGuard(t, { memory: '256KiB' });
  await onEight(guard, 1_500, async (n, on) => {
    const reply = await guard.client.post(n, { on, session: `s-${Math.floor(n / 30)}` });
    await reply.bytes();
  });
  // The bound is for all fifty sessions together; those not used for longest go whole.
  await eventually('sessions to be forgotten', async () => (await guard.metric('sessions')) < 25, 10_000);
  assert.deepEqual(await resumeStatus(guard, 's-49', '1499-5'), { status: 405, seen: undefined });
  assert.deepEqual(await resumeStatus(guard, 's-0', '0-5'), { status: 405, seen: '0-5' });
});

test('B90 event IDs of 4 KiB are cursors like any other', async (t) => {
  const guard = await boundedGuard(t, {});
  await onEight(guard, 200, async (id, on) => {
    const reply = await guard.client.post(id, { session: 's-long', on, fields: { 'X-Long-Ids': '1' } });
    await reply.bytes();
  });
  const long = 'L'.repeat(4_096);
  assert.deepEqual(await resumeStatus(guard, 's-long', `150-5${long}`), { status: 405, seen: undefined });
  assert.deepEqual(await resumeStatus(guard, 's-long', `150-6${long}`), { status: 405, seen: `150-6${long}` });
});

test('B90 a DELETE ends its session: a resume after it is a 404', async (t) => {
  const guard = await boundedGuard(t, {});
  await (await guard.client.initialize({ fields: { 'X-Want-Session': 's-1' } })).bytes();
  await (await guard.client.post(1, { session: 's-1' })).bytes();
  const gone = await guard.client.delete({ session: 's-1' });
  assert.equal((await gone.head).status, 200);
  await gone.bytes();
  assert.equal(await fateOf(guard.client, guard.upstream, { session: 's-1', lei: '1-5' }), 'refused 404 session-ended');
});
