/**
 * Who knows everything: what each client really received, what the server can really still replay, what passed the
 * guard and when it asked. From that, and from nothing the guard believes, it says what must not happen. Where the
 * contract judges by a premise of its own (section 5: a connection that stayed open), so does this.
 */
import type { Handle, Link, Process } from './client.ts';
import type { Call, Server, ServerSession, ServerStream, WireEvent } from './server.ts';

/** What the guard remembers of a session: another object after it forgot. */
export type RecordToken = object | null;

/** The exchange that an event came on, and the cursor that it went on after. */
export interface Passage {
  readonly record: RecordToken;
  readonly cursor: string | null;
  /** We have destroyed the response. */
  readonly broken: boolean;
}

/** An event that was read while it passed. */
interface Read {
  readonly event: WireEvent;
  readonly on: Passage;
  /** The guard cannot have taken it for another stream's. */
  readonly certain: boolean;
}

/** A result that the guard's kernel took for a client. */
interface Delivery {
  readonly link: Link;
  readonly at: number;
  readonly on: Passage;
}

/** Section 4's probe schedule, as it is to be kept toward upstream. */
class Schedule {
  #interval = 0;
  #dueAt: number;
  /** 0 while no probe is out. */
  #freeAt = 0;

  constructor(now: number) {
    this.#dueAt = now;
  }

  allows(now: number): boolean {
    return now >= this.#dueAt && now >= this.#freeAt;
  }

  asked(now: number): void {
    this.#freeAt = now + 5_000;
  }

  nothing(now: number): void {
    this.#next(this.#interval === 0 ? 1_000 : Math.min(60_000, this.#interval * 2), now);
  }

  other(now: number): void {
    this.#next(Math.max(this.#interval, 1_000), now);
  }

  /** The first report after the latest question counts; an older probe whose slot freed itself may give it. */
  #next(interval: number, now: number): void {
    if (this.#freeAt === 0) return;
    this.#interval = interval;
    this.#dueAt = now + interval;
    this.#freeAt = 0;
  }
}

interface Storm {
  /** When the cursor was stripped without bringing an event since. */
  readonly strips: number[];
  schedule: Schedule | null;
}

/** `may-ask`: the caller is not approved, so that nothing is ever refused from memory. */
export type Asking = 'asks' | 'may-ask' | 'refused';
export interface Probing {
  readonly probe: boolean;
  readonly fault: string | null;
}
export type Came = 'nothing' | 'replayed' | 'other';

export class Oracle {
  readonly #server: Server;
  readonly #now: () => number;
  readonly #proofMemory: number;
  readonly #kernelKnown: boolean;
  readonly #deliveryProof: 'connection' | 'event-id';
  readonly #reads = new Map<ServerStream, Read[]>();
  readonly #deliveries = new Map<number, Delivery[]>();
  readonly #lastStrip = new Map<ServerSession, number>();
  /** Sessions in which something passed unread, or on an exchange that the guard may have taken for another stream's. */
  readonly #confused = new Set<ServerSession>();
  /** Records that have seen the server answer on a listening stream. */
  readonly #answering = new Set<RecordToken>();
  /** Records whose streams were forgotten at the end of their session. */
  readonly #cleared = new Set<RecordToken>();
  /** Cursors that went up unrecorded, and so are positions of a stream of their own. */
  readonly #placed = new Map<RecordToken, Set<string>>();
  readonly #floors = new Map<ServerStream, { readonly cursor: string; readonly schedule: Schedule } | 'unclear'>();
  readonly #storms = new Map<RecordToken, Map<string, Storm>>();

  constructor(
    server: Server,
    now: () => number,
    guard: {
      readonly proofMemory: number;
      readonly kernelKnown: boolean;
      readonly deliveryProof: 'connection' | 'event-id';
    },
  ) {
    this.#server = server;
    this.#now = now;
    this.#proofMemory = guard.proofMemory;
    this.#kernelKnown = guard.kernelKnown;
    this.#deliveryProof = guard.deliveryProof;
  }

  // What happened.

  read(session: ServerSession, stream: ServerStream, event: WireEvent, on: Passage, certain: boolean): void {
    let reads = this.#reads.get(stream);
    if (reads === undefined) {
      reads = [];
      this.#reads.set(stream, reads);
    }
    reads.push({ event, on, certain });
    if (!certain) this.#confused.add(session);
    else if (stream.kind === 'listening' && event.answers.length > 0) this.#answering.add(on.record);
  }

