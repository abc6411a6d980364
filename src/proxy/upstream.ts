/**
 * One hop toward upstream: connections, one response shape, one way to abort, one mapping of errors.
 *
 * undici's low-level `dispatch` over a free list of single-connection clients, last in first out. A client is either
 * carrying one exchange or idle in the list, so a stream that runs for hours is nothing that a POST has to search past,
 * and a request is only ever written to a connection that has nothing else on it.
 *
 * No request is sent twice: undici writes a request once, and should it ever start to write one again we abort it.
 */
import type { Socket } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import type { Dispatcher } from 'undici';
import type { Fields } from '../core/fields.ts';
import { NO_IDENTITY, type UpstreamIdentity } from '../core/ledger.ts';
import { type ErrorCode, GuardError } from '../errors.ts';
import type { KernelTables } from './kernel.ts';
import { Roster, type Seated } from './roster.ts';
import { buildConnector, Client, type ConnectOptions, type Connector } from './undici.ts';

export interface UpstreamOptions {
  /** Scheme, host and port. */
  readonly origin: string;
  /** PEM texts for TLS. */
  readonly tls: { readonly ca?: string; readonly cert?: string; readonly key?: string };
  /** In ms; 0 for none. */
  readonly connectTimeout: number;
  /** Largest head of a response, in bytes. */
  readonly fieldBytes: number;
  /** Look for restarts (behaviour.md section 6). */
  readonly watchRestarts: boolean;
  readonly kernel: KernelTables;
  /** The clock of `kernel`. */
  readonly now: () => number;
}

export interface UpstreamRequest {
  readonly method: string;
  readonly path: string;
  readonly fields: readonly string[];
  readonly body: Buffer | NodeJS.ReadableStream | null;
}

/** What an exchange wants to hear. After `ended` or `failed` nothing follows. */
export interface UpstreamListener {
  /** The final response's; `reason` in Latin-1, as the fields are. */
  head(status: number, reason: string, fields: Fields): void;
  data(chunk: Buffer): void;
  ended(): void;
  failed(error: GuardError): void;
}

/** An exchange under way. */
export interface Hop {
  /** Stops reading until `resume`. */
  pause(): void;
  resume(): void;
  /** Closes upstream's connection now. The listener hears nothing more. */
  abort(): void;
  /** Upstream as it was when the connection was opened. */
  readonly identity: UpstreamIdentity;
}

/** A connection as the connector made it. */
interface Connection {
  identity: UpstreamIdentity;
  readonly socket: Socket;
}

interface Lane extends Seated {
  readonly client: Client;
  connection: Connection | null;
  /** A connection opened ahead of its request. */
  ready: Socket | null;
  /** Connections opened for the request at hand. */
  attempts: number;
}

const KEEP_ALIVE_PROBE = 15_000;
const IDLE_TIMEOUT = 4_000;
const MOST_IDLE = 256;
/** In ms. */
const SOON = 250;
/** undici opens the next connection for as long as each is closed before it has written the request. */
const MOST_ATTEMPTS = 3;

export class Upstream {
  readonly origin: string;
  readonly authority: string;
  readonly #options: UpstreamOptions;
  #connect: Connector;
  /** In ms; 0 for no limit. */
  #connectTimeout: number;
  readonly #idle: Lane[] = [];
  readonly #lanes = new Roster<Lane>();
  readonly #url: URL;
  readonly #hostname: string;
  readonly #loopbackPort: number | null;
  #incarnation = 1;
  #open = 0;
  /** A connect was refused and none has succeeded since; the number of connections then open that are still open. */
  #refused: { survivors: Set<Connection> } | null = null;
  readonly #connections = new Set<Connection>();
  #listeners: ReadonlySet<number> = new Set();
  /** The port had a listener at some time, so that none now means something. */
  #hadListeners = false;
  #soon: Promise<UpstreamIdentity> | null = null;
  #closed = false;

  constructor(options: UpstreamOptions) {
    const url = new URL(options.origin);
    this.#url = url;
    this.origin = options.origin;
    this.authority = url.host;
    this.#options = options;
    this.#hostname = bareHost(url.hostname);
    this.#loopbackPort = options.watchRestarts && isLoopback(url.hostname) ? portOf(url) : null;
    this.#connect = connector(options.tls);
    this.#connectTimeout = options.connectTimeout;
  }

