// The guard inside an SDK server: one shared event store, a guarded view of it for each session.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { InMemoryEventStore } from '@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js';
import { McpServer } from '@modelcontextprotocol/server';
import { guardEventStore, ResumptionTokenError } from 'mcp-resume-guard/server';

const events = guardEventStore(new InMemoryEventStore());
const transports = new Map<string, NodeStreamableHTTPServerTransport>();

async function open(): Promise<NodeStreamableHTTPServerTransport> {
  const sessionId = randomUUID();
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: () => sessionId,
    eventStore: events.forSession(sessionId),
    onsessioninitialized: (id) => void transports.set(id, transport),
  });
  transport.onclose = () => {
    transports.delete(sessionId);
    events.endSession(sessionId);
  };
  const server = new McpServer({ name: 'example', version: '1.0.0' });
  server.registerTool('hello', { description: 'Says hello' }, () => ({ content: [{ type: 'text', text: 'hello' }] }));
  await server.connect(transport);
  return transport;
}

export const listener = createServer(async ({ headers }, response) => {
  const sessionId = headers['mcp-session-id'];
  const cursor = headers['last-event-id'];
  try {
    // Says 404 or 409; the SDK by itself knows only 400.
    if (typeof sessionId === 'string' && typeof cursor === 'string') events.authorize(sessionId, cursor);
  } catch (error) {
    const status = error instanceof ResumptionTokenError ? error.status : 500;
    response.writeHead(status, { 'Content-Type': 'text/plain' }).end(String(error));
    return;
  }
  const transport = sessionId === undefined ? await open() : transports.get(String(sessionId));
  if (transport === undefined) response.writeHead(404).end();
  else await transport.handleRequest(response.req, response);
});
