// Public cases, family 5: SSE framing and JSON-RPC reading. The bytes at the client equal those of upstream, and the
// proxy read them right: a resume at the last event is stripped when, and only when, the request is finished.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { type TestContext, test } from 'node:test';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, error, notification, priming, progress, type RpcId, result } from '../support/messages.ts';
import { type Fate, fateOf } from '../support/session.ts';

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');
const bytesOf = (...parts: readonly (string | Uint8Array)[]): Buffer =>
  Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)));

let sessions = 0;

interface Stream {
  /** The id of the request, or the body of the POST. */
  readonly asked?: RpcId | { readonly body: string };
  /** The body of the answer; each piece is a chunk of its own, all in one write to the socket. */
  readonly pieces: readonly (string | Uint8Array)[];
  /** The cursor of the resume. */
  readonly lei: string;
}

/** Sends one answer through the proxy, in a session of its own, and tells what becomes of a resume at `lei`. */
async function readingOf({ client, upstream, warnings }: Guard, { asked = 1, pieces, lei }: Stream): Promise<Fate> {
  const session = `reading-${(sessions += 1)}`;
  const reply = await client.post(asked, { session });
  const exchange = await upstream.next({ method: 'POST' });
  await exchange.head(200, { 'Content-Type': 'text/event-stream' });
  await exchange.writeEach(pieces);
  await exchange.end();
  assert.equal(sha256(await reply.bytes(10_000)), sha256(bytesOf(...pieces)), 'the body is the same at both ends');
  reply.destroy();
  const fate = await fateOf(client, upstream, { session, lei });
  assert.deepEqual(warnings(), []);
  return fate;
}

/** A guard and the reading of one stream through it. */
async function read(t: TestContext, stream: Stream): Promise<Fate> {
  return readingOf(await startGuard(t), stream);
}

/** Any two pieces of `bytes`. */
function* cuts(bytes: Buffer): Generator<readonly [Buffer, Buffer]> {
  for (let at = 1; at < bytes.length; at += 1) yield [bytes.subarray(0, at), bytes.subarray(at)];
}

const STREAM = bytesOf(
  priming('e1', 500),
  block({ id: 'e2', data: progress(1) }),
  block({ event: 'message', id: 'e3', data: result(1) }),
);

test('B45 a stream cut in two at any byte is read the same', async (t) => {
  const guard = await startGuard(t);
  for (const pieces of cuts(STREAM)) {
    assert.equal(await readingOf(guard, { pieces, lei: 'e3' }), 'stripped', `cut at ${pieces[0].length}`);
  }
});

test('B45 a stream in writes of one byte is read the same', async (t) => {
  const pieces = Array.from(STREAM, (byte) => Buffer.of(byte));
  assert.equal(await read(t, { pieces, lei: 'e3' }), 'stripped');
});

test('B45 a stream without its last blank line has not had its last event, wherever it is cut', async (t) => {
  const guard = await startGuard(t);
  for (const pieces of cuts(STREAM.subarray(0, -1))) {
    if (pieces[0].length % 7 !== 0) continue;
    assert.equal(await readingOf(guard, { pieces, lei: 'e2' }), 'forwarded e2', `cut at ${pieces[0].length}`);
  }
});

test('B46 CR LF split over chunks, and mixed line ends, are one line end each', async (t) => {
  const guard = await startGuard(t);
  const asSplit = ['id: t\r\ndata: {"jsonrpc":"2.0",\r', '\ndata: "id":1,"result":{}}\r\n\r', '\n'];
  assert.equal(await readingOf(guard, { pieces: asSplit, lei: 't' }), 'stripped');
  for (const ends of [
    ['\r', '\r', '\r', '\r'],
    ['\n', '\r\n', '\r', '\r\n'],
    ['\r\n', '\r', '\n', '\n'],
  ]) {
    const [first, second, third, blank] = ends;
    const body = bytesOf(
      `id: t${first}data: {"jsonrpc":"2.0",${second}data: "id":1,"result":{}}${third}${blank}`,
      ': tail\n',
    );
    for (const pieces of cuts(body)) {
      const what = `${JSON.stringify(ends)} cut at ${pieces[0].length}`;
      assert.equal(await readingOf(guard, { pieces, lei: 't' }), 'stripped', what);
    }
  }
});

const BOM = Buffer.of(0xef, 0xbb, 0xbf);

test('B48 a byte order mark at the start is skipped, also when it is split', async (t) => {
  const guard = await startGuard(t);
  const body = bytesOf(BOM, `data: ${result(1)}\nid: t\n\n`);
  for (const at of [1, 2, 3]) {
    const pieces = [body.subarray(0, at), body.subarray(at)];
    assert.equal(await readingOf(guard, { pieces, lei: 't' }), 'stripped', `split after ${at}`);
  }
});

test('B48 a byte order mark in the middle is part of a field name', async (t) => {
  const pieces = [priming('m1'), BOM, `data: ${result(1)}\nid: t\n\n`];
  assert.equal(await read(t, { pieces, lei: 't' }), 'forwarded t');
});

