// Public cases, family 3: restarts, sessions and IDs that survive them, status codes taken for what they are not.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startGuard } from '../support/guard.ts';
import { block, error, initializeResult, priming, progress, result } from '../support/messages.ts';
import {
  cutPost,
  failureOf,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  postStream,
  refusalOf,
} from '../support/session.ts';

test('B27 a 400 for a dead session passes and ends nothing', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  const body = error(null, -32000, 'Bad Request: No valid session ID provided');
  const reply = await client.post(2, { session });
  await (await upstream.next()).json(400, body);
  assert.equal((await reply.head).status, 400);
  assert.equal(await reply.text(), body);
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
});

test('B27 a 404 for a dead session passes and ends it: a resume is then refused from memory', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  const body = error(null, -32001, 'Session not found');
  const reply = await client.post(2, { session });
  await (await upstream.next()).json(404, body);
  assert.equal((await reply.head).status, 404);
  assert.equal(await reply.text(), body);
  assert.deepEqual(await refusalOf(await client.get({ session, lei: 'e2' })), {
    status: 404,
    rule: 'session-ended',
    retry: 'session',
    proxyStatus: 'mcp-resume-guard; details="session-ended"',
  });
});

test('B27 a 404 that says the method is unknown ends nothing', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  const reply = await client.post(2, { session });
  await (await upstream.next()).json(404, error(2, -32601, 'Method not found'));
  await reply.bytes();
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
});

test('B28 a 404 to a GET is not the loss of the session', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  await cutPost(client, upstream, 2, { session }, priming('f1'));
  for (const lei of [undefined, 'f1']) {
    const { reply, exchange } = await forwardedGet(client, upstream, {
      session,
      ...(lei === undefined ? {} : { lei }),
    });
    await exchange.json(404, '{"error":"Not Found"}');
    assert.equal((await reply.head).status, 404);
    assert.equal(await reply.text(), '{"error":"Not Found"}');
  }
  await finishedPost(client, upstream, 3, { session }, block({ id: 'g2', data: result(3) }));
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
  assert.equal(await fateOf(client, upstream, { session, lei: 'f1' }), 'forwarded f1');
});

test('B31 an initialize that hands out the old session ID again starts a new generation', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, priming('1'), block({ id: '2', data: result(1) }));

  const stale = await client.initialize({ session });
  const exchange = await upstream.next();
  assert.equal(exchange.field('mcp-session-id'), session, 'the stale ID passes as sent');
  await exchange.json(200, initializeResult(), { 'Mcp-Session-Id': session });
  await stale.bytes();
  assert.deepEqual(await refusalOf(await client.get({ session, lei: '2' })), {
    status: 409,
    rule: 'generation-mismatch',
    retry: 'session',
    proxyStatus: 'mcp-resume-guard; details="generation-mismatch"',
  });

  await cutPost(client, upstream, 1, { session }, priming('1'), block({ id: '2', data: progress(1) }));
  assert.equal(await fateOf(client, upstream, { session, lei: '2' }), 'forwarded 2');
});

test('B32 replicas that answer in turn: every answer and cookie passes, open streams are still read', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const open = await postStream(client, upstream, 1, { session }, priming('a1'));
  const cookies = ['lb=one; Path=/', 'lb2=two; HttpOnly'];
  for (const status of [200, 404, 200, 404]) {
    const reply = await client.post(2, { session, fields: [['Cookie', 'lb=zero; x=y']] });
    const exchange = await upstream.next();
    assert.equal(exchange.field('cookie'), 'lb=zero; x=y');
    const body = status === 200 ? result(2) : error(null, -32001, 'Session not found');
    await exchange.json(
      status,
      body,
      cookies.map((cookie) => ['Set-Cookie', cookie] as const),
    );
    const head = await reply.head;
    assert.equal(head.status, status);
    assert.deepEqual(head.values('set-cookie'), cookies);
    assert.equal(await reply.text(), body);
  }
  await open.exchange.write(block({ id: 'a2', data: result(1) }));
  await open.exchange.end();
  assert.equal(await open.reply.text(), priming('a1') + block({ id: 'a2', data: result(1) }));
  assert.equal(await fateOf(client, upstream, { session, lei: 'a2' }), 'refused 404 session-ended');
  await finishedPost(client, upstream, 3, { session }, block({ id: 'b2', data: result(3) }));
  assert.equal(await fateOf(client, upstream, { session, lei: 'a2' }), 'stripped', 'a 2xx revives the session');
});

test('B33 without a session ID the completion of one client does not touch another one', async (t) => {
  const { client, upstream } = await startGuard(t);
  await finishedPost(client, upstream, 1, {}, block({ id: '1', data: result(1) }));
  await cutPost(client, upstream, 1, {}, block({ id: '1', data: progress(1) }));
  assert.equal(await fateOf(client, upstream, { lei: '1' }), 'forwarded 1', 'one owner is open');
});

test('B33 without a session ID other credentials are another client', async (t) => {
  const { client, upstream } = await startGuard(t);
  await finishedPost(client, upstream, 1, { token: 'one' }, block({ id: '1', data: result(1) }));
  assert.equal(await fateOf(client, upstream, { token: 'two', lei: '1' }), 'forwarded 1');
  assert.equal(await fateOf(client, upstream, { token: 'one', lei: '1' }), 'stripped');
});

test('B34 a crash cuts every stream at once, the gap is 502, and service resumes by itself', async (t) => {
  const { client, upstream } = await startGuard(t, { upstreamFile: { durableEvents: true } });
  const session = await openSession(client, upstream, 's-1');
  const streams = [];
  for (const id of [1, 2, 3]) streams.push(await postStream(client, upstream, id, { session }, priming(`e${id}`)));
  await upstream.kill();
  for (const { reply } of streams) assert.equal(await reply.endedWithin(1_000), 'cut');

  const before = upstream.requests.length;
  for (const id of [1, 2, 3]) {
    assert.equal(await failureOf(await client.get({ session, lei: `e${id}` })), 502);
    assert.equal(await failureOf(await client.post(10 + id, { session })), 502);
  }
  await upstream.restart();
  assert.equal(await fateOf(client, upstream, { session, lei: 'e1' }), 'forwarded e1');
  await finishedPost(client, upstream, 20, { session }, block({ id: 'z', data: result(20) }));
  assert.equal(upstream.requests.length - before, 2, 'nothing of the gap is sent late');
});

test('B34 after a crash a cursor from before it is of an earlier generation', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 1, { session }, priming('e1'));
  await upstream.kill();
  assert.equal(await failureOf(await client.get({ session, lei: 'e1' })), 502);
  await upstream.restart();
  await finishedPost(client, upstream, 2, { session }, block({ id: 'z', data: result(2) }));
  assert.equal(await fateOf(client, upstream, { session, lei: 'e1' }), 'refused 409 generation-mismatch');
  assert.equal(await fateOf(client, upstream, { session, lei: 'z' }), 'stripped');
});

test('B35 a malformed body on a 404 passes as it is', async (t) => {
  const { client, upstream, warnings } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  for (const body of ['{"jsonrpc":"2.0","id":1}', '{"jsonrpc":', '', '[]', 'null']) {
    const reply = await client.post(1, { session });
    await (await upstream.next()).json(404, body);
    assert.equal((await reply.head).status, 404);
    assert.equal(await reply.text(), body);
  }
  await finishedPost(client, upstream, 2, { session }, block({ id: 'z', data: result(2) }));
  assert.deepEqual(warnings(), []);
});
