/**
 * The forms a setting's value can take, in a file and as text (environment, options). Each is a zod schema whose input
 * is what an operator writes and whose output is what the program works with: durations become milliseconds, sizes
 * bytes. Every schema words its own complaint, as the rest of a sentence that starts with the setting's name.
 */
import * as z from 'zod';
import { parseStore } from './config-store.ts';

/** A form: its schema, and how the text of a variable or option becomes the schema's input. */
export interface Kind<S extends z.ZodType = z.ZodType> {
  readonly schema: S;
  readonly fromText: (text: string) => unknown;
}

/** A place to listen at. `host` is a name or an IP address without brackets; port 0 means any free one. */
export interface Address {
  readonly host: string;
  readonly port: number;
}

/** An upstream URL, taken apart. `path` is null where the URL has none. */
export interface UpstreamUrl {
  /** Scheme, host and port as `URL.origin` writes them. */
  readonly origin: string;
  /** Without a trailing slash. */
  readonly path: string | null;
}

const asIs = (text: string): unknown => text;
const kind = <S extends z.ZodType>(schema: S, fromText: (text: string) => unknown = asIs): Kind<S> => ({
  schema,
  fromText,
});

// A timer above 2^31-1 ms fires at once (Node.js, timers), so the largest duration is 24 days.
const LONGEST = 24 * 24 * 3_600_000;
const UNITS: Readonly<Record<string, number>> = {
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
  B: 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
};

function amount(value: string | number): number {
  const [, digits, unit = ''] = /^([\d.]+)(.*)$/.exec(String(value)) ?? [];
  return Math.round(Number(digits) * (UNITS[unit] ?? 1));
}

function durationProblem({ input }: { readonly input?: unknown }): string {
  return typeof input === 'number' || (typeof input === 'string' && /^\d+$/.test(input))
    ? 'must have a unit: ms, s, m or h, such as 250ms or 2s'
    : 'must be a duration, such as 250ms, 2s, 10m or 1h';
}

const durationText = z
  .string({ error: durationProblem })
  .regex(/^(?:0|\d+(?:\.\d+)?(?:ms|s|m|h))$/, { error: durationProblem });
const durationSchema = z
  .union([z.literal(0), durationText], { error: durationProblem })
  .transform(amount)
  .refine((ms) => ms <= LONGEST, { error: 'must be at most 576h (24 days)' });

/** `250ms`, `2s`, `10m`, `1h` or `0`; milliseconds. */
export const duration = kind(durationSchema);

/** As {@link duration}, but longer than nothing. */
export const someDuration = kind(durationSchema.refine((ms) => ms > 0, { error: 'must be longer than 0' }));

const orOff = 'must be a duration, such as 15s, or off';

/** As {@link duration}, or `off`, which becomes null, as `0` does. */
export const durationOrOff = kind(
  z
    .union([z.literal('off', { error: orOff }), z.literal(false, { error: orOff }), durationSchema], { error: orOff })
    .transform((value) => (typeof value === 'number' && value > 0 ? value : null)),
);

function sizeSchema(least: number) {
  const error = 'must be a size in bytes, such as 512, 64KiB, 1MiB or 64MB';
  const text = z.string({ error }).regex(/^\d+(?:\.\d+)?(?:B|[KMG]i?B)?$/, { error });
  return z
    .union([z.int({ error }).min(0, { error }), text], { error })
    .transform(amount)
    .refine((bytes) => bytes >= least, { error: `must be at least ${least} bytes` })
    .refine(Number.isSafeInteger, { error });
}

/** `512`, `64KiB`, `1MiB`, `64MB`; bytes. */
export const size = kind(sizeSchema(1));

/** As {@link size}; 0 is allowed and means no limit. */
export const sizeOrUnlimited = kind(sizeSchema(0));

/** A size of header fields: less than 1 KiB would turn ordinary requests away. */
export const fieldSize = kind(sizeSchema(1024));

function number(text: string): unknown {
  return /^\d+$/.test(text) ? Number(text) : text;
}

