// A client breaks at one replica and resumes at another, for every rule of section 3.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import { RULES, type RuleName } from '../../src/core/decide.ts';
import type { McpOptions } from '../support/client.ts';
import { block, initializeResult, notification, priming, progress, result } from '../support/messages.ts';
import { startRedis } from '../support/redis.ts';
import { type ReplicaGuard, type Replicas, startReplicas } from '../support/replicas.ts';
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
import { eventually } from '../support/waiting.ts';

const SESSION = { session: 's-1' } as const;
const answer = (id: number, event: string): string => block({ id: event, data: result(id) });

interface Pair {
  readonly a: ReplicaGuard;
  readonly b: ReplicaGuard;
  readonly replicas: Replicas;
}

/** Two replicas, one of which has opened a session. The clock of the other may be ahead, in ms. */
async function startPair(t: TestContext, file: ConfigFile = {}, ahead = 0): Promise<Pair> {
  const redis = await startRedis(t);
  const replicas = await startReplicas(t, redis.url, file);
  const a = await replicas.start();
  const b = await replicas.start({}, { wall: () => Date.now() + ahead });
  await openSession(a.client, a.upstream, 's-1');
  return { a, b, replicas };
}

const fate = ({ client, upstream }: ReplicaGuard, lei: string, options: McpOptions = {}) =>
  fateOf(client, upstream, { ...SESSION, lei, ...options });

/** A listening stream with one event, all of it at the client. */
async function listen({ client, upstream }: ReplicaGuard) {
  const pair = await forwardedGet(client, upstream, SESSION);
  const news = block({ id: 'n1', data: notification('notifications/message') });
  await pair.exchange.events(news);
  await pair.reply.until(news);
  return pair;
}

/** A forwarded resume to which upstream says nothing. */
async function emptyResume({ client, upstream }: ReplicaGuard, lei: string): Promise<void> {
  const { reply, exchange } = await forwardedGet(client, upstream, { ...SESSION, lei });
  await answerEmpty(exchange);
  assert.equal((await refusalOf(reply)).rule, 'empty-replay');
}

interface Row {
  readonly rule: RuleName;
  readonly name: string;
  readonly file?: ConfigFile;
  /** What the second does comes so much later than what the first did, in ms. */
  readonly later?: number;
  /** What happens at the first replica, and what a resume then comes to at the second. */
  readonly run: (pair: Pair) => Promise<void>;
}

