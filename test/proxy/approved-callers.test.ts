// Approved callers: whoever upstream has not accepted in the session learns from us neither that it exists nor how it is.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import type { McpOptions } from '../support/client.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import type { Reply, ReplyHead } from '../support/reply.ts';
import { answerEmpty, cutPost, fateOf, finishedPost, forwardedGet, openSession } from '../support/session.ts';

const OWNER = { session: 's-1', token: 'the-owner' } as const;
const STRANGER = { session: 's-1', token: 'a-stranger' } as const;
const OPEN = 'e1';
const DONE = 'f2';

/** A session of the owner's with an open request and a finished one. */
async function start(t: TestContext, file: ConfigFile = {}): Promise<Guard> {
  const guard = await startGuard(t, { file });
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1', OWNER);
  await cutPost(client, upstream, 7, OWNER, priming(OPEN));
  await finishedPost(client, upstream, 8, OWNER, block({ id: DONE, data: result(8) }));
  return guard;
}

const fate = ({ client, upstream }: Guard, options: McpOptions) => fateOf(client, upstream, options);

/** How a refusal comes about that needs an approved caller, and what becomes of the same request of a stranger's. */
interface Row {
  readonly file?: ConfigFile;
  readonly lei: string;
  readonly stranger: string;
  readonly prepare: (guard: Guard) => Promise<unknown>;
}

const ROWS: Readonly<Record<string, Row>> = {
  '404 session-ended': {
    lei: OPEN,
    stranger: `forwarded ${OPEN}`,
    prepare: async ({ client, upstream }) => {
      const reply = await client.delete(OWNER);
      await (await upstream.next({ method: 'DELETE' })).answer(200);
      await reply.ended;
    },
  },
  '409 generation-mismatch': {
    lei: OPEN,
    stranger: `forwarded ${OPEN}`,
    prepare: ({ client, upstream }) => openSession(client, upstream, 's-1', OWNER),
  },
  '409 finished-while-listening': {
    lei: DONE,
    stranger: 'stripped',
    prepare: async ({ client, upstream }) => {
      const { reply, exchange } = await forwardedGet(client, upstream, OWNER);
      await exchange.events();
      await reply.head;
    },
  },
  '409 finished-storm': {
    lei: DONE,
    stranger: 'stripped',
    prepare: async (guard) => {
      for (let round = 0; round < 10; round += 1) {
        assert.equal(await fate(guard, { ...OWNER, lei: DONE }), 'stripped');
      }
    },
  },
  '409 below-replay-floor': {
    lei: OPEN,
    stranger: `forwarded ${OPEN}`,
    prepare: async ({ client, upstream }) => {
      for (let round = 0; round < 2; round += 1) {
        const { reply, exchange } = await forwardedGet(client, upstream, { ...OWNER, lei: OPEN });
        await answerEmpty(exchange);
        await reply.ended;
      }
    },
  },
  '409 cursor-unrecorded': {
    file: { unrecorded: 'refuse' },
    lei: 'never-seen',
    stranger: 'forwarded never-seen',
    prepare: async () => {},
  },
  '409 cursor-unrecorded (complete)': {
    file: { unrecorded: 'complete' },
    lei: 'never-seen',
    stranger: 'forwarded never-seen',
    prepare: async () => {},
  },
};

for (const [refusal, { file = {}, lei, stranger, prepare }] of Object.entries(ROWS)) {
  test(`a stranger’s request that would be ${refusal} for the owner gets upstream’s answer, byte for byte`, async (t) => {
    const guard = await start(t, file);
    const { client, upstream } = guard;
    await prepare(guard);
    for (const status of [401, 403, 404] as const) {
      for (const how of [STRANGER, { session: 's-1' }]) {
        const { reply, exchange } = await forwardedGet(client, upstream, { ...how, lei });
        const cursor = exchange.field('last-event-id');
        assert.equal(cursor === undefined ? 'stripped' : `forwarded ${cursor}`, stranger);
        const fields = [
          ['WWW-Authenticate', 'Bearer'],
          ['X-Own', '1'],
          ['Content-Type', 'text/plain'],
        ] as const;
        await exchange.answer(status, fields, 'who are you?');
        await isUpstreams(reply, status, fields);
      }
    }
    const [wanted] = refusal.split(' (');
    assert.equal(await fate(guard, { ...OWNER, lei }), `refused ${wanted}`, 'the owner is still refused');
  });
}

/** Exactly what upstream said, with nothing of ours. */
async function isUpstreams(
  reply: Reply,
  status: number,
  fields: readonly (readonly [string, string])[],
): Promise<void> {
  const head: ReplyHead = await reply.head;
  assert.equal(head.status, status);
  const body = 'who are you?';
  const ours = head.fields.filter(([name]) => !/^(connection|keep-alive)$/i.test(name));
  assert.deepEqual(ours, [...fields, ['Content-Length', String(body.length)]]);
  assert.equal(await reply.text(), body);
}

test('what upstream says to a stranger changes nothing for the owner', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  for (let round = 0; round < 12; round += 1) {
    const { reply, exchange } = await forwardedGet(client, upstream, { ...STRANGER, lei: DONE });
    await exchange.answer(401);
    await reply.ended;
  }
  for (const method of ['post', 'delete'] as const) {
    const reply = await (method === 'post' ? client.post(1, STRANGER) : client.delete(STRANGER));
    await (await upstream.next({ method: method.toUpperCase() })).answer(404);
    await reply.ended;
  }
  assert.equal(await fate(guard, { ...OWNER, lei: DONE }), 'stripped', 'no storm, no end');
  assert.equal(await fate(guard, { ...OWNER, lei: OPEN }), `forwarded ${OPEN}`);
});