  flushed(event: WireEvent, link: Link, on: Passage): void {
    for (const { uid } of event.answers) {
      const deliveries = this.#deliveries.get(uid) ?? [];
      deliveries.push({ link, at: this.#now(), on });
      this.#deliveries.set(uid, deliveries);
    }
  }

  /** A stream passes unread, and so may own any cursor of its session. */
  missed(session: ServerSession): void {
    this.#confused.add(session);
  }

  placed(record: RecordToken, cursor: string): void {
    const cursors = this.#placed.get(record) ?? new Set();
    cursors.add(cursor);
    this.#placed.set(record, cursors);
  }

  cleared(record: RecordToken): void {
    this.#cleared.add(record);
  }

  stripped(session: ServerSession): void {
    this.#lastStrip.set(session, this.#now());
  }

  // 1. What is at stake.

  /** Results that this client does not have and would get for the cursor: it must be neither stripped nor refused. */
  atStake(process: Process, session: ServerSession, cursor: string, record: RecordToken): Call[] {
    const calls: Call[] = [];
    for (const { call, stream } of this.#server.obtainable(session, cursor)) {
      if (process.wants(call) && stream.era === session.era && this.isKnowable(session, stream, cursor, record)) {
        calls.push(call);
      }
    }
    return calls;
  }

  /**
   * A guard that was not there when a stream began cannot know that it shares an ID with another, nor whose the IDs are
   * that come after such a one. Where an ID is that stream's alone, it has to forward it all the same.
   */
  isKnowable(session: ServerSession, stream: ServerStream, cursor: string, record: RecordToken): boolean {
    return this.#isKnownOwner(stream, cursor, record) || !this.#isBlurred(session, stream, cursor, record);
  }

  #isBlurred(session: ServerSession, stream: ServerStream, id: string, record: RecordToken): boolean {
    const reads = this.#readsOf(stream, record);
    const behind = new Set<string>();
    for (let at: string | null = id; at !== null && !behind.has(at); ) {
      const reached: string = at;
      behind.add(reached);
      if (session.ever.some((other) => other !== stream && this.#carried(other, reached, record))) return true;
      at = reads.find(({ event }) => event.id === reached)?.on.cursor ?? null;
    }
    return false;
  }

  /**
   * The guard can know every stream that the client may have this ID from. Where `forgets`, a stream whose results are
   * all there may have gone without a trace: that is no harm to a verdict, but the filter may take its ID for another's.
   */
  knowsOwners(process: Process, session: ServerSession, cursor: string, on: Passage, forgets: boolean): boolean {
    const owners = session.ever.filter((stream) => stream.indexOf(cursor) !== -1);
    const mayBeGone = (stream: ServerStream): boolean =>
      forgets && owners.length > 1 && stream.posted.length > 0 && !stream.posted.some((call) => process.wants(call));
    return owners.every((stream) => this.#isKnownOwner(stream, cursor, on.record) && !mayBeGone(stream));
  }

  /** The guard saw this ID on this stream, or on an exchange that it had reason to take for one of this stream's. */
  #isKnownOwner(stream: ServerStream, id: string, record: RecordToken, behind: readonly string[] = []): boolean {
    const isKnown = ({ on, certain }: Read): boolean =>
      certain ||
      (on.cursor !== null &&
        !behind.includes(on.cursor) &&
        this.#isKnownOwner(stream, on.cursor, record, [...behind, id]));
    return this.#readsOf(stream, record).some((read) => read.event.id === id && isKnown(read));
  }

  /** The guard was there when the stream began. */
  hasMet(stream: ServerStream, record: RecordToken): boolean {
    return this.#readsOf(stream, record).some(({ certain }) => certain);
  }

  #readsOf(stream: ServerStream, record: RecordToken): Read[] {
    return (this.#reads.get(stream) ?? []).filter(({ on }) => on.record === record);
  }

  #carried(stream: ServerStream, cursor: string, record: RecordToken): boolean {
    return this.#readsOf(stream, record).some(({ event }) => event.id === cursor);
  }

  /** Another process has, by the contract's premise, this result: the accepted exception. */
  isProvenElsewhere(process: Process, session: ServerSession, call: Call): boolean {
    const deliveries = this.#deliveries.get(call.uid) ?? [];
    return deliveries.some((delivery) => delivery.link.process !== process && this.#mayProve(session, delivery));
  }

  #mayProve(session: ServerSession, { link, at, on }: Delivery): boolean {
    const since = Math.max(at, this.#lastStrip.get(session) ?? 0);
    if (on.broken || link.failed || this.#now() - since > this.#proofMemory) return false;
    if (link.requestedAt > at) return true;
    if (link.closed === 'client') return link.closedAt! - at >= 100;
    const { kernel } = link;
    return !this.#kernelKnown || (kernel !== 'absent' && kernel.unacknowledged === 0);
  }

  /** The guard has reason to think that answers may wait on a listening stream, where the specification wants none. */
  knowsToAnswerWhileListening(record: RecordToken): boolean {
    return this.#answering.has(record);
  }

  // 2. What is proven.

  /**
   * Every stream that carried the cursor is delivered: it is the only one and the cursor is at or after its terminal
   * event, so that the client says so itself, or its connection tells beyond doubt.
   */
  provesReceipt(process: Process, session: ServerSession, cursor: string, record: RecordToken): boolean {
    if (!this.#isClear(session, cursor, record)) return false;
    const owners = session.ever.filter((stream) => this.#carried(stream, cursor, record));
    const isDelivered = (stream: ServerStream): boolean =>
      this.#isClosed(session, stream, record) &&
      ((owners.length === 1 && this.#isPast(stream, cursor)) || this.#isReceived(process, stream, record));
    return owners.length > 0 && owners.every(isDelivered);
  }

  /** All that its POST asked for has been answered on it, past a guard that could read it. */
  #isClosed(session: ServerSession, stream: ServerStream, record: RecordToken): boolean {
    const { era, kind, readable, posted } = stream;
    const reads = this.#reads.get(stream) ?? [];
    if (era !== session.era || kind !== 'request' || !readable || reads.some(({ on }) => on.record !== record))
      return false;
    const isAnswered = (call: Call): boolean => reads.some(({ event }) => event.answers.includes(call));
    return posted.length > 0 && posted.every(isAnswered);
  }

  #isReceived(process: Process, stream: ServerStream, record: RecordToken): boolean {
    if (process.forwarded || this.#deliveryProof === 'event-id') return false;
    const proves = ({ link, at, on }: Delivery): boolean =>
      on.record === record &&
      !on.broken &&
      !link.failed &&
      !link.dead &&
      link.closed === null &&
      !link.process.forwarded &&
      this.#now() - at <= this.#proofMemory &&
      (this.#kernelKnown ? link.kernel !== 'absent' && link.kernel.unacknowledged === 0 : this.#now() - at >= 100);
    return stream.posted.every((call) => (this.#deliveries.get(call.uid) ?? []).some(proves));
  }

  /** What passed can be read in one way only. */
  #isClear(session: ServerSession, cursor: string, record: RecordToken): boolean {
    if (record === null || this.#cleared.has(record) || this.#confused.has(session)) return false;
    return this.#placed.get(record)?.has(cursor) !== true;
  }

  #isPast(stream: ServerStream, cursor: string): boolean {
    const answered = this.#answeredBefore(stream, cursor);
    return stream.posted.every((call) => answered.has(call));
  }

  /** What whoever got this ID must have been answered: earlier on the same exchange, or before the cursor it began at. */
  #answeredBefore(stream: ServerStream, cursor: string): ReadonlySet<Call> {
    const reads = this.#reads.get(stream) ?? [];
    const at = reads.findIndex(({ event }) => event.id === cursor);
    if (at === -1) return new Set();
    const { on } = reads[at]!;
    const here = reads.slice(0, at + 1).filter((read) => read.on === on);
    const before = on.cursor === null || on.cursor === cursor ? [] : this.#answeredBefore(stream, on.cursor);
    return new Set([...here.flatMap(({ event }) => event.answers), ...before]);
  }

  // 4. What may be dropped.

  /** The client has this event, or has said so. */
  has(process: Process, handle: Handle, session: ServerSession, event: WireEvent, cursor: string): boolean {
    if (process.received.has(event.uid)) return true;
    // A block that only moves the cursor to where it stands, or stood.
    if (!event.hasData) return event.id === cursor || (event.id !== null && handle.seen.includes(event.id));
    if (event.answers.length === 0) return false;
    return event.answers.every(
      (call) => !process.pending.has(call.key) || this.isProvenElsewhere(process, session, call),
    );
  }

  // 5. How often upstream is asked.

  /** The only stream that this cursor can mean, where that is beyond doubt. */
  #onlyOwner(session: ServerSession, cursor: string, record: RecordToken): ServerStream | null {
    if (!this.#isClear(session, cursor, record)) return null;
    const owners = session.ever.filter((stream) => stream.indexOf(cursor) !== -1);
    const [owner, ...others] = owners;
    if (owner === undefined || others.length > 0 || owner.era !== session.era) return null;
    if (!this.#carried(owner, cursor, record) || owner.log.filter(({ id }) => id === cursor).length > 1) return null;
    return owner;
  }

  /** A resume is about to go up, or is refused as below the floor: whether it is a probe, and what is wrong with it. */
  probes(session: ServerSession, cursor: string, record: RecordToken, how: Asking): Probing {
    const stream = this.#onlyOwner(session, cursor, record);
    const floor = stream === null ? undefined : this.#floors.get(stream);
    if (floor === undefined || floor === 'unclear' || floor.cursor !== cursor) {
      this.#obscure(session, cursor);
      return { probe: false, fault: null };
    }
    return this.#ask(floor.schedule, how);
  }

  /** The same for a finished cursor that is stripped, or refused as a storm. */
  stormProbes(session: ServerSession, cursor: string, record: RecordToken, how: Asking): Probing {
    const storm = this.#stormOf(session, cursor, record);
    if (storm.schedule !== null) return this.#ask(storm.schedule, how);
    if (how === 'asks') storm.strips.push(this.#now());
    if (how !== 'refused') return { probe: false, fault: null };
    storm.schedule = new Schedule(this.#now());
    const recent = storm.strips.filter((at) => this.#now() - at <= 30_000).length;
    return { probe: false, fault: recent < 10 ? `a storm after ${recent} fruitless strips` : null };
  }

  #ask(schedule: Schedule, how: Asking): Probing {
    const due = schedule.allows(this.#now());
    if (how === 'refused') return { probe: false, fault: due ? 'refused from memory although a probe is due' : null };
    if (!due) return { probe: false, fault: how === 'asks' ? 'upstream is asked before the next probe is due' : null };
    schedule.asked(this.#now());
    return { probe: true, fault: null };
  }

  /** What came of a forwarded resume. */
  settled(session: ServerSession, cursor: string, record: RecordToken, came: Came, wasProbe: boolean): void {
    const stream = this.#onlyOwner(session, cursor, record);
    const floor = stream === null ? undefined : this.#floors.get(stream);
    if (stream === null || (floor !== undefined && (floor === 'unclear' || floor.cursor !== cursor))) {
      this.#obscure(session, cursor);
    } else if (came === 'replayed') this.#floors.delete(stream);
    else if (floor === undefined) {
      if (came === 'nothing') this.#floors.set(stream, { cursor, schedule: new Schedule(this.#now()) });
    } else if (!wasProbe) {
      this.#floors.set(stream, 'unclear');
    } else if (came === 'nothing') {
      floor.schedule.nothing(this.#now());
    } else {
      floor.schedule.other(this.#now());
    }
  }

  /** Other cursors of a stream share its schedule: from now on it is anybody's guess. */
  #obscure(session: ServerSession, cursor: string): void {
    for (const stream of session.ever) {
      if (stream.indexOf(cursor) !== -1 && this.#floors.has(stream)) this.#floors.set(stream, 'unclear');
    }
  }

  /** A quiet replay ended late. Ten of these in a row count as one refusal, for which this has no eye. */
  endedLate(session: ServerSession, cursor: string): void {
    for (const stream of session.ever) if (stream.indexOf(cursor) !== -1) this.#floors.set(stream, 'unclear');
  }

  /** A strip for an approved caller is over. */
  stripOver(session: ServerSession, cursor: string, record: RecordToken, events: number, wasProbe: boolean): void {
    const storm = this.#stormOf(session, cursor, record);
    if (events > 0) {
      storm.strips.length = 0;
      storm.schedule = null;
    } else if (wasProbe) {
      storm.schedule?.nothing(this.#now());
    }
  }

  #stormOf(session: ServerSession, cursor: string, record: RecordToken): Storm {
    const key = `${session.id} ${session.era} ${cursor}`;
    let storms = this.#storms.get(record);
    if (storms === undefined) this.#storms.set(record, (storms = new Map()));
    let storm = storms.get(key);
    if (storm === undefined) storms.set(key, (storm = { strips: [], schedule: null }));
    return storm;
  }
}
