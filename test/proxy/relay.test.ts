// The relay by itself, on a real connection: what it says of bytes is what delivery is judged by.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import net, { type AddressInfo } from 'node:net';
import { test } from 'node:test';
import { NO_IDENTITY } from '../../src/core/ledger.ts';
import { Relay } from '../../src/proxy/relay.ts';
import { eventually } from '../support/waiting.ts';

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

test('what a slow client has taken does not lie about until the collector comes by', async (t) => {
  const pieces = 1_000;
  let most = 0;
  const server = createServer((_, response) => {
    let left = pieces;
    const relay = new Relay(response, { flushed: () => {}, finished: () => {}, closed: () => {} });
    // As upstream's connection would: a piece a turn, each with memory of its own, unless it has to wait.
    let paused = false;
    const read = (): void => {
      if (paused || left === 0) return;
      left -= 1;
      relay.write(Buffer.alloc(65_536, 'x'));
      most = Math.max(most, process.memoryUsage().arrayBuffers);
      if (left > 0) setImmediate(read);
      else relay.end();
    };
    relay.follow({
      pause: () => {
        paused = true;
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
  const client = net.connect((server.address() as AddressInfo).port, '127.0.0.1');
  t.after(() => {
    client.destroy();
    server.close();
  });
  const before = process.memoryUsage().arrayBuffers;
  client.write('GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n');
  let received = 0;
  client.on('data', (chunk) => {
    received += chunk.length;
    client.pause();
    setTimeout(() => client.resume(), 1);
  });
  await once(client, 'end');
  assert.ok(received > pieces * 65_536);
  const kept = Math.round((most - before) / 1_048_576);
  t.diagnostic(`at most ${kept} MiB of 62`);
  assert.ok(kept < 12, `${kept} MiB`);
});
