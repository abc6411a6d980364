/**
 * From a cursor to the facts that `decide.ts` wants, and from what came of a verdict back into the ledger.
 *
 * A cursor names an event, not a stream. Its owners are all streams of the session that carried an event with this ID;
 * each is open, finished, or delivered, and a delivered one has a proof. Nothing is stripped while one of them is open.
 */
import type { OwnerFacts, ResumeFacts, Unrecorded, Verdict } from './decide.ts';
import { type ConnectionFacts, type KernelView, proveByConnection, provenSince, type Receipt } from './delivery.ts';
import type { Sighting } from './event-ring.ts';
import type { ResponseHead } from './jsonrpc.ts';
import {
  type Answer,
  type CursorNote,
  isComplete,
  isFinished,
  type LedgerBounds,
  type Leg,
  NO_RIVALS,
  noteOf,
  openStream,
  type ResumePoint,
  type Rivals,
  type Session,
  type Stream,
  type Strip,
} from './ledger.ts';
import { claimProbe, type Outcome, probeIsDue, probeIsOut, settleProbe, startProbing } from './replay.ts';
import type { Credential, EventKey, Millis, Position, RequestKey } from './terms.ts';

/** What the request itself says. */
export interface ResumeRequest {
  readonly get: boolean;
  readonly cursorFields: number;
  readonly cursorEmpty: boolean;
  readonly sessionFields: number;
  readonly withoutResumption: boolean;
  readonly minted: boolean;
  /** The ways to read the cursor's bytes as an event ID, the likeliest first; empty when there is none. */
  readonly cursor: readonly EventKey[];
  readonly caller: Credential;
  /** It came through another intermediary. */
  readonly forwarded: boolean;
}

export interface ResolveOptions {
  readonly unrecorded: Unrecorded;
  readonly deliveryProof: 'connection' | 'event-id';
  readonly proofMemory: Millis;
  readonly now: Millis;
  /** The kernel's view of a connection; undefined where it has not been asked, or not since that moment. */
  readonly kernelOf: (connection: ConnectionFacts, since: Millis) => KernelView | undefined;
}

export type Proof = 'event-id' | 'connection';

export interface Owner extends ResumePoint {
  readonly stream: Stream;
  /** The cursor's last position on this stream. */
  readonly position: Position;
  /** Its first, or 0 where that may be forgotten: what is at or before it is what the client has for certain. */
  readonly first: Position;
  /** The cursor is, or may be, an ID of other streams as well: the client may have it from one of those. */
  readonly shared: boolean;
  /** Those of them that a resume may turn out to continue instead of this one. */
  readonly rivals: Rivals;
  readonly state: OwnerFacts['state'];
  readonly proof: Proof | null;
}

export interface Resolution {
  readonly facts: ResumeFacts;
  /** The reading of the cursor that has owners, or the first. */
  readonly cursor: EventKey | null;
  readonly owners: readonly Owner[];
  /** The newest owner that is not delivered: a forwarded resume continues it. */
  readonly target: Owner | null;
  /** How delivery was proven, where every owner is delivered. */
  readonly proof: Proof | null;
  /** Connections whose kernel view would make a difference and was not given. */
  readonly unsettled: readonly ConnectionFacts[];
}

const STORM_STRIPS = 10;
const STORM_WINDOW: Millis = 30_000;

