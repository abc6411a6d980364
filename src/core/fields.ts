/**
 * Field names and what becomes of them on the way (RFC 9110 sections 5 and 7.6.1). Fields are flat arrays of names and
 * values, as Node and undici give and take them: order and repetition survive, values are Latin-1 and never changed.
 */

/** `[name, value, name, value, …]` */
export type Fields = readonly string[];

const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
]);

/** What `Connection` may not remove: without these the protocol changes its meaning. */
const PROTECTED = new Set(['mcp-session-id', 'last-event-id', 'authorization', 'mcp-protocol-version']);

export function* pairs(fields: Fields): Generator<[string, string]> {
  for (let i = 0; i + 1 < fields.length; i += 2) yield [fields[i]!, fields[i + 1]!];
}

/** All values of one field, in order. `name` in lower case. */
export function allValues(fields: Fields, name: string): string[] {
  const values: string[] = [];
  for (let i = 0; i + 1 < fields.length; i += 2) {
    if (fields[i]!.length === name.length && fields[i]!.toLowerCase() === name) values.push(fields[i + 1]!);
  }
  return values;
}

/** The value of a field that appears once, or null. `name` in lower case. */
export function onlyValue(fields: Fields, name: string): string | null {
  const [only = null, ...more] = allValues(fields, name);
  return more.length === 0 ? only : null;
}

/** The first value of a field, or null. `name` in lower case. */
export function firstValue(fields: Fields, name: string): string | null {
  for (let i = 0; i + 1 < fields.length; i += 2) {
    if (fields[i]!.length === name.length && fields[i]!.toLowerCase() === name) return fields[i + 1]!;
  }
  return null;
}

const NOTHING_NAMED: ReadonlySet<string> = new Set();

/** Names that `Connection` makes hop-by-hop for this message, protected ones left out. */
function namedByConnection(fields: Fields): ReadonlySet<string> {
  let named: Set<string> | null = null;
  for (const value of allValues(fields, 'connection')) {
    for (const token of value.split(',')) {
      const name = token.trim().toLowerCase();
      if (name === '' || name === 'close' || name === 'keep-alive' || PROTECTED.has(name)) continue;
      named ??= new Set();
      named.add(name);
    }
  }
  return named ?? NOTHING_NAMED;
}

/** What `without` names in lower case, and what is not end-to-end anyway: one search instead of two. */
export const leavingOut = (...without: readonly string[]): ReadonlySet<string> => new Set([...HOP_BY_HOP, ...without]);

/** The fields after those in `kept`, but for those in `out` (see {@link leavingOut}) or named by `Connection`. */
export function endToEnd(fields: Fields, out: ReadonlySet<string> = HOP_BY_HOP, kept: string[] = []): string[] {
  const named = namedByConnection(fields);
  for (let i = 0; i + 1 < fields.length; i += 2) {
    const name = fields[i]!;
    const lower = name.toLowerCase();
    if (out.has(lower) || (named !== NOTHING_NAMED && named.has(lower))) continue;
    kept.push(name, fields[i + 1]!);
  }
  return kept;
}

const UPSTREAM_SETS = ['host', 'expect', 'x-forwarded-for', 'x-forwarded-host', 'x-forwarded-proto', 'via'];
const OUT_UPSTREAM = leavingOut(...UPSTREAM_SETS);
const OUT_UPSTREAM_STRIPPED = leavingOut(...UPSTREAM_SETS, 'last-event-id');
const OUT_RESIZED = leavingOut('content-length');

export interface TowardUpstream {
  /** Authority of upstream, with its port unless it is the scheme's default. */
  readonly authority: string;
  readonly preserveHost: boolean;
  /** Authority the client asked for (`Host`, or of an absolute target). */
  readonly clientAuthority: string | null;
  readonly clientAddress: string;
  readonly scheme: 'http' | 'https';
  readonly httpVersion: string;
  /** Leave out `Last-Event-ID`. */
  readonly strip: boolean;
}

