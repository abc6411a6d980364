// Public cases, family 1: duplicates after completion, reconnect loops, storms.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startGuard } from '../support/guard.ts';
import { block, error, notification, priming, progress, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  failureOf,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  refusalOf,
} from '../support/session.ts';
import { pause } from '../support/waiting.ts';

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;

test('B01 a failed resume answered with an empty 200 becomes a 409, as often as the client comes back', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  const seen: (string | undefined)[] = [];
  upstream.handle((exchange) => {
    seen.push(exchange.field('last-event-id'));
    return answerEmpty(exchange);
  });

  const rules: string[] = [];
  for (let round = 0; round < 6; round += 1) {
    const refusal = await refusalOf(await client.get({ session, lei: 'e1' }));
    assert.equal(refusal.status, 409);
    assert.equal(refusal.retry, 'request');
    rules.push(refusal.rule);
  }
  // The first answer, one probe at once, then silence towards upstream for a second.
  assert.deepEqual(rules, ['empty-replay', 'empty-replay', ...Array(4).fill('below-replay-floor')]);
  assert.deepEqual(seen, ['e1', 'e1'], 'the cursor of an open request goes up unchanged, and the storm does not');
});

test('B02 a resume of a finished request is refused while the session listens, and the listening stream lives on', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const listening = await forwardedGet(client, upstream, { session });
  await listening.exchange.events();
  assert.equal((await listening.reply.head).status, 200);

  for (const [id, first, last] of [
    [1, 'a1', 'a2'],
    [2, 'b1', 'b2'],
  ] as const) {
    await finishedPost(client, upstream, id, { session }, priming(first, 3000), block({ id: last, data: result(id) }));
    const refusal = await refusalOf(await client.get({ session, lei: last }));
    assert.deepEqual(refusal, {
      status: 409,
      rule: 'finished-while-listening',
      retry: 'none',
      proxyStatus: 'mcp-resume-guard; details="finished-while-listening"',
    });
  }

  const news = block({ id: 'n1', data: notification('notifications/tools/list_changed') });
  await listening.exchange.write(news);
  await listening.reply.until(news);
  assert.equal(upstream.requests.filter(({ method }) => method === 'GET').length, 1, 'upstream saw no competing GET');
});

test('B02 toward the TypeScript SDK on Node the same refusal is a 405, on which it stops quietly', async (t) => {
  const { client, upstream } = await startGuard(t);
  const version = '2025-11-25';
  const session = await openSession(client, upstream, 's-1');
  const listening = await forwardedGet(client, upstream, { session, version });
  await listening.exchange.events();
  await listening.reply.head;
  await finishedPost(client, upstream, 1, { session, version }, block({ id: 'a2', data: result(1) }));
  const reply = await client.get({ session, version, lei: 'a2', fields: { 'User-Agent': 'node' } });
  assert.ok((await reply.head).field('allow'));
  const { status, rule } = await refusalOf(reply);
  assert.deepEqual({ status, rule }, { status: 405, rule: 'finished-while-listening' });
});

test('B03 a resume at the terminal event of a finished request goes up without Last-Event-ID and is otherwise whole', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 3, { session }, priming('e1'), block({ id: 'e2', data: result(3) }));

  const fields = { 'X-Trace': 'abc', 'Accept-Language': 'de' };
  const { reply, exchange } = await forwardedGet(client, upstream, {
    session,
    version: '2025-11-25',
    lei: 'e2',
    fields,
  });
  assert.deepEqual(exchange.values('last-event-id'), [], 'no Last-Event-ID at all, not an empty one');
  assert.equal(exchange.field('mcp-session-id'), session);
  assert.equal(exchange.field('mcp-protocol-version'), '2025-11-25');
  assert.equal(exchange.field('accept'), 'text/event-stream');
  assert.equal(exchange.field('x-trace'), 'abc');
  assert.equal(exchange.field('accept-language'), 'de');
  await exchange.events(block({ id: 'n1', data: notification('notifications/message') }));
  assert.equal((await reply.head).field('proxy-status'), 'mcp-resume-guard; details="finished"');
  await reply.until('n1');
});

test('B04 a stream that is polled with ever new priming events passes each time', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 4, { session }, priming('p1'));
  for (let round = 1; round <= 6; round += 1) {
    const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: `p${round}` });
    assert.equal(exchange.field('last-event-id'), `p${round}`);
    await exchange.events(priming(`p${round + 1}`));
    await exchange.end();
    assert.equal((await reply.head).status, 200);
    assert.equal(await reply.text(), priming(`p${round + 1}`));
  }
});

test('B04 a replay that only repeats the event of the cursor itself is an empty one', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 4, { session }, priming('p1'));
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'p1' });
  await exchange.events(priming('p1'));
  await exchange.end();
  const { status, rule } = await refusalOf(reply);
  assert.deepEqual({ status, rule }, { status: 409, rule: 'empty-replay' });
});

test('B06 a resume answered 200 with a body of another media type passes as it is', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  for (const [type, body] of [
    ['text/plain', 'twenty bytes of text'],
    ['application/json', '{"jsonrpc": "2.0" } '],
  ] as const) {
    const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e9' });
    assert.equal(exchange.field('last-event-id'), 'e9');
    await exchange.answer(200, { 'Content-Type': type, 'X-From': 'upstream' }, body);
    const head = await reply.head;
    assert.equal(head.status, 200);
    assert.equal(head.field('content-type'), type);
    assert.equal(head.field('content-length'), '20');
    assert.equal(head.field('x-from'), 'upstream');
    assert.equal(head.field('proxy-status'), undefined);
    assert.equal(await reply.text(), body);
  }
});

