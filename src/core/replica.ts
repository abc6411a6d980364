/**
 * One session's record here, beside the same session at other replicas: what of it they do not know yet
 * (`changes`), and what they know that is not here yet (`absorb`). Nothing is queued: what has to be told is read off
 * the record when it is told, so a store that is away costs no memory, only the IDs that the rings drop meanwhile.
 */
import { absorbViews, ELSEWHERE, NO_EVENTS } from './absorb.ts';
import { provenSince, type Receipt } from './delivery.ts';
import type { RingEntry } from './event-ring.ts';
import type { Answer, CursorNote, LedgerBounds, Session, Stream } from './ledger.ts';
import type { Probe } from './replay.ts';
import type { EventKey, Millis, Position } from './terms.ts';
import {
  type AnswerFacts,
  encodeEvents,
  encodeNotes,
  encodeSession,
  encodeStream,
  eventsIn,
  type NoteFacts,
  type Opening,
  type Run,
  SEGMENT,
  type StreamFacts,
  type StreamId,
  type Turn,
  type View,
  type ViewId,
  type Wall,
} from './view.ts';

/** A moment, and what has to be added to any time here to make it one of the calendar: a whole number that seldom changes. */
export interface Moment {
  readonly now: Millis;
  readonly shift: Millis;
}

/** What a session's fields in the shared ledger become. */
export interface Changes {
  readonly set: readonly (readonly [field: string, value: string])[];
  readonly remove: readonly string[];
  /** How many of the fields were not there before; null where that is not known. */
  readonly fresh: number | null;
  /** IDs that had to make room before they could be told. */
  readonly lost: number;
}

/** A stream as far as it has been told. */
export interface Told {
  readonly id: StreamId;
  /** Its POST or listening GET passed here. */
  readonly opened: boolean;
  /** Up to here the record's events are told, or came from others. */
  mark: Position;
  readonly runs: Run[];
  /** The last event of each other view that has been taken over. */
  readonly absorbed: Map<ViewId, Position>;
  /** What each other view last told, and in which generation it was heard. */
  readonly heard: Map<ViewId, string>;
  turn: Turn;
  /** The events of the last segment, which goes on to change, and which one that is. */
  tail: RingEntry[];
  tailChanged: boolean;
  segment: number;
  firstSegment: number;
  drops: number;
  traces: number;
  proofs: string;
  /** When it was told last; later each time. */
  at: Wall;
  /** Somebody can read about it. */
  published: boolean;
  trailPublished: boolean;
  segmentsPublished: number;
}

const MOST_RUNS = 32;
/** A trace of dropped IDs is told after so many. Until then they are still in their segments. */
const DROPS_PER_TRAIL = SEGMENT;

export interface ReplicaOptions {
  readonly view: ViewId;
  /** Of this process, for its beat. */
  readonly replica: string;
  readonly bounds: LedgerBounds & { readonly sessionMemory: Millis };
  readonly proofMemory: Millis;
  readonly newId: () => StreamId;
  /** What the fate of its connection says of a receipt, without asking anybody. */
  readonly proven: (receipt: Receipt, now: Millis) => boolean;
}

export class Replica {
  readonly session: Session;
  readonly options: ReplicaOptions;
  readonly told = new Map<Stream, Told>();
  readonly byId = new Map<StreamId, Stream>();
  readonly notes = new Map<EventKey, { epoch: number; shown: string }>();
  /** Streams whose delivery may still be proven, or a proof taken back. */
  readonly #unsettled = new Set<Stream>();
  #session = '';
  #notes = '';
  #forgotten = 0;
  #generation: Session['generation'];
  /** Of the fields being told: those that are new. Null after `retell`, until all of it is told. */
  #fresh: number | null = 0;
  #retelling = false;
  /** IDs that the rings dropped untold, since the last changes. */
  #lost = 0;

  constructor(session: Session, options: ReplicaOptions) {
    this.session = session;
    this.options = options;
    this.#generation = session.generation;
  }