test('a changed token is approved by its first 2xx, and not by anything else', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1', OWNER);
  const renewed = { session: 's-1', token: 'the-owner-renewed' };
  for (const status of [401, 302, 404, 500, 200]) {
    assert.equal(await fate(guard, { ...renewed, lei: OPEN }), `forwarded ${OPEN}`, `before the ${status}`);
    const reply = await client.post(9, renewed);
    await (await upstream.next({ method: 'POST' })).json(status, result(9));
    await reply.bytes();
  }
  assert.equal(await fate(guard, { ...renewed, lei: OPEN }), 'refused 409 generation-mismatch');
  assert.equal(await fate(guard, { ...OWNER, lei: OPEN }), 'refused 409 generation-mismatch', 'the old one stays so');
});

test('a 2xx to a DELETE or a GET approves as well, also the head of a stream that goes on', async (t) => {
  const guard = await start(t);
  const { client, upstream } = guard;
  const listening = await forwardedGet(client, upstream, { session: 's-1', token: 'listener' });
  await listening.exchange.events();
  await listening.reply.head;
  assert.equal(
    await fate(guard, { session: 's-1', token: 'listener', lei: DONE }),
    'refused 409 finished-while-listening',
  );
  const reply = await client.delete({ session: 's-1', token: 'closer' });
  await (await upstream.next({ method: 'DELETE' })).answer(204);
  await reply.ended;
  assert.equal(await fate(guard, { session: 's-1', token: 'closer', lei: OPEN }), 'refused 404 session-ended');
});

test('the 2xx of initialize approves', async (t) => {
  const guard = await startGuard(t, { file: { unrecorded: 'refuse' } });
  await openSession(guard.client, guard.upstream, 's-1', { token: 'the-owner' });
  assert.equal(await fate(guard, { ...OWNER, lei: 'x' }), 'refused 409 cursor-unrecorded');
  assert.equal(await fate(guard, { ...STRANGER, lei: 'x' }), 'forwarded x');
});

test('without Authorization the Cookie is the credential; beside it, it is none', async (t) => {
  const guard = await startGuard(t, { file: { unrecorded: 'refuse' } });
  const { client, upstream } = guard;
  const withCookie = (cookie: string): McpOptions => ({ session: 's-1', lei: 'x', fields: { Cookie: cookie } });
  await openSession(client, upstream, 's-1', { fields: { Cookie: 'id=owner' } });
  assert.equal(await fate(guard, withCookie('id=owner')), 'refused 409 cursor-unrecorded');
  assert.equal(await fate(guard, withCookie('id=stranger')), 'forwarded x');
  assert.equal(await fate(guard, { session: 's-1', lei: 'x' }), 'forwarded x');
  assert.equal(await fate(guard, { ...withCookie('id=owner'), token: 'any' }), 'forwarded x');

  await openSession(client, upstream, 's-2', { token: 'the-owner', fields: { Cookie: 'id=owner' } });
  const bearer = { ...withCookie('id=other'), session: 's-2', token: 'the-owner' };
  assert.equal(await fate(guard, bearer), 'refused 409 cursor-unrecorded');
  assert.equal(await fate(guard, { ...withCookie('id=owner'), session: 's-2' }), 'forwarded x');
});

test('a Cookie is not taken for an Authorization of the same text', async (t) => {
  const guard = await startGuard(t, { file: { unrecorded: 'refuse' } });
  await openSession(guard.client, guard.upstream, 's-1', { token: 'abc' });
  for (const cookie of ['Bearer abc', 'ABearer abc', 'abc']) {
    assert.equal(await fate(guard, { session: 's-1', lei: 'x', fields: { Cookie: cookie } }), 'forwarded x');
  }
});

test('of a repeated field every value counts', async (t) => {
  const guard = await startGuard(t, { file: { unrecorded: 'refuse' } });
  const cookies = (...values: string[]): McpOptions => ({
    session: 's-1',
    lei: 'x',
    fields: values.map((value) => ['Cookie', value] as const),
  });
  await openSession(guard.client, guard.upstream, 's-1', {
    fields: [
      ['Cookie', 'theme=dark'],
      ['Cookie', 'id=owner'],
    ],
  });
  assert.equal(await fate(guard, cookies('theme=dark', 'id=owner')), 'refused 409 cursor-unrecorded');
  assert.equal(await fate(guard, cookies('theme=dark')), 'forwarded x');
  assert.equal(await fate(guard, cookies('theme=dark', 'id=stranger')), 'forwarded x');
});

test('no credentials at all is a value like any other', async (t) => {
  const guard = await startGuard(t, { file: { unrecorded: 'refuse' } });
  await openSession(guard.client, guard.upstream, 's-1');
  assert.equal(await fate(guard, { session: 's-1', lei: 'x' }), 'refused 409 cursor-unrecorded');
  assert.equal(await fate(guard, { ...STRANGER, lei: 'x' }), 'forwarded x');
});

test('a caller is approved for one session, not for another', async (t) => {
  const guard = await startGuard(t, { file: { unrecorded: 'refuse' } });
  await openSession(guard.client, guard.upstream, 's-1', { token: 'one' });
  await openSession(guard.client, guard.upstream, 's-2', { token: 'two' });
  assert.equal(await fate(guard, { session: 's-2', token: 'one', lei: 'x' }), 'forwarded x');
});
