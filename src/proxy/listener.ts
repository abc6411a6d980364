/**
 * The server side: accepts connections, refuses what must not come in (behaviour.md section 8), finds the route, and
 * starts an exchange. It knows how many are open, so it knows when it has drained.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Route } from '../config.ts';
import { allValues, towardClient, towardUpstream } from '../core/fields.ts';
import { ERRORS, type ErrorCode, errorBody } from '../errors.ts';
import { type AccessLists, hostAllowed, originAllowed } from './access.ts';
import { type ClientConnection, watchConnection } from './connection.ts';
import { Exchange } from './exchange.ts';
import { endConnection, lingerAfter } from './linger.ts';
import type { RouteRoom } from './room.ts';
import { Roster } from './roster.ts';
import { covers, isGuarded, pathOf, readTarget } from './target.ts';
import { createUpgrader, declineUpgrade, hasFraming, isWebSocketUpgrade, rawAnswer, reportUpgrade } from './upgrade.ts';

export interface ListenerOptions {
  /** In the order to try them. */
  readonly rooms: readonly RouteRoom[];
  readonly access: AccessLists;
  /** PEM texts. */
  readonly tls: { readonly cert: string; readonly key: string } | null;
  readonly upstreamTls: { readonly ca?: string; readonly cert?: string; readonly key?: string };
  /** Toward upstream, in ms; 0 for no limit. */
  readonly connectTimeout: number;
  /** Bytes of a request's head. */
  readonly fieldBytes: number;
  /** In ms, from the first byte of a head to its last; 0 for no limit. */
  readonly headTimeout: number;
  readonly connections: number;
  readonly concurrentStreams: number;
  readonly now: () => number;
  /** A bound was hit, or a request never became an exchange. */
  readonly refused: (code: ErrorCode, request?: IncomingMessage) => void;
  /** MCP passes on a path that is not guarded. */
  readonly unguarded: (route: Route, path: string) => void;
}

/** Chains of guards are legitimate; longer ones than this go in a circle. */
const MOST_TIMES = 8;

/** Longer than what clients and load balancers use, so that they close first (a race that costs a request otherwise). */
const KEEP_ALIVE = 75_000;
const TCP_KEEP_ALIVE = 15_000;

