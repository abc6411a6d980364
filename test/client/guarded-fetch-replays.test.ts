/** Section 4 of the contract in process: what a forwarded resume brings, and what the consumer is told. */
import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { describe, test } from 'node:test';
import type { GuardedFetchOptions } from '../../src/client/index.ts';
import { type Body, errorIn, type GuardedSession, openSession, read, statusIn } from '../support/guarded-session.ts';
import { block, priming, progress, request, result } from '../support/messages.ts';
import { eventually, fastestOf, pause, within } from '../support/waiting.ts';

/** A session with a call of this body whose stream broke after its first event, p1. */
async function withCut(options: GuardedFetchOptions = {}, ids: readonly (number | string)[] = [1]) {
  const session = await openSession(options);
  const body = ids.length === 1 ? request(ids[0]!) : `[${ids.map((id) => request(id)).join()}]`;
  const { call, response } = await session.post({ body });
  call.respond().write(priming('p1'));
  const reader = read(await response);
  await reader.until('p1');
  call.break();
  await assert.rejects(reader.all());
  return session;
}

/** The same, with the result sent but not taken: the server has it, the consumer does not. */
async function withLost(options: GuardedFetchOptions = {}) {
  const session = await openSession(options);
  const { call, response } = await session.post(1);
  call.respond().write(priming('p1'));
  const reader = read(await response);
  await reader.until('p1');
  call.write(block({ id: 'e1', data: result(1) }));
  await reader.until('"result"');
  await reader.cancel();
  return session;
}

const outcomes = ({ reports }: GuardedSession): (string | null)[] => reports.map(({ outcome }) => outcome);

const settled = async (promise: Promise<unknown>): Promise<boolean> =>
  Promise.race([promise.then(() => true), new Promise<false>((resolve) => setImmediate(() => resolve(false)))]);

describe('an empty replay', () => {
  const empties: readonly [string, Record<string, string>][] = [
    ['an event stream', {}],
    ['an event stream of length 0', { 'content-length': '0' }],
    ['nothing of any other type', { 'content-type': 'text/plain' }],
    ['comments', {}],
  ];
  for (const [what, headers] of empties) {
    test(`of ${what} fails the call that waits, at once`, async () => {
      const took = await fastestOf(3, async () => {
        const session = await withCut();
        const { call, response } = await session.resume('p1');
        call.respond(200, headers);
        if (what === 'comments') call.write(': keepalive\n\n');
        const answeredAt = performance.now();
        call.end();
        const refusal = await within('the refusal', response);
        const refusedAt = performance.now();
        const { id, rule, retry } = await errorIn(refusal);
        assert.deepEqual({ id, rule, retry }, { id: 1, rule: 'empty-replay', retry: 'request' });
        assert.deepEqual(session.reports, [
          { rule: 'in-window', action: 'forward', outcome: 'empty', refusal: 'empty-replay' },
        ]);
        return refusedAt - answeredAt;
      });
      assert.ok(took < 100, `${took} ms`);
    });
  }

  test('names the id as it was sent', async () => {
    const session = await withCut({}, ['1']);
    const { call, response } = await session.resume('p1');
    call.respond().end();
    assert.equal((await errorIn(await response)).id, '1');
  });

  test('says that the server was asked, and keeps its session', async () => {
    const session = await withCut();
    const { call, response } = await session.resume('p1');
    call.respond(200, { 'mcp-session-id': 's1' }).end();
    const { headers } = await response;
    assert.equal(headers.get('proxy-status'), 'mcp-resume-guard; received-status=200; details="empty-replay"');
    assert.equal(headers.get('mcp-session-id'), 's1');
  });

  test('of a batch is 409, for no single call can be named', async () => {
    const session = await withCut({}, [1, 2]);
    const { call, response } = await session.resume('p1');
    call.respond().end();
    assert.deepEqual(await statusIn(await response), { status: 409, rule: 'empty-replay' });
  });

  test('of a listening stream is 409, and the next time its cursor is taken off', async () => {
    const session = await openSession();
    const { call, body } = await session.listen();
    call.write(block({ id: 'l1', data: progress(1) })).end();
    await body.all();
    const first = await session.resume('l1');
    first.call.respond().end();
    assert.deepEqual(await statusIn(await first.response), { status: 409, rule: 'empty-replay' });
    assert.equal((await session.resume('l1')).call.cursor, null);
    assert.equal(session.reports.at(-1)?.rule, 'standalone-below-floor');
  });

  test('is tried again at once, and then answered from memory until the next try is due', async () => {
    const session = await withCut();
    for (const wait of [0, 0]) {
      session.pass(wait);
      const { call, response } = await session.resume('p1');
      call.respond().end();
      await (await response).text();
    }
    const before = session.script.calls.length;
    session.pass(999);
    const { rule, id } = await errorIn(await session.get('p1'));
    assert.deepEqual({ rule, id }, { rule: 'below-replay-floor', id: 1 });
    assert.equal(session.script.calls.length, before);
    session.pass(1);
    const { call, response } = await session.resume('p1');
    call
      .respond()
      .write(block({ id: 'e1', data: result(1) }))
      .end();
    assert.match(await read(await response).all(), /"result"/);
  });

  test('the ID it was given leads nowhere, and quietly', async () => {
    const session = await withCut();
    const { call, response } = await session.resume('p1');
    call.respond().end();
    const { eventId } = await errorIn(await response);
    const before = session.script.calls.length;
    assert.deepEqual(await statusIn(await session.get(eventId)), { status: 405, rule: 'minted-id' });
    assert.equal(session.script.calls.length, before);
  });
});

