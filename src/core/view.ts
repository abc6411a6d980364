/**
 * What one replica tells the others about a session: its *view*, as it stands in the shared ledger. Every replica writes
 * its own view and nobody else's, so writes never meet; whoever reads merges all of them (`absorb.ts`) and then asks the
 * same rules as ever.
 *
 *     field            holds
 *     v:<view>         the session: generation, end, callers, listening streams
 *     s:<view>:<id>    one stream: requests, answers, floor, probe, proofs
 *     e:<view>:<id>:n  64 of its event IDs with their positions and lengths; only the last such field still changes
 *     d:<view>:<id>    a trace of the IDs that had to make room
 *     f:<view>         the same for streams that were forgotten
 *     n:<view>         what is remembered about single cursors
 *
 * Times are wall clock, since nothing else means the same on two machines; what becomes of a clock that is wrong is said
 * where each is read. Session and event IDs are keyed hashes long before they come here.
 */
import type { EventRing, RingEntry } from './event-ring.ts';
import { KeyFilter } from './event-ring.ts';
import type { Stream, StreamKind } from './ledger.ts';
import type { Probe } from './replay.ts';
import type { Credential, EventKey, Generation, Millis, Position, RequestKey } from './terms.ts';

/** Milliseconds of the calendar. */
export type Wall = number;
/** One record of a session in one process: random, so that a process that has forgotten a session begins a new view. */
export type ViewId = string;
/** A stream, the same for every replica: random. */
export type StreamId = string;

export interface SessionFacts {
  /** The process that writes the view, as it is known by its beat. */
  readonly replica: string;
  readonly generation: Generation;
  /** Streams opened before belong to earlier generations. */
  readonly begunAt: Wall | null;
  readonly acceptedAt: Wall | null;
  readonly endedAt: Wall | null;
  readonly initialized: boolean;
  readonly gaps: boolean;
  readonly listening: number;
  readonly answersWhileListening: boolean;
  readonly approved: readonly Credential[];
}

export interface AnswerFacts {
  readonly request: RequestKey;
  /** The stream it travelled on. */
  readonly on: StreamId;
  /** Null where the views of it do not agree: then no event ID proves it delivered. */
  readonly position: Position | null;
  readonly key: EventKey | null;
  readonly length: number;
  /** Since when the fate of a connection proves it delivered; null where nothing does. */
  readonly proven: Wall | null;
}

/** What only the replica knows that carried the stream's POST or listening GET. */
export interface Opening {
  readonly kind: StreamKind;
  readonly at: Wall;
  readonly untracked: boolean;
  /** It belongs to an earlier generation of this view. */
  readonly old: boolean;
  readonly requests: readonly RequestKey[];
}

/** What can move back, and so carries an epoch: the floor, its probe, and what the last exchange taught. */
export interface Turn {
  readonly epoch: number;
  readonly floor: Position;
  readonly blocked: Position | 0;
  /** Times are wall clock. */
  readonly probe: Probe | null;
  readonly lastReplayEmpty: boolean;
  readonly lastLeg: Stream['lastLeg'];
}

/** Positions that one view has given: after the first number, up to the second. */
export type Run = readonly [after: number, to: number];

export interface StreamFacts {
  /** Null in the view of a replica that only resumed the stream. */
  readonly opening: Opening | null;
  readonly answers: readonly AnswerFacts[];
  readonly mark: Position;
  readonly runs: readonly Run[];
  readonly turn: Turn;
  readonly strippedAt: Wall;
  /** Exchanges that are open upstream. */
  readonly legs: number;
  /** When this was written; later each time. */
  readonly at: Wall;
}

/** A cursor of the session. What can move back carries an epoch. */
export interface NoteFacts {
  readonly cursor: EventKey;
  /** Strips that have brought no event. */
  readonly strips: readonly Wall[];
  readonly broughtAt: Wall;
  readonly epoch: number;
  readonly storm: Probe | null;
  readonly firstRefusedAt: Wall | null;
  readonly lateEmpties: number;
}

/** A stream in one view. */
export interface StreamView {
  readonly facts: StreamFacts;
  readonly events: readonly RingEntry[];
  readonly trail: KeyFilter | null;
}

export interface View {
  readonly id: ViewId;
  readonly session: SessionFacts;
  readonly streams: ReadonlyMap<StreamId, StreamView>;
  readonly notes: readonly NoteFacts[];
  readonly forgotten: KeyFilter | null;
}

/** How many event IDs share a field. */
export const SEGMENT = 64;

// Arrays and not objects: the names would be most of what is stored.

export function encodeSession(facts: SessionFacts): string {
  const { replica, generation, begunAt, acceptedAt, endedAt, listening, approved } = facts;
  const flags = [facts.initialized, facts.gaps, facts.answersWhileListening].map(Number);
  return JSON.stringify([replica, generation, begunAt, acceptedAt, endedAt, listening, flags, approved]);
}

