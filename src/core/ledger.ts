/**
 * The ledger: what passed, in which session, on which stream, and how far it got. Plain records and the functions that
 * change them; time comes in as an argument. Nothing here decides: `resolve.ts` reads the records for one cursor,
 * `decide.ts` turns that into a verdict.
 *
 *     Session  (one per Mcp-Session-Id and route)      generation, ended, approved callers
 *       └─ Stream  (one per POST or listening GET)     requests and their answers, event IDs, floor
 *            └─ Leg  (one per HTTP exchange on it)     what this exchange brought, and its receipt
 *
 * A stream is bounded by its ring of IDs, a session by its number of streams; what is dropped leaves a trace, so that
 * forgetting makes a cursor unrecorded and never somebody else's.
 */
import { proveByConnection, type Receipt } from './delivery.ts';
import { EventRing, ForgottenIds, KeyFilter } from './event-ring.ts';
import { isBeyondDoubles, type Messages, type ResponseHead } from './jsonrpc.ts';
import type { Probe } from './replay.ts';
import type { Credential, EventKey, Generation, Millis, Position, RequestKey } from './terms.ts';

/** The part of section 12 that the ledger itself enforces. */
export interface LedgerBounds {
  readonly streamsPerSession: number;
  readonly eventIdsPerStream: number;
  /** How long a finished stream without an exchange is remembered. */
  readonly finishedStreamMemory: Millis;
  /** The same for an open one. */
  readonly openStreamMemory: Millis;
}

/** The terminal event of a request. */
export interface Answer {
  /** The stream it travelled on: usually the request's own. */
  readonly on: Stream;
  readonly position: Position;
  readonly key: EventKey | null;
  /** Length of its block in bytes. */
  readonly length: number;
  /** One for each response that carried it, the latest last. */
  readonly receipts: Receipt[];
}

export type StreamKind = 'request' | 'standalone' | 'placeholder';

export interface Stream {
  readonly kind: StreamKind;
  /** Order of opening within the session. */
  readonly ordinal: number;
  generation: Generation;
  /** Written by {@link setRequest}. */
  requests: ReadonlyMap<RequestKey, Answer | null>;
  /** The POST holds, or may hold, a request that no answer can be matched to: it never finishes. */
  untracked: boolean;
  readonly ring: EventRing;
  /** High-water mark: the position of the last event. */
  mark: Position;
  /** Cursors below this position are refused. */
  floor: Position;
  /** One more position that is refused, alone; 0 for none. */
  blocked: Position | 0;
  probe: Probe | null;
  /** Exchanges of this stream that are open upstream. */
  openLegs: number;
  /** How the previous exchange of this stream ended. */
  lastLeg: { readonly clean: boolean; readonly sawTerminal: boolean; readonly polls: boolean } | null;
  lastReplayEmpty: boolean;
  /** When a resume of this stream was last stripped, for `proofMemory`. */
  strippedAt: Millis;
  /** Since when no exchange is open. */
  idleSince: Millis;
  /** Or when it became one of a later generation. */
  openedAt: Millis;
  /** Another replica has an exchange of this stream open upstream, as far as the shared ledger says. */
  legsElsewhere: boolean;
  /** Something here is not in the shared ledger yet. Set by whoever changes the record, cleared by the store. */
  changed: boolean;
}

/**
 * What a cursor may mean beside the stream that its resume continues, and nobody but upstream can tell: other streams
 * of the session that are not delivered, or one that is forgotten.
 */
export interface Rivals {
  readonly streams: readonly Stream[];
  readonly forgotten: boolean;
}

export const NO_RIVALS: Rivals = { streams: [], forgotten: false };

/** Where a resumed exchange goes on: after the cursor's first position, as far as it is this stream's. */
export interface ResumePoint {
  readonly first: Position;
  readonly rivals: Rivals;
}

const START: ResumePoint = { first: 0 as Position, rivals: NO_RIVALS };

