/**
 * The guard without its sockets: one request after the other, with the calls into core that `src/proxy/exchange.ts`,
 * `resume.ts`, `reading.ts` and `refuse.ts` make, in the same order. Time, the kernel and upstream's identity come from
 * outside.
 */
import type { ResumeFacts, Unrecorded, Verdict } from '../../../src/core/decide.ts';
import type { ConnectionFacts, KernelView, Receipt } from '../../../src/core/delivery.ts';
import { DuplicateFilter } from '../../../src/core/duplicates.ts';
import { eventKeyOfField } from '../../../src/core/event-key.ts';
import { firstValue } from '../../../src/core/fields.ts';
import type { Messages, ResponseHead } from '../../../src/core/jsonrpc.ts';
import { Learning, type LearningRoom } from '../../../src/core/learning.ts';
import {
  addRequests,
  announcesPolling,
  beginGeneration,
  closeLeg,
  forgetExpired,
  generationOver,
  goBlind,
  joinGeneration,
  type Leg,
  openLeg,
  openStream,
  recordEvent,
  restartedBetween,
  type Session,
  type Strip,
  startListening,
  type UpstreamIdentity,
} from '../../../src/core/ledger.ts';
import { type RefusalRule, refusalForm } from '../../../src/core/refusal.ts';
import type { Outcome } from '../../../src/core/replay.ts';
import {
  type Duplicate,
  duplicateBeforeCursor,
  duplicateOnLeg,
  noteRefusal,
  noteStrip,
  noteVerdict,
  type Owner,
  pendingRequest,
  placeholderFor,
  type Resolution,
  type ResolveOptions,
  type ResumeRequest,
  resolveResume,
  type SeenBlock,
  settleLateEmpty,
  settleReplay,
  settleStrip,
  unsettledSince,
} from '../../../src/core/resolve.ts';
import type { Credential, EventKey, RequestKey } from '../../../src/core/terms.ts';
import { Watch } from '../../../src/core/watch.ts';
import { MemoryStore } from '../../../src/store/memory.ts';
import type { MemoryBounds } from '../../../src/store/store.ts';

export const REPLAY_HOLD = 2_000;
export const REPLAY_DEADLINE = 5_000;
const MAX_HELD_BYTES = 1_048_576;
const SEED = 0x1234_5678_9abc;
/** What a block, or a part of one, is in bytes; nobody looks into them. */
const BYTES = new Uint8Array(8);
export const MINTED = 'minted-';

export interface Settings {
  readonly bounds: MemoryBounds;
  readonly unrecorded: Unrecorded;
  readonly deliveryProof: 'connection' | 'event-id';
  readonly proofMemory: number;
  readonly dedupe: boolean;
}

/** The world around it. */
export interface Around {
  readonly now: () => number;
  /** Runs something later and returns what keeps it from that. */
  readonly later: (after: number, run: () => void) => () => void;
  readonly identity: () => UpstreamIdentity;
  readonly kernelOf: (connection: ConnectionFacts) => KernelView;
  /** A moment passes. */
  readonly tick: () => void;
  readonly decide: (facts: ResumeFacts) => Verdict;
}

/** A request, as its fields and its body say. */
export interface Ask {
  readonly method: 'GET' | 'POST' | 'DELETE';
  readonly session: string | null;
  readonly sessionFields: number;
  readonly cursor: string | null;
  readonly cursorFields: number;
  readonly withoutResumption: boolean;
  readonly token: string;
  readonly forwarded: boolean;
  readonly userAgent: string;
  readonly versioned: boolean;
  readonly connection: ConnectionFacts;
  readonly posted: {
    readonly keys: readonly string[];
    readonly initialize: boolean;
    readonly readable: boolean;
  } | null;
}

/** What becomes of the request. */
export type Treatment = 'pass' | 'strip' | 'forward' | 'refuse';

export interface Block {
  readonly id: string | null;
  readonly length: number;
  readonly retry: boolean;
  readonly keys: readonly string[];
}

/** What an exchange does to the world. */
export interface Hooks {
  readonly decided: (outcome: Outcome) => void;
  /** Our own answer in the place of an empty replay. */
  readonly refused: (pending: string | null) => void;
  readonly leaveUpstream: () => void;
}

