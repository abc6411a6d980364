/**
 * The wires between the clients, the guard and the server: every exchange with what is under way on it, and every
 * resume with what the oracle has to say about it. Breaks off at the first breach of a property.
 */
import type { ResumeFacts, RuleName, Verdict } from '../../../src/core/decide.ts';
import type { Outcome } from '../../../src/core/replay.ts';
import { type Handle, Link, type Process } from './client.ts';
import { Clock } from './clock.ts';
import { type Ask, Exchange, Guard, MINTED, type Settings } from './guard.ts';
import { type Came, Oracle, type RecordToken } from './oracle.ts';
import type { Script } from './script.ts';
import { type Call, type Pipe, Server, type ServerSession, type ServerStream, type WireEvent } from './server.ts';

export type Property = 1 | 2 | 3 | 4 | 5;

export class Breach extends Error {
  readonly property: Property;

  constructor(property: Property, message: string) {
    super(message);
    this.property = property;
  }
}

export const STRANGER = 'stranger';
const AMPLE = {
  streamsPerSession: 1_000,
  eventIdsPerStream: 1_000,
  finishedStreamMemory: 600_000,
  openStreamMemory: 3_600_000,
  memory: 64 * 1_048_576,
  sessions: 40,
  sessionMemory: 600_000,
};
const SMALL = {
  streamsPerSession: 4,
  eventIdsPerStream: 3,
  finishedStreamMemory: 100_000,
  openStreamMemory: 400_000,
  memory: 100_000,
  sessions: 2,
  sessionMemory: 90_000,
};
export const PROOF_MEMORY = 60_000;

/** What the model needs to be told about a resume beside the handle it continues. */
export interface Resuming {
  readonly cursor: string;
  readonly link: Link;
  readonly odd?: Partial<Ask>;
}

/** One exchange: the client's connection at one end, the server at the other, the guard between them. */
class Wire implements Pipe {
  open = true;
  /** Its response was destroyed by us. */
  broken = false;
  headSent = false;
  readonly world: World;
  readonly process: Process;
  readonly link: Link;
  readonly handle: Handle;
  readonly session: ServerSession;
  readonly exchange: Exchange;
  readonly cursor: string | null;
  /** The stream that the guard must take what comes for, or null where it may be mistaken. */
  sure: ServerStream | null = null;
  probe = false;
  record: RecordToken = null;
  events = 0;
  #isOver = false;
  readonly #sent: WireEvent[] = [];

  constructor(world: World, process: Process, link: Link, handle: Handle, ask: Ask) {
    this.world = world;
    this.process = process;
    this.link = link;
    this.handle = handle;
    this.session = world.server.session(process.sessionId);
    this.cursor = ask.cursor;
    this.exchange = new Exchange(world.guard, ask, {
      decided: (outcome) => this.#decided(outcome),
      refused: (pending) => this.refuse(pending),
      leaveUpstream: () => {
        this.open = false;
        this.world.note(() => `  upstream's leg is closed`);
      },
    });
  }

  head(status = 200, isStream = true): void {
    if (this.headSent || !this.open) return;
    this.headSent = true;
    this.exchange.head(status, isStream, this.process.anonymous ? null : this.process.sessionId);
    if (this.record === null) this.record = this.world.recordOf(this.process);
  }

  send(event: WireEvent, stream: ServerStream): void {
    if (!this.open) return;
    this.head();
    const passes = this.exchange.block({
      id: event.id,
      length: event.length,
      retry: event.retry,
      keys: event.answers.map(({ key }) => key),
    });
    this.world.note(() => `  upstream sends ${said(event)} of stream ${stream.ordinal}${passes ? '' : ', dropped'}`);
    if (!passes) {
      const { oracle } = this.world;
      const had = this.#hasSent(event) || oracle.has(this.process, this.handle, this.session, event, this.cursor!);
      const { forgets } = this.world;
      const isKnowable = oracle.knowsOwners(this.process, this.session, this.cursor!, this, forgets);
      if (!had && isKnowable) {
        this.world.breach(4, `the filter drops ${said(event)}, which ${this.process.name} does not have`);
      }
      return;
    }
    this.events += 1;
    this.#sent.push(event);
    const { blind } = this.exchange;
    if (!blind) this.world.oracle.read(this.session, stream, event, this, this.sure === stream);
    this.link.write({
      event,
      handle: this.handle,
      flushed: () => {
        if (event.answers.length === 0 || blind) return;
        this.exchange.flushed();
        this.world.oracle.flushed(event, this.link, this);
      },
    });
  }