test('B49 JSON spread over several data lines is one message, with an empty line from a bare data field', async (t) => {
  const pretty = JSON.stringify(JSON.parse(result(1)), null, 2);
  const lines = pretty.split('\n').map((line) => `data: ${line}\n`);
  const pieces = ['id: t\n', ...lines.slice(0, 3), 'data\n', ...lines.slice(3), '\n'];
  assert.equal(await read(t, { pieces, lei: 't' }), 'stripped');
});

test('B50 characters split over chunks, odd separators and invalid bytes pass, and the result is seen', async (t) => {
  const guard = await startGuard(t);
  const odd = bytesOf('id: o\ndata: nel:\u0085 ls:\u2028 ps:\u2029 raw:', Buffer.of(0xff, 0xc0), ' end\n\n');
  const terminal = bytesOf(block({ id: 't', data: result(1, { text: 'price 5 € \u2028\u0085 grin 😀' }) }));
  const euro = terminal.indexOf('€');
  const grin = terminal.indexOf('😀');
  for (const [a, b] of [
    [euro + 1, grin + 1],
    [euro + 2, grin + 2],
    [euro + 2, grin + 3],
  ] as const) {
    const pieces = [odd, terminal.subarray(0, a), terminal.subarray(a, b), terminal.subarray(b)];
    assert.equal(await readingOf(guard, { pieces, lei: 't' }), 'stripped');
  }
});

/** `bytes` in pieces of 64 KiB. */
function slices(bytes: Buffer): Buffer[] {
  const size = 64 * 1024;
  return Array.from({ length: Math.ceil(bytes.length / size) }, (_, n) => bytes.subarray(n * size, (n + 1) * size));
}

for (const [order, terminal] of [
  ['before', (text: string) => `{"jsonrpc":"2.0","id":1,"result":{"text":"${text}"}}`],
  ['after', (text: string) => `{"jsonrpc":"2.0","result":{"text":"${text}"},"id":1}`],
] as const) {
  test(`B53 a result of 12 MiB in one data line passes and is seen, with its id ${order} the text`, async (t) => {
    const guard = await startGuard(t);
    const body = bytesOf(block({ id: 't', data: terminal('x'.repeat(12 * 1024 * 1024)) }));
    const before = performance.now();
    assert.equal(await readingOf(guard, { pieces: slices(body), lei: 't' }), 'stripped');
    assert.ok(performance.now() - before < 5_000, 'in linear time');
  });
}

test('B55 an ID with NUL is ignored, and an empty one throws nothing', async (t) => {
  const guard = await startGuard(t);
  const nul = block({ id: 'b\u00002', data: progress(1) });
  const empty = `id\ndata: ${progress(1)}\n\n`;
  const open = [block({ id: 'a1', data: progress(1) }), nul, empty];
  assert.equal(await readingOf(guard, { pieces: open, lei: 'a1' }), 'forwarded a1');
  const done = [...open, block({ id: 't', data: result(1) })];
  assert.equal(await readingOf(guard, { pieces: done, lei: 't' }), 'stripped');
});

test('B56 field syntax is that of the standard', async (t) => {
  const guard = await startGuard(t);
  const tight = [`data:${result(1)}\nid:t\n\n`];
  assert.equal(await readingOf(guard, { pieces: tight, lei: 't' }), 'stripped', 'no blank after the colon');
  const unknown = [`id: t\nData: ${result(1)}\nretry: 5x\n\n`];
  assert.equal(await readingOf(guard, { pieces: unknown, lei: 't' }), 'forwarded t', 'field names have a case');
  const spaced = [`id : q\ndata: ${result(1)}\n\n`];
  assert.equal(await readingOf(guard, { pieces: spaced, lei: 'q' }), 'forwarded q', 'a name ends at the colon');
  // The client sends ` t 1 ` and a field value loses its outer blanks (RFC 9110 section 5.5).
  const blanks = [`id:  t 1 \ndata:  ${result(1)}\n\n`];
  assert.equal(await readingOf(guard, { pieces: blanks, lei: 't 1' }), 'stripped');
});

const bodyWithId = (id: string): { body: string } => ({ body: `{"jsonrpc":"2.0","id":${id},"method":"tools/call"}` });
const resultWithId = (id: string): string => block({ id: 't', data: `{"jsonrpc":"2.0","id":${id},"result":{}}` });

test('B59 ids beyond double precision are not taken for one another', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = 'large-ids';
  const first = await client.post(bodyWithId('9007199254740992'), { session });
  const open = await upstream.next();
  await open.events(priming('a1'));
  await first.until('a1');
  open.cut();
  await first.ended;
  const second = await client.post(bodyWithId('9007199254740993'), { session });
  const exchange = await upstream.next();
  assert.equal(exchange.text, bodyWithId('9007199254740993').body);
  await exchange.events(priming('b1'), resultWithId('9007199254740993'));
  await exchange.end();
  assert.equal(await second.text(), priming('b1') + resultWithId('9007199254740993'));
  assert.equal(await fateOf(client, upstream, { session, lei: 'a1' }), 'forwarded a1');
});

