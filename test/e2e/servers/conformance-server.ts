/**
 * The conformance fixture on the two published server generations: sessions of 2025 on both, and on the second also the
 * stateless revision of 2026, chosen request by request as that SDK recommends.
 */
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import {
  localhostHostValidation,
  localhostOriginValidation,
  NodeStreamableHTTPServerTransport,
  toNodeHandler,
  toWebRequest,
} from '@modelcontextprotocol/node';
import { InMemoryEventStore } from '@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js';
import { Server as Server1 } from '@modelcontextprotocol/sdk/server/index.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { Transport as Transport1 } from '@modelcontextprotocol/sdk/shared/transport.js';
import * as schemas from '@modelcontextprotocol/sdk/types.js';
import { createMcpHandler, isLegacyRequest, ProtocolError, Server as Server2 } from '@modelcontextprotocol/server';
import { type Answer, CAPABILITIES, HANDLERS, type HandledMethod, handlerOf } from './conformance-fixture.ts';

export interface ConformanceServer {
  readonly url: string;
  close(): Promise<void>;
}

const INFO = { name: 'conformance-fixture', version: '1' };
const METHODS = Object.keys(HANDLERS) as HandledMethod[];

const SCHEMAS: Record<HandledMethod, unknown> = {
  'tools/list': schemas.ListToolsRequestSchema,
  'tools/call': schemas.CallToolRequestSchema,
  'resources/list': schemas.ListResourcesRequestSchema,
  'resources/templates/list': schemas.ListResourceTemplatesRequestSchema,
  'resources/read': schemas.ReadResourceRequestSchema,
  'resources/subscribe': schemas.SubscribeRequestSchema,
  'resources/unsubscribe': schemas.UnsubscribeRequestSchema,
  'prompts/list': schemas.ListPromptsRequestSchema,
  'prompts/get': schemas.GetPromptRequestSchema,
  'completion/complete': schemas.CompleteRequestSchema,
  'logging/setLevel': schemas.SetLevelRequestSchema,
};

function server1(): Server1 {
  const server = new Server1(INFO, { capabilities: CAPABILITIES });
  for (const method of METHODS) {
    const handle = handlerOf(method);
    server.setRequestHandler(SCHEMAS[method] as typeof schemas.CallToolRequestSchema, async ({ params }, extra) =>
      handle(params ?? {}, {
        progressToken: extra._meta?.progressToken,
        notify: (name, body) => extra.sendNotification({ method: name, params: body } as never),
        ask: (name, body) =>
          extra.sendRequest(
            { method: name, params: body } as never,
            name === 'elicitation/create' ? schemas.ElicitResultSchema : schemas.CreateMessageResultSchema,
          ),
        closeStream: () => extra.closeSSEStream?.(),
        fail: (code, message, data) => new schemas.McpError(code, message, data),
      }),
    );
  }
  return server;
}

function server2(): Server2 {
  const server = new Server2(INFO, { capabilities: CAPABILITIES });
  for (const method of METHODS) {
    const handle = handlerOf(method);
    server.setRequestHandler(method as 'tools/call', async ({ params }, context) => {
      const answer: Answer = await handle((params ?? {}) as Record<string, unknown>, {
        progressToken: context.mcpReq._meta?.progressToken,
        notify: (name, body) => context.mcpReq.notify({ method: name, params: body } as never),
        ask: (name, body) => context.mcpReq.send({ method: name, params: body } as never),
        closeStream: () => context.http?.closeSSE?.(),
        fail: (code, message, data) => new ProtocolError(code, message, data),
      });
      return answer as never;
    });
  }
  return server;
}

type Handle = (request: IncomingMessage, response: ServerResponse, body: unknown) => Promise<void>;

/** One transport for each session, made by `initialize`. */
function sessionRouter(open: (adopt: (id: string) => void) => Promise<Handle>): Handle {
  const sessions = new Map<string, Handle>();
  return async (request, response, body) => {
    const id = request.headers['mcp-session-id'];
    if (typeof id !== 'string') {
      const handle: Handle = await open((session) => void sessions.set(session, handle));
      return handle(request, response, body);
    }
    const handle = sessions.get(id);
    if (handle !== undefined) return handle(request, response, body);
    response.writeHead(404, { 'Content-Type': 'application/json' });
    response.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}');
  };
}

const transportOptions = (adopt: (id: string) => void) => ({
  sessionIdGenerator: () => randomUUID(),
  onsessioninitialized: adopt,
  eventStore: new InMemoryEventStore(),
  retryInterval: 300,
});

const sessions1 = (): Handle =>
  sessionRouter(async (adopt) => {
    const transport = new StreamableHTTPServerTransport(transportOptions(adopt));
    await server1().connect(transport as Transport1);
    return (request, response, body) => transport.handleRequest(request, response, body);
  });

const sessions2 = (): Handle =>
  sessionRouter(async (adopt) => {
    const transport = new NodeStreamableHTTPServerTransport(transportOptions(adopt));
    await server2().connect(transport);
    return (request, response, body) => transport.handleRequest(request, response, body);
  });

/** 2026 requests go to the SDK's own handler, everything else to the sessions. */
function bothEras(): Handle {
  const legacy = sessions2();
  const modern = toNodeHandler(createMcpHandler(() => server2(), { legacy: 'reject' }));
  return async (request, response, body) => {
    // Node's request as the adapter's type has it: it does not allow for an explicit `undefined`.
    const incoming = request as IncomingMessage & { method: string; url: string };
    return (await isLegacyRequest(await toWebRequest(incoming, body), body))
      ? legacy(request, response, body)
      : modern(incoming, response, body);
  };
}

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  if (chunks.length === 0) return undefined;
  return JSON.parse(Buffer.concat(chunks).toString());
}

export async function startConformanceServer(version: '1.32' | '2'): Promise<ConformanceServer> {
  const handle = version === '2' ? bothEras() : sessions1();
  const hostIsLocal = localhostHostValidation();
  const originIsLocal = localhostOriginValidation();
  const server = createServer((request, response) => {
    if (!hostIsLocal(request, response) || !originIsLocal(request, response)) return;
    bodyOf(request)
      .then((body) => handle(request, response, body))
      .catch(() => response.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