const ROWS: readonly Row[] = [
  {
    rule: 'not-a-resume',
    name: 'a GET without a cursor passes',
    async run({ b }) {
      const { reply, exchange } = await forwardedGet(b.client, b.upstream, SESSION);
      await exchange.answer(405, { Allow: 'POST' });
      assert.equal((await reply.head).status, 405);
    },
  },
  {
    rule: 'revision-without-resumption',
    name: 'a cursor of a revision that has none passes',
    async run({ a, b }) {
      await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
      await a.told();
      assert.equal(await fate(b, 'e2', { version: '2026-07-28' }), 'forwarded e2');
    },
  },
  {
    rule: 'ambiguous-fields',
    name: 'a cursor given twice passes',
    async run({ a, b }) {
      await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
      await a.told();
      assert.equal(await fate(b, 'e2', { fields: { 'Last-Event-ID': 'e2' } }), 'forwarded e2');
    },
  },
  {
    rule: 'minted-id',
    name: 'an event ID that the other replica minted is refused',
    file: { refuseWith: 'event' },
    async run({ a, b }) {
      await cutPost(a.client, a.upstream, 1, SESSION, priming('e1'));
      const { reply, exchange } = await forwardedGet(a.client, a.upstream, { ...SESSION, lei: 'e1' });
      await answerEmpty(exchange);
      const [, minted = ''] = /^id: (mrg-\S+)$/m.exec(await reply.text()) ?? [];
      const again = await b.client.get({ ...SESSION, lei: minted });
      assert.equal((await again.head).status, 405);
    },
  },
  {
    rule: 'session-ended',
    name: 'a session that was deleted through the other replica is gone',
    async run({ a, b }) {
      await cutPost(a.client, a.upstream, 1, SESSION, priming('e1'));
      const reply = await a.client.delete(SESSION);
      await (await a.upstream.next({ method: 'DELETE' })).answer(200);
      await reply.bytes();
      await a.told();
      assert.equal(await fate(b, 'e1'), 'refused 404 session-ended');
      assert.equal(await fate(b, 'e1', { token: 'a-stranger' }), 'forwarded e1', 'upstream answers strangers itself');
    },
  },
  {
    rule: 'generation-mismatch',
    name: 'a cursor from before an initialize at the other replica is of another generation, at both',
    later: 2_000,
    async run({ a, b }) {
      await cutPost(a.client, a.upstream, 1, SESSION, priming('e1'));
      await a.told();
      await openSession(b.client, b.upstream, 's-1');
      await cutPost(b.client, b.upstream, 1, SESSION, priming('f1'));
      await b.told();
      assert.equal(await fate(b, 'e1'), 'refused 409 generation-mismatch');
      assert.equal(await fate(a, 'e1'), 'refused 409 generation-mismatch');
      assert.equal(await fate(a, 'f1'), 'forwarded f1');
    },
  },
  {
    rule: 'finished-while-listening',
    name: 'a finished cursor is refused while the other replica has a listening stream, and stripped afterwards',
    async run({ a, b }) {
      await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
      const { exchange, reply } = await listen(a);
      await a.told();
      const refused = async () => (await fate(b, 'e2')) === 'refused 409 finished-while-listening';
      await eventually('a beat of the first to be heard', refused);
      await exchange.end();
      await reply.ended;
      await a.told();
      assert.equal(await fate(b, 'e2'), 'stripped');
    },
  },
  {
    rule: 'finished-storm',
    name: 'ten strips at two replicas are a storm at both',
    async run({ a, b }) {
      await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
      await a.told();
      for (let round = 0; round < 5; round += 1) {
        assert.equal(await fate(a, 'e2'), 'stripped');
        assert.equal(await fate(b, 'e2'), 'stripped');
      }
      for (const replica of [a, b]) await replica.told();
      assert.equal(await fate(b, 'e2'), 'refused 409 finished-storm');
    },
  },
  {
    rule: 'finished',
    name: 'a cursor at the result is stripped',
    async run({ a, b }) {
      await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
      await a.told();
      assert.equal(await fate(b, 'e2'), 'stripped');
    },
  },
  {
    rule: 'standalone-below-floor',
    name: 'a listening stream whose resume brought nothing begins anew',
    async run({ a, b }) {
      const { exchange, reply } = await listen(a);
      await exchange.end();
      await reply.ended;
      await emptyResume(a, 'n1');
      await a.told();
      assert.equal(await fate(b, 'n1'), 'stripped');
    },
  },
  {
    rule: 'below-replay-floor',
    name: 'a cursor that brought nothing twice is refused without asking upstream again',
    async run({ a, b }) {
      await cutPost(a.client, a.upstream, 1, SESSION, priming('e1'), block({ id: 'e2', data: progress(1) }));
      for (let round = 0; round < 2; round += 1) await emptyResume(a, 'e1');
      await a.told();
      assert.equal(await fate(b, 'e1'), 'refused 409 below-replay-floor');
      assert.equal(await fate(b, 'e2'), 'forwarded e2');
    },
  },
  {
    rule: 'finished-undelivered',
    name: 'a result that the client of the other replica may not have is asked for',
    file: { replayDeadline: '300ms' },
    async run({ a, b }) {
      await cutPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
      await a.told();
      const { reply, exchange } = await forwardedGet(b.client, b.upstream, { ...SESSION, lei: 'e1' });
      assert.equal(exchange.field('last-event-id'), 'e1');
      await exchange.events(answer(1, 'e2'));
      await reply.until(answer(1, 'e2'));
      await exchange.end();
      assert.equal(await reply.ended, 'end');
      await b.told();
      assert.equal(await fate(a, 'e2'), 'stripped', 'and now it has it');
    },
  },
  {
    rule: 'in-window',
    name: 'an unfinished request goes on at the other replica, and back again',
    async run({ a, b }) {
      await cutPost(a.client, a.upstream, 1, SESSION, priming('e1'));
      await a.told();
      const resumed = await forwardedGet(b.client, b.upstream, { ...SESSION, lei: 'e1' });
      await resumed.exchange.events(block({ id: 'e2', data: progress(1) }));
      await resumed.reply.until('e2');
      resumed.exchange.cut();
      await resumed.reply.ended;
      await b.told();
      const again = await forwardedGet(a.client, a.upstream, { ...SESSION, lei: 'e2' });
      await again.exchange.events(answer(1, 'e3'));
      await again.exchange.end();
      assert.equal(await again.reply.ended, 'end');
      await a.told();
      assert.equal(await fate(b, 'e3'), 'stripped');
    },
  },
  {
    rule: 'cursor-unrecorded',
    name: 'an ID that no replica saw is refused where the view of all of them is complete',
    file: { unrecorded: 'complete' },
    async run({ a, b }) {
      await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
      await a.told();
      assert.equal(await fate(b, 'x1'), 'refused 409 cursor-unrecorded');
      assert.equal(await fate(b, 'e2'), 'stripped');
    },
  },
  {
    rule: 'session-unrecorded',
    name: 'a session that no replica saw is refused where they see everything',
    file: { unrecorded: 'refuse' },
    async run({ a, b }) {
      await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
      await a.told();
      assert.equal(await fate(b, 'x1', { session: 's-2' }), 'refused 404 session-unrecorded');
      assert.equal(await fate(b, 'e2'), 'stripped');
    },
  },
];

