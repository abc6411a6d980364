// mode: observe decides, logs and counts everything, and changes nothing.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import type { McpOptions } from '../support/client.ts';
import type { Exchange } from '../support/exchange.ts';
import { type Guard, type LogLine, startGuard } from '../support/guard.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import { answerEmpty, cutPost, finishedPost, forwardedGet, openSession, postStream } from '../support/session.ts';
import { eventually } from '../support/waiting.ts';

const SESSION = { session: 's-1' } as const;
const EVENTS = { 'Content-Type': 'text/event-stream' } as const;
const OPEN = 'e1';
const DONE = 'f2';

async function start(t: TestContext, file: ConfigFile = {}): Promise<Guard> {
  const guard = await startGuard(t, { file: { mode: 'observe', replayHold: '5s', ...file } });
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, SESSION, priming(OPEN));
  await finishedPost(client, upstream, 8, SESSION, priming('f1'), block({ id: DONE, data: result(8) }));
  return guard;
}

/** A resume that must reach upstream as it was sent; upstream answers it with a status of its own. */
async function passes({ client, upstream }: Guard, options: McpOptions, status = 418): Promise<void> {
  const { reply, exchange } = await forwardedGet(client, upstream, options);
  assert.equal(exchange.field('last-event-id'), options.lei);
  await exchange.answer(status, { 'X-Own': '1', 'Content-Type': 'text/plain' }, 'mine');
  const head = await reply.head;
  assert.deepEqual([head.status, head.field('x-own'), head.field('proxy-status')], [status, '1', undefined]);
  assert.equal(await reply.text(), 'mine');
}

/** The log line of the latest decided resume. */
async function lineOf({ logs }: Guard, rule: string): Promise<LogLine> {
  const find = () => logs.filter((line) => line['rule'] === rule).at(-1);
  await eventually(`the line of ${rule}`, () => find() !== undefined);
  return find()!;
}

interface Row {
  readonly verdict: 'refuse' | 'strip';
  readonly lei: string;
  readonly file?: ConfigFile;
  readonly session?: string;
  readonly prepare?: (guard: Guard) => Promise<unknown>;
}

const ROWS: Readonly<Record<string, Row>> = {
  'session-ended': {
    verdict: 'refuse',
    lei: OPEN,
    prepare: async ({ client, upstream }) => {
      const reply = await client.delete(SESSION);
      await (await upstream.next({ method: 'DELETE' })).answer(200);
      await reply.ended;
    },
  },
  'generation-mismatch': {
    verdict: 'refuse',
    lei: OPEN,
    prepare: ({ client, upstream }) => openSession(client, upstream, 's-1'),
  },
  'finished-while-listening': {
    verdict: 'refuse',
    lei: DONE,
    prepare: async ({ client, upstream }) => {
      const { reply, exchange } = await forwardedGet(client, upstream, SESSION);
      await exchange.events();
      await reply.head;
    },
  },
  'finished-storm': {
    verdict: 'refuse',
    lei: DONE,
    prepare: async (guard) => {
      for (let round = 0; round < 10; round += 1) await passes(guard, { ...SESSION, lei: DONE });
    },
  },
  finished: { verdict: 'strip', lei: DONE },
  'standalone-below-floor': {
    verdict: 'strip',
    lei: 'n1',
    prepare: async (guard) => {
      const { client, upstream } = guard;
      const { reply, exchange } = await forwardedGet(client, upstream, SESSION);
      await exchange.events(priming('n1'));
      await exchange.end();
      await reply.bytes();
      const empty = await forwardedGet(client, upstream, { ...SESSION, lei: 'n1' });
      await answerEmpty(empty.exchange);
      assert.equal((await empty.reply.head).status, 200);
      await empty.reply.bytes();
    },
  },
  'below-replay-floor': {
    verdict: 'refuse',
    lei: OPEN,
    prepare: async ({ client, upstream }) => {
      for (let round = 0; round < 2; round += 1) {
        const { reply, exchange } = await forwardedGet(client, upstream, { ...SESSION, lei: OPEN });
        await answerEmpty(exchange);
        assert.equal((await reply.head).status, 200);
        assert.equal((await reply.bytes()).length, 0);
      }
    },
  },
  'cursor-unrecorded': { verdict: 'refuse', lei: 'x1', file: { unrecorded: 'refuse' } },
  'session-unrecorded': { verdict: 'refuse', lei: 'x1', session: 's-9', file: { unrecorded: 'refuse' } },
};

for (const [rule, { verdict, lei, file = {}, session = 's-1', prepare }] of Object.entries(ROWS)) {
  test(`what ${rule} would ${verdict} passes as it was sent, is logged and is counted`, async (t) => {
    const guard = await start(t, file);
    await prepare?.(guard);
    await passes(guard, { session, lei });
    const line = await lineOf(guard, rule);
    assert.deepEqual(
      [line['verdict'], line['observed'], line['status'], line['refusal']],
      [verdict, true, 418, verdict === 'refuse' ? rule : undefined],
    );
    assert.equal(await guard.metric('resumes_total', { verdict, rule }), 1);
  });
}