describe('a replay that has to come', () => {
  test('and does, passes', async () => {
    const session = await withLost();
    const { call, response } = await session.resume('p1');
    call.respond().write(block({ id: 'e1', data: result(1) }));
    await read(await response).until('"result"');
    assert.deepEqual(session.reports, [
      { rule: 'finished-undelivered', action: 'forward', outcome: 'replayed', refusal: null },
    ]);
  });

  test('and does, and is read, is not asked for again', async () => {
    const session = await withLost();
    const { call, response } = await session.resume('p1');
    call
      .respond()
      .write(block({ id: 'e1', data: result(1) }))
      .end();
    await read(await response).all();
    assert.equal((await session.resume('p1')).call.cursor, null);
  });

  for (const headed of [true, false]) {
    test(`and does not, by the deadline, fails the call, and the server is left${headed ? '' : ', even where it never answered'}`, async () => {
      const session = await withLost({ replayDeadline: 60 });
      const { call, response } = await session.resume('p1');
      if (headed) call.respond().write(': waiting\n\n');
      const { rule, id } = await errorIn(await within('the refusal', response));
      assert.deepEqual({ rule, id }, { rule: 'empty-replay', id: 1 });
      assert.deepEqual(outcomes(session), ['silent']);
      assert.equal(call.signal?.aborted, true);
    });
  }
});

describe('a replay that is quiet', () => {
  test('is held back for a while and then passes as it is', async () => {
    const session = await withCut({ replayHold: 60 });
    const { call, response } = await session.resume('p1');
    call.respond().write(': keepalive\n\n');
    assert.equal(await settled(response), false);
    const body = read(await within('the response', response));
    assert.deepEqual(outcomes(session), ['live']);
    await body.until('keepalive');
    call.write(block({ id: 'e1', data: result(1) }));
    await body.until('"result"');
    call.end();
    assert.equal(await body.all(), `: keepalive\n\n${block({ id: 'e1', data: result(1) })}`);
  });

  test('passes at its first event', async () => {
    const session = await withCut({ replayHold: 60_000 });
    const { call, response } = await session.resume('p1');
    call.respond();
    await pause(10);
    assert.equal(await settled(response), false);
    call.write(block({ id: 'n1', data: progress(1) }));
    await read(await within('the response', response)).until('n1');
  });

  test('passes where more comes than may be held', async () => {
    const session = await withCut({ replayHold: 60_000, maxHeldBytes: 1_000 });
    const { call, response } = await session.resume('p1');
    const long = `data: ${'x'.repeat(2_000)}`;
    call.respond().write(long);
    const body = read(await within('the response', response));
    await body.until(long);
  });

  test('and ends without an event passes nine times; the tenth is the last but for probes', async () => {
    const session = await withCut({ replayHold: 5 });
    for (let round = 0; round < 10; round += 1) {
      const { call, response } = await session.resume('p1');
      call.respond().write(': nothing yet\n\n');
      const body = read(await within('the response', response));
      call.end();
      assert.equal(await body.all(), ': nothing yet\n\n');
    }
    assert.deepEqual(outcomes(session), Array(10).fill('live'));
    await session.resume('p1');
    assert.equal((await errorIn(await session.get('p1'))).rule, 'below-replay-floor', 'while a probe is out');
  });

  test('and then brings an event after all has honoured its cursor', async () => {
    const session = await withCut({ replayHold: 5 });
    const first = await session.resume('p1');
    first.call.respond().end();
    await (await first.response).text();
    const probe = await session.resume('p1');
    probe.call.respond();
    const body = read(await within('the response', probe.response));
    probe.call.write(block({ id: 'n1', data: progress(1) }));
    await body.until('n1');
    await body.cancel();
    assert.equal((await session.resume('p1')).call.cursor, 'p1', 'at once, and not when the next probe is due');
  });

  test('and ends in the middle of a block passes: there was something', async () => {
    const session = await withCut();
    const { call, response } = await session.resume('p1');
    call.respond().write('data: half').end();
    assert.equal(await read(await response).all(), 'data: half');
    assert.deepEqual(outcomes(session), ['live']);
  });
});

