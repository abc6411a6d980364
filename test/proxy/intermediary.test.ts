// What every reverse proxy has to do, with the guard on and off: fields, targets, framing, statuses, and the ends of
// bodies. The public cases of family 6 stand in test/regressions.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
import { describe, test } from 'node:test';
import { rewriteLocation } from '../../src/core/fields.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { failureOf } from '../support/session.ts';
import { pause } from '../support/waiting.ts';
import { chunk, type Field } from '../support/wire.ts';

const PATHS = [
  ['on', '/mcp'],
  ['off', '/free'],
] as const;

const EVENTS = { 'Content-Type': 'text/event-stream' } as const;

/** Asks and answers once more, to see that life goes on. */
async function stillWorks({ client, upstream }: Guard): Promise<void> {
  const reply = await client.send({ method: 'POST', path: '/mcp', body: 'still' });
  const exchange = await upstream.next({ method: 'POST' });
  assert.equal(exchange.text, 'still');
  await exchange.answer(200, {}, 'works');
  assert.equal(await reply.text(), 'works');
}

for (const [state, path] of PATHS) {
  describe(`with the guard ${state}`, () => {
    test('hop-by-hop fields stay on their hop, both ways', async (t) => {
      const { client, upstream } = await startGuard(t);
      const hop: Field[] = [
        ['Connection', 'keep-alive , X-Private,, x-other'],
        ['Connection', 'X-Third'],
        ['Keep-Alive', 'timeout=5'],
        ['Proxy-Connection', 'keep-alive'],
        ['TE', 'trailers, deflate;q=0.5'],
        ['Proxy-Authorization', 'Basic eA=='],
        ['X-Private', '1'],
        ['X-OTHER', '2'],
        ['x-third', '3'],
      ];
      const reply = await client.send({ method: 'POST', path, fields: [...hop, ['X-Kept', '4']], body: '{}' });
      const exchange = await upstream.next();
      for (const [name] of hop.slice(2)) assert.deepEqual(exchange.values(name), [], `${name} at upstream`);
      assert.deepEqual(exchange.values('connection'), ['keep-alive'], 'our own');
      assert.equal(exchange.field('x-kept'), '4');
      const back: Field[] = [
        ['Connection', 'X-Private, keep-alive'],
        ['Keep-Alive', 'timeout=99'],
        ['Proxy-Authenticate', 'Basic'],
        ['Upgrade', 'h2c'],
        ['X-Private', '1'],
        ['X-Kept', '2'],
      ];
      await exchange.answer(200, back, 'ok');
      const head = await reply.head;
      for (const name of ['proxy-authenticate', 'upgrade', 'x-private']) assert.equal(head.field(name), undefined);
      assert.ok(!head.values('keep-alive').includes('timeout=99'));
      assert.equal(head.field('x-kept'), '2');
    });

    test('fields keep their order, repetition, spelling and bytes, both ways', async (t) => {
      const { client, upstream } = await startGuard(t);
      const fields: Field[] = [
        ['X-B', '1'],
        ['x-a', ''],
        ['X-B', '2'],
        ['X-LATIN', 'caf\u00e9 \u00ff\u0080'],
        ['X-Utf8', Buffer.from('日本').toString('latin1')],
        ['Mcp-Unheard-Of', '=?base64?4pyT?='],
        ['mcp-method', 'tools/call'],
        ['X-Tab', 'a\tb'],
        ['X-Many', '"a,b", c'],
        ['__proto__', 'x'],
        ['constructor', 'y'],
        ["!#$%&'*+-.^_`|~0", 'token'],
        ['X-B', '1'],
      ];
      const names = new Set(fields.map(([name]) => name.toLowerCase()));
      const ours = (all: readonly Field[]) => all.filter(([name]) => names.has(name.toLowerCase()));
      const reply = await client.send({ method: 'GET', path, fields });
      const exchange = await upstream.next();
      assert.deepEqual(ours(exchange.fields), fields);
      await exchange.answer(200, fields, 'ok');
      assert.deepEqual(ours((await reply.head).fields), fields);
    });

    test('more than a thousand fields pass, both ways', async (t) => {
      const { client, upstream } = await startGuard(t);
      const fields = Array.from({ length: 2_500 }, (_, n) => [`X-${n}`, String(n)] as const);
      const reply = await client.send({ method: 'POST', path, fields, body: 'at the end of all that' });
      const exchange = await upstream.next();
      assert.equal(exchange.fields.filter(([name]) => /^x-\d/i.test(name)).length, fields.length);
      assert.equal(exchange.text, 'at the end of all that');
      await exchange.answer(200, fields, 'ok');
      assert.equal((await reply.head).fields.filter(([name]) => /^x-\d/i.test(name)).length, fields.length);
    });

    test('the target goes up byte for byte', async (t) => {
      const { client, upstream } = await startGuard(t);
      const connection = await client.connect();
      const targets = [
        `${path}?`,
        `${path}?a=%2F&b=%zz&&c=a+b%20c#x`,
        `${path}/..;/./%2e%2e//`,
        `${path}\\x`,
        `//${path}`,
        '/a//b/../c/./d',
        '/%7Euser/it\'s?(x)={y}|z^`<>"',
        '/http://elsewhere/',
        `/${'x'.repeat(8_000)}?${'y'.repeat(8_000)}`,
      ];
      for (const target of targets) {
        const reply = connection.send({ method: 'GET', path: target });
        const exchange = await upstream.next();
        assert.equal(exchange.target, target);
        await exchange.answer(204);
        await reply.bytes();
      }
    });

    test('of an absolute target the authority counts, and the rest goes up', async (t) => {
      const { client, upstream } = await startGuard(t);
      for (const [target, authority, sent] of [
        [`http://localhost:99${path}?a=http://b`, 'localhost:99', `${path}?a=http://b`],
        ['HTTP://127.0.0.1', '127.0.0.1', '/'],
        ['http://127.0.0.1?q', '127.0.0.1', '/?q'],
      ] as const) {
        const reply = await client.send({ method: 'GET', path: target, fields: { Host: '127.0.0.1:1' } });
        const exchange = await upstream.next();
        assert.equal(exchange.target, sent);
        assert.equal(exchange.field('x-forwarded-host'), authority);
        await exchange.answer(204);
        await reply.bytes();
      }
      for (const target of ['http://elsewhere.example/', 'ftp://127.0.0.1/', '*']) {
        const reply = await client.send({ method: 'GET', path: target });
        assert.equal(await failureOf(reply), target.startsWith('http:') ? 403 : 400, target);
      }
      assert.equal(upstream.requests.length, 3);
    });

    for (const framing of ['length', 'chunked'] as const) {
      test(`a request body framed by ${framing} arrives whole, small or large, in one piece or slowly`, async (t) => {
        const { client, upstream } = await startGuard(t);
        for (const method of ['POST', 'PUT', 'PATCH', 'DELETE', 'GET']) {
          for (const size of [0, 1, 65_536, 65_537, 1_000_000]) {
            const body = Buffer.alloc(size, `${method}.`);
            const reply = await client.send({ method, path, body, framing });
            const exchange = await upstream.next({ method });
            assert.ok(exchange.body.equals(body), `${method} ${size}: ${exchange.body.length}`);
            await exchange.answer(200, {}, 'ok');
            assert.equal(await reply.text(), 'ok');
          }
        }
        const connection = await client.connect();
        const reply = connection.send({
          method: 'POST',
          path,
          framing: 'none',
          fields: framing === 'length' ? { 'Content-Length': '6' } : { 'Transfer-Encoding': 'chunked' },
        });
        const piece = (text: string) => (framing === 'length' ? text : chunk(text));
        connection.write(piece('ab'));
        const exchange = await upstream.next({ when: 'head' });
        await exchange.until('ab');
        connection.write(piece('cd'));
        await exchange.until('abcd');
        connection.write(
          Buffer.concat([Buffer.from(piece('ef')), Buffer.from(framing === 'length' ? '' : '0\r\n\r\n')]),
        );
        assert.equal((await exchange.whole()).toString(), 'abcdef');
        await exchange.answer(200, {}, 'ok');
        assert.equal(await reply.text(), 'ok');
      });
    }

    test('a response keeps its framing, and its connection serves on', async (t) => {
      const { client, upstream } = await startGuard(t);
      const connection = await client.connect();
      for (const size of [0, 1, 200_000]) {
        for (const framing of ['length', 'chunked', 'close'] as const) {
          const body = 'x'.repeat(size);
          const reply = connection.send({ method: 'GET', path });
          const exchange = await upstream.next();
          await exchange.head(200, {}, { framing: framing === 'length' ? `length:${size}` : framing });
          await exchange.write(body).catch(() => {});
          await exchange.end();
          const head = await reply.head;
          assert.equal(head.field('content-length'), framing === 'length' ? String(size) : undefined);
          assert.equal(head.field('transfer-encoding'), framing === 'length' ? undefined : 'chunked');
          assert.equal(await reply.text(), body, `${size} by ${framing}`);
        }
      }
    });

    test('Expect: 100-continue is answered by us, once, and is not passed on', async (t) => {
      const { client, upstream } = await startGuard(t);
      const connection = await client.connect();
      const fields = { Expect: '100-Continue', 'Content-Length': '2' };
      for (let round = 1; round <= 2; round += 1) {
        const reply = connection.send({ method: 'POST', path, fields });
        await connection.interims(round);
        connection.write('{}');
        const exchange = await upstream.next();
        assert.equal(exchange.field('expect'), undefined);
        assert.equal(exchange.text, '{}');
        await exchange.answer(200, {}, 'ok');
        assert.equal(await reply.text(), 'ok');
        assert.equal(connection.interim.length, round);
      }
    });

    test('another expectation is a 417, and upstream sees nothing', async (t) => {
      const guard = await startGuard(t);
      const { client, upstream } = guard;
      for (const body of ['{}', 'x'.repeat(20_000_000)]) {
        const reply = await client.send({ method: 'POST', path, fields: { Expect: 'the-unexpected' }, body });
        assert.equal((await reply.head).status, 417);
        await reply.connection.closed();
      }
      assert.equal(upstream.requests.length, 0);
      await stillWorks(guard);
    });

    test('answers without a body keep their fields and leave the connection usable', async (t) => {
      const { client, upstream } = await startGuard(t);
      const connection = await client.connect();
      const rounds: [method: string, status: number, answer: Field[]][] = [
        ['HEAD', 200, [['Content-Length', '42']]],
        ['HEAD', 200, [['Content-Type', 'text/event-stream']]],
        ['HEAD', 200, [['Transfer-Encoding', 'chunked']]],
        ['HEAD', 404, [['Content-Length', '0']]],
        ['HEAD', 304, [['ETag', '"v"']]],
        ['OPTIONS', 204, [['Allow', 'GET, POST']]],
        ['GET', 204, [['X-End', '1']]],
        ['POST', 204, [['X-End', '1']]],
        ['GET', 304, [['ETag', '"v"']]],
        ['GET', 304, [['Content-Length', '42']]],
        ['DELETE', 204, []],
      ];
      for (const [method, status, answer] of rounds) {
        const reply = connection.send({ method, path, ...(method === 'POST' ? { body: '{}' } : {}) });
        await (await upstream.next({ method })).head(status, answer);
        const head = await reply.head;
        assert.equal(head.status, status);
        for (const [name, value] of answer) {
          if (name !== 'Transfer-Encoding') assert.equal(head.field(name), value, `${method} ${status} ${name}`);
        }
        assert.equal((await reply.bytes(500)).length, 0);
      }
      const last = connection.send({ method: 'GET', path });
      await (await upstream.next()).answer(200, {}, 'last');
      assert.equal(await last.text(), 'last');
    });

    test('64 KiB of fields pass both ways; beyond the bound it is 431 and 502', async (t) => {
      const guard = await startGuard(t);
      const { client, upstream } = guard;
      const fields = Array.from({ length: 64 }, (_, n) => [`X-${n}`, 'v'.repeat(1_024)] as const);
      const reply = await client.send({ method: 'GET', path, fields: [...fields, ['Cookie', 'c'.repeat(32_768)]] });
      const exchange = await upstream.next();
      assert.equal(exchange.field('x-63'), 'v'.repeat(1_024));
      await exchange.answer(200, [...fields, ['X-Long', 'c'.repeat(32_768)]], 'ok');
      assert.equal((await reply.head).field('x-long')?.length, 32_768);

      const over = await client.send({ method: 'GET', path, fields: { Cookie: 'c'.repeat(200_000) } });
      assert.equal(await failureOf(over), 431);
      await over.connection.closed();
      const back = await client.send({ method: 'GET', path });
      await (await upstream.next()).answer(200, { 'X-Long': 'c'.repeat(200_000) }, 'ok').catch(() => {});
      assert.equal(await failureOf(back), 502);
      await stillWorks(guard);
    });

    test('reason phrases pass as they are; what none may hold is left out', async (t) => {
      const { client, upstream } = await startGuard(t);
      const connection = await client.connect();
      const rounds: [line: string | Buffer, status: number, reason: string][] = [
        ['HTTP/1.1 200 Fine, thank you!', 200, 'Fine, thank you!'],
        ['HTTP/1.1 200 ', 200, ''],
        ['HTTP/1.1 200', 200, ''],
        ['HTTP/1.1 299 Tab\tinside', 299, 'Tab\tinside'],
        [`HTTP/1.1 599 ${'long '.repeat(1_000)}`, 599, 'long '.repeat(1_000).trimEnd()],
        ['HTTP/1.1 999 Beyond', 999, 'Beyond'],
        [Buffer.from('HTTP/1.1 200 Tr\u00e8s bien'), 200, Buffer.from('Tr\u00e8s bien').toString('latin1')],
      ];
      for (const [line, status, reason] of rounds) {
        const reply = connection.send({ method: 'GET', path });
        const exchange = await upstream.next();
        await exchange.raw(Buffer.concat([Buffer.from(line), Buffer.from('\r\nContent-Length: 2\r\n\r\nok')]));
        const head = await reply.head;
        assert.deepEqual([head.status, head.reason.trimEnd()], [status, reason]);
        assert.equal(await reply.text(), 'ok');
      }
    });

    test('reason phrases and status lines that break the grammar crash nothing', async (t) => {
      const guard = await startGuard(t);
      const { client, upstream } = guard;
      const bearable = [
        Buffer.from('HTTP/1.1 200 caf\xe9 \xff\xfe', 'latin1'),
        'HTTP/1.1 200 a\u0001b\u0007',
        'HTTP/1.1 200 a\u0000b',
        'HTTP/1.1 200 a\u007fb',
      ];
      const lines = [
        ...bearable,
        'HTTP/1.1 200 a\rb',
        'HTTP/1.1 099 Low',
        'HTTP/1.1 000 Zero',
        'HTTP/1.1 1000 High',
        'HTTP/1.1 20 Short',
        'HTTP/1.1 abc Letters',
        'HTTP/3.7 200 Version',
        'HTTP/2.0 200 Version',
        'ICY 200 OK',
        'garbage',
        '',
      ];
      for (const line of lines) {
        const reply = await client.send({ method: 'GET', path });
        const exchange = await upstream.next();
        await exchange.raw(Buffer.concat([Buffer.from(line), Buffer.from('\r\nContent-Length: 2\r\n\r\nok')]));
        exchange.socket.end();
        const head = await reply.head;
        const text = await reply.text();
        const name = JSON.stringify(String(line));
        if (bearable.includes(line)) assert.deepEqual([head.status, text], [200, 'ok'], name);
        else if (head.status !== 200) assert.equal(head.status, 502, name);
      }
      await stillWorks(guard);
    });

    test('interim responses of upstream are no answer, and the answer after them passes', async (t) => {
      const { client, upstream } = await startGuard(t);
      const connection = await client.connect();
      for (const interim of [
        'HTTP/1.1 102 Processing\r\n\r\n',
        'HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n',
        'HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 150 X\r\n\r\n',
      ]) {
        for (const method of ['GET', 'POST']) {
          const reply = connection.send({ method, path, ...(method === 'POST' ? { body: '{}' } : {}) });
          const exchange = await upstream.next();
          await exchange.raw(interim);
          await exchange.json(200, '{}', { 'X-Final': '1' });
          assert.equal((await reply.head).field('x-final'), '1');
          assert.equal(await reply.text(), '{}');
        }
      }
    });

    test('trailers are dropped without harm, both ways', async (t) => {
      const { client, upstream } = await startGuard(t);
      const connection = await client.connect();
      for (let round = 0; round < 3; round += 1) {
        const reply = connection.send({
          method: 'POST',
          path,
          framing: 'none',
          fields: { 'Transfer-Encoding': 'chunked', Trailer: 'X-Sum' },
        });
        connection.write('2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n');
        const exchange = await upstream.next();
        assert.equal(exchange.text, '{}');
        assert.equal(exchange.field('trailer'), undefined);
        await exchange.raw(
          'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n',
        );
        assert.equal((await reply.head).field('trailer'), undefined);
        assert.equal(await reply.text(), 'ok');
        assert.equal(connection.unread, 'nothing came');
      }
    });
  });
}

