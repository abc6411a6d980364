/**
 * `Upgrade` on HTTP/1.1. WebSocket goes through http-proxy-3. Any other protocol is declined the way RFC 9110 section
 * 7.8 has it: the request is answered as if the field were not there. (Java's HTTP client offers `h2c` with its first
 * request on every connection.) Node hands over the bare socket as soon as somebody listens for upgrades, so such a
 * request is put back in front of its connection without the field, and parsed again.
 */
import { type ClientRequest, type IncomingMessage, STATUS_CODES } from 'node:http';
import { createRequire } from 'node:module';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { ProxyServer } from 'http-proxy-3';
import { type Fields, onlyValue, pairs } from '../core/fields.ts';
import { ERRORS, type ErrorCode, errorBody, GuardError } from '../errors.ts';
import { nextExchange } from './exchange.ts';
import { endConnection } from './linger.ts';
import type { RouteRoom } from './room.ts';

export interface UpgradeTarget {
  /** Scheme, host and port. */
  readonly origin: string;
  /** PEM texts. */
  readonly tls: { readonly ca?: string; readonly cert?: string; readonly key?: string };
  /** In ms; 0 for none. */
  readonly connectTimeout: number;
  /** Path and query, as sent. */
  readonly path: string;
  readonly fields: Fields;
  /** What upstream's fields become on their way to the client, where it answers with something else than an upgrade. */
  readonly towardClient: (fields: Fields) => Fields;
  readonly news: UpgradeNews;
}

/** What becomes of an upgrade, as it becomes known. */
export interface UpgradeNews {
  /** The status that upstream answered with: 101, or what it said instead. */
  answered(status: number): void;
  failed(code: ErrorCode): void;
}

/** WebSocket and nothing else, on a request that can have no body (RFC 6455 section 4.1). */
export function isWebSocketUpgrade(request: IncomingMessage): boolean {
  return request.headers.upgrade?.trim().toLowerCase() === 'websocket' && request.method === 'GET';
}

/** A body in front of the new protocol would be read by one side as a request and by the other as data. */
export function hasFraming(request: IncomingMessage): boolean {
  return request.headers['content-length'] !== undefined || request.headers['transfer-encoding'] !== undefined;
}

/** Takes a client's connection, what came on it after the request, and where it goes. */
export type Upgrader = (socket: Duplex, head: Buffer, target: UpgradeTarget) => void;

const require = createRequire(import.meta.url);

/** Loaded with the first upgrade, since most guards never see one. */
function createProxy(): ProxyServer {
  const { createProxyServer } = require('http-proxy-3') as typeof import('http-proxy-3');
  const proxy = createProxyServer({ ws: true });
  // It repeats every error of a client's socket here, and an error nobody listens for ends the process.
  proxy.on('error', () => {});
  return proxy;
}

export function createUpgrader(): Upgrader {
  let proxy: ProxyServer | null = null;
  return (socket, head, target) => {
    proxy ??= createProxy();
    const url = new URL(target.origin);
    const host = url.hostname.replace(/^\[|\]$/g, '');
    const port = url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port);
    const options = {
      target: { host, port, protocol: url.protocol, ...target.tls },
      // The name to ask for is upstream's own, whatever `Host` says; none for an address.
      ssl: { servername: /^[\d.]+$|:/.test(host) ? '' : host },
      headers: headersOf(target.fields),
    };
    let answered = false;
    // Errors of the client's connection come to `failed` as well.
    let left = false;
    for (const sign of ['end', 'error', 'close']) socket.once(sign, () => (left = true));
    const { news } = target;
    const broke = (): void => {
      if (!left) news.failed('upstream-reset');
      breakOff(socket);
    };
    const failed = (error: Error): void => {
      if (answered || !socket.writable) {
        broke();
        return;
      }
      const code = error instanceof GuardError ? error.code : 'upstream-refused';
      news.failed(code);
      socket.end(rawAnswer(code));
    };
    proxy.once('proxyReqWs', (request) => {
      request.path = target.path;
      limitConnecting(request, target.connectTimeout);
      const forget = whenClientLeaves(socket, () => request.destroy());
      request.once('upgrade', (_, upstream) => {
        answered = true;
        news.answered(101);
        forget();
        socket.once('close', () => upstream.destroySoon());
        upstream.once('close', () => (socket as Socket).destroySoon());
      });
      // Not http-proxy-3's way, which knows neither a slow client nor an answer that breaks off.
      process.nextTick(() => {
        request.removeAllListeners('response');
        request.once('response', (answer) => {
          answered = true;
          news.answered(answer.statusCode ?? 0);
          forget();
          socket.once('end', () => request.destroy());
          socket.once('close', () => request.destroy());
          // Whatever it sends now, it is not read as a request.
          socket.resume();
          passAnswer(answer, socket, target, broke);
        });
      });
    });
    // All that http-proxy-3 may know of the request; what else it would read from it, it would change.
    const bare = {
      method: 'GET',
      url: '/',
      httpVersion: '1.1',
      httpVersionMajor: 1,
      headers: { upgrade: 'websocket' },
    };
    proxy.ws(bare as unknown as IncomingMessage, socket as Socket, head, options, failed);
  };
}

