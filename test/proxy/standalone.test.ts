// The listening stream: it never finishes, it is nobody's replay, and it does not outlive its client.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, notification, priming, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  type Pair,
  refusalOf,
} from '../support/session.ts';
import { eventually, fastestOf } from '../support/waiting.ts';

const SESSION = { session: 's-1' } as const;
const NEWS = block({ id: 'n1', data: notification('notifications/message') });
const AT_NEWS = { ...SESSION, lei: 'n1' } as const;

async function start(t: TestContext, file = {}): Promise<Guard> {
  const guard = await startGuard(t, { file });
  await openSession(guard.client, guard.upstream, 's-1');
  return guard;
}

/** A listening stream with these blocks, all of them at the client. */
async function listen({ client, upstream }: Guard, ...blocks: string[]): Promise<Pair> {
  const pair = await forwardedGet(client, upstream, SESSION);
  await pair.exchange.events(...blocks);
  await pair.reply.head;
  if (blocks.length > 0) await pair.reply.until(blocks.join(''));
  return pair;
}

async function ended({ reply, exchange }: Pair): Promise<void> {
  await exchange.end();
  await reply.bytes();
}

const fate = ({ client, upstream }: Guard, options: Parameters<typeof fateOf>[2] = AT_NEWS) =>
  fateOf(client, upstream, options);

/** A resume of the listening stream to which upstream says nothing. */
async function emptyResume({ client, upstream }: Guard): Promise<void> {
  const { reply, exchange } = await forwardedGet(client, upstream, AT_NEWS);
  assert.equal(exchange.field('last-event-id'), 'n1');
  await answerEmpty(exchange);
  assert.equal((await refusalOf(reply)).rule, 'empty-replay');
}

test('the head of a listening stream is not held, however quiet it is, and an empty end passes', async (t) => {
  const guard = await start(t, { replayHold: '5s' });
  const { reply, exchange } = await forwardedGet(guard.client, guard.upstream, SESSION);
  await exchange.events();
  assert.equal((await reply.headWithin(500)).status, 200);
  await exchange.end();
  assert.equal((await reply.bytes()).length, 0);
});

test('a listening stream is never finished, whatever passed on it', async (t) => {
  const guard = await start(t);
  await ended(await listen(guard, NEWS, block({ id: 'n2', data: result(1) })));
  for (const lei of ['n1', 'n2']) assert.equal(await fate(guard, { ...SESSION, lei }), `forwarded ${lei}`);
});

// standalone-below-floor.

test('after an empty replay the cursor of a listening stream is stripped: it listens anew', async (t) => {
  const guard = await start(t);
  const { client, upstream, metric } = guard;
  await ended(await listen(guard, NEWS));
  await emptyResume(guard);
  for (const body of [block({ id: 'n2', data: notification('notifications/message') }), NEWS]) {
    const { reply, exchange } = await forwardedGet(client, upstream, AT_NEWS);
    assert.equal(exchange.field('last-event-id'), undefined);
    await exchange.events(body);
    const marked = (await reply.head).field('proxy-status');
    assert.equal(marked, 'mcp-resume-guard; details="standalone-below-floor"');
    await exchange.end();
    assert.equal(await reply.text(), body, 'nothing of a fresh stream is a duplicate');
  }
  assert.equal(await fate(guard), 'forwarded n1', 'the fresh stream carried it too and is its second owner');
  assert.equal(await metric('resumes_total', { verdict: 'strip', rule: 'standalone-below-floor' }), 2);
});

test('an event on the fresh stream makes it an owner too, so that its cursors are forwarded', async (t) => {
  const guard = await start(t);
  await ended(await listen(guard, NEWS));
  await emptyResume(guard);
  await ended(await listen(guard, block({ id: 'n2', data: notification('notifications/message') })));
  assert.equal(await fate(guard, { ...SESSION, lei: 'n2' }), 'forwarded n2');
  assert.equal(await fate(guard), 'stripped');
});

test('an answer of another kind, or a replay, is no empty one: the cursor is forwarded again', async (t) => {
  const guard = await start(t);
  await ended(await listen(guard, NEWS));
  for (const answer of ['503', 'event'] as const) {
    const { reply, exchange } = await forwardedGet(guard.client, guard.upstream, AT_NEWS);
    if (answer === '503') await exchange.answer(503);
    else {
      await exchange.events(block({ id: 'n2', data: notification('notifications/message') }));
      await exchange.end();
    }
    await reply.ended;
    assert.equal(await fate(guard), 'forwarded n1', `after ${answer}`);
  }
});

test('a cursor that an open request owns as well is not stripped', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  await ended(await listen(guard, NEWS));
  await emptyResume(guard);
  await cutPost(client, upstream, 1, SESSION, priming('n1'));
  assert.equal(await fate(guard), 'forwarded n1');
});

