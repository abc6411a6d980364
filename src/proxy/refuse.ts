/** A refusal as an HTTP answer (behaviour.md section 7), and the context that decides its form. */
import { carriedOver, type Fields, firstValue } from '../core/fields.ts';
import type { Session } from '../core/ledger.ts';
import {
  proxyStatus,
  type RefusalContext,
  type RefusalRule,
  refusalBody,
  refusalEvent,
  refusalForm,
  refusalStatus,
} from '../core/refusal.ts';
import { noteRefusal, type Owner, pendingRequest } from '../core/resolve.ts';
import type { EventKey } from '../core/terms.ts';
import type { RouteRoom } from './room.ts';

export interface Answer {
  readonly status: number;
  readonly fields: readonly string[];
  readonly body: string;
}

/** What the form of an answer depends on beside the rule: who asks, and how. */
export function agentOf(
  { route }: RouteRoom,
  fields: Fields,
): Pick<RefusalContext, 'refuseWith' | 'versioned' | 'userAgent'> {
  return {
    refuseWith: route.refuseWith,
    versioned: firstValue(fields, 'mcp-protocol-version') !== null,
    userAgent: firstValue(fields, 'user-agent') ?? '',
  };
}

/** Writes down that the cursor is being refused. `owners`: the streams that may hold the request that waits. */
export function refusalContext(
  room: RouteRoom,
  fields: Fields,
  rule: RefusalRule,
  session: Session | null,
  cursor: EventKey | null,
  owners: readonly Owner[],
): RefusalContext {
  const now = room.now();
  const firstRefusedAt = session === null || cursor === null ? null : noteRefusal(session, cursor, now);
  return { rule, ...agentOf(room, fields), pending: pendingRequest(owners), firstRefusedAt, now };
}

/** `upstream` is the answer that is replaced, or null where upstream was not asked. */
export function refusalAnswer(
  room: RouteRoom,
  context: RefusalContext,
  upstream: { readonly status: number; readonly fields: Fields } | null,
  cors: readonly string[],
): Answer {
  const { rule, pending } = context;
  const asEvent = refusalForm(context) === 'event' && pending !== null;
  const status = asEvent ? 200 : refusalStatus(context, room.refusals);
  const body = asEvent ? refusalEvent(rule, pending, room.tokens.mint()) : refusalBody(rule);
  const fields = ['Content-Type', asEvent ? 'text/event-stream' : 'application/json', 'Cache-Control', 'no-store'];
  if (status === 405) fields.push('Allow', 'POST, DELETE');
  if (room.proxyStatus) fields.push('Proxy-Status', proxyStatus(rule, upstream?.status ?? null));
  fields.push(...(upstream === null ? cors : carriedOver(upstream.fields)));
  if (status === 204) return { status, fields, body: '' };
  fields.push('Content-Length', String(Buffer.byteLength(body)));
  return { status, fields, body };
}
