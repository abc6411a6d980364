// The relay by itself, on a real connection: what it says of bytes is what delivery is judged by.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import net, { type AddressInfo } from 'node:net';
import { test } from 'node:test';
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