const keys = new Map<string, EventKey>();

export function keyOf(id: string): EventKey {
  let key = keys.get(id);
  if (key === undefined) {
    key = eventKeyOfField(id, SEED)!;
    keys.set(id, key);
  }
  return key;
}

const ROUTE = 'model';

export class Guard {
  readonly store: MemoryStore;
  readonly settings: Settings;
  readonly around: Around;
  readonly learningRoom: LearningRoom;

  constructor(settings: Settings, around: Around) {
    this.settings = settings;
    this.around = around;
    this.store = new MemoryStore(settings.bounds);
    this.learningRoom = {
      store: this.store,
      tokens: { credentialOf: (fields) => (firstValue(fields, 'authorization') ?? '') as Credential },
      route: { name: ROUTE, durableEvents: false },
      observer: { generation: () => {}, instanceAlternates: () => {} },
      bounds: settings.bounds,
      now: around.now,
    };
  }

  /** The record of a session as it is now; what it says is none of the world's business, only whether it is the same. */
  record({ session, token }: Pick<Ask, 'session' | 'token'>): Session | null {
    const { key } = new Learning(this.learningRoom, 'GET', fieldsOf({ session, sessionFields: 1, token }), '');
    return this.store.recall(key!, this.around.now());
  }

  options(kernelOf: ResolveOptions['kernelOf'] = () => undefined): ResolveOptions {
    const { unrecorded, deliveryProof, proofMemory } = this.settings;
    return { unrecorded, deliveryProof, proofMemory, now: this.around.now(), kernelOf };
  }
}

/** The fields that learning looks at. */
function fieldsOf({ session, sessionFields, token }: Pick<Ask, 'session' | 'sessionFields' | 'token'>): string[] {
  const fields = ['Authorization', token, 'Origin', `https://${token}.example`];
  if (session !== null) for (let i = 0; i < sessionFields; i++) fields.push('Mcp-Session-Id', session);
  return fields;
}

export class Exchange {
  readonly receipt: Receipt;
  readonly #guard: Guard;
  readonly #ask: Ask;
  readonly #hooks: Hooks;
  readonly #identity: UpstreamIdentity;
  readonly #learning: Learning | null;
  verdict: Verdict | null = null;
  resolution: Resolution | null = null;
  /** What our own answer carries, where it is one: the request that it fails, or null. */
  pending: RequestKey | null = null;
  /** We answered in upstream's place. */
  answered = false;
  /** What passes is not read. */
  blind = false;
  #session: Session | null = null;
  #kernelOf: ResolveOptions['kernelOf'] = () => undefined;
  #strip: Strip | null = null;
  #leg: Leg | null = null;
  #target: Owner | null = null;
  #reads = false;
  #over = false;
  #legClosed = false;
  #watch: Watch | null = null;
  #filter: DuplicateFilter | null = null;
  /** The last bytes may become an event. */
  #content = false;
  #unflushed = 0;

  constructor(guard: Guard, ask: Ask, hooks: Hooks) {
    this.#guard = guard;
    this.#ask = ask;
    this.#hooks = hooks;
    this.#identity = guard.around.identity();
    this.#learning = ask.withoutResumption ? null : new Learning(guard.learningRoom, ask.method, fieldsOf(ask), '');
    this.receipt = { connection: ask.connection, forwarded: ask.forwarded, flushedAt: null, response: 'open' };
  }

  get outcome(): Outcome | null {
    return this.#watch?.outcome ?? null;
  }

  /** Upstream's head is held back until it is known what the replay brings. */
  get holding(): boolean {
    return this.#watch?.holding ?? false;
  }

