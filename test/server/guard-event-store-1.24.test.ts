/**
 * An older server, whose transport writes to Node's response itself: what the guard can do there, and what it cannot
 * (docs/in-process.md).
 */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { InMemoryEventStore } from '@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js';
import { Server } from 'sdk-1.24/server/index.js';
import { StreamableHTTPServerTransport } from 'sdk-1.24/server/streamableHttp.js';
import { ListToolsRequestSchema } from 'sdk-1.24/types.js';
import { guardEventStore } from '../../src/server/index.ts';
import { createClient } from '../support/client.ts';
import { request } from '../support/messages.ts';

const VERSION = '2025-11-25';

async function start(t: TestContext) {
  const guarded = guardEventStore(new InMemoryEventStore());
  const transports = new Map<string, StreamableHTTPServerTransport>();
  const listener = createServer(async (incoming, response) => {
    let transport = transports.get(String(incoming.headers['mcp-session-id']));
    if (transport === undefined) {
      const sessionId = randomUUID();
      const eventStore = guarded.forSession(sessionId);
      transport = new StreamableHTTPServerTransport({ sessionIdGenerator: () => sessionId, eventStore });
      transports.set(sessionId, transport);
      const server = new Server({ name: 'old', version: '1' }, { capabilities: { tools: {} } });
      server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: [] }));
      await server.connect(transport as Parameters<Server['connect']>[0]);
    }
    await transport.handleRequest(incoming, response);
  });
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  const client = createClient(`http://127.0.0.1:${(listener.address() as AddressInfo).port}/mcp`);
  t.after(() => {
    client.close();
    listener.close();
  });
  const open = async (): Promise<{ session: string; cursors: string[] }> => {
    const session = (await (await client.initialize()).head).field('mcp-session-id') ?? '';
    const reply = await client.post({ body: request(1, 'tools/list', {}) }, { session, version: VERSION });
    return { session, cursors: [...(await reply.text()).matchAll(/id: (\S+)/g)].map(([, id = '']) => id) };
  };
  return { open, resume: (session: string, lei: string) => client.get({ session, lei, version: VERSION }) };
}

test('a 1.24 server refuses unknown cursors and those of other sessions', async (t) => {
  const { open, resume } = await start(t);
  const [mine, other] = [await open(), await open()];
  for (const cursor of ['nobody_0_minted', ...mine.cursors]) {
    const reply = await resume(other.session, cursor);
    assert.equal((await reply.head).status, 400);
    await reply.bytes();
  }
});

test('a 1.24 server replays in order, and leaves the replay of a finished stream open as it does without the guard', async (t) => {
  const { open, resume } = await start(t);
  const { session, cursors } = await open();
  assert.equal(cursors.length, 2);
  const reply = await resume(session, cursors[0]!);
  await reply.until('"tools":[]');
  await reply.quiet(300);
});