export class Listener {
  readonly #server: Server;
  readonly #scheme: 'http' | 'https';
  #options: ListenerOptions;
  readonly #upgrade = createUpgrader();
  readonly #upgraded = new Set<Duplex>();
  /** Refused ones, whose clients have not closed their side yet. */
  readonly #refused = new Set<Duplex>();
  readonly #exchanges = new Roster<Exchange>();
  #allowedHost: string | null = null;
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
    const { tls } = options;
    const server: Server =
      tls === null
        ? createServer(settings)
        : createTlsServer({
            ...settings,
            ...tls,
            ...(options.headTimeout > 0 && { handshakeTimeout: options.headTimeout }),
          });
    this.#server = server;
    this.#scheme = tls === null ? 'http' : 'https';
    server.maxConnections = options.connections;
    // Fields are bounded by their bytes; by default Node leaves out those after the thousandth.
    server.maxHeadersCount = 0;
    server.on('request', (request: IncomingMessage, response: ServerResponse) => this.#serve(request, response, false));
    server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) =>
      this.#serve(request, response, true),
    );
    server.on('checkExpectation', (_: IncomingMessage, response: ServerResponse) => {
      lingerAfter(response);
      response.writeHead(417, { 'Content-Length': 0, Connection: 'close' }).end();
    });
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) =>
      this.#upgradeRequest(request, socket, head),
    );
    server.on('connect', (_: IncomingMessage, socket: Duplex) => this.#refuseRaw(socket, 'bad-request'));
    server.on('clientError', answerClientError);
    server.on('drop', () => options.refused('overloaded'));
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

  /** Exchanges that are open, upgraded connections among them. */
  get open(): number {
    return this.#exchanges.size + this.#upgraded.size;
  }

  /** Puts new options in force for requests that begin from now on. */
  reload(options: ListenerOptions): void {
    if (options.tls !== null && 'setSecureContext' in this.#server) {
      (this.#server as TlsServer).setSecureContext(options.tls);
    }
    this.#options = options;
    this.#allowedHost = null;
  }

  /**
   * Takes no more connections, answers new requests with 503, and resolves when nothing is open or `timeout` ms are over.
   *
   * @returns how many exchanges were still open, and were cut.
   */
  async drain(timeout: number): Promise<number> {
    this.#draining = true;
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeIdleConnections();
    if (this.open > 0 && timeout > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, timeout);
        this.#idle = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    const cut = this.open;
    for (const exchange of this.#exchanges.members()) exchange.cut();
    for (const socket of [...this.#upgraded, ...this.#refused]) socket.destroy();
    this.#server.closeAllConnections();
    await closed;
    return cut;
  }

  /** `waits`: the client sends the body only when it is told to go on (RFC 9110 section 10.1.1). */
  #serve(request: IncomingMessage, response: ServerResponse, waits: boolean): void {
    const connection = watchConnection(request.socket, this.#options.now);
    connection.facts.requestedAt = this.#options.now();
    connection.response = response;
    const { target, authority } = readTarget(request);
    const room = this.#admit(request, authority, target);
    if (typeof room === 'string') lingerAfter(response);
    if (room === 'itself') {
      response.writeHead(204, { Allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' }).end();
      return;
    }
    if (typeof room === 'string') {
      this.#options.refused(room, request);
      answer(response, room, waits);
      return;
    }
    const guarded = isGuarded(room.route, target);
    if (!guarded && isMcp(request)) this.#options.unguarded(room.route, pathOf(target));
    if (waits && isWelcome(request, room)) response.writeContinue();
    const exchange = new Exchange(room, {
      request,
      response,
      connection,
      scheme: this.#scheme,
      authority,
      target,
      guarded,
      listener: this,
    });
    this.#exchanges.add(exchange);
    connection.exchanges = [...connection.exchanges, exchange];
    exchange.start();
  }

  /** An exchange is over. */
  exchangeClosed(exchange: Exchange, connection: ClientConnection): void {
    this.#exchanges.remove(exchange);
    connection.exchanges = connection.exchanges.filter((other) => other !== exchange);
    this.#closed();
  }

  #closed(): void {
    if (this.open === 0) this.#idle?.();
  }

  /** The room for a request, or why it must not come in; `itself`: the request is about the server as a whole. */
  #admit(request: IncomingMessage, authority: string | null, target: string): RouteRoom | ErrorCode | 'itself' {
    const { access, rooms, concurrentStreams } = this.#options;
    if (isAmbiguous(request)) return 'bad-request';
    const { host = null } = request.headers;
    if (!this.#hostAllowed(authority) || !this.#hostAllowed(host)) return 'host-not-allowed';
    if (request.headers.origin !== undefined && !originAllowed(access, allValues(request.rawHeaders, 'origin'))) {
      return 'origin-not-allowed';
    }
    if (timesThrough(request) >= MOST_TIMES) return 'loop-detected';
    if (this.#draining) return 'draining';
    if (target === '*' && request.method === 'OPTIONS') return 'itself';
    if (!target.startsWith('/')) return 'bad-request';
    const room = rooms.find(({ route }) => covers(route, authority, target));
    if (room === undefined) return 'no-route';
    return this.open >= concurrentStreams ? 'overloaded' : room;
  }

  /** Clients name the same host again and again. */
  #hostAllowed(authority: string | null): boolean {
    if (authority === this.#allowedHost) return true;
    const allowed = hostAllowed(this.#options.access, authority);
    if (allowed) this.#allowedHost = authority;
    return allowed;
  }

  #upgradeRequest(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    const { response, address } = watchConnection(socket as Socket, this.#options.now);
    if (response !== null && !response.writableFinished) {
      // Not waiting for an answer before changing the protocol mixes up the two.
      socket.destroy();
      return;
    }
    if (!isWebSocketUpgrade(request)) {
      const event = this.#scheme === 'http' ? 'connection' : 'secureConnection';
      declineUpgrade(request, socket, head, () => this.#server.emit(event, socket));
      return;
    }
    const { target, authority } = readTarget(request);
    const room = hasFraming(request) ? 'bad-request' : this.#admit(request, authority, target);
    if (typeof room === 'string') {
      this.#refuseRaw(socket, room === 'itself' ? 'bad-request' : room);
      return;
    }
    this.#upgraded.add(socket);
    socket.on('close', () => {
      this.#upgraded.delete(socket);
      this.#closed();
    });
    const { upstream, route } = room;
    const { connectTimeout, upstreamTls } = this.#options;
    this.#upgrade(socket, head, {
      origin: upstream.origin,
      tls: upstreamTls,
      connectTimeout,
      path: target,
      news: reportUpgrade(room, request, socket, pathOf(target)),
      fields: towardUpstream(request.rawHeaders, {
        authority: upstream.authority,
        preserveHost: route.preserveHost,
        clientAuthority: authority,
        clientAddress: address,
        scheme: this.#scheme,
        httpVersion: request.httpVersion,
        strip: false,
      }),
      towardClient: (fields) =>
        towardClient(fields, {
          upstreamOrigin: upstream.origin,
          ourOrigin: authority === null ? null : `${this.#scheme}://${authority}`,
          resized: false,
        }),
    });
  }

  #refuseRaw(socket: Duplex, code: ErrorCode): void {
    this.#options.refused(code);
    this.#refused.add(socket);
    socket.once('close', () => this.#refused.delete(socket));
    socket.on('error', () => {});
    endConnection(socket, rawAnswer(code));
  }
}

/**
 * What other programs read in another way than we do (RFC 9112 section 11.2). Node's parser refuses most of it: both
 * framing fields, lengths that differ, lines that end in LF alone, folded lines, blanks before a colon.
 */
function isAmbiguous({ headers, rawHeaders, httpVersion }: IncomingMessage): boolean {
  const coding = headers['transfer-encoding'];
  const isOdd = coding !== undefined && (httpVersion !== '1.1' || coding.trim().toLowerCase() !== 'chunked');
  const isKnown = httpVersion === '1.1' || httpVersion === '1.0';
  return isOdd || !isKnown || allValues(rawHeaders, 'host').length > 1;
}

/** Whether a body of the length that is announced may come. */
function isWelcome({ headers }: IncomingMessage, { bodyBytes }: RouteRoom): boolean {
  return bodyBytes === 0 || Number(headers['content-length'] ?? 0) <= bodyBytes;
}

/** The first request of a client carries neither field; what it accepts gives it away. */
function isMcp({ method, headers }: IncomingMessage): boolean {
  return (
    headers['mcp-session-id'] !== undefined ||
    headers['mcp-protocol-version'] !== undefined ||
    (method === 'POST' && headers.accept?.includes('text/event-stream') === true)
  );
}

/** How often a request has passed a guard, by its `Via` (RFC 9110 section 7.6.3). */
function timesThrough({ headers }: IncomingMessage): number {
  return headers.via === undefined ? 0 : headers.via.split('mcp-resume-guard').length - 1;
}

function answer(response: ServerResponse, code: ErrorCode, waits: boolean): void {
  const body = errorBody(code);
  // Of a client that waits for leave to send its body nobody knows whether it sends it without.
  const closes = code === 'draining' || code === 'bad-request' || waits;
  response.writeHead(ERRORS[code].status, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(body),
    ...(closes ? { Connection: 'close' } : {}),
  });
  response.end(body);
}

/** What of Node's complaints still gets an answer. */
const PARSER_ERRORS: Readonly<Record<string, [ErrorCode, number?]>> = {
  HPE_HEADER_OVERFLOW: ['fields-too-large'],
  ERR_HTTP_REQUEST_TIMEOUT: ['bad-request', 408],
};

/** What Node's parser refused: an answer, in its turn, then the end of the connection. */
function answerClientError(error: NodeJS.ErrnoException, duplex: Duplex): void {
  const socket = duplex as Socket;
  const { code = '' } = error;
  const connection = watchConnection(socket, () => 0);
  // The parser goes on complaining for as long as bytes come in.
  if (connection.broken) return;
  connection.broken = true;
  const known = PARSER_ERRORS[code] ?? (code.startsWith('HPE_') ? (['bad-request'] as const) : null);
  if (known === null || !socket.writable) {
    socket.destroy();
    return;
  }
  const refuse = (): void => {
    // Not where the request before said that it was the last one.
    if (socket.writable) endConnection(socket, rawAnswer(...known));
  };
  const { response, exchanges } = connection;
  if (response === null || response.writableFinished) {
    refuse();
  } else if (response.req.complete) {
    response.once('close', refuse);
  } else if (response.headersSent || response.socket === null) {
    socket.destroy();
  } else {
    for (const exchange of exchanges) exchange.connectionClosed();
    refuse();
  }
}
