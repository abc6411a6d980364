// TLS on both sides: certificates that are read again, authorities of one's own, client certificates, names.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { copyFileSync } from 'node:fs';
import { createServer as createHttpsServer, request as httpsRequest, type ServerOptions } from 'node:https';
import net, { type AddressInfo } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import tls, { type PeerCertificate, type TLSSocket } from 'node:tls';
import { pino } from 'pino';
import { WebSocket, WebSocketServer } from 'ws';
import { type ConfigFile, configFrom } from '../../src/config.ts';
import { type RunningProxy, startProxy } from '../../src/main.ts';
import { type Authority, type Issued, makeAuthority } from '../support/authority.ts';
import { Connection } from '../support/connection.ts';
import { block, priming, result } from '../support/messages.ts';
import { startUpstream, type Upstream } from '../support/upstream.ts';
import { eventually, within } from '../support/waiting.ts';

interface Started {
  readonly proxy: RunningProxy;
  readonly logs: readonly Record<string, unknown>[];
  /** The configuration with other keys. */
  config(file: ConfigFile): ReturnType<typeof configFrom>;
}

async function start(t: TestContext, file: ConfigFile): Promise<Started> {
  const logs: Record<string, unknown>[] = [];
  const logger = pino({ level: 'debug' }, { write: (line) => void logs.push(JSON.parse(line)) });
  const base: ConfigFile = { listen: '127.0.0.1:0', admin: { listen: '127.0.0.1:0' }, drainTimeout: '100ms' };
  const config = (more: ConfigFile): ReturnType<typeof configFrom> => configFrom({ ...base, ...file, ...more });
  const proxy = await startProxy(config({}), { logger });
  t.after(() => within('the proxy to close', proxy.close(), 10_000));
  return { proxy, logs, config };
}