/** One HTTP exchange on a stream. */
export interface Leg {
  readonly stream: Stream;
  readonly from: ResumePoint;
  /** It continues the stream after a cursor: known events keep their positions. */
  readonly resumed: boolean;
  readonly receipt: Receipt;
  events: number;
  /** The answers of a resumed exchange and their event IDs, to know them when they come twice; else null. */
  readonly terminals: Map<RequestKey, EventKey | null> | null;
  sawRetry: boolean;
  sawTerminal: boolean;
  /** It is counted in `session.listening`. */
  listening: boolean;
}

/** A resume that was stripped for an approved caller. */
export interface Strip {
  readonly at: Millis;
  /** How many events it has brought so far. */
  readonly leg: () => number;
  /** It went up as a probe. */
  readonly probe: boolean;
}

/** What is remembered about one cursor of a session, apart from the streams that own it. */
export interface CursorNote {
  /** The last ones. */
  readonly strips: Strip[];
  storm: Probe | null;
  /** When a strip last brought an event: those before it say nothing any more. */
  broughtAt: Millis;
  firstRefusedAt: Millis | null;
  lateEmpties: number;
}

/** What is known of the upstream process at some moment. */
export interface UpstreamIdentity {
  /** Counts restarts that a refused connect gave away. */
  readonly incarnation: number;
  /** Inodes of the sockets that listened on a loopback upstream's port; empty when unknown. */
  readonly listeners: ReadonlySet<number>;
  /** When those were read. */
  readonly readAt: Millis;
}

export const NO_IDENTITY: UpstreamIdentity = { incarnation: 0, listeners: new Set(), readAt: 0 };

/** Upstream was restarted between these two moments. Not knowing counts as no. */
export function restartedBetween(before: UpstreamIdentity, after: UpstreamIdentity): boolean {
  if (after.incarnation > before.incarnation) return true;
  if (after.readAt <= before.readAt || before.listeners.size === 0 || after.listeners.size === 0) return false;
  for (const inode of before.listeners) if (after.listeners.has(inode)) return false;
  return true;
}

export interface Session {
  /** Requests without a session ID share a record per caller; generations and endings do not apply to it. */
  readonly anonymous: boolean;
  generation: Generation;
  upstream: UpstreamIdentity;
  /** Value of `upstream.instanceField`, the ones before it, and whether it proved useless. */
  instance: { value: string | null; past: readonly string[]; alternates: boolean };
  endedAt: Millis | null;
  /** `initialize` passed here, and nothing was forgotten, dropped or read blindly since. */
  complete: boolean;
  /** Something that passed here was. */
  gaps: boolean;
  /** When the generation began, where that is known: streams opened before belong to earlier ones. */
  begunAt: Millis | null;
  /** The latest 2xx. */
  acceptedAt: Millis | null;
  /** What other replicas have told. */
  elsewhere: Elsewhere;
  readonly streams: Set<Stream>;
  streamsOpened: number;
  /** The one that upstream accepted last is the last. */
  approved: readonly Credential[];
  /** CORS fields upstream last sent, by `Origin`. */
  cors: ReadonlyMap<string, readonly string[]>;
  notes: ReadonlyMap<EventKey, CursorNote>;
  forgotten: ForgottenIds | null;
  /** Live standalone streams through us. */
  listening: number;
  /** Upstream has answered a request on a standalone stream, which few servers do. */
  answersWhileListening: boolean;
  /** Estimated memory. */
  bytes: number;
  /** As `changed` of a stream; set with each of those. */
  changed: boolean;
}

/** A session as other replicas see it, beyond what has been merged into the record. */
export interface Elsewhere {
  /** A live standalone stream through one of them. */
  readonly listening: boolean;
  /** `initialize` passed there. */
  readonly initialized: boolean;
  /** Something that passed there was forgotten, dropped or read blindly. */
  readonly gaps: boolean;
  /** IDs of streams that were forgotten there. */
  readonly forgotten: KeyFilter | null;
}

export const NOTHING_ELSEWHERE: Elsewhere = { listening: false, initialized: false, gaps: false, forgotten: null };