/** Gathers the facts about one request. `session` is null where it was never seen. Reads only. */
export function resolveResume(request: ResumeRequest, session: Session | null, options: ResolveOptions): Resolution {
  const unsettled: Receipt[] = [];
  const found = findOwners(session, request.cursor);
  const { sightings, cursor } = found;
  const generation = session?.generation ?? 0;
  const current = [...sightings].some(([stream]) => stream.generation === generation);

  const owners: Owner[] = [];
  for (const [stream, sighting] of sightings) {
    if (current && stream.generation !== generation) continue;
    const { state, proof } = stateOf(stream, sightings, request.forwarded, options, unsettled);
    owners.push({
      stream,
      position: sighting.last,
      first: sighting.first,
      shared: sightings.size > 1,
      rivals: NO_RIVALS,
      state,
      proof,
    });
  }
  const forgotten =
    session === null || cursor === null
      ? NO_RIVALS
      : forgottenOwners(session, cursor, sightings, request, options, unsettled);
  const ownerForgotten = forgotten.forgotten || forgotten.streams.length > 0;

  let target: Owner | null = null;
  for (const owner of owners) {
    if (owner.state !== 'delivered' && (target === null || isNewer(owner.stream, target.stream))) target = owner;
  }
  const note = session === null || cursor === null ? undefined : session.notes.get(cursor);
  const delivered = owners.length > 0 && target === null;
  const facts: ResumeFacts = {
    get: request.get,
    cursorFields: request.cursorFields,
    cursorEmpty: request.cursorEmpty,
    sessionFields: request.sessionFields,
    withoutResumption: request.withoutResumption,
    minted: request.minted,
    approved: session?.approved.includes(request.caller) ?? false,
    sessionKnown: session !== null,
    sessionEnded: session !== null && session.endedAt !== null,
    listening: session !== null && !session.anonymous && (session.listening > 0 || session.elsewhere.listening),
    owners: owners.map((owner) => ({
      currentGeneration: owner.stream.generation === generation,
      standalone: owner.stream.kind === 'standalone',
      state: owner.state,
      barred: isBelowFloor(owner) && !(owner === target && mayProbe(owner, options.now)),
      lastReplayEmpty: owner.stream.lastReplayEmpty && !mayHoldAnswers(session!, owner, request, options, unsettled),
    })),
    ownerForgotten,
    storm: note !== undefined && isStorm(note, options.now),
    unrecorded: options.unrecorded,
    // An ID too long for a key was never recorded, whatever passed. And without a session ID nothing tells that the caller
    // did not come with other credentials, or from elsewhere, before.
    complete: cursor !== null && session !== null && isComplete(session) && !session.anonymous,
  };
  const byConnection = owners.some((owner) => owner.proof === 'connection');
  return {
    facts,
    cursor,
    // A delivered stream is none that a resume of a forgotten one could continue.
    owners: target === null && ownerForgotten ? [] : owners,
    target: target === null ? null : withRivals(target, owners, forgotten),
    proof: delivered ? (byConnection ? 'connection' : 'event-id') : null,
    unsettled: unsettled.map(({ connection }) => connection),
  };
}

/** Streams of other replicas come in late: their ordinals say nothing beside ours. */
function isNewer(one: Stream, other: Stream): boolean {
  return one.openedAt === other.openedAt ? one.ordinal > other.ordinal : one.openedAt > other.openedAt;
}

type Sightings = ReadonlyMap<Stream, Sighting>;

function findOwners(
  session: Session | null,
  readings: readonly EventKey[],
): { sightings: Sightings; cursor: EventKey | null } {
  for (const cursor of readings) {
    const sightings = new Map<Stream, Sighting>();
    for (const stream of session?.streams ?? []) {
      const sighting = stream.ring.find(cursor);
      if (sighting !== null) sightings.set(stream, sighting);
    }
    if (sightings.size > 0) return { sightings, cursor };
  }
  return { sightings: new Map(), cursor: readings[0] ?? null };
}

function stateOf(
  stream: Stream,
  sightings: Sightings,
  forwarded: boolean,
  options: ResolveOptions,
  unsettled: Receipt[],
): { state: OwnerFacts['state']; proof: Proof | null } {
  if (!isFinished(stream)) return { state: 'open', proof: null };
  let proof: Proof = 'event-id';
  for (const answer of stream.requests.values()) {
    if (answer === null) return { state: 'open', proof: null };
    if (provenByEventId(answer, sightings)) continue;
    if (forwarded || options.deliveryProof === 'event-id' || !provenByReceipt(stream, answer, options, unsettled)) {
      return { state: 'finished', proof: null };
    }
    proof = 'connection';
  }
  return { state: 'delivered', proof };
}

/** A cursor that several streams carried proves nothing: the client may have it from one of the others. */
function provenByEventId(answer: Answer, sightings: Sightings): boolean {
  const cursor = sightings.get(answer.on);
  return sightings.size === 1 && cursor !== undefined && cursor.first >= answer.position;
}

function provenByReceipt(stream: Stream, answer: Answer, options: ResolveOptions, unsettled: Receipt[]): boolean {
  for (const receipt of answer.receipts) {
    const since = Math.max(provenSince(receipt), stream.strippedAt);
    if (options.now - since > options.proofMemory) continue;
    const proof = proveByConnection(receipt, options.now, options.kernelOf(receipt.connection, provenSince(receipt)));
    if (proof === 'proven') return true;
    if (proof === 'ask-kernel') unsettled.push(receipt);
  }
  return false;
}