  get #now(): number {
    return this.#guard.around.now();
  }

  get #known(): Session | null {
    return this.#learning?.session ?? this.#session;
  }

  // exchange.ts: start, carryOut; resume.ts: decideResume.

  start(): Treatment {
    const { method, cursorFields } = this.#ask;
    if (method !== 'GET' || cursorFields === 0) return 'pass';
    this.#decide();
    const { rule, action } = this.verdict!;
    const { owners, facts, cursor } = this.resolution!;
    if (action === 'refuse' && this.#refusal(rule as RefusalRule, owners, this.#session) !== 'upstream')
      return 'refuse';
    if (action === 'strip') {
      if (this.#session !== null && cursor !== null && facts.approved) {
        this.#strip = noteStrip(this.#session, cursor, () => this.#leg?.events ?? 0, this.#now);
      }
      return 'strip';
    }
    if (action === 'pass') return 'pass';
    this.#startWatch();
    return 'forward';
  }

  #decide(): void {
    const { store, around, settings } = this.#guard;
    const ask = this.#ask;
    const one = ask.cursorFields === 1 ? (ask.cursor ?? '') : '';
    const key = one === '' ? null : keyOf(one);
    const request: ResumeRequest = {
      get: true,
      cursorFields: ask.cursorFields,
      cursorEmpty: one === '',
      sessionFields: ask.sessionFields,
      withoutResumption: ask.withoutResumption,
      minted: one.startsWith(MINTED),
      cursor: key === null ? [] : [key],
      caller: ask.token as Credential,
      forwarded: ask.forwarded,
    };
    // Of a revision without resumption nothing is learnt, and in truth nothing decided; the rule is here to be met.
    const sessionKey = this.#learning?.key ?? null;
    const session = sessionKey === null ? null : store.recall(sessionKey, this.#now);
    this.#session = session;
    if (session !== null) {
      const identity = around.identity();
      if (!session.anonymous && restartedBetween(session.upstream, identity)) beginGeneration(session, identity);
      forgetExpired(session, settings.bounds, this.#now);
    }
    let resolution = resolveResume(request, session, this.#guard.options());
    if (session !== null && this.#kernelMatters(resolution)) {
      if (unsettledSince(session, this.#guard.options()) !== null) {
        this.#askKernel(session);
        resolution = resolveResume(request, session, this.#guard.options(this.#kernelOf));
      }
    }
    this.verdict = around.decide(resolution.facts);
    this.resolution = resolution;
    if (session !== null) noteVerdict(session, resolution, this.verdict, this.#now);
  }

  #kernelMatters({ unsettled, facts }: Resolution): boolean {
    const { dedupe, deliveryProof } = this.#guard.settings;
    if (unsettled.length > 0) return true;
    const findsDuplicates = dedupe && deliveryProof === 'connection' && !this.#ask.forwarded;
    return findsDuplicates && this.#guard.around.decide(facts).action === 'forward';
  }

  /** The tables are read once, now, and tell nothing of what goes out later. */
  #askKernel(session: Session): void {
    const { around } = this.#guard;
    const views = new Map<ConnectionFacts, KernelView>();
    for (const { requests } of session.streams) {
      for (const answer of requests.values()) {
        for (const { connection } of answer?.receipts ?? []) views.set(connection, around.kernelOf(connection));
      }
    }
    const readAt = this.#now;
    around.tick();
    this.#kernelOf = (connection, since) => (since > readAt ? undefined : (views.get(connection) ?? 'absent'));
  }

  /** refuse.ts: refusalContext, refusalAnswer. */
  #refusal(rule: RefusalRule, owners: readonly Owner[], session: Session | null): 'status' | 'event' | 'upstream' {
    const { versioned, userAgent } = this.#ask;
    const cursor = this.resolution?.cursor ?? null;
    const firstRefusedAt = session === null || cursor === null ? null : noteRefusal(session, cursor, this.#now);
    const pending = pendingRequest(owners);
    const now = this.#now;
    const form = refusalForm({ rule, refuseWith: 'auto', versioned, userAgent, pending, firstRefusedAt, now });
    this.answered = form !== 'upstream';
    this.pending = form === 'event' ? pending : null;
    return form;
  }

  #startWatch(): void {
    const { target, owners, facts } = this.resolution!;
    this.#target = target ?? owners.at(-1) ?? null;
    // A stranger is nobody to the ledger until upstream has accepted him.
    if (this.#target !== null && facts.approved) {
      this.#leg = openLeg(this.#target.stream, true, this.receipt, this.#target);
    }
    const options = {
      holds: true,
      mustReplay: facts.approved && this.verdict!.rule === 'finished-undelivered',
      replayHold: REPLAY_HOLD,
      replayDeadline: REPLAY_DEADLINE,
      maxHeldBytes: MAX_HELD_BYTES,
      polling: () => this.#target !== null && announcesPolling(this.#target.stream),
      displaced: () => this.#target !== null && this.#target.stream.openLegs > 1,
      decided: (outcome: Outcome) => this.#decided(outcome),
    };
    this.#watch = new Watch(options, this.#guard.around.later);
  }

  #decided(outcome: Outcome): void {
    this.#settle(outcome);
    this.#hooks.decided(outcome);
    if (outcome !== 'empty' && outcome !== 'silent') return;
    if (this.#refusal('empty-replay', this.resolution!.owners, this.#known) === 'upstream') return;
    this.#hooks.refused(this.pending);
    if (outcome === 'silent') this.#leave();
  }

  #settle(outcome: Outcome): void {
    const cursor = this.resolution?.cursor ?? null;
    if (this.#known === null || cursor === null || this.#target === null) return;
    settleReplay(this.#known, this.#target, cursor, outcome, this.#now);
  }

  // exchange.ts: head, data, ended, failed; reading.ts.

  head(status: number, isStream: boolean, sessionField: string | null): void {
    if (this.#learning !== null) {
      const fields = sessionField === null ? [] : ['Mcp-Session-Id', sessionField];
      const posted = this.#ask.posted === null ? null : messagesOf(this.#ask.posted);
      this.#learning.head(status, fields, posted, this.#identity);
      const { session } = this.#learning;
      if (session !== null) {
        this.#recordCursor(session, status);
        if (isStream) this.#read(session, status);
      }
    }
    this.#watch?.head(status, isStream);
  }

  #recordCursor(session: Session, status: number): void {
    const cursor = this.resolution?.cursor ?? null;
    if (this.#watch === null || this.#leg !== null || cursor === null || status < 200 || status > 299) return;
    this.#target ??= placeholderFor(session, cursor, this.#guard.settings.bounds, this.#now);
    this.#leg = openLeg(this.#target.stream, true, this.receipt, this.#target);
  }

  #read(session: Session, status: number): void {
    const { method, posted } = this.#ask;
    if (status !== 200 || this.verdict?.rule === 'ambiguous-fields' || method === 'DELETE') {
      this.#learning?.missed();
      return;
    }
    const { bounds, dedupe } = this.#guard.settings;
    const kind = method === 'POST' ? 'request' : 'standalone';
    this.#leg ??= openLeg(openStream(session, kind, bounds, this.#now), false, this.receipt);
    const { stream, resumed } = this.#leg;
    if (!resumed) {
      stream.generation = generationOver(session, this.#identity);
      if (posted !== null) addRequests(session, stream, messagesOf(posted));
    }
    startListening(session, this.#leg);
    this.#learning?.isStream();
    this.#reads = true;
    if (this.#watch !== null && this.#target !== null && dedupe)
      this.#filter = new DuplicateFilter(MAX_HELD_BYTES, true);
  }

  /** Bytes that end in the middle of a block; those of a body that is no event stream are content for good. */
  part(): void {
    const filter = this.#filter;
    filter?.pass(BYTES, false);
    if (filter !== null && filter.heldBytes > 0) this.#guard.around.later(REPLAY_HOLD, () => filter.release());
    this.#bytes(true);
  }

  /** The end of a block. False where the filter drops it. */
  block({ id, length, retry, keys: ids }: Block): boolean {
    const session = this.#learning?.session ?? null;
    if (!this.#reads || session === null || this.#leg === null || this.blind) {
      this.#bytes(true);
      if (this.blind) this.#watch?.unreadable();
      return true;
    }
    const answers: ResponseHead[] = ids.map((key) => ({ key: key as RequestKey, kind: 'result' }));
    if (answers.length > 0 && this.#learning!.answered(answers)) joinGeneration(session, this.#leg.stream);
    const key = id === null ? null : keyOf(id);
    const found = this.#filter === null ? null : this.#judge(session, this.#filter, { key, length, answers });
    this.#filter?.ended(BYTES.length, found, true);
    this.#filter?.pass(BYTES, false);
    if (found === null) {
      recordEvent(session, this.#leg, { key, length, retry }, answers);
      if (answers.length > 0) {
        this.receipt.flushedAt = null;
        this.#unflushed += 1;
      }
    }
    this.#bytes(false);
    if (found === null) this.#watch?.event();
    return found === null;
  }

  #judge(session: Session, filter: DuplicateFilter, seen: SeenBlock): Duplicate | null {
    const options = this.#guard.options(this.#kernelOf);
    // Behind an intermediary no connection proves that the client has anything.
    const judged = this.receipt.forwarded ? { ...options, deliveryProof: 'event-id' as const } : options;
    const found = filter.inPrefix
      ? duplicateBeforeCursor(session, this.#target!, seen, judged)
      : duplicateOnLeg(this.#leg!, seen);
    return filter.droppable ? found : null;
  }

  #bytes(content: boolean): void {
    this.#content = content;
    this.#watch?.bytes(BYTES.length, content);
  }

  /** tap.ts: from here on nothing can be read. */
  goBlind(): void {
    const session = this.#learning?.session ?? null;
    if (!this.#reads || session === null || this.#leg === null) return;
    goBlind(session, this.#leg.stream);
    this.blind = true;
  }

  /** Upstream ended the body in order. `json`: what the body was, where it was no event stream. */
  ended(json: string): void {
    if (this.#over) return;
    this.#over = true;
    if (this.#learning?.readsBody) this.#learning.body(Buffer.from(json));
    this.#learning?.ended();
    const wasLive = this.outcome === 'live';
    this.#watch?.ended('clean');
    if (wasLive) this.#settleLive();
    this.#closeLeg(true);
  }

  #settleLive(): void {
    const session = this.#learning?.session ?? null;
    const cursor = this.resolution?.cursor ?? null;
    if (session === null || cursor === null || this.#target === null || this.#leg === null) return;
    if (this.#leg.events > 0) this.#settle('replayed');
    else if (!this.#content && !announcesPolling(this.#target.stream)) {
      settleLateEmpty(session, this.#target, cursor, this.#now);
    }
  }

  failed(): void {
    if (this.#over) return;
    this.#over = true;
    this.receipt.response = 'broken';
    this.#watch?.ended('broken');
    this.#closeLeg(false);
  }

  #closeLeg(clean: boolean): void {
    if (this.#leg === null || this.#known === null || this.#legClosed) return;
    this.#legClosed = true;
    const how = this.#reads ? { clean, polled: this.outcome === 'polled' } : null;
    closeLeg(this.#known, this.#leg, how, this.#now);
  }

  // Toward the client.

  /** The kernel has the bytes of a terminal event. */
  flushed(): void {
    this.#unflushed -= 1;
    if (this.#unflushed === 0) this.receipt.flushedAt = this.#now;
  }

  /** The response ended in order and the kernel has all of it. */
  finished(): void {
    if (this.receipt.response === 'open') {
      this.receipt.response = 'normal';
      this.receipt.flushedAt ??= this.#now;
    }
    this.#over = true;
    this.#settleStrip();
  }

  /** The client's connection is gone, by our hand or not. */
  closed(by: 'client' | 'us'): void {
    if (by === 'us') this.receipt.response = 'broken';
    this.#leave();
    this.#settleStrip();
  }

  #settleStrip(): void {
    const cursor = this.resolution?.cursor ?? null;
    if (this.#strip === null || this.#session === null || cursor === null) return;
    settleStrip(this.#session, cursor, this.#leg?.events ?? 0, this.#now, this.#strip);
  }

  /** Cuts upstream's leg: nobody waits for it any more. */
  #leave(): void {
    if (this.#over) return;
    this.#over = true;
    this.#hooks.leaveUpstream();
    this.#watch?.ended('client-left');
    this.#closeLeg(false);
  }
}

function messagesOf({ keys: ids, initialize, readable }: NonNullable<Ask['posted']>): Messages {
  const method = initialize ? 'initialize' : 'tools/call';
  const requests = readable ? ids.map((key) => ({ key: key as RequestKey, method })) : [];
  return { wellFormed: readable, requests, responses: [], methodNotFound: false };
}
