// Public cases, family 6: what reverse proxies get wrong about fields, targets, statuses and the ends of bodies.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startGuard } from '../support/guard.ts';
import { block, notification, priming, result } from '../support/messages.ts';
import {
  answerEmpty,
  cutPost,
  failureOf,
  fateOf,
  finishedPost,
  forwardedGet,
  openSession,
  refusalOf,
} from '../support/session.ts';
import { chunk, type Field } from '../support/wire.ts';

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;
const ODD_CASE = { 'Content-Type': 'Text/Event-Stream;Charset=UTF-8' } as const;

test('B69 hop-by-hop fields and those that Connection names stay on their hop', async (t) => {
  const { client, upstream } = await startGuard(t);
  const reply = await client.get({
    fields: [
      ['Connection', 'close, X-Private'],
      ['TE', 'trailers'],
      ['X-Private', '1'],
      ['Keep-Alive', 'timeout=5'],
      ['Proxy-Connection', 'keep-alive'],
      ['X-Public', '2'],
    ],
  });
  const exchange = await upstream.next();
  for (const name of ['te', 'x-private', 'keep-alive', 'proxy-connection', 'transfer-encoding']) {
    assert.equal(exchange.field(name), undefined, `${name} at upstream`);
  }
  assert.equal(exchange.field('x-public'), '2');
  await exchange.head(
    200,
    [
      ['Connection', 'keep-alive, X-Hop'],
      ['Keep-Alive', 'timeout=99'],
      ['X-Hop', '1'],
      ['Proxy-Connection', 'keep-alive'],
      ['X-End', '2'],
    ],
    { framing: 'length:2' },
  );
  await exchange.write('ok');
  const head = await reply.head;
  assert.equal(await reply.text(), 'ok');
  assert.equal(head.field('x-hop'), undefined);
  assert.equal(head.field('proxy-connection'), undefined);
  assert.ok(!head.values('keep-alive').includes('timeout=99'));
  assert.equal(head.field('x-end'), '2');
  assert.equal(head.field('connection'), 'close', 'the client asked to close');
  await reply.connection.closed();
});

test('B69 Connection cannot remove the fields of the protocol', async (t) => {
  const { client, upstream } = await startGuard(t);
  const names = ['Mcp-Session-Id', 'Last-Event-ID', 'Authorization', 'MCP-Protocol-Version'];
  const { exchange } = await forwardedGet(client, upstream, {
    session: 's-1',
    lei: 'e1',
    token: 'secret',
    version: '2025-11-25',
    fields: { Connection: names.join(', ') },
  });
  const values = names.map((name) => exchange.values(name));
  assert.deepEqual(values, [['s-1'], ['e1'], ['Bearer secret'], ['2025-11-25']]);
});

test('B71 answers without a body keep their fields, do not hang and leave the connection usable', async (t) => {
  const { client, upstream } = await startGuard(t);
  const connection = await client.connect();
  const rounds: [method: string, fields: Field[], status: number, answer: Field[]][] = [
    ['HEAD', [], 200, [['Content-Length', '42']]],
    ['HEAD', [['Last-Event-ID', 'e1']], 200, [['Content-Type', 'text/event-stream']]],
    ['OPTIONS', [['Origin', 'http://localhost']], 204, [['Allow', 'GET, POST']]],
    ['GET', [], 204, [['X-End', '1']]],
    ['GET', [['If-None-Match', '"v"']], 304, [['ETag', '"v"']]],
    ['HEAD', [], 404, [['Content-Length', '9']]],
  ];
  for (const [method, fields, status, answer] of rounds) {
    const reply = connection.send({ method, path: '/mcp', fields });
    const exchange = await upstream.next({ method });
    await exchange.head(status, answer);
    const head = await reply.headWithin(500);
    assert.equal(head.status, status, `${method} ${status}`);
    for (const [name, value] of answer) assert.equal(head.field(name), value, `${method} ${status} ${name}`);
    assert.equal((await reply.bytes(500)).length, 0);
  }
  const patch = connection.send({ method: 'PATCH', path: '/mcp', body: '{}' });
  await (await upstream.next({ method: 'PATCH' })).answer(405, { Allow: 'POST' }, 'no');
  assert.equal((await patch.head).field('allow'), 'POST');
  assert.equal(await patch.text(), 'no');
  const last = connection.send({ method: 'POST', path: '/mcp', body: 'x' });
  await (await upstream.next({ method: 'POST' })).answer(200, {}, 'last');
  assert.equal(await last.text(), 'last');
});

