/** A refusal as an HTTP answer (behaviour.md section 7), and the context that decides its form. */
import { type Fields, firstValue } from '../core/fields.ts';
import type { Session } from '../core/ledger.ts';
import { refusalAnswer as answerOf, type RefusalContext, type RefusalRule } from '../core/refusal.ts';
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
  const { refusals, proxyStatus, tokens } = room;
  const answer = answerOf(context, { refusals, proxyStatus, mint: tokens.mint }, upstream, cors);
  if (answer.status !== 204) answer.fields.push('Content-Length', String(Buffer.byteLength(answer.body)));
  return answer;
}