test('OPTIONS * is answered by us', async (t) => {
  const guard = await startGuard(t);
  const reply = await guard.client.send({ method: 'OPTIONS', path: '*' });
  const head = await reply.head;
  assert.equal(head.status, 204);
  assert.match(head.field('allow') ?? '', /GET.*POST.*DELETE/);
  const foreign = await guard.client.send({ method: 'OPTIONS', path: '*', fields: { Host: 'evil.example' } });
  assert.equal(await failureOf(foreign), 403);
  assert.equal(guard.upstream.requests.length, 0);
  await stillWorks(guard);
});

test('a request that cannot pass gets its answer without having been told to continue', async (t) => {
  const { client, upstream } = await startGuard(t, { file: { bounds: { bodyBytes: 10 } } });
  for (const [status, fields] of [
    [403, { Host: 'evil.example', 'Content-Length': '2' }],
    [413, { 'Content-Length': '11' }],
  ] as const) {
    const connection = await client.connect();
    const reply = connection.send({ method: 'POST', path: '/mcp', fields: { ...fields, Expect: '100-continue' } });
    assert.equal(await failureOf(reply), status);
    assert.equal((await reply.head).field('connection'), 'close', 'whether the body comes now is anybody’s guess');
    assert.equal(connection.interim.length, 0);
  }
  assert.equal(upstream.requests.length, 0);
});

