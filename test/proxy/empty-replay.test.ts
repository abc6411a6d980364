// The four forms in which a server says "200 and nothing" to a resume, and the one answer they become.

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import type { Exchange } from '../support/exchange.ts';
import { type Guard, type GuardOptions, startGuard } from '../support/guard.ts';
import { priming } from '../support/messages.ts';
import { answerEmpty, cutPost, forwardedGet, openSession, type Pair } from '../support/session.ts';
import { fastestOf } from '../support/waiting.ts';

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;

/** A resume, in a new session, of an open request that has reached the upstream. */
async function resumeThrough({ client, upstream }: Guard): Promise<Pair> {
  const session = await openSession(client, upstream, `s-${upstream.requests.length}`);
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  return forwardedGet(client, upstream, { session, lei: 'e1' });
}

async function resume(t: TestContext, options: GuardOptions = {}): Promise<Pair & { guard: Guard }> {
  const guard = await startGuard(t, { file: { replayHold: '2s' }, ...options });
  return { guard, ...(await resumeThrough(guard)) };
}

const FORMS: readonly [name: string, answer: (exchange: Exchange) => Promise<void>][] = [
  ['a chunked body without a chunk', (exchange) => answerEmpty(exchange)],
  ['Content-Length: 0', (exchange) => exchange.head(200, EVENTS, { framing: 'length:0' })],
  ['Content-Length: 0 and no media type', (exchange) => exchange.head(200, {}, { framing: 'length:0' })],
  [
    'the end of the connection',
    async (exchange) => {
      await exchange.head(200, EVENTS, { framing: 'close' });
      await exchange.end();
    },
  ],
  [
    'a chunked JSON body without a chunk',
    async (exchange) => {
      await exchange.head(200, { 'Content-Type': 'application/json' });
      await exchange.end();
    },
  ],
  [
    'comments only',
    async (exchange) => {
      await exchange.events(': hello\n\n', 'event: ping\n\n', 'data:\n\n');
      await exchange.end();
    },
  ],
  [
    'a compressed stream of nothing',
    async (exchange) => {
      await exchange.head(200, { ...EVENTS, 'Content-Encoding': 'gzip' });
      await exchange.end(gzipSync(''));
    },
  ],
];

for (const [name, answer] of FORMS) {
  test(`an empty replay by ${name} is a 409 within 100 ms`, async (t) => {
    const guard = await startGuard(t, { file: { replayHold: '2s' } });
    const fastest = await fastestOf(3, async () => {
      const { reply, exchange } = await resumeThrough(guard);
      await answer(exchange);
      const ended = performance.now();
      return (await reply.headWithin(1_000)).at - ended;
    });
    assert.ok(fastest < 100, `${fastest} ms`);
    const { reply, exchange } = await resumeThrough(guard);
    await answer(exchange);
    const head = await reply.head;
    assert.equal(head.status, 409);
    assert.equal(head.field('content-type'), 'application/json');
    assert.equal(head.field('cache-control'), 'no-store');
    assert.equal(head.field('proxy-status'), 'mcp-resume-guard; received-status=200; details="empty-replay"');
    assert.equal(head.field('content-encoding'), undefined);
    const { jsonrpc, error, ...others } = JSON.parse(await reply.text());
    assert.equal(jsonrpc, '2.0');
    assert.deepEqual(others, {}, 'no id: a refusal answers no request');
    const { message, ...rest } = error;
    assert.deepEqual(rest, { code: -32010, data: { rule: 'empty-replay', retry: 'request' } });
    assert.match(message, /^[A-Z].*\.$/, 'one sentence for a person');
  });
}

test('the 409 carries what belongs to the browser and the session from the answer it replaces, and nothing else', async (t) => {
  const { reply, exchange } = await resume(t);
  const kept = [
    ['Access-Control-Allow-Origin', 'http://localhost'],
    ['Access-Control-Expose-Headers', 'Mcp-Session-Id'],
    ['Vary', 'Origin'],
    ['Mcp-Session-Id', 's-1'],
    ['Set-Cookie', 'a=1'],
    ['Set-Cookie', 'b=2'],
  ] as const;
  const dropped = [
    ['ETag', '"x"'],
    ['X-Powered-By', 'something'],
    ['Cache-Control', 'no-cache, no-transform'],
  ] as const;
  await exchange.head(200, [['Content-Type', 'text/event-stream'], ...kept, ...dropped]);
  await exchange.end();
  const head = await reply.head;
  assert.equal(head.status, 409);
  for (const [name] of kept)
    assert.deepEqual(
      head.values(name),
      kept.filter(([key]) => key === name).map(([, value]) => value),
      name,
    );
  assert.equal(head.field('etag'), undefined);
  assert.equal(head.field('x-powered-by'), undefined);
  assert.deepEqual(head.values('cache-control'), ['no-store']);
});

test('without proxyStatus the 409 carries no Proxy-Status', async (t) => {
  const { reply, exchange } = await resume(t, { file: { proxyStatus: false } });
  await answerEmpty(exchange);
  const head = await reply.head;
  assert.deepEqual([head.status, head.field('proxy-status')], [409, undefined]);
});

test('refusals override the status, and a 204 has no body', async (t) => {
  for (const status of [410, 204]) {
    const { reply, exchange } = await resume(t, { file: { refusals: { 'empty-replay': status } } });
    await answerEmpty(exchange);
    assert.equal((await reply.head).status, status);
    assert.equal((await reply.bytes()).length > 0, status !== 204);
  }
});

test('in observe mode the empty replay passes, and is counted', async (t) => {
  const { reply, exchange, guard } = await resume(t, { file: { mode: 'observe' } });
  await exchange.events();
  assert.equal((await reply.headWithin(200)).status, 200, 'no head is held');
  await exchange.end();
  assert.equal((await reply.bytes()).length, 0);
  assert.equal(await guard.metric('replays_total', { outcome: 'empty' }), 1);
});
