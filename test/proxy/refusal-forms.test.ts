// The forms of a refusal: the event that fails the pending request, and which client gets which form.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { block, priming, progress, request, result } from '../support/messages.ts';
import { DONE, emptyReplay, listen, NAME, OPEN, SESSION, startRefusing, WAYS } from '../support/refusal-ways.ts';
import type { Reply } from '../support/reply.ts';
import { cutPost, fateOf, finishedPost, forwardedGet, openSession, refusalOf } from '../support/session.ts';
import { startTimedGuard } from '../support/timed-guard.ts';

const VERSION = '2025-11-25';
const GO = { 'User-Agent': 'Go-http-client/1.1' } as const;

/** Reads a refusal in the event form and returns its message and its event ID. */
async function eventOf(
  reply: Reply,
): Promise<{ id: unknown; rule: string; retry: string; minted: string; raw: string }> {
  const head = await reply.head;
  const text = await reply.text();
  assert.deepEqual(
    [head.status, head.field('content-type'), head.field('cache-control')],
    [200, 'text/event-stream', 'no-store'],
  );
  const [, minted = '', data = ''] = /^event: message\nid: (\S+)\ndata: (.*)\n\n$/.exec(text) ?? [];
  assert.notEqual(data, '', text);
  const { jsonrpc, id, error, ...others } = JSON.parse(data);
  assert.deepEqual([jsonrpc, error.code, others], ['2.0', -32010, {}]);
  return { id, rule: error.data.rule, retry: error.data.retry, minted, raw: data };
}

test('refuseWith: event fails the pending request with its exact id', async (t) => {
  for (const id of [7, 'a "b" \u00e9', '7', 0]) {
    const guard = await startTimedGuard(t, { refuseWith: 'event' });
    await openSession(guard.client, guard.upstream, NAME);
    await cutPost(guard.client, guard.upstream, id, SESSION, priming(OPEN));
    const reply = await emptyReplay(guard, { ...SESSION, lei: OPEN });
    const event = await eventOf(reply);
    assert.deepEqual([event.id, event.rule, event.retry], [id, 'empty-replay', 'request']);
    const proxyStatus = (await reply.head).field('proxy-status');
    assert.equal(proxyStatus, 'mcp-resume-guard; received-status=200; details="empty-replay"');
  }
});

test('the pending request of an undelivered result that stays silent is the finished one', async (t) => {
  const file = { refuseWith: 'event', deliveryProof: 'event-id', replayDeadline: '100ms' } as const;
  const { client, upstream } = await startRefusing(t, { file });
  await finishedPost(client, upstream, 10, SESSION, priming('f1'), block({ id: 'f2', data: result(10) }));
  const { reply } = await forwardedGet(client, upstream, { ...SESSION, lei: 'f1' });
  const { id, rule } = await eventOf(reply);
  assert.deepEqual([id, rule], [10, 'empty-replay']);
});

test('an id beyond double precision is repeated digit by digit', async (t) => {
  const guard = await startTimedGuard(t, { refuseWith: 'event' });
  await openSession(guard.client, guard.upstream, NAME);
  const body = request(7).replace('"id":7', '"id":9007199254740993');
  await cutPost(guard.client, guard.upstream, { body }, SESSION, priming(OPEN));
  const { raw } = await eventOf(await emptyReplay(guard, { ...SESSION, lei: OPEN }));
  assert.match(raw, /"id":9007199254740993[,}]/);
});

test('where no single pending id is known the event form falls back to the status', async (t) => {
  const guard = await startRefusing(t, { file: { refuseWith: 'event' } });
  const { client, upstream } = guard;
  const body = `[${request(20)},${request(21)}]`;
  await cutPost(client, upstream, { body }, SESSION, priming('b1'));
  assert.equal((await refusalOf(await emptyReplay(guard, { ...SESSION, lei: 'b1' }))).status, 409);
  const standalone = await forwardedGet(client, upstream, SESSION);
  await standalone.exchange.events(block({ id: 'n1', data: progress(1) }));
  await standalone.exchange.end();
  await standalone.reply.bytes();
  assert.equal((await refusalOf(await emptyReplay(guard, { ...SESSION, lei: 'n1' }))).status, 409);
  assert.equal((await refusalOf(await emptyReplay(guard, { ...SESSION, lei: 'never-seen' }))).status, 409);

  await cutPost(
    client,
    upstream,
    { body: `[${request(30)},${request(31)}]` },
    SESSION,
    block({ id: 'c1', data: result(30) }),
  );
  assert.equal((await eventOf(await emptyReplay(guard, { ...SESSION, lei: 'c1' }))).id, 31, 'one of a batch is left');
});

