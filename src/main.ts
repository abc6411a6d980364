/** The composition root: builds the rooms, hands each what it needs, binds, reloads, drains. */
import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { isIPv6 } from 'node:net';
import type { Config, Route } from './config.ts';
import type { Session } from './core/ledger.ts';
import { type ErrorCode, GuardError } from './errors.ts';
import { openStore, tokenKey } from './main-store.ts';
import { Admin, type SessionsPage, type SessionView } from './ops/admin.ts';
import { exchangeLog } from './ops/exchange-log.ts';
import { History } from './ops/history.ts';
import { createLogger, type Logger, limited } from './ops/logger.ts';
import { createMetrics } from './ops/metrics.ts';
import { startTracing } from './ops/tracing.ts';
import { type AccessLists, hostAllowed, isLoopbackName, originAllowed } from './proxy/access.ts';
import { kernelTables } from './proxy/kernel.ts';
import { Listener, type ListenerOptions } from './proxy/listener.ts';
import type { RouteRoom } from './proxy/room.ts';
import { createTokens, type Tokens } from './proxy/tokens.ts';
import { Upstream } from './proxy/upstream.ts';
import type { Observer } from './report.ts';
import type { SessionKey, SessionStore } from './store/store.ts';

export { isLoopbackName };

export interface RunningProxy {
  /** Such as `http://127.0.0.1:8808`. */
  readonly url: string;
  readonly adminUrl: string | null;
  /** Puts a changed configuration in force without dropping a stream; what cannot be changed is named in the log. */
  reload(config: Config): void;
  /** Drains and ends. A second call waits for the first. */
  close(reason?: string): Promise<void>;
}

export interface StartOptions {
  readonly logger?: Logger;
  /** Monotonic, in ms. */
  readonly now?: () => number;
  /** The calendar, in ms. */
  readonly wall?: () => number;
  /** How long a resume waits for a shared store, in ms. Default: 50. */
  readonly lookupDeadline?: number;
  /** What traces call this program's version. */
  readonly version?: string;
}

