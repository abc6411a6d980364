/** A resume, from its fields to a verdict: read the cursor, ask the ledger, decide. */
import { decide, type Verdict } from '../core/decide.ts';
import type { Fields } from '../core/fields.ts';
import { forgetExpired, type Session } from '../core/ledger.ts';
import { noteVerdict, type Resolution, resolveResume } from '../core/resolve.ts';
import { readResumeRequest } from '../core/resume-request.ts';
import type { EventKey } from '../core/terms.ts';
import type { ClientRoom } from './room.ts';

/** A resume that was decided. */
export interface Resume {
  readonly verdict: Verdict;
  readonly resolution: Resolution;
  /** Null where it was never seen. */
  readonly session: Session | null;
  readonly cursor: EventKey | null;
}

/** `key` is null where the request names more than one session. */
export function decideResume(room: ClientRoom, fields: Fields, key: string | null): Resume {
  const { store, tokens, asked, bounds, now, judging } = room;
  const session = key === null ? null : store.recall(key, now());
  if (session !== null) forgetExpired(session, bounds, now());
  const resolution = resolveResume(readResumeRequest(tokens, fields, false), session, judging());
  const { facts } = resolution;
  const listening = facts.listening || (session !== null && !session.anonymous && asked.any(session));
  const verdict = decide({ ...facts, listening });
  if (session !== null) noteVerdict(session, resolution, verdict, now());
  return { verdict, resolution, session, cursor: resolution.cursor };
}
