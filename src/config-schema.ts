/**
 * Every setting there is: its key in the file, its form, its default and what it is for. The variables, the options of
 * the command line, `config/schema.json` and the check of `config/default.yaml` all follow from this one table.
 */
import * as z from 'zod';
import {
  address,
  addressOrOff,
  count,
  duration,
  durationOrOff,
  fieldName,
  fieldSize,
  filePath,
  hosts,
  json,
  type Kind,
  kind,
  oneOf,
  origins,
  pathPrefix,
  routeHost,
  ruleStatuses,
  secret,
  size,
  sizeOrUnlimited,
  someDuration,
  storeSecret,
  storeUrl,
  toggle,
  upstreamUrl,
} from './config-kinds.ts';

/** The rules that can end in a refusal (behaviour.md section 3, and the outcome `empty-replay` of section 4). */
export const REFUSABLE = [
  'minted-id',
  'session-ended',
  'generation-mismatch',
  'finished-while-listening',
  'finished-storm',
  'below-replay-floor',
  'cursor-unrecorded',
  'session-unrecorded',
  'empty-replay',
] as const;

/** A rule whose refusal has a status that `refusals` can override. */
export type RefusableRule = (typeof REFUSABLE)[number];

const mode = oneOf(['enforce', 'observe']);
const unrecorded = oneOf(['forward', 'complete', 'refuse']);
const deliveryProof = oneOf(['connection', 'event-id']);
const refuseWith = oneOf(['auto', 'status', 'event']);

const statusProblem = { error: 'must be the status 204 or one from 400 to 599' };
const status = z.union(
  [z.literal(204, statusProblem), z.int(statusProblem).min(400, statusProblem).max(599, statusProblem)],
  statusProblem,
);
const refusals = kind(
  z.partialRecord(z.enum(REFUSABLE), status, { error: 'must give rules their status, such as empty-replay: 410' }),
  ruleStatuses,
);

const routeProblem = { error: 'must be a route of path and upstream' };
const route = z.strictObject(
  {
    host: routeHost.schema.optional(),
    path: pathPrefix.schema,
    upstream: upstreamUrl.schema,
    mode: mode.schema.optional(),
    unrecorded: unrecorded.schema.optional(),
    deliveryProof: deliveryProof.schema.optional(),
    refuseWith: refuseWith.schema.optional(),
    dedupe: toggle.schema.optional(),
    preserveHost: toggle.schema.optional(),
    durableEvents: toggle.schema.optional(),
    instanceField: fieldName.schema.optional(),
  },
  // An unknown key keeps zod's own issue, which config.ts turns into a suggestion.
  { error: (issue) => (issue.code === 'unrecognized_keys' ? undefined : routeProblem.error) },
);
const routes = kind(z.array(route, { error: 'must be a list of routes' }).min(1, 'must have at least one route'), json);

/** What a route can say. */
export const ROUTE_KEYS: readonly string[] = Object.keys(route.shape);

interface Names {
  /** The variable without its prefix, where it does not follow from the key. */
  readonly variable?: string;
  /** The option as commander declares it. */
  readonly option?: string;
  /** Never printed. */
  readonly secret?: true;
}

/** One row: the form, the default as one would write it in the file (undefined: none), and what it is for. */
export interface Setting<S extends z.ZodType = z.ZodType, Initial = unknown> extends Names {
  readonly kind: Kind<S>;
  readonly initial: Initial;
  readonly about: string;
}

const setting = <S extends z.ZodType, const Initial extends z.input<S> | undefined>(
  form: Kind<S>,
  initial: Initial,
  about: string,
  names: Names = {},
): Setting<S, Initial> => ({ kind: form, initial, about, ...names });

