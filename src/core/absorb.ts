/**
 * Merging what other replicas know of a session into the record of it here, so that `resolve.ts` and `decide.ts` judge
 * a cursor as if everything had passed here. What is told late or not at all makes a stream look open, a position
 * unknown, a session unended: the merge may only ever forward where one process would not have.
 *
 * The order of the views does not matter, nor how often one is merged. Quantities that only grow are merged by the
 * maximum, those that move back by their epoch; where two views contradict each other, both lose:
 *
 *     same position, other events ..... from there on no event ID proves a delivery
 *     an answer on two streams ........ the same
 *     an answer two requests may own .. answers neither
 *     ended here, accepted there ...... not ended, unless the end is later by more than clocks may differ
 */
import type { ConnectionFacts, Receipt } from './delivery.ts';
import { KeyFilter } from './event-ring.ts';
import {
  type Answer,
  approve,
  forgetNotes,
  NOTHING_ELSEWHERE,
  noteOf,
  openStream,
  REQUEST_BYTES,
  type Session,
  type Stream,
  setRequest,
} from './ledger.ts';
import type { Probe } from './replay.ts';
import type { Moment, Replica, Told } from './replica.ts';
import type { EventKey, Generation, Millis, Position, RequestKey } from './terms.ts';
import {
  type AnswerFacts,
  clashOf,
  eventsIn,
  laterNote,
  laterTurn,
  type NoteFacts,
  type StreamId,
  type StreamView,
  type View,
  type Wall,
} from './view.ts';

/** How far the clocks of two replicas may be apart before something other than waiting for upstream comes of it. */
export const SKEW = 500;

/** A connection of another replica, whose word is that the client has the result. */
export const ELSEWHERE: ConnectionFacts = {
  failed: false,
  closed: null,
  closedAt: null,
  requestedAt: Number.POSITIVE_INFINITY,
};

/** The events of a strip at another replica, which tells only of those that brought none. */
export const NO_EVENTS = (): number => 0;

/** No cursor is at or after it. */
const NEVER = Number.POSITIVE_INFINITY as Position;
const MOST_STRIPS = 10;

export interface Absorption {
  readonly replica: Replica;
  /** May hold our own. */
  readonly views: readonly View[];
  /** A replica whose exchanges may still be running. */
  readonly alive: (replica: string) => boolean;
  readonly moment: Moment;
}

/** A stream in the view of one other replica. */
interface Part extends StreamView {
  readonly view: View;
}

export function absorbViews({ replica, views, alive, moment }: Absorption): void {
  const { session } = replica;
  const others = views.filter(({ id }) => id !== replica.options.view);
  // What comes from others need not be told to them.
  const { changed } = session;
  const unchanged = [...session.streams].filter((stream) => !stream.changed);
  session.elsewhere = elsewhere(others, alive);
  for (const { approved } of others.map((view) => view.session))
    for (const caller of approved) approve(session, caller);
  session.answersWhileListening ||= others.some((view) => view.session.answersWhileListening);
  absorbEnd(session, others, moment);
  const streams = partsOf(others);
  absorbGeneration(replica, others, streams, moment);
  const anew = [...streams].filter(([id, parts]) => absorbStream({ replica, views, alive, moment }, id, parts));
  for (const [id, parts] of anew) absorbAnswers(replica, replica.byId.get(id)!, parts, moment);
  for (const stream of session.streams) doubtAnswers(replica, stream);
  absorbNotes(replica, others, moment);
  session.changed = changed;
  for (const stream of unchanged) stream.changed = false;
}

function elsewhere(others: readonly View[], alive: (replica: string) => boolean): Session['elsewhere'] {
  if (others.length === 0) return NOTHING_ELSEWHERE;
  const filters = others.flatMap(({ forgotten }) => forgotten ?? []);
  const forgotten = filters.length === 0 ? null : new KeyFilter();
  for (const filter of filters) forgotten!.merge(filter);
  return {
    listening: others.some(({ session }) => session.listening > 0 && alive(session.replica)),
    initialized: others.some(({ session }) => session.initialized),
    gaps: others.some(({ session }) => session.gaps),
    forgotten,
  };
}

/** A 2xx anywhere else revives the session, even one a little before the end. */
function absorbEnd(session: Session, others: readonly View[], { now, shift }: Moment): void {
  if (session.anonymous) return;
  const calendar = (at: Millis | null): Wall | null => (at === null ? null : at + shift);
  const words = [
    { endedAt: calendar(session.endedAt), acceptedAt: calendar(session.acceptedAt) },
    ...others.map((view) => view.session),
  ];
  let end: Wall | null = null;
  for (const word of words) {
    const { endedAt } = word;
    if (endedAt === null) continue;
    const contradicted = words.some(
      (other) => other !== word && other.acceptedAt !== null && other.acceptedAt + SKEW >= endedAt,
    );
    if (!contradicted) end = Math.max(end ?? endedAt, endedAt);
  }
  session.endedAt = end === null ? null : Math.min(now, end - shift);
}