test('B07 a replay that upstream cuts before any event is a 502, not a 409', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  for (const how of ['cut', 'reset'] as const) {
    for (const before of ['nothing', 'the head', 'a comment']) {
      const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
      assert.equal(exchange.field('last-event-id'), 'e1');
      if (before !== 'nothing') await exchange.events();
      if (before === 'a comment') await exchange.write(': hello\n\n');
      exchange[how]();
      assert.equal(await failureOf(reply), 502, `${how} after ${before}`);
    }
  }
});

test('B07 a replay that upstream cuts after its head went out ends in a destroyed connection', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { replayHold: '50ms' } });
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
  await exchange.events();
  assert.equal((await reply.head).status, 200);
  exchange.cut();
  assert.equal(await reply.ended, 'cut');
  assert.equal(reply.body.length, 0);
});

test('B08 a 409 of upstream passes byte for byte without a mark, and the session is kept', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  await cutPost(client, upstream, 2, { session }, priming('f1'));
  const listening = await forwardedGet(client, upstream, { session });
  await listening.exchange.events();
  await listening.reply.head;

  const body = '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Conflict: only one stream"},"id":null}';
  for (const lei of [undefined, 'f1']) {
    const { reply, exchange } = await forwardedGet(client, upstream, {
      session,
      ...(lei === undefined ? {} : { lei }),
    });
    await exchange.json(409, body);
    const head = await reply.head;
    assert.equal(head.status, 409);
    assert.equal(head.field('proxy-status'), undefined);
    assert.equal(head.field('content-length'), String(body.length));
    assert.equal(await reply.text(), body);
  }
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'refused 409 finished-while-listening');
  assert.equal(listening.reply.ending, undefined, 'the first stream goes on');
  await finishedPost(client, upstream, 3, { session }, block({ id: 'e3', data: result(3) }));
});

for (const writes of ['one write', 'two writes']) {
  test(`B10 a terminal event sent twice on one resumed stream in ${writes} reaches the client once`, async (t) => {
    const { client, upstream, metric } = await startGuard(t);
    const session = await openSession(client, upstream, 's-1');
    await cutPost(client, upstream, 5, { session }, priming('e1'));
    const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
    const terminal = block({ id: 'e2', data: result(5) });
    await exchange.head(200, EVENTS);
    await exchange.writeEach(writes === 'one write' ? [terminal + terminal] : [terminal, terminal]);
    await exchange.end();
    assert.equal(await reply.text(), terminal);
    assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
    assert.equal(await metric('terminal_events_total'), 1);
  });
}

test('B11 a replay that mixes in the result of another request passes whole and finishes both', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 20, { session }, priming('a1'));
  await cutPost(client, upstream, 21, { session }, priming('b1'));
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'b1' });
  const body = block({ id: 'a2', data: result(20) }) + block({ id: 'b2', data: result(21) });
  await exchange.events(body);
  await exchange.end();
  assert.equal(await reply.text(), body);
  assert.equal(await fateOf(client, upstream, { session, lei: 'a2' }), 'stripped');
  assert.equal(await fateOf(client, upstream, { session, lei: 'b2' }), 'stripped');
});

test('B13 a GET without Last-Event-ID after a broken resume gets none from memory', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { replayHold: '50ms' } });
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 8, { session }, priming('e1'));
  const resumed = await forwardedGet(client, upstream, { session, lei: 'e1' });
  await resumed.exchange.events();
  await resumed.reply.head;
  resumed.exchange.cut();
  assert.equal(await resumed.reply.ended, 'cut');
  const plain = await forwardedGet(client, upstream, { session });
  assert.deepEqual(plain.exchange.values('last-event-id'), []);
});

test('B14 a 405 to a GET passes with its Allow and its body and changes nothing', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  await cutPost(client, upstream, 2, { session }, priming('f1'));
  const body = error(null, -32000, 'Method not allowed.');
  for (const lei of [undefined, 'e2', 'f1']) {
    const { reply, exchange } = await forwardedGet(client, upstream, {
      session,
      ...(lei === undefined ? {} : { lei }),
    });
    await exchange.json(405, body, { Allow: 'POST' });
    const head = await reply.head;
    assert.deepEqual([head.status, head.field('allow'), head.field('proxy-status')], [405, 'POST', undefined]);
    assert.equal(await reply.text(), body);
  }
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
  assert.equal(await fateOf(client, upstream, { session, lei: 'f1' }), 'forwarded f1');
});

test('B01 the event form ends the second refusal of one cursor with an error for the pending request', async (t) => {
  const { client, upstream } = await startGuard(t);
  const version = '2025-11-25';
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session, version }, priming('e1'));
  upstream.handle((exchange) => answerEmpty(exchange));
  assert.equal((await refusalOf(await client.get({ session, version, lei: 'e1' }))).status, 409);
  // Most SDKs come back a second later; the contract asks for at least 800 ms between the two.
  await pause(850);
  const reply = await client.get({ session, version, lei: 'e1' });
  assert.equal((await reply.head).status, 200);
  assert.match((await reply.head).field('content-type') ?? '', /^text\/event-stream/);
  const text = await reply.text();
  const message = JSON.parse(/^data: ?(.*)$/m.exec(text)?.[1] ?? 'null');
  assert.equal(message.id, 7);
  assert.equal(message.error.code, -32010);
  assert.equal(message.error.data.rule, 'empty-replay');
  const minted = /^id: ?(.*)$/m.exec(text)?.[1] ?? '';
  assert.equal(await fateOf(client, upstream, { session, version, lei: minted }), 'refused 405 minted-id');
});

test('B04 a replay with events is never delayed by the wait for more', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { replayHold: '2s' } });
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
  await exchange.events(block({ id: 'e2', data: progress(7) }));
  await reply.headWithin(500);
  await reply.until(block({ id: 'e2', data: progress(7) }), 500);
});