test('B73 repeated fields keep all their copies and their order, in both directions', async (t) => {
  const { client, upstream } = await startGuard(t);
  const asked: Field[] = [
    ['Cookie', 'a=1'],
    ['X-One', '1'],
    ['Cookie', 'b=2'],
    ['mCp-SeSSion-iD', 's-1'],
    ['X-One', '2'],
    ['Last-Event-ID', 'e1'],
    ['Last-Event-ID', 'e2'],
  ];
  const { reply, exchange } = await forwardedGet(client, upstream, { fields: asked });
  for (const name of ['cookie', 'x-one', 'mcp-session-id', 'last-event-id']) {
    const sent = asked.filter(([key]) => key.toLowerCase() === name).map(([, value]) => value);
    assert.deepEqual(exchange.values(name), sent, name);
  }
  const order = exchange.fields
    .map(([name]) => name.toLowerCase())
    .filter((name) => asked.some(([key]) => key.toLowerCase() === name));
  assert.deepEqual(
    order,
    asked.map(([name]) => name.toLowerCase()),
  );
  const answered: Field[] = [
    ['Set-Cookie', 'a=1; Path=/'],
    ['WWW-Authenticate', 'Bearer realm="one"'],
    ['Link', '</a>; rel=a'],
    ['Set-Cookie', 'b=2, with comma'],
    ['Link', '</b>; rel=b'],
    ['WWW-Authenticate', 'Basic realm="two"'],
    ['X-Latin', 'caf\u00e9'],
  ];
  await exchange.answer(401, answered, 'no');
  const head = await reply.head;
  const names = new Set(answered.map(([name]) => name.toLowerCase()));
  assert.deepEqual(
    head.fields.filter(([name]) => names.has(name.toLowerCase())).map(([name, value]) => [name.toLowerCase(), value]),
    answered.map(([name, value]) => [name.toLowerCase(), value]),
  );
});

test('B73 a session ID that is sent twice is passed on twice, and nothing is decided by it', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, block({ id: 'e2', data: result(1) }));
  const { exchange } = await forwardedGet(client, upstream, {
    session,
    lei: 'e2',
    fields: { 'Mcp-Session-Id': 's-2' },
  });
  assert.deepEqual(exchange.values('mcp-session-id'), ['s-1', 's-2']);
  assert.deepEqual(exchange.values('last-event-id'), ['e2']);
});

test('B74 large fields pass both ways', async (t) => {
  const { client, upstream } = await startGuard(t);
  for (const size of [20 * 1024, 64 * 1024]) {
    const reply = await client.get({ token: 't'.repeat(size) });
    const exchange = await upstream.next();
    assert.equal(exchange.field('authorization')?.length, size + 'Bearer '.length);
    const fields = Array.from({ length: size / 1024 }, (_, n) => [`X-${n}`, 'v'.repeat(1000)] as const);
    await exchange.answer(200, fields, 'ok');
    const head = await reply.head;
    assert.equal(head.status, 200, `${size} bytes`);
    assert.equal(head.fields.filter(([name]) => /^x-\d+$/i.test(name)).length, fields.length);
  }
});

test('B74 fields over the limit are 431 from the client and 502 from upstream', async (t) => {
  const { client, upstream } = await startGuard(t);
  const size = 300 * 1024;
  const asked = await client.get({ token: 't'.repeat(size) });
  assert.equal((await asked.head).status, 431);
  const reply = await client.get();
  const exchange = await upstream.next();
  await exchange.answer(200, { 'X-Large': 'v'.repeat(size) }, 'ok').catch(() => {});
  assert.equal(await failureOf(reply), 502);
  const next = await client.get();
  await (await upstream.next()).answer(200, {}, 'ok');
  assert.equal(await next.text(), 'ok', 'and life goes on');
});