function partsOf(others: readonly View[]): Map<StreamId, Part[]> {
  const parts = new Map<StreamId, Part[]>();
  for (const view of others) {
    for (const [id, stream] of view.streams) {
      const known = parts.get(id);
      if (known === undefined) parts.set(id, [{ ...stream, view }]);
      else known.push({ ...stream, view });
    }
  }
  return new Map([...parts].sort(([, a], [, b]) => openedAt(a) - openedAt(b)));
}

const opening = (parts: readonly Part[]) => parts.find(({ facts }) => facts.opening !== null);
const openedAt = (parts: readonly Part[]): Wall =>
  opening(parts)?.facts.opening?.at ?? Math.min(...parts.map(({ facts }) => facts.at));

/** A generation is known by when it began: a stream that was opened before, by any clock, belongs to an earlier one. */
function absorbGeneration(
  { session, told, notes }: Replica,
  others: readonly View[],
  streams: ReadonlyMap<StreamId, Part[]>,
  { shift }: Moment,
): void {
  const before = session.generation;
  const isOld = (stream: Stream): boolean => precedes(stream.openedAt + shift, others, null);
  const own = [...session.streams].filter((stream) => stream.generation === before && told.get(stream)?.opened);
  const begins = own.some(isOld);
  const anyOld = begins || [...streams.values()].some((parts) => isEarlier(parts, session, others, shift));
  const next = Math.max(before + Number(begins), anyOld ? 2 : 1, ...others.map((view) => view.session.generation));
  if (next > before) {
    for (const stream of session.streams) {
      const earlier = told.get(stream)?.opened === true && isOld(stream);
      if (stream.generation === before && !earlier) stream.generation = next as Generation;
    }
    session.generation = next as Generation;
  }
  if (begins) {
    forgetNotes(session);
    notes.clear();
  }
  const begunAt = Math.max(...others.map((view) => view.session.begunAt ?? 0)) - shift;
  if (others.some((view) => view.session.begunAt !== null))
    session.begunAt = Math.max(session.begunAt ?? begunAt, begunAt);
}

/** A generation has begun since, at another replica than the one that tells of the stream. */
function precedes(at: Wall, others: readonly View[], own: View | null): boolean {
  return others.some((view) => view !== own && view.session.begunAt !== null && view.session.begunAt > at + SKEW);
}

function isEarlier(parts: readonly Part[], session: Session, others: readonly View[], shift: number): boolean {
  const opened = opening(parts);
  if (opened?.facts.opening == null) return false;
  const { at, old } = opened.facts.opening;
  const begunHere = session.begunAt !== null && session.begunAt + shift > at + SKEW;
  return old || begunHere || precedes(at, others, opened.view);
}

/** What a part tells, in short: the same means that nothing in it is new. */
const telling = ({ generation, begunAt }: Session, { facts }: Part): string => `${facts.at} ${generation} ${begunAt}`;

/** Returns whether anything was taken over. */
function absorbStream({ replica, views, alive, moment }: Absorption, id: StreamId, parts: readonly Part[]): boolean {
  const { session } = replica;
  const others = views.filter((view) => view.id !== replica.options.view);
  const stream = replica.byId.get(id) ?? newStream(replica, id, parts, alive, moment);
  if (stream === null) return false;
  stream.legsElsewhere = parts.some(({ facts, view }) => facts.legs > 0 && alive(view.session.replica));
  const told = replica.toldOf(stream);
  if (parts.every((part) => told.heard.get(part.view.id) === telling(session, part))) return false;
  for (const part of parts) {
    // A delivery in the future has to be looked at again.
    const isPast = part.facts.answers.every(({ proven }) => proven === null || proven <= moment.now + moment.shift);
    if (isPast) told.heard.set(part.view.id, telling(session, part));
    else told.heard.delete(part.view.id);
  }
  const earlier = isEarlier(parts, session, others, moment.shift);
  if (earlier && stream.generation === session.generation) stream.generation = (session.generation - 1) as Generation;
  const opened = opening(parts)?.facts.opening;
  if (!told.opened && opened != null) {
    stream.untracked = opened.untracked;
    for (const request of opened.requests) {
      if (stream.requests.has(request)) continue;
      setRequest(stream, request, null);
      session.bytes += REQUEST_BYTES;
    }
  }
  const before = stream.ring.bytes;
  absorbEvents(stream, told, parts);
  session.bytes += stream.ring.bytes - before;
  absorbTurn(replica, stream, told, parts, moment);
  const latest = Math.max(...parts.map(({ facts }) => facts.at)) - moment.shift;
  stream.idleSince = Math.max(stream.idleSince, Math.min(latest, moment.now));
  return true;
}

