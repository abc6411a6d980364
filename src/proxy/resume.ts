/**
 * A resume, from its fields to a verdict: read the cursor, look whether upstream is still the one that minted it, ask
 * the ledger, ask the kernel where that makes a difference, decide.
 */
import { decide, type Verdict } from '../core/decide.ts';
import type { ConnectionFacts } from '../core/delivery.ts';
import { eventKeyOfField, eventKeyOfFieldAsUtf8 } from '../core/event-key.ts';
import { allValues, type Fields } from '../core/fields.ts';
import { beginGeneration, forgetExpired, restartedBetween, type Session } from '../core/ledger.ts';
import {
  noteVerdict,
  type Resolution,
  type ResolveOptions,
  type ResumeRequest,
  resolveResume,
} from '../core/resolve.ts';
import type { EventKey } from '../core/terms.ts';
import type { SessionKey } from '../store/store.ts';
import { tupleFor } from './connection.ts';
import type { RouteRoom } from './room.ts';

/** A resume that was decided. */
export interface Resume {
  readonly verdict: Verdict;
  readonly resolution: Resolution;
  /** Null where it was never seen. */
  readonly session: Session | null;
  readonly cursor: EventKey | null;
}

/** `key` is null where the request names more than one session; `forwarded`: it came through another intermediary. */
export async function decideResume(
  room: RouteRoom,
  fields: Fields,
  key: SessionKey | null,
  forwarded: boolean,
): Promise<Resume> {
  const { store, now, bounds, kernel } = room;
  const request = readResume(room, fields, forwarded);
  const session = key === null ? null : store.recall(key, now());
  if (session !== null) {
    if (!session.anonymous) await noticeRestart(room, session);
    forgetExpired(session, bounds, now());
  }
  let resolution = resolveResume(request, session, resolveOptions(room));
  if (resolution.unsettled.length > 0) {
    const views = await kernel.connections();
    const kernelOf = (facts: ConnectionFacts) => {
      const tuple = tupleFor(facts);
      return tuple === null ? 'unknown' : views(tuple);
    };
    resolution = resolveResume(request, session, resolveOptions(room, kernelOf));
  }
  const verdict = decide(resolution.facts);
  if (session !== null) noteVerdict(session, resolution, verdict, now());
  return { verdict, resolution, session, cursor: resolution.cursor };
}

/** What delivery is judged by, now. Without `kernelOf` the kernel has not been asked. */
export function resolveOptions(
  { route, proofMemory, now }: RouteRoom,
  kernelOf: ResolveOptions['kernelOf'] = () => undefined,
): ResolveOptions {
  return { unrecorded: route.unrecorded, deliveryProof: route.deliveryProof, proofMemory, now: now(), kernelOf };
}

function readResume({ tokens }: RouteRoom, fields: Fields, forwarded: boolean): ResumeRequest {
  const cursors = allValues(fields, 'last-event-id');
  const value = cursors.length === 1 ? cursors[0]! : '';
  const readings = [eventKeyOfField(value, tokens.seed), eventKeyOfFieldAsUtf8(value, tokens.seed)];
  return {
    get: true,
    cursorFields: cursors.length,
    cursorEmpty: value.trim() === '',
    sessionFields: allValues(fields, 'mcp-session-id').length,
    withoutResumption: false,
    minted: tokens.isMinted(value),
    cursor: readings.filter((key) => key !== null),
    caller: tokens.credentialOf(fields),
    forwarded,
  };
}

/** Where upstream is known to be down, connects first: only then can it be told whether it is still the same. */
async function noticeRestart({ upstream, observer }: RouteRoom, session: Session): Promise<void> {
  let identity = await upstream.identify();
  if (upstream.isDown(identity) && (await upstream.reach()) === null) identity = await upstream.identify();
  if (!restartedBetween(session.upstream, identity)) return;
  beginGeneration(session, identity);
  observer.generation('restart');
}
