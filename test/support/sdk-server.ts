/**
 * A Streamable HTTP server on a published SDK, in this process, that keeps a record of every request that reaches it.
 *
 *     client -- (proxy) --> [ record | SDK transport of the session | BookkeepingStore ]
 */
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { Server as Server1 } from '@modelcontextprotocol/sdk/server/index.js';
import { type EventStore, StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { Transport as Transport1 } from '@modelcontextprotocol/sdk/shared/transport.js';
import { CallToolRequestSchema, ListToolsRequestSchema, McpError } from '@modelcontextprotocol/sdk/types.js';
import { ProtocolError, Server as Server2 } from '@modelcontextprotocol/server';
import { listenOn } from './ports.ts';
import { BookkeepingStore } from './sdk-store.ts';

export type ServerVersion = '1.32' | '2';
export const SERVER_VERSIONS: readonly ServerVersion[] = ['1.32', '2'];

export interface SeenRequest {
  readonly method: string;
  readonly session: string | undefined;
  readonly lastEventId: string | undefined;
  /** Where the cursor stood when the request arrived. */
  readonly cursor: ReturnType<BookkeepingStore['standing']> | undefined;
  /** Milliseconds, `performance.now()`. */
  readonly at: number;
  /** Filled in when the exchange is over. */
  status: number | undefined;
}

/** What a tool may do besides returning. */
interface ToolCall {
  readonly args: Record<string, unknown>;
  progress(progress: number, total: number): Promise<void>;
  /** Ends the response stream without an answer, as a server that wants to be polled does. */
  closeStream(): void;
}

export interface SdkServer {
  readonly url: string;
  readonly seen: readonly SeenRequest[];
  readonly store: BookkeepingStore;
  /** How often each tool has run: its side effects. */
  readonly runs: ReadonlyMap<string, number>;
  /** Requests that came with a cursor of a request already answered at that moment. */
  finishedCursors(): SeenRequest[];
  /** Every request with a cursor. */
  resumes(): SeenRequest[];
  /** Lets calls of the tool `gate` return, those that wait and those to come, with this text. */
  openGate(text: string): void;
  /** Resolves when a tool has been entered `times` times. */
  entered(tool: string, times?: number): Promise<void>;
  /** A log message on the listening stream of every session. */
  announce(text: string): Promise<void>;
  /** Resets the connections of POSTs that are still being answered. Returns how many. */
  cutCalls(): number;
  /** Exchanges of this method that are still open, as the server sees them. */
  openStreams(method: string): number;
  /** Stops listening and cuts every connection; sessions stay. */
  stopListening(): Promise<void>;
  /** Listens again on the same port. */
  listenAgain(): Promise<void>;
  close(): Promise<void>;
}

interface Session {
  handle(request: IncomingMessage, response: ServerResponse): Promise<void>;
  announce(text: string): Promise<void>;
  close(): Promise<void>;
}

const TOOLS = ['add', 'fail', 'slow', 'late', 'gate', 'poll'];
const toolList = {
  tools: TOOLS.map((name) => ({ name, description: name, inputSchema: { type: 'object' as const } })),
};

export interface ServerOptions {
  /** `retry` of priming events, in milliseconds. */
  readonly retryInterval?: number;
  /** What a session's transport gets instead of the record-keeping store; `store` then knows nothing. */
  readonly storeFor?: (sessionId: string) => EventStore;
  /** Answers a GET without a cursor 405, as a server does that never speaks first. Default: false. */
  readonly withoutListening?: boolean;
}

export async function startSdkServer(version: ServerVersion, options: ServerOptions = {}): Promise<SdkServer> {
  const store = new BookkeepingStore();
  const seen: SeenRequest[] = [];
  const runs = new Map<string, number>();
  const sessions = new Map<string, Session>();
  const open = new Map<ServerResponse, SeenRequest>();
  let openGate: (text: string) => void = () => {};
  const gate = new Promise<string>((resolve) => {
    openGate = resolve;
  });
  const waiting = new Set<() => void>();

  async function runTool(name: string, call: ToolCall): Promise<string> {
    runs.set(name, (runs.get(name) ?? 0) + 1);
    for (const check of [...waiting]) check();
    switch (name) {
      case 'add':
        return String(Number(call.args['a']) + Number(call.args['b']));
      case 'fail':
        throw version === '2'
          ? new ProtocolError(-32050, 'it cannot be done')
          : new McpError(-32050, 'it cannot be done');
      case 'slow':
        for (let step = 1; step <= 3; step += 1) {
          await after(60);
          await call.progress(step, 3);
        }
        return 'slow is done';
      // Not in the list, which tests compare.
      case 'burst':
        for (let step = 1; step <= 5; step += 1) await call.progress(step, 5);
        return 'burst is done';
      case 'late':
        await call.progress(1, 2);
        await after(Number(call.args['after']));
        return String(call.args['text']);
      case 'gate':
        await call.progress(1, 2);
        return await gate;
      case 'poll':
        await call.progress(1, 2);
        call.closeStream();
        await after(150);
        return 'polled';
      default:
        throw new Error(`no tool ${name}`);
    }
  }

  const transportOptions = (adopt: (id: string) => void) => {
    const sessionId = randomUUID();
    return {
      sessionIdGenerator: () => sessionId,
      eventStore: options.storeFor?.(sessionId) ?? store,
      onsessioninitialized: adopt,
      ...(options.retryInterval === undefined ? {} : { retryInterval: options.retryInterval }),
    };
  };

  async function openSession(): Promise<Session> {
    const adopt = (id: string): void => void sessions.set(id, session);
    const session = await (version === '2'
      ? session2(transportOptions(adopt), runTool)
      : session1(transportOptions(adopt), runTool));
    return session;
  }

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const lastEventId = single(request.headers['last-event-id']);
    const record: SeenRequest = {
      method: request.method ?? '',
      session: single(request.headers['mcp-session-id']),
      lastEventId,
      cursor: lastEventId === undefined ? undefined : store.standing(lastEventId),
      at: performance.now(),
      status: undefined,
    };
    seen.push(record);
    open.set(response, record);
    response.once('close', () => {
      open.delete(response);
      record.status = response.statusCode;
    });
    if (record.session === undefined) return (await openSession()).handle(request, response);
    if (options.withoutListening === true && record.method === 'GET' && lastEventId === undefined) {
      response.writeHead(405, { Allow: 'POST, DELETE' }).end();
      return;
    }
    const session = sessions.get(record.session);
    if (session === undefined) {
      response.writeHead(404, { 'Content-Type': 'application/json' });
      response.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}');
      return;
    }
    return session.handle(request, response);
  }

  const sockets = new Set<Socket>();
  let listener: Server;
  async function listen(port: number | null = null): Promise<number> {
    listener = createServer((request, response) => {
      answer(request, response).catch(() => response.destroy());
    });
    listener.on('connection', (socket) => {
      sockets.add(socket);
      socket.once('close', () => sockets.delete(socket));
    });
    return listenOn(listener, port);
  }
  async function stopListening(): Promise<void> {
    const closed = new Promise<void>((resolve) => listener.close(() => resolve()));
    for (const socket of sockets) socket.resetAndDestroy();
    await closed;
  }

  const port = await listen();
  return {
    url: `http://127.0.0.1:${port}/mcp`,
    seen,
    store,
    runs,
    finishedCursors: () => seen.filter(({ cursor }) => cursor === 'terminal' || cursor === 'finished'),
    resumes: () => seen.filter(({ lastEventId }) => lastEventId !== undefined),
    openGate,
    entered: (tool, times = 1) =>
      new Promise((resolve) => {
        const check = (): void => {
          if ((runs.get(tool) ?? 0) < times) return;
          waiting.delete(check);
          resolve();
        };
        waiting.add(check);
        check();
      }),
    announce: async (text) => {
      for (const session of sessions.values()) await session.announce(text);
    },
    cutCalls: () => {
      const calls = [...open].filter(([, { method }]) => method === 'POST');
      for (const [response] of calls) response.socket?.resetAndDestroy();
      return calls.length;
    },
    openStreams: (wanted) => [...open.values()].filter(({ method }) => method === wanted).length,
    stopListening,
    listenAgain: async () => void (await listen(port)),
    close: async () => {
      openGate('closed');
      await Promise.all([...sessions.values()].map((session) => session.close().catch(() => {})));
      await stopListening();
    },
  };
}

