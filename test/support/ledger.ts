/** A session in the ledger, a clock in hand, and the few steps in which the proxy uses them. No sockets. */
import assert from 'node:assert/strict';
import { decide, type Unrecorded } from '../../src/core/decide.ts';
import type { ConnectionFacts, KernelView, Receipt } from '../../src/core/delivery.ts';
import { eventKeyOfField } from '../../src/core/event-key.ts';
import { type Messages, requestKeyOf } from '../../src/core/jsonrpc.ts';
import {
  addRequests,
  approve,
  closeLeg,
  forgetExpired,
  type LedgerBounds,
  type Leg,
  NO_IDENTITY,
  newSession,
  openLeg,
  openStream,
  recordEvent,
  type Session,
  startListening,
} from '../../src/core/ledger.ts';
import type { Outcome } from '../../src/core/replay.ts';
import {
  noteStrip,
  noteVerdict,
  type Owner,
  placeholderFor,
  type Resolution,
  type ResolveOptions,
  type ResumeRequest,
  resolveResume,
  settleReplay,
  settleStrip,
} from '../../src/core/resolve.ts';
import type { Credential, EventKey, Millis, Position } from '../../src/core/terms.ts';
import type { RpcId } from './messages.ts';

/** Section 12 of the contract. */
export const BOUNDS: LedgerBounds = {
  streamsPerSession: 1_000,
  eventIdsPerStream: 1_000,
  finishedStreamMemory: 600_000,
  openStreamMemory: 3_600_000,
};

export const CALLER = 'caller' as Credential;
export const STRANGER = 'stranger' as Credential;

/** The key of an event ID. */
export const key = (id: string): EventKey => eventKeyOfField(id, 0x1234_5678)!;

/** What a POST with these requests holds. */
export const requestsOf = (ids: readonly RpcId[]): Messages => ({
  wellFormed: true,
  requests: ids.map((id) => ({ key: requestKeyOf(id), method: 'tools/call' })),
  responses: [],
  methodNotFound: false,
});

export const responsesTo = (ids: readonly RpcId[]): Messages['responses'] =>
  ids.map((id) => ({ key: requestKeyOf(id), kind: 'result' }));

/** A connection that is open and has had one request. */
export const connection = (facts: Partial<ConnectionFacts> = {}): ConnectionFacts => ({
  failed: false,
  closed: null,
  closedAt: null,
  requestedAt: 0,
  ...facts,
});

export const receipt = (facts: Partial<Receipt> = {}): Receipt => ({
  connection: connection(),
  forwarded: false,
  flushedAt: null,
  response: 'open',
  ...facts,
});

export interface EventParts {
  /** Ids of the requests that this event answers. */
  readonly answers?: readonly RpcId[];
  /** Of the block, in bytes; 40 where it does not matter. */
  readonly length?: number;
  readonly retry?: boolean;
}

export interface SceneOptions {
  readonly bounds?: Partial<LedgerBounds>;
  readonly anonymous?: boolean;
  readonly unrecorded?: Unrecorded;
  readonly deliveryProof?: ResolveOptions['deliveryProof'];
}

const ALL_ACKNOWLEDGED: KernelView = { unacknowledged: 0, peerClosed: false };

/** One session with one approved caller. */
export class Scene {
  readonly session: Session;
  readonly bounds: LedgerBounds;
  readonly #options: SceneOptions;
  now: Millis = 1_000_000;
  /** What the kernel says of every connection. */
  kernel: KernelView | undefined = ALL_ACKNOWLEDGED;

  constructor(options: SceneOptions = {}) {
    this.#options = options;
    this.bounds = { ...BOUNDS, ...options.bounds };
    this.session = newSession(options.anonymous ?? false, NO_IDENTITY);
    approve(this.session, CALLER);
  }

  get options(): ResolveOptions {
    const { unrecorded = 'forward', deliveryProof = 'connection' } = this.#options;
    return { unrecorded, deliveryProof, proofMemory: 60_000, now: this.now, kernelOf: () => this.kernel };
  }

  /** A POST with these requests, answered with a stream that is open. */
  post(...ids: readonly RpcId[]): Leg {
    const stream = openStream(this.session, 'request', this.bounds, this.now);
    addRequests(this.session, stream, requestsOf(ids));
    return openLeg(stream, false, receipt());
  }

