/**
 * Clients that call, lose their connection, and resume at whichever replica comes next, in front of a server that can
 * replay everything. It counts what must not happen: a stripped cursor of a client that lacks its result, a call that never
 * gets one.
 */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { block, initializeRequest, initializeResult, priming, progress, request, result } from './messages.ts';
import { pause } from './waiting.ts';

export interface Counts {
  calls: number;
  /** Connections that the client itself or a death broke. */
  breaks: number;
  resumes: number;
  /** Resumes that reached the server without their cursor. */
  strips: number;
  /** Those of clients that lacked their result. */
  wrongStrips: number;
  /** Resumes answered with a refusal of the guard's own, by rule. */
  refusals: Record<string, number>;
  /** Resumes that failed because a replica was gone. */
  failures: number;
  lost: string[];
}

interface Stream {
  readonly events: string[];
  readonly ids: string[];
  done: boolean;
  readonly changed: Set<() => void>;
}

/** A server whose streams go on whether or not anybody reads them, and whose event IDs never come twice. */
export async function startReplayServer() {
  const streams = new Map<string, Stream>();
  const wrong = { strips: 0, wrongStrips: 0 };
  let ids = 0;
  const follow = (stream: Stream, from: number, response: http.ServerResponse): void => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    let next = from;
    const write = (): void => {
      for (; next < stream.events.length; next += 1) response.write(stream.events[next]);
      if (stream.done) response.end();
    };
    stream.changed.add(write);
    response.on('close', () => stream.changed.delete(write));
    write();
  };
  const run = async (stream: Stream, call: number): Promise<void> => {
    const add = (text: (id: string) => string): void => {
      ids += 1;
      const id = `e${ids}`;
      streams.set(id, stream);
      stream.ids.push(id);
      stream.events.push(text(id));
      for (const write of [...stream.changed]) write();
    };
    add((id) => priming(id));
    for (let step = 1; step <= 3; step += 1) {
      await pause(30);
      add((id) => block({ id, data: progress(call, step, 3) }));
    }
    await pause(30);
    stream.done = true;
    add((id) => block({ id, data: result(call) }));
  };
  const server = http.createServer((incoming, response) => {
    const session = incoming.headers['mcp-session-id'];
    let body = '';
    incoming.on('data', (text) => {
      body += text;
    });
    incoming.on('end', () => {
      if (incoming.method === 'POST') {
        const { id, method } = JSON.parse(body) as { id: number; method: string };
        if (method === 'initialize') {
          ids += 1;
          response.writeHead(200, { 'Content-Type': 'application/json', 'Mcp-Session-Id': `s${ids}` });
          response.end(initializeResult());
          return;
        }
        const stream: Stream = { events: [], ids: [], done: false, changed: new Set() };
        follow(stream, 0, response);
        void run(stream, id);
        return;
      }
      const cursor = incoming.headers['last-event-id'];
      if (cursor === undefined) {
        // The client says in a field of its own what it has, for the count.
        if (incoming.headers['x-cursor'] !== undefined) {
          wrong.strips += 1;
          if (incoming.headers['x-has-result'] === 'no') wrong.wrongStrips += 1;
        }
        response.writeHead(405, { Allow: 'POST' }).end();
        return;
      }
      const stream = streams.get(String(cursor));
      if (stream === undefined || session === undefined)
        response.writeHead(200, { 'Content-Type': 'text/event-stream' }).end();
      else follow(stream, stream.ids.indexOf(String(cursor)) + 1, response);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    wrong,
    close(): void {
      server.closeAllConnections();
      server.close();
    },
  };
}

export interface CrowdOptions {
  readonly server: Awaited<ReturnType<typeof startReplayServer>>;
  /** Where the replicas are now; one that is gone is null. */
  readonly replicas: () => readonly (string | null)[];
  readonly clients: number;
  /** Until this says so, clients go on calling. */
  readonly over: () => boolean;
}

/** Runs the clients until it is over, and every call has its result or is lost. */
export async function runCrowd({ server, replicas, clients, over }: CrowdOptions): Promise<Counts> {
  const counts: Counts = {
    calls: 0,
    breaks: 0,
    resumes: 0,
    strips: 0,
    wrongStrips: 0,
    refusals: {},
    failures: 0,
    lost: [],
  };
  let turn = 0;
  const anywhere = (): string => {
    for (;;) {
      const all = replicas();
      turn += 1;
      const url = all[turn % all.length];
      if (url != null) return `${url}/mcp`;
    }
  };
  const client = async (): Promise<void> => {
    const session = await initialize(anywhere);
    for (let id = 1; !over(); id += 1) {
      counts.calls += 1;
      if (!(await call(session, id, anywhere, counts))) counts.lost.push(`${session} ${id}`);
    }
  };
  await Promise.all(Array.from({ length: clients }, client));
  counts.strips = server.wrong.strips;
  counts.wrongStrips = server.wrong.wrongStrips;
  return counts;
}

async function initialize(anywhere: () => string): Promise<string> {
  for (;;) {
    const { session } = await send(anywhere(), POST, initializeRequest(), () => true);
    if (session !== undefined) return session;
  }
}

interface Answer {
  /** 0 where there was none, or where it was cut. */
  readonly status: number;
  readonly body: string;
  readonly session: string | undefined;
}

const POST = { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' } as const;
const PATIENCE = 5_000;

/** Sends a request on a connection of its own and reads the answer, until `goesOn` says no to a piece of it. */
function send(
  url: string,
  headers: Readonly<Record<string, string>>,
  body: string | null,
  goesOn: (piece: string) => boolean,
): Promise<Answer> {
  return new Promise((resolve) => {
    const outgoing = http.request(url, { method: body === null ? 'GET' : 'POST', headers, agent: false });
    const broken = (): void => resolve({ status: 0, body: '', session: undefined });
    outgoing.setTimeout(PATIENCE, () => outgoing.destroy());
    outgoing.on('error', broken);
    outgoing.on('response', (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (piece: string) => {
        text += piece;
        if (!goesOn(piece)) outgoing.destroy();
      });
      response.on('error', broken);
      response.on('close', () => {
        const status = response.complete ? response.statusCode! : 0;
        resolve({ status, body: text, session: response.headers['mcp-session-id']?.toString() });
      });
    });
    outgoing.end(body ?? '');
  });
}

/** One call, from its POST to its result. Returns whether that came. */
async function call(session: string, id: number, anywhere: () => string, counts: Counts): Promise<boolean> {
  const seen = { cursor: null as string | null, hasResult: false };
  /** Reads events; after so many the connection is lost, between two pieces, as the network would have it. */
  const reader = (patience: number): ((piece: string) => boolean) => {
    let text = '';
    let left = patience;
    return (piece) => {
      const blocks = (text + piece).split('\n\n');
      text = blocks.pop()!;
      for (const one of blocks) {
        const [, cursor] = /^id: (\S+)$/m.exec(one) ?? [];
        if (cursor !== undefined) seen.cursor = cursor;
        seen.hasResult ||= one.includes(`"id":${id},"result"`);
        left -= 1;
      }
      return left > 0;
    };
  };
  const own = { 'Mcp-Session-Id': session };
  const first = await send(anywhere(), { ...POST, ...own }, request(id), reader(1 + (id % 5)));
  if (first.status === 0) counts.breaks += 1;
  // A POST that never got through is sent again by whoever wants it; what counts here is what was begun.
  if (seen.cursor === null) return true;
  for (let again = 0; again < MOST_RESUMES; again += 1) {
    if (seen.hasResult && again > 0) return true;
    counts.resumes += 1;
    const has = seen.hasResult ? 'yes' : 'no';
    const headers = {
      ...own,
      Accept: 'text/event-stream',
      'Last-Event-ID': seen.cursor,
      'X-Cursor': seen.cursor,
      'X-Has-Result': has,
    };
    const { status, body } = await send(anywhere(), headers, null, reader(again < 2 ? 2 : 100));
    if (seen.hasResult) continue;
    if (status === 0) counts.breaks += 1;
    if (status === 409) {
      const [, rule = '?'] = /"rule":"([\w-]+)"/.exec(body) ?? [];
      counts.refusals[rule] = (counts.refusals[rule] ?? 0) + 1;
    }
    if (status >= 500) counts.failures += 1;
    if (status !== 200) await pause(50);
  }
  return seen.hasResult;
}

const MOST_RESUMES = 40;
