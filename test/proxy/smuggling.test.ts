// One request of a client is at most one request at upstream. The scripted upstream reads as leniently as the worst of
// servers: it splits lines anyhow, takes the first length it finds, and takes anything that mentions `chunked` for it.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { WebSocket, WebSocketServer } from 'ws';
import type { Connection } from '../support/connection.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, result } from '../support/messages.ts';
import { failureOf } from '../support/session.ts';
import { eventually, fastestOf, within } from '../support/waiting.ts';
import { chunk, type Field } from '../support/wire.ts';

const EVIL = 'GET /evil HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n';

const WAYS = [
  ['guarded', '/mcp', ''],
  ['unguarded', '/free', ''],
  [
    'declining an upgrade',
    '/mcp',
    'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n',
  ],
] as const;

/** What upstream got, as far as it is a request. */
const seen = ({ upstream }: Guard): string[] => upstream.requests.map(String);

/** The head, then what follows, with `fields` after Host. */
const post = (path: string, fields: string, rest: string, start = `POST ${path} HTTP/1.1`): Buffer =>
  Buffer.from(`${start}\r\nHost: 127.0.0.1\r\n${fields}\r\n${rest}`, 'latin1');

const LENGTH_AND_CHUNKS = `0\r\n\r\n${EVIL}`;

/** Refused before upstream sees anything. */
const BAD_HEADS: readonly [name: string, fields: string, rest: string][] = [
  ['a length and chunks', 'Content-Length: 4\r\nTransfer-Encoding: chunked\r\n', LENGTH_AND_CHUNKS],
  ['chunks and a length', 'Transfer-Encoding: chunked\r\nContent-Length: 4\r\n', LENGTH_AND_CHUNKS],
  ['two lengths that differ', 'Content-Length: 0\r\nContent-Length: 44\r\n', EVIL],
  ['two lengths that agree', 'Content-Length: 2\r\nContent-Length: 2\r\n', '{}'],
  ['two lengths in one field', 'Content-Length: 2, 2\r\n', '{}'],
  ['a length with a sign', 'Content-Length: +2\r\n', '{}'],
  ['a negative length', 'Content-Length: -2\r\n', '{}'],
  ['a hexadecimal length', 'Content-Length: 0x2\r\n', '{}'],
  ['a length with a blank inside', 'Content-Length: 2 2\r\n', '{}'],
  ['a length beyond 64 bits', 'Content-Length: 18446744073709551618\r\n', '{}'],
  ['an unknown coding', 'Transfer-Encoding: xchunked\r\n', LENGTH_AND_CHUNKS],
  ['the identity coding', 'Transfer-Encoding: identity\r\n', LENGTH_AND_CHUNKS],
  ['a coding before chunked', 'Transfer-Encoding: gzip, chunked\r\n', LENGTH_AND_CHUNKS],
  ['a coding after chunked', 'Transfer-Encoding: chunked, gzip\r\n', LENGTH_AND_CHUNKS],
  ['chunked twice', 'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n', LENGTH_AND_CHUNKS],
  ['chunked and another coding', 'Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n', LENGTH_AND_CHUNKS],
  ['chunked in quotes', 'Transfer-Encoding: "chunked"\r\n', LENGTH_AND_CHUNKS],
  ['chunked with a parameter', 'Transfer-Encoding: chunked;q=1\r\n', LENGTH_AND_CHUNKS],
  ['chunked behind a vertical tab', 'Transfer-Encoding: \u000bchunked\r\n', LENGTH_AND_CHUNKS],
  ['chunked behind a comma', 'Transfer-Encoding: ,chunked\r\n', LENGTH_AND_CHUNKS],
  ['a folded coding', 'Transfer-Encoding:\r\n chunked\r\n', LENGTH_AND_CHUNKS],
  ['a folded field', 'X: a\r\n b\r\n', ''],
  ['a folded field with a tab', 'X: a\r\n\tContent-Length: 44\r\n', EVIL],
  ['a blank before a colon', 'Transfer-Encoding : chunked\r\n', LENGTH_AND_CHUNKS],
  ['a tab before a colon', 'Content-Length\t: 44\r\n', EVIL],
  ['a blank before a name', 'X: a\r\n  Content-Length: 44\r\n', EVIL],
  ['a line that ends in LF alone', 'X: a\nTransfer-Encoding: chunked\r\n', LENGTH_AND_CHUNKS],
  ['a head that ends in LF alone', 'X: a\r\n\n', EVIL],
  ['a bare CR', 'X: a\rTransfer-Encoding: chunked\r\n', LENGTH_AND_CHUNKS],
  ['a NUL in a value', 'X: a\u0000b\r\n', ''],
  ['a NUL in a name', 'X\u0000: a\r\n', ''],
  ['a NUL in the coding', 'Transfer-Encoding: chunked\u0000\r\n', LENGTH_AND_CHUNKS],
  ['a line without a colon', 'Transfer-Encoding\r\n', ''],
  ['a field without a name', ': chunked\r\n', ''],
  ['a second Host', 'Host: localhost\r\n', ''],
  ['a second Host that agrees', 'hOST: 127.0.0.1\r\n', ''],
];

