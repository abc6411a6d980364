/**
 * The demo's MCP server over Streamable HTTP, revisions 2025-03-26 to 2025-11-25: this file reads requests and refuses
 * the wrong ones, `session.ts` does the rest. It keeps to the specification, and shows what the guard is for all the same.
 */
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type Id, type Request, readMessage } from './messages.ts';
import { createSession, endSession, listen, resume, type ServerCounts, type Session, serve } from './session.ts';

const REVISIONS = ['2025-11-25', '2025-06-18', '2025-03-26'];
const MAX_BODY_BYTES = 1024 * 1024;

export interface DemoServer {
  /** The MCP endpoint. */
  readonly url: string;
  /** What was observed in a session that is alive, or nothing for another. */
  counts(session: string): Readonly<ServerCounts> | undefined;
  /** Settles when the session can no longer replay after this event. */
  forgotten(session: string, eventId: string): Promise<void>;
  /** Ends every session and every connection. */
  close(): Promise<void>;
}

export interface DemoServerOptions {
  /** TCP port on 127.0.0.1; 0, the default, picks a free one. */
  readonly port?: number;
  /** Events a session can replay; 32 by default. */
  readonly memory?: number;
  /** Hears of each resume what its cursor was and how it was answered. */
  readonly onResume?: (session: string, what: string) => void;
}

/** Does an `Accept` field (RFC 9110, section 12.5.1) allow this media type? */
function accepts(field: string | undefined, type: string): boolean {
  const ranges = (field ?? '').split(',').filter((range) => !/;\s*q=0(\.0*)?\s*(;|$)/i.test(range));
  const names = ranges.map((range) => range.split(';')[0]!.trim().toLowerCase());
  return [type, `${type.split('/')[0]}/*`, '*/*'].some((name) => names.includes(name));
}

/** A page in a browser must not reach a server on loopback under a name of its own (MCP, transports, security). */
function isLoopback(authority: string): boolean {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?$/i.test(authority);
}

function refuse(res: ServerResponse, status: number, message: string, code = -32000): void {
  const body = JSON.stringify({ jsonrpc: '2.0', error: { code, message }, id: null });
  res.writeHead(status, { 'Content-Type': 'application/json' }).end(body);
}

async function readBody(req: IncomingMessage): Promise<string | undefined> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of req as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size <= MAX_BODY_BYTES) chunks.push(chunk);
  }
  return size <= MAX_BODY_BYTES ? Buffer.concat(chunks).toString('utf8') : undefined;
}