test('a finished cursor in front of a 200 gets it unmarked', async (t) => {
  const guard = await start(t);
  await passes(guard, { ...SESSION, lei: DONE }, 200);
});

// Replays.

test('no head is held, and an empty, late or broken replay ends as upstream ended it', async (t) => {
  const guard = await start(t);
  const { client, upstream, metric } = guard;
  const cursor = { ...SESSION, lei: OPEN };
  for (const end of ['end', 'cut'] as const) {
    const { reply, exchange } = await forwardedGet(client, upstream, cursor);
    await exchange.events();
    assert.equal((await reply.headWithin(500)).status, 200);
    await exchange.write(': hello\n\n');
    await reply.until(': hello\n\n', 500);
    await exchange[end]();
    assert.equal(await reply.ended, end);
    assert.equal(reply.body.toString(), ': hello\n\n');
  }
  await eventually('both outcomes', async () => {
    const [empty, broken] = [
      await metric('replays_total', { outcome: 'empty' }),
      await metric('replays_total', { outcome: 'broken' }),
    ];
    return empty === 1 && broken === 1;
  });
  const line = await lineOf(guard, 'in-window');
  assert.equal(line['observed'], true);
});

test('an undelivered result that stays silent is counted, and the client goes on waiting for it', async (t) => {
  const guard = await start(t, { deliveryProof: 'event-id', replayDeadline: '100ms' });
  const { reply, exchange } = await forwardedGet(guard.client, guard.upstream, { ...SESSION, lei: 'f1' });
  await exchange.events();
  await reply.headWithin(500);
  await reply.quiet(300);
  await exchange.end(block({ id: DONE, data: result(8) }));
  assert.equal(await reply.text(), block({ id: DONE, data: result(8) }));
  await eventually('the outcome', async () => (await guard.metric('replays_total', { outcome: 'silent' })) === 1);
});

test('a replay keeps its length and what it repeats, and the repetition is counted', async (t) => {
  const guard = await start(t);
  const { reply, exchange } = await forwardedGet(guard.client, guard.upstream, { ...SESSION, lei: OPEN });
  const terminal = block({ id: 'e3', data: result(7) });
  const body = priming(OPEN) + block({ id: 'e2', data: progress(7) }) + terminal + terminal;
  await exchange.answer(200, EVENTS, body);
  assert.equal((await reply.head).field('content-length'), String(body.length));
  assert.equal(await reply.text(), body);
  await eventually('both repetitions', async () => (await guard.metric('duplicates_total')) === 2);
});

test('an unfinished block passes as it comes', async (t) => {
  const guard = await start(t);
  const { reply, exchange } = await forwardedGet(guard.client, guard.upstream, { ...SESSION, lei: OPEN });
  await exchange.events('id: e1\nda');
  await reply.until('id: e1\nda', 500);
  await exchange.end('ta: \n\n');
  assert.equal(await reply.text(), priming(OPEN));
});

test('POSTs, generations and results are seen as in enforce', async (t) => {
  const guard = await start(t);
  const { client, upstream, metric } = guard;
  await finishedPost(client, upstream, 9, SESSION, block({ id: 'g1', data: result(9) }));
  await openSession(client, upstream, 's-1');
  assert.equal(await metric('terminal_events_total', { kind: 'result' }), 2);
  assert.equal(await metric('generations_total', { cause: 'initialize' }), 1);
  const open = await postStream(client, upstream, 10, SESSION, priming('h1'));
  assert.equal(await metric('streams_open', { kind: 'request' }), 1);
  open.reply.destroy();
});

test('the 403 of a strange Host stays, and upstream sees nothing of it', async (t) => {
  const guard = await start(t);
  const before = guard.upstream.requests.length;
  for (const fields of [{ Host: 'evil.example' }, { Origin: 'https://evil.example' }] as Record<string, string>[]) {
    const reply = await guard.client.get({ ...SESSION, fields });
    assert.equal((await reply.head).status, 403);
    await reply.bytes();
  }
  assert.equal(guard.upstream.requests.length, before);
});

test('one route may be observed while another enforces', async (t) => {
  const guard = await startGuard(t);
  const seen: (string | undefined)[] = [];
  guard.upstream.handle(async (exchange: Exchange) => {
    if (exchange.method === 'GET') seen.push(exchange.field('last-event-id'));
    if (exchange.method === 'GET') await exchange.answer(405);
    else {
      await exchange.events(block({ id: 'e2', data: result(1) }));
      await exchange.end();
    }
  });
  const url = guard.upstream.url;
  const routed = await startGuard(t, {
    file: {
      routes: [
        { path: '/observed', upstream: url, mode: 'observe' },
        { path: '/enforced', upstream: url },
      ],
    },
  });
  for (const path of ['/observed', '/enforced']) {
    await (await routed.client.post(1, { ...SESSION, path })).bytes();
    await (await routed.client.get({ ...SESSION, path, lei: 'e2' })).bytes();
  }
  assert.deepEqual(seen, ['e2', undefined]);
});