const SESSION_BYTES = 1_500;
const STREAM_BYTES = 900;
export const REQUEST_BYTES = 350;
const FORGOTTEN_BYTES = 2 * KeyFilter.bytes;
const MOST_CALLERS = 64;
const MOST_ORIGINS = 8;
const MOST_NOTES = 256;
const MOST_RECEIPTS = 4;
const MOST_TERMINALS = 256;

export function newSession(anonymous: boolean, upstream: UpstreamIdentity): Session {
  return {
    anonymous,
    generation: 1 as Generation,
    upstream,
    instance: { value: null, past: [], alternates: false },
    endedAt: null,
    complete: false,
    gaps: false,
    begunAt: null,
    acceptedAt: null,
    elsewhere: NOTHING_ELSEWHERE,
    streams: new Set(),
    streamsOpened: 0,
    approved: [],
    cors: NONE,
    notes: NONE,
    forgotten: null,
    listening: 0,
    answersWhileListening: false,
    bytes: SESSION_BYTES,
    changed: true,
  };
}

/** Something of this session passed, or is forgotten, and nobody here can say what it was. */
export function missed(session: Session): void {
  session.complete = false;
  session.gaps = true;
  session.changed = true;
}

/** Nothing of this session can be missing: its `initialize` passed here, or at a replica that shares its ledger. */
export function isComplete({ complete, gaps, elsewhere }: Session): boolean {
  return (complete || (!gaps && elsewhere.initialized)) && !elsewhere.gaps;
}

function touch(session: Session, stream: Stream): void {
  stream.changed = true;
  session.changed = true;
}

/** The one empty map: there are thousands of idle streams, and most of what a record could hold it never does. */
const NONE = new Map<never, never>();

/** The map itself, or one of its own for a record that has none. */
function own<K, V>(entries: ReadonlyMap<K, V>): Map<K, V> {
  return entries === NONE ? new Map() : (entries as Map<K, V>);
}

/** For a map that keeps only its latest entries. */
function keepLatest<K, V>(entries: Map<K, V>, most: number): void {
  if (entries.size > most) entries.delete(entries.keys().next().value as K);
}

export function approve(session: Session, caller: Credential): void {
  const { approved } = session;
  if (approved.at(-1) === caller || (approved.length < MOST_CALLERS && approved.includes(caller))) return;
  session.changed ||= !approved.includes(caller);
  session.approved = [...approved.filter((known) => known !== caller), caller].slice(-MOST_CALLERS);
}

export function rememberCors(session: Session, origin: string, fields: readonly string[]): void {
  const cors = own(session.cors);
  if (cors.size >= MOST_ORIGINS) cors.delete(origin);
  cors.set(origin, fields);
  keepLatest(cors, MOST_ORIGINS);
  session.cors = cors;
}

export function noteOf(session: Session, cursor: EventKey): CursorNote {
  const known = session.notes.get(cursor);
  if (known !== undefined) return known;
  session.changed = true;
  const note: CursorNote = { strips: [], storm: null, broughtAt: 0, firstRefusedAt: null, lateEmpties: 0 };
  const notes = own(session.notes);
  notes.set(cursor, note);
  keepLatest(notes, MOST_NOTES);
  session.notes = notes;
  return note;
}

/** For a new generation. */
export function forgetNotes(session: Session): void {
  session.notes = NONE;
}

/** A new incarnation of the session. What was open stays readable; cursors minted before are of another generation. */
export function beginGeneration(session: Session, upstream: UpstreamIdentity): void {
  const before = session.upstream;
  session.generation = (session.generation + 1) as Generation;
  session.upstream = upstream;
  session.endedAt = null;
  forgetNotes(session);
  session.changed = true;
  if (upstream.readAt > 0 && upstream.readAt > before.readAt)
    session.begunAt = Math.max(session.begunAt ?? 0, before.readAt);
  if (session.forgotten !== null) session.bytes -= FORGOTTEN_BYTES;
  session.forgotten = null;
}

/** A stream belongs to the generation in which the connection it came over was opened. */
export function generationOver(session: Session, connection: UpstreamIdentity): Generation {
  const earlier = session.generation > 1 && restartedBetween(connection, session.upstream);
  return (earlier ? session.generation - 1 : session.generation) as Generation;
}