describe('toward clients', () => {
  interface Downstream extends Started {
    readonly upstream: Upstream;
    readonly authority: Authority;
    readonly issued: Issued;
    /** A connection over TLS, and the certificate that it met. */
    connect(): Promise<{ connection: Connection; met: PeerCertificate }>;
  }

  async function setUp(t: TestContext): Promise<Downstream> {
    const authority = await makeAuthority(t);
    const issued = await authority.issue('first', 'DNS:localhost', 'IP:127.0.0.1');
    const upstream = await startUpstream();
    const tlsFiles = { cert: issued.cert, key: issued.key };
    const started = await start(t, { upstream: { url: `${upstream.url}/mcp` }, tls: tlsFiles });
    const { host, port } = new URL(started.proxy.url);
    t.after(() => upstream.kill());
    return {
      ...started,
      upstream,
      authority,
      issued,
      async connect() {
        const socket = tls.connect({
          host: '127.0.0.1',
          port: Number(port),
          servername: 'localhost',
          ca: authority.pem,
        });
        await within('the handshake', once(socket, 'secureConnect'));
        t.after(() => socket.destroy());
        return { connection: new Connection(socket, host), met: socket.getPeerCertificate() };
      },
    };
  }

  test('requests come in, upstream is told, and a stream flows', async (t) => {
    const { connect, upstream, proxy } = await setUp(t);
    assert.match(proxy.url, /^https:/);
    const { connection } = await connect();
    const reply = connection.send({ method: 'POST', path: '/mcp', body: '{}' });
    const exchange = await upstream.next();
    assert.equal(exchange.field('x-forwarded-proto'), 'https');
    await exchange.head(200, { 'Content-Type': 'text/event-stream', Location: `${upstream.url}/x` });
    await exchange.write(priming('e1'));
    await reply.until('e1');
    assert.equal((await reply.head).field('location'), `${proxy.url}/x`);
    await exchange.end(block({ id: 'e2', data: result(1) }));
    assert.equal(await reply.text(), priming('e1') + block({ id: 'e2', data: result(1) }));
    const cut = connection.send({ method: 'POST', path: '/mcp', body: '{}' });
    const second = await upstream.next();
    await second.events(priming('e1'));
    await cut.until('e1');
    second.cut();
    assert.equal(await cut.ended, 'cut');
  });

  test('an upgrade is declined or passed as without TLS', async (t) => {
    const { connect, upstream } = await setUp(t);
    const { connection } = await connect();
    const h2c = { Connection: 'Upgrade, HTTP2-Settings', Upgrade: 'h2c', 'HTTP2-Settings': 'AAMAAABk' };
    for (let round = 0; round < 3; round += 1) {
      const reply = connection.send({ method: 'POST', path: '/mcp', fields: h2c, body: 'x'.repeat(100_000) });
      const exchange = await upstream.next();
      assert.equal(exchange.text.length, 100_000);
      await exchange.answer(200, {}, 'ok');
      assert.equal(await reply.text(), 'ok');
    }
    const socket = { Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Key': 'x' };
    const reply = connection.send({ method: 'GET', path: '/mcp', fields: socket });
    const exchange = await upstream.next();
    assert.equal(exchange.field('x-forwarded-proto'), 'https');
    await exchange.head(101, { Connection: 'Upgrade', Upgrade: 'websocket' });
    await reply.head;
    await exchange.raw('frames');
    await reply.until('frames');
    connection.destroy();
    await exchange.left();
  });

  test('what is no TLS closes its connection and harms nobody', async (t) => {
    const { connect, upstream, proxy } = await setUp(t);
    for (const bytes of ['GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n', '\u0016\u0003\u0001garbage', '\u0000']) {
      const socket = net.connect(Number(new URL(proxy.url).port), '127.0.0.1');
      socket.on('error', () => {});
      socket.write(bytes);
      if (bytes.length === 1) socket.resetAndDestroy();
      await within('the connection to close', once(socket.resume(), 'close'));
    }
    const { connection } = await connect();
    const reply = connection.send({ method: 'GET', path: '/mcp' });
    await (await upstream.next()).answer(200, {}, 'ok');
    assert.equal(await reply.text(), 'ok');
    assert.equal(upstream.requests.length, 1);
  });

  test('a reload reads the certificate again, and no stream notices', async (t) => {
    const { connect, upstream, proxy, authority, issued, config, logs } = await setUp(t);
    const old = await connect();
    assert.equal(old.met.subject.CN, 'first');
    const reply = old.connection.send({ method: 'GET', path: '/mcp' });
    const exchange = await upstream.next();
    await exchange.events(priming('e1'));
    await reply.until('e1');
    const renewed = await authority.issue('second', 'DNS:localhost', 'IP:127.0.0.1');
    copyFileSync(renewed.cert, issued.cert);
    copyFileSync(renewed.key, issued.key);
    proxy.reload(config({}));
    assert.equal((await connect()).met.subject.CN, 'second');
    await exchange.end(priming('e2'));
    assert.equal(await reply.text(), priming('e1') + priming('e2'));
    assert.deepEqual(
      logs.filter(({ event }) => event === 'not-reloaded'),
      [],
    );
  });

  test('a reload with a certificate that does not fit leaves the old one in force, and everything else', async (t) => {
    const { connect, upstream, proxy, authority, issued, config } = await setUp(t);
    const other = await authority.issue('other', 'DNS:localhost');
    copyFileSync(other.cert, issued.cert);
    assert.throws(() => proxy.reload(config({ mode: 'observe', allowedHosts: ['nobody.example'] })));
    const { connection, met } = await connect();
    assert.equal(met.subject.CN, 'first');
    const reply = connection.send({ method: 'GET', path: '/mcp' });
    await (await upstream.next()).answer(200, {}, 'ok');
    assert.equal(await reply.text(), 'ok');
  });

  test('a reload does not take TLS away, and says so', async (t) => {
    const { connect, upstream, proxy, logs } = await setUp(t);
    proxy.reload(
      configFrom({
        listen: '127.0.0.1:0',
        admin: { listen: '127.0.0.1:0' },
        drainTimeout: '100ms',
        upstream: { url: `${upstream.url}/mcp` },
      }),
    );
    const said = logs.filter(({ event }) => event === 'not-reloaded');
    assert.deepEqual(
      said.map(({ keys }) => keys),
      [['tls']],
    );
    const { connection } = await connect();
    connection.send({ method: 'GET', path: '/mcp' });
    assert.equal((await upstream.next()).field('x-forwarded-proto'), 'https');
  });
});

describe('toward upstream', () => {
  interface Seen {
    readonly servername: string | false | undefined;
    readonly host: string | undefined;
    readonly client: string | undefined;
  }

  interface Server {
    readonly port: number;
    readonly seen: Seen[];
    readonly connections: () => number;
  }

  const nameOf = (subject: PeerCertificate['subject'] | undefined): string | undefined => subject?.CN?.toString();

  /** A server that answers with what it is asked for by name, and accepts WebSockets. */
  async function serve(t: TestContext, options: ServerOptions): Promise<Server> {
    const seen: Seen[] = [];
    let connections = 0;
    const server = createHttpsServer(options, (request, response) => {
      const socket = request.socket as TLSSocket & { servername?: string | false };
      const { subject } = socket.getPeerCertificate();
      seen.push({ servername: socket.servername, host: request.headers.host, client: nameOf(subject) });
      request.resume();
      if (request.url === '/cut') {
        response.write('half');
        setTimeout(() => socket.destroy(), 50);
      } else if (request.url === '/close') {
        response.shouldKeepAlive = false;
        response.removeHeader('Transfer-Encoding');
        response.useChunkedEncodingByDefault = false;
        response.end('to the end of the connection');
      } else {
        response.end('ok');
      }
    });
    server.on('secureConnection', () => {
      connections += 1;
    });
    server.on('tlsClientError', () => {});
    const sockets = new WebSocketServer({ server });
    sockets.on('connection', (socket, request) => {
      const tlsSocket = request.socket as TLSSocket & { servername?: string | false };
      seen.push({
        servername: tlsSocket.servername,
        host: request.headers.host,
        client: nameOf(tlsSocket.getPeerCertificate().subject),
      });
      socket.on('message', (data) => socket.send(data));
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => {
      for (const socket of sockets.clients) socket.terminate();
      server.closeAllConnections();
      server.close();
    });
    return { port: (server.address() as AddressInfo).port, seen, connections: () => connections };
  }

  async function get(proxy: RunningProxy, path = '/mcp', headers: Record<string, string> = {}): Promise<string> {
    const response = await fetch(proxy.url + path, { headers });
    return `${response.status} ${await response.text()}`;
  }

  const FAILED = '502 {"error":"cannot connect to the upstream server"}';

  test('a private authority is trusted where it is named, and nowhere else', async (t) => {
    const authority = await makeAuthority(t);
    const server = await serve(t, (await authority.issue('server', 'DNS:localhost')).pem);
    const url = `https://localhost:${server.port}/mcp`;
    const other = await makeAuthority(t, 'somebody else');
    assert.equal(await get((await start(t, { upstream: { url, ca: authority.ca } })).proxy), '200 ok');
    for (const upstream of [{ url }, { url, ca: other.ca }]) {
      const { proxy, logs } = await start(t, { upstream });
      assert.equal(await get(proxy), FAILED);
      assert.equal(await get(proxy, '/free'), FAILED);
      await eventually('a warning', () => logs.some(({ error }) => error === 'upstream-refused'));
    }
    assert.equal(server.seen.length, 1);
  });

  test('the certificate must be for the name that upstream is called', async (t) => {
    const authority = await makeAuthority(t);
    const named = await serve(t, (await authority.issue('named', 'DNS:localhost')).pem);
    const numbered = await serve(t, (await authority.issue('numbered', 'IP:127.0.0.1')).pem);
    const nameless = await serve(t, (await authority.issue('localhost')).pem);
    for (const [host, { port }, expected] of [
      ['localhost', named, '200 ok'],
      ['127.0.0.1', named, FAILED],
      ['localhost', numbered, FAILED],
      ['127.0.0.1', numbered, '200 ok'],
      ['127.0.0.1', nameless, FAILED],
    ] as const) {
      const upstream = { url: `https://${host}:${port}/mcp`, ca: authority.ca };
      assert.equal(await get((await start(t, { upstream })).proxy), expected, `${host} ${expected}`);
    }
    assert.deepEqual(named.seen, [{ servername: 'localhost', host: `localhost:${named.port}`, client: undefined }]);
    assert.deepEqual(numbered.seen, [{ servername: false, host: `127.0.0.1:${numbered.port}`, client: undefined }]);
  });

  test('the name asked for is upstream’s own, whatever Host a client sends, and connections are kept', async (t) => {
    const authority = await makeAuthority(t);
    const server = await serve(t, (await authority.issue('server', 'DNS:localhost')).pem);
    const upstream = { url: `https://localhost:${server.port}/mcp`, ca: authority.ca };
    const { proxy } = await start(t, { upstream, preserveHost: true });
    const { port } = new URL(proxy.url);
    const ask = async (host: string): Promise<void> => {
      const socket = net.connect(Number(port), '127.0.0.1');
      const connection = new Connection(socket, host);
      const reply = connection.send({ method: 'GET', path: '/mcp' });
      assert.equal(await reply.text(), 'ok');
      socket.destroy();
    };
    const hosts = ['a.localhost', 'b.localhost:99', '127.0.0.1', 'c.localhost'];
    for (const host of hosts) await ask(host);
    assert.deepEqual(
      server.seen.map(({ host }) => host),
      hosts,
    );
    assert.ok(
      server.seen.every(({ servername }) => servername === 'localhost'),
      JSON.stringify(server.seen),
    );
    assert.equal(server.connections(), 1);

    const socket = new WebSocket(`ws://127.0.0.1:${port}/mcp`, { headers: { Host: 'd.localhost' } });
    await within('the upgrade', once(socket, 'open'));
    assert.deepEqual(server.seen.at(-1), { servername: 'localhost', host: 'd.localhost', client: undefined });
    socket.terminate();
  });

  test('a client certificate is shown where one is asked for', async (t) => {
    const authority = await makeAuthority(t);
    const pem = (await authority.issue('server', 'DNS:localhost')).pem;
    const server = await serve(t, { ...pem, ca: authority.pem, requestCert: true, rejectUnauthorized: true });
    const mine = await authority.issue('the guard');
    const url = `https://localhost:${server.port}/mcp`;
    const files = { url, ca: authority.ca, cert: mine.cert, key: mine.key };
    const { proxy, config } = await start(t, { upstream: files });
    assert.equal(await get(proxy), '200 ok');
    const socket = new WebSocket(`${proxy.url.replace('http', 'ws')}/mcp`);
    await within('the upgrade', once(socket, 'open'));
    socket.send('hello');
    assert.equal(String((await within('the echo', once(socket, 'message')))[0]), 'hello');
    socket.terminate();
    assert.deepEqual(
      server.seen.map(({ client }) => client),
      ['the guard', 'the guard'],
    );

    const renewed = await authority.issue('the guard, renewed');
    copyFileSync(renewed.cert, mine.cert);
    copyFileSync(renewed.key, mine.key);
    proxy.reload(config({}));
    // The connection at hand was made with the old one.
    await Promise.all([get(proxy), get(proxy)]);
    assert.ok(server.seen.some(({ client }) => client === 'the guard, renewed'));

    const without = await start(t, { upstream: { url, ca: authority.ca } });
    assert.match(await get(without.proxy), /^502 \{"error":/);
  });

  test('one that misses a client certificate is a 502, and is not asked again and again', async (t) => {
    // With TLS 1.3 a client learns only afterwards that its certificate was missed.
    const authority = await makeAuthority(t);
    const pem = (await authority.issue('server', 'DNS:localhost')).pem;
    let connections = 0;
    const server = tls.createServer({ ...pem, ca: authority.pem, requestCert: true, rejectUnauthorized: true });
    server.on('connection', () => {
      connections += 1;
    });
    server.on('tlsClientError', () => {});
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => server.close());
    const url = `https://localhost:${(server.address() as AddressInfo).port}/mcp`;
    const { proxy } = await start(t, { upstream: { url, ca: authority.ca } });
    for (let round = 1; round <= 5; round += 1) assert.match(await within('the answer', get(proxy)), /^502 /);
    assert.ok(connections <= 7, `${connections} connections for 5 requests`);
  });

  test('a WebSocket to a server that is not trusted is a 502', async (t) => {
    const authority = await makeAuthority(t);
    const server = await serve(t, (await authority.issue('server', 'DNS:localhost')).pem);
    const { proxy } = await start(t, { upstream: { url: `https://localhost:${server.port}/mcp` } });
    const socket = new WebSocket(`${proxy.url.replace('http', 'ws')}/mcp`);
    const [error] = await within('the refusal', once(socket, 'error'));
    assert.match(String(error), /502/);
    assert.equal(server.seen.length, 0);
  });

  test('a body that breaks off is cut, one that ends with the connection ends', async (t) => {
    const authority = await makeAuthority(t);
    const server = await serve(t, (await authority.issue('server', 'DNS:localhost')).pem);
    const { proxy } = await start(t, { upstream: { url: `https://localhost:${server.port}/mcp`, ca: authority.ca } });
    await assert.rejects(get(proxy, '/cut'));
    assert.equal(await get(proxy, '/close'), '200 to the end of the connection');
  });

  test('one that never finishes the handshake is a 504', async (t) => {
    const mute = net.createServer((socket) => {
      socket.on('error', () => {});
      t.after(() => socket.destroy());
    });
    mute.listen(0, '127.0.0.1');
    await once(mute, 'listening');
    t.after(() => mute.close());
    const url = `https://localhost:${(mute.address() as AddressInfo).port}/mcp`;
    const { proxy } = await start(t, { upstream: { url }, connectTimeout: '200ms' });
    assert.match(await get(proxy), /^504 \{"error":/);
    const socket = new WebSocket(`${proxy.url.replace('http', 'ws')}/mcp`);
    const [error] = await within('the refusal', once(socket, 'error'));
    assert.match(String(error), /504/);
  });
});

test('both sides at once', async (t) => {
  const authority = await makeAuthority(t);
  const issued = await authority.issue('both', 'DNS:localhost', 'IP:127.0.0.1');
  const server = createHttpsServer(issued.pem, (_, response) => response.end('through two tunnels'));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `https://localhost:${(server.address() as AddressInfo).port}`;
  const { proxy } = await start(t, {
    upstream: { url, ca: authority.ca },
    tls: { cert: issued.cert, key: issued.key },
  });
  const asked = httpsRequest(`${proxy.url}/x`, { ca: authority.pem, agent: false }).end();
  const [response] = await within('the answer', once(asked, 'response'));
  let text = '';
  for await (const piece of response) text += piece;
  assert.equal(text, 'through two tunnels');
});