test('an ID that we minted is known again, one that only looks like it is not', async (t) => {
  const guard = await startRefusing(t, { file: { refuseWith: 'event' } });
  const { client, upstream } = guard;
  const { minted } = await eventOf(await emptyReplay(guard, { ...SESSION, lei: OPEN }));
  assert.equal(await fateOf(client, upstream, { ...SESSION, lei: minted }), 'refused 405 minted-id');
  assert.equal(await fateOf(client, upstream, { lei: minted, token: 'stranger' }), 'refused 405 minted-id');
  const last = minted.at(-2) === 'A' ? 'B' : 'A';
  const forged = minted.slice(0, -2) + last + minted.at(-1);
  assert.equal(await fateOf(client, upstream, { ...SESSION, lei: forged }), `forwarded ${forged}`);
  const other = await startRefusing(t);
  assert.equal(await fateOf(other.client, other.upstream, { ...SESSION, lei: minted }), `forwarded ${minted}`);
});

test('refuseWith: status never takes the event form', async (t) => {
  const guard = await startRefusing(t, { file: { refuseWith: 'status' } });
  const options = { ...SESSION, version: VERSION, lei: OPEN };
  await refusalOf(await emptyReplay(guard, options));
  guard.clock.advance(5_000);
  await refusalOf(await emptyReplay(guard, options));
  await refusalOf(await guard.client.get({ ...options, fields: GO }));
});

// `auto`.

test('with a version, a refusal at least 800 ms after the first of its cursor takes the event form', async (t) => {
  const guard = await startRefusing(t);
  const { client, clock } = guard;
  const options = { ...SESSION, version: VERSION, lei: OPEN };
  assert.equal((await refusalOf(await emptyReplay(guard, options))).status, 409);
  clock.advance(799);
  assert.equal((await refusalOf(await emptyReplay(guard, options))).status, 409);
  clock.advance(1);
  const event = await eventOf(await client.get(options));
  assert.deepEqual([event.id, event.rule], [7, 'below-replay-floor'], 'also one from memory');
  assert.equal((await refusalOf(await client.get({ ...SESSION, lei: OPEN }))).status, 409, 'not without a version');
  clock.advance(60_000);
  assert.equal((await eventOf(await emptyReplay(guard, options))).rule, 'empty-replay');
});

test('after a replay the refusals of a cursor are counted anew, and each cursor has its own count', async (t) => {
  const guard = await startRefusing(t);
  const { client, upstream, clock } = guard;
  const options = { ...SESSION, version: VERSION, lei: OPEN };
  await refusalOf(await emptyReplay(guard, options));
  clock.advance(1_000);
  const { reply, exchange } = await forwardedGet(client, upstream, options);
  await exchange.events(priming('cursor-next-opaque'));
  await exchange.end();
  await reply.bytes();
  assert.equal((await refusalOf(await emptyReplay(guard, options))).status, 409);
  clock.advance(1_000);
  assert.equal((await refusalOf(await emptyReplay(guard, { ...options, lei: 'cursor-next-opaque' }))).status, 409);
  assert.equal((await eventOf(await emptyReplay(guard, options))).id, 7);
});

test('where no pending id is known, an escalated refusal stays a status', async (t) => {
  const guard = await startRefusing(t);
  await listen(guard, {});
  const options = { ...SESSION, version: VERSION, lei: DONE };
  for (let round = 0; round < 2; round += 1) {
    assert.equal((await refusalOf(await guard.client.get(options))).status, 409);
    guard.clock.advance(1_000);
  }
});

