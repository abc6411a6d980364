/**
 * Refusals (behaviour.md section 7): which status, which words, and in which form.
 *
 * A refusal is an answer of ours in upstream's place, so it says so (`Proxy-Status`), says what to do next (`retry`),
 * and reflects nothing: no cursor, no session ID. The `event` form is an ordinary stream with one JSON-RPC error for
 * the pending request, which every SDK understands at once; it needs to know that request's id.
 */
import type { RuleName } from './decide.ts';
import { carriedOver, type Fields } from './fields.ts';
import { idTextOf } from './jsonrpc.ts';
import type { Millis, RequestKey } from './terms.ts';

export type RefusalRule =
  | Extract<
      RuleName,
      | 'minted-id'
      | 'session-ended'
      | 'generation-mismatch'
      | 'finished-while-listening'
      | 'finished-storm'
      | 'below-replay-floor'
      | 'cursor-unrecorded'
      | 'session-unrecorded'
    >
  | 'empty-replay';

export interface RefusalRow {
  readonly status: 404 | 405 | 409;
  /** What the client should do: send the request again, start a new session, or nothing. */
  readonly retry: 'request' | 'session' | 'none';
  readonly message: string;
}

const sendAgain = 'send the request again, with idempotency protection.';
const startAnew = 'start a new session.';

export const REFUSALS: Readonly<Record<RefusalRule, RefusalRow>> = {
  'minted-id': { status: 405, retry: 'none', message: 'This event ended the request; there is nothing to resume.' },
  'session-ended': { status: 404, retry: 'session', message: `The session has ended: ${startAnew}` },
  'generation-mismatch': {
    status: 409,
    retry: 'session',
    message: `The cursor belongs to an earlier generation of this session: ${startAnew}`,
  },
  'finished-while-listening': {
    status: 409,
    retry: 'none',
    message: 'The request is finished and was delivered, and a listening stream is open.',
  },
  'finished-storm': {
    status: 409,
    retry: 'none',
    message: 'The request is finished and was delivered; resuming it again and again brings nothing.',
  },
  'below-replay-floor': {
    status: 409,
    retry: 'request',
    message: `The server can no longer replay after this cursor: ${sendAgain}`,
  },
  'cursor-unrecorded': {
    status: 409,
    retry: 'request',
    message: `The cursor was never seen in this session: ${sendAgain}`,
  },
  'session-unrecorded': { status: 404, retry: 'session', message: `The session is not known here: ${startAnew}` },
  'empty-replay': {
    status: 409,
    retry: 'request',
    message: `The server answered the cursor with nothing, so what came after it may be lost: ${sendAgain}`,
  },
};

export const REFUSAL_CODE = -32010;

/** Answers that escalate to the event form come at least this long after the first refusal of the cursor. */
const ESCALATION: Millis = 800;

export type RefusalForm = 'status' | 'event' | 'upstream';

export interface RefusalContext {
  readonly rule: RefusalRule;
  readonly refuseWith: 'auto' | 'status' | 'event';
  /** The request carried `MCP-Protocol-Version`. */
  readonly versioned: boolean;
  readonly userAgent: string;
  /** The only request that can be waiting for this answer, or null where it is none or not known. */
  readonly pending: RequestKey | null;
  /** When this cursor was first refused (null: this is the first). */
  readonly firstRefusedAt: Millis | null;
  readonly now: Millis;
}

const isGo = (agent: string): boolean => agent.startsWith('Go-http-client/');
const isNode = (agent: string): boolean => agent === 'node' || agent === 'undici';

/** Go's SDK tears down the session on any status but 2xx, so a failure of upstream must look like a lost connection. */
export function wantsConnectionLost(context: Pick<RefusalContext, 'refuseWith' | 'versioned' | 'userAgent'>): boolean {
  return context.refuseWith === 'auto' && context.versioned && isGo(context.userAgent);
}

/** `upstream` means: no refusal at all, what upstream says (or would say) goes to the client. */
export function refusalForm(context: RefusalContext): RefusalForm {
  const possible = context.pending !== null ? 'event' : 'status';
  if (context.refuseWith !== 'auto') return context.refuseWith === 'event' ? possible : 'status';
  if (wantsConnectionLost(context)) return context.pending !== null ? 'event' : 'upstream';
  const again = context.firstRefusedAt !== null && context.now - context.firstRefusedAt >= ESCALATION;
  return context.versioned && again ? possible : 'status';
}

/** Status of the `status` form: the rule's own, the operator's, or 405 where it stops a client quietly. */
export function refusalStatus(context: RefusalContext, overrides: Partial<Record<RefusalRule, number>>): number {
  const override = overrides[context.rule];
  if (override !== undefined) return override;
  const finished = context.rule === 'finished-while-listening' || context.rule === 'finished-storm';
  if (finished && context.refuseWith === 'auto' && context.versioned && isNode(context.userAgent)) return 405;
  return REFUSALS[context.rule].status;
}

function errorObject(rule: RefusalRule): string {
  const { message, retry } = REFUSALS[rule];
  return JSON.stringify({ code: REFUSAL_CODE, message, data: { rule, retry } });
}

/** Body of the `status` form. It has no `id`: a refusal answers no request. */
export function refusalBody(rule: RefusalRule): string {
  return `{"jsonrpc":"2.0","error":${errorObject(rule)}}`;
}

/** Body of the `event` form: one event, whose ID we minted so that a client coming back with it is known. */
export function refusalEvent(rule: RefusalRule, pending: RequestKey, mintedId: string): string {
  const data = `{"jsonrpc":"2.0","id":${idTextOf(pending)},"error":${errorObject(rule)}}`;
  return `event: message\nid: ${mintedId}\ndata: ${data}\n\n`;
}

/** RFC 9209. `received` is upstream's status, where upstream was asked. */
export function proxyStatus(details: RefusalRule | RuleName, received: number | null): string {
  const asked = received === null ? '' : ` received-status=${received};`;
  return `mcp-resume-guard;${asked} details="${details}"`;
}

/** A refusal as an HTTP message. */
export interface RefusalAnswer {
  readonly status: number;
  /** Without `Content-Length`. */
  readonly fields: string[];
  readonly body: string;
}

export interface AnswerOptions {
  /** The operator's statuses. */
  readonly refusals: Readonly<Partial<Record<RefusalRule, number>>>;
  readonly proxyStatus: boolean;
  /** A new event ID of ours. */
  readonly mint: () => string;
}

/** `upstream` is the answer that is replaced, or null where upstream was not asked; then `cors` takes its part. */
export function refusalAnswer(
  context: RefusalContext,
  options: AnswerOptions,
  upstream: { readonly status: number; readonly fields: Fields } | null,
  cors: Fields,
): RefusalAnswer {
  const { rule, pending } = context;
  const asEvent = refusalForm(context) === 'event' && pending !== null;
  const status = asEvent ? 200 : refusalStatus(context, options.refusals);
  const body = asEvent ? refusalEvent(rule, pending, options.mint()) : refusalBody(rule);
  const fields = ['Content-Type', asEvent ? 'text/event-stream' : 'application/json', 'Cache-Control', 'no-store'];
  if (status === 405) fields.push('Allow', 'POST, DELETE');
  if (options.proxyStatus) fields.push('Proxy-Status', proxyStatus(rule, upstream?.status ?? null));
  fields.push(...(upstream === null ? cors : carriedOver(upstream.fields)));
  return { status, fields, body: status === 204 ? '' : body };
}
