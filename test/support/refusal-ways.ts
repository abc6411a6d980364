/** A session in which resumes can be refused, and the way to each refusal. */

import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import type { McpOptions } from './client.ts';
import { block, priming, result } from './messages.ts';
import type { Reply } from './reply.ts';
import { cutPost, fateOf, finishedPost, forwardedGet, openSession } from './session.ts';
import { startTimedGuard, type TimedGuard } from './timed-guard.ts';
import type { Field } from './wire.ts';

export const NAME = 'session-1-opaque';
export const SESSION = { session: NAME } as const;
export const OPEN = 'cursor-open-opaque';
export const DONE = 'cursor-done-opaque';

export interface Setup {
  readonly file?: ConfigFile;
  /** Of every request. */
  readonly options?: McpOptions;
}

/** A session with an open request at one cursor and a finished one at another. */
export async function startRefusing(t: TestContext, { file = {}, options = {} }: Setup = {}): Promise<TimedGuard> {
  const guard = await startTimedGuard(t, file);
  const { client, upstream } = guard;
  await openSession(client, upstream, NAME, options);
  await cutPost(client, upstream, 7, { ...SESSION, ...options }, priming(OPEN));
  await finishedPost(client, upstream, 8, { ...SESSION, ...options }, block({ id: DONE, data: result(8) }));
  return guard;
}

/** Has upstream answer a resume with nothing. */
export async function emptyReplay(
  { client, upstream }: TimedGuard,
  options: McpOptions,
  fields: readonly Field[] = [],
): Promise<Reply> {
  const { reply, exchange } = await forwardedGet(client, upstream, options);
  await exchange.head(200, [['Content-Type', 'text/event-stream'], ...fields]);
  await exchange.end();
  return reply;
}

/** How to come to each refusal; `options` go with every request. Returns the reply that is refused. */
export type Way = (guard: TimedGuard, options?: McpOptions) => Promise<Reply>;

const endSession = async ({ client, upstream }: TimedGuard, options: McpOptions): Promise<void> => {
  const reply = await client.delete({ ...SESSION, ...options });
  await (await upstream.next({ method: 'DELETE' })).answer(200);
  await reply.ended;
};

export const listen = async ({ client, upstream }: TimedGuard, options: McpOptions): Promise<void> => {
  const { reply, exchange } = await forwardedGet(client, upstream, { ...SESSION, ...options });
  await exchange.events();
  await reply.head;
};

export const WAYS: Readonly<Record<string, { way: Way; status: number; retry: string; file?: ConfigFile }>> = {
  'minted-id': {
    file: { refuseWith: 'event' },
    status: 405,
    retry: 'none',
    way: async (guard, options = {}) => {
      const text = await (await emptyReplay(guard, { ...SESSION, ...options, lei: OPEN })).text();
      const lei = /^id: (.*)$/m.exec(text)?.[1] ?? '';
      assert.notEqual(lei, '');
      return guard.client.get({ ...SESSION, ...options, lei });
    },
  },
  'session-ended': {
    status: 404,
    retry: 'session',
    way: async (guard, options = {}) => {
      await endSession(guard, options);
      return guard.client.get({ ...SESSION, ...options, lei: OPEN });
    },
  },
  'generation-mismatch': {
    status: 409,
    retry: 'session',
    way: async (guard, options = {}) => {
      await openSession(guard.client, guard.upstream, NAME, options);
      return guard.client.get({ ...SESSION, ...options, lei: OPEN });
    },
  },
  'finished-while-listening': {
    status: 409,
    retry: 'none',
    way: async (guard, options = {}) => {
      await listen(guard, options);
      return guard.client.get({ ...SESSION, ...options, lei: DONE });
    },
  },
  'finished-storm': {
    status: 409,
    retry: 'none',
    way: async ({ client, upstream }, options = {}) => {
      for (let round = 0; round < 10; round += 1) {
        assert.equal(await fateOf(client, upstream, { ...SESSION, ...options, lei: DONE }), 'stripped');
      }
      return client.get({ ...SESSION, ...options, lei: DONE });
    },
  },
  'below-replay-floor': {
    status: 409,
    retry: 'request',
    way: async (guard, options = {}) => {
      for (let round = 0; round < 2; round += 1) {
        await (await emptyReplay(guard, { ...SESSION, ...options, lei: OPEN })).ended;
      }
      return guard.client.get({ ...SESSION, ...options, lei: OPEN });
    },
  },
  'cursor-unrecorded': {
    file: { unrecorded: 'refuse' },
    status: 409,
    retry: 'request',
    way: ({ client }, options = {}) => client.get({ ...SESSION, ...options, lei: 'cursor-strange-opaque' }),
  },
  'session-unrecorded': {
    file: { unrecorded: 'refuse' },
    status: 404,
    retry: 'session',
    way: ({ client }, options = {}) => client.get({ ...options, session: 'session-2-opaque', lei: OPEN }),
  },
  'empty-replay': {
    status: 409,
    retry: 'request',
    way: (guard, options = {}) => emptyReplay(guard, { ...SESSION, ...options, lei: OPEN }),
  },
};