test('a Location on the origin of upstream becomes ours, wherever it stands and however it is spelled', async (t) => {
  const { client, upstream, authority } = await startGuard(t, { path: '' });
  const rounds: [sent: string, expected: string][] = [
    ['/mcp/', '/mcp/'],
    ['mcp?x', 'mcp?x'],
    [`${upstream.url}`, `http://${authority}`],
    [`${upstream.url}/a?b=%2F#c`, `http://${authority}/a?b=%2F#c`],
    [`HTTP://127.0.0.1:${upstream.port}?q`, `http://${authority}?q`],
    [`//127.0.0.1:${upstream.port}/x`, `//${authority}/x`],
    [`https://127.0.0.1:${upstream.port}/x`, `https://127.0.0.1:${upstream.port}/x`],
    [`http://127.0.0.1:${upstream.port}0/x`, `http://127.0.0.1:${upstream.port}0/x`],
    [`http://127.0.0.1:${upstream.port}@evil.example/x`, `http://127.0.0.1:${upstream.port}@evil.example/x`],
    ['https://elsewhere.example/mcp', 'https://elsewhere.example/mcp'],
  ];
  for (const [sent, expected] of rounds) {
    const reply = await client.post(1);
    const fields: Field[] = [
      ['X-Before', '1'],
      ['location', sent],
      ['X-After', '2'],
    ];
    await (await upstream.next()).answer(307, fields);
    const names = (await reply.head).fields.map(([name]) => name).filter((name) => /^(x-|location)/i.test(name));
    assert.deepEqual(names, ['X-Before', 'location', 'X-After']);
    assert.equal((await reply.head).field('location'), expected);
  }
  assert.equal(upstream.requests.length, rounds.length, 'no redirect is followed');
});