function decodeSession(text: string): SessionFacts {
  const [replica, generation, begunAt, acceptedAt, endedAt, listening, flags, approved] = JSON.parse(text);
  const [initialized, gaps, answersWhileListening] = (flags as number[]).map(Boolean) as [boolean, boolean, boolean];
  return {
    replica,
    generation,
    begunAt,
    acceptedAt,
    endedAt,
    listening,
    initialized,
    gaps,
    answersWhileListening,
    approved,
  };
}

export function encodeStream({ opening, answers, mark, runs, turn, strippedAt, legs, at }: StreamFacts): string {
  return JSON.stringify([
    opening && [opening.kind, opening.at, Number(opening.untracked), Number(opening.old), opening.requests],
    answers.map(({ request, on, position, key, length, proven }) => [request, on, position, key, length, proven]),
    mark,
    runs,
    encodeTurn(turn),
    strippedAt,
    legs,
    at,
  ]);
}

function decodeStream(text: string): StreamFacts {
  const [opening, answers, mark, runs, turn, strippedAt, legs, at] = JSON.parse(text);
  return {
    opening: opening && {
      kind: opening[0],
      at: opening[1],
      untracked: opening[2] === 1,
      old: opening[3] === 1,
      requests: opening[4],
    },
    answers: (answers as never[][]).map(([request, on, position, key, length, proven]) => ({
      request: request!,
      on: on!,
      position: position!,
      key: key!,
      length: length!,
      proven: proven!,
    })),
    mark,
    runs,
    turn: decodeTurn(turn),
    strippedAt,
    legs,
    at,
  };
}

type TurnTuple = [number, Position, Position | 0, ProbeTuple | null, number, number[] | null];
type ProbeTuple = [Millis, Wall, Wall];

export function encodeTurn({ epoch, floor, blocked, probe, lastReplayEmpty, lastLeg }: Turn): TurnTuple {
  const leg = lastLeg && [lastLeg.clean, lastLeg.sawTerminal, lastLeg.polls].map(Number);
  return [epoch, floor, blocked, probe && encodeProbe(probe), Number(lastReplayEmpty), leg];
}

function decodeTurn([epoch, floor, blocked, probe, empty, leg]: TurnTuple): Turn {
  return {
    epoch,
    floor,
    blocked,
    probe: probe && decodeProbe(probe),
    lastReplayEmpty: empty === 1,
    lastLeg: leg && { clean: leg[0] === 1, sawTerminal: leg[1] === 1, polls: leg[2] === 1 },
  };
}

const encodeProbe = ({ interval, dueAt, busyUntil }: Probe): ProbeTuple => [interval, dueAt, busyUntil];
const decodeProbe = ([interval, dueAt, busyUntil]: ProbeTuple): Probe => ({ interval, dueAt, busyUntil });

export function encodeEvents(entries: readonly RingEntry[]): string {
  return JSON.stringify(entries.flatMap(({ key, position, length }) => [position, key, length]));
}

function decodeEvents(text: string): RingEntry[] {
  const flat = JSON.parse(text) as number[];
  const entries: RingEntry[] = [];
  for (let i = 0; i + 2 < flat.length; i += 3) {
    entries.push({ position: flat[i] as Position, key: flat[i + 1] as EventKey, length: flat[i + 2]! });
  }
  return entries;
}

export function encodeNotes(notes: readonly NoteFacts[]): string {
  return JSON.stringify(
    notes.map(({ cursor, strips, broughtAt, epoch, storm, firstRefusedAt, lateEmpties }) => [
      cursor,
      strips,
      broughtAt,
      epoch,
      storm && encodeProbe(storm),
      firstRefusedAt,
      lateEmpties,
    ]),
  );
}

function decodeNotes(text: string): NoteFacts[] {
  const notes = JSON.parse(text) as [EventKey, Wall[], Wall, number, ProbeTuple | null, Wall | null, number][];
  return notes.map(([cursor, strips, broughtAt, epoch, storm, firstRefusedAt, lateEmpties]) => ({
    cursor,
    strips,
    broughtAt,
    epoch,
    storm: storm && decodeProbe(storm),
    firstRefusedAt,
    lateEmpties,
  }));
}

/**
 * All views in the fields of a session. A stream whose facts are missing, or a view without its session, is nobody's:
 * it is left out, and so is the view `except`.
 *
 * @throws what `JSON.parse` and its like throw at a field that nobody of ours wrote.
 */
