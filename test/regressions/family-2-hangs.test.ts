// Public cases, family 2: hanging resumes and lost final results.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startGuard } from '../support/guard.ts';
import { block, notification, priming, progress, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  failureOf,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  postStream,
  refusalOf,
} from '../support/session.ts';
import { pause } from '../support/waiting.ts';

test('B15 a silent resume gets its head after replayHold and is then left alone until the client goes', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { replayHold: '200ms' } });
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
  const answered = performance.now();
  await exchange.events();
  const head = await reply.head;
  assert.equal(head.status, 200);
  const held = head.at - answered;
  assert.ok(held > 150 && held < 1_000, `held for ${held} ms`);
  await reply.quiet(1_000);
  reply.destroy();
  await exchange.left(1_000);
});

test('B16 a resume that carries only comments passes them one by one and is no empty replay', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { replayHold: '100ms' } });
  const session = await openSession(client, upstream, 's-1');
  const cursor = '_GET_stream_17_ab';
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: cursor });
  assert.equal(exchange.field('last-event-id'), cursor, 'an ID is opaque');
  await exchange.events(': keepalive\n\n');
  assert.equal((await reply.head).status, 200);
  await reply.until(': keepalive\n\n');
  for (let beat = 0; beat < 5; beat += 1) {
    const before = reply.body.length;
    await exchange.write(`: beat ${beat}\n\n`);
    await reply.until(`: beat ${beat}\n\n`, 1_000);
    assert.equal(reply.body.length - before, `: beat ${beat}\n\n`.length);
  }
  assert.equal(reply.ending, undefined);
});

test('B17 a client that left before the result is forwarded, and the empty answer becomes a 409', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const { reply, exchange } = await postStream(client, upstream, 6, { session }, priming('e1'));
  reply.destroy();
  // Whether the result still reaches the proxy depends on who is faster; the client has it in neither case.
  await exchange.writeEach([block({ id: 'e2', data: result(6) })]).catch(() => {});
  await exchange.end().catch(() => {});

  const resumed = await forwardedGet(client, upstream, { session, lei: 'e1' });
  assert.equal(resumed.exchange.field('last-event-id'), 'e1');
  await answerEmpty(resumed.exchange);
  const { status, rule } = await refusalOf(resumed.reply);
  assert.deepEqual({ status, rule }, { status: 409, rule: 'empty-replay' });
});

test('B17 a client that resets in the instant of the end is not taken to have the result', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const { reply, exchange } = await postStream(client, upstream, 6, { session }, priming('e1'));
  reply.pause();
  await exchange.writeEach([block({ id: 'e2', data: result(6) })]);
  await exchange.end();
  reply.reset();
  const resumed = await forwardedGet(client, upstream, { session, lei: 'e1' });
  assert.equal(resumed.exchange.field('last-event-id'), 'e1');
  const replay = block({ id: 'e2', data: result(6) });
  await resumed.exchange.events(replay);
  await resumed.exchange.end();
  assert.equal(await resumed.reply.text(), replay, 'what was never delivered is no duplicate');
});

test('B17 an undelivered result whose replay stays silent is a 409 after replayDeadline', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { replayHold: '50ms', replayDeadline: '400ms' } });
  const session = await openSession(client, upstream, 's-1');
  const { reply, exchange } = await postStream(client, upstream, 6, { session }, priming('e1'));
  reply.pause();
  await exchange.writeEach([block({ id: 'e2', data: result(6) })]);
  await exchange.end();
  // The proxy has to have read the end, and the client has to leave within 100 ms of it.
  await pause(30);
  reply.reset();
  await pause(30);
  const asked = performance.now();
  const resumed = await forwardedGet(client, upstream, { session, lei: 'e1' });
  await resumed.exchange.events();
  const { status, rule } = await refusalOf(resumed.reply);
  assert.deepEqual({ status, rule }, { status: 409, rule: 'empty-replay' });
  const waited = performance.now() - asked;
  assert.ok(waited > 350 && waited < 1_500, `waited ${waited} ms`);
  await resumed.exchange.left();
});

test('B19 events without IDs pass as they are: no priming is added, and no cursor from memory', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const { reply } = await cutPost(client, upstream, 9, { session }, block({ data: progress(9) }));
  assert.equal(reply.body.toString(), block({ data: progress(9) }));
  const plain = await forwardedGet(client, upstream, { session });
  assert.deepEqual(plain.exchange.values('last-event-id'), []);
});

test('B21 a POST stream that ends without an answer ends as it did, and its cursor is still forwarded', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const primed = await finishedPost(client, upstream, 5, { session }, priming('e1'));
  assert.equal(await primed.reply.text(), priming('e1'));
  assert.equal(await fateOf(client, upstream, { session, lei: 'e1' }), 'forwarded e1');
});

test('B21 a POST stream without any block passes: a POST is never rewritten', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const { reply } = await finishedPost(client, upstream, 5, { session });
  assert.equal((await reply.head).status, 200);
  assert.equal((await reply.bytes()).length, 0);
});

test('B25 the stream of a cancelled request stays open, and its cursor is forwarded', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const { reply, exchange } = await postStream(client, upstream, 11, { session }, priming('e1'));
  const cancel = await client.post({ body: notification('notifications/cancelled', { requestId: 11 }) }, { session });
  await (await upstream.next({ method: 'POST' })).answer(202);
  assert.equal((await cancel.head).status, 202);
  for (let beat = 0; beat < 3; beat += 1) {
    await exchange.write(`: beat ${beat}\n\n`);
    await reply.until(`: beat ${beat}\n\n`);
  }
  await reply.quiet(300);
  reply.destroy();
  await exchange.left(1_000);
  assert.equal(await fateOf(client, upstream, { session, lei: 'e1' }), 'forwarded e1');
});

test('B26 an upstream that cuts a silent call ends in a destroyed connection, promptly', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  for (const how of ['cut', 'reset'] as const) {
    const { reply, exchange } = await postStream(client, upstream, 3, { session });
    await reply.quiet(300);
    exchange[how]();
    assert.equal(await reply.endedWithin(1_000), 'cut');
    assert.equal(reply.body.length, 0, 'nothing is appended');
  }
});

test('B26 an upstream that cuts before its head is a 502', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const reply = await client.post(3, { session });
  (await upstream.next()).cut();
  assert.equal(await failureOf(reply), 502);
  assert.equal(upstream.requests.filter(({ method }) => method === 'POST').length, 2, 'no request is sent twice');
});
