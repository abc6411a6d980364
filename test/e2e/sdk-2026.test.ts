/**
 * Revision 2026-07-28 between the published packages: no sessions, no GET, and closing the response stream cancels the
 * request. All of it must pass as if the proxy were not there.
 */
import assert from 'node:assert/strict';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, Server } from '@modelcontextprotocol/server';
import { take } from '../support/sdk-guard.ts';
import { eventually } from '../support/waiting.ts';

interface Stateless {
  readonly url: string;
  /** Method and protocol version of every request. */
  readonly seen: string[];
  readonly cancelled: () => boolean;
}

async function startStateless(t: TestContext): Promise<Stateless> {
  let cancelled = false;
  const serve = toNodeHandler(
    createMcpHandler(() => {
      const server = new Server({ name: 'e2e', version: '1' }, { capabilities: { tools: {} } });
      const inputSchema = { type: 'object' as const };
      server.setRequestHandler('tools/list', () => ({
        tools: ['steps', 'endless'].map((name) => ({ name, inputSchema })),
      }));
      server.setRequestHandler('tools/call', async ({ params }, { mcpReq }) => {
        const progressToken = mcpReq._meta?.progressToken;
        const report = (progress: number): Promise<void> =>
          progressToken === undefined
            ? Promise.resolve()
            : mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress } });
        await report(1);
        if (params.name === 'endless') {
          await new Promise<void>((resolve) => mcpReq.signal.addEventListener('abort', () => resolve()));
          cancelled = true;
        }
        await report(2);
        return { content: [{ type: 'text', text: 'done' }] };
      });
      return server;
    }),
  );
  const seen: string[] = [];
  const http = createServer((request, response) => {
    seen.push(`${request.method} ${request.headers['mcp-protocol-version']}`);
    void serve(request as IncomingMessage & { method: string; url: string }, response);
  });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    http.closeAllConnections();
    return new Promise((resolve) => http.close(resolve));
  });
  const { port } = http.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}/mcp`, seen, cancelled: () => cancelled };
}

for (const way of ['direct', {}] as const) {
  const name = way === 'direct' ? 'direct' : 'proxy';
  test(`${name}: a 2026-07-28 client and server negotiate, call with progress, and cancel by closing the stream`, async (t) => {
    const server = await startStateless(t);
    const { url, decisions, warnings } = await take(t, way, server.url);
    const client = new Client({ name: 'e2e', version: '1' }, { versionNegotiation: { mode: 'auto' } });
    t.after(() => client.close());
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    assert.deepEqual(
      (await client.listTools()).tools.map((tool) => tool.name),
      ['steps', 'endless'],
    );

    const progress: number[] = [];
    const onprogress = (at: { progress: number }): void => void progress.push(at.progress);
    const { content } = await client.callTool({ name: 'steps' }, { onprogress });
    assert.deepEqual(content, [{ type: 'text', text: 'done' }]);
    assert.deepEqual(progress, [1, 2]);

    const given = new AbortController();
    let reached = false;
    const endless = client.callTool({ name: 'endless' }, { signal: given.signal, onprogress: () => (reached = true) });
    const rejected = assert.rejects(endless);
    await eventually('the call to be under way', () => reached);
    given.abort(new Error('enough'));
    await rejected;
    await eventually('the server to see the cancellation', () => server.cancelled(), 1_000);

    assert.deepEqual([...new Set(server.seen)], ['POST 2026-07-28']);
    assert.deepEqual(decisions(), []);
    assert.deepEqual(warnings(), []);
  });
}