/**
 * How recent the kernel's view has to be to tell which results of this session are delivered: an older one says nothing
 * about bytes that were flushed since. Null where it could not tell more than is known.
 */
export function unsettledSince(session: Session, options: ResolveOptions): Millis | null {
  const unsettled: Receipt[] = [];
  for (const stream of session.streams) {
    for (const answer of stream.requests.values()) {
      if (answer !== null) provenByReceipt(stream, answer, options, unsettled);
    }
  }
  let since: Millis | null = null;
  for (const { flushedAt } of unsettled) if (flushedAt !== null && flushedAt > (since ?? 0)) since = flushedAt;
  return since;
}

function withRivals(target: Owner, owners: readonly Owner[], { streams, forgotten }: Rivals): Owner {
  const others = owners.filter((owner) => owner.state !== 'delivered' && owner !== target);
  const rivals = { streams: [...streams, ...others.map(({ stream }) => stream)], forgotten };
  return { ...target, shared: target.shared || forgotten || rivals.streams.length > 0, rivals };
}

/**
 * An answer that the client does not have may wait on a standalone stream, after the cursor. A fresh stream would not
 * bring it.
 */
function mayHoldAnswers(
  session: Session,
  { stream, first }: Owner,
  { forwarded }: ResumeRequest,
  options: ResolveOptions,
  unsettled: Receipt[],
): boolean {
  if (session.answersWhileListening && (session.forgotten ?? session.elsewhere.forgotten) !== null) return true;
  const byConnection = !forwarded && options.deliveryProof === 'connection';
  for (const other of session.streams) {
    if (session.answersWhileListening && other.kind === 'request' && !isFinished(other)) return true;
    for (const answer of other.requests.values()) {
      if (answer?.on !== stream || answer.position <= first) continue;
      if (!byConnection || !provenByReceipt(other, answer, options, unsettled)) return true;
    }
  }
  return false;
}

/** Which streams that were open when this ID was dropped may own the cursor as well? */
function forgottenOwners(
  session: Session,
  cursor: EventKey,
  sightings: Sightings,
  request: ResumeRequest,
  options: ResolveOptions,
  unsettled: Receipt[],
): Rivals {
  const streams: Stream[] = [];
  for (const stream of session.streams) {
    if (sightings.has(stream) || stream.generation !== session.generation) continue;
    if (!stream.ring.mayHaveDropped(cursor)) continue;
    if (stateOf(stream, sightings, request.forwarded, options, unsettled).state !== 'delivered') streams.push(stream);
  }
  const { forgotten, elsewhere } = session;
  return { streams, forgotten: [forgotten, elsewhere.forgotten].some((ids) => ids?.mayHave(cursor)) };
}

function isBelowFloor({ stream, position }: Owner): boolean {
  return position < stream.floor || position === stream.blocked;
}

function mayProbe({ stream }: Owner, now: Millis): boolean {
  return stream.probe !== null && probeIsDue(stream.probe, now);
}

function isStorm(note: CursorNote, now: Millis): boolean {
  if (note.storm !== null) return !probeIsDue(note.storm, now);
  const oldest = note.strips[0];
  if (oldest === undefined || note.strips.length < STORM_STRIPS || now - oldest.at > STORM_WINDOW) return false;
  return note.strips.every((strip) => strip.leg() === 0);
}

/** The one request that waits for an answer on these streams, or null. */
export function pendingRequest(owners: readonly Owner[]): RequestKey | null {
  let pending: RequestKey | null = null;
  for (const { stream, state } of owners) {
    if (state === 'delivered' || stream.kind === 'standalone') continue;
    if (stream.untracked || stream.kind !== 'request') return null;
    for (const [key, answer] of stream.requests) {
      if (state === 'open' && answer !== null) continue;
      if (pending !== null) return null;
      pending = key;
    }
  }
  return pending;
}