  /** This exchange has carried the event, or an answer that the client will take for it. */
  #hasSent({ uid, answers }: WireEvent): boolean {
    const isAnswered = ({ key }: Call): boolean =>
      this.#sent.some((sent) => sent.answers.some((call) => call.key === key));
    return this.#sent.some((sent) => sent.uid === uid) || (answers.length > 0 && answers.every(isAnswered));
  }

  part(): void {
    if (!this.open) return;
    this.head();
    this.exchange.part();
  }

  end(json = ''): void {
    if (!this.open) return;
    this.head();
    this.open = false;
    if (this.exchange.outcome === 'live') this.world.oracle.endedLate(this.session, this.cursor!);
    this.exchange.ended(json);
    if (!this.exchange.answered) this.#finish();
  }

  cut(): void {
    if (!this.open) return;
    this.open = false;
    this.world.note(() => '  upstream breaks the exchange');
    const held = !this.headSent || this.exchange.holding;
    this.exchange.failed();
    if (held) {
      this.#finish();
      return;
    }
    this.broken = true;
    this.link.abandon();
    this.link.closed ??= 'us';
    this.link.closedAt ??= this.world.clock.now;
    this.exchange.closed('us');
    this.#over();
  }

  /** We answer in upstream's place, with an event where that can fail the one request that waits. */
  refuse(pending: string | null): void {
    this.world.note(() => `  refused${pending === null ? '' : `, as an event for ${pending}`}`);
    if (pending !== null) {
      const id = `${MINTED}${this.world.events++}`;
      const answers = [{ uid: -1, key: pending }];
      this.process.minted.push(id);
      this.link.write({ event: { id, uid: -this.world.events, answers }, handle: this.handle, flushed: () => {} });
    }
    this.#finish();
  }

  /** The guard has noticed that the client is gone. */
  clientLeft(): void {
    this.exchange.closed('client');
    this.open = false;
    this.#over();
  }

  /** A whole answer without events. */
  answer(status: number, json = ''): void {
    this.world.note(() => `  upstream answers ${status}`);
    this.head(status, false);
    // A body that is no event stream is content.
    if (status === 200) this.exchange.part();
    this.end(json);
  }

  /** The response ends in order. */
  #finish(): void {
    const flushed = (): void => {
      this.exchange.finished();
      this.#over();
    };
    this.link.write({ event: null, handle: this.handle, flushed });
  }

  #over(): void {
    const { verdict, resolution } = this.exchange;
    if (this.#isOver || verdict?.action !== 'strip' || !resolution?.facts.approved) return;
    this.#isOver = true;
    this.world.oracle.stripOver(this.session, this.cursor!, this.record, this.events, this.probe);
  }

  /** Tells the oracle how a resume came out. */
  #decided(outcome: Outcome): void {
    const { rule } = this.exchange.verdict!;
    this.world.outcomes.add(outcome);
    this.world.note(() => `  the replay is ${outcome}`);
    const came: Came =
      outcome === 'empty' || outcome === 'silent' ? 'nothing' : outcome === 'replayed' ? 'replayed' : 'other';
    if (!rule.endsWith('-unrecorded')) {
      this.world.oracle.settled(this.session, this.cursor!, this.record, came, this.probe);
    }
  }
}

export type { Wire };

export function newHandle(process: Process, kind: Handle['kind']): Handle {
  const handle: Handle = { kind, cursor: null, seen: [] };
  process.handles.push(handle);
  return handle;
}

const said = (event: WireEvent): string =>
  `${event.answers.length > 0 ? `the answer to ${event.answers.map(({ key }) => key).join(' and ')}` : event.hasData ? 'a note' : 'a priming event'} (ID ${event.id})`;

export class World {
  readonly clock = new Clock();
  readonly server: Server;
  readonly oracle: Oracle;
  guard: Guard;
  readonly processes: Process[] = [];
  wires: Wire[] = [];
  readonly rules = new Set<RuleName>();
  readonly outcomes = new Set<Outcome>();
  /** The verdicts in their order, for comparing two runs. */
  readonly verdicts: string[] = [];
  events = 0;
  calls = 0;
  names = 0;
  readonly #script: Script;
  readonly #settings: Settings;
  readonly #decide: (facts: ResumeFacts) => Verdict;
  readonly #properties: readonly Property[];
  readonly #story: string[] | null;
  /** What the guard can know of upstream's process. */
  #incarnation = 0;
  #listener = 100;

