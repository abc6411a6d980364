/** A refusal as a `Response` (behaviour.md section 7), in the form that this SDK makes the best of. */
import type { Session } from '../core/ledger.ts';
import { type RefusalRule, refusalAnswer } from '../core/refusal.ts';
import { noteRefusal, type Owner, pendingRequest } from '../core/resolve.ts';
import type { EventKey } from '../core/terms.ts';
import { fieldsOf } from './call.ts';
import type { ClientRoom } from './room.ts';

export interface Refused {
  readonly rule: RefusalRule;
  readonly session: Session | null;
  readonly cursor: EventKey | null;
  /** The streams that may hold the request that waits. */
  readonly owners: readonly Owner[];
  /** The server's answer that is replaced, or null where it was not asked. */
  readonly replaced: Response | null;
}

const STATUS_TEXT: Readonly<Record<number, string>> = { 404: 'Not Found', 405: 'Method Not Allowed', 409: 'Conflict' };

/** An error for the pending call, which fails at once; where no single one is known, the status that stops the SDK. */
export function refuse(room: ClientRoom, url: URL, { rule, session, cursor, owners, replaced }: Refused): Response {
  const now = room.now();
  const pending = pendingRequest(owners);
  const context = {
    rule,
    refuseWith: pending === null ? ('auto' as const) : ('event' as const),
    // Who asks is known: the official SDK, which always names its revision by the time it has a cursor.
    versioned: true,
    userAgent: 'node',
    pending,
    firstRefusedAt: session === null || cursor === null ? null : noteRefusal(session, cursor, now),
    now,
  };
  const upstream = replaced && { status: replaced.status, fields: fieldsOf(replaced.headers) };
  const options = { refusals: {}, proxyStatus: true, mint: room.tokens.mint };
  const { status, fields, body } = refusalAnswer(context, options, upstream, []);
  const headers = new Headers();
  for (let i = 0; i + 1 < fields.length; i += 2) headers.append(fields[i]!, fields[i + 1]!);
  const response = new Response(body, { status, statusText: STATUS_TEXT[status] ?? '', headers });
  return Object.defineProperty(response, 'url', { value: url.href });
}