/** Refused after a body has begun. Upstream may have seen the one request, but never the end of it, and no other. */
const BAD_BODIES: readonly [name: string, rest: string][] = [
  ['a chunk size with a sign', `+2\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk size with 0x', `0x2\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a negative chunk size', `-1\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk size of nothing', `\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk size with blanks', `2 \r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk size behind a blank', ` 2\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk size beyond 64 bits', `10000000000000002\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk size line that ends in LF', `2\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk that ends in LF', `2\r\n{}\n0\r\n\r\n${EVIL}`],
  ['a chunk that ends in something else', `2\r\n{}xx0\r\n\r\n${EVIL}`],
  ['a chunk extension with LF', `2;a\nxx\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk extension with CR', `2;a\rxx\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk extension with NUL', `2;a\u0000\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk extension with an open quote', `2;a="b\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a chunk extension without end', `2;${'x'.repeat(20_000)}\r\n{}\r\n0\r\n\r\n${EVIL}`],
  ['a last chunk that ends in LF', `2\r\n{}\r\n0\n\n${EVIL}`],
  ['a length in the trailers', `2\r\n{}\r\n0\r\nContent-Length: 44\r\n\r\n${EVIL}`],
  ['a folded trailer', `2\r\n{}\r\n0\r\nX: a\r\n b\r\n\r\n${EVIL}`],
];

/** Odd, but clear: one request with the body `{}`. */
const CLEAR: readonly [name: string, fields: string, rest: string][] = [
  ['CHUNKED in capitals', 'Transfer-Encoding: CHUNKED\r\n', '2\r\n{}\r\n0\r\n\r\n'],
  ['blanks around values', 'Transfer-Encoding: \t chunked \r\n', '2\r\n{}\r\n0\r\n\r\n'],
  ['a coding that is none of ours', 'Transfer_Encoding: chunked\r\nContent-Length: 2\r\n', '{}'],
  ['a length named in Connection', 'Connection: Content-Length\r\nContent-Length: 2\r\n', '{}'],
  [
    'a coding named in Connection',
    'Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n',
    '2\r\n{}\r\n0\r\n\r\n',
  ],
  ['Host named in Connection', 'Connection: Host\r\nContent-Length: 2\r\n', '{}'],
  ['leading zeros', 'Transfer-Encoding: chunked\r\n', '0000002\r\n{}\r\n000\r\n\r\n'],
  ['chunk extensions', 'Transfer-Encoding: chunked\r\n', '2;a=b;c="d;e"\r\n{}\r\n0;last\r\n\r\n'],
  [
    'trailers that look like a request',
    'Transfer-Encoding: chunked\r\n',
    '2\r\n{}\r\n0\r\nGET: /evil HTTP/1.1\r\n\r\n',
  ],
  ['a length with zeros in front', 'Content-Length: 0002\r\n', '{}'],
];

async function ask(guard: Guard, bytes: Buffer, method = 'POST'): Promise<{ connection: Connection; status: number }> {
  const connection = await guard.client.connect();
  const reply = connection.expect(method);
  connection.write(bytes);
  const { status } = await reply.head;
  await reply.ended;
  return { connection, status };
}

for (const [way, path, upgrade] of WAYS) {
  describe(`what is ambiguous is a 400 that closes the connection, ${way}`, () => {
    test('in the head', async (t) => {
      const guard = await startGuard(t);
      for (const [name, fields, rest] of BAD_HEADS) {
        const { connection, status } = await ask(guard, post(path, upgrade + fields, rest));
        assert.equal(status, 400, name);
        await connection.closed();
        assert.deepEqual(seen(guard), [], name);
      }
    });

    test('in the body', async (t) => {
      const guard = await startGuard(t);
      for (const [name, rest] of BAD_BODIES) {
        const { connection, status } = await ask(guard, post(path, `${upgrade}Transfer-Encoding: chunked\r\n`, rest));
        assert.equal(status, 400, name);
        await connection.closed();
        await eventually('upstream to be left alone', () => guard.upstream.open === 0);
        for (const exchange of guard.upstream.requests) {
          assert.equal(`${exchange}`, `POST ${path}`, name);
          assert.equal(exchange.complete, false, name);
        }
      }
    });

    test('in the request line', async (t) => {
      const guard = await startGuard(t);
      const lines = [
        `POST ${path} HTTP/1.1 `,
        `POST ${path} HTTP/1.2`,
        `POST ${path} HTTP/2.0`,
        `POST ${path} HTTP/0.9`,
        `POST ${path} http/1.1`,
        `POST ${path} evil HTTP/1.1`,
        `POST ${path}\u0000 HTTP/1.1`,
        `POST ${path}\u0001 HTTP/1.1`,
        `POST\t${path}\tHTTP/1.1`,
        `post ${path} HTTP/1.1`,
        `P0ST ${path} HTTP/1.1`,
        `PRI * HTTP/2.0`,
        'POST mcp HTTP/1.1',
        'POST * HTTP/1.1',
        'POST file:///mcp HTTP/1.1',
        ` POST ${path} HTTP/1.1`,
      ];
      for (const start of lines) {
        const { connection, status } = await ask(guard, post(path, `${upgrade}Content-Length: 2\r\n`, '{}', start));
        assert.equal(status, 400, start);
        await connection.closed();
        assert.deepEqual(seen(guard), [], start);
      }
    });

    test('in HTTP/1.0, where nothing is chunked', async (t) => {
      const guard = await startGuard(t);
      const bytes = post(path, 'Transfer-Encoding: chunked\r\n', LENGTH_AND_CHUNKS, `POST ${path} HTTP/1.0`);
      const { connection, status } = await ask(guard, bytes);
      assert.equal(status, 400);
      await connection.closed();
      assert.deepEqual(seen(guard), []);
    });
  });

  test(`what is odd but clear is one request, ${way}`, async (t) => {
    const guard = await startGuard(t);
    for (const [name, fields, rest] of CLEAR) {
      const connection = await guard.client.connect();
      const reply = connection.expect('POST');
      connection.write(post(path, upgrade + fields, rest));
      const exchange = await guard.upstream.next();
      assert.equal(exchange.text, '{}', name);
      await exchange.answer(200, {}, name);
      assert.equal(await reply.text(), name);
    }
    assert.equal(guard.upstream.requests.length, CLEAR.length);
  });

  test(`a request inside a body stays inside, ${way}`, async (t) => {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    const connection = await client.connect();
    const bodies = [EVIL, `\r\n\r\n${EVIL}${EVIL}`, `0\r\n\r\n${EVIL}`, EVIL.repeat(3_000)];
    let sent = 0;
    for (const body of bodies) {
      for (const rest of [`Content-Length: ${body.length}\r\n`, 'Transfer-Encoding: chunked\r\n']) {
        const reply = connection.expect('POST');
        const framed = rest.startsWith('T') ? `${chunk(body)}0\r\n\r\n` : body;
        connection.write(post(path, upgrade + rest, framed));
        const exchange = await upstream.next();
        assert.equal(exchange.text, body);
        await exchange.answer(200, {}, 'ok');
        assert.equal(await reply.text(), 'ok');
        sent += 1;
        assert.equal(upstream.requests.length, sent);
      }
    }
  });
}

describe('a declined upgrade to HTTP/2', () => {
  const H2C: readonly Field[] = [
    ['Connection', 'Upgrade, HTTP2-Settings'],
    ['Upgrade', 'h2c'],
    ['HTTP2-Settings', 'AAMAAABkAAQBAAAAAAIAAAAA'],
    ['User-Agent', 'Java-http-client/21.0.2'],
    ['Mcp-Session-Id', 's-1'],
  ];

  for (const framing of ['length', 'chunked'] as const) {
    test(`is an ordinary request, its connection serves on (a body by ${framing})`, async (t) => {
      const { client, upstream } = await startGuard(t);
      const connection = await client.connect();
      for (const [round, size] of [2, 70_000, 3_000_000, 0].entries()) {
        const body = Buffer.alloc(size, 'x');
        const reply = connection.send({ method: 'POST', path: `/mcp?${round}`, fields: H2C, body, framing });
        const exchange = await upstream.next({ within: 10_000 });
        assert.equal(exchange.target, `/mcp?${round}`);
        assert.ok(exchange.body.equals(body));
        for (const name of ['upgrade', 'http2-settings']) assert.equal(exchange.field(name), undefined);
        assert.equal(exchange.field('mcp-session-id'), 's-1');
        await exchange.events(block({ id: 'e1', data: result(1) }));
        await exchange.end();
        assert.equal(await reply.text(), block({ id: 'e1', data: result(1) }));
        const plain = connection.send({ method: 'GET', path: '/mcp' });
        await (await upstream.next({ method: 'GET' })).answer(200, {}, 'plain');
        assert.equal(await plain.text(), 'plain');
      }
    });
  }

  test('leaves nothing behind on a connection that offers it again and again', async (t) => {
    // A MaxListenersExceededWarning fails the test at its end.
    const { client } = await startGuard(t, { handler: (exchange) => exchange.answer(200, {}, 'ok') });
    const connection = await client.connect();
    for (let round = 0; round < 30; round += 1) {
      const reply = connection.send({ method: 'POST', path: '/mcp', fields: H2C, body: '{}' });
      assert.equal(await reply.text(), 'ok');
    }
  });

  test('keeps Connection: close, and the expectation to continue', async (t) => {
    const { client, upstream } = await startGuard(t);
    const connection = await client.connect();
    const fields: Field[] = [
      ...H2C.slice(1),
      ['Connection', 'Upgrade, close'],
      ['Expect', '100-continue'],
      ['Content-Length', '2'],
    ];
    const reply = connection.send({ method: 'POST', path: '/mcp', fields });
    await connection.interims(1);
    connection.write('{}');
    await (await upstream.next()).answer(200, {}, 'ok');
    assert.equal((await reply.head).field('connection'), 'close');
    assert.equal(await reply.text(), 'ok');
    await connection.closed();
  });

  test('is refused like any other request where it must not come in', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const [name, value] of [
      ['Host', 'evil.example'],
      ['Origin', 'http://evil.example'],
    ] as const) {
      const reply = await client.send({ method: 'POST', path: '/mcp', fields: [...H2C, [name, value]], body: '{}' });
      assert.equal(await failureOf(reply), 403);
    }
    assert.equal(upstream.requests.length, 0);
  });

  test('tells upstream at once when the client leaves', async (t) => {
    const { client, upstream } = await startGuard(t);
    const reply = await client.send({ method: 'POST', path: '/mcp', fields: H2C, body: '{}' });
    const exchange = await upstream.next();
    await exchange.events();
    await reply.head;
    reply.destroy();
    await exchange.left(500);
  });
});

test('an upgrade behind an unanswered request ends the connection, and reaches nobody', async (t) => {
  for (const protocol of ['websocket', 'h2c']) {
    const guard = await startGuard(t);
    const { client, upstream } = guard;
    const connection = await client.connect();
    const reply = connection.send({ method: 'POST', path: '/mcp', body: '{}' });
    const exchange = await upstream.next();
    await exchange.events();
    await reply.head;
    connection.send({ method: 'GET', path: '/evil', fields: { Connection: 'Upgrade', Upgrade: protocol } });
    assert.equal(await reply.ended, 'cut');
    await exchange.left(500);
    assert.deepEqual(seen(guard), ['POST /mcp']);
  }
});

test('CONNECT is refused', async (t) => {
  const guard = await startGuard(t);
  const { connection, status } = await ask(
    guard,
    Buffer.from(`CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n${EVIL}`),
  );
  assert.equal(status, 400);
  await connection.closed();
  assert.deepEqual(seen(guard), []);
});

describe('a WebSocket', () => {
  /** A server that echoes, and says what it was asked. */
  async function echo(
    t: TestContext,
  ): Promise<{ url: string; asked: string[][]; targets: string[]; open: () => number }> {
    const server = createServer();
    const sockets = new WebSocketServer({ server, perMessageDeflate: false });
    const asked: string[][] = [];
    const targets: string[] = [];
    sockets.on('connection', (socket, request) => {
      asked.push(request.rawHeaders);
      targets.push(request.url ?? '');
      socket.on('message', (data, isBinary) => socket.send(data, { binary: isBinary }));
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => {
      for (const socket of sockets.clients) socket.terminate();
      server.closeAllConnections();
      server.close();
    });
    return {
      url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
      asked,
      targets,
      open: () => sockets.clients.size,
    };
  }

  const UPGRADE: readonly Field[] = [
    ['Connection', 'keep-alive, Upgrade'],
    ['Upgrade', 'websocket'],
    ['Sec-WebSocket-Key', 'dGhlIHNhbXBsZSBub25jZQ=='],
    ['Sec-WebSocket-Version', '13'],
  ];

  test('passes, messages of any size both ways, and closes from either side', async (t) => {
    const server = await echo(t);
    const { authority } = await startGuard(t, { file: { routes: [{ path: '/', upstream: server.url }] } });
    const socket = new WebSocket(`ws://${authority}/a//b?x=%2F&y?`, ['one', 'two'], {
      headers: { Cookie: 'a=1' },
    });
    await within('the upgrade', once(socket, 'open'));
    for (const message of ['hello', 'x'.repeat(1_000_000)]) {
      socket.send(message);
      const [echoed] = await within('the echo', once(socket, 'message'));
      assert.equal(String(echoed), message);
    }
    assert.deepEqual(server.targets, ['/a//b?x=%2F&y?']);
    socket.close(1000, 'done');
    const [code] = await within('the close', once(socket, 'close'));
    assert.equal(code, 1000);
    await eventually('the server to see it', () => server.open() === 0);
  });

  test('is told who asks, as any request is, and keeps repeated fields apart', async (t) => {
    const { client, upstream, authority } = await startGuard(t);
    const fields: Field[] = [
      ...UPGRADE,
      ['X-One', '1'],
      ['Cookie', 'a=1'],
      ['X-One', '2'],
      ['X-Forwarded-For', '10.0.0.1'],
      ['Expect', '100-continue'],
    ];
    const connection = await client.connect();
    connection.send({ method: 'GET', path: '//', fields });
    const exchange = await upstream.next();
    assert.equal(exchange.target, '//');
    assert.deepEqual(exchange.values('host'), [new URL(upstream.url).host]);
    assert.deepEqual(exchange.values('x-forwarded-host'), [authority]);
    assert.deepEqual(exchange.values('x-forwarded-for'), ['10.0.0.1, 127.0.0.1']);
    assert.deepEqual(exchange.values('x-forwarded-proto'), ['http']);
    assert.deepEqual(exchange.values('via'), ['1.1 mcp-resume-guard']);
    assert.deepEqual(exchange.values('x-one'), ['1', '2']);
    assert.deepEqual(exchange.values('connection'), ['Upgrade']);
    assert.equal(exchange.field('expect'), undefined);
  });

  test('that upstream refuses gets the answer of upstream, whole', async (t) => {
    const { client, upstream } = await startGuard(t);
    const body = 'no sockets here. '.repeat(200_000);
    for (const framing of ['chunked', `length:${body.length}`, 'close'] as const) {
      const reply = await client.send({ method: 'GET', path: '/mcp', fields: UPGRADE });
      const exchange = await upstream.next();
      const fields: Field[] = [
        ['Set-Cookie', 'a=1'],
        ['Set-Cookie', 'b=2'],
        ['X-Latin', 'caf\u00e9'],
        ['Location', `${upstream.url}/else`],
      ];
      await exchange.head(403, fields, { framing, reason: 'No Sockets' });
      await exchange.write(body);
      await exchange.end();
      const head = await reply.head;
      assert.deepEqual([head.status, head.reason], [403, 'No Sockets']);
      assert.deepEqual(head.values('set-cookie'), ['a=1', 'b=2']);
      assert.equal(head.field('x-latin'), 'caf\u00e9');
      assert.equal(
        head.field('location'),
        `http://${reply.connection.socket.remoteAddress}:${reply.connection.socket.remotePort}/else`,
      );
      assert.equal(await reply.text(), body);
      await reply.connection.closed();
    }
    const empty = await client.send({ method: 'GET', path: '/mcp', fields: UPGRADE });
    await (await upstream.next()).answer(426, { Upgrade: 'foo' });
    assert.equal((await empty.head).status, 426);
    assert.equal(await empty.text(), '');
  });

  test('whose refusal breaks off is cut, not ended', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const framing of ['chunked', 'length:100'] as const) {
      for (const die of ['cut', 'reset'] as const) {
        const reply = await client.send({ method: 'GET', path: '/mcp', fields: UPGRADE });
        const exchange = await upstream.next();
        await exchange.head(403, {}, { framing });
        await exchange.write('half');
        await reply.until('half');
        exchange[die]();
        assert.equal(await reply.ended, 'cut', `${framing}, ${die}`);
      }
    }
  });

  test('that gets no answer is a 502, in JSON', async (t) => {
    const { client, upstream } = await startGuard(t);
    const reply = await client.send({ method: 'GET', path: '/mcp', fields: UPGRADE });
    (await upstream.next()).reset();
    assert.equal(await failureOf(reply), 502);
    await upstream.kill();
    assert.equal(await failureOf(await client.send({ method: 'GET', path: '/mcp', fields: UPGRADE })), 502);
    await upstream.restart();
  });

  test('whose upstream dies is closed, and nothing is written into it', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const die of ['cut', 'reset'] as const) {
      const reply = await client.send({ method: 'GET', path: '/mcp', fields: UPGRADE });
      const exchange = await upstream.next();
      await exchange.head(101, [...UPGRADE.slice(0, 2), ['Sec-WebSocket-Accept', 'y']]);
      await exchange.raw('frames');
      await reply.until('frames');
      exchange[die]();
      await reply.connection.closed(1_000);
      assert.equal(reply.body.toString(), 'frames');
    }
  });

  test('whose client leaves lets go of upstream within 100 ms, before the answer and after', async (t) => {
    const { client, upstream } = await startGuard(t);
    for (const how of ['destroy', 'reset', 'halfClose'] as const) {
      for (const upgraded of [false, true]) {
        const fastest = await fastestOf(3, async () => {
          const reply = await client.send({ method: 'GET', path: '/mcp', fields: UPGRADE });
          const exchange = await upstream.next();
          if (upgraded) {
            await exchange.head(101, [...UPGRADE.slice(0, 2), ['Sec-WebSocket-Accept', 'y']]);
            await reply.head;
          }
          const left = performance.now();
          reply.connection[how]();
          await exchange.left(1_000);
          return performance.now() - left;
        });
        assert.ok(fastest < 100, `${how}, ${upgraded ? 'after' : 'before'}: ${fastest} ms`);
      }
    }
  });

  test('with a body is a 400: to one side it would be a request, to the other data', async (t) => {
    const guard = await startGuard(t);
    for (const [fields, rest] of [
      [`Content-Length: ${EVIL.length}\r\n`, EVIL],
      ['Content-Length: 0\r\n', EVIL],
      ['Transfer-Encoding: chunked\r\n', LENGTH_AND_CHUNKS],
    ] as const) {
      const upgrade =
        'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n';
      const { connection, status } = await ask(guard, post('', upgrade + fields, rest, 'GET /mcp HTTP/1.1'), 'GET');
      assert.equal(status, 400);
      await connection.closed();
      assert.deepEqual(seen(guard), []);
    }
  });

  test('carries what the client sent too early as data, never as a request', async (t) => {
    const { client, upstream } = await startGuard(t);
    const accepted = await client.connect();
    const reply = accepted.send({ method: 'GET', path: '/mcp', fields: UPGRADE });
    accepted.write(EVIL);
    const exchange = await upstream.next();
    await exchange.head(101, [...UPGRADE.slice(0, 2), ['Sec-WebSocket-Accept', 'y']]);
    await reply.head;
    await exchange.until('/evil');
    accepted.destroy();
    const refused = await client.connect();
    const refusal = refused.send({ method: 'GET', path: '/mcp', fields: UPGRADE });
    refused.write(EVIL);
    await (await upstream.next()).answer(403, {}, 'no');
    assert.equal(await refusal.text(), 'no');
    await refused.closed();
    assert.equal(upstream.requests.length, 2);
  });

  test('obeys Host, Origin and routes', async (t) => {
    const server = await echo(t);
    const guard = await startGuard(t, { file: { routes: [{ path: '/sockets', upstream: server.url }] } });
    for (const [status, path, fields] of [
      [403, '/sockets', { Host: 'evil.example' }],
      [403, '/sockets', { Origin: 'http://evil.example' }],
      [404, '/elsewhere', {}],
      [400, '*', {}],
    ] as const) {
      const all = [...UPGRADE, ...Object.entries(fields)];
      assert.equal(await failureOf(await guard.client.send({ method: 'GET', path, fields: all })), status);
    }
    assert.deepEqual(server.targets, []);
    const socket = new WebSocket(`ws://${guard.authority}/sockets/1`, { origin: 'http://localhost:3000' });
    await within('the upgrade', once(socket, 'open'));
    socket.terminate();
    assert.deepEqual(server.targets, ['/sockets/1']);
    assert.ok(server.asked[0]?.includes('http://localhost:3000'));
  });
});
