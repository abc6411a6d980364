/** A session behind a guarded `fetch` whose network is a script: what most tests of the guard in process begin with. */
import assert from 'node:assert/strict';
import { type GuardedFetchOptions, guardedFetch, type ResumeReport } from '../../src/client/index.ts';
import { initializeRequest, initializeResult, type RpcId, request } from './messages.ts';
import { type Script, type ScriptedCall, scriptFetch } from './scripted-fetch.ts';
import { within } from './waiting.ts';

export const URL_OF = 'http://server.test/mcp';
export const SESSION = 's1';

/** Header fields beside the usual ones; undefined takes one of those away. */
export type Extra = Readonly<Record<string, string | undefined>>;

export interface GuardedSession {
  readonly script: Script;
  readonly reports: ResumeReport[];
  readonly fetch: (input: string | URL, init?: RequestInit) => Promise<Response>;
  /** Advances the clock by so many ms. Only the ledger uses it; timers are real. */
  pass(ms: number): void;
  /** `initialize`, answered with this session. */
  initialize(session?: string): Promise<void>;
  /** Sends a POST; resolves with the call and what comes of it. */
  post(id: RpcId | { body: string }, headers?: Extra): Promise<Pending>;
  /** Sends a GET, with a cursor where one is given. It need not reach the wire. */
  get(cursor?: string, headers?: Extra, signal?: AbortSignal): Promise<Response>;
  /** The same, and the call it became. */
  resume(cursor: string, headers?: Extra, signal?: AbortSignal): Promise<Pending>;
  /** A listening stream that is open. */
  listen(): Promise<{ readonly call: ScriptedCall; readonly body: Body }>;
}

export interface Pending {
  readonly call: ScriptedCall;
  readonly response: Promise<Response>;
}

export async function openSession(options: GuardedFetchOptions = {}): Promise<GuardedSession> {
  const script = scriptFetch();
  const reports: ResumeReport[] = [];
  let clock = 1_000;
  const fetch = guardedFetch(script.fetch, {
    now: () => clock,
    onresume: (report) => reports.push(report),
    ...options,
  });
  const common = { 'mcp-session-id': SESSION, 'mcp-protocol-version': '2025-11-25' };
  const get: GuardedSession['get'] = (cursor, headers = {}, signal) => {
    const fields = fieldsOf({ ...common, accept: 'text/event-stream', 'last-event-id': cursor, ...headers });
    const response = fetch(URL_OF, { method: 'GET', headers: fields, ...(signal && { signal }) });
    response.catch(() => {});
    return response;
  };
  const session: GuardedSession = {
    script,
    reports,
    fetch,
    pass(ms) {
      clock += ms;
    },
    async initialize(id = SESSION) {
      const headers = new Headers({ 'content-type': 'application/json' });
      const response = fetch(URL_OF, { method: 'POST', headers, body: initializeRequest() });
      const call = await script.next('initialize');
      call.answer(200, { 'content-type': 'application/json', 'mcp-session-id': id }, initializeResult());
      await (await response).text();
    },
    async post(id, headers = {}) {
      const body = typeof id === 'object' ? id.body : request(id);
      const fields = fieldsOf({ ...common, 'content-type': 'application/json', ...headers });
      const response = fetch(URL_OF, { method: 'POST', headers: fields, body });
      response.catch(() => {});
      return { call: await script.next('the POST'), response };
    },
    get,
    async resume(cursor, headers, signal) {
      const response = get(cursor, headers, signal);
      return { call: await script.next(`the resume after ${cursor}`), response };
    },
    async listen() {
      const response = get();
      const call = await script.next('the listening stream');
      call.respond();
      return { call, body: read(await response) };
    },
  };
  await session.initialize();
  return session;
}

function fieldsOf(extra: Extra): Headers {
  const headers = new Headers();
  for (const [name, value] of Object.entries(extra)) if (value !== undefined) headers.set(name, value);
  return headers;
}

/** Reads a response while it arrives. */
export class Body {
  readonly #reader: ReadableStreamDefaultReader<Uint8Array>;
  text = '';

  constructor(response: Response) {
    assert.ok(response.body !== null, 'there is a body');
    this.#reader = response.body.getReader() as ReadableStreamDefaultReader<Uint8Array>;
  }

  /** Reads until the text so far holds this. */
  async until(part: string): Promise<void> {
    while (!this.text.includes(part)) assert.ok(await this.next(), `the body ended without ${part}: ${this.text}`);
  }

  /** Reads one piece; false at the end. */
  async next(): Promise<boolean> {
    const { done, value } = await within('more of the body', this.#reader.read());
    if (value !== undefined) this.text += Buffer.from(value).toString();
    return !done;
  }

  /** Reads to the end and returns all of it. */
  async all(): Promise<string> {
    while (await this.next());
    return this.text;
  }

  cancel(): Promise<void> {
    return this.#reader.cancel();
  }
}

export const read = (response: Response): Body => new Body(response);

/** The JSON-RPC error in the event form of a refusal. */
export async function errorIn(response: Response) {
  assert.equal(response.status, 200);
  assert.equal(response.headers.get('content-type'), 'text/event-stream');
  const [, id, data] = /^event: message\nid: (\S+)\ndata: (.*)\n\n$/.exec(await response.text()) ?? [];
  assert.ok(id !== undefined && data !== undefined, 'it is one event');
  const message = JSON.parse(data) as { id: RpcId; error: { code: number; data: { rule: string; retry: string } } };
  assert.equal(message.error.code, -32010);
  return { eventId: id, id: message.id, ...message.error.data };
}

/** What a refusal with a status says. */
export async function statusIn(response: Response) {
  assert.equal(response.headers.get('content-type'), 'application/json');
  assert.equal(response.headers.get('cache-control'), 'no-store');
  const { error } = (await response.json()) as { error: { code: number; data: { rule: string } } };
  assert.equal(error.code, -32010);
  return { status: response.status, rule: error.data.rule };
}
