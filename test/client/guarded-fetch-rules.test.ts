/** Section 3 of the contract in process: what becomes of a request with a cursor before anything is sent. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  errorIn,
  type GuardedSession,
  openSession,
  read,
  SESSION,
  statusIn,
  URL_OF,
} from '../support/guarded-session.ts';
import { block, error, priming, request, result } from '../support/messages.ts';

/** A call answered on its stream and read to the end. Its events: p1 and e1. */
async function finish(session: GuardedSession, id: number | string = 1): Promise<void> {
  const { call, response } = await session.post(id);
  call.respond().write(priming(`p${id}`));
  call.write(block({ event: 'message', id: `e${id}`, data: result(id) })).end();
  await read(await response).all();
}

/** A call whose stream broke after its first event, p1. */
async function cut(session: GuardedSession, id: number | string = 1): Promise<void> {
  const { call, response } = await session.post(id);
  call.respond().write(priming(`p${id}`));
  const body = read(await response);
  await body.until(`p${id}`);
  call.break();
  await assert.rejects(body.all());
}

describe('a cursor of a finished request', () => {
  test('is taken off where nothing listens, and nothing else of the request', async () => {
    const session = await openSession();
    await finish(session);
    const { call, response } = await session.resume('e1', { authorization: 'Bearer t' });
    assert.equal(call.cursor, null);
    assert.deepEqual(Object.fromEntries(call.headers), {
      accept: 'text/event-stream',
      authorization: 'Bearer t',
      'mcp-protocol-version': '2025-11-25',
      'mcp-session-id': SESSION,
    });
    call.answer(405, { 'content-type': 'text/plain' }, 'no');
    assert.equal((await response).status, 405);
    assert.deepEqual(session.reports, [{ rule: 'finished', action: 'strip', outcome: null, refusal: null }]);
  });

  test('is answered 405 while the session listens, and nothing is sent', async () => {
    const session = await openSession();
    const listening = await session.listen();
    await finish(session);
    const before = session.script.calls.length;
    const response = await session.get('e1');
    assert.deepEqual(await statusIn(response), { status: 405, rule: 'finished-while-listening' });
    assert.equal(response.headers.get('allow'), 'POST, DELETE');
    assert.equal(response.headers.get('proxy-status'), 'mcp-resume-guard; details="finished-while-listening"');
    assert.equal(response.url, URL_OF);
    assert.equal(session.script.calls.length, before);
    await listening.body.cancel();
    const { call } = await session.resume('e1');
    assert.equal(call.cursor, null, 'and taken off again when it does not');
  });

  test('is answered 405 as soon as the session has asked for its listening stream, until it hears that there is none', async () => {
    const session = await openSession();
    await finish(session);
    const waiting = [session.get(), session.get()];
    const [first, second] = [await session.script.next('a GET'), await session.script.next('another GET')];
    assert.equal((await session.get('e1')).status, 405);
    first.answer(405, { 'content-type': 'text/plain' }, '');
    await waiting[0];
    assert.equal((await session.get('e1')).status, 405);
    second.fail(new TypeError('fetch failed'));
    await assert.rejects(waiting[1]!);
    assert.equal((await session.resume('e1')).call.cursor, null);
  });

  test('that was taken off is not taken off again while the server has not answered', async () => {
    const session = await openSession();
    await finish(session);
    const { call, response } = await session.resume('e1');
    assert.equal((await session.get('e1')).status, 405);
    call.answer(405, { 'content-type': 'text/plain' }, '');
    await response;
    await session.resume('e1');
  });

  test('after a JSON-RPC error is one as well', async () => {
    const session = await openSession();
    const { call, response } = await session.post(1);
    call
      .respond()
      .write(block({ id: 'e1', data: error(1) }))
      .end();
    await read(await response).all();
    assert.equal((await session.resume('e1')).call.cursor, null);
  });

  test('before the result counts as one for as long as the proof lasts, once the result was read', async () => {
    const session = await openSession({ proofMemory: 1_000 });
    await finish(session);
    session.pass(900);
    const { call, response } = await session.resume('p1');
    assert.equal(call.cursor, null);
    call.answer(405, { 'content-type': 'text/plain' }, '');
    await response;
    session.pass(1_001);
    assert.equal((await session.resume('p1')).call.cursor, 'p1');
    assert.equal((await session.resume('e1')).call.cursor, null, 'the result itself needs no proof');
  });

  test('is known for 1 apart from "1"', async () => {
    const session = await openSession();
    const { call, response } = await session.post({ body: `[${request(1)},${request('1')}]` });
    call.respond().write(priming('p'));
    call.write(block({ id: 'e', data: result(1) })).end();
    await read(await response).all();
    assert.equal((await session.resume('e')).call.cursor, 'e', '"1" has no answer yet');
  });

  test('is refused once ten strips in a row brought nothing', async () => {
    const session = await openSession();
    await finish(session);
    for (let round = 0; round < 10; round += 1) {
      const { call, response } = await session.resume('e1');
      call.answer(405, { 'content-type': 'text/plain' }, '');
      await (await response).text();
      session.pass(10);
    }
    assert.deepEqual(await statusIn(await session.get('e1')), { status: 405, rule: 'finished-storm' });
  });

  test('is forwarded for a caller the server has not accepted, where memory alone would answer', async () => {
    const session = await openSession();
    await session.listen();
    await finish(session);
    const { call } = await session.resume('e1', { authorization: 'Bearer another' });
    assert.equal(call.cursor, null, 'it is stripped: the server says whether the caller may listen');
  });
});