/** The generation began with an answer that this stream brought, and the stream is one of it. */
export function joinGeneration(session: Session, stream: Stream): void {
  stream.generation = session.generation;
  stream.openedAt = session.begunAt ?? stream.openedAt;
}

export function endSession(session: Session, now: Millis): void {
  if (session.anonymous) return;
  session.endedAt = now;
  session.changed = true;
}

export function reviveSession(session: Session): void {
  session.changed ||= session.endedAt !== null;
  session.endedAt = null;
}

/** `openedAt`: where that was not here and now. */
export function openStream(
  session: Session,
  kind: StreamKind,
  bounds: LedgerBounds,
  now: Millis,
  openedAt: Millis = now,
): Stream {
  const stream: Stream = {
    kind,
    ordinal: session.streamsOpened++,
    generation: session.generation,
    requests: NONE,
    untracked: false,
    ring: new EventRing(bounds.eventIdsPerStream),
    mark: 0 as Position,
    floor: 0 as Position,
    blocked: 0,
    probe: null,
    openLegs: 0,
    lastLeg: null,
    lastReplayEmpty: false,
    strippedAt: 0,
    idleSince: now,
    openedAt,
    legsElsewhere: false,
    changed: true,
  };
  session.streams.add(stream);
  session.changed = true;
  session.bytes += STREAM_BYTES;
  if (session.streams.size > bounds.streamsPerSession) forgetOneStream(session, stream, bounds, now);
  return stream;
}

/** The requests that the stream's POST turned out to hold; a body that could not be read may hold any. */
export function addRequests(session: Session, stream: Stream, { wellFormed, requests }: Messages): void {
  touch(session, stream);
  stream.untracked = !wellFormed;
  for (const { key } of requests) {
    if (key === null) stream.untracked = true;
    else if (!stream.requests.has(key)) {
      setRequest(stream, key, null);
      if (session.streams.has(stream)) session.bytes += REQUEST_BYTES;
    }
  }
}

/** `answer`: null while it has none. */
export function setRequest(stream: Stream, key: RequestKey, answer: Answer | null): void {
  stream.requests = own(stream.requests).set(key, answer);
}

/** Every request has its terminal event. Standalone and placeholder streams never finish. */
export function isFinished(stream: Stream): boolean {
  if (stream.kind !== 'request' || stream.untracked || stream.requests.size === 0) return false;
  for (const answer of stream.requests.values()) if (answer === null) return false;
  return true;
}

export function openLeg(stream: Stream, resumed: boolean, receipt: Receipt, from: ResumePoint = START): Leg {
  stream.openLegs += 1;
  stream.changed = true;
  const terminals = resumed ? new Map<RequestKey, EventKey | null>() : null;
  return {
    stream,
    from,
    resumed,
    receipt,
    events: 0,
    terminals,
    sawRetry: false,
    sawTerminal: false,
    listening: false,
  };
}

/**
 * The exchange is over upstream. `how` is null where upstream did not answer with a stream: then it says nothing about
 * the next one. `clean`: upstream ended the body in order. `polled`: the outcome of that name.
 */
export function closeLeg(
  session: Session,
  leg: Leg,
  how: { clean: boolean; polled: boolean } | null,
  now: Millis,
): void {
  const { stream } = leg;
  touch(session, stream);
  stream.openLegs -= 1;
  stream.idleSince = now;
  if (how !== null) {
    stream.lastLeg = { clean: how.clean, sawTerminal: leg.sawTerminal, polls: how.polled || leg.sawRetry };
  }
  stopListening(session, leg);
}

/** Upstream accepted a standalone stream. */
export function startListening(session: Session, leg: Leg): void {
  if (leg.stream.kind !== 'standalone' || leg.listening) return;
  leg.listening = true;
  session.listening += 1;
  session.changed = true;
}

/** The client is gone, or the exchange is over. */
export function stopListening(session: Session, leg: Leg): void {
  if (!leg.listening) return;
  leg.listening = false;
  session.listening -= 1;
  session.changed = true;
}

