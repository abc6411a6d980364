// Refusals: the status, the fields and the body of each, and that nothing of the request is repeated in them. Their
// other form, and who gets which, is in refusal-forms.test.ts.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { block, priming, result } from '../support/messages.ts';
import { DONE, emptyReplay, OPEN, SESSION, startRefusing, WAYS } from '../support/refusal-ways.ts';
import type { Reply, ReplyHead } from '../support/reply.ts';
import { finishedPost, forwardedGet, refusalOf } from '../support/session.ts';
import type { TimedGuard } from '../support/timed-guard.ts';
import type { Field } from '../support/wire.ts';

/** No refusal repeats what a client or upstream calls its things. */
async function repeatsNothing(reply: Reply, head: ReplyHead): Promise<void> {
  assert.doesNotMatch(head.raw.toString('latin1') + (await reply.text()), /opaque/);
}

for (const [rule, { way, status, retry, file = {} }] of Object.entries(WAYS)) {
  test(`${rule} is a ${status} that says "${retry}" and repeats nothing of the request`, async (t) => {
    const guard = await startRefusing(t, { file });
    const reply = await way(guard);
    const head = await reply.head;
    const asked = rule === 'empty-replay' ? ' received-status=200;' : '';
    assert.deepEqual(await refusalOf(reply), {
      status,
      rule,
      retry,
      proxyStatus: `mcp-resume-guard;${asked} details="${rule}"`,
    });
    assert.equal(head.field('content-length'), String(reply.body.length));
    assert.equal(head.field('allow') !== undefined, status === 405, 'Allow goes with 405 alone (RFC 9110, 15.5.6)');
    const { message } = JSON.parse(reply.body.toString()).error;
    assert.match(message, /^[A-Z].*\.$/, 'for a person');
    await repeatsNothing(reply, head);
  });

  test(`${rule} with an overridden status keeps its body, and with 204 has none`, async (t) => {
    for (const override of [418, 204]) {
      const guard = await startRefusing(t, { file: { ...file, refusals: { [rule]: override } } });
      const reply = await way(guard);
      const head = await reply.head;
      assert.equal(head.status, override);
      const body = (await reply.bytes()).toString();
      assert.equal(head.field('cache-control'), 'no-store');
      assert.match(head.field('proxy-status') ?? '', new RegExp(`details="${rule}"`));
      if (override === 204) assert.deepEqual([body, head.field('content-length')], ['', undefined]);
      else assert.equal(JSON.parse(body).error.data.rule, rule);
    }
  });

  test(`${rule} without proxyStatus is the same without the field`, async (t) => {
    const guard = await startRefusing(t, { file: { ...file, proxyStatus: false } });
    const { proxyStatus, ...rest } = await refusalOf(await way(guard));
    assert.deepEqual([proxyStatus, rest], [undefined, { status, rule, retry }]);
  });
}

// Proxy-Status elsewhere.

test('a stripped exchange carries Proxy-Status in a 2xx answer only, and not with proxyStatus: false', async (t) => {
  for (const proxyStatus of [true, false]) {
    const { client, upstream } = await startRefusing(t, { file: { proxyStatus } });
    for (const status of [200, 204, 302, 401, 405, 409, 500]) {
      const { reply, exchange } = await forwardedGet(client, upstream, { ...SESSION, lei: DONE });
      await exchange.answer(status, { 'Content-Type': 'text/plain' });
      const marked = proxyStatus && status < 300 ? 'mcp-resume-guard; details="finished"' : undefined;
      assert.equal((await reply.head).field('proxy-status'), marked, `${status}`);
      await reply.ended;
    }
  }
});

test('a Proxy-Status of upstream passes, beside ours too', async (t) => {
  const guard = await startRefusing(t);
  const theirs: readonly Field[] = [['Proxy-Status', 'inner; error=dns_timeout']];
  const { reply, exchange } = await forwardedGet(guard.client, guard.upstream, { ...SESSION, lei: DONE });
  await exchange.answer(200, [['Content-Type', 'text/plain'], ...theirs]);
  assert.deepEqual((await reply.head).values('proxy-status'), [theirs[0]?.[1], 'mcp-resume-guard; details="finished"']);
});

