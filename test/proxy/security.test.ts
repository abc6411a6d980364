// Who may come in, what upstream is told about them, what never leaves the process, and how much one client may take.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Exchange } from '../support/exchange.ts';
import { type GuardOptions, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { answerEmpty, cutPost, failureOf, fateOf, finishedPost, openSession } from '../support/session.ts';
import { eventually } from '../support/waiting.ts';
import { chunk, type Field } from '../support/wire.ts';

const ok = (exchange: Exchange): Promise<void> => exchange.answer(200, {}, 'ok');

describe('on a loopback address', () => {
  const rounds: readonly [allowed: boolean, fields: Field[]][] = [
    [true, [['Host', 'localhost']]],
    [true, [['Host', 'LocalHost:1']]],
    [true, [['Host', 'localhost.:8808']]],
    [true, [['Host', 'app.localhost']]],
    [true, [['Host', '127.0.0.1']]],
    [true, [['Host', '127.1.2.3:65535']]],
    [true, [['Host', '[::1]']]],
    [true, [['Host', '[::1]:8808']]],
    [false, [['Host', 'evil.example']]],
    [false, [['Host', 'localhost.evil.example']]],
    [false, [['Host', '127.0.0.1.evil.example']]],
    [false, [['Host', 'notlocalhost']]],
    [false, [['Host', '10.0.0.1']]],
    [false, [['Host', '128.0.0.1']]],
    [false, [['Host', '127.0.0.999']]],
    [false, [['Host', '0.0.0.0']]],
    [false, [['Host', '[::]']]],
    [false, [['Host', '[::2]:8808']]],
    [false, [['Host', '']]],
    [false, [['Host', 'localhost:x']]],
    [false, [['Host', 'evil.example@localhost']]],
    [false, [['Host', 'localhost evil.example']]],
    [true, [['Origin', 'http://localhost']]],
    [true, [['Origin', 'https://localhost:3000']]],
    [true, [['Origin', 'http://127.0.0.1:1']]],
    [true, [['Origin', 'http://[::1]:1']]],
    [false, [['Origin', 'http://evil.example']]],
    [false, [['Origin', 'https://localhost.evil.example']]],
    [false, [['Origin', 'http://evil.example/localhost']]],
    [false, [['Origin', 'null']]],
    [false, [['Origin', '']]],
    [false, [['Origin', 'file://']]],
    [false, [['Origin', 'localhost']]],
    [
      false,
      [
        ['Origin', 'http://localhost'],
        ['Origin', 'http://evil.example'],
      ],
    ],
  ];

  test('Host and Origin must be loopback names: else 403, and upstream sees nothing', async (t) => {
    const { client, upstream } = await startGuard(t, { handler: ok });
    let seen = 0;
    for (const path of ['/mcp', '/free']) {
      for (const [allowed, fields] of rounds) {
        const reply = await client.send({ method: 'POST', path, fields, body: '{}' });
        const name = JSON.stringify(fields);
        if (allowed) {
          assert.equal((await reply.head).status, 200, name);
          seen += 1;
        } else {
          assert.equal(await failureOf(reply), 403, name);
        }
        assert.equal(upstream.requests.length, seen, name);
      }
    }
  });

  test('observe mode lets nobody in who may not come in', async (t) => {
    const { client, upstream } = await startGuard(t, { handler: ok, file: { mode: 'observe' } });
    const reply = await client.send({ method: 'POST', path: '/mcp', fields: { Host: 'evil.example' }, body: '{}' });
    assert.equal(await failureOf(reply), 403);
    assert.equal(upstream.requests.length, 0);
  });
});

test('allow lists take the place of the loopback rule', async (t) => {
  const { client } = await startGuard(t, {
    handler: ok,
    file: {
      allowedHosts: ['mcp.example', 'other.example:8443', '[::1]'],
      allowedOrigins: ['https://app.example', 'http://localhost:3000'],
    },
  });
  for (const [status, host, origin] of [
    [200, 'mcp.example', undefined],
    [200, 'MCP.example:99', undefined],
    [200, 'other.example:8443', undefined],
    [403, 'other.example', undefined],
    [403, 'other.example:8444', undefined],
    [200, '[::1]:8', undefined],
    [403, 'localhost', undefined],
    [403, 'sub.mcp.example', undefined],
    [200, 'mcp.example', 'https://app.example'],
    [200, 'mcp.example', 'HTTPS://APP.example'],
    [200, 'mcp.example', 'http://localhost:3000'],
    [403, 'mcp.example', 'http://localhost:3001'],
    [403, 'mcp.example', 'http://app.example'],
    [403, 'mcp.example', 'https://app.example.evil.example'],
    [403, 'mcp.example', 'null'],
  ] as const) {
    const fields = { Host: host, ...(origin === undefined ? {} : { Origin: origin }) };
    const reply = await client.send({ method: 'GET', path: '/mcp', fields });
    assert.equal((await reply.head).status, status, `${host} ${origin}`);
    await reply.bytes();
  }
});

describe('upstream is told', () => {
  test('its own authority, and who asked for what in which way', async (t) => {
    const { client, upstream, authority } = await startGuard(t);
    for (const path of ['/mcp', '/free']) {
      const reply = await client.send({ method: 'GET', path, fields: { Origin: 'http://localhost:5173' } });
      const exchange = await upstream.next();
      const told = ['host', 'x-forwarded-for', 'x-forwarded-host', 'x-forwarded-proto', 'via', 'origin'];
      assert.deepEqual(
        told.map((name) => exchange.values(name)),
        [
          [new URL(upstream.url).host],
          ['127.0.0.1'],
          [authority],
          ['http'],
          ['1.1 mcp-resume-guard'],
          ['http://localhost:5173'],
        ],
      );
      await ok(exchange);
      await reply.bytes();
    }
  });

  test('what earlier intermediaries said, with ours at the end', async (t) => {
    const { client, upstream } = await startGuard(t);
    const reply = await client.send({
      method: 'GET',
      path: '/mcp',
      fields: [
        ['X-Forwarded-For', '10.0.0.1, 10.0.0.2'],
        ['Via', '1.0 one'],
        ['X-Forwarded-For', '10.0.0.3'],
        ['Via', '2 two (a comment)'],
        ['X-Forwarded-Host', 'public.example'],
        ['X-Forwarded-Proto', 'https'],
        ['X-Forwarded-Port', '443'],
        ['Forwarded', 'for=10.0.0.1'],
        ['Connection', 'X-Forwarded-For, Via'],
      ],
    });
    const exchange = await upstream.next();
    assert.deepEqual(exchange.values('x-forwarded-for'), ['10.0.0.1, 10.0.0.2, 10.0.0.3, 127.0.0.1']);
    assert.deepEqual(exchange.values('via'), ['1.0 one, 2 two (a comment), 1.1 mcp-resume-guard']);
    assert.deepEqual(exchange.values('x-forwarded-host'), ['public.example']);
    assert.deepEqual(exchange.values('x-forwarded-proto'), ['https']);
    assert.deepEqual(exchange.values('x-forwarded-port'), ['443']);
    assert.deepEqual(exchange.values('forwarded'), ['for=10.0.0.1']);
    await ok(exchange);
    await reply.bytes();
  });

  test('the Host of the client where preserveHost is on', async (t) => {
    const { client, upstream } = await startGuard(t, { file: { preserveHost: true } });
    for (const [path, host] of [
      ['/mcp', 'localhost:1'],
      ['http://app.localhost:2/mcp', 'app.localhost:2'],
    ] as const) {
      const reply = await client.send({ method: 'GET', path, fields: { Host: 'localhost:1' } });
      const exchange = await upstream.next();
      assert.deepEqual(exchange.values('host'), [host]);
      assert.deepEqual(exchange.values('x-forwarded-host'), [host]);
      await ok(exchange);
      await reply.bytes();
    }
    const old = await client.connect();
    const reply = old.expect();
    old.write('GET /mcp HTTP/1.0\r\n\r\n');
    const exchange = await upstream.next();
    assert.deepEqual(exchange.values('host'), [new URL(upstream.url).host], 'where there is one');
    await ok(exchange);
    await reply.bytes();
  });
});

test('no secret of a run is in any log line, metric or page, whatever goes wrong', async (t) => {
  const options: GuardOptions = {
    file: { log: { level: 'trace' }, bounds: { bodyBytes: 100_000 }, replayDeadline: '200ms' },
  };
  const guard = await startGuard(t, options);
  const { client, upstream, proxy } = guard;
  const secrets = {
    token: 'tokenZ9secret',
    cookie: 'cookieZ9secret',
    session: 'sessionZ9secret',
    unknown: 'strangerZ9secret',
    first: 'cursorZ9secretA',
    last: 'cursorZ9secretB',
    forged: 'cursorZ9secretC',
    query: 'queryZ9secret',
    body: 'bodyZ9secret',
    field: 'fieldZ9secret',
  };
  const own = {
    token: secrets.token,
    fields: { Cookie: `sid=${secrets.cookie}`, 'X-Private': secrets.field },
    path: `/mcp?key=${secrets.query}`,
  };
  const session = await openSession(client, upstream, secrets.session, own);
  const mine = { ...own, session };
  await cutPost(client, upstream, 1, mine, priming(secrets.first));
  await finishedPost(client, upstream, 2, mine, block({ id: secrets.last, data: result(2, secrets.body) }));
  assert.equal(await fateOf(client, upstream, { ...mine, lei: secrets.last }), 'stripped');
  assert.equal(await fateOf(client, upstream, { ...mine, lei: secrets.forged }), `forwarded ${secrets.forged}`);
  assert.equal(
    await fateOf(client, upstream, { ...mine, session: secrets.unknown, lei: secrets.forged }),
    `forwarded ${secrets.forged}`,
  );
  // An empty replay, an upstream that resets, one that talks nonsense, one that is gone.
  for (const act of [
    answerEmpty,
    (exchange: Exchange) => exchange.reset(),
    (exchange: Exchange) => exchange.raw(`${secrets.body} nonsense\r\nSet-Cookie: ${secrets.cookie}\r\n\r\n`),
    (exchange: Exchange) =>
      exchange.answer(200, { 'Set-Cookie': `${secrets.cookie}${'x'.repeat(200_000)}` }).catch(() => {}),
  ]) {
    const reply = await client.get({ ...mine, lei: secrets.first });
    const exchange = await upstream.nextUnless(reply.ended);
    if (exchange) await act(exchange);
    await reply.ended;
  }
  // Requests that never become exchanges.
  for (const raw of [
    `GET /mcp?${secrets.query} HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer ${secrets.token}\r\n\r\n`,
    `GET /mcp?${secrets.query} HTTP/1.1\r\nHost: localhost\r\nCookie: ${secrets.cookie}\u0000\r\n\r\n`,
    `GET /mcp HTTP/1.1\r\nHost: localhost\r\nCookie: ${secrets.cookie}${'x'.repeat(200_000)}\r\n\r\n`,
    `POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: ${secrets.field}\r\n\r\n${secrets.body}`,
    `POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\nMcp-Session-Id: ${session}\r\n\r\n${secrets.body}`,
    `GET /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nCookie: ${secrets.cookie}\r\nContent-Length: 0\r\n\r\n`,
  ]) {
    const connection = await client.connect();
    const reply = connection.expect();
    connection.write(raw);
    assert.ok((await reply.head).status >= 400);
    await reply.ended;
    connection.destroy();
  }
  const ended = await client.delete(mine);
  await (await upstream.next({ method: 'DELETE' })).answer(200);
  await ended.bytes();
  assert.equal(await fateOf(client, upstream, { ...mine, lei: secrets.last }), 'refused 404 session-ended');
  await upstream.kill();
  assert.equal(await failureOf(await client.post(3, mine)), 502);
  await upstream.restart();

  const pages = ['/metrics', '/api/sessions', '/api/decisions', '/', '/readyz', '/livez', `/x?${secrets.query}`];
  const shown = [JSON.stringify(guard.logs), ...(await Promise.all(pages.map(guard.admin)))];
  await proxy.close();
  assert.ok(guard.logs.length >= 12, `${guard.logs.length} lines to search`);
  assert.ok(guard.logs.some(({ error }) => error !== undefined));
  for (const [name, secret] of Object.entries(secrets)) {
    for (const text of shown) {
      const at = text.indexOf(secret);
      assert.equal(at, -1, `${name} in …${text.slice(Math.max(0, at - 200), at + 50)}`);
    }
  }
});

describe('a request body over bodyBytes', () => {
  const file = { bounds: { bodyBytes: 100_000 } } as const;

  test('is a 413 that arrives and closes; exactly as large is fine', async (t) => {
    const { client, upstream } = await startGuard(t, { file });
    for (const framing of ['length', 'chunked'] as const) {
      const fits = await client.send({ method: 'POST', path: '/mcp', body: Buffer.alloc(100_000), framing });
      const exchange = await upstream.next();
      assert.equal(exchange.body.length, 100_000);
      await ok(exchange);
      assert.equal(await fits.text(), 'ok');
      const reply = await client.send({ method: 'POST', path: '/mcp', body: Buffer.alloc(100_001), framing });
      assert.equal(await failureOf(reply), 413);
      await reply.connection.closed();
      const half = upstream.requests.filter(({ complete }) => !complete);
      await eventually('upstream to be left alone', () => half.every(({ gone }) => gone));
    }
    assert.ok(upstream.requests.every(({ complete, body }) => !complete || body.length === 100_000));
  });

  test('that comes slowly cuts off the request at upstream', async (t) => {
    const { client, upstream } = await startGuard(t, { file });
    const connection = await client.connect();
    const reply = connection.send({ method: 'POST', path: '/mcp', fields: { 'Transfer-Encoding': 'chunked' } });
    connection.write(chunk(Buffer.alloc(50_000)));
    const exchange = await upstream.next({ when: 'head' });
    connection.write(chunk(Buffer.alloc(50_001)));
    assert.equal(await failureOf(reply), 413);
    await exchange.left(500);
    assert.equal(exchange.complete, false);
  });

  test('after the answer has begun cuts off the answer', async (t) => {
    const { client, upstream } = await startGuard(t, { file });
    const connection = await client.connect();
    const reply = connection.send({ method: 'POST', path: '/mcp', fields: { 'Transfer-Encoding': 'chunked' } });
    connection.write(chunk(Buffer.alloc(50_000)));
    const exchange = await upstream.next({ when: 'head' });
    await exchange.events(priming('e1'));
    await reply.until('e1');
    connection.write(chunk(Buffer.alloc(50_001)));
    assert.equal(await reply.ended, 'cut');
    await exchange.left(500);
  });
});

describe('a head that does not come to its end', () => {
  test('is a 408 that closes the connection', async (t) => {
    const { client, upstream } = await startGuard(t, { file: { bounds: { headTimeout: '300ms' } } });
    for (const start of ['', 'GET /mcp HTTP/1.1\r\n', 'GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: ']) {
      const connection = await client.connect();
      const reply = connection.expect();
      connection.write(start);
      const head = await reply.headWithin(2_000);
      assert.equal(head.status, 408, JSON.stringify(start));
      assert.equal(head.field('connection'), 'close');
      await connection.closed();
    }
    assert.equal(upstream.requests.length, 0);
  });

  test('is one however slowly it comes, and a slow body is none', async (t) => {
    const { client, upstream } = await startGuard(t, { file: { bounds: { headTimeout: '300ms' } } });
    const slow = await client.connect();
    const refused = slow.expect();
    slow.write('GET /mcp HTTP/1.1\r\n');
    const drip = setInterval(() => slow.write('X: 1\r\n'), 50);
    t.after(() => clearInterval(drip));
    const body = await client.connect();
    const reply = body.send({ method: 'POST', path: '/mcp', fields: { 'Content-Length': '2' } });
    assert.equal((await refused.headWithin(2_000)).status, 408);
    body.write('{}');
    await ok(await upstream.next());
    assert.equal(await reply.text(), 'ok');
  });

  test('behind a stream that is open does not disturb the stream', async (t) => {
    const { client, upstream } = await startGuard(t, { file: { bounds: { headTimeout: '300ms' } } });
    const connection = await client.connect();
    const reply = connection.send({ method: 'GET', path: '/mcp' });
    const refused = connection.expect();
    connection.write('GET /mcp HTTP/1.1\r\n');
    const exchange = await upstream.next();
    await exchange.events(priming('e1'));
    await reply.until('e1');
    await reply.quiet(900);
    await exchange.end();
    assert.equal(await reply.text(), priming('e1'));
    assert.equal((await refused.head).status, 408);
    await connection.closed();
  });
});

test('connections beyond the bound are closed, counted once in the log, and room is made by those that leave', async (t) => {
  const { client, warnings } = await startGuard(t, { handler: ok, file: { bounds: { connections: 3 } } });
  const held = await Promise.all([1, 2, 3].map(() => client.connect()));
  for (const connection of held) await connection.send({ method: 'GET', path: '/mcp' }).text();
  for (let n = 0; n < 3; n += 1) {
    const over = await client.connect();
    assert.equal(await over.expect().ended, 'cut');
  }
  assert.equal(warnings().filter(({ error }) => error === 'overloaded').length, 1);
  held[0]?.destroy();
  await eventually('room for another', async () => {
    const next = await client.connect();
    const reply = next.send({ method: 'GET', path: '/mcp' });
    return (await reply.ended) === 'end';
  });
});

test('exchanges beyond concurrentStreams are 503 until one ends', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { bounds: { concurrentStreams: 2 } } });
  const open = [];
  for (let n = 0; n < 2; n += 1) {
    const reply = await client.get();
    const exchange = await upstream.next();
    await exchange.events(priming('e1'));
    await reply.until('e1');
    open.push({ reply, exchange });
  }
  const connection = await client.connect();
  assert.equal(await failureOf(await client.post(1, { on: connection })), 503);
  const socket = { Connection: 'Upgrade', Upgrade: 'websocket' };
  assert.equal(await failureOf(await client.send({ method: 'GET', path: '/mcp', fields: socket })), 503);
  assert.equal(upstream.requests.length, 2);
  await open[0]?.exchange.end();
  await open[0]?.reply.bytes();
  const next = await client.post(2, { on: connection });
  await ok(await upstream.next());
  assert.equal(await next.text(), 'ok', 'the refusal did not cost the connection');
  open[1]?.reply.destroy();
  await open[1]?.exchange.left();
});