const counted = { error: 'must be a whole number, at least 1' };

/** A whole number, at least 1. */
export const count = kind(z.int(counted).min(1, counted), number);

const BOOLEANS: Readonly<Record<string, boolean>> = {
  true: true,
  on: true,
  yes: true,
  1: true,
  false: false,
  off: false,
  no: false,
  0: false,
};

/** `true` or `false`; as text also `on`, `off`, `yes`, `no`, `1`, `0`. */
export const toggle = kind(
  z.boolean({ error: 'must be true or false' }),
  (text) => BOOLEANS[text.toLowerCase()] ?? text,
);

/** One of a few words. */
export function oneOf<const Words extends readonly [string, ...string[]]>(words: Words): Kind<z.ZodEnum<Enum<Words>>> {
  const most = words.slice(0, -1).join(', ');
  return kind(z.enum(words, { error: `must be ${most} or ${words.at(-1)}` }) as z.ZodEnum<Enum<Words>>);
}
type Enum<Words extends readonly string[]> = { [W in Words[number]]: W };

const fileProblem = { error: 'must be the path of a file' };

/** The path of a file that has to be readable. */
export const filePath = kind(z.string(fileProblem).min(1, fileProblem));

// RFC 9110 section 5.1: a field name is a token.
const fieldProblem = { error: 'must be the name of a header field' };

