/** A call of `fetch`, taken apart: what of it the rules look at, and how to make it. */
import type { Fields } from '../core/fields.ts';
import { MALFORMED, MessageScanner, type Messages } from '../core/jsonrpc.ts';

/** `fetch` as the official SDK's transports call it. */
export type FetchLike = (url: string | URL, init?: RequestInit) => Promise<Response>;

export interface Call {
  readonly method: string;
  readonly url: URL;
  readonly fields: Fields;
  readonly signal: AbortSignal | null;
  /** What the body holds. */
  readonly posted: Messages | null;
  /** Makes the call, without `Last-Event-ID` where it is stripped, and under another signal where one is given. */
  send(how: { readonly strip: boolean; readonly signal: AbortSignal | null }): Promise<Response>;
}

/** Null where the call has nothing to do with a session: another scheme, another method. */
export async function readCall(fetch: FetchLike, input: string | URL, init: RequestInit = {}): Promise<Call | null> {
  const request = input instanceof Request ? input : null;
  const method = (init.method ?? request?.method ?? 'GET').toUpperCase();
  const url = urlOf(request?.url ?? input);
  if (url === null || !/^https?:$/.test(url.protocol) || !['GET', 'POST', 'DELETE'].includes(method)) return null;
  const headers = init.headers ?? request?.headers;
  const fields = fieldsOf(headers);
  return {
    method,
    url,
    fields,
    signal: init.signal ?? request?.signal ?? null,
    posted: method === 'POST' ? await readBody(init.body ?? null, init.body == null ? request : null) : null,
    async send({ strip, signal }) {
      if (!strip && signal === null) return fetch(input, init);
      const changed: RequestInit = { ...init };
      if (signal !== null) changed.signal = signal;
      if (strip) {
        changed.headers = new Headers(headers);
        changed.headers.delete('last-event-id');
      }
      return fetch(input, changed);
    },
  };
}

/** Relative URLs have a meaning in browsers only. */
function urlOf(input: string | URL): URL | null {
  const base = (globalThis as { readonly location?: { readonly href?: string } }).location?.href;
  return URL.canParse(String(input), base) ? new URL(input, base) : null;
}

/** In the order given, repeated ones included where that can be told. */
export function fieldsOf(headers: RequestInit['headers']): string[] {
  if (headers === undefined) return [];
  if (headers instanceof Headers) return [...headers].flat();
  if (Symbol.iterator in headers) return [...headers].flatMap(([name, value]) => [name!, value!]);
  return Object.entries(headers).flatMap(([name, value]) => [name, String(value)]);
}

/** A body that can only be read once is the server's; then its requests are not known. */
async function readBody(body: unknown, request: Request | null): Promise<Messages> {
  if (typeof body === 'string') return scan(new TextEncoder().encode(body));
  if (body instanceof ArrayBuffer) return scan(new Uint8Array(body));
  if (ArrayBuffer.isView(body)) return scan(new Uint8Array(body.buffer, body.byteOffset, body.byteLength));
  if (body !== null || request === null || request.bodyUsed) return MALFORMED;
  return scan(new Uint8Array(await request.clone().arrayBuffer()));
}

function scan(bytes: Uint8Array): Messages {
  const scanner = new MessageScanner('requests');
  scanner.push(bytes, 0, bytes.length);
  return scanner.end();
}

/** The response's own fields, and what a copy of it cannot say by itself. */
export function copyOf(response: Response, body: ReadableStream<Uint8Array>, withoutLength: boolean): Response {
  const headers = new Headers(response.headers);
  if (withoutLength) headers.delete('content-length');
  const { status, statusText, url, redirected } = response;
  const copy = new Response(body, { status, statusText, headers });
  return Object.defineProperties(copy, { url: { value: url }, redirected: { value: redirected } });
}
