// The relay by itself, on a real connection: what it says of bytes is what delivery is judged by.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import net, { type AddressInfo } from 'node:net';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { NO_IDENTITY } from '../../src/core/ledger.ts';
import { watchConnection } from '../../src/proxy/connection.ts';
import { Relay } from '../../src/proxy/relay.ts';
import { eventually } from '../support/waiting.ts';

const exec = promisify(execFile);

const LARGE = Buffer.alloc(8 * 1_048_576, 'x');

test('bytes count as flushed only when all that were to be told of have left, not the first of them', async (t) => {
  const left: number[] = [];
  const server = createServer((_, response) => {
    const relay = new Relay(response, {
      flushed: () => left.push(response.writableLength),
      finished: () => {},
      closed: () => {},
    });
    relay.head(200, 'OK', ['Content-Type', 'text/event-stream'], 'GET');
    // More than the kernel takes while nobody reads: two writes, of which the second waits for the first.
    relay.write(LARGE, true);
    relay.write(LARGE, true);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = net.connect((server.address() as AddressInfo).port, '127.0.0.1');
  t.after(() => {
    client.destroy();
    server.close();
  });
  client.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n');
  client.on('data', () => {});
  await eventually('the bytes to be flushed', () => left.length > 0);
  assert.deepEqual(left, [0]);
});

test('an answer of known length leaves at the end of the turn, with those that came in it; an event before', async (t) => {
  const responses: ServerResponse[] = [];
  const server = createServer((_, response) => responses.push(response));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const clients = [1, 2, 3].map(() => net.connect(port, '127.0.0.1'));
  t.after(() => {
    for (const client of clients) client.destroy();
    server.close();
  });
  for (const client of clients) client.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n');
  await eventually('three requests', () => responses.length === 3);
  const sockets = responses.map(({ socket }) => socket!);
  const sent = (): boolean[] => sockets.map(({ bytesWritten }) => bytesWritten > 0);
  const relays = responses.map(
    (response) => new Relay(response, { flushed: () => {}, finished: () => {}, closed: () => {} }),
  );
  for (const relay of relays.slice(0, 2)) {
    relay.head(200, 'OK', ['Content-Length', '2'], 'GET');
    relay.write(Buffer.from('ok'));
    relay.end();
  }
  relays[2]!.head(200, 'OK', ['Content-Type', 'text/event-stream'], 'GET');
  relays[2]!.write(Buffer.from('data: 1\n\n'));
  await new Promise<void>((resolve) => process.nextTick(resolve));
  assert.deepEqual(sent(), [false, false, true]);
  await new Promise<void>((resolve) => setImmediate(resolve));
  assert.deepEqual(sent(), [true, true, true]);
  const [answer] = await once(clients[0]!, 'data');
  assert.match(String(answer), /^HTTP\/1\.1 200 OK\r\n(.+\r\n)*\r\nok$/);
});

test('the bytes of an answer of known length are told of when they leave, small or large', async (t) => {
  for (const size of [10, 100_000]) {
    const told: string[] = [];
    const server = createServer((_, response) => {
      const relay = new Relay(response, {
        flushed: () => told.push('flushed'),
        finished: () => {},
        closed: () => told.push('closed'),
      });
      relay.head(200, 'OK', ['Content-Type', 'text/event-stream', 'Content-Length', String(size)], 'GET');
      relay.write(Buffer.alloc(size, 'x'), true);
      relay.end();
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const client = net.connect((server.address() as AddressInfo).port, '127.0.0.1');
    t.after(() => {
      client.destroy();
      server.close();
    });
    client.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n');
    client.on('data', () => {});
    await eventually('the end of the exchange', () => told.includes('closed'));
    assert.deepEqual(told, ['flushed', 'closed'], `${size} bytes`);
  }
});

for (const [what, answers] of [
  ['an answer that is here in whole reaches a client that ends its side in the same turn', true],
  ['a client that ends its side while it waits gets nothing, no head of ours either', false],
] as const) {
  test(what, async (t) => {
    const server = createServer((request, response) => {
      const relay = new Relay(response, { flushed: () => {}, finished: () => {}, closed: () => {} });
      const connection = watchConnection(request.socket, () => 0);
      connection.response = response;
      connection.exchanges = [{ clientEnded: () => relay.turnEnded(), connectionClosed: () => relay.left() }];
      if (answers) {
        relay.head(200, 'OK', ['Content-Length', '2'], 'GET');
        relay.write(Buffer.from('ok'));
        relay.end();
      }
      request.socket.emit('end');
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const client = net.connect((server.address() as AddressInfo).port, '127.0.0.1');
    t.after(() => {
      client.destroy();
      server.close();
    });
    client.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n');
    const pieces: Buffer[] = [];
    client.on('data', (piece) => pieces.push(piece));
    await once(client, 'close');
    assert.match(String(Buffer.concat(pieces)), answers ? /^HTTP\/1\.1 200 OK\r\n(.+\r\n)*\r\nok$/ : /^$/);
  });
}

/** Reads 64 KB a millisecond at most, in a process of its own: what it leaves lying about is not ours. */
const SLOW_CLIENT = `
  const client = require('node:net').connect(Number(process.argv[1]), '127.0.0.1');
  client.write('GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n');
  let received = 0;
  client.on('data', (chunk) => {
    received += chunk.length;
    client.pause();
    setTimeout(() => client.resume(), 1);
  });
  client.on('end', () => console.log(received));`;

test('what a slow client has taken does not lie about until the collector comes by', async (t) => {
  const pieces = 1_000;
  const held: number[] = [];
  const server = createServer((_, response) => {
    let left = pieces;
    const relay = new Relay(response, { flushed: () => {}, finished: () => {}, closed: () => {} });
    // As upstream's connection would: a piece a turn, each with memory of its own, unless it has to wait.
    let paused = false;
    const read = (): void => {
      if (paused || left === 0) return;
      left -= 1;
      relay.write(Buffer.alloc(65_536, 'x'));
      if (left > 0) setImmediate(read);
      else relay.end();
    };
    relay.follow({
      pause: () => {
        paused = true;
        held.push(process.memoryUsage().arrayBuffers);
      },
      resume: () => {
        paused = false;
        setImmediate(read);
      },
      abort: () => {},
      identity: NO_IDENTITY,
    });
    relay.head(200, 'OK', ['Content-Type', 'application/json'], 'GET');
    read();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const { stdout } = await exec(process.execPath, ['-e', SLOW_CLIENT, String((server.address() as AddressInfo).port)]);
  assert.ok(Number(stdout) > pieces * 65_536, stdout);
  // Until the first collection there is what other tests have left.
  const later = held.slice(10);
  assert.ok(later.length > 10, `it waited ${held.length} times`);
  const mebibytes = Math.round((Math.max(...later) - Math.min(...later)) / 1_048_576);
  t.diagnostic(`${mebibytes} MiB of 62 came and went`);
  assert.ok(mebibytes < 10, `${mebibytes} MiB`);
});