/** Reports an upgrade when its connection closes, like any other exchange. `path`: without query. */
export function reportUpgrade(
  { route, observer, now }: RouteRoom,
  request: IncomingMessage,
  socket: Duplex,
  path: string,
): UpgradeNews {
  const startedAt = now();
  let status = 0;
  let headAfter: number | null = null;
  let error: ErrorCode | null = null;
  socket.once('close', () => {
    observer.exchange({
      id: nextExchange(),
      method: 'GET',
      path,
      route: route.name,
      guarded: false,
      status,
      rule: null,
      verdict: null,
      outcome: null,
      proof: null,
      refusal: null,
      observed: route.mode === 'observe',
      session: () => null,
      cursor: () => null,
      traceparent: () => onlyValue(request.rawHeaders, 'traceparent'),
      error,
      end: status === 0 ? 'client-left' : error === 'upstream-reset' ? 'destroyed' : 'ended',
      stream: null,
      events: 0,
      answers: 0,
      headAfter,
      firstByteAfter: null,
      duration: now() - startedAt,
    });
  });
  return {
    answered(code) {
      status = code;
      headAfter = now() - startedAt;
    },
    failed(code) {
      error = code;
      if (status === 0) status = ERRORS[code].status;
    },
  };
}

function headersOf(fields: Fields): Record<string, string | string[]> {
  const grouped = new Map<string, [string, string[]]>();
  for (const [name, value] of pairs(fields)) {
    const known = grouped.get(name.toLowerCase());
    if (known === undefined) grouped.set(name.toLowerCase(), [name, [value]]);
    else known[1].push(value);
  }
  // In the spelling that http-proxy-3 looks for.
  return { ...Object.fromEntries(grouped.values()), connection: 'Upgrade', upgrade: 'websocket' };
}

function limitConnecting(request: ClientRequest, timeout: number): void {
  if (timeout === 0) return;
  const timer = setTimeout(() => request.destroy(new GuardError('upstream-timeout')), timeout);
  const clear = (): void => clearTimeout(timer);
  request.once('socket', (socket) => {
    socket.once('encrypted' in socket ? 'secureConnect' : 'connect', clear);
    socket.once('close', clear);
  });
  request.once('close', clear);
}

/** Nobody reads from the client until upstream has answered, so its end has to be looked for. */
function whenClientLeaves(socket: Duplex, left: () => void): () => void {
  const look = (): void => void socket.read(0);
  socket.on('readable', look);
  socket.once('end', left);
  socket.once('close', left);
  return () => {
    socket.off('readable', look);
    socket.off('end', left);
    socket.off('close', left);
  };
}

/** Upstream does not upgrade: its answer, then the end of the connection, which is the end of the body too. */
function passAnswer(answer: IncomingMessage, socket: Duplex, { towardClient }: UpgradeTarget, broke: () => void): void {
  let head = `HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}\r\n`;
  for (const [name, value] of pairs(towardClient(answer.rawHeaders))) head += `${name}: ${value}\r\n`;
  socket.write(`${head}Connection: close\r\n\r\n`, 'latin1');
  answer.on('error', () => {});
  answer.once('close', () => {
    if (answer.complete) endConnection(socket, '');
    else broke();
  });
  answer.pipe(socket, { end: false });
}

/** With a reset: an orderly end may be the end of a body. */
function breakOff(socket: Duplex): void {
  if ('resetAndDestroy' in socket) (socket as Socket).resetAndDestroy();
  else socket.destroy();
}

/** An answer of ours, whole, for a connection that nobody speaks HTTP on any more. */
export function rawAnswer(code: ErrorCode, status: number = ERRORS[code].status): string {
  const body = errorBody(code);
  return (
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nContent-Type: application/json\r\n` +
    `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`
  );
}

/**
 * Serves the request again without its `Upgrade`. Nothing else is touched: a length that `Connection` names, for one, is
 * still where the body ends. `accept`: as if the connection had just come in.
 */
export function declineUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer, accept: () => void): void {
  let text = `${request.method} ${request.url} HTTP/${request.httpVersion}\r\n`;
  for (const [name, value] of pairs(request.rawHeaders)) {
    const lower = name.toLowerCase();
    if (lower === 'upgrade' || lower === 'http2-settings') continue;
    const kept = lower === 'connection' ? value.replace(/(^|,)\s*(?:upgrade|http2-settings)\s*(?=,|$)/gi, '') : value;
    text += `${name}: ${kept}\r\n`;
  }
  socket.unshift(Buffer.concat([Buffer.from(`${text}\r\n`, 'latin1'), head]));
  accept();
}
