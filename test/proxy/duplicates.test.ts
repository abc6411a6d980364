// Duplicates: what a replay repeats is taken out, whole, and every other byte stays.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import type { ConfigFile } from '../../src/config.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, error, notification, priming, progress, result } from '../support/messages.ts';
import {
  cutPost,
  finishedPost,
  forwardedGet,
  openSession,
  type Pair,
  postStream,
  refusalOf,
} from '../support/session.ts';
import { eventually, pause } from '../support/waiting.ts';

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;
const SESSION = { session: 's-1' } as const;
const FIRST = priming('e1');
const SECOND = block({ event: 'message', id: 'e2', data: progress(7) });
const THIRD = block({ event: 'message', id: 'e3', data: progress(7, 2) });
const FOURTH = block({ event: 'message', id: 'e4', data: progress(7, 3) });
const TERMINAL = block({ event: 'message', id: 'e5', data: result(7) });

/** The same block with another line end. */
const withEnds = (text: string, end: string): string => text.replaceAll('\n', end);

/** A guard whose session has an open request, cut after these blocks. */
async function start(t: TestContext, blocks: readonly string[], file: ConfigFile = {}): Promise<Guard> {
  const guard = await startGuard(t, { file: { replayHold: '5s', ...file } });
  await openSession(guard.client, guard.upstream, 's-1');
  await cutPost(guard.client, guard.upstream, 7, SESSION, ...blocks);
  return guard;
}

const resume = ({ client, upstream }: Guard, lei = 'e2'): Promise<Pair> =>
  forwardedGet(client, upstream, { ...SESSION, lei });

/** What the client gets of a replay that is written in these pieces. */
async function replayed(guard: Guard, pieces: readonly (string | Uint8Array)[], lei = 'e2'): Promise<string> {
  const { reply, exchange } = await resume(guard, lei);
  await exchange.head(200, EVENTS);
  for (const piece of pieces) await exchange.write(piece);
  await exchange.end();
  return reply.text();
}

const inBytes = (text: string): Uint8Array[] => Array.from(Buffer.from(text), (byte) => Uint8Array.of(byte));

const dropped = ({ metric }: Guard, kind: string): Promise<number> =>
  metric('duplicates_total', { kind, action: 'dropped' });

// Before the cursor.

for (const end of ['\n', '\r\n', '\r']) {
  const name = { '\n': 'LF', '\r\n': 'CRLF', '\r': 'CR' }[end];
  const [first, second, third, fourth] = [FIRST, SECOND, THIRD, FOURTH].map((text) => withEnds(text, end));
  const whole = `${first}${second}${third}${fourth}`;
  const kept = `${third}${fourth}`;

  test(`an inclusive replay with ${name} in one chunk loses the events up to the cursor`, async (t) => {
    const guard = await start(t, [first!, second!]);
    assert.equal(await replayed(guard, [whole]), kept);
    assert.equal(await dropped(guard, 'replayed'), 2);
  });

  test(`so does one with ${name} byte by byte`, async (t) => {
    const guard = await start(t, [first!, second!]);
    assert.equal(await replayed(guard, inBytes(whole)), kept);
  });

  test(`so does one with ${name} cut anywhere`, async (t) => {
    const guard = await start(t, [first!, second!]);
    const early = first!.length + second!.length;
    for (let at = 1; at < early + 3; at += 1) {
      assert.equal(await replayed(guard, [whole.slice(0, at), whole.slice(at)]), kept, `cut at ${at}`);
    }
  });
}

test('the cursor’s own event alone is an empty replay', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { reply, exchange } = await resume(guard);
  await exchange.events(FIRST, SECOND);
  await exchange.end();
  const { rule } = await refusalOf(reply);
  assert.equal(rule, 'empty-replay');
});

test('blocks that are no events pass, before the cursor and after it, with every byte of their line ends', async (t) => {
  for (const end of ['\n', '\r\n', '\r']) {
    const guard = await start(
      t,
      [FIRST, SECOND].map((text) => withEnds(text, end)),
    );
    const pieces = [': a\n\n', FIRST, ': b\n\n', '\n', SECOND, 'event: ping\n\n', THIRD, ': c\n\n', FOURTH];
    const ends = pieces.map((text) => withEnds(text, end));
    const kept = ends.filter((_, n) => n !== 1 && n !== 4).join('');
    assert.equal(await replayed(guard, [ends.join('')]), kept, JSON.stringify(end));
    assert.equal(await replayed(guard, inBytes(ends.join(''))), kept, `${JSON.stringify(end)} byte by byte`);
    assert.equal(await replayed(guard, ends), kept, `${JSON.stringify(end)} block by block`);
  }
});

test('an event under a known ID that is not the same in length passes, and so does everything after it', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const other = block({ event: 'message', id: 'e2', data: progress(7, 10) });
  assert.equal(await replayed(guard, [FIRST + other + SECOND + THIRD]), other + SECOND + THIRD);
});

test('an event after the cursor is no duplicate, although it was seen before', async (t) => {
  const guard = await start(t, [FIRST, SECOND, THIRD]);
  assert.equal(await replayed(guard, [FIRST + SECOND + THIRD], 'e1'), SECOND + THIRD);
});

