/**
 * An MCP client that resumes badly, in the ways that released clients do, and notes what it gets. It has its own few
 * lines for reading events, so that what it reports does not rest on the code that it puts to the test.
 */
import { Agent, type IncomingMessage, request as send } from 'node:http';

/** How a resume was answered, as far as a client can see. */
export type Answer =
  /** The result of the call, for the first time. */
  | 'result'
  /** The result of the call, which the client has had before. */
  | 'result-again'
  /** `200`, no event, a clean end: looks like success, says nothing. */
  | 'silent-empty'
  /** `409`: the cursor is good for nothing, and the client knows it. */
  | 'conflict'
  /** A JSON-RPC error for the very call that was waiting. */
  | 'call-failed'
  /** The cursor was taken off on the way: a plain listening stream, open and quiet. */
  | 'listening'
  /** Open and quiet, for no reason given. */
  | 'quiet'
  /** Events, but no response among them. */
  | 'events'
  | 'broken'
  | `status-${number}`;

interface SseEvent {
  readonly id: string;
  readonly data: string;
}

/** A call that was answered or given up: the IDs of its events, in order, and the JSON-RPC id. */
export interface Call {
  readonly id: number;
  readonly eventIds: readonly string[];
}

export interface Client {
  readonly session: string;
  readonly revision: string;
  /** Calls a tool and reads to the end, or drops the connection at the first progress notification. */
  call(tool: string, args: object, until: 'end' | 'progress'): Promise<Call>;
  /** Comes back with a cursor; a stream that stays quiet for `patienceMs` is left. */
  resume(call: Call, cursor: string, patienceMs: number): Promise<Answer>;
  /** Opens the listening stream and keeps it. Settles when its head is there. */
  listen(): Promise<void>;
  /** How often each call had a result. */
  readonly results: ReadonlyMap<number, number>;
  /** Ends the session with DELETE. */
  end(): Promise<void>;
  /** Drops every connection. */
  close(): void;
}

const LIMIT_MS = 5_000;

async function* readEvents(res: IncomingMessage): AsyncGenerator<SseEvent> {
  res.setEncoding('utf8');
  let text = '';
  let id = '';
  let data: string[] = [];
  let touched = false;
  for await (const chunk of res as AsyncIterable<string>) {
    const lines = (text + chunk).split('\n');
    text = lines.pop() ?? '';
    for (const line of lines.map((raw) => raw.replace(/\r$/, ''))) {
      if (line === '') {
        if (touched) yield { id, data: data.join('\n') };
        data = [];
        touched = false;
        continue;
      }
      const [, name, value = ''] = /^([^:]*)(?:: ?(.*))?$/.exec(line) ?? [];
      if (name === 'id') id = value;
      if (name === 'data') data.push(value);
      touched ||= name === 'id' || name === 'data';
    }
  }
}

interface Message {
  readonly id?: unknown;
  readonly method?: unknown;
  readonly result?: unknown;
  readonly error?: unknown;
}

const messageOf = ({ data }: SseEvent): Message => (data === '' ? {} : (JSON.parse(data) as Message));

/**
 * Opens a session.
 * @param url the MCP endpoint, of the server or of a proxy before it
 * @param signal drops every connection when it aborts
 * @throws Error if the server does not open a session within 5 s
 */
