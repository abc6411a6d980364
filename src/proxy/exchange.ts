/**
 * The life of one request, top to bottom: read the fields, decide if it is a resume, send it upstream, learn from the
 * answer, and bring the answer to the client through the tap, and through the watch where a replay is due.
 *
 *     start ──> decide ──┬── refuse ............................... an answer of ours
 *                        └── send ──> head ──> data ──> ended ..... upstream's answer
 *                              └────── failed ..................... 502, 504, or a destroyed connection
 *
 * With the guard off (another path, a revision without resumption) the same walk leaves out deciding, tap and watch.
 */
import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http';
import { decide, type Verdict } from '../core/decide.ts';
import type { Receipt } from '../core/delivery.ts';
import { eventKeyOfField, eventKeyOfFieldAsUtf8 } from '../core/event-key.ts';
import {
  allValues,
  cameThroughIntermediary,
  carriedOver,
  corsOf,
  endToEnd,
  type Fields,
  firstValue,
  isWithoutResumption,
  mediaType,
  rewriteLocation,
  towardUpstream,
} from '../core/fields.ts';
import { MessageScanner, type Messages } from '../core/jsonrpc.ts';
import {
  addRequests,
  announcesPolling,
  approve,
  beginGeneration,
  closeLeg,
  endSession,
  forgetExpired,
  forgetStreams,
  generationOver,
  type Leg,
  NO_IDENTITY,
  openLeg,
  openStream,
  rememberCors,
  restartedBetween,
  reviveSession,
  type Session,
  type Stream,
  startListening,
  stopListening,
  type UpstreamIdentity,
} from '../core/ledger.ts';
import {
  proxyStatus,
  type RefusalContext,
  type RefusalRule,
  refusalBody,
  refusalEvent,
  refusalForm,
  refusalStatus,
  wantsConnectionLost,
} from '../core/refusal.ts';
import type { Outcome } from '../core/replay.ts';
import {
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
  settleLateEmpty,
  settleReplay,
  settleStrip,
} from '../core/resolve.ts';
import type { EventKey } from '../core/terms.ts';
import { type ErrorCode, errorBody, GuardError } from '../errors.ts';
import type { SessionKey } from '../store/store.ts';
import { RequestBody } from './body.ts';
import { type ClientConnection, tupleFor } from './connection.ts';
import { DuplicateFilter } from './duplicates.ts';
import { Relay, type StreamEnd } from './relay.ts';
import type { RouteRoom } from './room.ts';
import { Tap, type TapListener } from './tap.ts';
import type { Hop, UpstreamListener } from './upstream.ts';
import { Watch } from './watch.ts';

/** A request as the listener hands it over. */
export interface Incoming {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly connection: ClientConnection;
  readonly scheme: 'http' | 'https';
  /** Authority the client asked for. */
  readonly authority: string | null;
  /** Path and query, as sent. */
  readonly target: string;
  readonly guarded: boolean;
}

/** A resume that was decided. */
interface Resume {
  readonly verdict: Verdict;
  readonly session: Session | null;
  readonly resolution: Resolution;
  readonly forwarded: boolean;
}

const UNSET: ReadonlySet<string> = new Set();
const WITHOUT_LENGTH: ReadonlySet<string> = new Set(['content-length']);
const LOCATION: ReadonlySet<string> = new Set(['location']);

export class Exchange implements UpstreamListener, TapListener {
  readonly #room: RouteRoom;
  readonly #in: Incoming;
  readonly #fields: Fields;
  readonly #method: string;
  readonly #guarded: boolean;
  readonly #startedAt: number;
  readonly #relay: Relay;
  readonly #receipt: Receipt;
  #sessionId: string | null = null;
  #key: SessionKey | null = null;
  #posted: Messages | null = null;
  #resume: Resume | null = null;
  #session: Session | null = null;
  #hop: Hop | null = null;
  #leg: Leg | null = null;
  /** The owner a forwarded resume continues. */
  #target: Owner | null = null;
  #tap: Tap | null = null;
  #watch: Watch | null = null;
  #filter: DuplicateFilter | null = null;
  #filterTimer: NodeJS.Timeout | null = null;
  /** Upstream's head, while it is held back. */
  #heldHead: { status: number; reason: string; fields: Fields } | null = null;
  /** Reads a JSON body that has to be understood: the result of `initialize`, a 404. */
  #bodyReader: MessageScanner | null = null;
  #status = 0;
  #refusal: RefusalRule | null = null;
  #error: ErrorCode | null = null;
  #headAt: number | null = null;
  #firstByteAt: number | null = null;
  #upstreamOver = false;
  #answersUnflushed = false;
  #keepAliveTimer: NodeJS.Timeout | null = null;