type RunTool = (name: string, call: ToolCall) => Promise<string>;
type TransportOptions = {
  sessionIdGenerator: () => string;
  eventStore: EventStore;
  onsessioninitialized: (id: string) => void;
  retryInterval?: number;
};

async function session1(transportOptions: TransportOptions, runTool: RunTool): Promise<Session> {
  const server = new Server1({ name: 'e2e', version: '1' }, { capabilities: { tools: {}, logging: {} } });
  server.setRequestHandler(ListToolsRequestSchema, () => toolList);
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
    const progressToken = params._meta?.progressToken;
    const text = await runTool(params.name, {
      args: params.arguments ?? {},
      progress: async (progress, total) => {
        if (progressToken === undefined) return;
        await extra.sendNotification({
          method: 'notifications/progress',
          params: { progressToken, progress, total },
        });
      },
      closeStream: () => extra.closeSSEStream?.(),
    });
    return { content: [{ type: 'text', text }] };
  });
  const transport = new StreamableHTTPServerTransport(transportOptions);
  await server.connect(transport as Transport1);
  return {
    handle: (request, response) => transport.handleRequest(request, response),
    announce: (data) => server.sendLoggingMessage({ level: 'info', data }),
    close: () => server.close(),
  };
}

async function session2(transportOptions: TransportOptions, runTool: RunTool): Promise<Session> {
  const server = new Server2({ name: 'e2e', version: '1' }, { capabilities: { tools: {}, logging: {} } });
  server.setRequestHandler('tools/list', () => toolList);
  server.setRequestHandler('tools/call', async ({ params }, context) => {
    const progressToken = params._meta?.progressToken;
    const text = await runTool(params.name, {
      args: params.arguments ?? {},
      progress: async (progress, total) => {
        if (progressToken === undefined) return;
        await context.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total } });
      },
      closeStream: () => context.http?.closeSSE?.(),
    });
    return { content: [{ type: 'text', text }] };
  });
  const transport = new NodeStreamableHTTPServerTransport(transportOptions);
  await server.connect(transport);
  return {
    handle: (request, response) => transport.handleRequest(request, response),
    announce: (data) => server.sendLoggingMessage({ level: 'info', data }),
    close: () => server.close(),
  };
}

function single(field: string | string[] | undefined): string | undefined {
  return Array.isArray(field) ? field.join(', ') : field;
}

function after(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
