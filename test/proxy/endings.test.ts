// Endings of a session: what ends one, what revives it, and how long it is remembered.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, error, initializeResult, priming, result } from '../support/messages.ts';
import { cutPost, fateOf, openSession, type Pair, postStream } from '../support/session.ts';
import { startTimedGuard } from '../support/timed-guard.ts';
import { eventually } from '../support/waiting.ts';

const SESSION = { session: 's-1' } as const;
const OLD = { ...SESSION, lei: 'e1' } as const;

/** A guard whose session has an open request with the cursor `e1`. */
async function start(t: TestContext): Promise<Guard> {
  const guard = await startGuard(t);
  await openSession(guard.client, guard.upstream, 's-1');
  await cutPost(guard.client, guard.upstream, 1, SESSION, priming('e1'));
  return guard;
}

const fate = ({ client, upstream }: Guard, options: Parameters<typeof fateOf>[2] = OLD) =>
  fateOf(client, upstream, options);

const RETURNS = [['Mcp-Session-Id', 's-1']] as const;

async function call({ client, upstream }: Guard, answer: (exchange: Pair['exchange']) => Promise<void>): Promise<void> {
  const reply = await client.post(9, SESSION);
  await answer(await upstream.next({ method: 'POST' }));
  await reply.bytes();
}

const ENDED = 'refused 404 session-ended';

test('a DELETE that upstream answers 2xx ends the session; any other answer does not', async (t) => {
  for (const [status, wanted] of [
    [200, ENDED],
    [202, ENDED],
    [204, ENDED],
    [400, 'forwarded e1'],
    [405, 'forwarded e1'],
    [500, 'forwarded e1'],
  ] as const) {
    const guard = await start(t);
    const reply = await guard.client.delete(SESSION);
    await (await guard.upstream.next({ method: 'DELETE' })).answer(status);
    assert.equal((await reply.head).status, status);
    await reply.ended;
    assert.equal(await fate(guard), wanted, `${status}`);
  }
});

test('a 404 to a POST or DELETE of an approved caller ends the session, one that says -32601 or goes to a stranger does not', async (t) => {
  const notFound = error(null, -32001, 'Session not found');
  const rows = [
    ['POST', 'mine', notFound, ENDED],
    ['POST', 'mine', '', ENDED],
    ['POST', 'mine', '<html>', ENDED],
    ['DELETE', 'mine', notFound, ENDED],
    ['POST', 'mine', error(1, -32601, 'Method not found'), 'forwarded e1'],
    ['DELETE', 'mine', error(null, -32601, 'Method not found'), 'forwarded e1'],
    ['POST', 'strange', notFound, 'forwarded e1'],
    ['DELETE', 'strange', notFound, 'forwarded e1'],
    ['GET', 'mine', notFound, 'forwarded e1'],
  ] as const;
  for (const [method, token, body, wanted] of rows) {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    const mine = { session: 's-1', token: 'mine' };
    await openSession(client, upstream, 's-1', mine);
    await cutPost(client, upstream, 1, mine, priming('e1'));
    const options = { session: 's-1', token };
    const reply = await (method === 'POST'
      ? client.post(2, options)
      : method === 'GET'
        ? client.get(options)
        : client.delete(options));
    await (await upstream.next({ method })).json(404, body);
    assert.equal(await reply.text(), body);
    assert.equal(await fate(guard, { ...mine, lei: 'e1' }), wanted, `${method} ${token} ${body}`);
  }
});

test('any later 2xx in an ended session revives it', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  const end = async (): Promise<void> => {
    const reply = await client.post(2, SESSION);
    await (await upstream.next({ method: 'POST' })).json(404, '');
    await reply.ended;
    assert.equal(await fate(guard), ENDED);
  };
  await end();
  await call(guard, (exchange) => exchange.answer(202));
  assert.equal(await fate(guard), 'forwarded e1');
  await end();
  const listening = await client.get(SESSION);
  await (await upstream.next({ method: 'GET' })).events();
  await listening.head;
  assert.equal(await fate(guard), 'forwarded e1');
});

test('an initialize revives an ended session as a new generation, and one that fails does not', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  const deleted = await client.delete(SESSION);
  await (await upstream.next({ method: 'DELETE' })).answer(200);
  await deleted.ended;
  for (const [answer, generations] of [
    [error(0), 0],
    [initializeResult(), 1],
  ] as const) {
    const reply = await client.initialize();
    await (await upstream.next({ method: 'POST' })).json(200, answer, RETURNS);
    await reply.ended;
    const isEnded = (await fate(guard)) === ENDED;
    assert.equal(isEnded, generations === 0);
    assert.equal(await guard.metric('generations_total', { cause: 'initialize' }), generations);
  }
});

test('a stream that is open goes on being read after the session ended', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  const { reply, exchange } = await postStream(client, upstream, 2, SESSION, priming('f1'));
  const deleted = await client.delete(SESSION);
  await (await upstream.next({ method: 'DELETE' })).answer(200);
  await deleted.ended;
  await exchange.end(block({ id: 'f2', data: result(2) }));
  assert.match(await reply.text(), /"id":2/);
  assert.equal(await fate(guard, { ...SESSION, lei: 'f2' }), ENDED);
  await call(guard, (answered) => answered.answer(202));
  assert.equal(await fate(guard, { ...SESSION, lei: 'f2' }), 'stripped', 'its result was recorded');
});

test('an ended session is remembered for sessionMemory and then forgotten', async (t) => {
  const { client, upstream, clock } = await startTimedGuard(t);
  await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 1, SESSION, priming('e1'));
  const reply = await client.delete(SESSION);
  await (await upstream.next({ method: 'DELETE' })).answer(200);
  await reply.ended;
  clock.advance(599_999);
  assert.equal(await fateOf(client, upstream, OLD), ENDED);
  clock.advance(1);
  assert.equal(await fateOf(client, upstream, OLD), 'forwarded e1');
});

test('a session is learnt from a 2xx only', async (t) => {
  const { client, upstream, metric } = await startGuard(t);
  for (const status of [400, 401, 404, 500]) {
    const reply = await client.post(1, SESSION);
    await (await upstream.next()).json(status, '{}', RETURNS);
    await reply.bytes();
  }
  assert.equal(await metric('sessions'), 0);
  const reply = await client.post(1, SESSION);
  await (await upstream.next()).json(200, result(1));
  await reply.bytes();
  await eventually('the session to be known', async () => (await metric('sessions')) === 1);
});