  /** What has to be written so that others know what is known here. Assumes that it will be; see `retell`. */
  changes(moment: Moment): Changes {
    const { session, options } = this;
    const set: [string, string][] = [];
    const remove: string[] = [];
    this.#fresh = this.#retelling ? null : 0;
    this.#retelling = false;
    session.changed = false;
    // Which generation a stream belongs to is told with the stream.
    const begun = session.generation !== this.#generation;
    this.#generation = session.generation;
    for (const stream of session.streams) {
      if (!stream.changed && !(begun && this.toldOf(stream).published)) continue;
      stream.changed = false;
      this.#tellStream(stream, moment, set, remove);
    }
    for (const [stream, told] of this.told) {
      if (session.streams.has(stream)) continue;
      this.#forget(stream, told, remove);
    }
    this.#tell(`v:${options.view}`, encodeSession(this.#sessionFacts(moment)), '#session', set);
    const notes = this.#notesFacts(moment);
    this.#tell(`n:${options.view}`, encodeNotes(notes), '#notes', set, notes.length === 0);
    const forgotten = session.forgotten?.changes ?? 0;
    if (forgotten !== this.#forgotten && session.forgotten !== null) {
      set.push([`f:${options.view}`, session.forgotten.whole().toText()]);
      if (this.#forgotten === 0) this.#count();
    }
    if (forgotten === 0 && this.#forgotten !== 0) remove.push(`f:${options.view}`);
    this.#forgotten = forgotten;
    const lost = this.#lost;
    this.#lost = 0;
    return { set, remove, fresh: this.#fresh, lost };
  }

  /** What was told is lost: everything that is still known here has to be told again. */
  retell(): void {
    const { session } = this;
    session.changed = true;
    this.#retelling = true;
    this.#session = '';
    this.#notes = '';
    this.#forgotten = 0;
    for (const [stream, told] of this.told) {
      if (!told.published) continue;
      stream.changed = true;
      this.#gather(stream, told);
      const own = eventsIn(stream.ring, told.runs);
      told.tail = own;
      told.tailChanged = true;
      told.segment = told.firstSegment;
      told.drops = 0;
      told.traces = -1;
    }
  }

  /** Takes over what other views tell. The rules that decide do not know of it. */
  absorb(views: readonly View[], alive: (replica: string) => boolean, moment: Moment): void {
    for (const stream of this.session.streams) this.#gather(stream, this.toldOf(stream));
    absorbViews({ replica: this, views, alive, moment });
  }

  /** Looks again at proofs that time or a connection may have changed. */
  review({ now }: Moment): void {
    for (const stream of this.#unsettled) {
      const told = this.told.get(stream);
      if (told === undefined || !this.session.streams.has(stream) || !this.#mayChange(stream, now)) {
        this.#unsettled.delete(stream);
      } else if (this.#proofs(stream, now) !== told.proofs) {
        stream.changed = this.session.changed = true;
      }
    }
  }

  /** Exchanges are open: others have to be kept from forgetting the session. */
  get isLive(): boolean {
    if (this.session.listening > 0) return true;
    for (const { openLegs } of this.session.streams) if (openLegs > 0) return true;
    return false;
  }

  toldOf(stream: Stream): Told {
    return this.told.get(stream) ?? this.know(stream, this.options.newId(), true);
  }

  know(stream: Stream, id: StreamId, opened: boolean): Told {
    const told: Told = {
      id,
      opened,
      mark: 0 as Position,
      runs: [],
      absorbed: new Map(),
      heard: new Map(),
      turn: {
        epoch: 0,
        floor: 0 as Position,
        blocked: 0,
        probe: null,
        lastReplayEmpty: false,
        lastLeg: null,
      },
      tail: [],
      tailChanged: false,
      segment: 0,
      firstSegment: 0,
      drops: 0,
      traces: 0,
      proofs: '',
      at: 0,
      published: false,
      trailPublished: false,
      segmentsPublished: 0,
    };
    this.told.set(stream, told);
    this.byId.set(id, stream);
    return told;
  }

  /** Takes what the ring has got since into the last segment. Returns whether it had dropped some of that by then. */
  #gather(stream: Stream, told: Told): boolean {
    if (stream.mark === told.mark) return false;
    const { ring, mark } = stream;
    const entries = ring.after(told.mark);
    const lost = entries.length === ring.size && ring.drops > 0 ? Math.max(0, mark - told.mark - entries.length) : 0;
    told.tail.push(...entries);
    told.tailChanged ||= entries.length > 0;
    const last = told.runs.at(-1);
    if (last?.[1] === told.mark) told.runs[told.runs.length - 1] = [last[0], mark];
    else told.runs.push([told.mark, mark]);
    // One that claims too much clashes with the others, and a clash proves nothing.
    if (told.runs.length > MOST_RUNS) told.runs.splice(0, 2, [told.runs[0]![0], told.runs[1]![1]]);
    told.mark = mark;
    this.#lost += lost;
    return lost > 0;
  }

  #tellStream(stream: Stream, moment: Moment, set: [string, string][], remove: string[]): void {
    const { view, bounds } = this.options;
    const told = this.toldOf(stream);
    const lost = this.#gather(stream, told);
    const name = `${view}:${told.id}`;
    told.turn = this.turnOf(stream, told, moment);
    told.proofs = this.#proofs(stream, moment.now);
    if (!told.published) this.#count();
    told.published = true;
    told.at = Math.max(Math.round(moment.now + moment.shift), told.at + 1);
    if (this.#mayChange(stream, moment.now)) this.#unsettled.add(stream);
    set.push([`s:${name}`, encodeStream(this.#streamFacts(stream, told, moment))]);
    let retired = false;
    if (told.tailChanged) {
      told.tailChanged = false;
      for (;;) {
        set.push([`e:${name}:${told.segment}`, encodeEvents(told.tail.slice(0, SEGMENT))]);
        if (told.segment >= told.segmentsPublished) {
          told.segmentsPublished = told.segment + 1;
          this.#count();
        }
        if (told.tail.length < SEGMENT) break;
        told.tail = told.tail.slice(SEGMENT);
        told.segment += 1;
        if (told.tail.length === 0) break;
      }
      const kept = Math.ceil(bounds.eventIdsPerStream / SEGMENT) + 2;
      for (; told.segment - told.firstSegment >= kept; told.firstSegment += 1) {
        remove.push(`e:${name}:${told.firstSegment}`);
        retired = true;
      }
    }
    const { trail, drops, traces } = stream.ring;
    const due = retired || lost || traces !== told.traces || drops - told.drops >= DROPS_PER_TRAIL;
    if (trail !== null && due) {
      set.push([`d:${name}`, trail.toText()]);
      if (!told.trailPublished) this.#count();
      told.trailPublished = true;
      told.drops = drops;
      told.traces = traces;
    }
  }

  #count(): void {
    if (this.#fresh !== null) this.#fresh += 1;
  }

  #forget(stream: Stream, told: Told, remove: string[]): void {
    this.told.delete(stream);
    this.byId.delete(told.id);
    this.#unsettled.delete(stream);
    if (!told.published) return;
    const name = `${this.options.view}:${told.id}`;
    remove.push(`s:${name}`, `d:${name}`);
    for (let n = told.firstSegment; n <= told.segment; n++) remove.push(`e:${name}:${n}`);
  }

  #tell(field: string, value: string, before: '#session' | '#notes', set: [string, string][], empty = false): void {
    const known = before === '#session' ? this.#session : this.#notes;
    if (value === known || (empty && known === '')) return;
    if (known === '') this.#count();
    if (before === '#session') this.#session = value;
    else this.#notes = value;
    set.push([field, value]);
  }

  #sessionFacts({ shift }: Moment): Parameters<typeof encodeSession>[0] {
    const { session, options } = this;
    const calendar = (at: Millis | null): Wall | null => (at === null ? null : Math.round(at + shift));
    return {
      replica: options.replica,
      generation: session.generation,
      begunAt: calendar(session.begunAt),
      acceptedAt: calendar(session.acceptedAt),
      endedAt: calendar(session.endedAt),
      initialized: session.complete,
      gaps: session.gaps,
      listening: session.listening,
      answersWhileListening: session.answersWhileListening,
      approved: [...session.approved],
    };
  }

  #streamFacts(stream: Stream, told: Told, { now, shift }: Moment): StreamFacts {
    const calendar = (at: Millis): Wall => Math.round(at + shift);
    const opening: Opening | null = told.opened
      ? {
          kind: stream.kind,
          at: calendar(stream.openedAt),
          untracked: stream.untracked,
          old: stream.generation < this.session.generation,
          requests: [...stream.requests.keys()],
        }
      : null;
    return {
      opening,
      answers: this.#answerFacts(stream, now, calendar),
      mark: stream.mark,
      runs: told.runs,
      turn: told.turn,
      strippedAt: stream.strippedAt === 0 ? 0 : calendar(stream.strippedAt),
      legs: stream.openLegs,
      at: told.at,
    };
  }

  #answerFacts(stream: Stream, now: Millis, calendar: (at: Millis) => Wall): AnswerFacts[] {
    const facts: AnswerFacts[] = [];
    for (const [request, answer] of stream.requests) {
      if (answer === null) continue;
      const proven = this.#provenSince(answer, now);
      const position = Number.isFinite(answer.position) ? answer.position : null;
      const on = this.toldOf(answer.on).id;
      const { key, length } = answer;
      facts.push({ request, on, position, key, length, proven: proven === null ? null : calendar(proven) });
    }
    return facts;
  }