test('an event without an ID is never a duplicate', async (t) => {
  const bare = block({ data: progress(7) });
  const guard = await start(t, [FIRST, bare, SECOND]);
  assert.equal(await replayed(guard, [bare + SECOND]), bare + SECOND);
});

test('the first answer to an open request passes, whatever its ID', async (t) => {
  const seen = block({ id: 'same', data: progress(7) });
  const answer = block({ id: 'same', data: result(7, 'x'.repeat(progress(7).length - result(7, '').length)) });
  assert.equal(answer.length, seen.length);
  const guard = await start(t, [seen]);
  assert.equal(await replayed(guard, [answer], 'same'), answer);
});

test('an event of another stream or of an earlier generation is no duplicate', async (t) => {
  const guard = await start(t, [SECOND]);
  const { client, upstream } = guard;
  await cutPost(client, upstream, 8, SESSION, priming('f1'));
  assert.equal(await replayed(guard, [SECOND], 'f1'), SECOND);
  await openSession(client, upstream, 's-1', SESSION);
  await cutPost(client, upstream, 7, SESSION, priming('f1'), priming('f2'));
  assert.equal(await replayed(guard, [SECOND + FIRST], 'f2'), SECOND + FIRST);
});

test('with dedupe: false everything passes, with the length that upstream gave', async (t) => {
  const guard = await start(t, [FIRST, SECOND], { dedupe: false });
  const { reply, exchange } = await resume(guard);
  const body = FIRST + SECOND + THIRD + TERMINAL + TERMINAL;
  await exchange.answer(200, EVENTS, body);
  assert.equal((await reply.head).field('content-length'), String(body.length));
  assert.equal(await reply.text(), body);
});

test('a compressed replay passes as it is', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { reply, exchange } = await resume(guard);
  const body = gzipSync(FIRST + SECOND + THIRD);
  await exchange.answer(200, { ...EVENTS, 'Content-Encoding': 'gzip' }, body);
  assert.deepEqual(await reply.bytes(), body);
});

test('nothing is ever taken out of a POST or of a listening stream', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { client, upstream } = guard;
  const body = [FIRST, SECOND, TERMINAL, TERMINAL, FIRST].join('');
  const post = await postStream(client, upstream, 7, { ...SESSION, lei: 'e2' }, body);
  await post.exchange.end();
  assert.equal(await post.reply.text(), body);
  const listening = await forwardedGet(client, upstream, SESSION);
  await listening.exchange.events(body);
  await listening.exchange.end();
  assert.equal(await listening.reply.text(), body);
});

test('nothing is taken out of the fresh stream that a stripped resume opens', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { client, upstream } = guard;
  const body = block({ id: 'g2', data: result(8) });
  await finishedPost(client, upstream, 8, SESSION, body);
  const { reply, exchange } = await resume(guard, 'g2');
  assert.equal(exchange.field('last-event-id'), undefined);
  await exchange.events(body + SECOND);
  await exchange.end();
  assert.equal(await reply.text(), body + SECOND);
});

// Terminal events.

for (const pieces of [[TERMINAL, TERMINAL], [TERMINAL + TERMINAL], [THIRD, `${TERMINAL + TERMINAL}: end\n\n`]]) {
  test(`a terminal event repeated on one exchange is dropped: ${pieces.length} writes of ${pieces.join('').length} bytes`, async (t) => {
    const guard = await start(t, [FIRST, SECOND]);
    assert.equal(await replayed(guard, pieces), pieces.join('').replace(TERMINAL + TERMINAL, TERMINAL));
    assert.equal(await dropped(guard, 'terminal'), 1);
  });
}

test('one that arrives in two pieces passes, and so does one with another ID or with none', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const torn = [TERMINAL, TERMINAL.slice(0, 20), TERMINAL.slice(20)];
  assert.equal(await replayed(guard, torn), torn.join(''));
  assert.equal(await guard.metric('duplicates_total', { kind: 'terminal', action: 'passed' }), 1);

  for (const again of [block({ id: 'e6', data: result(7) }), block({ data: result(7) })]) {
    const other = await start(t, [FIRST, SECOND]);
    assert.equal(await replayed(other, [TERMINAL, again]), TERMINAL + again);
  }
});

test('with CRLF, a repeated terminal event that follows the last LF of the block before takes only itself away', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const terminal = withEnds(TERMINAL, '\r\n');
  const body = terminal + terminal + withEnds(': end\n\n', '\r\n');
  const at = terminal.length - 1;
  assert.equal(await replayed(guard, [body.slice(0, at), body.slice(at)]), body.slice(terminal.length));
});

test('with CRLF, a repeated terminal event whose own last LF comes later takes that away too', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const terminal = withEnds(TERMINAL, '\r\n');
  const pieces = [terminal, terminal.slice(0, -1), '\n: end\n\n'];
  assert.equal(await replayed(guard, pieces), `${terminal}: end\n\n`);
});

const OTHER = block({ id: 'd2', data: result(6) });

