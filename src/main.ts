/** The composition root: builds the rooms, hands each what it needs, binds, reloads, drains. */
import { readFileSync } from 'node:fs';
import { isIPv6 } from 'node:net';
import type { Config, Route } from './config.ts';
import { GuardError } from './errors.ts';
import { Admin, type SessionView } from './ops/admin.ts';
import { exchangeLog } from './ops/exchange-log.ts';
import { History } from './ops/history.ts';
import { createLogger, type Logger, limited } from './ops/logger.ts';
import { createMetrics } from './ops/metrics.ts';
import { type AccessLists, hostAllowed, isLoopbackName } from './proxy/access.ts';
import { kernelTables } from './proxy/kernel.ts';
import { Listener, type ListenerOptions } from './proxy/listener.ts';
import type { RouteRoom } from './proxy/room.ts';
import { createTokens, type Tokens } from './proxy/tokens.ts';
import { Upstream } from './proxy/upstream.ts';
import type { Observer } from './report.ts';
import { MemoryStore } from './store/memory.ts';

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
}

/** @throws {GuardError} `address-unavailable` with the address in its message, or `config-invalid`. */
export async function startProxy(config: Config, options: StartOptions = {}): Promise<RunningProxy> {
  if (config.store !== 'memory') throw new GuardError('config-invalid', 'store: only "memory" is available yet');
  const logger = options.logger ?? createLogger(config.log);
  const now = options.now ?? (() => performance.now());
  const tokens = createTokens();
  const kernel = kernelTables(config.bounds.kernelReading, now);
  const bounds = { ...config.bounds, sessionMemory: config.sessionMemory };
  const store = new MemoryStore(bounds);
  const metrics = createMetrics({ sessions: () => store.counts.sessions, storeErrors: () => 0 });
  const history = new History(Date.now);
  const observer = all(metrics.observer, exchangeLog(logger, now), history.observer);
  const upstreams = new Map<string, Upstream>();
  let current = config;

  const upstreamOf = (of: Config, route: Route): Upstream => {
    const known = upstreams.get(route.name);
    if (known !== undefined && known.origin === route.upstream) return known;
    const upstream = new Upstream({
      origin: route.upstream,
      tls: upstreamTls(of),
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

  const listenerOptions = (of: Config): ListenerOptions => ({
    rooms: of.routes.map(
      (route): RouteRoom => ({
        route,
        upstream: upstreamOf(of, route),
        store,
        kernel,
        tokens,
        observer,
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
    access: accessLists(of),
    tls:
      of.tls === undefined ? null : { cert: readFileSync(of.tls.cert, 'utf8'), key: readFileSync(of.tls.key, 'utf8') },
    upstreamTls: upstreamTls(of),
    connectTimeout: of.connectTimeout,
    fieldBytes: of.bounds.fieldBytes,
    headTimeout: of.bounds.headTimeout,
    connections: of.bounds.connections,
    concurrentStreams: of.bounds.concurrentStreams,
    now,
    refused: refusedLog(logger, now),
  });

  const listener = new Listener(listenerOptions(config));
  const bound = await bind(listener, config.listen, false, logger);
  let draining = false;
  const readiness = () => ({ ready: !draining, reasons: draining ? ['draining'] : [] });
  let admin: Admin | null = null;
  let adminUrl: string | null = null;
  if (config.admin.listen !== null) {
    const { listen, isDefault } = config.admin;
    const loopback = isLoopbackName(listen.host);
    admin = new Admin({
      registry: metrics.registry,
      hostAllowed: (authority) => hostAllowed({ hosts: loopback ? 'loopback' : null, origins: null }, authority),
      readiness,
      history,
      sessions: () => sessionViews(store, tokens),
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
      adminUrl = urlOf('http', await bind(admin, listen, isDefault, logger));
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
    if (current.drainDelay > 0) await new Promise((resolve) => setTimeout(resolve, current.drainDelay));
    await listener.drain(current.drainTimeout);
    clearInterval(sweeper);
    for (const upstream of upstreams.values()) upstream.close();
    await admin?.close();
  };
  return {
    url: urlOf(config.tls === undefined ? 'http' : 'https', bound),
    adminUrl,
    reload(next) {
      const fixed = FIXED.filter((key) => JSON.stringify(next[key]) !== JSON.stringify(config[key]));
      if (fixed.length > 0) logger.warn({ event: 'not-reloaded', keys: fixed }, `needs a restart: ${fixed.join(', ')}`);
      current = next;
      logger.level = next.log.level;
      listener.reload(listenerOptions(next));
    },
    close: () => (closing ??= drain()),
  };
}

/** Settings that are wired in when the process starts. */
const FIXED = ['listen', 'admin', 'store', 'storeFailure', 'bounds', 'upstream', 'connectTimeout'] as const;

type Bindable = { bind(host: string, port: number): Promise<{ host: string; port: number }> };

async function bind(
  server: Bindable,
  { host, port }: { host: string; port: number },
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
        `port ${port} is taken, using ${free.port}`,
      );
      return free;
    }
    throw new GuardError('address-unavailable', `cannot listen on ${host}:${port}: ${code ?? String(error)}`, {
      cause: error,
    });
  }
}

function urlOf(scheme: string, { host, port }: { host: string; port: number }): string {
  return `${scheme}://${isIPv6(host) ? `[${host}]` : host}:${port}`;
}

function accessLists({ listen, allowedHosts, allowedOrigins }: Config): AccessLists {
  const fallback = isLoopbackName(listen.host) ? 'loopback' : null;
  return { hosts: allowedHosts ?? fallback, origins: allowedOrigins ?? fallback };
}

function upstreamTls({ upstream }: Config): ListenerOptions['upstreamTls'] {
  const read = (path: string): string => readFileSync(path, 'utf8');
  return {
    ...(upstream.ca === undefined ? {} : { ca: read(upstream.ca) }),
    ...(upstream.cert === undefined ? {} : { cert: read(upstream.cert) }),
    ...(upstream.key === undefined ? {} : { key: read(upstream.key) }),
  };
}

function refusedLog(logger: Logger, now: () => number): ListenerOptions['refused'] {
  const warn = limited(logger, 'refused', 10_000, now);
  return (code) => warn({ error: code }, `a request was refused: ${code}`);
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

function* sessionViews(store: MemoryStore, tokens: Tokens): Iterable<SessionView> {
  for (const [key, session] of store.entries()) {
    const [route = '', sessionId = ''] = key.split('\n');
    let openRequests = 0;
    for (const { requests } of session.streams) {
      for (const answer of requests.values()) if (answer === null) openRequests += 1;
    }
    yield {
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
}

/** The configuration for `/api/config`: durations in ms, sizes in bytes, no secret. */
function masked(config: Config): object {
  const { token, ...admin } = config.admin;
  const store = config.store.replace(/\/\/[^@/]*@/, '//***@');
  return { ...config, store, admin: { ...admin, ...(token === undefined ? {} : { token: '***' }) } };
}