test('a server that announced polling is polled', async () => {
  const session = await openSession();
  const { call, response } = await session.post(1);
  call.respond().write(priming('p1', 50)).end();
  await read(await response).all();
  for (let round = 0; round < 3; round += 1) {
    const poll = await session.resume('p1');
    poll.call.respond().end();
    assert.equal((await poll.response).status, 200);
    assert.equal(await read(await poll.response).all(), '');
  }
  assert.deepEqual(outcomes(session), ['polled', 'polled', 'polled']);
});

test('a resume that another one displaces ends as it does', async () => {
  const session = await withCut({ replayHold: 60_000 });
  const [first, second] = [await session.resume('p1'), await session.resume('p1')];
  second.call.respond();
  first.call.respond().end();
  assert.equal(await read(await first.response).all(), '');
  assert.deepEqual(outcomes(session), ['displaced']);
  second.call.write(block({ id: 'e1', data: result(1) }));
  await read(await second.response).until('"result"');
});

describe('a resume that fails', () => {
  test('before an answer rejects as the network does, and the cursor stays good', async () => {
    const session = await withCut();
    const { call, response } = await session.resume('p1');
    const refused = new TypeError('fetch failed');
    call.fail(refused);
    await assert.rejects(response, refused);
    assert.deepEqual(outcomes(session), ['broken']);
    assert.equal((await session.resume('p1')).call.cursor, 'p1');
  });

  test('while it is held back rejects too, so that the client keeps its cursor', async () => {
    const session = await withCut();
    const { call, response } = await session.resume('p1');
    call.respond().write(': keepalive\n\n');
    await session.script.until('the body to be read', () => call.pulls > 0);
    call.break(new TypeError('terminated'));
    await assert.rejects(response, /terminated/);
    assert.deepEqual(outcomes(session), ['broken']);
  });

  test('after its first event breaks the body', async () => {
    const session = await withCut();
    const { call, response } = await session.resume('p1');
    call.respond().write(block({ id: 'n1', data: progress(1) }));
    const body = read(await response);
    await body.until('n1');
    call.break(new TypeError('terminated'));
    await assert.rejects(body.all(), /terminated/);
  });

  test('because the consumer aborts it leaves the server, and concludes nothing', async () => {
    const session = await withCut();
    const abort = new AbortController();
    const { call, response } = await session.resume('p1', {}, abort.signal);
    call.respond();
    await session.script.until('the body to be read', () => call.pulls > 0);
    abort.abort();
    await assert.rejects(response, { name: 'AbortError' });
    assert.equal(call.signal?.aborted, true);
    assert.deepEqual(outcomes(session), ['abandoned']);
    assert.equal((await session.resume('p1')).call.cursor, 'p1');
  });

  test('or not leaves no listener behind at the signal', async () => {
    const session = await withCut();
    const { signal } = new AbortController();
    for (const end of ['clean', 'broken', 'refused', 'cancelled'] as const) {
      const { call, response } = await session.resume('p1', {}, signal);
      assert.equal(getEventListeners(signal, 'abort').length, 1);
      if (end === 'clean') call.respond().end();
      else if (end === 'refused') call.fail(new TypeError('fetch failed'));
      else call.respond().write(block({ id: 'n1', data: progress(1) }));
      const body = await response.then(read, () => null);
      if (end === 'broken') call.break();
      if (end === 'cancelled') await body?.cancel();
      await body?.all().catch(() => {});
      assert.deepEqual(getEventListeners(signal, 'abort').length, 0);
    }
  });

  test('because it was aborted before is not even sent', async () => {
    const session = await withCut();
    const before = session.script.calls.length;
    await assert.rejects(session.get('p1', {}, AbortSignal.abort()), { name: 'AbortError' });
    assert.equal(session.script.calls.length, before);
  });

  test('with a status of the server passes as it is', async () => {
    const session = await withCut();
    for (const status of [401, 404, 409, 500]) {
      const { call, response } = await session.resume('p1');
      call.answer(status, { 'content-type': 'application/json' }, '{"no":"way"}');
      assert.equal(await response, await call.answered, 'the very same response');
      assert.equal(await (await response).text(), '{"no":"way"}');
    }
    assert.deepEqual(outcomes(session), Array(4).fill('not-a-replay'));
  });

  test('with a body of another type passes as it is', async () => {
    const session = await withCut();
    const { call, response } = await session.resume('p1');
    call.answer(200, { 'content-type': 'application/json' }, result(1));
    assert.equal(await (await response).text(), result(1));
  });
});

