// Generations of a session: what begins one, and what does not. Restarts of upstream are in restarts.test.ts.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, error, initializeResult, priming, progress, result } from '../support/messages.ts';
import type { Reply } from '../support/reply.ts';
import { cutPost, fateOf, finishedPost, openSession, type Pair, postStream } from '../support/session.ts';

const SESSION = { session: 's-1' } as const;
const OLD = { ...SESSION, lei: 'e1' } as const;
const MISMATCH = 'refused 409 generation-mismatch';

/** A guard whose session has an open request with the cursor `e1`. */
async function start(t: TestContext, upstreamFile: ConfigFile['upstream'] = {}): Promise<Guard> {
  const guard = await startGuard(t, { upstreamFile });
  await openSession(guard.client, guard.upstream, 's-1');
  await cutPost(guard.client, guard.upstream, 1, SESSION, priming('e1'));
  return guard;
}

const fate = ({ client, upstream }: Guard, options: Parameters<typeof fateOf>[2] = OLD) =>
  fateOf(client, upstream, options);

const generations = ({ metric }: Guard, cause: string): Promise<number> => metric('generations_total', { cause });

/** `initialize` in a session; `answer` writes what upstream says. */
async function initialize(
  { client, upstream }: Guard,
  answer: (exchange: Pair['exchange']) => Promise<void>,
  options = {},
): Promise<Reply> {
  const reply = await client.initialize(options);
  await answer(await upstream.next({ method: 'POST' }));
  await reply.ended;
  return reply;
}

const RETURNS = [['Mcp-Session-Id', 's-1']] as const;
const asStream = (...blocks: string[]) => {
  return async (exchange: Pair['exchange']): Promise<void> => {
    await exchange.head(200, [['Content-Type', 'text/event-stream'], ...RETURNS]);
    await exchange.writeEach(blocks);
    await exchange.end();
  };
};

// `initialize`.

const SUCCESSES = [
  ['as JSON', (exchange: Pair['exchange']) => exchange.json(200, initializeResult(), RETURNS)],
  ['as a stream', asStream(block({ data: initializeResult() }))],
  ['as a stream with a priming event', asStream(priming('i1'), block({ id: 'i2', data: initializeResult() }))],
] as const;

for (const [name, answer] of SUCCESSES) {
  test(`an initialize that succeeds ${name} with the ID in its response begins a generation`, async (t) => {
    const guard = await start(t);
    await initialize(guard, answer);
    assert.equal(await fate(guard), MISMATCH);
    assert.equal(await generations(guard, 'initialize'), 1);
    await cutPost(guard.client, guard.upstream, 1, SESSION, priming('e1'));
    assert.equal(await fate(guard), 'forwarded e1', 'the same ID has an owner in the new generation');
  });
}

const FAILURES = [
  ['is a JSON-RPC error', (exchange: Pair['exchange']) => exchange.json(200, error(0), RETURNS)],
  ['is a JSON-RPC error on a stream', asStream(block({ data: error(0) }))],
  ['is a 400', (exchange: Pair['exchange']) => exchange.json(400, initializeResult(), RETURNS)],
  [
    'breaks before the result',
    async (exchange: Pair['exchange']) => {
      await exchange.head(200, [['Content-Type', 'text/event-stream'], ...RETURNS]);
      await exchange.write(priming('i1'));
      exchange.cut();
    },
  ],
  [
    'names another session',
    (exchange: Pair['exchange']) => exchange.json(200, initializeResult(), { 'Mcp-Session-Id': 's-2' }),
  ],
  ['names none', (exchange: Pair['exchange']) => exchange.json(200, initializeResult())],
] as const;

for (const [name, answer] of FAILURES) {
  test(`an initialize whose answer ${name} begins none`, async (t) => {
    const guard = await start(t);
    await initialize(guard, answer, SESSION);
    assert.equal(await fate(guard), 'forwarded e1');
    assert.equal(await metricOfAll(guard), 0);
  });
}

const metricOfAll = ({ metric }: Guard): Promise<number> => metric('generations_total');