/** The fields of the request upstream gets (behaviour.md sections 8 and 9). */
export function towardUpstream(fields: Fields, how: TowardUpstream): string[] {
  const forwardedFor = allValues(fields, 'x-forwarded-for');
  const forwardedHost = firstValue(fields, 'x-forwarded-host') ?? how.clientAuthority;
  const host = how.preserveHost && how.clientAuthority !== null ? how.clientAuthority : how.authority;
  const out = endToEnd(fields, how.strip ? OUT_UPSTREAM_STRIPPED : OUT_UPSTREAM, ['Host', host]);
  out.push('X-Forwarded-For', after(forwardedFor, how.clientAddress));
  if (forwardedHost !== null) out.push('X-Forwarded-Host', forwardedHost);
  out.push('X-Forwarded-Proto', firstValue(fields, 'x-forwarded-proto') ?? how.scheme);
  out.push('Via', after(allValues(fields, 'via'), `${how.httpVersion} mcp-resume-guard`));
  return out;
}

/** A list with one more member. */
const after = (values: readonly string[], last: string): string =>
  values.length === 0 ? last : `${values.join(', ')}, ${last}`;

/** Whether another intermediary stands between us and the client (then our connection proves nothing about it). */
export function cameThroughIntermediary(fields: Fields): boolean {
  for (let i = 0; i + 1 < fields.length; i += 2) {
    const name = fields[i]!.toLowerCase();
    if (name === 'via' || name === 'forwarded' || name === 'x-forwarded-for') return true;
  }
  return false;
}

/** The essence of a media type: lower case, no parameters. */
export function mediaType(value: string | null): string {
  if (value === null) return '';
  const parameters = value.indexOf(';');
  return (parameters === -1 ? value : value.slice(0, parameters)).trim().toLowerCase();
}

/** What a refusal takes over from upstream's answer: CORS, `Vary`, the session, cookies (section 7). */
export function carriedOver(fields: Fields): string[] {
  const kept: string[] = [];
  for (const [name, value] of pairs(fields)) {
    const lower = name.toLowerCase();
    const isCarried = lower === 'vary' || lower === 'mcp-session-id' || lower === 'set-cookie';
    if (isCarried || lower.startsWith('access-control-')) kept.push(name, value);
  }
  return kept;
}

/** CORS fields of an answer, kept for refusals from memory toward the same `Origin`. */
export function corsOf(fields: Fields): string[] {
  const kept: string[] = [];
  for (const [name, value] of pairs(fields)) {
    const lower = name.toLowerCase();
    if (lower === 'vary' || lower.startsWith('access-control-')) kept.push(name, value);
  }
  return kept;
}

export interface TowardClient {
  /** Scheme, host and port of upstream. */
  readonly upstreamOrigin: string;
  /** The same of ours, as the client named it; null where it did not. */
  readonly ourOrigin: string | null;
  /** The body is not what it was: leave out `Content-Length`. */
  readonly resized: boolean;
}

/** The fields of the response the client gets: end-to-end ones, as they are, but for `Location`. */
export function towardClient(fields: Fields, { upstreamOrigin, ourOrigin, resized }: TowardClient): string[] {
  const kept = endToEnd(fields, resized ? OUT_RESIZED : HOP_BY_HOP);
  for (let i = 0; i + 1 < kept.length; i += 2) {
    if (kept[i]!.length !== 8 || kept[i]!.toLowerCase() !== 'location') continue;
    kept[i + 1] = rewriteLocation(kept[i + 1]!, upstreamOrigin, ourOrigin);
  }
  return kept;
}

/** `Location` on upstream's own origin is rewritten to ours; anything else stays as it is. */
export function rewriteLocation(value: string, upstreamOrigin: string, ourOrigin: string | null): string {
  if (ourOrigin === null) return value;
  // A network-path reference keeps the scheme (RFC 3986 section 4.2).
  const drop = value.startsWith('//') ? (origin: string) => origin.slice(origin.indexOf('//')) : String;
  const ours = drop(ourOrigin);
  for (const theirs of spellings(upstreamOrigin).map(drop)) {
    if (!value.toLowerCase().startsWith(theirs.toLowerCase())) continue;
    const rest = value.slice(theirs.length);
    if (rest === '' || '/?#'.includes(rest[0]!)) return ours + rest;
  }
  return value;
}

/** An origin without and with the port that its scheme implies. */
function spellings(origin: string): string[] {
  if (/:\d+$/.test(origin)) return [origin];
  return [origin, origin + (origin.startsWith('https:') ? ':443' : ':80')];
}

/** Revision dates compare as text. Absent counts as 2025-03-26, which has resumption. */
export function isWithoutResumption(revision: string | null): boolean {
  return revision !== null && /^\d{4}-\d{2}-\d{2}$/.test(revision.trim()) && revision.trim() >= '2026-07-28';
}