  /** For connections opened from now on. */
  renew(tls: UpstreamOptions['tls'], connectTimeout: number): void {
    this.#connect = connector(tls);
    this.#connectTimeout = connectTimeout;
  }

  /** Connections open now. */
  get connections(): number {
    return this.#open;
  }

  /**
   * Upstream as it is now, or as it was no earlier than `notBefore` (in ms). `some`: it only matters whether it is still
   * the same. That is for a resume alone: whoever has joined since serves nobody before a connection is opened, and that
   * looks for all.
   */
  async identify(how: { readonly notBefore?: number; readonly some?: boolean } = {}): Promise<UpstreamIdentity> {
    if (!this.#options.watchRestarts) return NO_IDENTITY;
    if (this.#loopbackPort === null) return { ...NO_IDENTITY, incarnation: this.#incarnation };
    const { inodes, readAt } = await this.#options.kernel.listeners(this.#loopbackPort, how.notBefore, how.some);
    this.#hadListeners ||= inodes.size > 0;
    // One set for all connections and sessions that found the same: there may be thousands.
    if (!isSame(inodes, this.#listeners)) this.#listeners = inodes;
    return { incarnation: this.#incarnation, listeners: this.#listeners, readAt };
  }

  /** Upstream as it is in a moment: one look for all sessions that begin until then. */
  identifySoon(): Promise<UpstreamIdentity> {
    if (this.#loopbackPort === null) return this.identify();
    this.#soon ??= pause(SOON, undefined, { ref: false }).then(() => {
      this.#soon = null;
      return this.identify();
    });
    return this.#soon;
  }

  /** No connect was refused since the last that succeeded. */
  get reachable(): boolean {
    return this.#refused === null;
  }

  /** Known to be down: a refused connect was the last word, or the port that had a listener has none. */
  isDown(identity: UpstreamIdentity): boolean {
    return this.#refused !== null || (this.#hadListeners && identity.listeners.size === 0);
  }

  /** Opens a connection and keeps it for the next request. Resolves to null, or to why there is none. */
  async reach(): Promise<GuardError | null> {
    const url = this.#url;
    const lane = this.#newLane();
    return new Promise((resolve) => {
      const port = String(portOf(url));
      const options = { host: url.host, hostname: bareHost(url.hostname), protocol: url.protocol, port };
      this.#connectLane(lane, options, (error, socket) => {
        if (error !== null) {
          this.#discard(lane);
          resolve(toGuardError(error));
          return;
        }
        lane.ready = socket;
        socket.once('close', () => {
          if (lane.ready === socket) lane.ready = null;
        });
        this.#idle.push(lane);
        resolve(null);
      });
    });
  }

  /** Sends a request, once. */
  dispatch(request: UpstreamRequest, listener: UpstreamListener): Hop {
    const lane = this.#idle.pop() ?? this.#newLane();
    lane.attempts = 0;
    const exchange = new Exchange(this, lane, listener);
    try {
      lane.client.dispatch(
        {
          method: request.method as Dispatcher.HttpMethod,
          path: request.path,
          headers: request.fields as string[],
          body: request.body as Dispatcher.DispatchOptions['body'] & (Buffer | null),
          // Not to be taken from `Host`, which a client may choose: for each new one undici would open a new connection.
          servername: this.#hostname,
        } as Dispatcher.DispatchOptions,
        exchange as Dispatcher.DispatchHandler,
      );
    } catch (error) {
      exchange.onError(error as Error);
    }
    return exchange;
  }

  /** @internal An exchange has no more use for its connection. */
  release(lane: Lane, reusable: boolean): void {
    if (reusable && !this.#closed && this.#idle.length < MOST_IDLE) this.#idle.push(lane);
    else this.#discard(lane);
  }

  /** Lets running exchanges finish and takes no new ones into the list. */
  close(): void {
    this.#closed = true;
    for (const lane of this.#idle.splice(0)) this.#discard(lane);
  }

  #newLane(): Lane {
    const lane: Lane = {
      seat: null,
      ready: null,
      connection: null,
      attempts: 0,
      client: new Client(this.#url, {
        connect: (options, callback) => this.#connectLane(lane, options, callback as OpenCallback),
        pipelining: 1,
        headersTimeout: 0,
        bodyTimeout: 0,
        keepAliveTimeout: IDLE_TIMEOUT,
        maxHeaderSize: this.#options.fieldBytes,
        strictContentLength: true,
      }),
    };
    this.#lanes.add(lane);
    return lane;
  }

  #discard(lane: Lane): void {
    if (!this.#lanes.remove(lane)) return;
    lane.client.destroy(null, () => {});
  }

  #connectLane(lane: Lane, options: ConnectOptions, callback: OpenCallback): void {
    const { ready } = lane;
    if (ready !== null && !ready.destroyed) {
      lane.ready = null;
      // undici is not prepared for an answer before its call to the connector returns.
      queueMicrotask(() => callback(null, ready));
      return;
    }
    lane.attempts += 1;
    if (lane.attempts > MOST_ATTEMPTS) {
      queueMicrotask(() => callback(new GuardError('upstream-reset'), null));
      return;
    }
    // Without a name of ours the connector takes the one in upstream's URL, and none where that is an address.
    const opening = this.#connect({ ...options, servername: '' }, (error, socket) => {
      clearTimeout(timer);
      if (error !== null) {
        if (isRefused(error)) this.#refused ??= { survivors: new Set(this.#connections) };
        callback(toGuardError(error, 'upstream-refused'), null);
        return;
      }
      const connection: Connection = { identity: NO_IDENTITY, socket };
      this.#noteConnected(connection);
      lane.connection = connection;
      this.identify({ notBefore: this.#options.now() })
        .then((identity) => {
          connection.identity = identity;
        })
        .catch(() => {})
        .then(() => {
          if (socket.destroyed) callback(new GuardError('upstream-reset', socket.errored?.message), null);
          else callback(null, socket);
        });
    });
    const late = (): void => void opening.destroy(new GuardError('upstream-timeout', 'no connection in time'));
    const timer = this.#connectTimeout === 0 ? undefined : setTimeout(late, this.#connectTimeout);
  }

  #noteConnected(connection: Connection): void {
    // Refused before, and nothing that was open then has survived: a new process answers.
    if (this.#refused !== null && this.#refused.survivors.size === 0) this.#incarnation += 1;
    this.#refused = null;
    this.#connections.add(connection);
    this.#open += 1;
    connection.socket.on('close', () => {
      this.#open -= 1;
      this.#connections.delete(connection);
      this.#refused?.survivors.delete(connection);
    });
  }
}

/** Its own timer would stay in memory for as long as the connection. */
function connector(tls: UpstreamOptions['tls']): Connector {
  return buildConnector({ ...tls, timeout: 0, keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_PROBE });
}

const BEYOND_ASCII = /[^\0-\x7f]/;

type OpenCallback = (...args: [null, Socket] | [Error, null]) => void;

/**
 * One request and its response, between undici and a listener. Handlers of this older shape undici calls as they are;
 * for those of the newer one it makes an object of the fields of each response, which nobody here reads.
 */
class Exchange implements Hop {
  readonly #upstream: Upstream;
  readonly #lane: Lane;
  readonly #listener: UpstreamListener;
  /** Of undici: breaks off, goes on reading. Null before the request is under way, and before its response. */
  #abort: ((reason: Error) => void) | null = null;
  #goOn: (() => void) | null = null;
  #paused = false;
  #status = 0;
  #over = false;

