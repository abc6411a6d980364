// A client that leaves in the instant of the result: its cursor is forwarded, and the result arrives once.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { pause } from '../support/waiting.ts';

const ROUNDS = 50;
const CONCURRENCY = 5;
const TERMINAL = block({ id: 'e2', data: result(7) });

interface Round {
  readonly before: number;
  readonly closes: boolean;
  readonly how: 'destroy' | 'reset';
}

/** One session whose client leaves `before` ms before the result is written, comes back, and is served. */
async function leaveAndReturn(
  { client, upstream }: Guard,
  name: string,
  { before, closes, how }: Round,
): Promise<void> {
  const path = `/mcp?${name}`;
  const fields: Record<string, string> = closes ? { Connection: 'close' } : {};
  const reply = await client.post(7, { session: name, path, fields });
  const exchange = await upstream.next({ target: path });
  await exchange.events(priming('e1'));
  await reply.until(priming('e1'));

  reply[how]();
  if (before > 0) await pause(before);
  // The proxy may have closed this connection already.
  await exchange.write(TERMINAL).catch(() => {});
  await exchange.end().catch(() => {});

  const resumed = await client.get({ session: name, path, lei: 'e1', fields });
  const replay = await upstream.nextUnless(resumed.ended, { target: path });
  assert.ok(replay, `${name}: the resume was answered without upstream`);
  assert.equal(replay.field('last-event-id'), 'e1', `${name}: the cursor was stripped`);
  await replay.events(TERMINAL);
  await replay.end();
  assert.equal(await resumed.text(), TERMINAL, name);
  resumed.destroy();
}

for (const closes of [false, true]) {
  for (const [how, rounds] of [
    ['destroy', ROUNDS],
    ['reset', ROUNDS / 5],
  ] as const) {
    const kind = `${closes ? 'with Connection: close' : 'with keep-alive'} that leaves by ${how === 'reset' ? 'RST' : 'FIN'}`;
    test(`a client ${kind} up to 50 ms before its result is forwarded and gets it once`, async (t) => {
      const delays = [0, 1, 5, 20, 50].map(async (before) => {
        const guard = await startGuard(t, { file: { log: { level: 'warn' } } });
        let next = 0;
        const worker = async (): Promise<void> => {
          while (next < rounds) {
            next += 1;
            await leaveAndReturn(guard, `s-${next}`, { before, closes, how });
          }
        };
        await Promise.all(Array.from({ length: CONCURRENCY }, worker));
      });
      await Promise.all(delays);
    });
  }
}

test('a client that leaves in the very write of its result, while results of others are being judged, loses nothing', async (t) => {
  const guard = await startGuard(t, { file: { log: { level: 'warn' } } });
  const { client, upstream } = guard;
  const path = '/mcp?others';
  let going = true;
  const others = (async () => {
    for (let round = 0; going; round += 1) {
      const reply = await client.post(round, { session: 'others', path });
      const exchange = await upstream.next({ method: 'POST', target: path });
      await exchange.events(priming(`p${round}`), block({ id: `t${round}`, data: result(round) }));
      await exchange.end();
      await reply.bytes();
      const resumed = await client.get({ session: 'others', path, lei: `p${round}` });
      const stripped = await upstream.next({ method: 'GET', target: path });
      assert.equal(stripped.field('last-event-id'), undefined);
      await stripped.answer(405);
      await resumed.bytes();
      reply.destroy();
    }
  })();
  for (let round = 0; round < ROUNDS; round += 1) {
    await leaveAndReturn(guard, `mine-${round}`, { before: round % 3, closes: round % 2 === 0, how: 'destroy' });
  }
  going = false;
  await others;
});