test('a cursor that a delivered request owns as well is stripped', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  await ended(await listen(guard, NEWS));
  await finishedPost(client, upstream, 1, SESSION, block({ id: 'n1', data: result(1) }));
  assert.equal(await fate(guard), 'forwarded n1', 'the listening stream is still open');
  await emptyResume(guard);
  assert.equal(await fate(guard), 'stripped');
});

// A live one.

const DONE = { ...SESSION, lei: 'e2' } as const;

async function withFinished(t: TestContext): Promise<Guard> {
  const guard = await start(t);
  await finishedPost(guard.client, guard.upstream, 1, SESSION, block({ id: 'e2', data: result(1) }));
  return guard;
}

const REFUSED = 'refused 409 finished-while-listening';

test('while a listening stream lives a finished cursor is refused, and no longer', async (t) => {
  for (const end of ['its client leaves', 'upstream ends it', 'upstream cuts it']) {
    const guard = await withFinished(t);
    const { reply, exchange } = await listen(guard);
    assert.equal(await fate(guard, DONE), REFUSED);
    if (end === 'its client leaves') {
      reply.destroy();
      await exchange.left();
    } else {
      if (end === 'upstream ends it') await exchange.end();
      else exchange.cut();
      await reply.ended;
    }
    assert.equal(await fate(guard, DONE), 'stripped', end);
  }
});

test('the stream that a stripped resume opened counts as listening', async (t) => {
  const guard = await withFinished(t);
  const stripped = await forwardedGet(guard.client, guard.upstream, DONE);
  await stripped.exchange.events();
  await stripped.reply.head;
  assert.equal(await fate(guard, DONE), REFUSED);
  stripped.reply.destroy();
  await stripped.exchange.left();
  assert.equal(await fate(guard, DONE), 'stripped');
});

test('a GET that upstream has not accepted, and one in another session, do not count', async (t) => {
  const guard = await withFinished(t);
  const { client, upstream } = guard;
  const pending = await forwardedGet(client, upstream, SESSION);
  assert.equal(await fate(guard, DONE), 'stripped');
  await pending.exchange.answer(405, { Allow: 'POST' });
  await pending.reply.ended;
  await openSession(client, upstream, 's-2');
  const other = await forwardedGet(client, upstream, { session: 's-2' });
  await other.exchange.events();
  await other.reply.head;
  assert.equal(await fate(guard, DONE), 'stripped');
});

test('without a session ID nobody listens for anybody else', async (t) => {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  await finishedPost(client, upstream, 1, {}, block({ id: 'e2', data: result(1) }));
  const { reply, exchange } = await forwardedGet(client, upstream, {});
  await exchange.events();
  await reply.head;
  assert.equal(await fate(guard, { lei: 'e2' }), 'stripped');
});

// The ghost of an old one.

for (const how of ['destroy', 'reset', 'halfClose'] as const) {
  const name = { destroy: 'FIN', reset: 'RST', halfClose: 'FIN and goes on reading' }[how];
  test(`upstream’s leg is closed within 100 ms of a client that leaves by ${name}, quiet stream or not`, async (t) => {
    const guard = await start(t);
    const { client, upstream, metric } = guard;
    const leave = ({ reply }: Pair): void => {
      if (how === 'halfClose') reply.connection.halfClose();
      else reply[how]();
    };
    const timed = async (pair: Pair): Promise<number> => {
      const left = performance.now();
      leave(pair);
      await pair.exchange.left();
      return performance.now() - left;
    };
    for (const blocks of [[], [NEWS]]) {
      const fastest = await fastestOf(3, async () => timed(await listen(guard, ...blocks)));
      assert.ok(fastest < 100, `${fastest} ms`);
    }
    const headless = await fastestOf(3, async () => timed(await forwardedGet(client, upstream, SESSION)));
    assert.ok(headless < 100, `${headless} ms before the head`);
    const posting = await fastestOf(3, async () => {
      const reply = await client.post(1, SESSION);
      return timed({ reply, exchange: await upstream.next({ method: 'POST' }) });
    });
    assert.ok(posting < 100, `${posting} ms for a POST`);
    await eventually('no stream to be open', async () => (await metric('streams_open')) === 0);
  });
}

test('a server that takes one listening stream at a time gets the next one after the ghost has gone', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  let open = 0;
  upstream.handle(async (exchange) => {
    if (open > 0) {
      await exchange.answer(409);
      return;
    }
    open += 1;
    await exchange.events();
    exchange.left(20_000).then(
      () => {
        open -= 1;
      },
      () => {},
    );
  });
  for (let round = 0; round < 20; round += 1) {
    const reply = await client.get(SESSION);
    assert.equal((await reply.head).status, 200);
    if (round % 2 === 0) reply.destroy();
    else reply.reset();
    await eventually('the ghost to go', () => open === 0, 1_000);
  }
});