  constructor(upstream: Upstream, lane: Lane, listener: UpstreamListener) {
    this.#upstream = upstream;
    this.#lane = lane;
    this.#listener = listener;
  }

  get identity(): UpstreamIdentity {
    return this.#lane.connection?.identity ?? NO_IDENTITY;
  }

  pause(): void {
    this.#paused = true;
  }

  resume(): void {
    if (!this.#paused) return;
    this.#paused = false;
    this.#goOn?.();
  }

  abort(): void {
    if (this.#over) return;
    this.#over = true;
    this.#abort?.(new GuardError('client-gone'));
    this.#upstream.release(this.#lane, false);
  }

  onConnect(abort: (reason: Error) => void): void {
    if (this.#over) {
      abort(new GuardError('client-gone'));
    } else if (this.#abort !== null) {
      // A second start would be a second sending.
      abort(new GuardError('upstream-reset'));
    } else {
      this.#abort = abort;
    }
  }

  /** Returns whether undici may read on. */
  onHeaders(status: number, raw: readonly (Buffer | string)[], goOn: () => void, reason = ''): boolean {
    if (this.#over || status < 200) return true;
    this.#goOn = goOn;
    this.#status = status;
    this.#listener.head(
      status,
      // undici reads the reason as UTF-8; of what is not, the bytes are lost.
      BEYOND_ASCII.test(reason) ? Buffer.from(reason).toString('latin1') : reason,
      raw.map((item) => (typeof item === 'string' ? item : item.toString('latin1'))),
    );
    return !this.#paused;
  }

  onData(chunk: Buffer): boolean {
    if (!this.#over) this.#listener.data(chunk);
    return !this.#paused;
  }

  onComplete(): void {
    if (this.#over) return;
    // undici takes a reset for the end of a body that ends by close; we do not.
    const error = this.#lane.connection?.socket.errored;
    if (error) {
      this.onError(error);
      return;
    }
    this.#over = true;
    this.#upstream.release(this.#lane, true);
    this.#listener.ended();
  }

  onError(error: Error): void {
    if (this.#over) return;
    this.#over = true;
    this.#upstream.release(this.#lane, false);
    // A 304 may name the length that a 200 would have (RFC 9110 section 8.6); undici waits for that many bytes.
    const { code } = error as NodeJS.ErrnoException;
    if (this.#status === 304 && code === 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH') this.#listener.ended();
    else this.#listener.failed(toGuardError(error));
  }
}

const CODES: Readonly<Record<string, ErrorCode>> = {
  ECONNREFUSED: 'upstream-refused',
  ENOTFOUND: 'upstream-unresolved',
  EAI_AGAIN: 'upstream-unresolved',
  EHOSTUNREACH: 'upstream-refused',
  ENETUNREACH: 'upstream-refused',
  ETIMEDOUT: 'upstream-timeout',
  UND_ERR_HEADERS_OVERFLOW: 'upstream-bad-head',
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: 'upstream-reset',
  UND_ERR_INVALID_ARG: 'bad-request',
  UND_ERR_NOT_SUPPORTED: 'bad-request',
};

function codesOf(error: unknown): string[] {
  if (!(error instanceof Error)) return [];
  const { code } = error as NodeJS.ErrnoException;
  const inner = error instanceof AggregateError ? error.errors : [error.cause];
  return [
    ...(code === undefined ? [] : [code]),
    ...inner.flatMap((cause) => (cause === undefined ? [] : codesOf(cause))),
  ];
}

function isRefused(error: Error): boolean {
  return codesOf(error).includes('ECONNREFUSED');
}

function toGuardError(error: Error, otherwise: ErrorCode = 'upstream-reset'): GuardError {
  if (error instanceof GuardError) return error;
  for (const code of codesOf(error)) {
    const known = CODES[code] ?? (code.startsWith('HPE_') ? 'upstream-bad-head' : undefined);
    if (known !== undefined) return new GuardError(known, error.message, { cause: error });
  }
  return new GuardError(otherwise, error.message, { cause: error });
}

function isSame(one: ReadonlySet<number>, other: ReadonlySet<number>): boolean {
  if (one.size !== other.size) return false;
  for (const inode of one) if (!other.has(inode)) return false;
  return true;
}

function isLoopback(hostname: string): boolean {
  const bare = bareHost(hostname);
  return bare === 'localhost' || bare === '::1' || bare.startsWith('127.') || bare.endsWith('.localhost');
}

const bareHost = (hostname: string): string => hostname.replace(/^\[|\]$/g, '');

function portOf(url: URL): number {
  return url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port);
}