test('B59 odd ids finish their own request and no other', async (t) => {
  const guard = await startGuard(t);
  for (const id of ['"__proto__"', '"constructor"', '""', '0', '-1', '1.5', '"\\u00e9"', '"a\\"b"']) {
    const own = { asked: bodyWithId(id), pieces: [resultWithId(id)], lei: 't' };
    assert.equal(await readingOf(guard, own), 'stripped', id);
  }
  for (const [asked, answered] of [
    ['1', '"1"'],
    ['"1"', '1'],
    ['0', '""'],
    ['0', 'null'],
    ['1', '-1'],
    ['"__proto__"', '"constructor"'],
    ['9007199254740992', '9007199254740993'],
  ] as const) {
    const other = { asked: bodyWithId(asked), pieces: [resultWithId(answered)], lei: 't' };
    assert.equal(await readingOf(guard, other), 'forwarded t', `${asked} answered as ${answered}`);
  }
});

test('B59 a number is the same id however it is written', async (t) => {
  const guard = await startGuard(t);
  for (const [asked, answered] of [
    ['1.0', '1'],
    ['1', '1.0'],
    ['1e2', '100'],
  ] as const) {
    const stream = { asked: bodyWithId(asked), pieces: [resultWithId(answered)], lei: 't' };
    assert.equal(await readingOf(guard, stream), 'stripped', `${asked} answered as ${answered}`);
  }
});

test('B60 an error with a null id on a stream finishes nothing', async (t) => {
  const pieces = [block({ id: 'e1', data: error(null) })];
  assert.equal(await read(t, { asked: 4, pieces, lei: 'e1' }), 'forwarded e1');
});

test('B60 an error with a null id as the JSON of a 400 passes unchanged', async (t) => {
  const { client, upstream } = await startGuard(t);
  const reply = await client.post(4, { session: 's-1' });
  await (await upstream.next()).json(400, error(null));
  assert.equal((await reply.head).status, 400);
  assert.equal(await reply.text(), error(null));
});

test('B62 notifications and requests that look like answers finish nothing', async (t) => {
  const guard = await startGuard(t);
  const lookalikes = [
    progress(4, 100, 100),
    notification('notifications/message', { id: 4, result: {} }),
    '{"jsonrpc":"2.0","id":null,"method":"notifications/message","params":{"result":{"id":4}}}',
    '{"jsonrpc":"2.0","id":4,"method":"elicitation/create","params":{}}',
    '{"jsonrpc":"2.0","id":4,"method":"ping","result":{}}',
    '{"jsonrpc":"2.0","params":{"id":4,"result":{}}}',
    '{"jsonrpc":"2.0","id":4}',
    '{"jsonrpc":"2.0","result":{"id":4}}',
    '[]',
    '{}',
    '4',
    'null',
    '"result"',
  ];
  for (const data of lookalikes) {
    assert.equal(
      await readingOf(guard, { asked: 4, pieces: [block({ id: 'e1', data })], lei: 'e1' }),
      'forwarded e1',
      data,
    );
  }
});

test('B63 a result that is there counts, whatever its value', async (t) => {
  const guard = await startGuard(t);
  for (const value of ['null', '0', 'false', '""', '[]']) {
    const pieces = [block({ id: 't', data: `{"jsonrpc":"2.0","id":1,"result":${value}}` })];
    assert.equal(await readingOf(guard, { pieces, lei: 't' }), 'stripped', value);
  }
  assert.equal(
    await readingOf(guard, { pieces: [block({ id: 't', data: error(1) })], lei: 't' }),
    'stripped',
    'an error',
  );
});

test('B63 only a block that is unnamed or named message can finish a request', async (t) => {
  const guard = await startGuard(t);
  for (const [event, fate] of [
    ['note', 'forwarded t'],
    ['Message', 'forwarded t'],
    ['error', 'forwarded t'],
    ['message', 'stripped'],
    ['', 'stripped'],
  ] as const) {
    const pieces = [block({ event, id: 't', data: result(1) })];
    assert.equal(await readingOf(guard, { pieces, lei: 't' }), fate, `event ${JSON.stringify(event)}`);
  }
});

test('B63 a batch is finished by its last result, in any order', async (t) => {
  const guard = await startGuard(t);
  const asked = {
    body: '[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","id":2,"method":"b"},{"jsonrpc":"2.0","method":"n"}]',
  };
  const one = block({ id: 't1', data: result(1) });
  const two = block({ id: 't2', data: result(2) });
  assert.equal(await readingOf(guard, { asked, pieces: [two], lei: 't2' }), 'forwarded t2');
  assert.equal(await readingOf(guard, { asked, pieces: [two, one], lei: 't1' }), 'stripped');
  const both = block({ id: 't', data: `[${result(2)},${result(1)}]` });
  assert.equal(await readingOf(guard, { asked, pieces: [both], lei: 't' }), 'stripped', 'results in one batch');
});
