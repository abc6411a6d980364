/**
 * The server side: accepts connections, refuses what must not come in (behaviour.md section 8), finds the route, and
 * starts an exchange. It knows how many are open, so it knows when it has drained.
 */
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Route } from '../config.ts';
import { allValues } from '../core/fields.ts';
import { ERRORS, type ErrorCode, errorBody } from '../errors.ts';
import { type AccessLists, hostAllowed, originAllowed } from './access.ts';
import { watchConnection } from './connection.ts';
import { Exchange } from './exchange.ts';
import type { RouteRoom } from './room.ts';
import { createUpgrader, declineUpgrade, hasFraming, isWebSocketUpgrade } from './upgrade.ts';

export interface ListenerOptions {
  /** In the order to try them. */
  readonly rooms: readonly RouteRoom[];
  readonly access: AccessLists;
  /** PEM texts. */
  readonly tls: { readonly cert: string; readonly key: string } | null;
  readonly upstreamTls: { readonly ca?: string; readonly cert?: string; readonly key?: string };
  /** Bytes of a request's head. */
  readonly fieldBytes: number;
  /** In ms, from the first byte of a head to its last; 0 for no limit. */
  readonly headTimeout: number;
  readonly connections: number;
  readonly concurrentStreams: number;
  readonly now: () => number;
  /** A bound was hit, or a request never became an exchange. */
  readonly refused: (code: ErrorCode) => void;
}

/** Longer than what clients and load balancers use, so that they close first (a race that costs a request otherwise). */
const KEEP_ALIVE = 75_000;
const TCP_KEEP_ALIVE = 15_000;

export class Listener {
  readonly #server: Server;
  #options: ListenerOptions;
  readonly #upgrade = createUpgrader();
  readonly #upgraded = new Set<Duplex>();
  #open = 0;
  #draining = false;
  #idle: (() => void) | null = null;