test('a Location may spell out the port that the scheme of upstream implies', () => {
  for (const [sent, origin, expected] of [
    ['http://server:80/x', 'http://server', 'http://us/x'],
    ['https://server:443/x', 'https://server', 'http://us/x'],
    ['http://server:443/x', 'http://server', 'http://server:443/x'],
    ['http://server:80/x', 'http://server:8080', 'http://server:80/x'],
    ['//server:80', 'http://server', '//us'],
  ] as const) {
    assert.equal(rewriteLocation(sent, origin, 'http://us'), expected, sent);
  }
});

describe('a pooled connection', () => {
  test('that dies under a POST makes it a 502, and nothing is sent twice', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    for (const die of ['cut', 'reset'] as const) {
      const first = await client.post(1);
      await (await upstream.next()).answer(200, {}, 'ok');
      await first.text();
      const before = upstream.accepted;
      for (const body of ['{}', 'x'.repeat(300_000)]) {
        const reply = await client.post({ body });
        const exchange = await upstream.next();
        assert.equal(exchange.text, body);
        exchange[die]();
        assert.equal(await failureOf(reply), 502);
      }
      assert.ok(upstream.accepted <= before + 1, 'the first went out on the old connection');
    }
    assert.equal(upstream.requests.length, 6);
    await stillWorks(guard);
  });

  test('that dies under a GET or DELETE makes it a 502 just the same', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const method of ['GET', 'DELETE', 'HEAD', 'PUT']) {
      const first = await client.post(1);
      await (await upstream.next()).answer(200, {}, 'ok');
      await first.text();
      const reply = await client.send({ method, path: '/mcp' });
      (await upstream.next()).reset();
      assert.equal((await reply.head).status, 502);
    }
    assert.equal(upstream.requests.length, 8);
  });

  test('that upstream closed while it was idle is not used', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    for (const close of ['end', 'destroy', 'resetAndDestroy'] as const) {
      const first = await client.post(1);
      const exchange = await upstream.next();
      await exchange.answer(200, {}, 'ok');
      await first.text();
      exchange.socket[close]();
      await exchange.left();
      await stillWorks(guard);
    }
  });
});