/** Null for one that this process would have forgotten by now. */
function newStream(
  replica: Replica,
  id: StreamId,
  parts: readonly Part[],
  alive: (replica: string) => boolean,
  { now, shift }: Moment,
): Stream | null {
  const { session } = replica;
  const { bounds } = replica.options;
  const opened = opening(parts)?.facts.opening;
  const answered = new Set(parts.flatMap(({ facts }) => facts.answers.map(({ request }) => request)));
  const finished =
    opened?.kind === 'request' && !opened.untracked && opened.requests.every((request) => answered.has(request));
  const latest = Math.max(...parts.map(({ facts }) => facts.at)) - shift;
  const running = parts.some(({ facts, view }) => facts.legs > 0 && alive(view.session.replica));
  if (!running && now - latest >= (finished ? bounds.finishedStreamMemory : bounds.openStreamMemory)) {
    const proven = new Set(
      parts.flatMap(({ facts }) => facts.answers.flatMap((answer) => (answer.proven === null ? [] : answer.request))),
    );
    const sure = finished && opened.requests.every((request) => proven.has(request));
    session.elsewhere = { ...session.elsewhere, gaps: true, ...(sure ? {} : { forgotten: traceOf(session, parts) }) };
    return null;
  }
  // Nobody knows what its POST held, where only others that resumed it tell of it: then it never finishes.
  const stream = openStream(session, opened?.kind ?? 'placeholder', bounds, now, openedAt(parts) - shift);
  stream.idleSince = latest;
  stream.changed = false;
  replica.know(stream, id, false);
  return stream;
}

/** As where one is forgotten here: what may have been an ID of this stream is nobody else's alone. */
function traceOf({ elsewhere }: Session, parts: readonly Part[]): KeyFilter {
  const trace = elsewhere.forgotten ?? new KeyFilter();
  for (const { events, trail } of parts) {
    for (const { key } of events) trace.add(key);
    if (trail !== null) trace.merge(trail);
  }
  return trace;
}

function absorbEvents(stream: Stream, told: Told, parts: readonly Part[]): void {
  const { ring } = stream;
  const sides = parts.map(({ events, facts }) => ({ events, runs: facts.runs }));
  if (told.runs.length > 0) sides.push({ events: eventsIn(ring, told.runs), runs: told.runs });
  let clash: Position | null = null;
  for (const [i, one] of sides.entries()) {
    for (const other of sides.slice(i + 1)) {
      const here = clashOf(one, other);
      if (here !== null) clash = Math.min(clash ?? here, here) as Position;
    }
  }
  for (const { view, facts, events, trail } of parts) {
    const known = told.absorbed.get(view.id) ?? (0 as Position);
    const news = events.filter(({ position }) => position > known).sort((a, b) => a.position - b.position);
    for (const { key, position, length } of news) if (!ring.holds(key, position)) ring.add(key, position, length);
    const last = news.at(-1);
    if (last !== undefined) told.absorbed.set(view.id, last.position);
    if (trail !== null) ring.traceAll(trail);
    stream.mark = Math.max(stream.mark, facts.mark) as Position;
  }
  told.mark = stream.mark;
  if (clash === null) return;
  for (const { key, position } of [...ring.entries()]) {
    if (position > clash && !ring.mayHaveDropped(key)) ring.trace(key);
  }
}

function absorbTurn(
  replica: Replica,
  stream: Stream,
  told: Told,
  parts: readonly Part[],
  { now, shift }: Moment,
): void {
  const own = replica.turnOf(stream, told, { now, shift });
  const turn = parts.map(({ facts }) => facts.turn).reduce(laterTurn, own);
  told.turn = turn;
  stream.floor = turn.floor;
  stream.blocked = turn.blocked;
  stream.probe = turn.probe && localProbe(turn.probe, shift);
  stream.lastReplayEmpty = turn.lastReplayEmpty;
  stream.lastLeg = turn.lastLeg;
  for (const { facts } of parts) {
    if (facts.strippedAt === 0) continue;
    stream.strippedAt = Math.max(stream.strippedAt, Math.min(now, facts.strippedAt - shift));
  }
}