test('before the cursor’s next event, the result of another request that is delivered is dropped', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { client, upstream } = guard;
  await finishedPost(client, upstream, 6, SESSION, OTHER);
  assert.equal(await replayed(guard, [OTHER + THIRD]), THIRD);
  assert.equal(await dropped(guard, 'terminal'), 1);
});

test('it passes after that event, with another ID, with another length, or without proof of delivery', async (t) => {
  for (const [proof, body] of [
    ['connection', THIRD + OTHER],
    ['connection', block({ id: 'd3', data: result(6) }) + THIRD],
    ['connection', block({ id: 'd2', data: error(6) }) + THIRD],
    ['event-id', OTHER + THIRD],
  ] as const) {
    const guard = await start(t, [FIRST, SECOND], { deliveryProof: proof });
    await finishedPost(guard.client, guard.upstream, 6, SESSION, OTHER);
    assert.equal(await replayed(guard, [body]), body, body);
  }
});

test('it passes to a resume that came through an intermediary, whatever the connection of its POST proves', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { client, upstream } = guard;
  const on = await client.connect();
  await finishedPost(client, upstream, 6, { ...SESSION, on }, OTHER);
  const next = await client.post(9, { ...SESSION, on });
  await (await upstream.next({ method: 'POST' })).json(200, result(9));
  await next.bytes();
  const options = { ...SESSION, lei: 'e2', fields: { Via: '1.1 ingress' } };
  const { reply, exchange } = await forwardedGet(client, upstream, options);
  await exchange.events(OTHER + THIRD);
  await exchange.end();
  assert.equal(await reply.text(), OTHER + THIRD);
});

test('it passes while the client has not acknowledged the bytes that carried it', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { client, upstream, logs } = guard;
  const stalled = await postStream(client, upstream, 6, SESSION, priming('d1'));
  stalled.reply.pause();
  const bulk = block({ id: 'bulk', data: notification('notifications/message', { data: 'x'.repeat(60_000) }) });
  for (let written = 0; written < 10; written += 1) await stalled.exchange.write(bulk);
  await stalled.exchange.end(OTHER);
  await eventually('the POST to be over', () => logs.filter(({ method }) => method === 'POST').length === 3);
  // Long enough for a proxy that asks nobody.
  await pause(150);
  assert.equal(await replayed(guard, [OTHER + THIRD]), OTHER + THIRD);
});

test('it passes when the client left in the instant of the end', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { client, upstream } = guard;
  const fields = { Connection: 'close' };
  const left = await postStream(client, upstream, 6, { ...SESSION, fields }, priming('d1'));
  left.reply.pause();
  await left.exchange.write(OTHER);
  await left.exchange.end();
  left.reply.reset();
  await left.reply.connection.closed();
  assert.equal(await replayed(guard, [OTHER + THIRD]), OTHER + THIRD);
});

// Delay and size.

test('a block past the cursor waits for its own end only, and what follows for nothing', async (t) => {
  const guard = await start(t, [FIRST, SECOND]);
  const { reply, exchange } = await resume(guard);
  await exchange.events(SECOND, THIRD.slice(0, 20));
  await assert.rejects(reply.headWithin(100));
  await exchange.write(THIRD.slice(20));
  await reply.until(THIRD, 500);
  for (const byte of inBytes('id: e9\ndata: half')) await exchange.write(byte);
  await reply.until(`${THIRD}id: e9\ndata: half`, 500);
});

test('an unfinished block is let go after replayHold, and then nothing is dropped before the cursor', async (t) => {
  const guard = await start(t, [FIRST, SECOND], { replayHold: '150ms' });
  const { reply, exchange } = await resume(guard);
  await exchange.events(SECOND.slice(0, 20));
  const held = performance.now();
  await reply.until(SECOND.slice(0, 20), 1_000);
  assert.ok(performance.now() - held > 100);
  await exchange.write(SECOND.slice(20));
  await exchange.end(SECOND);
  assert.equal(await reply.text(), SECOND + SECOND);
});

test('a block over tap.maxHeldBytes passes, repeated or not, in one chunk and in many', async (t) => {
  const large = block({ id: 'large', data: notification('notifications/message', { data: 'x'.repeat(1_100_000) }) });
  const guard = await start(t, [FIRST, large]);
  const body = large + THIRD;
  assert.equal(await replayed(guard, [body], 'large'), body);
  const pieces = Array.from({ length: 20 }, (_, n) =>
    body.slice(n * 60_000, n === 19 ? body.length : (n + 1) * 60_000),
  );
  assert.equal(await replayed(guard, pieces, 'large'), body);
});

test('a block just under tap.maxHeldBytes is dropped, in one chunk and in many', async (t) => {
  const large = block({ id: 'large', data: notification('notifications/message', { data: 'x'.repeat(60_000) }) });
  const guard = await start(t, [FIRST, large], { tap: { maxHeldBytes: '64KiB' } });
  assert.equal(await replayed(guard, [large + THIRD], 'large'), THIRD);
  const pieces = [large.slice(0, 30_000), large.slice(30_000), THIRD];
  assert.equal(await replayed(guard, pieces, 'large'), THIRD);
});
