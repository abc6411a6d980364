// Ten thousand streams of random bytes in random chunks: what the client gets is what upstream sent, to the bit.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import type { Exchange } from '../support/exchange.ts';
import { startGuard } from '../support/guard.ts';
import { block, progress, request, result } from '../support/messages.ts';

const STREAMS = 10_000;
const CONCURRENCY = 50;
const PER_CONNECTION = 20;

/** Marsaglia's xorshift32: the same streams for the same seed, so that a failure can be run again. */
function randomFrom(seed: number): (below: number) => number {
  let state = seed | 1;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
}

type Random = ReturnType<typeof randomFrom>;

/** Pieces a scanner may trip over, whole and broken. */
const SSE_LIKE = [
  '\n',
  '\r',
  '\r\n',
  '\n\n',
  '\r\n\r\n',
  '\ufeff',
  ':',
  ': comment\n',
  'id: e1\n',
  'id\n',
  'id: \u0000\n',
  'event: message\n',
  'retry: 10\n',
  'data',
  'data: ',
  'data: {"jsonrpc":"2.0","id":1,"result":{',
  '"}\\u0022',
  block({ id: 'p', data: '' }),
  block({ id: 'q', data: progress(1) }),
  block({ id: 'r', data: result(1, 'é€😀') }),
].map((text) => Buffer.from(text));

function body(random: Random): Buffer {
  const pieces: Buffer[] = [];
  for (let left = random(16); left > 0; left -= 1) {
    const kind = random(3);
    if (kind === 0) pieces.push(Buffer.from(Array.from({ length: random(120) }, () => random(256))));
    else pieces.push(SSE_LIKE[random(SSE_LIKE.length)] ?? Buffer.alloc(0));
  }
  return Buffer.concat(pieces);
}

function chunks(bytes: Buffer, random: Random): Buffer[] {
  const pieces: Buffer[] = [];
  const most = 1 + random(2) * 200 + random(12);
  for (let at = 0; at < bytes.length; ) {
    const length = 1 + random(most);
    pieces.push(bytes.subarray(at, at + length));
    at += length;
  }
  return pieces;
}

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

test(`${STREAMS} streams of random bytes in random chunks arrive unchanged`, { timeout: 120_000 }, async (t) => {
  const seed = Number(process.env['FIDELITY_SEED'] ?? Date.now() % 2 ** 31);
  t.diagnostic(`FIDELITY_SEED=${seed}`);
  const answer = async (exchange: Exchange): Promise<void> => {
    const random = randomFrom(seed + Number(exchange.field('x-stream')));
    const bytes = body(random);
    const type = random(8) === 0 ? 'application/octet-stream' : 'text/event-stream';
    const framing = random(10) === 0 ? (`length:${bytes.length}` as const) : 'chunked';
    await exchange.head(200, { 'Content-Type': type }, { framing });
    const pieces = chunks(bytes, random);
    // Some bodies leave in one write, some in two, so that chunk borders and segment borders both wander.
    const half = random(2) === 0 ? 0 : random(pieces.length + 1);
    await exchange.writeEach(pieces.slice(0, half));
    if (half > 0) await new Promise((resolve) => setImmediate(resolve));
    await exchange.writeEach(pieces.slice(half));
    await exchange.end();
  };
  const { client, warnings } = await startGuard(t, { handler: answer, file: { log: { level: 'warn' } } });

  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < STREAMS) {
      const on = await client.connect();
      for (let sent = 0; sent < PER_CONNECTION && next < STREAMS; sent += 1) {
        const n = next;
        next += 1;
        const fields = { 'X-Stream': String(n), ...(n % 2 === 0 ? {} : { 'Mcp-Session-Id': `s-${n % 97}` }) };
        const method = n % 4 === 3 ? 'GET' : 'POST';
        const asked = method === 'POST' ? { body: request(1) } : {};
        const reply = on.send({ method, path: '/mcp', fields, ...asked });
        const got = await reply.bytes(20_000);
        const random = randomFrom(seed + n);
        if (sha256(got) !== sha256(body(random))) {
          assert.deepEqual(
            got.toString('latin1'),
            body(randomFrom(seed + n)).toString('latin1'),
            `stream ${n}, seed ${seed}`,
          );
        }
      }
      on.destroy();
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, worker));
  assert.equal(next, STREAMS);
  assert.deepEqual(warnings(), []);
});