/** The server announced that it ends exchanges early and is to be asked again (`polled`, section 4). */
export function announcesPolling(stream: Stream): boolean {
  const last = stream.lastLeg;
  return !isFinished(stream) && last !== null && last.clean && !last.sawTerminal && last.polls;
}

/** An answer, and the stream that waits for it. */
interface Awaited {
  readonly key: RequestKey;
  readonly target: Stream | null;
}

const NOBODY: readonly Awaited[] = [];
const isFirst = ({ key, target }: Awaited): boolean => target?.requests.get(key) === null;

/** An event as the scanner reports it. */
export interface SeenEvent {
  readonly key: EventKey | null;
  readonly length: number;
  readonly retry: boolean;
}

/**
 * Records an event and the answers in it. An event that a resumed exchange repeats keeps its position, unless it is
 * the answer to a request that had none: servers exist that stamp everything with one ID.
 */
export function recordEvent(session: Session, leg: Leg, event: SeenEvent, answers: readonly ResponseHead[]): Position {
  const { stream } = leg;
  stream.changed = session.changed = true;
  leg.events += 1;
  if (event.retry) leg.sawRetry = true;
  const awaited =
    answers.length === 0 ? NOBODY : answers.map(({ key }) => ({ key, target: streamAwaiting(session, stream, key) }));
  const mayRepeat = leg.resumed && event.key !== null && !awaited.some(isFirst);
  const repeated = mayRepeat ? stream.ring.findEqual(event.key!, event.length) : null;
  const position = repeated ?? ((stream.mark + 1) as Position);
  if (repeated === null) {
    stream.mark = position;
    if (event.key !== null) rememberId(session, stream, event.key, position, event.length);
  }
  for (const { key, target } of awaited) recordAnswer(session, leg, event, position, key, target);
  if (event.key !== null) {
    traceId(session, leg.from.rivals, event.key);
    if (repeated === null && leg.resumed && skipsAnswers(leg))
      traceId(session, { streams: [stream], forgotten: false }, event.key);
  }
  return position;
}

/** `target`: the stream that waits for it, or null. */
function recordAnswer(
  session: Session,
  leg: Leg,
  event: SeenEvent,
  position: Position,
  key: RequestKey,
  target: Stream | null,
): void {
  const { stream } = leg;
  if (leg.terminals !== null) {
    leg.terminals.set(key, event.key);
    keepLatest(leg.terminals, MOST_TERMINALS);
  }
  if (target === null) return;
  if (target === stream) leg.sawTerminal = true;
  else if (stream.kind === 'standalone') session.answersWhileListening = true;
  target.changed = true;
  const known = target.requests.get(key) ?? null;
  if (known === null) {
    setRequest(target, key, { on: stream, position, ...lengthAndKey(event), receipts: [leg.receipt] });
  } else if (!known.receipts.includes(leg.receipt)) {
    known.receipts.push(leg.receipt);
    if (known.receipts.length > MOST_RECEIPTS) known.receipts.shift();
  }
}

/**
 * The exchange began before an answer and has not brought it, so what is new on it does not come after that, whatever
 * its position: a priming event in front of a replay, or a stream that nobody here knows.
 */
function skipsAnswers({ stream, terminals, from }: Leg): boolean {
  if (terminals === null) return false;
  for (const [key, answer] of stream.requests) {
    if (answer?.on === stream && answer.position > from.first && !terminals.has(key)) return true;
  }
  return false;
}

const lengthAndKey = ({ key, length }: SeenEvent) => ({ key, length });

function rememberId(session: Session, stream: Stream, key: EventKey, position: Position, length: number): void {
  const before = stream.ring.bytes;
  if (stream.ring.add(key, position, length)) missed(session);
  if (session.streams.has(stream)) session.bytes += stream.ring.bytes - before;
  // A stream that was forgotten while it runs goes on to leave its trace.
  else if (stream.generation === session.generation) session.forgotten?.addLate(key);
}