/** The table of settings. The order is the order of the file, the schema and the output of check-config. */
export const SETTINGS = {
  'upstream.url': setting(upstreamUrl, undefined, 'the MCP server; with a path only that path is guarded', {
    variable: 'UPSTREAM',
    option: '--upstream <url>',
  }),
  'upstream.durableEvents': setting(toggle, false, 'the event store of the server survives its restarts', {
    variable: 'DURABLE_EVENTS',
    option: '--durable-events',
  }),
  'upstream.instanceField': setting(fieldName, undefined, 'a response field that changes when the server restarts'),
  'upstream.ca': setting(
    filePath,
    undefined,
    'PEM file of the authorities to trust upstream, instead of the usual ones',
  ),
  'upstream.cert': setting(filePath, undefined, 'PEM file of the certificate to show upstream'),
  'upstream.key': setting(filePath, undefined, 'PEM file of the key of upstream.cert'),
  routes: setting(routes, undefined, 'several upstreams by host and path, instead of upstream.url'),
  listen: setting(address, '127.0.0.1:8808', 'where clients connect; port 0 picks a free one', {
    option: '--listen <host:port>',
  }),
  'tls.cert': setting(filePath, undefined, 'PEM file of the certificate to show clients'),
  'tls.key': setting(filePath, undefined, 'PEM file of the key of tls.cert'),
  allowedHosts: setting(
    hosts,
    undefined,
    'Host names to accept; on a loopback address the loopback names, else every one',
  ),
  allowedOrigins: setting(
    origins,
    undefined,
    'Origins to accept; on a loopback address the loopback ones, else every one',
  ),
  'admin.listen': setting(addressOrOff, '127.0.0.1:8809', 'where health, metrics and the admin page are, or off', {
    variable: 'ADMIN',
    option: '--admin <host:port>',
  }),
  'admin.token': setting(secret, undefined, 'the bearer token that admin pages want on a public address', {
    secret: true,
  }),
  'admin.open': setting(toggle, false, 'admin pages need no token on a public address either'),
  mode: setting(mode, 'enforce', 'observe decides, logs and counts, and changes nothing', {
    option: '--mode <enforce|observe>',
  }),
  unrecorded: setting(unrecorded, 'forward', 'what to do with a cursor that was never seen here', {
    option: '--unrecorded <forward|complete|refuse>',
  }),
  refuseWith: setting(refuseWith, 'auto', 'the form of a refusal', { option: '--refuse-with <auto|status|event>' }),
  refusals: setting(refusals, {}, 'another status for the refusals of single rules'),
  proxyStatus: setting(toggle, true, 'mark refusals and stripped exchanges with Proxy-Status (RFC 9209)'),
  deliveryProof: setting(deliveryProof, 'connection', 'what proves that a client has its result', {
    option: '--delivery-proof <connection|event-id>',
  }),
  proofMemory: setting(duration, '60s', 'how long a delivery that only the connection proves stays proven'),
  dedupe: setting(toggle, true, 'drop events of a replay that the client already has'),
  replayHold: setting(duration, '2s', 'how long the head of a replay waits for its first event', {
    option: '--replay-hold <duration>',
  }),
  replayDeadline: setting(someDuration, '5s', 'how long the replay of an undelivered result may take to begin'),
  'tap.maxHeldBytes': setting(size, '1MiB', 'the most bytes of one stream that are held back'),
  sessionMemory: setting(duration, '10m', 'how long an ended session is remembered'),
  store: setting(
    storeUrl,
    'memory',
    'where sessions are remembered: memory, or the URL of the Redis that several replicas share',
    {
      option: '--store <memory or redis-url>',
    },
  ),
  storeFailure: setting(oneOf(['forward', 'refuse']), 'forward', 'what to do with a resume while the store is down'),
  storeSecret: setting(
    storeSecret,
    undefined,
    'what is stored is hashed with this; the same for all replicas, and needed by every store but memory',
    { secret: true },
  ),
  storeCa: setting(filePath, undefined, 'PEM file of the authorities to trust at the store, instead of the usual ones'),
  preserveHost: setting(toggle, false, 'send the Host of the client upstream'),
  keepAlive: setting(durationOrOff, 'off', 'write a comment line into a quiet stream this often, or off'),
  connectTimeout: setting(duration, '5s', 'how long connecting to upstream may take; 0 is without limit'),
  drainDelay: setting(duration, '0s', 'how long after SIGTERM new connections are still accepted'),
  drainTimeout: setting(duration, '10s', 'how long open exchanges may go on after that'),
  'log.level': setting(
    oneOf(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent']),
    'info',
    'the least level',
    {
      option: '--log-level <level>',
    },
  ),
  'log.format': setting(oneOf(['json', 'pretty']), undefined, 'pretty on a terminal, else json', {
    option: '--log-format <json|pretty>',
  }),
  'bounds.memory': setting(size, '64MiB', 'the most memory that everything remembered may take'),
  'bounds.sessions': setting(count, 10_000, 'the most sessions; the one not used for longest is forgotten first'),
  'bounds.streamsPerSession': setting(count, 1_000, 'the most streams of one session'),
  'bounds.eventIdsPerStream': setting(count, 1_000, 'the most event IDs of one stream'),
  'bounds.finishedStreamMemory': setting(duration, '10m', 'how long a finished stream is remembered'),
  'bounds.openStreamMemory': setting(duration, '1h', 'how long an open stream without an exchange is remembered'),
  'bounds.eventIdBytes': setting(size, 256, 'longer event IDs are kept as hashes'),
  'bounds.concurrentStreams': setting(count, 10_000, 'the most exchanges that are read at once'),
  'bounds.kernelReading': setting(duration, '20ms', 'how long one reading of /proc/net/tcp is shared'),
  'bounds.connections': setting(count, 20_000, 'the most connections of clients'),
  'bounds.fieldBytes': setting(fieldSize, '128KiB', 'the most bytes of the header fields of one message'),
  'bounds.bodyBytes': setting(sizeOrUnlimited, 0, 'the most bytes of a request body; 0 is without limit'),
  'bounds.headTimeout': setting(duration, '30s', 'how long a client may take to send its head; 0 is without limit'),
} as const;

/** The name of a setting, with its section. */
export type Key = keyof typeof SETTINGS;

type Form<K extends Key> = (typeof SETTINGS)[K]['kind']['schema'];
type Optional<K extends Key> = undefined extends (typeof SETTINGS)[K]['initial'] ? undefined : never;

/** All settings as the program reads them; those without a default may be undefined. */
export type Values = { readonly [K in Key]: z.output<Form<K>> | Optional<K> };

type SectionName = Key extends infer K ? (K extends `${infer S}.${string}` ? S : never) : never;
type Section<S extends string> = {
  readonly [K in Key as K extends `${S}.${infer Leaf}` ? Leaf : never]?: z.input<Form<K>>;
};

/** A configuration as one writes it in a file. */
export type ConfigFile = {
  readonly [K in Key as K extends `${string}.${string}` ? never : K]?: z.input<Form<K>>;
} & { readonly [S in SectionName]?: Section<S> };

/** All keys, in the order of the table. */
export const KEYS = Object.keys(SETTINGS) as Key[];

/** Whether a dotted name is that of a setting. */
export function isKey(name: string): name is Key {
  return Object.hasOwn(SETTINGS, name);
}

/** The keys of a section without its name, `tap` has `maxHeldBytes`; none for what is no section. */
export function keysOf(section: string): readonly string[] {
  return KEYS.filter((key) => key.startsWith(`${section}.`)).map((key) => key.slice(section.length + 1));
}

/** What every variable of the environment starts with. */
export const PREFIX = 'MCP_RESUME_GUARD_';

/** The variable of a setting: `tap.maxHeldBytes` is `MCP_RESUME_GUARD_TAP_MAX_HELD_BYTES`. */
export function variableOf(key: Key): string {
  const row: Setting = SETTINGS[key];
  const derived = key.replace(/\./g, '_').replace(/[A-Z]/g, (letter) => `_${letter}`);
  return PREFIX + (row.variable ?? derived.toUpperCase());
}

/** The option of a setting as one types it, without its value; undefined where there is none. */
export function optionOf(key: Key): string | undefined {
  const row: Setting = SETTINGS[key];
  return row.option?.split(' ')[0];
}
