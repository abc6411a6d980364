// Cursors and sessions that were never seen here, or were forgotten, and requests that are no resume at all.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import type { Exchange } from '../support/exchange.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  postStream,
  refusalOf,
} from '../support/session.ts';
import { startTimedGuard, type TimedGuard } from '../support/timed-guard.ts';
import { eventually } from '../support/waiting.ts';

const SESSION = { session: 's-1' } as const;
const UNKNOWN = { ...SESSION, lei: 'x1' } as const;
const REFUSED = 'refused 409 cursor-unrecorded';
const EVENTS = { 'Content-Type': 'text/event-stream' } as const;

async function start(t: TestContext, file: ConfigFile = {}): Promise<Guard> {
  const guard = await startGuard(t, { file });
  await openSession(guard.client, guard.upstream, 's-1');
  return guard;
}

type Ends = Pick<Guard, 'client' | 'upstream'>;

const fate = ({ client, upstream }: Ends, options: Parameters<typeof fateOf>[2] = UNKNOWN) =>
  fateOf(client, upstream, options);

// No resume.

test('what is no resume, or an ambiguous one, passes as it came and is not watched', async (t) => {
  const guard = await start(t, { replayHold: '5s', unrecorded: 'refuse' });
  const { client, upstream, metric } = guard;
  await finishedPost(client, upstream, 1, SESSION, block({ id: 'e2', data: result(1) }));
  const rows = [
    [[['Mcp-Session-Id', 's-1']], 'no cursor'],
    [
      [
        ['Mcp-Session-Id', 's-1'],
        ['Last-Event-ID', ''],
      ],
      'an empty one',
    ],
    [
      [
        ['Mcp-Session-Id', 's-1'],
        ['Last-Event-ID', 'e2'],
        ['MCP-Protocol-Version', '2026-07-28'],
      ],
      'a later revision',
    ],
    [
      [
        ['Mcp-Session-Id', 's-1'],
        ['Last-Event-ID', 'e2'],
        ['MCP-Protocol-Version', '2031-01-01'],
      ],
      'a later one yet',
    ],
    [
      [
        ['Mcp-Session-Id', 's-1'],
        ['Last-Event-ID', 'e2'],
        ['last-event-id', 'e2'],
      ],
      'two cursors',
    ],
    [
      [
        ['Mcp-Session-Id', 's-1'],
        ['Last-Event-ID', 'e2'],
        ['Mcp-Session-Id', 's-1'],
      ],
      'two sessions',
    ],
  ] as const;
  for (const [fields, name] of rows) {
    const reply = await client.get({ fields });
    const exchange = await upstream.next({ method: 'GET' });
    for (const field of ['last-event-id', 'mcp-session-id', 'mcp-protocol-version']) {
      const sent = fields.filter(([key]) => key.toLowerCase() === field).map(([, value]) => value);
      assert.deepEqual(exchange.values(field), sent, name);
    }
    await exchange.events();
    assert.equal((await reply.headWithin(500)).status, 200, name);
    await exchange.end();
    assert.equal((await reply.bytes()).length, 0, name);
  }
  assert.equal(await metric('replays_total'), 0);
  assert.equal(await metric('resumes_total', { rule: 'ambiguous-fields', verdict: 'pass' }), 2);
});

test('a Last-Event-ID on a POST is passed on untouched', async (t) => {
  const guard = await start(t, { unrecorded: 'refuse' });
  const { exchange, reply } = await postStream(guard.client, guard.upstream, 1, UNKNOWN, priming('e1'));
  assert.equal(exchange.field('last-event-id'), 'x1');
  await exchange.end();
  assert.equal(await reply.text(), priming('e1'));
});

// unrecorded: forward.

test('an unknown cursor and an unknown session are forwarded as they came', async (t) => {
  const guard = await start(t);
  assert.equal(await fate(guard), 'forwarded x1');
  assert.equal(await fate(guard, { session: 's-9', lei: 'x1' }), 'forwarded x1');
  assert.equal(await guard.metric('resumes_total', { verdict: 'forward', rule: 'cursor-unrecorded' }), 1);
  assert.equal(await guard.metric('resumes_total', { verdict: 'forward', rule: 'session-unrecorded' }), 1);
});

const NOTHINGS: readonly [name: string, answer: (exchange: Exchange) => Promise<void>][] = [
  ['an empty stream', answerEmpty],
  ['Content-Length: 0 and no media type', (exchange) => exchange.answer(200)],
  ['an empty JSON body', (exchange) => exchange.answer(200, { 'Content-Type': 'application/json' })],
];