const localProbe = ({ interval, dueAt, busyUntil }: Probe, shift: number): Probe => ({
  interval,
  dueAt: dueAt - shift,
  busyUntil: busyUntil === 0 ? 0 : busyUntil - shift,
});

function absorbAnswers(replica: Replica, stream: Stream, parts: readonly Part[], { now, shift }: Moment): void {
  const told = new Map<RequestKey, AnswerFacts[]>();
  for (const answer of parts.flatMap(({ facts }) => facts.answers)) {
    if (!stream.requests.has(answer.request)) continue;
    told.set(answer.request, [...(told.get(answer.request) ?? []), answer]);
  }
  for (const [request, facts] of told) {
    const known = stream.requests.get(request) ?? null;
    setRequest(stream, request, mergeAnswers(replica, stream, known, facts, { now, shift }));
  }
}

/** Where the views do not agree on what the answer was, or where, no cursor is after it; a proof goes with its own view. */
function mergeAnswers(
  { byId }: Replica,
  stream: Stream,
  known: Answer | null,
  facts: readonly AnswerFacts[],
  { now, shift }: Moment,
): Answer {
  const told = facts.map(({ on, position, key, length, proven }) => ({
    on: byId.get(on) ?? null,
    position: position ?? NEVER,
    key,
    length,
    proven: proven === null ? null : proven - shift,
  }));
  const all = known === null ? told : [...told, { ...known, proven: null }];
  const first = all.reduce((best, next) => (rank(next) > rank(best) ? next : best));
  const agreed = all.every(({ on }) => on !== null && on === first.on);
  // A delivery in the future is one by a clock that cannot be trusted.
  const proofs = told
    .filter(
      ({ key, length, proven }) => key === first.key && length === first.length && proven !== null && proven <= now,
    )
    .map(({ proven }) => proven!);
  const receipts = (known?.receipts ?? []).filter(({ connection }) => connection !== ELSEWHERE);
  if (proofs.length > 0) receipts.push(proofElsewhere(Math.max(...proofs)));
  return {
    on: first.on ?? stream,
    position: agreed ? (Math.max(...all.map(({ position }) => position)) as Position) : NEVER,
    key: first.key,
    length: first.length,
    receipts,
  };
}

/** Any order will do, if it is the same everywhere. */
const rank = ({ position, key, length }: { position: number; key: EventKey | null; length: number }): string =>
  [Number.isFinite(position) ? position : 0, key ?? 0, length].map((n) => String(n).padStart(17, '0')).join();

const proofElsewhere = (since: Millis): Receipt => ({
  connection: ELSEWHERE,
  forwarded: false,
  flushedAt: since,
  response: 'normal',
});

/**
 * An answer on another stream was taken for the only request with its id. If somebody else has sent that id as well, it
 * may have been meant for theirs.
 */
function doubtAnswers({ session, told }: Replica, stream: Stream): void {
  for (const [request, answer] of stream.requests) {
    if (answer === null || answer.on === stream) continue;
    for (const other of session.streams) {
      if (other === stream || !other.requests.has(request)) continue;
      if (told.get(stream)?.opened && told.get(other)?.opened) continue;
      setRequest(stream, request, null);
    }
  }
}

function absorbNotes(replica: Replica, others: readonly View[], { now, shift }: Moment): void {
  const { session } = replica;
  const told = new Map<EventKey, NoteFacts[]>();
  for (const facts of others.flatMap(({ notes }) => notes)) {
    told.set(facts.cursor, [...(told.get(facts.cursor) ?? []), facts]);
  }
  for (const [cursor, facts] of told) {
    const note = noteOf(session, cursor);
    const own = replica.noteFacts(cursor, note, { now, shift });
    const merged = facts.reduce(laterNote, own);
    note.storm = merged.storm && localProbe(merged.storm, shift);
    note.broughtAt = merged.broughtAt === 0 ? 0 : merged.broughtAt - shift;
    note.firstRefusedAt = merged.firstRefusedAt === null ? null : merged.firstRefusedAt - shift;
    note.lateEmpties = merged.lateEmpties;
    replica.keepNote(cursor, merged);
    const here = note.strips.filter(({ at, leg }) => leg !== NO_EVENTS && at > note.broughtAt);
    const there = merged.strips
      .filter((at) => !own.strips.includes(at))
      .map((at) => ({ at: at - shift, leg: NO_EVENTS, probe: false }));
    const strips = [...here, ...there].sort((a, b) => a.at - b.at).slice(-MOST_STRIPS);
    note.strips.splice(0, note.strips.length, ...strips);
  }
}