  constructor(options: ListenerOptions) {
    this.#options = options;
    const settings = {
      maxHeaderSize: options.fieldBytes,
      headersTimeout: options.headTimeout,
      requestTimeout: 0,
      connectionsCheckingInterval: Math.max(100, Math.min(5_000, options.headTimeout / 4 || 5_000)),
      keepAliveTimeout: KEEP_ALIVE,
      keepAlive: true,
      keepAliveInitialDelay: TCP_KEEP_ALIVE,
      noDelay: true,
    };
    const server: Server =
      options.tls === null ? createServer(settings) : createTlsServer({ ...settings, ...options.tls });
    this.#server = server;
    server.maxConnections = options.connections;
    const serve: RequestListener = (request, response) => this.#serve(request, response);
    server.on('request', serve);
    server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      response.writeContinue();
      this.#serve(request, response);
    });
    server.on('checkExpectation', (_: IncomingMessage, response: ServerResponse) => {
      response.writeHead(417, { 'Content-Length': 0 }).end();
    });
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) =>
      this.#upgradeRequest(request, socket, head),
    );
    server.on('connect', (_: IncomingMessage, socket: Duplex) =>
      socket.end(rawError('bad-request', 400, 'Bad Request')),
    );
    server.on('clientError', answerClientError);
    server.on('drop', () => options.refused('overloaded'));
    server.on(options.tls === null ? 'connection' : 'secureConnection', (socket: Socket) => {
      socket.on('error', () => {});
    });
  }

  /** @throws the error of `listen`, such as EADDRINUSE. */
  async bind(host: string, port: number): Promise<{ host: string; port: number }> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen({ host, port, backlog: 4_096 }, () => {
        this.#server.off('error', reject);
        resolve();
      });
    });
    const { address, port: bound } = this.#server.address() as AddressInfo;
    return { host: address, port: bound };
  }

  /** Exchanges that are open. */
  get open(): number {
    return this.#open;
  }

  /** Puts new options in force for requests that begin from now on. */
  reload(options: ListenerOptions): void {
    this.#options = options;
    if (options.tls !== null && 'setSecureContext' in this.#server) {
      (this.#server as TlsServer).setSecureContext(options.tls);
    }
  }

  /** Takes no more connections, answers new requests with 503, and resolves when nothing is open or `timeout` ms are over. */
  async drain(timeout: number): Promise<void> {
    this.#draining = true;
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeIdleConnections();
    if (this.#open + this.#upgraded.size > 0 && timeout > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, timeout);
        this.#idle = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    for (const socket of this.#upgraded) socket.destroy();
    this.#server.closeAllConnections();
    await closed;
  }

  #serve(request: IncomingMessage, response: ServerResponse): void {
    const connection = watchConnection(request.socket, this.#options.now);
    connection.facts.requestedAt = this.#options.now();
    connection.response = response;
    const { target, authority } = readTarget(request);
    if (request.method === 'OPTIONS' && request.url === '*') {
      response.writeHead(204, { Allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' }).end();
      return;
    }
    const room = this.#admit(request, authority, target);
    if (typeof room === 'string') {
      this.#options.refused(room);
      answer(response, room);
      return;
    }
    this.#open += 1;
    response.on('close', () => {
      this.#open -= 1;
      if (this.#open + this.#upgraded.size === 0) this.#idle?.();
    });
    const scheme = this.#options.tls === null ? 'http' : 'https';
    const guarded = isGuarded(room.route, target);
    new Exchange(room, { request, response, connection, scheme, authority, target, guarded }).start();
  }

  /** The room for a request, or why it must not come in. */
  #admit(request: IncomingMessage, authority: string | null, target: string): RouteRoom | ErrorCode {
    const { access, rooms, concurrentStreams } = this.#options;
    if (allValues(request.rawHeaders, 'host').length > 1) return 'bad-request';
    if (!hostAllowed(access, authority)) return 'host-not-allowed';
    if (!originAllowed(access, allValues(request.rawHeaders, 'origin'))) return 'origin-not-allowed';
    if (this.#draining) return 'draining';
    const room = rooms.find(({ route }) => covers(route, authority, target));
    if (room === undefined) return 'no-route';
    return this.#open >= concurrentStreams ? 'overloaded' : room;
  }

  #upgradeRequest(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    if (!isWebSocketUpgrade(request)) {
      declineUpgrade(this.#server, request, socket, head);
      return;
    }
    const { target, authority } = readTarget(request);
    const room = hasFraming(request) ? 'bad-request' : this.#admit(request, authority, target);
    if (typeof room === 'string') {
      this.#options.refused(room);
      socket.on('error', () => {});
      socket.end(rawError(room, ERRORS[room].status, 'Refused'));
      return;
    }
    this.#upgraded.add(socket);
    socket.on('close', () => {
      this.#upgraded.delete(socket);
      if (this.#open + this.#upgraded.size === 0) this.#idle?.();
    });
    const { origin } = room.upstream;
    this.#upgrade(request, socket, head, {
      origin,
      tls: this.#options.upstreamTls,
      preserveHost: room.route.preserveHost,
    });
  }
}

/** Path and query as sent, and the authority: of an absolute target (RFC 9112 section 3.2.2), else of `Host`. */
function readTarget(request: IncomingMessage): { target: string; authority: string | null } {
  const url = request.url ?? '/';
  const host = request.headers.host ?? null;
  const absolute = /^https?:\/\/([^/?#]*)(.*)$/i.exec(url);
  if (absolute === null) return { target: url, authority: host };
  const rest = absolute[2]!;
  return { target: rest.startsWith('/') ? rest : `/${rest}`, authority: absolute[1]! };
}

function pathOf(target: string): string {
  const query = target.indexOf('?');
  return query === -1 ? target : target.slice(0, query);
}

function isGuarded(route: Route, target: string): boolean {
  if (route.guarded === null) return true;
  const path = pathOf(target);
  return path === route.guarded || path === `${route.guarded}/`;
}

function covers(route: Route, authority: string | null, target: string): boolean {
  if (route.host !== null && route.host !== hostOf(authority)) return false;
  const path = pathOf(target);
  const prefix = route.prefix.endsWith('/') ? route.prefix : `${route.prefix}/`;
  return path === route.prefix || path.startsWith(prefix);
}

function hostOf(authority: string | null): string {
  return (authority ?? '').toLowerCase().replace(/:\d*$/, '');
}

function answer(response: ServerResponse, code: ErrorCode): void {
  const body = errorBody(code);
  const closes = code === 'draining' || code === 'bad-request';
  response.writeHead(ERRORS[code].status, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(body),
    ...(closes ? { Connection: 'close' } : {}),
  });
  response.end(body);
}

function rawError(code: ErrorCode, status: number, reason: string): string {
  const body = errorBody(code);
  return (
    `HTTP/1.1 ${status} ${reason}\r\nContent-Type: application/json\r\n` +
    `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`
  );
}

const PARSER_ERRORS: Readonly<Record<string, [ErrorCode, number, string]>> = {
  HPE_HEADER_OVERFLOW: ['fields-too-large', 431, 'Request Header Fields Too Large'],
  ERR_HTTP_REQUEST_TIMEOUT: ['bad-request', 408, 'Request Timeout'],
};

/** What Node's parser refused: an answer if none has begun on this connection, then the end of it. */
function answerClientError(error: NodeJS.ErrnoException, socket: Duplex): void {
  const response = watchConnection(socket as Socket, () => 0).response;
  const begun = response?.headersSent === true && !response.writableFinished;
  if (!socket.writable || begun || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  const [code, status, reason] = PARSER_ERRORS[error.code ?? ''] ?? (['bad-request', 400, 'Bad Request'] as const);
  socket.end(rawError(code, status, reason));
}