describe('a result that the consumer does not have', () => {
  test('because its stream was left before it was read is asked for again', async () => {
    const session = await openSession();
    const { call, response } = await session.post(1);
    call.respond().write(priming('p1'));
    const body = read(await response);
    await body.until('p1');
    call.write(block({ id: 'e1', data: result(1) }));
    await body.until('"result"');
    // Nobody came back for more, so it may be lost on the way.
    await body.cancel();
    const { call: resumed } = await session.resume('p1');
    assert.equal(resumed.cursor, 'p1');
    assert.equal(session.reports.length, 0, 'a replay has to come');
  });

  for (const [ms, cursor] of [
    [99, 'p1'],
    [100, null],
  ] as const) {
    test(`because its stream was left ${ms} ms after it was read is ${cursor === null ? 'not ' : ''}asked for again`, async () => {
      const session = await openSession();
      const { call, response } = await session.post(1);
      call.respond().write(priming('p1'));
      const body = read(await response);
      await body.until('p1');
      call.write(block({ id: 'e1', data: result(1) }));
      await body.until('"result"');
      const more = body.next();
      await session.script.until('the consumer to come back', () => call.pulls > 0);
      session.pass(ms);
      await body.cancel();
      assert.equal(await more, false);
      assert.equal((await session.resume('p1')).call.cursor, cursor);
    });
  }

  test('because the connection broke right behind it is asked for again', async () => {
    const session = await openSession();
    const { call, response } = await session.post(1);
    call.respond().write(priming('p1'));
    const body = read(await response);
    await body.until('p1');
    call.write(block({ id: 'e1', data: result(1) }));
    await body.until('"result"');
    const end = body.next();
    session.pass(99);
    call.break();
    await assert.rejects(end);
    assert.equal((await session.resume('p1')).call.cursor, 'p1');
  });

  test('counts as there where the connection broke a tenth of a second after it was read', async () => {
    const session = await openSession();
    const { call, response } = await session.post(1);
    call.respond().write(priming('p1'));
    const body = read(await response);
    await body.until('p1');
    call.write(block({ id: 'e1', data: result(1) }));
    await body.until('"result"');
    const end = body.next();
    session.pass(100);
    call.break();
    await assert.rejects(end);
    assert.equal((await session.resume('p1')).call.cursor, null);
  });
});

describe('a cursor of a request that is running', () => {
  test('is sent as it is', async () => {
    const session = await openSession();
    await cut(session);
    const { call, response } = await session.resume('p1');
    assert.equal(call.cursor, 'p1');
    call
      .respond()
      .write(block({ id: 'e1', data: result(1) }))
      .end();
    assert.match(await read(await response).all(), /"result"/);
    assert.deepEqual(session.reports, [{ rule: 'in-window', action: 'forward', outcome: 'replayed', refusal: null }]);
    assert.equal((await session.resume('e1')).call.cursor, null, 'and finished afterwards');
  });

  test('is sent even if a finished one has it too', async () => {
    const session = await openSession();
    await finish(session, 1);
    const { call, response } = await session.post(2);
    call.respond().write(priming('p1'));
    const body = read(await response);
    await body.until('p1');
    await body.cancel();
    assert.equal((await session.resume('p1')).call.cursor, 'p1');
  });
});

describe('what is never touched', () => {
  for (const [what, init] of Object.entries({
    'a GET without a cursor': { method: 'GET' },
    'a GET with an empty cursor': { method: 'GET', headers: { 'Last-Event-ID': '' } },
    'a POST with a cursor': { method: 'POST', headers: { 'Last-Event-ID': 'e1' }, body: '{}' },
    'another method': { method: 'PUT', headers: { 'Last-Event-ID': 'e1' } },
    'a revision without resumption': {
      method: 'GET',
      headers: { 'Last-Event-ID': 'e1', 'MCP-Protocol-Version': '2026-07-28', 'Mcp-Session-Id': SESSION },
    },
    'a request with two cursors': {
      method: 'GET',
      headers: [
        ['Last-Event-ID', 'e1'],
        ['Last-Event-ID', 'e2'],
        ['Mcp-Session-Id', SESSION],
      ] as [string, string][],
    },
  } satisfies Record<string, RequestInit>)) {
    test(`${what} is handed on as it came`, async () => {
      const session = await openSession();
      await session.listen();
      await finish(session);
      void session.fetch(URL_OF, init).catch(() => {});
      const call = await session.script.next(what);
      assert.equal(call.input, URL_OF);
      assert.equal(call.init, init, 'the very same object');
    });
  }

  test('another scheme is none of its business', async () => {
    const session = await openSession();
    const init = { method: 'GET', headers: { 'Last-Event-ID': 'e1' } };
    void session.fetch('data:text/plain,x', init).catch(() => {});
    assert.equal((await session.script.next('the call')).init, init);
  });

  test('the caller keeps its own init and headers', async () => {
    const session = await openSession();
    await finish(session);
    const headers = new Headers({ 'Last-Event-ID': 'e1', 'Mcp-Session-Id': SESSION });
    const init = { method: 'GET', headers };
    void session.fetch(URL_OF, init).catch(() => {});
    assert.equal((await session.script.next('the call')).cursor, null);
    assert.equal(headers.get('last-event-id'), 'e1');
    assert.equal(init.headers, headers);
  });
});