function parse(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

/** Starts the server. Rejects if the port is taken. */
export async function startDemoServer(options: DemoServerOptions = {}): Promise<DemoServer> {
  const { port = 0, memory = 32, onResume = () => {} } = options;
  const sessions = new Map<string, Session>();

  function initialize({ id, params }: Request, res: ServerResponse): void {
    const revision = REVISIONS.find((known) => known === params['protocolVersion']) ?? REVISIONS[0]!;
    const session = createSession(randomUUID(), revision, memory);
    sessions.set(session.id, session);
    const serverInfo = { name: 'mcp-resume-guard-demo', version: '1.0.0' };
    const result = { protocolVersion: revision, capabilities: { tools: {} }, serverInfo };
    res.writeHead(200, { 'Content-Type': 'application/json', 'Mcp-Session-Id': session.id });
    res.end(JSON.stringify({ jsonrpc: '2.0', id, result }));
  }

  /** The session a request names. Where there is none, the request has been refused. */
  function sessionOf(req: IncomingMessage, res: ServerResponse): Session | undefined {
    const id = req.headers['mcp-session-id'];
    const session = sessions.get(String(id));
    if (id === undefined) refuse(res, 400, 'Bad Request: Mcp-Session-Id is missing');
    else if (session === undefined) refuse(res, 404, 'Session not found', -32001);
    return session;
  }

  async function post(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const { accept, 'content-type': type = '', 'mcp-session-id': named } = req.headers;
    if (!accepts(accept, 'application/json') || !accepts(accept, 'text/event-stream')) {
      return refuse(res, 406, 'Not Acceptable: Accept must list application/json and text/event-stream');
    }
    if (!/^application\/json\s*(;|$)/i.test(type)) return refuse(res, 415, 'Unsupported Media Type');
    const body = await readBody(req);
    if (body === undefined) return refuse(res, 413, 'Content Too Large');
    const parsed = parse(body);
    if (parsed === undefined) return refuse(res, 400, 'Parse error', -32700);
    const read = (Array.isArray(parsed) ? parsed : [parsed]).map(readMessage);
    const messages = read.filter((message) => message !== undefined);
    if (messages.length === 0 || messages.length < read.length) return refuse(res, 400, 'Invalid Request', -32600);
    const requests = messages.filter((message) => message.kind === 'request');
    const first = requests.find(({ method }) => method === 'initialize');
    if (first !== undefined) {
      if (!Array.isArray(parsed) && named === undefined) return initialize(first, res);
      return refuse(res, 400, 'Invalid Request: initialize stands alone and begins a session', -32600);
    }
    const session = sessionOf(req, res);
    if (session === undefined) return;
    // Batches came with 2025-03-26 and went with 2025-06-18.
    if (Array.isArray(parsed) && session.revision !== '2025-03-26') {
      return refuse(res, 400, 'Invalid Request: no batches in this revision', -32600);
    }
    for (const message of messages) {
      if (message.kind !== 'notification' || message.method !== 'notifications/cancelled') continue;
      session.running.get(message.params['requestId'] as Id)?.abort();
    }
    if (requests.length > 0) return serve(session, requests, res);
    res.writeHead(202).end();
  }

  function get(req: IncomingMessage, res: ServerResponse): void {
    const { accept, 'last-event-id': cursor = '' } = req.headers;
    if (!accepts(accept, 'text/event-stream')) {
      refuse(res, 406, 'Not Acceptable: Accept must list text/event-stream');
      return;
    }
    const session = sessionOf(req, res);
    if (session === undefined) return;
    if (cursor === '') listen(session, res);
    else onResume(session.id, resume(session, String(cursor), res));
  }

  async function handle(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const { host = '', origin, 'mcp-protocol-version': revision } = req.headers;
    if (!isLoopback(host) || (origin !== undefined && !isLoopback(origin.replace(/^https?:\/\//i, '')))) {
      return refuse(res, 403, 'Forbidden: not a loopback name');
    }
    if (req.url?.split('?')[0] !== '/mcp') return refuse(res, 404, 'Not Found: the endpoint is /mcp');
    if (revision !== undefined && !REVISIONS.some((known) => known === revision)) {
      return refuse(res, 400, `Bad Request: MCP-Protocol-Version must be one of ${REVISIONS.join(', ')}`);
    }
    if (req.method === 'POST') return post(req, res);
    if (req.method === 'GET') return get(req, res);
    if (req.method !== 'DELETE') {
      res.setHeader('Allow', 'GET, POST, DELETE');
      return refuse(res, 405, 'Method Not Allowed');
    }
    const session = sessionOf(req, res);
    if (session === undefined) return;
    sessions.delete(session.id);
    endSession(session);
    res.writeHead(204).end();
  }

  const http = createServer((req, res) => {
    handle(req, res).catch(() => res.destroy());
  });
  await new Promise<void>((resolve, reject) => {
    http.once('error', reject);
    http.listen(port, '127.0.0.1', () => resolve());
  });
  return {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp`,
    counts: (session) => sessions.get(session)?.counts,
    forgotten(sessionId, eventId) {
      const session = sessions.get(sessionId);
      if (session?.ring.after(eventId) === undefined) return Promise.resolve();
      return new Promise((resolve) => session.forgotten.set(eventId, resolve));
    },
    async close() {
      const closed = new Promise((resolve) => http.close(resolve));
      for (const session of sessions.values()) endSession(session);
      http.closeAllConnections();
      await closed;
    },
  };
}