  constructor(
    script: Script,
    decide: (facts: ResumeFacts) => Verdict,
    properties: readonly Property[],
    story: string[] | null,
  ) {
    this.#script = script;
    this.#decide = decide;
    this.#properties = properties;
    this.#story = story;
    this.#settings = {
      bounds: script.small ? SMALL : AMPLE,
      unrecorded: script.unrecorded,
      deliveryProof: script.deliveryProof,
      proofMemory: PROOF_MEMORY,
      dedupe: true,
    };
    this.server = new Server(script.style, (after, run) => this.clock.in(after, run));
    const { kernelKnown, deliveryProof } = script;
    const premises = { proofMemory: PROOF_MEMORY, kernelKnown, deliveryProof };
    this.oracle = new Oracle(this.server, () => this.clock.now, premises);
    this.guard = this.newGuard();
  }

  newGuard(): Guard {
    return new Guard(this.#settings, {
      now: () => this.clock.now,
      later: (after, run) => this.clock.in(after, run),
      identity: () => ({
        incarnation: this.#incarnation,
        listeners: new Set([this.#listener]),
        readAt: this.clock.now,
      }),
      // The model's connections are what the guard has for connections.
      kernelOf: (connection) => (this.#script.kernelKnown ? (connection as Link).kernel : 'unknown'),
      tick: () => this.clock.tick(),
      decide: this.#decide,
    });
  }

  /** The guard's bounds are so small, or it has run so long, that it forgets. */
  get forgets(): boolean {
    return this.#script.small || this.clock.now >= AMPLE.finishedStreamMemory;
  }

  note(line: () => string): void {
    this.#story?.push(`${String(this.clock.now).padStart(8)} ${line()}`);
  }

  /** A property does not hold. */
  breach(property: Property, message: string): void {
    if (this.#properties.includes(property)) throw new Breach(property, message);
  }

  recordOf(process: Process): RecordToken {
    return this.guard.record({ session: process.anonymous ? null : process.sessionId, token: process.token });
  }

  // Clients.

  newLink(process: Process, latency: number): Link {
    const link = new Link(process, this.clock, latency);
    process.links.push(link);
    return link;
  }

  linkFor(process: Process, kept: boolean, latency: number): Link {
    const idle = process.links.findLast((link) => !link.busy && !link.dead && !link.stuck && link.closed === null);
    return kept && idle !== undefined ? idle : this.newLink(process, latency);
  }

  ask(process: Process, method: Ask['method'], link: Link, more: Partial<Ask> = {}): Ask {
    link.request();
    return {
      method,
      session: process.anonymous ? null : process.sessionId,
      sessionFields: process.anonymous ? 0 : 1,
      cursor: null,
      cursorFields: 0,
      withoutResumption: false,
      token: process.token,
      forwarded: process.forwarded,
      userAgent: process.userAgent,
      versioned: process.versioned,
      connection: link,
      posted: null,
      ...more,
    };
  }

  wire(process: Process, link: Link, handle: Handle, ask: Ask): Wire {
    const wire = new Wire(this, process, link, handle, ask);
    wire.record = this.recordOf(process);
    this.wires = this.wires.filter((other) => other.open || other.link.busy);
    this.wires.push(wire);
    return wire;
  }

  /** Whether upstream lets the request in at all; answers it where not. */
  admits(wire: Wire): boolean {
    if (!this.server.up) wire.cut();
    else if (wire.process.token.startsWith(STRANGER)) wire.answer(401);
    else if (!wire.session.alive) wire.answer(404);
    else return true;
    return false;
  }

  listen(process: Process, link: Link, handle: Handle | null): void {
    const own = handle ?? newHandle(process, 'listening');
    const wire = this.wire(process, link, own, this.ask(process, 'GET', link));
    wire.exchange.start();
    this.note(() => `${process.name} listens`);
    if (this.admits(wire)) this.#serveListening(wire);
  }

  #serveListening(wire: Wire): void {
    const stream = this.server.listen(wire.session);
    if (typeof stream === 'number') {
      wire.answer(stream);
      return;
    }
    wire.sure = stream;
    wire.head();
    stream.pipes.push(wire);
    if (this.server.style.primesListening) this.server.emit(stream, 'priming');
  }

  resume(process: Process, handle: Handle, { cursor, link, odd = {} }: Resuming): Wire | null {
    const { oracle, server } = this;
    const session = server.session(process.sessionId);
    const record = this.recordOf(process);
    const stakes = oracle.atStake(process, session, cursor, record);
    if (stakes.some((call) => oracle.isProvenElsewhere(process, session, call))) return null;
    const proves = oracle.provesReceipt(process, session, cursor, record);
    const wire = this.wire(process, link, handle, this.ask(process, 'GET', link, { cursor, cursorFields: 1, ...odd }));
    const treatment = wire.exchange.start();
    const { rule, action } = wire.exchange.verdict!;
    this.rules.add(rule);
    this.verdicts.push(`${action} ${rule}`);
    this.note(() => `${process.name} resumes after ${cursor}: ${action} (${rule})`);
    if (treatment === 'strip' || treatment === 'refuse') this.#mayTakeAway(process, rule, stakes, record);
    if (proves && action === 'forward' && record !== null && !this.forgets) {
      this.breach(2, `${process.name} has proven receipt with ${cursor}, and it is forwarded (${rule})`);
    }
    this.#watchSchedule(wire, cursor, treatment === 'refuse' ? 'refused' : 'asks');
    if (treatment === 'refuse') {
      wire.open = false;
      wire.refuse(wire.exchange.pending);
      return wire;
    }
    if (treatment === 'strip') oracle.stripped(session);
    if (!this.admits(wire)) return wire;
    if (treatment === 'strip') this.#serveListening(wire);
    else if (treatment === 'pass') wire.answer(400);
    else this.#serveResume(wire, cursor);
    if (rule.endsWith('-unrecorded')) oracle.placed(this.recordOf(process), cursor);
    return wire;
  }

  #serveResume(wire: Wire, cursor: string): void {
    const { server } = this;
    const parts = server.find(wire.session, cursor);
    const [only, ...others] = wire.session.ever.filter((stream) => stream.indexOf(cursor) !== -1);
    if (only !== undefined && others.length === 0 && this.oracle.hasMet(only, wire.record)) wire.sure = only;
    if (parts.length > 0) {
      wire.head();
      server.resume(wire.session, parts, wire);
      return;
    }
    const { unknown } = server.style;
    if (unknown === 'not-found') wire.answer(404);
    else if (unknown === 'text') wire.answer(200);
    else if (unknown !== 'no-head') wire.head();
    if (unknown === 'empty') wire.end();
    if (unknown === 'cut') wire.cut();
  }

  /** The client lets go of a connection, and the guard notices at once or a little later. */
  leave(link: Link, noticedAfter: number): void {
    if (link.dead || link.closed !== null) return;
    link.abandon();
    // Its end of a connection that lets nothing through is not seen either.
    if (link.stuck) return;
    const notice = (): void => this.#notice(link, 'client');
    if (noticedAfter === 0) notice();
    else this.clock.in(noticedAfter, notice);
  }

  /** The connection breaks with an error. */
  fail(link: Link): void {
    if (link.closed !== null) return;
    link.abandon();
    link.failed = true;
    this.#notice(link, 'us');
  }

  /** We close a connection on which nothing is under way. */
  closeIdle(link: Link): void {
    if (link.dead || link.closed !== null || this.wires.some((wire) => wire.link === link && wire.open)) return;
    link.settle();
    if (link.busy) return;
    link.closed = 'us';
    link.closedAt = this.clock.now;
  }

  #notice(link: Link, by: 'client' | 'us'): void {
    if (link.closed !== null) return;
    link.closed = by;
    link.closedAt = this.clock.now;
    for (const wire of this.wires) if (wire.link === link) wire.clientLeft();
  }

  /** Upstream's process is another one from now on; whether the guard can tell is another question. */
  restarted(noticed: boolean): void {
    if (!noticed) return;
    this.#incarnation += 1;
    this.#listener += 1;
    // Without a session ID there is nothing that could have generations.
    if (!this.#script.client.anonymous) for (const session of this.server.sessions.values()) session.era += 1;
  }

  /** 1. */
  #mayTakeAway(process: Process, rule: RuleName, stakes: readonly Call[], record: RecordToken): void {
    const [call] = stakes;
    if (call === undefined) return;
    if (rule === 'generation-mismatch' || rule === 'session-ended' || rule === 'below-replay-floor') return;
    if (rule === 'standalone-below-floor' && !this.oracle.knowsToAnswerWhileListening(record)) return;
    // The operator has said that the view is complete.
    if (rule.endsWith('-unrecorded') && this.#script.unrecorded === 'refuse') return;
    this.breach(1, `${process.name} could still get the answer to ${call.key} and does not (${rule})`);
  }

  /** 5. */
  #watchSchedule(wire: Wire, cursor: string, how: 'asks' | 'refused'): void {
    const { rule, action } = wire.exchange.verdict!;
    const { facts } = wire.exchange.resolution!;
    if (wire.record === null || this.forgets) return;
    const asking = how === 'asks' && !facts.approved ? 'may-ask' : how;
    let fault: string | null = null;
    if (rule === 'finished-storm' || (rule === 'finished' && facts.approved)) {
      if (how === 'asks' && action === 'refuse') return;
      const probing = this.oracle.stormProbes(wire.session, cursor, wire.record, asking);
      wire.probe = probing.probe;
      fault = probing.fault;
    } else if (rule === 'below-replay-floor' || rule === 'in-window' || rule === 'finished-undelivered') {
      // Toward Go's SDK a refusal without a form that it understands is no refusal.
      if (how === 'asks' && action === 'refuse') return;
      const probing = this.oracle.probes(wire.session, cursor, wire.record, asking);
      wire.probe = probing.probe;
      fault = probing.fault;
    }
    if (fault !== null) this.breach(5, `the resume after ${cursor} is ${fault} (${rule})`);
  }
}