describe('an answer that comes before the request is whole', () => {
  test('is no less an answer where it is ours', async (t) => {
    const { client, upstream } = await startGuard(t, { file: { bounds: { bodyBytes: 1_000_000 } } });
    const body = 'x'.repeat(20_000_000);
    for (const [status, fields] of [
      [403, { Host: 'evil.example' }],
      [403, { Host: 'evil.example', Connection: 'close' }],
      [413, {}],
    ] as const) {
      for (const framing of ['length', 'chunked'] as const) {
        const reply = await client.send({ method: 'POST', path: '/mcp', fields, body, framing });
        assert.equal(await failureOf(reply), status);
      }
    }
    assert.ok(
      upstream.requests.every(({ complete }) => !complete),
      'nothing of it arrived whole',
    );
  });

  for (const [state, path] of PATHS) {
    for (const status of [401, 413]) {
      test(`reaches the client, whose connection serves on once it has sent the rest (${status}, guard ${state})`, async (t) => {
        const guard = await startGuard(t);
        const { client, upstream } = guard;
        const connection = await client.connect();
        const length = 20_000_000;
        const reply = connection.send({ method: 'POST', path, fields: { 'Content-Length': String(length) } });
        connection.write(Buffer.alloc(100_000));
        const exchange = await upstream.next({ when: 'head' });
        await exchange.answer(status, { 'WWW-Authenticate': 'Bearer' }, 'no');
        assert.equal((await reply.head).status, status);
        assert.equal(await reply.text(), 'no');
        await exchange.left();
        connection.write(Buffer.alloc(length - 100_000));
        const next = connection.send({ method: 'GET', path });
        await (await upstream.next({ method: 'GET', within: 10_000 })).answer(200, {}, 'next');
        assert.equal(await next.text(), 'next');
      });
    }
  }

  test('reaches a client that goes on sending as fast as it can', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const closing of [{}, { Connection: 'close' }]) {
      for (let round = 0; round < 10; round += 1) {
        const connection = await client.connect();
        const fields = { 'Content-Length': '50000000', ...closing };
        const reply = connection.send({ method: 'POST', path: '/mcp', fields });
        connection.write(Buffer.alloc(50_000_000));
        const exchange = await upstream.next({ when: 'head' });
        await exchange.answer(413, { Connection: 'close' }, 'too much');
        exchange.socket.end();
        assert.equal((await reply.head).status, 413);
        assert.equal(await reply.text(), 'too much');
        connection.destroy();
      }
    }
  });

  test('is a 502 that arrives where upstream resets instead', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (let round = 0; round < 10; round += 1) {
      const connection = await client.connect();
      const reply = connection.send({ method: 'POST', path: '/mcp', fields: { 'Content-Length': '50000000' } });
      connection.write(Buffer.alloc(50_000_000));
      (await upstream.next({ when: 'head' })).reset();
      assert.equal(await failureOf(reply), 502);
      connection.destroy();
    }
  });

  test('is not lost where the client never finishes its request: the connection goes a few seconds later', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const closing of [{}, { Connection: 'close' }]) {
      const connection = await client.connect();
      const reply = connection.send({ method: 'POST', path: '/mcp', fields: { 'Content-Length': '1000', ...closing } });
      connection.write('x');
      await (await upstream.next({ when: 'head' })).answer(401, {}, 'no');
      assert.equal(await reply.text(), 'no');
      await connection.closed(7_000);
    }
  });

  test('may stream while the request still streams', async (t) => {
    const { client, upstream } = await startGuard(t);
    const connection = await client.connect();
    const reply = connection.send({ method: 'POST', path: '/free', fields: { 'Transfer-Encoding': 'chunked' } });
    connection.write(chunk('zero'));
    const exchange = await upstream.next({ when: 'head' });
    await exchange.head(200, EVENTS);
    for (const text of ['one', 'two', 'three']) {
      connection.write(chunk(text));
      await exchange.until(text);
      await exchange.write(text);
      await reply.until(text);
    }
    connection.write('0\r\n\r\n');
    await exchange.whole();
    await exchange.end();
    assert.equal(await reply.text(), 'onetwothree');
  });
});