  /** A GET without a cursor, answered with a stream that is open. */
  listen(): Leg {
    const leg = openLeg(openStream(this.session, 'standalone', this.bounds, this.now), false, receipt());
    startListening(this.session, leg);
    return leg;
  }

  /** Another exchange of the same stream. */
  resumed(leg: Leg): Leg {
    return openLeg(leg.stream, true, receipt());
  }

  event(leg: Leg, id: string | null, { answers = [], length = 40, retry = false }: EventParts = {}): Position {
    return recordEvent(this.session, leg, { key: id === null ? null : key(id), length, retry }, responsesTo(answers));
  }

  /** The exchange ends in order, and the kernel has all of it. */
  end(leg: Leg): void {
    leg.receipt.flushedAt ??= this.now;
    leg.receipt.response = 'normal';
    closeLeg(this.session, leg, { clean: true, polled: false }, this.now);
  }

  /** The exchange breaks. */
  cut(leg: Leg): void {
    leg.receipt.response = 'broken';
    closeLeg(this.session, leg, { clean: false, polled: false }, this.now);
  }

  /** A POST of one request: a priming event, the result, the end. */
  answered(id: RpcId, priming: string, terminal: string | null): Leg {
    const leg = this.post(id);
    this.event(leg, priming);
    this.event(leg, terminal, { answers: [id] });
    this.end(leg);
    return leg;
  }

  /** The same, but the response broke after the result. */
  undelivered(id: RpcId, priming: string, terminal: string | null): Leg {
    const leg = this.post(id);
    this.event(leg, priming);
    this.event(leg, terminal, { answers: [id] });
    this.cut(leg);
    return leg;
  }

  /** A POST of one request that was cut after these events. */
  unanswered(id: RpcId, ...events: readonly string[]): Leg {
    const leg = this.post(id);
    for (const event of events) this.event(leg, event);
    this.cut(leg);
    return leg;
  }

  /** The facts of a resume. Reads only. */
  resolve(cursor: string, request: Partial<ResumeRequest> = {}): Resolution {
    const whole: ResumeRequest = {
      get: true,
      cursorFields: 1,
      cursorEmpty: false,
      sessionFields: 1,
      withoutResumption: false,
      minted: false,
      cursor: [key(cursor)],
      caller: CALLER,
      forwarded: false,
      ...request,
    };
    return resolveResume(whole, this.session, this.options);
  }

  /** What would be decided. Reads only. */
  verdict(cursor: string, request: Partial<ResumeRequest> = {}): string {
    const { action, rule } = decide(this.resolve(cursor, request).facts);
    return `${action} ${rule}`;
  }

  /** Decides a resume and writes the verdict down, as the proxy does before it carries it out. */
  resume(cursor: string, request: Partial<ResumeRequest> = {}): { verdict: string; resolution: Resolution } {
    forgetExpired(this.session, this.bounds, this.now);
    const resolution = this.resolve(cursor, request);
    const verdict = decide(resolution.facts);
    noteVerdict(this.session, resolution, verdict, this.now);
    return { verdict: `${verdict.action} ${verdict.rule}`, resolution };
  }

  /** A resume that is stripped and brings so many events, at once. Returns the verdict. */
  strip(cursor: string, events = 0, request: Partial<ResumeRequest> = {}): string {
    const { verdict, resolution } = this.resume(cursor, request);
    if (verdict.startsWith('strip')) {
      if (resolution.facts.approved) noteStrip(this.session, key(cursor), () => events, this.now);
      settleStrip(this.session, key(cursor), events, this.now);
    }
    return verdict;
  }

  /** A resume that is forwarded and comes to this outcome, at once. Returns the verdict. */
  replay(cursor: string, outcome: Outcome, request: Partial<ResumeRequest> = {}): string {
    const { verdict, resolution } = this.resume(cursor, request);
    if (verdict.startsWith('forward')) this.settle(cursor, resolution, outcome);
    return verdict;
  }

  /** What came of a forwarded resume. */
  settle(cursor: string, { target }: Resolution, outcome: Outcome): Owner {
    const owner = target ?? placeholderFor(this.session, key(cursor), this.bounds, this.now);
    settleReplay(this.session, owner, key(cursor), outcome, this.now);
    return owner;
  }

  /** Lets time pass. */
  after(ms: Millis): this {
    assert.ok(ms >= 0, 'time only goes on');
    this.now += ms;
    return this;
  }
}
