// Compressed event streams are decoded for the tap alone: the client gets upstream's bytes, and what cannot be decoded
// blinds the tap, not the stream.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { brotliCompressSync, constants, createGzip, deflateRawSync, deflateSync, gzipSync } from 'node:zlib';
import type { Receipt } from '../../src/core/delivery.ts';
import { NO_IDENTITY, newSession, openLeg, openStream } from '../../src/core/ledger.ts';
import { Tap } from '../../src/proxy/tap.ts';
import type { Exchange } from '../support/exchange.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { BOUNDS } from '../support/ledger.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import { cutPost, fateOf, forwardedGet, openSession, type Pair, refusalOf } from '../support/session.ts';
import { eventually, within } from '../support/waiting.ts';

const ENCODINGS: readonly [name: string, encoding: string, encode: (text: string) => Buffer][] = [
  ['gzip', 'gzip', (text) => gzipSync(text)],
  ['gzip under its old name', 'X-GZIP', (text) => gzipSync(text)],
  ['zlib', 'deflate', (text) => deflateSync(text)],
  ['zlib without compression', 'Deflate', (text) => deflateSync(text, { level: 0 })],
  ['bare deflate', 'deflate', (text) => deflateRawSync(text)],
  ['bare deflate without compression', 'deflate', (text) => deflateRawSync(text, { level: 0 })],
  ['brotli', 'br', (text) => brotliCompressSync(text, { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } })],
];

async function encoded(exchange: Exchange, encoding: string): Promise<void> {
  await exchange.head(200, { 'Content-Type': 'text/event-stream', 'Content-Encoding': encoding });
}

/** A POST of request 7 in session `s-1`, answered in this encoding by the bytes given, each a chunk of its own. */
async function answered({ client, upstream }: Guard, encoding: string, pieces: Iterable<Buffer>): Promise<Buffer> {
  const reply = await client.post(7, { session: 's-1', fields: { 'Accept-Encoding': 'gzip, deflate, br' } });
  const exchange = await upstream.next();
  assert.equal(exchange.field('accept-encoding'), 'gzip, deflate, br');
  await encoded(exchange, encoding);
  await exchange.writeEach(pieces);
  await exchange.end();
  assert.equal((await reply.head).field('content-encoding'), encoding);
  return reply.bytes();
}

/** A resume of request 7, which upstream still has open. */
async function resumed({ client, upstream }: Guard): Promise<Pair> {
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  return forwardedGet(client, upstream, { session, lei: 'e1' });
}

const STREAM = [priming('e1'), block({ data: progress(7) }), block({ id: 'e2', data: result(7) })];

for (const [name, encoding, encode] of ENCODINGS) {
  describe(`a stream in ${name}`, () => {
    test('is read, and the client gets the bytes of upstream', async (t) => {
      const guard = await startGuard(t);
      const { client, upstream } = guard;
      const session = await openSession(client, upstream, 's-1');
      const bytes = encode(STREAM.join(''));
      assert.ok((await answered(guard, encoding, [bytes])).equals(bytes));
      assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
      assert.deepEqual(guard.warnings(), []);
    });

    test('is read in whatever pieces it comes', async (t) => {
      const guard = await startGuard(t);
      const { client, upstream } = guard;
      const session = await openSession(client, upstream, 's-1');
      const bytes = encode(STREAM.join(''));
      const pieces = Array.from(bytes, (byte) => Buffer.of(byte));
      assert.ok((await answered(guard, encoding, pieces)).equals(bytes));
      assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
    });

    test('that holds an event is a replay', async (t) => {
      const { reply, exchange } = await resumed(await startGuard(t));
      const bytes = encode(block({ id: 'e2', data: result(7) }));
      await encoded(exchange, encoding);
      await exchange.end(bytes);
      assert.equal((await reply.head).status, 200);
      assert.ok((await reply.bytes()).equals(bytes));
    });

    test('that decodes to nothing, or to comments, is an empty replay', async (t) => {
      for (const text of ['', ': hello\n\n']) {
        const { reply, exchange } = await resumed(await startGuard(t, { file: { replayHold: '2s' } }));
        await encoded(exchange, encoding);
        await exchange.end(encode(text));
        assert.equal((await refusalOf(reply)).rule, 'empty-replay');
        assert.equal((await reply.head).field('content-encoding'), undefined);
      }
    });
  });
}

test('an event of a compressed replay opens the head at once, though the stream goes on', async (t) => {
  const { reply, exchange } = await resumed(await startGuard(t, { file: { replayHold: '2s' } }));
  await encoded(exchange, 'gzip');
  const gzip = createGzip({ flush: constants.Z_SYNC_FLUSH });
  gzip.on('data', (bytes) => void exchange.write(bytes));
  gzip.write(block({ id: 'e2', data: progress(7) }));
  assert.equal((await reply.headWithin(500)).status, 200);
  gzip.write(block({ id: 'e3', data: result(7) }));
  gzip.end(() => void exchange.end());
  await reply.bytes();
});

test('bytes of a compressed replay that are no event yet are held, and time is up all the same', async (t) => {
  const { reply, exchange } = await resumed(await startGuard(t));
  await encoded(exchange, 'gzip');
  await exchange.write(gzipSync(priming('e2')).subarray(0, 10));
  assert.equal((await reply.head).status, 200);
});