describe('an upstream', () => {
  test('that speaks HTTP/1.0 is understood', async (t) => {
    const { client, upstream } = await startGuard(t);
    const connection = await client.connect();
    for (const [head, body] of [
      ['HTTP/1.0 200 OK\r\n\r\n', 'to the end of the connection'],
      ['HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n', 'fixed'],
      ['HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n', 'fixed'],
      ['HTTP/1.0 404 No\r\nContent-Length: 0\r\n\r\n', ''],
    ] as const) {
      const reply = connection.send({ method: 'POST', path: '/mcp', body: '{}' });
      const exchange = await upstream.next();
      await exchange.raw(head + body);
      exchange.socket.end();
      assert.equal(await reply.text(), body);
      assert.equal((await reply.head).raw.toString('latin1', 0, 8), 'HTTP/1.1');
    }
  });

  test('that closes every connection it accepts is a 502, and is not asked again and again', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    let accepted = 0;
    for (const close of ['end', 'destroy', 'resetAndDestroy'] as const) {
      const server = net.createServer((socket) => {
        accepted += 1;
        socket.on('error', () => {});
        socket[close]();
      });
      await upstream.kill();
      server.listen(upstream.port, '127.0.0.1');
      await once(server, 'listening');
      for (let round = 0; round < 5; round += 1) {
        assert.equal(await failureOf(await client.post(1)), 502);
        assert.equal(await failureOf(await client.get()), 502);
      }
      await new Promise((resolve) => server.close(resolve));
      await upstream.restart();
    }
    assert.ok(accepted <= 60, `${accepted} connections for 30 requests`);
    await stillWorks(guard);
  });

  test('that promises more than it sends is cut', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    for (const end of ['end', 'destroy', 'resetAndDestroy'] as const) {
      const reply = await client.post(1);
      const exchange = await upstream.next();
      await exchange.head(200, EVENTS, { framing: 'length:100' });
      await exchange.raw(priming('e1'));
      await reply.until('e1');
      exchange.socket[end]();
      assert.equal(await reply.ended, 'cut', end);
      assert.equal(reply.body.toString(), priming('e1'));
    }
    await stillWorks(guard);
  });

  test('that sends more than it promised is believed its promise, and its connection is not used again', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    for (const excess of ['more', 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil']) {
      const connection = await client.connect();
      const reply = connection.send({ method: 'GET', path: '/mcp' });
      const exchange = await upstream.next();
      await exchange.raw(`HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok${excess}`);
      assert.equal(await reply.text(), 'ok');
      const next = connection.send({ method: 'GET', path: '/mcp' });
      await (await upstream.next()).answer(200, {}, 'good');
      assert.equal(await next.text(), 'good');
      assert.equal(connection.unread, 'nothing came');
      assert.notEqual(upstream.requests.at(-1)?.socket, exchange.socket);
    }
    await stillWorks(guard);
  });

  test('that sends both a length and chunks, or two lengths, is not understood', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    for (const fields of [
      'Content-Length: 2\r\nTransfer-Encoding: chunked',
      'Content-Length: 2\r\nContent-Length: 3',
      'Content-Length: -1',
      'X: a\r\n folded',
      'X : a',
      'X: a\u0000b',
      'X\n: a',
    ]) {
      const reply = await client.get();
      const exchange = await upstream.next();
      await exchange.raw(`HTTP/1.1 200 OK\r\n${fields}\r\n\r\n2\r\nok\r\n0\r\n\r\n`);
      assert.equal(await failureOf(reply), 502, fields);
    }
    await stillWorks(guard);
  });

  test('that resets at the end of a body which ends with the connection has cut it', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    for (const path of ['/mcp', '/free']) {
      for (const version of ['1.0', '1.1']) {
        const reply = await client.send({ method: 'POST', path, body: '{}' });
        const exchange = await upstream.next();
        await exchange.raw(`HTTP/${version} 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n`);
        await exchange.raw(block({ id: 'e1', data: result(1) }));
        await reply.until('e1');
        exchange.reset();
        assert.equal(await reply.ended, 'cut');
      }
    }
    await stillWorks(guard);
  });

  test('that sends broken chunks has cut the body', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    for (const broken of ['zz\r\n', '5\r\nabcdefg\r\n', '-1\r\n', 'fffffffffffffffff\r\n']) {
      const reply = await client.post(1);
      const exchange = await upstream.next();
      await exchange.events(priming('e1'));
      await reply.until('e1');
      await exchange.raw(broken);
      assert.equal(await reply.ended, 'cut', broken);
      await exchange.left();
    }
    await stillWorks(guard);
  });
});