  constructor(room: RouteRoom, incoming: Incoming) {
    this.#room = room;
    this.#in = incoming;
    this.#fields = incoming.request.rawHeaders;
    this.#method = incoming.request.method ?? 'GET';
    this.#startedAt = room.now();
    this.#guarded = incoming.guarded && !isWithoutResumption(firstValue(this.#fields, 'mcp-protocol-version'));
    this.#receipt = {
      connection: incoming.connection.facts,
      forwarded: this.#guarded && cameThroughIntermediary(this.#fields),
      flushedAt: null,
      response: 'open',
    };
    this.#relay = new Relay(incoming.response, {
      finished: () => this.#finished(),
      closed: (end) => this.#closed(end),
    });
  }

  /** Runs the request. Never throws; what goes wrong becomes an answer. */
  start(): void {
    if (!this.#guarded) {
      this.#send(false);
      return;
    }
    const sessions = allValues(this.#fields, 'mcp-session-id');
    this.#sessionId = sessions.length === 1 ? sessions[0]! : null;
    if (sessions.length <= 1) this.#key = this.#keyOf(this.#sessionId);
    if (this.#method !== 'GET' || firstValue(this.#fields, 'last-event-id') === null) {
      this.#send(false);
      return;
    }
    this.#decide(sessions.length).catch((error) => this.failed(asGuardError(error)));
  }

  // ── deciding ────────────────────────────────────────────────────────────────────────────────────────────────────

  async #decide(sessionFields: number): Promise<void> {
    const { store, now } = this.#room;
    const request = this.#readResume(sessionFields);
    const session = this.#key === null ? null : store.recall(this.#key, now());
    if (session !== null) {
      if (!session.anonymous) await this.#noticeRestart(session);
      forgetExpired(session, this.#room.bounds, now());
    }
    let resolution = resolveResume(request, session, this.#resolveOptions());
    if (resolution.unsettled.length > 0) {
      const views = await this.#room.kernel.connections();
      const options = this.#resolveOptions((facts) => {
        const tuple = tupleFor(facts);
        return tuple === null ? 'unknown' : views(tuple);
      });
      resolution = resolveResume(request, session, options);
    }
    if (this.#relay.over) return;
    const verdict = decide(resolution.facts);
    this.#session = session;
    this.#resume = { verdict, session, resolution, forwarded: request.forwarded };
    this.#carryOut(verdict, resolution);
  }

  #carryOut(verdict: Verdict, resolution: Resolution): void {
    const session = this.#session;
    const enforce = this.#room.route.mode === 'enforce';
    if (session !== null) noteVerdict(session, resolution, verdict, this.#room.now());
    if (verdict.action === 'refuse') {
      const rule = verdict.rule as RefusalRule;
      this.#refusal = rule;
      const context = this.#refusalContext(rule, resolution.owners);
      if (enforce && refusalForm(context) !== 'upstream') {
        this.#refuse(context, null);
        return;
      }
    }
    const strip = verdict.action === 'strip';
    if (strip && session !== null && resolution.facts.approved && resolution.cursor !== null) {
      noteStrip(session, resolution.cursor, () => this.#leg?.events ?? 0, this.#room.now());
    }
    if (verdict.action !== 'pass' && !(strip && enforce)) this.#watchReplay(verdict, resolution);
    this.#send(strip && enforce);
  }

  #readResume(sessionFields: number): ResumeRequest {
    const cursors = allValues(this.#fields, 'last-event-id');
    const value = cursors.length === 1 ? cursors[0]! : '';
    const { seed } = this.#room.tokens;
    const readings = [eventKeyOfField(value, seed), eventKeyOfFieldAsUtf8(value, seed)];
    return {
      get: true,
      cursorFields: cursors.length,
      cursorEmpty: value.trim() === '',
      sessionFields,
      withoutResumption: false,
      minted: this.#room.tokens.isMinted(value),
      cursor: readings.filter((key): key is EventKey => key !== null),
      caller: this.#room.tokens.credentialOf(this.#fields),
      forwarded: this.#receipt.forwarded,
    };
  }

  #resolveOptions(kernelOf: ResolveOptions['kernelOf'] = () => undefined): ResolveOptions {
    const { route, proofMemory, now } = this.#room;
    return { unrecorded: route.unrecorded, deliveryProof: route.deliveryProof, proofMemory, now: now(), kernelOf };
  }

  /** Looks at upstream before a cursor is judged; where it is known to be down, connects first. */
  async #noticeRestart(session: Session): Promise<void> {
    const { upstream } = this.#room;
    let identity = await upstream.identify();
    if (upstream.isDown(identity) && (await upstream.reach()) === null) identity = await upstream.identify();
    if (!restartedBetween(session.upstream, identity)) return;
    beginGeneration(session, identity);
    this.#room.observer.generation('restart');
  }

  // ── refusing ────────────────────────────────────────────────────────────────────────────────────────────────────

  #refusalContext(rule: RefusalRule, owners: readonly Owner[]): RefusalContext {
    const now = this.#room.now();
    const cursor = this.#resume?.resolution.cursor ?? null;
    return {
      rule,
      refuseWith: this.#room.route.refuseWith,
      versioned: firstValue(this.#fields, 'mcp-protocol-version') !== null,
      userAgent: firstValue(this.#fields, 'user-agent') ?? '',
      pending: pendingRequest(owners),
      firstRefusedAt: this.#session === null || cursor === null ? null : noteRefusal(this.#session, cursor, now),
      now,
    };
  }

  /** `upstreamHead` is null where upstream was not asked. */
  #refuse(context: RefusalContext, upstreamHead: { status: number; fields: Fields } | null): void {
    const { room } = { room: this.#room };
    const { rule, pending } = context;
    const asEvent = refusalForm(context) === 'event' && pending !== null;
    const status = asEvent ? 200 : refusalStatus(context, room.refusals);
    const body = asEvent ? refusalEvent(rule, pending, room.tokens.mint()) : refusalBody(rule);
    const fields = ['Content-Type', asEvent ? 'text/event-stream' : 'application/json', 'Cache-Control', 'no-store'];
    if (status === 405) fields.push('Allow', 'POST, DELETE');
    if (room.proxyStatus) fields.push('Proxy-Status', proxyStatus(rule, upstreamHead?.status ?? null));
    fields.push(...(upstreamHead === null ? this.#rememberedCors() : carriedOver(upstreamHead.fields)));
    if (status !== 204) fields.push('Content-Length', String(Buffer.byteLength(body)));
    this.#answer(status, fields, status === 204 ? '' : body);
  }

  #rememberedCors(): readonly string[] {
    const origin = firstValue(this.#fields, 'origin');
    return (origin !== null && this.#session?.cors.get(origin)) || [];
  }

  #answer(status: number, fields: readonly string[], body: string): void {
    this.#status = status;
    this.#relay.head(status, STATUS_CODES[status] ?? '', fields, this.#method);
    this.#relay.end(body);
  }

  // ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #send(strip: boolean): void {
    const { request } = this.#in;
    const scanner =
      this.#guarded && this.#method === 'POST' && !this.#isEncodedRequest() ? new MessageScanner('requests') : null;
    const body = new RequestBody(request, scanner, this.#room.bodyBytes);
    if (scanner === null && this.#guarded && this.#method === 'POST') this.#posted = UNREADABLE;
    body.start({
      ready: (payload) => this.#dispatch(strip, payload),
      read: (messages) => {
        this.#posted = messages;
        if (this.#leg !== null) this.#openRequests(this.#leg.stream, messages);
      },
      tooLarge: () => this.failed(new GuardError('body-too-large')),
    });
  }

  #isEncodedRequest(): boolean {
    const encoding = firstValue(this.#fields, 'content-encoding');
    return encoding !== null && encoding.trim().toLowerCase() !== 'identity';
  }

  #dispatch(strip: boolean, body: Buffer | NodeJS.ReadableStream | null): void {
    if (this.#relay.over) return;
    const { upstream, route } = this.#room;
    const fields = towardUpstream(this.#fields, {
      authority: upstream.authority,
      preserveHost: route.preserveHost,
      clientAuthority: this.#in.authority,
      clientAddress: this.#in.connection.address,
      scheme: this.#in.scheme,
      httpVersion: this.#in.request.httpVersion,
      strip,
    });
    this.#hop = upstream.dispatch({ method: this.#method, path: this.#in.target, fields, body }, this);
    this.#relay.follow(this.#hop);
    if (this.#relay.over) this.#hop.abort();
  }

  // ── upstream answers ────────────────────────────────────────────────────────────────────────────────────────────

  head(status: number, reason: string, rawFields: Fields): void {
    this.#headAt = this.#room.now();
    const eventStream = mediaType(firstValue(rawFields, 'content-type')) === 'text/event-stream';
    if (this.#guarded && this.#key !== null) this.#learn(status, rawFields);
    if (this.#guarded && status === 200 && eventStream) this.#openTap(rawFields);
    this.#watch?.head(status, eventStream);
    if (this.#watch?.holding) {
      this.#heldHead = { status, reason, fields: rawFields };
      return;
    }
    this.#commit({ status, reason, fields: rawFields });
  }

  /** Sends upstream's head on, with what was held. */
  #commit(head: { status: number; reason: string; fields: Fields }): void {
    this.#heldHead = null;
    if (this.#relay.headSent || this.#relay.over) return;
    this.#status = head.status;
    this.#relay.head(head.status, head.reason, this.#towardClient(head), this.#method);
    const held = this.#watch?.take() ?? [];
    this.#write(held);
    this.#startKeepAlive();
  }

  #towardClient({ status, fields }: { status: number; fields: Fields }): string[] {
    const watched = this.#watch !== null && this.#filter !== null;
    const location = firstValue(fields, 'location');
    const out = endToEnd(fields, watched ? WITHOUT_LENGTH : location === null ? UNSET : LOCATION);
    if (location !== null) {
      const ours = this.#in.authority === null ? null : `${this.#in.scheme}://${this.#in.authority}`;
      if (!watched) out.push('Location', rewriteLocation(location, this.#room.upstream.origin, ours));
    }
    const stripped = this.#resume?.verdict.action === 'strip' && this.#room.route.mode === 'enforce';
    if (stripped && this.#room.proxyStatus && status >= 200 && status < 300) {
      out.push('Proxy-Status', proxyStatus(this.#resume!.verdict.rule, null));
    }
    return out;
  }

  data(chunk: Buffer): void {
    this.#bodyReader?.push(chunk, 0, chunk.length);
    const tap = this.#tap;
    if (tap === null) {
      this.#watch?.bytes(chunk.length, true);
      if (this.#watch?.holding) this.#watch.hold([chunk], 0);
      else this.#write([chunk]);
      return;
    }
    tap.push(chunk);
    const pieces = this.#filter === null ? [chunk] : this.#filter.pass(chunk, tap.terminatorPending);
    if (this.#watch?.holding) this.#watch.hold(pieces, this.#filter?.heldBytes ?? 0);
    else this.#write(pieces);
    this.#watch?.bytes(chunk.length, tap.contentPending);
    if (tap.isBlind) this.#watch?.unreadable();
    if (this.#filter !== null) this.#limitFilter();
  }

  #write(pieces: readonly Buffer[]): void {
    if (pieces.length === 0) return;
    this.#firstByteAt ??= this.#room.now();
    for (const [i, piece] of pieces.entries()) {
      const flushed = this.#answersUnflushed && i === pieces.length - 1 ? this.#flushed : undefined;
      if (flushed !== undefined) this.#answersUnflushed = false;
      this.#relay.write(piece, flushed);
    }
    this.#lastWriteAt = this.#room.now();
  }

  #lastWriteAt = 0;

  /** The kernel has the terminal event's bytes. */
  readonly #flushed = (): void => {
    if (!this.#relay.over) this.#receipt.flushedAt ??= this.#room.now();
  };

  ended(): void {
    this.#upstreamOver = true;
    this.#stopTimers();
    if (this.#tap === null) {
      this.#endOfBody();
      return;
    }
    this.#tap.finish(() => {
      if (!this.#relay.over) this.#endOfBody();
    });
  }

  #endOfBody(): void {
    this.#readBody();
    if (this.#filter !== null) {
      const rest = this.#filter.release();
      if (this.#watch?.holding) this.#watch.hold(rest, 0);
      else this.#write(rest);
    }
    const wasLive = this.#watch?.outcome === 'live';
    this.#watch?.ended('clean');
    if (wasLive) this.#lateEnd();
    this.#closeLeg(true);
    if (!this.#relay.headSent) {
      // The watch refused, or nothing was ever held back.
      return;
    }
    this.#relay.end();
  }

  failed(error: GuardError): void {
    this.#upstreamOver = true;
    this.#stopTimers();
    this.#error = error.code;
    this.#watch?.ended('broken');
    this.#closeLeg(false);
    this.#receipt.response = 'broken';
    if (this.#relay.over) return;
    if (this.#relay.headSent) {
      this.#relay.destroy();
      return;
    }
    const lost = this.#guarded && this.#method === 'GET' && error.fault === 'upstream';
    if (lost && wantsConnectionLost(this.#agent())) {
      this.#relay.destroy();
      return;
    }
    const body = errorBody(error.code);
    const fields = ['Content-Type', 'application/json', 'Content-Length', String(Buffer.byteLength(body))];
    if (error.code === 'body-too-large' || error.code === 'bad-request') fields.push('Connection', 'close');
    this.#answer(error.status, fields, body);
  }

  #agent(): Pick<RefusalContext, 'refuseWith' | 'versioned' | 'userAgent'> {
    return {
      refuseWith: this.#room.route.refuseWith,
      versioned: firstValue(this.#fields, 'mcp-protocol-version') !== null,
      userAgent: firstValue(this.#fields, 'user-agent') ?? '',
    };
  }

  // ── learning from the answer ────────────────────────────────────────────────────────────────────────────────────

  #learn(status: number, fields: Fields): void {
    const isInitialize = this.#posted?.requests.some(({ method }) => method === 'initialize') ?? false;
    const { store, now, tokens } = this.#room;
    if (status < 200 || status > 299) {
      if (status === 404 && (this.#method === 'POST' || this.#method === 'DELETE')) this.#readNotFound(fields);
      return;
    }
    if (isInitialize) this.#sessionId = firstValue(fields, 'mcp-session-id');
    const key = isInitialize ? this.#keyOf(this.#sessionId) : this.#key!;
    const known = store.recall(key, now());
    const identity = this.#hop?.identity ?? NO_IDENTITY;
    const session = known ?? store.learn(key, { anonymous: this.#sessionId === null, upstream: identity }, now());
    this.#session = session;
    this.#key = key;
    if (known === null && isInitialize) session.complete = true;
    if (known !== null && !session.anonymous) {
      if (restartedBetween(session.upstream, identity)) {
        beginGeneration(session, identity);
        this.#room.observer.generation('restart');
      }
      if (isInitialize) this.#awaitInitialized();
    }
    if (!session.anonymous) this.#noticeInstance(session, fields, identity);
    if (!isInitialize) reviveSession(session);
    approve(session, tokens.credentialOf(this.#fields));
    const origin = firstValue(this.#fields, 'origin');
    if (origin !== null) rememberCors(session, origin, corsOf(fields));
    if (this.#method === 'DELETE') {
      endSession(session, now());
      forgetStreams(session, this.#room.bounds, now());
    }
  }

  #keyOf(sessionId: string | null): SessionKey {
    const { route, tokens } = this.#room;
    if (sessionId !== null) return `${route.name}\n${sessionId}`;
    return `${route.name}\n\n${tokens.credentialOf(this.#fields)}\n${this.#in.connection.address}`;
  }

  /** A known session answers `initialize`: its result, not the status, begins a new generation. */
  #awaitInitialized(): void {
    this.#initializing = true;
    this.#bodyReader = new MessageScanner('responses');
  }

  #initializing = false;

  #initialized(): void {
    const session = this.#session;
    if (!this.#initializing || session === null) return;
    this.#initializing = false;
    beginGeneration(session, this.#hop?.identity ?? session.upstream);
    session.complete = true;
    if (this.#leg !== null) this.#leg.stream.generation = session.generation;
    this.#room.observer.generation('initialize');
  }

  #readNotFound(fields: Fields): void {
    const session = this.#key === null ? null : this.#room.store.recall(this.#key, this.#room.now());
    if (session === null || !session.approved.has(this.#room.tokens.credentialOf(this.#fields))) return;
    this.#session = session;
    this.#gone = true;
    const encoding = firstValue(fields, 'content-encoding');
    if (encoding === null) this.#bodyReader = new MessageScanner('responses');
  }

  #gone = false;

  /** A body that had to be understood is over. */
  #readBody(): void {
    const messages = this.#bodyReader?.end() ?? null;
    if (this.#gone && this.#session !== null && messages?.methodNotFound !== true) {
      endSession(this.#session, this.#room.now());
    }
    if (messages?.responses.some(({ kind }) => kind === 'result')) this.#initialized();
  }

  #noticeInstance(session: Session, fields: Fields, identity: UpstreamIdentity): void {
    const name = this.#room.route.instanceField;
    const value = name === undefined || this.#room.route.durableEvents ? null : firstValue(fields, name);
    const { instance } = session;
    if (value === null || instance.alternates || value === instance.value) return;
    if (instance.value !== null) {
      if (instance.past.has(value)) {
        instance.alternates = true;
        this.#room.observer.instanceAlternates(this.#room.route.name);
        return;
      }
      instance.past.add(instance.value);
      beginGeneration(session, identity);
      this.#room.observer.generation('instance');
    }
    instance.value = value;
  }

  // ── the stream ──────────────────────────────────────────────────────────────────────────────────────────────────

  #openTap(fields: Fields): void {
    const session = this.#session;
    if (session === null || (this.#method !== 'GET' && this.#method !== 'POST')) return;
    if (this.#resume?.verdict.action === 'pass' && this.#resume.verdict.rule === 'ambiguous-fields') return;
    this.#leg ??= this.#openLeg(session);
    const { stream } = this.#leg;
    if (!this.#leg.resumed) {
      stream.generation = generationOver(session, this.#hop?.identity ?? NO_IDENTITY);
      if (stream.kind === 'request') this.#openRequests(stream, this.#posted ?? UNREADABLE);
    }
    startListening(session, this.#leg);
    this.#room.observer.streamOpened(stream.kind);
    this.#tapOpen = true;
    this.#bodyReader = null;
    this.#tap = new Tap(session, this.#leg, firstValue(fields, 'content-encoding') ?? '', this.#room.tokens.seed, this);
    const filters = this.#watch !== null && this.#target !== null && this.#tap.isPlain;
    if (filters && this.#room.route.dedupe && this.#room.route.mode === 'enforce') {
      this.#filter = new DuplicateFilter(this.#room.maxHeldBytes);
    }
  }

  #tapOpen = false;

  #openLeg(session: Session): Leg {
    const { bounds, now } = this.#room;
    const cursor = this.#resume?.resolution.cursor ?? null;
    if (this.#watch !== null && cursor !== null) {
      this.#target = placeholderFor(session, cursor, bounds, now());
      return openLeg(this.#target.stream, true, this.#receipt);
    }
    const kind = this.#method === 'POST' ? 'request' : 'standalone';
    return openLeg(openStream(session, kind, bounds, now()), false, this.#receipt);
  }

  #openRequests(stream: Stream, messages: Messages): void {
    stream.untracked = !messages.wellFormed;
    if (this.#session !== null) addRequests(this.#session, stream, messages.requests);
  }

  block(
    block: { key: EventKey | null; length: number; isEvent: boolean },
    answers: Messages['responses'],
    end: number,
  ): boolean {
    const filter = this.#filter;
    if (this.#initializing && answers.some(({ kind }) => kind === 'result')) this.#initialized();
    if (filter === null || this.#target === null || this.#session === null || this.#leg === null) {
      if (block.isEvent) this.#watch?.event();
      return false;
    }
    const seen = { key: block.key, length: block.length, answers };
    const found = !block.isEvent
      ? null
      : filter.inPrefix
        ? duplicateBeforeCursor(
            this.#session,
            this.#target,
            seen,
            this.#resolveOptions(() => 'unknown'),
          )
        : duplicateOnLeg(this.#leg, seen);
    const duplicate = found !== null && filter.droppable && block.length <= this.#room.maxHeldBytes ? found : null;
    if (found !== null) this.#room.observer.duplicate(found, duplicate === null ? 'passed' : 'dropped');
    filter.ended(end, duplicate, block.isEvent);
    if (duplicate !== null) return true;
    if (block.isEvent) this.#passedEvent = true;
    return false;
  }

  #passedEvent = false;

  recorded(events: number, answers: Messages['responses']): void {
    this.#room.observer.events(events);
    if (answers.length === 0) return;
    this.#answersUnflushed = true;
    for (const { kind } of answers) this.#room.observer.terminal(kind);
  }

  blind(cause: string): void {
    this.#room.observer.blind(cause);
    this.#watch?.unreadable();
  }

  /** After the filter has seen a chunk: tell the watch of events, and hold an unfinished block only for so long. */
  #limitFilter(): void {
    if (this.#passedEvent) {
      this.#passedEvent = false;
      this.#watch?.event();
    }
    const filter = this.#filter!;
    if (filter.heldBytes === 0) {
      if (this.#filterTimer !== null) clearTimeout(this.#filterTimer);
      this.#filterTimer = null;
      return;
    }
    this.#filterTimer ??= setTimeout(() => {
      this.#filterTimer = null;
      const rest = filter.release();
      if (this.#watch?.holding) this.#watch.hold(rest, 0);
      else this.#write(rest);
    }, this.#room.replayHold);
  }

  #closeLeg(clean: boolean): void {
    const leg = this.#leg;
    if (leg === null || this.#session === null) return;
    this.#leg = null;
    this.#lastLeg = leg;
    this.#tap?.close();
    closeLeg(
      this.#session,
      leg,
      this.#tapOpen ? { clean, polled: this.#watch?.outcome === 'polled' } : null,
      this.#room.now(),
    );
    if (this.#tapOpen) this.#room.observer.streamClosed(leg.stream.kind);
    const cursor = this.#resume?.resolution.cursor ?? null;
    if (this.#resume?.verdict.action === 'strip' && cursor !== null) {
      settleStrip(this.#session, cursor, leg.events, this.#room.now());
    }
  }

  #lastLeg: Leg | null = null;

  // ── watching a replay ───────────────────────────────────────────────────────────────────────────────────────────

  #watchReplay(verdict: Verdict, resolution: Resolution): void {
    const { route, replayHold, replayDeadline, maxHeldBytes } = this.#room;
    const newest = resolution.owners.at(-1) ?? null;
    this.#target = resolution.target ?? newest;
    if (this.#target !== null) this.#leg = openLeg(this.#target.stream, true, this.#receipt);
    this.#watch = new Watch({
      holds: route.mode === 'enforce',
      mustReplay: verdict.rule === 'finished-undelivered',
      replayHold,
      replayDeadline,
      maxHeldBytes,
      polling: () => this.#target !== null && announcesPolling(this.#target.stream),
      displaced: () => this.#target !== null && this.#target.stream.openLegs > 1,
      decided: (outcome) => this.#decided(outcome),
    });
  }

  #decided(outcome: Outcome): void {
    const now = this.#room.now();
    const cursor = this.#resume?.resolution.cursor ?? null;
    if (this.#session !== null && this.#target !== null && cursor !== null) {
      settleReplay(this.#session, this.#target, cursor, outcome, now);
    }
    const head = this.#heldHead;
    switch (outcome) {
      case 'empty':
      case 'silent':
        this.#refuseEmpty(outcome, head);
        return;
      case 'broken':
      case 'abandoned':
        return;
      default:
        if (head !== null) this.#commit(head);
    }
  }

  #refuseEmpty(outcome: 'empty' | 'silent', head: { status: number; reason: string; fields: Fields } | null): void {
    this.#refusal = 'empty-replay';
    const owners = this.#target === null ? [] : [this.#target];
    const context = this.#refusalContext('empty-replay', owners);
    if (this.#room.route.mode === 'observe') return;
    if (refusalForm(context) === 'upstream') {
      if (head !== null) this.#commit(head);
      return;
    }
    this.#heldHead = null;
    this.#refuse(context, head);
    if (outcome === 'silent') {
      this.#hop?.abort();
      this.#upstreamOver = true;
      this.#closeLeg(false);
    }
  }

  /** A `live` replay ended after all. */
  #lateEnd(): void {
    const cursor = this.#resume?.resolution.cursor ?? null;
    if (this.#session === null || this.#target === null || this.#leg === null || cursor === null) return;
    if (this.#leg.events > 0) {
      settleReplay(this.#session, this.#target, cursor, 'replayed', this.#room.now());
      return;
    }
    if (this.#tap?.contentPending) return;
    this.#room.observer.lateEmpty();
    if (!announcesPolling(this.#target.stream)) settleLateEmpty(this.#session, this.#target, cursor, this.#room.now());
  }

  // ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /** The response ended in order and the kernel has all of it. */
  #finished(): void {
    if (this.#receipt.response !== 'open') return;
    this.#receipt.response = 'normal';
    this.#receipt.flushedAt ??= this.#room.now();
  }

  #closed(end: StreamEnd): void {
    if (end !== 'ended' && this.#receipt.response === 'open') this.#receipt.response = 'broken';
    this.#stopTimers();
    if (!this.#upstreamOver) {
      this.#upstreamOver = true;
      this.#hop?.abort();
      this.#watch?.ended('client-left');
      if (this.#leg !== null && this.#session !== null) stopListening(this.#session, this.#leg);
      this.#closeLeg(false);
    }
    this.#report(end);
  }

  #startKeepAlive(): void {
    const every = this.#room.keepAlive;
    if (every === null || this.#tap === null || !this.#tap.isPlain || !this.#in.response.chunkedEncoding) return;
    const comment = Buffer.from(':\n');
    this.#keepAliveTimer = setInterval(
      () => {
        const quiet = this.#room.now() - this.#lastWriteAt >= every;
        if (!quiet || this.#relay.isBlocked || this.#tap === null || this.#tap.isBlind) return;
        if (this.#tap.blockOpen || this.#upstreamOver) return;
        this.#relay.write(comment);
        this.#lastWriteAt = this.#room.now();
      },
      Math.max(10, every / 4),
    );
  }

  #stopTimers(): void {
    if (this.#filterTimer !== null) clearTimeout(this.#filterTimer);
    if (this.#keepAliveTimer !== null) clearInterval(this.#keepAliveTimer);
    this.#filterTimer = null;
    this.#keepAliveTimer = null;
  }

  #report(end: StreamEnd): void {
    const { now, tokens, observer, route } = this.#room;
    const since = (at: number | null): number | null => (at === null ? null : at - this.#startedAt);
    const cursor = this.#resume === null ? null : firstValue(this.#fields, 'last-event-id');
    const sessionId = this.#sessionId;
    observer.exchange({
      method: this.#method,
      path: this.#in.target.split('?', 1)[0]!,
      route: route.name,
      status: this.#status,
      rule: this.#resume?.verdict.rule ?? null,
      verdict: this.#resume?.verdict.action ?? null,
      outcome: this.#watch?.outcome ?? null,
      proof: this.#resume?.resolution.proof ?? null,
      refusal: this.#refusal,
      observed: route.mode === 'observe',
      session: () => (sessionId === null ? null : tokens.shown(sessionId)),
      cursor: () => (cursor === null ? null : tokens.shown(cursor)),
      error: this.#error,
      clientLeft: end === 'client-left',
      events: this.#lastLeg?.events ?? 0,
      headAfter: since(this.#headAt),
      firstByteAfter: since(this.#firstByteAt),
      duration: now() - this.#startedAt,
    });
  }
}

const UNREADABLE: Messages = { wellFormed: false, requests: [], responses: [], methodNotFound: false };

function asGuardError(error: unknown): GuardError {
  return error instanceof GuardError ? error : new GuardError('internal', String(error), { cause: error });
}
