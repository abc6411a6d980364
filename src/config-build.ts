/** What must hold between settings, and the configuration that they make together. */
import type { Config, Route } from './config.ts';
import type { Address, UpstreamUrl } from './config-kinds.ts';
import { filePath } from './config-kinds.ts';
import { type Entry, type Layer, unreadable, type World } from './config-layers.ts';
import { KEYS, type Key, SETTINGS, type Setting, type Values } from './config-schema.ts';

type Settled = Map<Key, Entry>;
type Report = (where: string, problem: string) => void;

/** Puts `--port` into `listen`, whose host stays the one that was chosen elsewhere. */
export function choosePort(settled: Settled, { options }: World, report: Report): void {
  const port = options?.['port'];
  if (port === undefined) return;
  if (options?.['listen'] !== undefined) report('--port', 'says the same as --listen: give one of them');
  if (!/^\d{1,5}$/.test(String(port)) || Number(port) > 65_535) {
    report('--port', `must be a port from 0 to 65535 (got ${JSON.stringify(port)})`);
    return;
  }
  const { host } = (settled.get('listen') as Entry).value as Address;
  const value: Address = { host, port: Number(port) };
  settled.set('listen', { key: 'listen', value, raw: addressText(value), origin: '--port', where: () => '--port' });
}

/** `127.0.0.1:8808`, `[::1]:8808` */
export function addressText({ host, port }: Address): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`;
}

/** Every file that a setting names has to be there, readable, and PEM. */
export function checkFiles(settled: Settled, readFile: World['readFile'], report: Report): void {
  for (const { key, value, where } of settled.values()) {
    const row: Setting = SETTINGS[key];
    if (row.kind !== filePath) continue;
    try {
      if (!readFile(String(value)).includes('-----BEGIN ')) report(where([]), `${value} is not a PEM file`);
    } catch (error) {
      report(where([]), `${value} ${unreadable(error)}`);
    }
  }
}

/** What no single setting can be wrong about. */
export function checkTogether(settled: Settled, layers: readonly Layer[], report: Report): void {
  const mentioned = (key: Key) => layers.some(({ raws }) => raws.has(key));
  const url = settled.get('upstream.url');
  const routes = settled.get('routes');
  // A source that gave nothing but faults may well be the one that names it.
  const lost = layers.some(({ raws, faults }) => raws.size === 0 && faults.length > 0);
  if (!lost && !mentioned('upstream.url') && !mentioned('routes')) {
    report(
      'upstream',
      'is missing: name the MCP server, such as http://localhost:3001/mcp, as the argument, in MCP_RESUME_GUARD_UPSTREAM, or in a file as upstream.url',
    );
  }
  if (mentioned('upstream.url') && mentioned('routes')) {
    const [one, other] = [routes?.where([]) ?? 'routes', url?.where([]) ?? 'upstream.url'];
    report(one, `cannot be combined with ${other}: give one of them`);
  }
  if (routes) checkRoutes(routes, report);
  const store = settled.get('store');
  if (store !== undefined && store.value !== 'memory' && !mentioned('storeSecret')) {
    report(store.where([]), 'needs storeSecret as well, the same for all replicas: what is stored is hashed with it');
  }
  checkLoop(settled, report);
  for (const [cert, key] of [
    ['upstream.cert', 'upstream.key'],
    ['tls.cert', 'tls.key'],
  ] as const) {
    const [has, lacks] = mentioned(cert) ? [cert, key] : [key, cert];
    if (mentioned(has) && !mentioned(lacks)) report(settled.get(has)?.where([]) ?? has, `needs ${lacks} as well`);
  }
  const admin = settled.get('admin.listen');
  const listen = settled.get('listen') as Entry;
  const [one, other] = [admin?.value, listen.value] as [Address | null, Address];
  if (admin?.origin && one && one.port !== 0 && addressText(one) === addressText(other)) {
    report(admin.where([]), 'must be another address than listen');
  }
}

/** An upstream that is this very listener would ask itself for ever. */
function checkLoop(settled: Settled, report: Report): void {
  const { host, port } = (settled.get('listen') as Entry).value as Address;
  const url = settled.get('upstream.url');
  const routes = settled.get('routes');
  const upstreams: [string, UpstreamUrl][] = [];
  if (url?.value !== undefined) upstreams.push([url.where([]), url.value as UpstreamUrl]);
  for (const [index, route] of ((routes?.value ?? []) as RouteValue[]).entries()) {
    upstreams.push([routes!.where([index, 'upstream']), route.upstream]);
  }
  for (const [where, { origin }] of upstreams) {
    const target = new URL(origin);
    const same = target.hostname.replace(/^\[|\]$/g, '') === host || isLoopback(target.hostname, host);
    if (same && Number(target.port) === port)
      report(where, `is this proxy itself, which listens on ${addressText({ host, port })}`);
  }
}

/** Both are this machine, as far as names tell. */
function isLoopback(hostname: string, listen: string): boolean {
  const local = /^(localhost|127(\.\d+){3}|\[?::1\]?)$/;
  return local.test(hostname) && (local.test(listen) || listen === '0.0.0.0' || listen === '::');
}

type RouteValue = NonNullable<Values['routes']>[number];

function checkRoutes({ value, where }: Entry, report: Report): void {
  const first = new Map<string, number>();
  for (const [index, route] of (value as RouteValue[]).entries()) {
    const { path } = route.upstream;
    if (path !== null && path !== route.path) {
      report(where([index, 'upstream']), 'must end after host and port: the path of a request passes unchanged');
    }
    const name = routeName(route.host, route.path);
    const earlier = first.get(name);
    if (earlier === undefined) first.set(name, index);
    else report(where([index]), `has the host and path of routes[${earlier}]`);
  }
}

const routeName = (host: string | undefined, path: string): string => `${host ?? '*'}${path}`;

/** The configuration, once nothing is wrong with its settings. */
export function build(settled: Settled): Config {
  const values = Object.fromEntries(KEYS.map((key) => [key, settled.get(key)?.value])) as unknown as Values;
  const tls = present({ cert: values['tls.cert'], key: values['tls.key'] });
  return {
    routes: buildRoutes(values),
    upstream: {
      durableEvents: values['upstream.durableEvents'],
      ...present({
        instanceField: values['upstream.instanceField'],
        ca: values['upstream.ca'],
        cert: values['upstream.cert'],
        key: values['upstream.key'],
      }),
    },
    listen: values.listen,
    admin: {
      listen: values['admin.listen'],
      isDefault: settled.get('admin.listen')?.origin === null,
      open: values['admin.open'],
      ...present({ token: values['admin.token'] }),
    },
    mode: values.mode,
    unrecorded: values.unrecorded,
    deliveryProof: values.deliveryProof,
    refuseWith: values.refuseWith,
    refusals: values.refusals,
    proxyStatus: values.proxyStatus,
    dedupe: values.dedupe,
    preserveHost: values.preserveHost,
    store: values.store,
    storeFailure: values.storeFailure,
    ...present({ storeSecret: values.storeSecret, storeCa: values.storeCa }),
    replayHold: values.replayHold,
    replayDeadline: values.replayDeadline,
    proofMemory: values.proofMemory,
    sessionMemory: values.sessionMemory,
    drainDelay: values.drainDelay,
    drainTimeout: values.drainTimeout,
    keepAlive: values.keepAlive,
    connectTimeout: values.connectTimeout,
    tap: { maxHeldBytes: values['tap.maxHeldBytes'] },
    log: { level: values['log.level'], format: values['log.format'] ?? 'json' },
    bounds: {
      memory: values['bounds.memory'],
      sessions: values['bounds.sessions'],
      streamsPerSession: values['bounds.streamsPerSession'],
      eventIdsPerStream: values['bounds.eventIdsPerStream'],
      finishedStreamMemory: values['bounds.finishedStreamMemory'],
      openStreamMemory: values['bounds.openStreamMemory'],
      eventIdBytes: values['bounds.eventIdBytes'],
      concurrentStreams: values['bounds.concurrentStreams'],
      kernelReading: values['bounds.kernelReading'],
      connections: values['bounds.connections'],
      fieldBytes: values['bounds.fieldBytes'],
      bodyBytes: values['bounds.bodyBytes'],
      headTimeout: values['bounds.headTimeout'],
    },
    ...present({ allowedHosts: values.allowedHosts, allowedOrigins: values.allowedOrigins }),
    ...(tls.cert !== undefined && tls.key !== undefined ? { tls: { cert: tls.cert, key: tls.key } } : {}),
  };
}

type Present<T> = { [K in keyof T]?: Exclude<T[K], undefined> };

function present<T extends object>(fields: T): Present<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Present<T>;
}

function buildRoutes(values: Values): readonly Route[] {
  const shared = {
    mode: values.mode,
    unrecorded: values.unrecorded,
    deliveryProof: values.deliveryProof,
    refuseWith: values.refuseWith,
    dedupe: values.dedupe,
    preserveHost: values.preserveHost,
    durableEvents: values['upstream.durableEvents'],
    ...present({ instanceField: values['upstream.instanceField'] }),
  };
  const url: UpstreamUrl | undefined = values['upstream.url'];
  if (url !== undefined) {
    return [{ ...shared, name: '*/', host: null, prefix: '/', guarded: url.path, upstream: url.origin }];
  }
  return (values.routes ?? [])
    .map(({ host, path, upstream, ...own }) => ({
      ...shared,
      ...present(own),
      name: routeName(host, path),
      host: host ?? null,
      prefix: path,
      guarded: null,
      upstream: upstream.origin,
    }))
    .sort((a, b) => Number(a.host === null) - Number(b.host === null) || b.prefix.length - a.prefix.length);
}