test('a compressed replay that is cut before its event is a 502', async (t) => {
  const { reply, exchange } = await resumed(await startGuard(t, { file: { replayHold: '2s' } }));
  await encoded(exchange, 'br');
  await exchange.write(brotliCompressSync(priming('e2')).subarray(0, 3));
  exchange.cut();
  assert.equal((await reply.head).status, 502);
});

for (const [name, encoding, encode] of ENCODINGS.filter(([name]) => name === 'gzip' || name === 'brotli')) {
  test(`a result of 50 MB in ${name} is found, however fast it comes`, { timeout: 60_000 }, async (t) => {
    const guard = await startGuard(t, { file: { log: { level: 'warn' } } });
    const { client, upstream } = guard;
    const session = await openSession(client, upstream, 's-1');
    // Compresses well, and by pieces not at all.
    const text = Array.from({ length: 5_000 }, (_, n) => String(n * 7_919).repeat(3))
      .join('')
      .repeat(1 + 50_000_000 / 90_000);
    const bytes = encode(block({ id: 'e2', data: result(7, text) }));
    assert.equal((await answered(guard, encoding, [bytes])).length, bytes.length);
    assert.equal(await guard.metric('tap_blind_total'), 0, `${bytes.length} bytes`);
    assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
  });
}

describe('the tap goes blind, and the stream does not,', () => {
  const whole = gzipSync(STREAM.join(''));
  const cases: readonly [name: string, encoding: string, bytes: Buffer, cause: string][] = [
    ['where the encoding is unknown', 'zstd', Buffer.from('(\u00b5/\u00fd anything', 'latin1'), 'encoding'],
    ['where there are two encodings', 'gzip, br', whole, 'encoding'],
    ['where the data is no gzip', 'gzip', Buffer.from(STREAM.join('')), 'decoding'],
    ['where the data is no brotli', 'br', Buffer.alloc(100, 0xff), 'decoding'],
    ['where the data is no deflate', 'deflate', Buffer.alloc(100, 0xff), 'decoding'],
    [
      'where the data is damaged',
      'gzip',
      Buffer.concat([whole.subarray(0, 20), Buffer.alloc(40, 0xff), whole.subarray(60)]),
      'decoding',
    ],
  ];
  for (const [name, encoding, bytes, cause] of cases) {
    test(name, async (t) => {
      const guard = await startGuard(t);
      const { client, upstream } = guard;
      const session = await openSession(client, upstream, 's-1');
      assert.ok((await answered(guard, encoding, [bytes])).equals(bytes));
      assert.ok(
        (
          await answered(
            guard,
            encoding,
            Array.from(bytes, (byte) => Buffer.of(byte)),
          )
        ).equals(bytes),
      );
      await eventually('both to be counted', async () => (await guard.metric('tap_blind_total', { cause })) === 2);
      const said = guard.warnings().filter(({ event }) => event === 'tap-blind');
      assert.equal(said.length, 1, 'once, not for each stream');
      assert.equal(said[0]?.['cause'], cause);
      assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'forwarded e2');
    });
  }

  test('and nothing is concluded from a replay that nobody can read', async (t) => {
    const { reply, exchange } = await resumed(await startGuard(t, { file: { replayHold: '2s' } }));
    await encoded(exchange, 'zstd');
    await exchange.write('anything');
    assert.equal((await reply.headWithin(500)).status, 200);
    await exchange.end();
    assert.equal(await reply.text(), 'anything');
  });

  test('but zero bytes are nothing in any encoding', async (t) => {
    const { reply, exchange } = await resumed(await startGuard(t, { file: { replayHold: '2s' } }));
    await encoded(exchange, 'zstd');
    await exchange.end();
    assert.equal((await refusalOf(reply)).rule, 'empty-replay');
  });
});

test('a gzip stream in several members is read to its end', async (t) => {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  const session = await openSession(client, upstream, 's-1');
  const bytes = Buffer.concat(STREAM.map((text) => gzipSync(text)));
  assert.ok((await answered(guard, 'gzip', [bytes])).equals(bytes));
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');
});

describe('a decoder that falls behind', () => {
  /** What a tap that is handed these bytes at once says about waiting, until it has said enough. */
  function waits(bytes: Buffer, expected: number): Promise<(boolean | string)[]> {
    const session = newSession(true, NO_IDENTITY);
    const receipt = { forwarded: false, flushedAt: null, response: 'open' } as unknown as Receipt;
    const leg = openLeg(openStream(session, 'request', BOUNDS, 0), false, receipt);
    const said: (boolean | string)[] = [];
    const all = new Promise<typeof said>((resolve) => {
      const say = (what: boolean | string): void => {
        said.push(what);
        if (said.length === expected) resolve(said);
      };
      const listener = { block: () => false, recorded() {}, behind: say, blind: say };
      new Tap(session, leg, 'gzip', 0, listener).push(bytes);
    });
    return within('the tap', all, 3_000, () => JSON.stringify(said));
  }

  test('makes upstream wait, and lets it go on once it has caught up', async () => {
    assert.deepEqual(await waits(gzipSync(randomBytes(2_000_000)), 2), [true, false]);
  });

  test('does not keep it waiting when the data turns out to be damaged', async () => {
    assert.deepEqual(await waits(Buffer.alloc(2_000_000, 0xff), 3), [true, false, 'decoding']);
  });
});