describe('a client that speaks HTTP/1.0', () => {
  const ask = (fields = '', body = '') => `${body ? 'POST' : 'GET'} /mcp HTTP/1.0\r\n${fields}\r\n${body}`;

  test('needs no Host, gets no chunks, and the end of the connection ends its body', async (t) => {
    const { client, upstream } = await startGuard(t);
    const connection = await client.connect();
    const reply = connection.expect();
    connection.write(ask());
    const exchange = await upstream.next();
    assert.equal(exchange.field('via'), '1.0 mcp-resume-guard');
    assert.equal(exchange.field('x-forwarded-host'), undefined);
    await exchange.events(priming('e1'));
    const head = await reply.head;
    assert.equal(head.field('transfer-encoding'), undefined);
    await reply.until('e1');
    await exchange.end();
    assert.equal(await reply.text(), priming('e1'));
    await connection.closed();
  });

  test('may keep its connection where the length is known', async (t) => {
    const { client, upstream } = await startGuard(t);
    const connection = await client.connect();
    for (let round = 0; round < 3; round += 1) {
      const reply = connection.expect('POST');
      connection.write(ask('Connection: keep-alive\r\nContent-Length: 2\r\n', '{}'));
      const exchange = await upstream.next();
      assert.equal(exchange.text, '{}');
      await exchange.answer(200, {}, 'ok');
      assert.equal((await reply.head).field('connection'), 'keep-alive');
      assert.equal(await reply.text(), 'ok');
    }
  });

  test('is reset where upstream breaks off, for nothing else would tell it', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const die of ['cut', 'reset'] as const) {
      const connection = await client.connect();
      const reply = connection.expect();
      connection.write(ask());
      const exchange = await upstream.next();
      await exchange.events(priming('e1'));
      await reply.until('e1');
      exchange[die]();
      assert.equal(await reply.ended, 'cut');
    }
  });

  test('is not told to continue', async (t) => {
    const { client, upstream } = await startGuard(t);
    const connection = await client.connect();
    const reply = connection.expect('POST');
    connection.write(ask('Expect: 100-continue\r\nContent-Length: 2\r\n', '{}'));
    await (await upstream.next()).answer(200, {}, 'ok');
    assert.equal(await reply.text(), 'ok');
    assert.equal(connection.interim.length, 0);
  });
});