export async function openSession(url: string, signal: AbortSignal): Promise<Client> {
  const agent = new Agent({ keepAlive: true });
  const stop = new AbortController();
  const ended = AbortSignal.any([signal, stop.signal]);
  const results = new Map<number, number>();
  let fields: Record<string, string> = {};
  let calls = 0;

  /** One HTTP request; settles with the head of the answer. */
  function exchange(method: string, more: Record<string, string>, message?: object): Promise<IncomingMessage> {
    const body = message === undefined ? undefined : JSON.stringify({ jsonrpc: '2.0', ...message });
    const content = body === undefined ? {} : { 'Content-Type': 'application/json' };
    const headers = { 'User-Agent': 'resume-demo', ...content, ...fields, ...more };
    return new Promise((resolve, reject) => {
      const req = send(url, { method, agent, headers, signal: ended });
      const timer = setTimeout(() => req.destroy(new Error(`no answer to ${method} within ${LIMIT_MS} ms`)), LIMIT_MS);
      req.on('close', () => clearTimeout(timer));
      req.on('error', reject);
      req.on('response', (res) => {
        clearTimeout(timer);
        resolve(res);
      });
      req.end(body);
    });
  }

  const post = (message: object) => exchange('POST', { Accept: 'application/json, text/event-stream' }, message);

  async function textOf(res: IncomingMessage): Promise<string> {
    res.setEncoding('utf8');
    let text = '';
    for await (const chunk of res) text += chunk;
    return text;
  }

  const clientInfo = { name: 'resume-demo', version: '1.0.0' };
  const opened = await post({
    id: 0,
    method: 'initialize',
    params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo },
  });
  const session = opened.headers['mcp-session-id'];
  const greeting = await textOf(opened);
  if (opened.statusCode !== 200 || typeof session !== 'string') {
    agent.destroy();
    throw new Error(`no session: ${opened.statusCode} ${greeting}`);
  }
  const { result } = JSON.parse(greeting) as { result: { protocolVersion: string } };
  fields = { 'Mcp-Session-Id': session, 'MCP-Protocol-Version': result.protocolVersion };
  await textOf(await post({ method: 'notifications/initialized' }));

  /** Counts a result; says what the message means for a call that waits. */
  function receive(message: Message, call: number): Answer | undefined {
    if (message.id !== call || message.method !== undefined) return undefined;
    if ('error' in message) return 'call-failed';
    const before = results.get(call) ?? 0;
    results.set(call, before + 1);
    return before === 0 ? 'result' : 'result-again';
  }

  return {
    session,
    revision: result.protocolVersion,
    results,
    async call(tool, args, until) {
      calls += 1;
      const id = calls;
      const params = { name: tool, arguments: args, _meta: { progressToken: id } };
      const res = await post({ id, method: 'tools/call', params });
      if (res.statusCode !== 200) throw new Error(`${tool}: ${res.statusCode} ${await textOf(res)}`);
      const eventIds: string[] = [];
      for await (const event of readEvents(res)) {
        eventIds.push(event.id);
        const message = messageOf(event);
        receive(message, id);
        // Leaving the loop destroys the connection.
        if (until === 'progress' && message.method === 'notifications/progress') break;
      }
      return { id, eventIds };
    },
    async resume(call, cursor, patienceMs) {
      const res = await exchange('GET', { Accept: 'text/event-stream', 'Last-Event-ID': cursor });
      if (res.statusCode !== 200) {
        await textOf(res);
        return res.statusCode === 409 ? 'conflict' : `status-${res.statusCode ?? 0}`;
      }
      let events = 0;
      let outOfPatience = false;
      const timer = setTimeout(() => {
        outOfPatience = true;
        res.destroy();
      }, patienceMs);
      try {
        let answer: Answer | undefined;
        for await (const event of readEvents(res)) {
          events += 1;
          answer ??= receive(messageOf(event), call.id);
          timer.refresh();
        }
        return answer ?? (events > 0 ? 'events' : 'silent-empty');
      } catch {
        if (!outOfPatience) return 'broken';
        if (events > 0) return 'events';
        // The guard says so in its answer when it takes a cursor off (RFC 9209).
        return /details="finished"/.test(String(res.headers['proxy-status'])) ? 'listening' : 'quiet';
      } finally {
        clearTimeout(timer);
      }
    },
    async listen() {
      const res = await exchange('GET', { Accept: 'text/event-stream' });
      if (res.statusCode !== 200) throw new Error(`no listening stream: ${res.statusCode} ${await textOf(res)}`);
      res.on('error', () => {});
      res.resume();
    },
    async end() {
      await textOf(await exchange('DELETE', {}));
    },
    close() {
      stop.abort();
      agent.destroy();
    },
  };
}