for (const [name, answer] of NOTHINGS) {
  for (const session of ['s-1', 's-9']) {
    const known = session === 's-1' ? 'a known session' : 'an unknown session';
    test(`floor and probes work for an unknown cursor in ${known} that upstream answers with ${name}`, async (t) => {
      const guard = await start(t);
      const { client, upstream } = guard;
      for (let round = 0; round < 2; round += 1) {
        const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'x1' });
        assert.equal(exchange.field('last-event-id'), 'x1');
        await answer(exchange);
        assert.equal((await refusalOf(reply)).rule, 'empty-replay');
      }
      assert.equal(await fate(guard, { session, lei: 'x1' }), 'refused 409 below-replay-floor');
    });
  }
}

test('a cursor that upstream does not accept stays unrecorded', async (t) => {
  const guard = await start(t, {});
  for (const status of [400, 404, 405, 409, 500]) {
    const { reply, exchange } = await forwardedGet(guard.client, guard.upstream, UNKNOWN);
    await exchange.answer(status);
    assert.equal((await reply.head).status, status);
    await reply.ended;
  }
  const recorded = () => guard.metric('resumes_total', { rule: 'cursor-unrecorded' });
  await eventually('all of them to be counted', async () => (await recorded()) === 5);
});

test('an accepted one is the first position of an open stream: inclusive replays are known, and it never finishes', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  const first = block({ id: 'x2', data: progress(1) });
  const replay = async (lei: string, ...blocks: string[]): Promise<string> => {
    const { reply, exchange } = await forwardedGet(client, upstream, { ...SESSION, lei });
    assert.equal(exchange.field('last-event-id'), lei);
    await exchange.events(...blocks);
    await exchange.end();
    return reply.text();
  };
  assert.equal(await replay('x1', first), first);
  assert.equal(await replay('x2', first, priming('x3')), priming('x3'));
  assert.equal(await replay('x3', block({ id: 'x4', data: result(1) })), block({ id: 'x4', data: result(1) }));
  assert.equal(await fate(guard, { ...SESSION, lei: 'x4' }), 'forwarded x4');
  assert.equal(await guard.metric('resumes_total', { rule: 'in-window' }), 3);
});

// unrecorded: refuse.

test('unrecorded: refuse refuses both, the session to anybody', async (t) => {
  const guard = await start(t, { unrecorded: 'refuse' });
  assert.equal(await fate(guard), REFUSED);
  assert.equal(await fate(guard, { session: 's-9', lei: 'x1' }), 'refused 404 session-unrecorded');
  assert.equal(await fate(guard, { session: 's-9', lei: 'x1', token: 'any' }), 'refused 404 session-unrecorded');
  assert.equal(await fate(guard, { ...UNKNOWN, token: 'stranger' }), 'forwarded x1');
});

// unrecorded: complete.

const COMPLETE = { unrecorded: 'complete' } as const;

test('unrecorded: complete refuses a cursor of a session that was seen whole, and no session', async (t) => {
  const guard = await start(t, COMPLETE);
  await finishedPost(guard.client, guard.upstream, 1, SESSION, priming('e1'), block({ id: 'e2', data: result(1) }));
  assert.equal(await fate(guard), REFUSED);
  assert.equal(await fate(guard, { session: 's-9', lei: 'x1' }), 'forwarded x1');
});

test('it forwards in a session whose initialize did not pass here', async (t) => {
  const guard = await startGuard(t, { file: COMPLETE });
  await finishedPost(guard.client, guard.upstream, 1, SESSION, block({ id: 'e2', data: result(1) }));
  assert.equal(await fate(guard), 'forwarded x1');
});

test('it forwards after something was read blindly', async (t) => {
  const guard = await start(t, COMPLETE);
  const reply = await guard.client.post(1, SESSION);
  const exchange = await guard.upstream.next({ method: 'POST' });
  await exchange.answer(200, { ...EVENTS, 'Content-Encoding': 'zstd' }, 'no more than five letters');
  await reply.bytes();
  assert.equal(await fate(guard), 'forwarded x1');
});