test('B79 redirects pass; a Location at the origin of upstream is rewritten to ours', async (t) => {
  const { client, upstream, authority } = await startGuard(t, { path: '' });
  const rounds: [sent: string, expected: string][] = [
    ['/mcp/', '/mcp/'],
    [`${upstream.url}/mcp/?a=%2F`, `http://${authority}/mcp/?a=%2F`],
    ['https://elsewhere.example/mcp', 'https://elsewhere.example/mcp'],
    [`http://127.0.0.1:${upstream.port}0/x`, `http://127.0.0.1:${upstream.port}0/x`],
  ];
  for (const [sent, expected] of rounds) {
    const reply = await client.post(1);
    await (await upstream.next()).answer(307, { Location: sent });
    const head = await reply.head;
    assert.equal(head.status, 307);
    assert.equal(head.field('location'), expected);
  }
  assert.equal(upstream.requests.length, rounds.length, 'no redirect is followed');
});

test('B79 the path and the query go up byte for byte', async (t) => {
  const { client, upstream } = await startGuard(t, { path: '' });
  for (const path of ['/mcp/', '/mcp?', '/a//b/../c/./d?q=%2F&r=%zz&&s=a+b%20c', "/%7Euser/it's?(x)={y}|z"]) {
    const reply = await client.send({ method: 'GET', path });
    const exchange = await upstream.next();
    assert.equal(exchange.target, path);
    await exchange.answer(200, {}, 'ok');
    await reply.text();
  }
});

test('B82 a media type with parameters and in any case is an event stream', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const done = await client.post(3, { session });
  const first = await upstream.next();
  await first.head(200, ODD_CASE);
  await first.writeEach([priming('e1'), block({ id: 'e2', data: result(3) })]);
  await first.end();
  assert.equal((await done.head).field('content-type'), ODD_CASE['Content-Type']);
  await done.bytes();
  assert.equal(await fateOf(client, upstream, { session, lei: 'e2' }), 'stripped');

  await cutPost(client, upstream, 7, { session }, priming('f1'));
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'f1' });
  await exchange.head(200, ODD_CASE);
  await exchange.end();
  assert.equal((await refusalOf(reply)).rule, 'empty-replay');
});

test('B83 answers other than 200 are never rewritten, though they be labelled as streams', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const note = await client.post({ body: notification('notifications/initialized') }, { session });
  const labelled = await upstream.next();
  await labelled.head(202, EVENTS);
  await labelled.end();
  assert.equal((await note.head).status, 202);
  assert.equal((await note.head).field('content-type'), 'text/event-stream');
  assert.equal((await note.bytes()).length, 0);

  await cutPost(client, upstream, 7, { session }, priming('e1'));
  for (const status of [202, 204, 206, 304, 404, 500]) {
    const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
    assert.equal(exchange.field('last-event-id'), 'e1');
    await exchange.head(status, EVENTS);
    if (status !== 204 && status !== 304) await exchange.end();
    assert.equal((await reply.head).status, status);
    assert.equal((await reply.bytes()).length, 0);
  }
});

test('B84 a body that ends with the connection arrives to its last byte, and ends', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  const body = block({ id: 't', data: result(1, 'x'.repeat(2 * 1024 * 1024)) });
  for (const version of ['1.0', '1.1']) {
    const reply = await client.post(1, { session });
    const exchange = await upstream.next();
    await exchange.raw(`HTTP/${version} 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n`);
    exchange.socket.end(body);
    assert.equal((await reply.bytes(5_000)).length, body.length);
    assert.equal(reply.body.toString(), body);
    assert.equal(await fateOf(client, upstream, { session, lei: 't' }), 'stripped');
  }
});

test('B84 an empty body that ends with the connection is an empty replay', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  const { reply, exchange } = await forwardedGet(client, upstream, { session, lei: 'e1' });
  await exchange.raw('HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n');
  exchange.socket.end();
  assert.equal((await refusalOf(reply)).status, 409);
});

test('B84 a last chunk with trailers ends a replay like any other', async (t) => {
  const { client, upstream } = await startGuard(t);
  const session = await openSession(client, upstream, 's-1');
  await cutPost(client, upstream, 7, { session }, priming('e1'));
  const withEvent = await forwardedGet(client, upstream, { session, lei: 'e1' });
  await withEvent.exchange.events();
  await withEvent.exchange.raw(Buffer.concat([chunk(priming('e2')), Buffer.from('0\r\nX-Sum: 1\r\n\r\n')]));
  assert.equal(await withEvent.reply.text(), priming('e2'));
  const empty = await forwardedGet(client, upstream, { session, lei: 'e2' });
  await answerEmpty(empty.exchange);
  assert.equal((await refusalOf(empty.reply)).rule, 'empty-replay');
});