/** A verdict is about to be carried out: claims and starts what has a schedule. */
export function noteVerdict(session: Session, resolution: Resolution, verdict: Verdict, now: Millis): void {
  const { cursor, owners, target } = resolution;
  if (cursor === null) return;
  session.changed = true;
  if (verdict.action === 'strip') {
    for (const { stream, proof } of owners) {
      if (proof !== 'connection') continue;
      stream.strippedAt = now;
      stream.changed = true;
    }
    const note = session.notes.get(cursor);
    if (note?.storm && resolution.facts.approved) note.storm = claimProbe(note.storm, now);
    return;
  }
  if (verdict.action === 'forward') {
    // A caller who is not approved is forwarded whether or not a probe is due, and is none if it is not.
    if (target !== null && isBelowFloor(target) && mayProbe(target, now)) {
      target.stream.probe = claimProbe(target.stream.probe!, now);
      target.stream.changed = true;
    }
    return;
  }
  if (verdict.action === 'refuse' && verdict.rule === 'finished-storm')
    noteOf(session, cursor).storm ??= startProbing(now);
}

/** A strip for an approved caller is sent upstream; `events` tells how many events it has brought so far. */
export function noteStrip(session: Session, cursor: EventKey, events: () => number, now: Millis): Strip {
  const note = noteOf(session, cursor);
  const strip: Strip = { at: now, leg: events, probe: note.storm !== null };
  note.strips.push(strip);
  if (note.strips.length > STORM_STRIPS) note.strips.shift();
  return strip;
}

/** That strip is over. One that was under way before the storm, or that nobody noted, is no probe. */
export function settleStrip(session: Session, cursor: EventKey, events: number, now: Millis, strip?: Strip): void {
  const note = session.notes.get(cursor);
  if (note === undefined) return;
  session.changed = true;
  if (events > 0) {
    note.storm = null;
    note.strips.length = 0;
    note.broughtAt = now;
  } else if (note.storm !== null && probeIsOut(note.storm) && strip?.probe !== false) {
    note.storm = settleProbe(note.storm, 'nothing', now);
  }
}

/** A refusal goes out: returns when the first one of this cursor did, or null when this is the first. */
export function noteRefusal(session: Session, cursor: EventKey, now: Millis): Millis | null {
  const note = noteOf(session, cursor);
  const first = note.firstRefusedAt;
  note.firstRefusedAt ??= now;
  return first;
}

/** An unrecorded cursor that upstream accepted: from now on it is the first position of an open stream. */
export function placeholderFor(session: Session, cursor: EventKey, bounds: LedgerBounds, now: Millis): Owner {
  const stream = openStream(session, 'placeholder', bounds, now);
  stream.mark = 1 as Position;
  stream.ring.add(cursor, stream.mark, 0);
  return {
    stream,
    position: stream.mark,
    first: stream.mark,
    shared: false,
    rivals: NO_RIVALS,
    state: 'open',
    proof: null,
  };
}

const LATE_EMPTIES = 10;

/** What a watched resume came to, for floor and probes. */
export function settleReplay(session: Session, target: Owner, cursor: EventKey, outcome: Outcome, now: Millis): void {
  const { stream } = target;
  stream.changed = session.changed = true;
  if (outcome !== 'live') forgiveLateEmpties(session, cursor);
  switch (outcome) {
    case 'empty':
    case 'silent':
      stream.lastReplayEmpty = true;
      for (const owner of withOthers(target, cursor)) raiseFloor(owner, now);
      return;
    case 'replayed': {
      stream.lastReplayEmpty = false;
      for (const owner of withOthers(target, cursor)) lowerFloor(owner);
      const note = session.notes.get(cursor);
      if (note !== undefined) note.firstRefusedAt = null;
      return;
    }
    case 'live':
    case 'polled':
    case 'displaced':
    case 'not-a-replay':
      stream.lastReplayEmpty = false;
      break;
    case 'broken':
    case 'abandoned':
      break;
  }
  if (stream.probe !== null && probeIsOut(stream.probe) && isBelowFloor(target)) {
    stream.probe = settleProbe(stream.probe, 'other', now);
  }
}

/** Where a block on a resumed exchange was seen before, or null where it must pass. */
export type Duplicate = 'replayed' | 'terminal';

/** A block as the scanner reports it, with the answers in it. */
export interface SeenBlock {
  readonly key: EventKey | null;
  readonly length: number;
  readonly answers: readonly ResponseHead[];
}

/**
 * Before the first block past the cursor: is this one the cursor's event or an earlier one (inclusive replay), or the
 * terminal event of a request that is delivered? The first answer to an open request never is, whatever its ID. A cursor
 * that several streams share does not say from which of them the client has it, so nothing is a repetition then.
 */