  #provenSince({ receipts }: Answer, now: Millis): Millis | null {
    let since: Millis | null = null;
    for (const receipt of receipts) {
      if (receipt.connection === ELSEWHERE || !this.options.proven(receipt, now)) continue;
      since = Math.max(since ?? 0, provenSince(receipt));
    }
    return since;
  }

  #proofs(stream: Stream, now: Millis): string {
    return [...stream.requests.values()].map((answer) => answer && this.#provenSince(answer, now)).join();
  }

  #mayChange(stream: Stream, now: Millis): boolean {
    const fresh = ({ connection, flushedAt, response }: Receipt): boolean =>
      connection !== ELSEWHERE &&
      response !== 'broken' &&
      (flushedAt === null || now - Math.max(flushedAt, stream.strippedAt) <= this.options.proofMemory);
    for (const answer of stream.requests.values()) if (answer?.receipts.some(fresh)) return true;
    return false;
  }

  /** The stream's turn, in a new epoch where it has changed. */
  turnOf(stream: Stream, told: Told, { shift }: Moment): Turn {
    const { floor, blocked, lastReplayEmpty, lastLeg } = stream;
    const probe = stream.probe && calendarProbe(stream.probe, shift);
    const turn = { epoch: told.turn.epoch, floor, blocked, probe, lastReplayEmpty, lastLeg };
    return JSON.stringify(turn) === JSON.stringify(told.turn) ? told.turn : { ...turn, epoch: turn.epoch + 1 };
  }

  #notesFacts(moment: Moment): NoteFacts[] {
    for (const cursor of this.notes.keys()) if (!this.session.notes.has(cursor)) this.notes.delete(cursor);
    return [...this.session.notes].map(([cursor, note]) => this.noteFacts(cursor, note, moment));
  }

  /** What the others are told as it stands, as if it had been here. */
  keepNote(cursor: EventKey, { epoch, storm, firstRefusedAt, lateEmpties }: NoteFacts): void {
    this.notes.set(cursor, { epoch, shown: JSON.stringify({ storm, firstRefusedAt, lateEmpties }) });
  }

  noteFacts(cursor: EventKey, note: CursorNote, { shift }: Moment): NoteFacts {
    const moving = {
      storm: note.storm && calendarProbe(note.storm, shift),
      firstRefusedAt: note.firstRefusedAt === null ? null : Math.round(note.firstRefusedAt + shift),
      lateEmpties: note.lateEmpties,
    };
    const shown = JSON.stringify(moving);
    const known = this.notes.get(cursor) ?? { epoch: 0, shown: NOTHING_NOTED };
    const epoch = shown === known.shown ? known.epoch : known.epoch + 1;
    this.notes.set(cursor, { epoch, shown });
    const strips = note.strips
      .filter(({ leg }) => leg !== NO_EVENTS && leg() === 0)
      .map(({ at }) => Math.round(at + shift));
    return {
      cursor,
      strips,
      broughtAt: note.broughtAt === 0 ? 0 : Math.round(note.broughtAt + shift),
      epoch,
      ...moving,
    };
  }
}

const NOTHING_NOTED = JSON.stringify({ storm: null, firstRefusedAt: null, lateEmpties: 0 });

function calendarProbe({ interval, dueAt, busyUntil }: Probe, shift: number): Probe {
  return { interval, dueAt: Math.round(dueAt + shift), busyUntil: busyUntil === 0 ? 0 : Math.round(busyUntil + shift) };
}