test('every rule has its row', () => {
  assert.deepEqual(new Set(ROWS.map(({ rule }) => rule)), new Set(RULES.map(({ name }) => name)));
});

for (const { rule, name, file, later, run } of ROWS) {
  test(`${rule}: ${name}`, async (t) => {
    const pair = await startPair(t, file, later);
    await run(pair);
    for (const replica of [pair.a, pair.b]) {
      assert.equal(await replica.metric('store_errors_total'), 0);
      assert.equal(await replica.metric('store_dropped_total'), 0);
    }
  });
}

// Outcomes that depend on what happened elsewhere.

test('a server that polls may be polled at any replica', async (t) => {
  const { a, b } = await startPair(t);
  await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1', 100));
  await a.told();
  for (const replica of [b, a]) {
    const { reply, exchange } = await forwardedGet(replica.client, replica.upstream, { ...SESSION, lei: 'e1' });
    await answerEmpty(exchange);
    assert.equal((await reply.head).status, 200);
    await reply.bytes();
    await replica.told();
  }
  assert.equal(await b.metric('replays_total', 'outcome="polled"'), 1);
});

test('an empty replay passes while the other replica has an exchange of that stream open', async (t) => {
  const { a, b } = await startPair(t);
  const { exchange: open } = await postStream(a.client, a.upstream, 1, SESSION, priming('e1'));
  await a.told();
  const displaced = async (): Promise<boolean> => {
    const { reply, exchange } = await forwardedGet(b.client, b.upstream, { ...SESSION, lei: 'e1' });
    await answerEmpty(exchange);
    await reply.bytes();
    return (await b.metric('replays_total', 'outcome="displaced"')) > 0;
  };
  await eventually('a beat of the first to be heard', displaced);
  open.cut();
});

test('a replay drops what the client has from the other replica', async (t) => {
  const { a, b } = await startPair(t);
  const [first, second] = [block({ id: 'e2', data: progress(1) }), answer(1, 'e3')];
  await cutPost(a.client, a.upstream, 1, SESSION, priming('e1'), first);
  await a.told();
  const { reply, exchange } = await forwardedGet(b.client, b.upstream, { ...SESSION, lei: 'e2' });
  await exchange.events(first, second);
  await exchange.end();
  assert.equal(await reply.text(), second);
});

// A restart.

test('a proxy that was restarted strips a finished cursor and forwards an unfinished one', async (t) => {
  const { a, replicas } = await startPair(t);
  await finishedPost(a.client, a.upstream, 1, SESSION, priming('e1'), answer(1, 'e2'));
  await cutPost(a.client, a.upstream, 2, SESSION, priming('f1'));
  await a.close();
  const again = await replicas.start();
  assert.equal(await fate(again, 'e2'), 'stripped');
  assert.equal(await fate(again, 'f1'), 'forwarded f1');
});

test('a session ID that comes back after a restart of the proxy begins a generation', async (t) => {
  const { a, replicas } = await startPair(t);
  await cutPost(a.client, a.upstream, 1, SESSION, priming('e1'));
  await a.close();
  const again = await replicas.start({}, { wall: () => Date.now() + 2_000 });
  const reply = await again.client.initialize();
  await (await again.upstream.next({ method: 'POST' })).json(200, initializeResult(), { 'Mcp-Session-Id': 's-1' });
  await reply.bytes();
  assert.equal(await fate(again, 'e1'), 'refused 409 generation-mismatch');
});