export function duplicateBeforeCursor(
  session: Session,
  target: Owner,
  block: SeenBlock,
  options: ResolveOptions,
): Duplicate | null {
  const { stream, first, shared } = target;
  if (block.key === null || block.answers.some(({ key }) => stream.requests.get(key) === null)) return null;
  if (stream.generation === session.generation && !shared) {
    const seen = stream.ring.findEqual(block.key, block.length);
    if (seen !== null && seen <= first && cameBefore(session, target, block)) return 'replayed';
  }
  if (block.answers.length === 0) return null;
  return block.answers.every(({ key }) => isDeliveredAnswer(session, stream, key, block, options)) ? 'terminal' : null;
}

/** The answers in it are those that came with this event then: one ID may stand for several. */
function cameBefore(session: Session, { stream, first }: Owner, block: SeenBlock): boolean {
  const isIt = (answer: Answer | null | undefined): boolean =>
    answer?.on === stream && answer.key === block.key && answer.length === block.length && answer.position <= first;
  return block.answers.every(({ key }) =>
    stream.requests.has(key)
      ? isIt(stream.requests.get(key))
      : [...session.streams].some(({ requests }) => isIt(requests.get(key))),
  );
}

/** Where an id was used more than once, the block may answer any of those requests: all have to be delivered. */
function isDeliveredAnswer(
  session: Session,
  own: Stream,
  request: RequestKey,
  block: SeenBlock,
  options: ResolveOptions,
): boolean {
  if (options.deliveryProof === 'event-id') return false;
  let found = false;
  for (const stream of session.anonymous ? [own] : session.streams) {
    const answer = stream.requests.get(request);
    if (answer === undefined || stream.generation !== session.generation) continue;
    if (answer === null) return false;
    if (answer.key !== block.key || answer.length !== block.length) continue;
    if (!provenByReceipt(stream, answer, options, [])) return false;
    found = true;
  }
  return found;
}

/** After that: has this very exchange already carried the same terminal event, under the same ID? */
export function duplicateOnLeg(leg: Leg, block: SeenBlock): Duplicate | null {
  if (block.key === null || block.answers.length === 0) return null;
  return block.answers.every(({ key }) => leg.terminals?.get(key) === block.key) ? 'terminal' : null;
}

/** A `live` replay ended in order without an event, and nobody announced that. The tenth in a row counts as one `empty`. */
export function settleLateEmpty(session: Session, target: Owner, cursor: EventKey, now: Millis): void {
  const note = noteOf(session, cursor);
  note.lateEmpties += 1;
  session.changed = true;
  if (note.lateEmpties < LATE_EMPTIES) return;
  note.lateEmpties = 0;
  target.stream.lastReplayEmpty = true;
  target.stream.changed = true;
  for (const owner of withOthers(target, cursor)) raiseFloor(owner, now);
}

/** Only ten in a row count. */
function forgiveLateEmpties(session: Session, cursor: EventKey): void {
  const note = session.notes.get(cursor);
  if (note !== undefined) note.lateEmpties = 0;
}

/** Upstream answered the cursor, whichever of its open owners it took it for: what came of it holds for all of them. */
function withOthers(target: Owner, cursor: EventKey): Owner[] {
  const owners = [target];
  for (const stream of target.rivals.streams) {
    const sighting = stream.ring.find(cursor);
    if (sighting !== null) owners.push({ ...target, stream, position: sighting.last, first: sighting.first });
  }
  return owners;
}

function lowerFloor({ stream, position }: Owner): void {
  stream.changed = true;
  stream.floor = Math.min(stream.floor, position) as Position;
  stream.blocked = 0;
  stream.probe = null;
}

function raiseFloor(target: Owner, now: Millis): void {
  const { stream, position } = target;
  const { probe } = stream;
  stream.changed = true;
  const again = probe !== null && isBelowFloor(target);
  if (position < stream.mark) stream.floor = Math.max(stream.floor, position + 1) as Position;
  else stream.blocked = position;
  if (!again) stream.probe = startProbing(now);
  // A resume that was under way when the floor rose is no probe: the first one is still to come.
  else if (probe.interval > 0 || probeIsOut(probe)) stream.probe = settleProbe(probe, 'nothing', now);
}