/** @throws {GuardError} `address-unavailable` with the address in its message, or `config-invalid`. */
export async function startProxy(config: Config, options: StartOptions = {}): Promise<RunningProxy> {
  const logger = options.logger ?? createLogger(config.log);
  const now = options.now ?? (() => performance.now());
  const tokens = createTokens(tokenKey(config));
  const kernel = kernelTables(config.bounds.kernelReading, now, config.listen.host);
  const bounds = { ...config.bounds, sessionMemory: config.sessionMemory };
  const storage = await openStore(config, {
    bounds,
    logger,
    now,
    wall: options.wall ?? Date.now,
    lookupDeadline: options.lookupDeadline,
  });
  const { store } = storage;
  const metrics = createMetrics({
    sessions: () => store.counts.sessions,
    storeErrors: storage.errors,
    storeDropped: storage.dropped,
    storePending: storage.pending,
  });
  // Nobody could look at it.
  const history = config.admin.listen === null ? null : new History(Date.now);
  const tracing = await startTracing({ env: process.env, logger, version: options.version ?? 'unknown', now });
  const observer = all(metrics.observer, exchangeLog(logger, now), history?.observer ?? {}, tracing?.observer ?? {});
  const refused = refusedLog(logger, now);
  const unguarded = unguardedLog(logger, now);
  const upstreams = new Map<string, Upstream>();
  let current = config;

  const upstreamOf = (of: Config, route: Route, tls: ListenerOptions['upstreamTls']): Upstream => {
    const known = upstreams.get(route.name);
    if (known !== undefined && known.origin === route.upstream) {
      known.renew(tls, of.connectTimeout);
      return known;
    }
    const upstream = new Upstream({
      origin: route.upstream,
      tls,
      connectTimeout: of.connectTimeout,
      fieldBytes: of.bounds.fieldBytes,
      watchRestarts: !route.durableEvents,
      kernel,
      now,
    });
    known?.close();
    upstreams.set(route.name, upstream);
    return upstream;
  };

  const listenerOptions = (of: Config): ListenerOptions => {
    // What may fail comes first.
    const [tls, toUpstream] = [downstreamTls(of), upstreamTls(of)];
    return {
      rooms: of.routes.map(
        (route): RouteRoom => ({
          route,
          upstream: upstreamOf(of, route, toUpstream),
          store,
          kernel,
          tokens,
          observer,
          storeFailure: of.storeFailure,
          bounds,
          refusals: of.refusals,
          proxyStatus: of.proxyStatus,
          replayHold: of.replayHold,
          replayDeadline: of.replayDeadline,
          proofMemory: of.proofMemory,
          maxHeldBytes: of.tap.maxHeldBytes,
          keepAlive: of.keepAlive,
          bodyBytes: of.bounds.bodyBytes,
          draining: () => draining,
          now,
        }),
      ),
      access: accessLists(of, config.listen),
      tls,
      upstreamTls: toUpstream,
      connectTimeout: of.connectTimeout,
      fieldBytes: of.bounds.fieldBytes,
      headTimeout: of.bounds.headTimeout,
      connections: of.bounds.connections,
      concurrentStreams: of.bounds.concurrentStreams,
      now,
      refused,
      unguarded,
    };
  };

  const listener = new Listener(listenerOptions(config));
  const bound = await bind(listener, config.listen, '--port', false, logger);
  let draining = false;
  // A server that is down is no reason to send clients away from the guard: without it they would fail as well.
  const readiness = () => ({
    ready: !draining,
    reasons: [
      ...(draining ? ['draining'] : []),
      ...storage.complaints(),
      ...[...upstreams.values()]
        .filter(({ reachable }) => !reachable)
        .map(({ origin }) => `${origin} refuses connections`),
    ],
  });
  let admin: Admin | null = null;
  let adminUrl: string | null = null;
  if (config.admin.listen !== null && history !== null) {
    const { listen, isDefault } = config.admin;
    const loopback = isLoopbackName(listen.host);
    const adminLists: AccessLists = { hosts: loopback ? 'loopback' : null, origins: loopback ? 'loopback' : null };
    admin = new Admin({
      registry: metrics.registry,
      admits: (authority, origin) =>
        hostAllowed(adminLists, authority) && originAllowed(adminLists, origin === undefined ? [] : [origin]),
      readiness,
      history,
      sessions: (from, count) => sessionsPage(store, tokens, from, count),
      config: () => masked(current),
      overview: () => ({
        ...readiness(),
        mode: current.mode,
        upstreams: [...upstreams].map(([route, { origin, reachable, connections }]) => ({
          route,
          origin,
          reachable,
          connections,
        })),
      }),
      access: loopback || config.admin.open ? { open: true } : { open: false, token: config.admin.token ?? null },
    });
    try {
      adminUrl = urlOf('http', await bind(admin, listen, '--admin', isDefault, logger));
    } catch (error) {
      await listener.drain(0);
      throw error;
    }
  }
  const sweeper = setInterval(() => store.sweep(now()), 1_000);
  sweeper.unref();

  let closing: Promise<void> | null = null;
  const drain = async (): Promise<void> => {
    draining = true;
    const began = now();
    logger.info(
      { event: 'draining', open: listener.open, timeout: current.drainTimeout },
      `draining: ${listener.open} open`,
    );
    if (current.drainDelay > 0) await new Promise((resolve) => setTimeout(resolve, current.drainDelay));
    const cut = await listener.drain(current.drainTimeout);
    clearInterval(sweeper);
    await storage.close();
    for (const upstream of upstreams.values()) upstream.close();
    await admin?.close();
    await tracing?.close();
    const durationMs = Math.round(now() - began);
    logger.info({ event: 'stopped', cut, durationMs }, `stopped after ${durationMs} ms, ${cut} cut`);
  };
  return {
    url: urlOf(config.tls === undefined ? 'http' : 'https', bound),
    adminUrl,
    reload(next) {
      const fixed = changedSettings(fixedSettings(config), fixedSettings(next));
      listener.reload(listenerOptions(next));
      const used = new Set(next.routes.map(({ name }) => name));
      for (const [name, upstream] of upstreams) {
        if (used.has(name)) continue;
        upstream.close();
        upstreams.delete(name);
      }
      current = next;
      logger.level = next.log.level;
      if (fixed.length > 0) logger.warn({ event: 'not-reloaded', keys: fixed }, `needs a restart: ${fixed.join(', ')}`);
    },
    close: () => (closing ??= drain()),
  };
}

/** Repeated warnings are at least this far apart, in ms. */
const REPEAT = 10_000;
const UNGUARDED_REPEAT = 3_600_000;

/** Settings that are wired in when the process starts, by the names they have in a file. */
function fixedSettings(config: Config): Readonly<Record<string, unknown>> {
  const { listen, admin, store, storeSecret, storeCa, sessionMemory, upstream, log, bounds } = config;
  const { bodyBytes, concurrentStreams, ...wired } = bounds;
  return {
    listen,
    admin,
    // The files are read again; whether there is TLS at all is not.
    tls: config.tls === undefined,
    store,
    storeSecret,
    storeCa,
    sessionMemory,
    'upstream.durableEvents': upstream.durableEvents,
    'log.format': log.format,
    ...Object.fromEntries(Object.entries(wired).map(([key, value]) => [`bounds.${key}`, value])),
  };
}

function changedSettings(one: ReturnType<typeof fixedSettings>, other: ReturnType<typeof fixedSettings>): string[] {
  return Object.keys(one).filter((key) => JSON.stringify(one[key]) !== JSON.stringify(other[key]));
}

type Bindable = { bind(host: string, port: number): Promise<{ host: string; port: number }> };