export function decodeViews(fields: Readonly<Record<string, string>>, except?: ViewId): View[] {
  const views = new Map<ViewId, { -readonly [K in keyof View]: View[K] } & { streams: Map<StreamId, StreamView> }>();
  const names = Object.keys(fields).map((name) => [name, name.split(':')] as const);
  for (const [name, [form, id]] of names) {
    if (form !== 'v' || id === undefined || id === except) continue;
    views.set(id, { id, session: decodeSession(fields[name]!), streams: new Map(), notes: [], forgotten: null });
  }
  for (const [name, [form, id = '', stream = '']] of names) {
    const view = views.get(id);
    if (view === undefined) continue;
    if (form === 's') view.streams.set(stream, { facts: decodeStream(fields[name]!), events: [], trail: null });
    else if (form === 'n') view.notes = decodeNotes(fields[name]!);
    else if (form === 'f') view.forgotten = KeyFilter.fromText(fields[name]!);
  }
  for (const [name, [form, id = '', streamId = '']] of names) {
    const streams = views.get(id)?.streams;
    const stream = streams?.get(streamId);
    if (streams === undefined || stream === undefined) continue;
    if (form === 'e') streams.set(streamId, { ...stream, events: [...stream.events, ...decodeEvents(fields[name]!)] });
    else if (form === 'd') streams.set(streamId, { ...stream, trail: KeyFilter.fromText(fields[name]!) });
  }
  return [...views.values()];
}

/** The events of a ring that stand in one of these runs. */
export function eventsIn(ring: EventRing, runs: readonly Run[]): RingEntry[] {
  return [...ring.entries()].filter(({ position }) => runs.some(([after, to]) => position > after && position <= to));
}

/** Which of two turns holds. The higher epoch; in a tie, from each what forwards. */
export function laterTurn(one: Turn, other: Turn): Turn {
  if (one.epoch !== other.epoch) return one.epoch > other.epoch ? one : other;
  return {
    epoch: one.epoch,
    floor: Math.min(one.floor, other.floor) as Position,
    blocked: one.blocked === other.blocked ? one.blocked : 0,
    probe: soonerProbe(one.probe, other.probe),
    lastReplayEmpty: one.lastReplayEmpty && other.lastReplayEmpty,
    lastLeg: politerLeg(one.lastLeg, other.lastLeg),
  };
}

function soonerProbe(one: Probe | null, other: Probe | null): Probe | null {
  if (one === null || other === null) return one ?? other;
  const [a, b] = [encodeProbe(one), encodeProbe(other)].map(([interval, due, busy]) => [Math.max(due, busy), interval]);
  return a![0]! < b![0]! || (a![0] === b![0] && a![1]! <= b![1]!) ? one : other;
}

/** One that announced polling lets an empty answer pass. */
function politerLeg(one: Stream['lastLeg'], other: Stream['lastLeg']): Stream['lastLeg'] {
  const rank = (leg: Stream['lastLeg']): number =>
    leg === null ? 0 : 1 + Number(leg.polls) * 4 + Number(leg.clean) * 2 + Number(!leg.sawTerminal);
  return rank(one) >= rank(other) ? one : other;
}

/** Which of two notes of a cursor holds: for strips both, for the rest as for a turn. */
export function laterNote(one: NoteFacts, other: NoteFacts): NoteFacts {
  const broughtAt = Math.max(one.broughtAt, other.broughtAt);
  const strips = [...new Set([...one.strips, ...other.strips])].filter((at) => at > broughtAt).sort((a, b) => a - b);
  const both = { cursor: one.cursor, strips: strips.slice(-10), broughtAt };
  if (one.epoch !== other.epoch) return { ...(one.epoch > other.epoch ? one : other), ...both };
  const refused = [one.firstRefusedAt, other.firstRefusedAt].filter((at) => at !== null);
  return {
    ...both,
    epoch: one.epoch,
    // No storm lets everything through, for a while.
    storm: one.storm === null || other.storm === null ? null : soonerProbe(one.storm, other.storm),
    firstRefusedAt: refused.length === 0 ? null : Math.min(...refused),
    lateEmpties: Math.min(one.lateEmpties, other.lateEmpties),
  };
}

/**
 * Two views gave the same positions to different events, because each recorded before it had heard of the other: from
 * here on nobody can tell what came before what. Null where they agree.
 */
export function clashOf(
  one: Pick<StreamView, 'events'> & { readonly runs: readonly Run[] },
  other: Pick<StreamView, 'events'> & { readonly runs: readonly Run[] },
): Position | null {
  let clash: number | null = null;
  for (const [after, to] of one.runs) {
    for (const [otherAfter, otherTo] of other.runs) {
      const [from, until] = [Math.max(after, otherAfter), Math.min(to, otherTo)];
      if (from >= until || sameWithin(one.events, other.events, from, until)) continue;
      clash = Math.min(clash ?? from, from);
    }
  }
  return clash as Position | null;
}

function sameWithin(one: readonly RingEntry[], other: readonly RingEntry[], from: number, until: number): boolean {
  const shown = (events: readonly RingEntry[]): string =>
    events
      .filter(({ position }) => position > from && position <= until)
      .map(({ position, key, length }) => `${position} ${key} ${length}`)
      .sort()
      .join();
  return shown(one) === shown(other);
}