test('it forwards after an event ID was dropped, and after a stream was forgotten', async (t) => {
  const dropped = await start(t, { ...COMPLETE, bounds: { eventIdsPerStream: 2 } });
  const events = [1, 2, 3].map((n) => priming(`e${n}`));
  await finishedPost(dropped.client, dropped.upstream, 1, SESSION, ...events, block({ id: 'e9', data: result(1) }));
  for (const lei of ['x1', 'e1']) assert.equal(await fate(dropped, { ...SESSION, lei }), `forwarded ${lei}`);

  const forgotten = await start(t, { ...COMPLETE, bounds: { streamsPerSession: 2 } });
  for (const id of [1, 2]) {
    await finishedPost(forgotten.client, forgotten.upstream, id, SESSION, block({ id: `e${id}`, data: result(id) }));
  }
  assert.equal(await fate(forgotten), REFUSED);
  await finishedPost(forgotten.client, forgotten.upstream, 3, SESSION, block({ id: 'e3', data: result(3) }));
  for (const lei of ['x1', 'e1']) assert.equal(await fate(forgotten, { ...SESSION, lei }), `forwarded ${lei}`);
});

// Forgetting.

async function timed(t: TestContext, file: ConfigFile = {}): Promise<TimedGuard> {
  const guard = await startTimedGuard(t, file);
  await openSession(guard.client, guard.upstream, 's-1');
  return guard;
}

test('a finished stream is remembered for ten minutes, an open one for an hour', async (t) => {
  const guard = await timed(t);
  const { client, upstream, clock, metric } = guard;
  await finishedPost(client, upstream, 1, SESSION, block({ id: 'e2', data: result(1) }));
  await cutPost(client, upstream, 2, SESSION, priming('f1'));
  clock.advance(599_999);
  assert.equal(await fate(guard, { ...SESSION, lei: 'e2' }), 'stripped');
  clock.advance(1);
  assert.equal(await fate(guard, { ...SESSION, lei: 'e2' }), 'forwarded e2');
  clock.advance(2_999_999);
  await fate(guard, { ...SESSION, lei: 'f1' });
  assert.equal(await metric('resumes_total', { rule: 'in-window' }), 1);
  clock.advance(3_600_000);
  await fate(guard, { ...SESSION, lei: 'f1' });
  assert.equal(await metric('resumes_total', { rule: 'in-window' }), 1);
  assert.equal(await metric('resumes_total', { rule: 'cursor-unrecorded' }), 2);
});

test('a stream that is open is not forgotten, however long it lasts', async (t) => {
  const guard = await timed(t);
  const { client, upstream, clock } = guard;
  const { reply, exchange } = await postStream(client, upstream, 1, SESSION, priming('e1'));
  clock.advance(10 * 3_600_000);
  await fate(guard, UNKNOWN);
  await exchange.end(block({ id: 'e2', data: result(1) }));
  await reply.bytes();
  assert.equal(await fate(guard, { ...SESSION, lei: 'e2' }), 'stripped');
});

test('a cursor that may belong to a forgotten open stream is forwarded, although a delivered one has it too', async (t) => {
  const guard = await start(t, { bounds: { eventIdsPerStream: 2 } });
  const { client, upstream } = guard;
  await cutPost(client, upstream, 1, SESSION, priming('same'), priming('e2'), priming('e3'));
  await finishedPost(client, upstream, 2, SESSION, block({ id: 'same', data: result(2) }));
  assert.equal(await fate(guard, { ...SESSION, lei: 'same' }), 'forwarded same');
});

test('of too many sessions the one not used for longest is forgotten', async (t) => {
  const guard = await startGuard(t, { file: { bounds: { sessions: 2 } } });
  const { client, upstream } = guard;
  for (const session of ['s-1', 's-2']) {
    await openSession(client, upstream, session);
    await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  }
  assert.equal(await fate(guard, { ...SESSION, lei: 'e2' }), 'stripped');
  await openSession(client, upstream, 's-3');
  assert.equal(await fate(guard, { ...SESSION, lei: 'e2' }), 'stripped');
  assert.equal(await fate(guard, { session: 's-2', lei: 'e2' }), 'forwarded e2');
});

test('a long event ID is known like a short one, also in UTF-8', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  for (const [n, id] of ['x'.repeat(257), 'y'.repeat(4_000), 'z\u00e9\u4e16'].entries()) {
    await finishedPost(client, upstream, n, SESSION, block({ id, data: result(n) }));
    const lei = Buffer.from(id).toString('latin1');
    assert.equal(await fate(guard, { ...SESSION, lei }), 'stripped', id.slice(0, 5));
    assert.equal(await fate(guard, { ...SESSION, lei: `${lei}.` }), `forwarded ${lei}.`);
  }
});
