// Public cases, family 4: priming events, empty data, retry, polling by server's choice.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startGuard } from '../support/guard.ts';
import { block, error, initializeResult, priming, progress, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  refusalOf,
} from '../support/session.ts';
import { fastestOf, pause } from '../support/waiting.ts';

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;
const ODD_PRIMING = 'data:\nid: 0\nretry: 3000\n\n';

test('B37 a priming event with empty data in odd field order is a cursor and no terminal event', async (t) => {
  const { client, upstream, warnings } = await startGuard(t);
  const broken = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 1, { session: broken }, ODD_PRIMING);
  assert.equal(await fateOf(client, upstream, { session: broken, lei: '0' }), 'forwarded 0');

  const before = warnings().length;
  const whole = await openSession(client, upstream, 's-2');
  const body = ODD_PRIMING + block({ data: result(1) });
  const { reply } = await finishedPost(
    client,
    upstream,
    1,
    { session: whole },
    ODD_PRIMING,
    block({ data: result(1) }),
  );
  assert.equal(await reply.text(), body);
  assert.equal(await fateOf(client, upstream, { session: whole, lei: '0' }), 'stripped');
  assert.deepEqual(warnings().slice(before), []);
});

test('B38 an initialize answered with an empty event first passes at once and teaches the session', async (t) => {
  const { client, upstream } = await startGuard(t);
  const reply = await client.initialize();
  const exchange = await upstream.next();
  await exchange.head(200, { ...EVENTS, 'Mcp-Session-Id': 's-9' });
  await exchange.write(priming('x'));
  assert.equal((await reply.headWithin(500)).field('mcp-session-id'), 's-9');
  await reply.until(priming('x'), 500);
  await pause(300);
  await exchange.write(block({ id: 'y', data: initializeResult() }));
  await exchange.end();
  assert.equal(await reply.text(), priming('x') + block({ id: 'y', data: initializeResult() }));
  assert.equal(await fateOf(client, upstream, { session: 's-9', lei: 'y' }), 'stripped');
});

for (const [outcome, terminal, fate] of [
  ['an error starts no generation', error(0, -32602, 'unsupported'), 'stripped'],
  ['a result starts one', initializeResult(), 'refused 409 generation-mismatch'],
] as const) {
  test(`B38 a second initialize whose event stream brings ${outcome}`, async (t) => {
    const { client, upstream } = await startGuard(t);
    const session = await openSession(client, upstream, 's-9');
    await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
    const reply = await client.initialize();
    const exchange = await upstream.next();
    await exchange.head(200, { ...EVENTS, 'Mcp-Session-Id': session });
    await exchange.writeEach([priming('x'), block({ id: 'y', data: terminal })]);
    await exchange.end();
    await reply.bytes();
    assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), fate);
  });
}

test('B39 a block with only a retry passes unchanged, and events lose no time on the way', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  for (const retry of ['retry: 500\n\n', 'retry: 0\n\n']) {
    const { reply } = await finishedPost(client, upstream, 2, { session }, priming(`p${retry.length}`), retry);
    assert.equal(await reply.text(), priming(`p${retry.length}`) + retry);
  }
  await finishedPost(client, upstream, 3, { session }, priming('q1'), 'retry: 500\n\n');
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'q1' });
  assert.equal(exchange.field('last-event-id'), 'q1');
  await exchange.head(200, EVENTS);
  let n = 0;
  const fastest = await fastestOf(10, async () => {
    const written = performance.now();
    const event = block({ id: `r${(n += 1)}`, data: progress(3, n) });
    await exchange.write(event);
    await reply.until(event);
    return (reply.arrivals.at(-1)?.at ?? Number.NaN) - written;
  });
  assert.ok(fastest < 20, `delay ${fastest} ms`);
  await exchange.write(block({ id: 'r', data: result(3) }));
  await exchange.end();
  assert.equal(await reply.ended, 'end');
});

test('B39 a server that announced polling with a retry may answer a poll with nothing', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 2, { session }, priming('p1', 500));
  for (let poll = 0; poll < 4; poll += 1) {
    const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'p1' });
    await answerEmpty(exchange);
    assert.equal((await reply.head).status, 200, `poll ${poll}`);
    assert.equal((await reply.bytes()).length, 0);
  }
  const last = await forwardedGet(client, upstream, { session, lei: 'p1' });
  await last.exchange.events(block({ id: 'p2', data: result(2) }));
  await last.exchange.end();
  assert.equal(await last.reply.text(), block({ id: 'p2', data: result(2) }));
});

test('B39 a retry on a stream that was cut announces no polling', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 2, { session }, priming('p1', 500));
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'p1' });
  await answerEmpty(exchange);
  assert.equal((await refusalOf(reply)).rule, 'empty-replay');
});

const KEEPALIVES = [
  block({ event: 'keepalive', data: '{}' }),
  block({ data: '{"type":"heartbeat"}' }),
  block({ event: 'ping', data: '2026-01-01' }),
];

test('B42 home-made keepalive events pass, finish nothing and are no fault', async (t) => {
  const { client, upstream, warnings } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const { reply } = await finishedPost(client, upstream, 1, { session }, priming('e1'), ...KEEPALIVES);
  assert.equal(await reply.text(), priming('e1') + KEEPALIVES.join(''));
  assert.equal(await fateOf(client, upstream, { session, lei: 'e1' }), 'forwarded e1');
  assert.deepEqual(warnings(), []);
});

test('B42 on a replay every home-made keepalive event counts as an event', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 1, { session }, priming('e1'));
  for (const keepalive of KEEPALIVES) {
    const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
    await exchange.events(keepalive);
    await exchange.end();
    assert.equal((await reply.head).status, 200);
    assert.equal(await reply.text(), keepalive);
  }
});

test('B43 a control frame under another event name moves the cursor like any event', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const status = block({ event: 'status', id: '7', data: '{}' });
  await cutPost(client, upstream, 1, { session }, block({ id: '6', data: progress(1) }), status);
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: '7' });
  assert.equal(exchange.field('last-event-id'), '7');
  await exchange.events(block({ id: '8', data: result(1) }));
  await exchange.end();
  await reply.bytes();
  // An ID that had not been recorded would be forwarded.
  assert.equal(await fateOf(client, upstream, { session, lei: '7' }), 'stripped');
});

test('B44 a stream without priming gets none, and its request finishes all the same', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const options = { session, version: '2025-06-18' };
  const blocks = [
    block({ event: 'message', data: progress(1) }),
    block({ event: 'message', id: 't', data: result(1) }),
  ];
  const { reply } = await finishedPost(client, upstream, 1, options, ...blocks);
  assert.equal(await reply.text(), blocks.join(''));
  assert.equal(await fateOf(client, upstream, { ...options, lei: 't' }), 'stripped');
});