describe('requests that are sent without waiting for answers', () => {
  test('are answered in their order, whatever the order of upstream’s answers', async (t) => {
    const { client, upstream } = await startGuard(t);
    const connection = await client.connect();
    const replies = [1, 2, 3, 4].map((n) => connection.send({ method: 'POST', path: `/mcp?${n}`, body: String(n) }));
    const exchanges = await Promise.all([1, 2, 3, 4].map((n) => upstream.next({ target: `/mcp?${n}` })));
    for (const n of [3, 1, 0, 2]) {
      await exchanges[n]?.events(block({ id: `e${n}`, data: result(n) }));
      await exchanges[n]?.end();
    }
    for (const [n, reply] of replies.entries()) {
      assert.equal(await reply.text(), block({ id: `e${n}`, data: result(n) }));
    }
  });

  test('all leave upstream when the client leaves', async (t) => {
    for (const how of ['destroy', 'reset'] as const) {
      const guard = await startGuard(t);
      const { client, upstream } = guard;
      const connection = await client.connect();
      for (const n of [1, 2, 3]) connection.send({ method: 'GET', path: `/mcp?${n}` });
      const exchanges = await Promise.all([1, 2, 3].map((n) => upstream.next({ target: `/mcp?${n}` })));
      await exchanges[0]?.events(priming('e1'));
      await exchanges[1]?.events(priming('e2'));
      await pause(20);
      connection[how]();
      await Promise.all(exchanges.map((exchange) => exchange.left(500)));
      await stillWorks(guard);
    }
  });

  test('end with what is no request; those before it have their answers first', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    const connection = await client.connect();
    const reply = connection.send({ method: 'GET', path: '/mcp' });
    const refused = connection.expect();
    connection.write('garbage\r\n\r\n');
    const exchange = await upstream.next();
    await exchange.events(priming('e1'));
    await reply.until('e1');
    connection.write('more garbage\r\n\r\n');
    await exchange.end();
    assert.equal(await reply.text(), priming('e1'));
    assert.equal(await failureOf(refused), 400);
    await connection.closed();
    assert.equal(upstream.requests.length, 1);
    await stillWorks(guard);
  });

  test('do not follow one that says it is the last', async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    const connection = await client.connect();
    const reply = connection.send({ method: 'POST', path: '/mcp', fields: { Connection: 'close' }, body: '{}' });
    connection.write('GET /mcp?second HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n');
    const exchange = await upstream.next();
    await exchange.answer(200, {}, 'ok');
    assert.equal(await reply.text(), 'ok');
    await connection.closed();
    assert.equal(upstream.requests.length, 1);
    await stillWorks(guard);
  });
});