test('every cursor of an earlier generation is refused, finished or not', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  await finishedPost(client, upstream, 2, SESSION, block({ id: 'f2', data: result(2) }));
  assert.equal(await fate(guard, { ...SESSION, lei: 'f2' }), 'stripped');
  await initialize(guard, SUCCESSES[0][1]);
  assert.equal(await fate(guard, { ...SESSION, lei: 'f2' }), MISMATCH);
  assert.equal(await fate(guard), MISMATCH);
  assert.equal(await fate(guard, { ...SESSION, lei: 'f9' }), 'forwarded f9', 'a cursor nobody knows is unrecorded');
});

test('a reused event ID alone is no new generation', async (t) => {
  const guard = await start(t);
  await cutPost(guard.client, guard.upstream, 2, SESSION, priming('e1'), block({ id: 'e1', data: progress(2) }));
  assert.equal(await fate(guard), 'forwarded e1');
  assert.equal(await metricOfAll(guard), 0);
});

test('a stream that was open goes on being read in a new generation, and its cursors are of the old one', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  const { reply, exchange } = await postStream(client, upstream, 2, SESSION, priming('f1'));
  await initialize(guard, SUCCESSES[0][1]);
  const late = block({ id: 'f2', data: progress(2) }) + block({ id: 'f3', data: result(2) });
  await exchange.end(late);
  assert.equal(await reply.text(), priming('f1') + late);
  assert.equal(await guard.metric('terminal_events_total'), 1);
  for (const lei of ['f1', 'f2', 'f3']) assert.equal(await fate(guard, { ...SESSION, lei }), MISMATCH, lei);
});

// The field that names an instance.

const answerAs = (instance: string) => (exchange: Pair['exchange']) =>
  exchange.json(200, result(9), { 'X-Instance': instance });

async function call({ client, upstream }: Guard, answer: (exchange: Pair['exchange']) => Promise<void>): Promise<void> {
  const reply = await client.post(9, SESSION);
  await answer(await upstream.next({ method: 'POST' }));
  await reply.bytes();
}

test('a changed value of upstream.instanceField begins a generation', async (t) => {
  const guard = await start(t, { instanceField: 'x-instance' });
  await call(guard, answerAs('one'));
  assert.equal(await fate(guard), 'forwarded e1', 'the first value changes nothing');
  await call(guard, answerAs('one'));
  await call(guard, (exchange) => exchange.json(200, result(9)));
  assert.equal(await fate(guard), 'forwarded e1');
  await call(guard, answerAs('two'));
  assert.equal(await fate(guard), MISMATCH);
  assert.equal(await generations(guard, 'instance'), 1);
  await cutPost(guard.client, guard.upstream, 2, SESSION, priming('f1'));
  await call(guard, answerAs('two'));
  assert.equal(await fate(guard, { ...SESSION, lei: 'f1' }), 'forwarded f1');
});

test('values of upstream.instanceField that alternate switch it off for the session, with a warning', async (t) => {
  const guard = await start(t, { instanceField: 'X-Instance' });
  for (const value of ['one', 'two', 'one']) await call(guard, answerAs(value));
  await cutPost(guard.client, guard.upstream, 2, SESSION, priming('f1'));
  for (const value of ['two', 'one', 'three']) await call(guard, answerAs(value));
  assert.equal(await fate(guard, { ...SESSION, lei: 'f1' }), 'forwarded f1');
  assert.equal(guard.warnings().filter(({ msg }) => /instanceField/.test(String(msg))).length, 1);

  await openSession(guard.client, guard.upstream, 's-2');
  const other = { session: 's-2' } as const;
  await cutPost(guard.client, guard.upstream, 1, other, priming('e1'));
  for (const value of ['one', 'two']) {
    const reply = await guard.client.post(9, other);
    await answerAs(value)(await guard.upstream.next({ method: 'POST' }));
    await reply.bytes();
  }
  assert.equal(await fate(guard, { ...other, lei: 'e1' }), MISMATCH, 'another session is not affected');
});

test('durableEvents switches upstream.instanceField off', async (t) => {
  const guard = await start(t, { instanceField: 'X-Instance', durableEvents: true });
  for (const value of ['one', 'two']) await call(guard, answerAs(value));
  assert.equal(await fate(guard), 'forwarded e1');
});
