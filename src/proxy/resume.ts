/**
 * A resume, from its fields to a verdict: read the cursor, look whether upstream is still the one that minted it, ask
 * the ledger, ask the kernel where that makes a difference, decide.
 */
import { decide, type Verdict } from '../core/decide.ts';
import type { Fields } from '../core/fields.ts';
import { isAnonymous } from '../core/learning.ts';
import { beginGeneration, forgetExpired, restartedBetween, type Session } from '../core/ledger.ts';
import {
  noteVerdict,
  type Resolution,
  type ResolveOptions,
  type ResumeRequest,
  resolveResume,
  unsettledSince,
} from '../core/resolve.ts';
import { readResumeRequest } from '../core/resume-request.ts';
import type { EventKey } from '../core/terms.ts';
import { GuardError } from '../errors.ts';
import type { Consulted, SessionKey } from '../store/store.ts';
import { tupleFor } from './connection.ts';
import type { RouteRoom } from './room.ts';

/** A resume that was decided. */
export interface Resume {
  readonly verdict: Verdict;
  readonly resolution: Resolution;
  /** Null where it was never seen. */
  readonly session: Session | null;
  readonly cursor: EventKey | null;
  /** What the kernel said of the connections that results went out on, as far as it was asked. */
  readonly kernelOf: ResolveOptions['kernelOf'];
}

/** No reading of the kernel's table was needed. */
export const NOT_ASKED: ResolveOptions['kernelOf'] = () => undefined;

/** `key` is null where the request names more than one session; `forwarded`: it came through another intermediary. */
export async function decideResume(
  room: RouteRoom,
  fields: Fields,
  key: SessionKey | null,
  forwarded: boolean,
): Promise<Resume> {
  const request = readResumeRequest(room.tokens, fields, forwarded);
  if (key === null || !asksLedger(request)) return judge(room, request, key, 'own');
  const consulted = await consult(room, key);
  if (consulted === 'failed' && room.storeFailure === 'refuse' && room.route.mode === 'enforce') {
    throw new GuardError('store-unavailable');
  }
  const resume = await judge(room, request, key, consulted);
  if (consulted !== 'whole' || !isUnrecordedRefusal(resume.verdict)) return resume;
  // What passed at another replica a moment ago may be on its way.
  await room.store.settled();
  return judge(room, request, key, await consult(room, key));
}

function isUnrecordedRefusal({ rule, action }: Verdict): boolean {
  return action === 'refuse' && (rule === 'cursor-unrecorded' || rule === 'session-unrecorded');
}

/** The rules before those that need the ledger do not fit. */
function asksLedger(request: ResumeRequest): boolean {
  const { get, cursorFields, cursorEmpty, sessionFields, withoutResumption, minted } = request;
  return get && cursorFields === 1 && !cursorEmpty && sessionFields <= 1 && !withoutResumption && !minted;
}

function consult({ store, upstream }: RouteRoom, key: SessionKey): Promise<Consulted> {
  return store.consult(key, { anonymous: isAnonymous(key), upstream: () => upstream.identify() });
}

/** Decides, and writes it down. `consulted`: what the ledger holds beside what passed here. */
async function judge(
  room: RouteRoom,
  request: ResumeRequest,
  key: SessionKey | null,
  consulted: Consulted,
): Promise<Resume> {
  const { store, now, bounds, kernel } = room;
  const session = key === null ? null : store.recall(key, now());
  if (session !== null) {
    if (!session.anonymous) await noticeRestart(room, session);
    forgetExpired(session, bounds, now());
  }
  let kernelOf = NOT_ASKED;
  // Where a replica may have seen what nobody told, nothing is refused for being unknown.
  const unrecorded = consulted === 'own' || consulted === 'whole' ? room.route.unrecorded : 'forward';
  let resolution = resolveResume(request, session, { ...resolveOptions(room), unrecorded });
  if (session !== null && kernelMatters(room, request, resolution)) {
    const since = unsettledSince(session, resolveOptions(room));
    if (since !== null) {
      const { viewOf, readAt } = await kernel.connections(since);
      kernelOf = (facts, flushedAt) => {
        // What went out while the table was being read is not in it.
        if (flushedAt > readAt) return undefined;
        const tuple = tupleFor(facts);
        return tuple === null ? 'unknown' : viewOf(tuple);
      };
      resolution = resolveResume(request, session, { ...resolveOptions(room, kernelOf), unrecorded });
    }
  }
  const verdict = decide(resolution.facts);
  // Nobody else may decide in between: of many that ask at once one is the probe.
  if (session !== null) noteVerdict(session, resolution, verdict, now());
  return { verdict, resolution, session, cursor: resolution.cursor, kernelOf };
}

/** For the verdict, or, where a replay is to come, to know the results in it that the client has already. */
function kernelMatters({ route }: RouteRoom, request: ResumeRequest, { unsettled, facts }: Resolution): boolean {
  if (unsettled.length > 0) return true;
  const findsDuplicates = route.dedupe && route.deliveryProof === 'connection' && !request.forwarded;
  return findsDuplicates && decide(facts).action === 'forward';
}

/** What delivery is judged by, now. Without `kernelOf` the kernel has not been asked. */
export function resolveOptions(
  { route, proofMemory, now }: RouteRoom,
  kernelOf: ResolveOptions['kernelOf'] = NOT_ASKED,
): ResolveOptions {
  return { unrecorded: route.unrecorded, deliveryProof: route.deliveryProof, proofMemory, now: now(), kernelOf };
}

/** Where upstream is known to be down, connects first: only then can it be told whether it is still the same. */
async function noticeRestart({ upstream, observer }: RouteRoom, session: Session): Promise<void> {
  let identity = await upstream.identify({ some: true });
  if (upstream.isDown(identity) && (await upstream.reach()) === null) identity = await upstream.identify();
  if (!restartedBetween(session.upstream, identity)) return;
  beginGeneration(session, identity);
  observer.generation('restart');
}