for (const agent of ['node', 'undici', 'Mozilla/5.0', 'node-fetch']) {
  const quiet = agent === 'node' || agent === 'undici';
  test(`finished-while-listening and finished-storm are ${quiet ? 405 : 409} toward ${agent}`, async (t) => {
    const options = { version: VERSION, fields: { 'User-Agent': agent } };
    for (const rule of ['finished-while-listening', 'finished-storm']) {
      const guard = await startRefusing(t, { options });
      const refusal = await refusalOf(await WAYS[rule]!.way(guard, options));
      assert.deepEqual([refusal.status, refusal.rule], [quiet ? 405 : 409, rule]);
    }
  });
}

test('without a version, with refuseWith: status, or under another rule Node gets what everybody gets', async (t) => {
  const fields = { 'User-Agent': 'node' };
  const unversioned = await startRefusing(t, { options: { fields } });
  assert.equal((await refusalOf(await WAYS['finished-while-listening']!.way(unversioned, { fields }))).status, 409);
  const options = { fields, version: VERSION };
  const status = await startRefusing(t, { file: { refuseWith: 'status' }, options });
  assert.equal((await refusalOf(await WAYS['finished-while-listening']!.way(status, options))).status, 409);
  const overridden = await startRefusing(t, { file: { refusals: { 'finished-while-listening': 410 } }, options });
  assert.equal((await refusalOf(await WAYS['finished-while-listening']!.way(overridden, options))).status, 410);
  const other = await startRefusing(t, { options });
  assert.equal((await refusalOf(await emptyReplay(other, { ...SESSION, ...options, lei: OPEN }))).status, 409);
});

test('the Go SDK gets the event form at once where there is a pending id', async (t) => {
  const options = { fields: GO, version: VERSION };
  const guard = await startRefusing(t, { options });
  const cursor = { ...SESSION, ...options, lei: OPEN };
  assert.deepEqual((await eventOf(await emptyReplay(guard, cursor))).id, 7);
  assert.deepEqual((await eventOf(await emptyReplay(guard, cursor))).id, 7);
  const { id, rule } = await eventOf(await guard.client.get(cursor));
  assert.deepEqual([id, rule], [7, 'below-replay-floor']);
});

test('where there is none, the Go SDK gets upstream’s own answer, and a refusal from memory is forwarded', async (t) => {
  const options = { fields: GO, version: VERSION };
  const guard = await startRefusing(t, { options });
  const { client, upstream, metric } = guard;
  const unknown = await emptyReplay(guard, { ...SESSION, ...options, lei: 'never-seen' });
  const head = await unknown.head;
  assert.deepEqual(
    [head.status, head.field('content-type'), head.field('proxy-status')],
    [200, 'text/event-stream', undefined],
  );
  assert.equal((await unknown.bytes()).length, 0);

  await listen(guard, options);
  const { reply, exchange } = await forwardedGet(client, upstream, { ...SESSION, ...options, lei: DONE });
  assert.equal(exchange.field('last-event-id'), DONE);
  await exchange.json(409, '{"error":"theirs"}');
  assert.equal(await reply.text(), '{"error":"theirs"}');
  assert.equal((await reply.head).field('proxy-status'), undefined);
  assert.equal(await metric('storm_requests_absorbed_total'), 0, 'it was not kept from upstream');
});

test('without a version Go is a client like any other', async (t) => {
  const guard = await startRefusing(t, { options: { fields: GO } });
  assert.equal((await refusalOf(await emptyReplay(guard, { ...SESSION, fields: GO, lei: OPEN }))).status, 409);
});

test('a GET of the Go SDK that fails upstream gets its connection destroyed, a POST a 502', async (t) => {
  const options = { ...SESSION, fields: GO, version: VERSION };
  const guard = await startRefusing(t, { options });
  const { client, upstream } = guard;
  for (const lei of [undefined, OPEN, DONE]) {
    const { reply, exchange } = await forwardedGet(client, upstream, {
      ...options,
      ...(lei === undefined ? {} : { lei }),
    });
    exchange.cut();
    assert.equal(await reply.ended, 'cut');
    assert.equal(reply.headed, false);
  }
  const post = await client.post(30, options);
  (await upstream.next({ method: 'POST' })).cut();
  assert.equal((await post.head).status, 502);
  const status = await startRefusing(t, { file: { refuseWith: 'status' } });
  const { reply, exchange } = await forwardedGet(status.client, status.upstream, options);
  exchange.cut();
  assert.equal((await reply.head).status, 502);
});
