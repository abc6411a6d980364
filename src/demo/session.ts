/**
 * One session of the demo server: its streams, what it can replay, and how it answers a resume. It stores the last
 * events, as the specification allows, and replays what follows a cursor, also when the client has long had it. A
 * cursor that has fallen out of its memory gets what many servers in the field give it: `200`, no event, a clean end.
 */
import type { ServerResponse } from 'node:http';
import { type Id, isObject, type Request } from './messages.ts';
import { createRing, type Ring, type RingEvent, type Stream, wireForm } from './ring.ts';
import { TOOLS } from './tools.ts';

/** What the server observed in one session. */
export interface ServerCounts {
  /** GETs that carried a `Last-Event-ID`. */
  resumes: number;
  /** Of these, the ones whose stream was finished already. */
  resumesOfFinished: number;
  /** Results sent again although they had been sent before. */
  resultsAgain: number;
  /** Resumes answered with `200` and nothing. */
  silentEmpties: number;
  ordersPlaced: number;
}

export interface Session {
  readonly id: string;
  /** The negotiated protocol revision. */
  readonly revision: string;
  readonly counts: ServerCounts;
  readonly ring: Ring<ServerResponse>;
  readonly running: Map<Id, AbortController>;
  /** Event streams that are being written to. */
  readonly responses: Set<ServerResponse>;
  /** Who waits for which event to be forgotten. */
  readonly forgotten: Map<string, () => void>;
  streams: number;
}

/** @param memory events the session can replay, at least 1. */
export function createSession(id: string, revision: string, memory: number): Session {
  const forgotten = new Map<string, () => void>();
  return {
    id,
    revision,
    counts: { resumes: 0, resumesOfFinished: 0, resultsAgain: 0, silentEmpties: 0, ordersPlaced: 0 },
    ring: createRing(memory, (eventId) => {
      forgotten.get(eventId)?.();
      forgotten.delete(eventId);
    }),
    running: new Map(),
    responses: new Set(),
    forgotten,
    streams: 0,
  };
}

/** Stops what runs and ends every event stream. */
export function endSession(session: Session): void {
  for (const controller of session.running.values()) controller.abort();
  for (const res of session.responses) res.end();
}

function openEventStream(session: Session, res: ServerResponse): void {
  const fields = { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store', 'Mcp-Session-Id': session.id };
  res.writeHead(200, fields).flushHeaders();
  session.responses.add(res);
  res.on('close', () => session.responses.delete(res));
}

function transmit(session: Session, event: RingEvent<ServerResponse>, res: ServerResponse): void {
  if (event.terminal && event.sent > 0) session.counts.resultsAgain += 1;
  res.write(wireForm(event), (error) => {
    if (!error) event.sent += 1;
  });
}

/** Remembers an event and sends it to whoever reads the stream. */
function emit(session: Session, stream: Stream<ServerResponse>, data: string, terminal = false): void {
  const event = session.ring.append(stream, data, terminal);
  if (stream.sink !== undefined) transmit(session, event, stream.sink);
  if (terminal) finishOne(stream);
}

function finishOne(stream: Stream<ServerResponse>): void {
  stream.open -= 1;
  if (stream.open === 0) stream.sink?.end();
}

/** From here on `res` reads the stream; an earlier reader is let go. */
function attach(stream: Stream<ServerResponse>, res: ServerResponse): void {
  stream.sink?.end();
  stream.sink = res;
  res.on('close', () => {
    if (stream.sink === res) stream.sink = undefined;
  });
}

/** Opens a stream for the requests of one POST, primes it, and answers them as they get done. */
export async function serve(session: Session, requests: readonly Request[], res: ServerResponse): Promise<void> {
  session.streams += 1;
  const stream: Stream<ServerResponse> = { name: `s${session.streams}`, open: requests.length, sink: undefined };
  openEventStream(session, res);
  attach(stream, res);
  // The priming event: an ID to come back with before there is anything else (MCP 2025-11-25, sending messages).
  emit(session, stream, '');
  await Promise.all(requests.map((request) => answer(session, stream, request)));
}

async function answer(
  session: Session,
  stream: Stream<ServerResponse>,
  { id, method, params }: Request,
): Promise<void> {
  const respond = (body: { result: unknown } | { error: { code: number; message: string } }) =>
    emit(session, stream, JSON.stringify({ jsonrpc: '2.0', id, ...body }), true);
  if (method === 'ping') return respond({ result: {} });
  if (method === 'tools/list') return respond({ result: { tools: TOOLS.map((tool) => tool.listing) } });
  if (method !== 'tools/call') return respond({ error: { code: -32601, message: `Method not found: ${method}` } });
  const tool = TOOLS.find(({ listing }) => listing.name === params['name']);
  if (tool === undefined) return respond({ error: { code: -32602, message: `Unknown tool: ${params['name']}` } });
  const progressToken = isObject(params['_meta']) ? params['_meta']['progressToken'] : undefined;
  const controller = new AbortController();
  session.running.set(id, controller);
  try {
    const result = await tool.run(isObject(params['arguments']) ? params['arguments'] : {}, {
      signal: controller.signal,
      placeOrder() {
        session.counts.ordersPlaced += 1;
        return session.counts.ordersPlaced;
      },
      progress(progress, total) {
        const note = { method: 'notifications/progress', params: { progressToken, progress, total } };
        if (progressToken !== undefined) emit(session, stream, JSON.stringify({ jsonrpc: '2.0', ...note }));
      },
    });
    respond({ result });
  } catch (error) {
    // A cancelled request is owed no response, and its stream has nothing more to say.
    if (controller.signal.aborted) finishOne(stream);
    else respond({ error: { code: -32603, message: String(error) } });
  } finally {
    if (session.running.get(id) === controller) session.running.delete(id);
  }
}

/** A GET without a cursor. This server never speaks of its own accord, so the stream stays quiet until a side ends it. */
export function listen(session: Session, res: ServerResponse): void {
  openEventStream(session, res);
}

/** A GET with a cursor. Returns, for people, what kind of cursor it was and what was done about it. */
export function resume(session: Session, cursor: string, res: ServerResponse): string {
  openEventStream(session, res);
  session.counts.resumes += 1;
  const found = session.ring.after(cursor);
  const events = found?.events ?? [];
  const again = events.some((event) => event.terminal && event.sent > 0);
  for (const event of events) transmit(session, event, res);
  if (found !== undefined && found.stream.open > 0) {
    attach(found.stream, res);
    return 'a call that is still running: the missed events sent, the rest will follow';
  }
  if (found !== undefined) session.counts.resumesOfFinished += 1;
  if (events.length === 0) session.counts.silentEmpties += 1;
  res.end();
  // The fault on show: from outside, a forgotten cursor and the end of a stream look the same.
  if (found === undefined) return 'a cursor it no longer has: answered 200 and nothing';
  if (events.length === 0) return 'a finished call, nothing left to send: answered 200 and nothing';
  return `a finished call: its result sent${again ? ' once more' : ''}`;
}