/** The name of a header field, in lower case. */
export const fieldName = kind(
  z
    .string(fieldProblem)
    .regex(/^[\w!#$%&'*+.^`|~-]+$/, fieldProblem)
    .toLowerCase(),
);

const secretProblem = { error: 'must be visible ASCII characters without blanks' };

/** A secret that travels in a header field. The mask that check-config prints is not one. */
export const secret = kind(z.string(secretProblem).regex(/^(?!\*+$)[\x21-\x7e]+$/, secretProblem));

const ADDRESS = /^(\[[\da-fA-F:.]+\]|[^\s:[\]/@]+):(\d{1,5})$/;
const addressProblem = 'must be host:port, such as 127.0.0.1:8808 or [::1]:8808';
const addressSchema = z
  .string({ error: addressProblem })
  .regex(ADDRESS, { error: addressProblem })
  .transform((text): Address => {
    const [, host = '', port] = ADDRESS.exec(text) ?? [];
    return { host: host.replace(/^\[|\]$/g, ''), port: Number(port) };
  })
  .refine(({ port }) => port <= 65_535, { error: 'must have a port from 0 to 65535' });

/** `host:port`, IPv6 in brackets. */
export const address = kind(addressSchema);

const addressOrOffProblem = 'must be host:port, such as 127.0.0.1:8809, or off';

/** As {@link address}, or `off`, which becomes null. */
export const addressOrOff = kind(
  z
    .union(
      [z.literal('off', { error: addressProblem }), z.literal(false, { error: addressOrOffProblem }), addressSchema],
      { error: addressOrOffProblem },
    )
    .transform((value) => (typeof value === 'object' ? value : null)),
);

function list(text: string): unknown {
  return text
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');
}

const hostProblem = { error: 'must be a host name, with a port or without, such as mcp.example.com or localhost:8808' };
const hostText = z
  .string(hostProblem)
  .regex(/^(?:\[[\da-fA-F:.]+\]|[^\s:[\]/@,*?#]+)(?::\d{1,5})?$/, hostProblem)
  .toLowerCase();

/** Host names, with a port or without (then any port fits), in lower case. */
export const hosts = kind(
  z.array(hostText, { error: 'must be a list of host names' }).min(1, { error: 'must name at least one host' }),
  list,
);

const originProblem = { error: 'must be an origin, such as https://app.example.com, or null' };
const originText = z
  .string(originProblem)
  .regex(/^(?:null|[a-zA-Z][\w+.-]*:\/\/[^\s/?#@,*]+)$/, originProblem)
  .transform(canonicalOrigin);

/** Origins as a browser serialises them, in lower case and without a default port (RFC 6454 section 6.2). */
export const origins = kind(z.array(originText, { error: 'must be a list of origins' }), list);

function canonicalOrigin(text: string): string {
  const origin = URL.canParse(text) ? new URL(text).origin : 'null';
  return origin === 'null' ? text.toLowerCase() : origin;
}

const storeProblem =
  'must be memory or a Redis URL, such as redis://localhost:6379/0, redis+cluster://one:6379,two:6379 or ' +
  'redis+sentinel://one:26379,two:26379/mymaster';

/** `memory`, or where Redis is, see `config-store.ts`. */
export const storeUrl = kind(
  z
    .string({ error: storeProblem })
    .refine((text) => text === 'memory' || parseStore(text) !== null, { error: storeProblem }),
);

const storeSecretProblem = { error: 'must be at least 16 visible ASCII characters without blanks' };

/** A secret that nobody has to type. */
export const storeSecret = kind(z.string(storeSecretProblem).regex(/^(?!\*+$)[\x21-\x7e]{16,}$/, storeSecretProblem));

/** The same text with the credentials of every URL in it masked, for output. */
export function maskCredentials(text: string): string {
  return text.replace(/\/\/[^/"\s]*@/g, '//***@');
}

const urlProblem = 'must be an http or https URL, such as http://localhost:3001/mcp';
const urlSchema = z.string({ error: urlProblem }).transform((text, context): UpstreamUrl => {
  const url = URL.canParse(text) ? new URL(text) : null;
  const problem = upstreamProblem(text, url);
  if (url === null || problem !== null) {
    context.issues.push({ code: 'custom', message: problem ?? urlProblem, input: text });
    return z.NEVER;
  }
  const path = url.pathname.replace(/\/$/, '');
  return { origin: url.origin, path: path === '' ? null : path };
});

function upstreamProblem(text: string, url: URL | null): string | null {
  if (url === null || !/^https?:\/\//i.test(text)) {
    if (/^:?\d{1,5}$/.test(text)) return `${urlProblem}; did you mean http://localhost:${text.replace(':', '')}/mcp?`;
    return URL.canParse(`http://${text}`) && /^[\w.-]+(?::\d+)?(?:\/|$)/.test(text)
      ? `${urlProblem}; did you mean http://${text.replace(/[?#].*$/s, '')}?`
      : urlProblem;
  }
  if (url.username !== '' || url.password !== '') return 'must not hold credentials: let the client send them';
  if (url.search !== '' || text.includes('?')) return 'must not hold a query: the client’s own passes unchanged';
  if (url.hash !== '' || text.includes('#')) return 'must not hold a fragment';
  return null;
}

/** Where the server is: `http` or `https`, no credentials, query or fragment. */
export const upstreamUrl = kind(urlSchema);

const pathProblem = { error: 'must be a path that starts with /, without query or fragment' };

/** A path as it stands in a request line, without a trailing slash, except for `/` itself. */
export const pathPrefix = kind(
  z
    .string(pathProblem)
    .regex(/^\/[^\s?#]*$/, pathProblem)
    .transform((path) => path.replace(/(?<=.)\/$/, '')),
);

const routeHostProblem = { error: 'must be a host name without a port, such as mcp.example.com' };

/** The host name of a route, in lower case. */
export const routeHost = kind(
  z
    .string(routeHostProblem)
    .regex(/^(?:\[[\da-fA-F:.]+\]|[^\s:[\]/@,*?#]+)$/, routeHostProblem)
    .toLowerCase(),
);

/** `rule=status,rule=status` as text; a text of another shape is left for the schema to complain about. */
export function ruleStatuses(text: string): unknown {
  const pairs = (list(text) as string[]).map((item) => item.split('='));
  return pairs.every((pair) => pair.length === 2)
    ? Object.fromEntries(pairs.map(([rule = '', status = '']) => [rule.trim(), number(status.trim())]))
    : text;
}

/** JSON as text; text that is none is left for the schema to complain about. */
export function json(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A form of its own, for a setting that no other shares. */
export { kind };