test('an upstream’s own 409 passes byte for byte, unmarked', async (t) => {
  const { client, upstream } = await startRefusing(t);
  const body = '{"jsonrpc":"2.0","error":{"code":-32000,"message":"a stream is already open"},"id":null}';
  const { reply, exchange } = await forwardedGet(client, upstream, { ...SESSION, lei: OPEN });
  await exchange.json(409, body, { 'X-Own': '1' });
  const head = await reply.head;
  assert.deepEqual([head.status, head.field('x-own'), head.field('proxy-status')], [409, '1', undefined]);
  assert.equal(await reply.text(), body);
});

// Fields for browsers.

const ORIGIN = { Origin: 'http://localhost:5173' } as const;
const CORS: readonly Field[] = [
  ['Access-Control-Allow-Origin', 'http://localhost:5173'],
  ['Access-Control-Expose-Headers', 'Mcp-Session-Id'],
  ['Vary', 'Origin'],
];

async function callWith({ client, upstream }: TimedGuard, origin: string, cors: readonly Field[]): Promise<void> {
  const reply = await client.post(9, { ...SESSION, fields: { Origin: origin } });
  await (await upstream.next({ method: 'POST' })).json(200, result(9), [...cors, ['X-Other', '1']]);
  await reply.bytes();
}

test('a refusal from memory carries the CORS fields that upstream last sent to the same Origin in the session', async (t) => {
  const guard = await startRefusing(t);
  const refuse = async (origin?: string): Promise<ReplyHead> => {
    const options = { ...SESSION, lei: OPEN, ...(origin === undefined ? {} : { fields: { Origin: origin } }) };
    const reply = await guard.client.get(options);
    const head = await reply.head;
    await refusalOf(reply);
    return head;
  };
  const corsOf = (head: ReplyHead) => head.fields.filter(([name]) => /^(access-control-|vary)/i.test(name));
  await callWith(guard, 'http://localhost:1', [['Access-Control-Allow-Origin', 'http://localhost:1']]);
  await callWith(guard, ORIGIN.Origin, [['Access-Control-Allow-Origin', '*']]);
  await callWith(guard, ORIGIN.Origin, CORS);
  for (let round = 0; round < 2; round += 1) await (await emptyReplay(guard, { ...SESSION, lei: OPEN })).ended;

  assert.deepEqual(corsOf(await refuse(ORIGIN.Origin)), CORS);
  assert.deepEqual(corsOf(await refuse('http://localhost:1')), [['Access-Control-Allow-Origin', 'http://localhost:1']]);
  assert.deepEqual(corsOf(await refuse('http://localhost:2')), []);
  assert.deepEqual(corsOf(await refuse()), []);
});

test('an empty-replay carries those of the answer it replaces; a silent one without a head those from memory', async (t) => {
  const guard = await startRefusing(t, { file: { deliveryProof: 'event-id', replayDeadline: '150ms' } });
  const { client, upstream } = guard;
  const options = { ...SESSION, fields: ORIGIN };
  const own: readonly Field[] = [
    ['Access-Control-Allow-Origin', '*'],
    ['Mcp-Session-Id', 'as-upstream-said'],
    ['Set-Cookie', 'a=1'],
    ['Set-Cookie', 'b=2'],
  ];
  const replaced = await emptyReplay(guard, { ...options, lei: OPEN }, [...own, ['X-Other', '1']]);
  const head = await replaced.head;
  assert.deepEqual(
    head.fields.filter(([name]) => /^(access-control-|vary|mcp-|set-cookie|x-)/i.test(name)),
    own,
  );
  assert.equal((await refusalOf(replaced)).rule, 'empty-replay');

  await callWith(guard, ORIGIN.Origin, CORS);
  await finishedPost(client, upstream, 10, SESSION, priming('f1'), block({ id: 'f2', data: result(10) }));
  const silent = await forwardedGet(client, upstream, { ...options, lei: 'f1' });
  const silentHead = await silent.reply.head;
  assert.deepEqual(
    silentHead.fields.filter(([name]) => /^(access-control-|vary)/i.test(name)),
    CORS,
  );
  assert.equal((await refusalOf(silent.reply)).proxyStatus, 'mcp-resume-guard; details="empty-replay"');
});