describe('sessions', () => {
  test('one that began anew refuses earlier cursors, and fails the call that waits', async () => {
    const session = await openSession();
    await cut(session, 7);
    await session.initialize();
    const response = await session.get('p7');
    const { rule, id, retry } = await errorIn(response);
    assert.deepEqual({ rule, id, retry }, { rule: 'generation-mismatch', id: 7, retry: 'session' });
  });

  test('one that the server ended is 404, until it answers again', async () => {
    const session = await openSession();
    await finish(session);
    const { call, response } = await session.post(2);
    call.answer(404, { 'content-type': 'application/json' }, '{"error":{"code":-32001}}');
    await (await response).text();
    assert.deepEqual(await statusIn(await session.get('other')), { status: 404, rule: 'session-ended' });
    const { call: again, response: answered } = await session.post(3);
    again.answer(202, { 'content-type': 'text/plain' }, '');
    await (await answered).text();
    assert.equal((await session.resume('other')).call.cursor, 'other');
  });

  test('a method that is not found ends no session', async () => {
    const session = await openSession();
    const { call, response } = await session.post(2);
    call.answer(404, { 'content-type': 'application/json' }, error(2, -32601));
    await (await response).text();
    assert.equal((await session.resume('other')).call.cursor, 'other');
  });

  test('a session ended by DELETE is 404', async () => {
    const session = await openSession();
    const headers = { 'Mcp-Session-Id': SESSION };
    const response = session.fetch(URL_OF, { method: 'DELETE', headers });
    (await session.script.next('the DELETE')).respond(204);
    assert.equal((await response).status, 204);
    assert.deepEqual(await statusIn(await session.get('p1')), { status: 404, rule: 'session-ended' });
  });

  test('one that was never seen is forwarded, or refused where that is wished', async () => {
    const headers = { 'mcp-session-id': 'never seen' };
    const forwarding = await openSession();
    assert.equal((await forwarding.resume('p1', headers)).call.cursor, 'p1');
    const refusing = await openSession({ unrecorded: 'refuse' });
    assert.deepEqual(await statusIn(await refusing.get('p1', headers)), { status: 404, rule: 'session-unrecorded' });
    assert.deepEqual(await statusIn(await refusing.get('p1')), { status: 409, rule: 'cursor-unrecorded' });
  });

  test('where all of it passed here, a cursor that was never seen can be refused', async () => {
    const session = await openSession({ unrecorded: 'complete' });
    assert.deepEqual(await statusIn(await session.get('p1')), { status: 409, rule: 'cursor-unrecorded' });
  });

  test('beyond their number the one used least recently is forgotten, and its cursors pass', async () => {
    const session = await openSession({ maxSessions: 2 });
    await session.listen();
    await finish(session);
    await session.initialize('s2');
    assert.equal((await session.get('e1')).status, 405);
    await session.initialize('s3');
    assert.equal((await session.get('e1')).status, 405, 's1 was used after s2');
    await session.initialize('s4');
    await session.initialize('s5');
    assert.equal((await session.resume('e1')).call.cursor, 'e1');
  });

  test('a finished stream is forgotten after ten minutes, and its cursor passes', async () => {
    const session = await openSession();
    await session.listen();
    await finish(session);
    session.pass(599_900);
    assert.equal((await session.get('e1')).status, 405);
    session.pass(200);
    assert.equal((await session.resume('e1')).call.cursor, 'e1');
  });

  test('a server without sessions is guarded by its address', async () => {
    const session = await openSession();
    const none = { 'mcp-session-id': undefined };
    const { call, response } = await session.post(1, none);
    assert.equal(call.headers.has('mcp-session-id'), false);
    call
      .respond()
      .write(block({ id: 'e1', data: result(1) }))
      .end();
    await read(await response).all();
    assert.equal((await session.resume('e1', none)).call.cursor, null);
  });
});

test('settings that make no sense are refused', async () => {
  for (const name of ['replayHold', 'replayDeadline', 'proofMemory', 'maxHeldBytes', 'maxSessions']) {
    for (const value of [-1, Number.NaN]) await assert.rejects(openSession({ [name]: value }), RangeError);
  }
});