/** From here on the stream passes unread: any ID may be one of its. */
export function goBlind(session: Session, stream: Stream): void {
  missed(session);
  stream.changed = true;
  const before = stream.ring.bytes;
  stream.ring.goBlind();
  if (session.streams.has(stream)) session.bytes += stream.ring.bytes - before;
}

/** Nobody may conclude from this ID alone that it is not an earlier one of theirs. */
function traceId(session: Session, rivals: Rivals, key: EventKey): void {
  if (rivals.forgotten) session.forgotten?.addLate(key);
  for (const stream of rivals.streams) {
    const before = stream.ring.bytes;
    stream.ring.trace(key);
    stream.changed = true;
    if (session.streams.has(stream)) session.bytes += stream.ring.bytes - before;
    else if (stream.generation === session.generation) session.forgotten?.addLate(key);
  }
}

/**
 * Whose request does this answer? The stream's own; else the only other stream that has the id open. Where nobody knows
 * what the stream's own POST held, the answer may be meant for that. Without a session there is no telling clients
 * apart, and ids beyond double precision may have been folded into one by a peer.
 */
function streamAwaiting(session: Session, own: Stream, key: RequestKey): Stream | null {
  if (own.requests.has(key)) return own;
  if (own.untracked || own.kind === 'placeholder' || session.anonymous || isBeyondDoubles(key)) return null;
  let found: Stream | null = null;
  for (const stream of session.streams) {
    if (stream.requests.get(key) !== null || stream.requests.get(key) === undefined) continue;
    if (found !== null) return null;
    found = stream;
  }
  return found;
}

/** Drops what has been idle for too long. Runs when a session is used and from the store's sweep. */
export function forgetExpired(session: Session, bounds: LedgerBounds, now: Millis): void {
  for (const stream of session.streams) {
    if (stream.openLegs > 0) continue;
    const memory = isFinished(stream) ? bounds.finishedStreamMemory : bounds.openStreamMemory;
    if (now - stream.idleSince >= memory) forgetStream(session, stream, bounds, now);
  }
}

/** Forgets everything but the session itself, once it is over. */
export function forgetStreams(session: Session, bounds: LedgerBounds, now: Millis): void {
  for (const stream of session.streams) if (stream.openLegs === 0) forgetStream(session, stream, bounds, now);
}

/** One stream too many: the oldest finished one goes, else the oldest idle one, else the oldest. */
function forgetOneStream(session: Session, except: Stream, bounds: LedgerBounds, now: Millis): void {
  let idle: Stream | null = null;
  let oldest: Stream | null = null;
  for (const stream of session.streams) {
    if (stream === except) continue;
    oldest ??= stream;
    if (stream.openLegs > 0) continue;
    if (isFinished(stream)) {
      forgetStream(session, stream, bounds, now);
      return;
    }
    idle ??= stream;
  }
  const victim = idle ?? oldest;
  if (victim !== null) forgetStream(session, victim, bounds, now);
}

function forgetStream(session: Session, stream: Stream, bounds: LedgerBounds, now: Millis): void {
  if (!session.streams.delete(stream)) return;
  missed(session);
  session.bytes -= STREAM_BYTES + stream.ring.bytes + stream.requests.size * REQUEST_BYTES;
  if (stream.generation !== session.generation || isDeliveredForSure(stream, now)) return;
  if (session.forgotten === null) {
    session.forgotten = new ForgottenIds();
    session.bytes += FORGOTTEN_BYTES;
  }
  session.forgotten.add(stream.ring, now, bounds.openStreamMemory);
}

/** Another exchange of this stream is open upstream, beside one that is open here. */
export function isDisplaced({ openLegs, legsElsewhere }: Stream): boolean {
  return openLegs > 1 || legsElsewhere;
}

function isDeliveredForSure(stream: Stream, now: Millis): boolean {
  if (!isFinished(stream)) return false;
  for (const answer of stream.requests.values()) {
    // Nobody asks the kernel here, so what depends on it is not sure.
    if (!answer?.receipts.some((receipt) => proveByConnection(receipt, now, undefined) === 'proven')) return false;
  }
  return true;
}