test('an unrecorded cursor that brings nothing is 409, and answered from memory from the second time on', async () => {
  const session = await openSession();
  for (let round = 0; round < 2; round += 1) {
    const { call, response } = await session.resume('stored long ago');
    call.respond().end();
    assert.deepEqual(await statusIn(await response), { status: 409, rule: 'empty-replay' });
  }
  assert.deepEqual(await statusIn(await session.get('stored long ago')), { status: 409, rule: 'below-replay-floor' });
});

describe('what a replay repeats', () => {
  const first = block({ id: 'n1', data: progress(1, 1) });
  const second = block({ id: 'n2', data: progress(1, 2) });
  const last = block({ id: 'e1', data: result(1) });

  async function replayed(options: GuardedFetchOptions, pieces: readonly string[]): Promise<string> {
    const session = await openSession(options);
    const { call, response } = await session.post(1);
    call.respond().write(first).write(second);
    const body = read(await response);
    await body.until('n2');
    call.break();
    await assert.rejects(body.all());
    const resumed = await session.resume('n2');
    resumed.call.respond(200, { 'content-length': '999' });
    for (const piece of pieces) resumed.call.write(piece);
    resumed.call.end();
    const answer = await resumed.response;
    assert.equal(answer.headers.has('content-length'), options.dedupe === false);
    return read(answer).all();
  }

  const whole = first + second + last;
  test('up to the cursor is taken out, whole, wherever it is cut', async () => {
    for (const pieces of [[whole], [...whole], [first, second, last], [whole.slice(0, 40), whole.slice(40)]]) {
      assert.equal(await replayed({}, pieces), last);
    }
  });

  test('stays where that is switched off', async () => {
    assert.equal(await replayed({ dedupe: false }, [whole]), whole);
  });

  test('twice is taken out the second time', async () => {
    assert.equal(await replayed({}, [last, last]), last);
  });

  test('in an unfinished block is held only for so long', async () => {
    const session = await withCut({ replayHold: 60 });
    const { call, response } = await session.resume('p1');
    call.respond().write('data: not finished yet');
    const body: Body = read(await within('the response', response));
    await body.until('not finished yet');
  });
});

test('the event that comes in the same piece as the end is not taken for an empty replay', async () => {
  const session = await withCut();
  const { call, response } = await session.resume('p1');
  call
    .respond()
    .write(`${block({ id: 'e1', data: result(1) })}`)
    .end();
  assert.equal(await read(await response).all(), block({ id: 'e1', data: result(1) }));
  await eventually('the report', () => session.reports.length === 1);
});