async function bind(
  server: Bindable,
  { host, port }: { host: string; port: number },
  option: string,
  orFree: boolean,
  logger: Logger,
): Promise<{ host: string; port: number }> {
  try {
    return await server.bind(host, port);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (orFree && code === 'EADDRINUSE') {
      const free = await server.bind(host, 0);
      logger.warn(
        { event: 'admin-port-taken', taken: port, port: free.port },
        `port ${port} is taken: the admin listener uses ${free.port}`,
      );
      return free;
    }
    const why =
      code === 'EADDRINUSE'
        ? `another process listens there (EADDRINUSE); ${option} chooses another`
        : (code ?? String(error));
    throw new GuardError('address-unavailable', `cannot listen on ${host}:${port}: ${why}`, { cause: error });
  }
}

function urlOf(scheme: string, { host, port }: { host: string; port: number }): string {
  return `${scheme}://${isIPv6(host) ? `[${host}]` : host}:${port}`;
}

/** `bound`: where we listen, whatever the configuration says by now. */
function accessLists({ allowedHosts, allowedOrigins }: Config, bound: Config['listen']): AccessLists {
  const fallback = isLoopbackName(bound.host) ? 'loopback' : null;
  return { hosts: allowedHosts ?? fallback, origins: allowedOrigins ?? fallback };
}

function downstreamTls({ tls }: Config): ListenerOptions['tls'] {
  return tls === undefined ? null : { cert: readFileSync(tls.cert, 'utf8'), key: readFileSync(tls.key, 'utf8') };
}

function upstreamTls({ upstream }: Config): ListenerOptions['upstreamTls'] {
  const read = (path: string): string => readFileSync(path, 'utf8');
  return {
    ...(upstream.ca === undefined ? {} : { ca: read(upstream.ca) }),
    ...(upstream.cert === undefined ? {} : { cert: read(upstream.cert) }),
    ...(upstream.key === undefined ? {} : { key: read(upstream.key) }),
  };
}

/** What an operator needs to let it in, if that is what should happen. */
const CURES: Partial<Record<ErrorCode, (request: IncomingMessage) => object>> = {
  'host-not-allowed': ({ headers }) => ({ host: shortened(headers.host), setting: 'allowedHosts' }),
  'origin-not-allowed': ({ headers }) => ({ origin: shortened(headers.origin), setting: 'allowedOrigins' }),
  'loop-detected': () => ({ setting: 'upstream.url' }),
};

const shortened = (value: string | undefined): string | undefined => value?.slice(0, 100);

function refusedLog(logger: Logger, now: () => number): ListenerOptions['refused'] {
  const warners = new Map<ErrorCode, ReturnType<typeof limited>>();
  return (code, request) => {
    const warn = warners.get(code) ?? limited(logger, 'refused', REPEAT, now);
    warners.set(code, warn);
    const cure = request === undefined ? {} : (CURES[code]?.(request) ?? {});
    warn({ error: code, ...cure }, `a request was refused: ${code}`);
  };
}

/** A guard on the wrong path does nothing, and nobody would notice. */
function unguardedLog(logger: Logger, now: () => number): ListenerOptions['unguarded'] {
  const warn = limited(logger, 'unguarded', UNGUARDED_REPEAT, now);
  return ({ guarded }, path) => {
    warn({ path, guarded }, `MCP passes unguarded here: the guarded path is ${guarded}`);
  };
}

/** Tells several observers everything. */
function all(first: Observer, ...others: readonly Partial<Observer>[]): Observer {
  type Call = (...args: unknown[]) => void;
  const out = { ...first } as unknown as Record<string, Call>;
  for (const other of others) {
    for (const [name, call] of Object.entries(other) as [string, Call][]) {
      const earlier = out[name]!;
      out[name] = (...args) => {
        earlier(...args);
        call(...args);
      };
    }
  }
  return out as unknown as Observer;
}

function sessionsPage(store: SessionStore, tokens: Tokens, from: number, count: number): SessionsPage {
  const sessions: SessionView[] = [];
  let index = 0;
  for (const [key, session] of store.entries()) {
    if (index >= from + count) break;
    if (index >= from) sessions.push(sessionView(key, session, tokens));
    index += 1;
  }
  return { total: store.counts.sessions, sessions };
}

function sessionView(key: SessionKey, session: Session, tokens: Tokens): SessionView {
  const [route = '', sessionId = ''] = key.split('\n');
  let openRequests = 0;
  for (const { requests } of session.streams) {
    for (const answer of requests.values()) if (answer === null) openRequests += 1;
  }
  return {
    session: session.anonymous ? null : tokens.shown(sessionId),
    route,
    generation: session.generation,
    ended: session.endedAt !== null,
    streams: session.streams.size,
    openRequests,
    listening: session.listening,
    bytes: session.bytes,
  };
}

/** The configuration for `/api/config`: durations in ms, sizes in bytes, no secret. */
function masked(config: Config): object {
  const { token, ...admin } = config.admin;
  const store = config.store.replace(/\/\/[^@/]*@/, '//***@');
  const secret = config.storeSecret === undefined ? {} : { storeSecret: '***' };
  return { ...config, store, ...secret, admin: { ...admin, ...(token === undefined ? {} : { token: '***' }) } };
}
