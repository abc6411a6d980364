/**
 * The life of one request, top to bottom: read the fields, decide if it is a resume, send it upstream, learn from the
 * answer, and bring the answer to the client, through the tap, and through the watch where a replay is due.
 *
 *     start ──> decide ──┬── refuse ............................... an answer of ours
 *                        └── send ──> head ──> data ──> ended ..... upstream's answer
 *                              └────── failed ..................... 502, 504, or a destroyed connection
 *
 * With the guard off (another path, a revision without resumption) the same walk leaves out everything but send, head,
 * data and the end.
 */
import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Readable } from 'node:stream';
import type { Receipt } from '../core/delivery.ts';
import {
  cameThroughIntermediary,
  type Fields,
  firstValue,
  isWithoutResumption,
  mediaType,
  onlyValue,
  towardClient,
  towardUpstream,
} from '../core/fields.ts';
import { MALFORMED, MessageScanner, type Messages, type ResponseHead } from '../core/jsonrpc.ts';
import {
  addRequests,
  announcesPolling,
  closeLeg,
  generationOver,
  isDisplaced,
  joinGeneration,
  type Leg,
  openLeg,
  openStream,
  type Session,
  type StreamKind,
  type Strip,
  startListening,
} from '../core/ledger.ts';
import { proxyStatus, type RefusalRule, refusalForm, wantsConnectionLost } from '../core/refusal.ts';
import type { Outcome } from '../core/replay.ts';
import { noteStrip, type Owner, placeholderFor, settleLateEmpty, settleReplay, settleStrip } from '../core/resolve.ts';
import { type ErrorCode, errorBody, GuardError } from '../errors.ts';
import type { ExchangeReport, OpenedStream } from '../report.ts';
import { type BodyListener, RequestBody } from './body.ts';
import type { ClientConnection } from './connection.ts';
import { KeepAlive } from './keep-alive.ts';
import { Learning } from './learning.ts';
import { Reading, type ReadingListener } from './reading.ts';
import { agentOf, refusalAnswer, refusalContext } from './refuse.ts';
import { Relay, type RelayListener, type StreamEnd, TAP } from './relay.ts';
import { decideResume, NOT_ASKED, type Resume } from './resume.ts';
import type { RouteRoom } from './room.ts';
import { pathOf } from './target.ts';
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
  /** Told once that the exchange is over. */
  readonly listener: { exchangeClosed(exchange: Exchange, connection: ClientConnection): void };
}

interface Head {
  readonly status: number;
  readonly reason: string;
  readonly fields: Fields;
}

/** Of so many chunks one has its delay taken. */
const DELAY_SAMPLE = 64;

let exchanges = 0;

/** Counts exchanges of this process, upgraded connections among them. */
export const nextExchange = (): number => ++exchanges;

export class Exchange implements BodyListener, UpstreamListener, RelayListener, ReadingListener, OpenedStream {
  /** Among the listener's. */
  seat: number | null = null;
  readonly id = nextExchange();
  readonly #room: RouteRoom;
  readonly #in: Incoming;
  readonly #method: string;
  readonly #fields: Fields;
  readonly #startedAt: number;
  readonly #relay: Relay;
  readonly #receipt: Receipt;
  /** Null with the guard off. */
  readonly #learning: Learning | null;
  #posted: Messages | null = null;
  #resume: Resume | null = null;
  /** Upstream is not to see the cursor. */
  #strips = false;
  #hop: Hop | null = null;
  /** Upstream has nothing more to say, or was cut off. */
  #upstreamOver = false;
  #leg: Leg | null = null;
  /** The owner that a forwarded resume continues. */
  #target: Owner | null = null;
  #reading: Reading | null = null;
  #watch: Watch | null = null;
  /** Upstream's head, while it is held back. */
  #heldHead: Head | null = null;
  /** Terminal events are held back with it. */
  #heldAnswers = false;
  #legClosed = false;
  /** The watched exchange brought an event. */
  #honoured = false;
  #filterTimer: NodeJS.Timeout | null = null;
  #keepAlive: KeepAlive | null = null;
  #chunks = 0;
  #strip: Strip | undefined;
  #decisionReported = false;
  #status = 0;
  #refusal: RefusalRule | null = null;
  #error: ErrorCode | null = null;
  #headAt: number | null = null;
  #firstByteAt: number | null = null;

  constructor(room: RouteRoom, incoming: Incoming) {
    const { request, connection } = incoming;
    this.#room = room;
    this.#in = incoming;
    this.#method = request.method ?? 'GET';
    this.#fields = request.rawHeaders;
    this.#startedAt = room.now();
    const guarded = incoming.guarded && !isWithoutResumption(firstValue(this.#fields, 'mcp-protocol-version'));
    this.#learning = guarded ? new Learning(room, this.#method, this.#fields, connection.address) : null;
    const forwarded = guarded && cameThroughIntermediary(this.#fields);
    this.#receipt = { connection: connection.facts, forwarded, flushedAt: null, response: 'open' };
    this.#relay = new Relay(incoming.response, this);
  }

  /** Runs the request. Never throws; what goes wrong becomes an answer. */
  start(): void {
    const isGet = this.#in.guarded && this.#method === 'GET';
    if (!isGet || firstValue(this.#fields, 'last-event-id') === null) {
      this.#send(false);
      return;
    }
    decideResume(this.#room, this.#fields, this.#learning?.key ?? null, this.#receipt.forwarded).then(
      (resume) => this.#carryOut(resume),
      (error: unknown) =>
        this.failed(error instanceof GuardError ? error : new GuardError('internal', String(error), { cause: error })),
    );
  }

  /** The client has ended its side. It may read on, and an answer that is here in whole leaves before we end ours. */
  clientEnded(): void {
    this.#relay.turnEnded();
  }

  /** The client's connection is gone. Node says so only to the response whose turn it is. */
  connectionClosed(): void {
    this.#relay.left();
  }

  /** Breaks off, so that nobody takes it for the end. */
  cut(): void {
    this.#relay.destroy();
  }

  // What was decided.

  #carryOut(resume: Resume): void {
    if (this.#relay.over) return;
    this.#resume = resume;
    const { verdict, resolution, session, cursor } = resume;
    const enforces = this.#room.route.mode === 'enforce';
    if (verdict.action === 'refuse') {
      const rule = verdict.rule as RefusalRule;
      const context = refusalContext(this.#room, this.#fields, rule, session, cursor, resolution.owners);
      if (enforces && refusalForm(context) === 'upstream') {
        // Not refused, then, and not counted as that.
        this.#resume = { ...resume, verdict: { ...verdict, action: 'forward' } };
      } else {
        this.#refusal = rule;
        if (enforces) {
          this.#answer(refusalAnswer(this.#room, context, null, this.#rememberedCors(session)));
          return;
        }
      }
    }
    const strips = verdict.action === 'strip';
    if (strips && session !== null && cursor !== null && resolution.facts.approved) {
      this.#strip = noteStrip(session, cursor, () => this.#leg?.events ?? 0, this.#room.now());
    }
    if (verdict.action !== 'pass' && !(strips && enforces)) this.#startWatch(resume);
    this.#send(strips && enforces);
  }

  /** What upstream last sent to this `Origin` in the session, for an answer that upstream has no part in. */
  #rememberedCors(session: Session | null): readonly string[] {
    const origin = firstValue(this.#fields, 'origin');
    return (origin !== null && session?.cors.get(origin)) || [];
  }

  #answer({ status, fields, body }: { status: number; fields: readonly string[]; body: string }): void {
    this.#status = status;
    if (this.#room.draining()) this.#in.response.shouldKeepAlive = false;
    this.#relay.head(status, STATUS_CODES[status] ?? '', fields, this.#method);
    this.#relay.write(Buffer.from(body));
    this.#relay.end();
    this.#reportDecision();
  }

  // Toward upstream.

  #send(strip: boolean): void {
    const reads = this.#learning !== null && this.#method === 'POST';
    const encoding = firstValue(this.#fields, 'content-encoding');
    const plain = encoding === null || encoding.trim().toLowerCase() === 'identity';
    const scanner = reads && plain ? new MessageScanner('requests') : null;
    this.#strips = strip;
    new RequestBody(this.#in.request, scanner, this.#room.bodyBytes, this).start();
  }

  ready(body: Buffer | Readable | null): void {
    if (this.#relay.over) return;
    const { upstream, route } = this.#room;
    const fields = towardUpstream(this.#fields, {
      authority: upstream.authority,
      preserveHost: route.preserveHost,
      clientAuthority: this.#in.authority,
      clientAddress: this.#in.connection.address,
      scheme: this.#in.scheme,
      httpVersion: this.#in.request.httpVersion,
      strip: this.#strips,
    });
    this.#hop = upstream.dispatch({ method: this.#method, path: this.#in.target, fields, body }, this);
    this.#relay.follow(this.#hop);
  }

  read(messages: Messages): void {
    this.#posted = messages;
    if (this.#leg !== null && this.#learning?.session != null) {
      addRequests(this.#learning.session, this.#leg.stream, messages);
    }
  }

  tooLarge(): void {
    this.#hop?.abort();
    this.failed(new GuardError('body-too-large'));
  }

  // From upstream.

  head(status: number, reason: string, fields: Fields): void {
    this.#headAt = this.#room.now();
    const isStream = mediaType(firstValue(fields, 'content-type')) === 'text/event-stream';
    if (this.#learning !== null && this.#hop !== null) {
      this.#learning.head(status, fields, this.#posted, this.#hop.identity);
      const { session } = this.#learning;
      if (session !== null) {
        this.#recordCursor(session, status);
        if (isStream) this.#read(session, status, fields);
      }
    }
    const head = { status, reason, fields };
    this.#heldHead = head;
    this.#watch?.head(status, isStream);
    if (!this.#watch?.holding) this.#commit();
  }

  data(chunk: Buffer): void {
    const reading = this.#reading;
    if (reading === null) {
      this.#learning?.body(chunk);
      this.#pass([chunk], false);
      this.#watch?.bytes(chunk.length, true);
      return;
    }
    const cameAt = this.#chunks++ % DELAY_SAMPLE === 0 ? this.#room.now() : null;
    const pieces = reading.push(chunk);
    this.#pass(pieces, reading.takeAnswer());
    this.#watch?.bytes(chunk.length, reading.contentPending);
    const sawEvent = this.#afterReading(reading);
    if (sawEvent && cameAt !== null) {
      this.#relay.flush();
      this.#room.observer.eventDelay((this.#room.now() - cameAt) / 1_000);
    }
  }

  ended(): void {
    this.#upstreamOver = true;
    const end = (): void => {
      if (!this.#relay.over) this.#endOfBody();
    };
    if (this.#reading === null) end();
    else this.#reading.finish(end);
  }

  #endOfBody(): void {
    this.#learning?.ended();
    if (this.#reading !== null) this.#pass(this.#reading.release(), false);
    const wasLive = this.#watch?.outcome === 'live';
    this.#watch?.ended('clean');
    if (wasLive) this.#settleLive();
    this.#closeLeg(true);
    this.#relay.end();
  }

  failed(error: GuardError): void {
    this.#upstreamOver = true;
    this.#error = error.code;
    this.#receipt.response = 'broken';
    this.#watch?.ended('broken');
    this.#closeLeg(false);
    const loses = this.#learning !== null && this.#method === 'GET' && error.fault === 'upstream';
    if (this.#relay.headSent || (loses && wantsConnectionLost(agentOf(this.#room, this.#fields)))) {
      this.#relay.destroy();
      return;
    }
    if (this.#relay.over) return;
    const body = errorBody(error.code);
    const fields = ['Content-Type', 'application/json', 'Content-Length', String(Buffer.byteLength(body))];
    // Whatever of the request is still to come will not be read.
    if (!this.#in.request.complete) fields.push('Connection', 'close');
    this.#answer({ status: error.status, fields, body });
  }

  // Toward the client.

  /** Sends upstream's head on, with what was held. */
  #commit(): void {
    const head = this.#heldHead;
    this.#heldHead = null;
    if (head === null || this.#relay.headSent || this.#relay.over) return;
    this.#status = head.status;
    if (this.#room.draining()) this.#in.response.shouldKeepAlive = false;
    this.#relay.head(head.status, head.reason, this.#towardClient(head), this.#method);
    this.#write(this.#watch?.take() ?? [], this.#heldAnswers);
    this.#reportDecision();
    const { keepAlive, now } = this.#room;
    const { chunkedEncoding } = this.#in.response;
    if (keepAlive !== null && chunkedEncoding && this.#reading !== null) {
      this.#keepAlive = new KeepAlive(this.#relay, this.#reading, keepAlive, now);
    }
  }

  #towardClient({ status, fields }: Head): string[] {
    const out = towardClient(fields, {
      upstreamOrigin: this.#room.upstream.origin,
      ourOrigin: this.#in.authority === null ? null : `${this.#in.scheme}://${this.#in.authority}`,
      resized: this.#reading?.filters ?? false,
    });
    const stripped = this.#resume?.verdict.action === 'strip' && this.#room.route.mode === 'enforce';
    if (stripped && this.#room.proxyStatus && status >= 200 && status <= 299) {
      out.push('Proxy-Status', proxyStatus(this.#resume!.verdict.rule, null));
    }
    return out;
  }

  /** Into the watch's hands while it holds, else to the client. `answers`: a terminal event is among the bytes. */
  #pass(pieces: readonly Buffer[], answers: boolean): void {
    if (this.#watch?.holding) {
      this.#heldAnswers ||= answers;
      this.#watch.hold(pieces, this.#reading?.heldBytes ?? 0);
    } else {
      this.#write(pieces, answers);
    }
  }

  #write(pieces: readonly Buffer[], answers: boolean): void {
    if (pieces.length === 0) return;
    this.#firstByteAt ??= this.#room.now();
    // An earlier answer may be flushed long since; the receipt speaks for all of them.
    if (answers) this.#receipt.flushedAt = null;
    for (const piece of pieces) this.#relay.write(piece, answers);
    this.#keepAlive?.wrote();
  }

  /** The kernel has the terminal events' bytes. */
  flushed(): void {
    this.#receipt.flushedAt = this.#room.now();
  }

  // Reading the stream.

  #read(session: Session, status: number, fields: Fields): void {
    const ambiguous = this.#resume?.verdict.rule === 'ambiguous-fields';
    if (status !== 200 || ambiguous || (this.#method !== 'GET' && this.#method !== 'POST')) {
      this.#learning?.missed();
      return;
    }
    this.#leg ??= this.#openLeg(session);
    const { stream, resumed } = this.#leg;
    if (!resumed) {
      stream.generation = generationOver(session, this.#hop!.identity);
      if (stream.kind === 'request') addRequests(session, stream, this.#posted ?? MALFORMED);
    }
    startListening(session, this.#leg);
    this.#learning?.isStream();
    this.#room.observer.streamOpened(this);
    this.#reading = new Reading({
      room: this.#room,
      session,
      leg: this.#leg,
      target: this.#watch === null ? null : this.#target,
      kernelOf: this.#resume?.kernelOf ?? NOT_ASKED,
      encoding: firstValue(fields, 'content-encoding') ?? '',
      listener: this,
    });
  }

  answering(answers: readonly ResponseHead[]): void {
    const session = this.#learning?.session ?? null;
    if (session !== null && this.#learning?.answered(answers)) joinGeneration(session, this.#leg!.stream);
  }

  decoded(): void {
    if (this.#reading !== null) this.#afterReading(this.#reading);
  }

  behind(is: boolean): void {
    this.#relay.wait(TAP, is);
  }

  /** An unrecorded cursor that upstream accepted is recorded from now on, so that floor and probes work for it. */
  #recordCursor(session: Session, status: number): void {
    const cursor = this.#resume?.cursor ?? null;
    if (this.#watch === null || this.#leg !== null || cursor === null || status < 200 || status > 299) return;
    this.#target ??= placeholderFor(session, cursor, this.#room.bounds, this.#room.now());
    this.#leg = openLeg(this.#target.stream, true, this.#receipt, this.#target);
  }

  #openLeg(session: Session): Leg {
    const { bounds, now } = this.#room;
    const kind = this.#method === 'POST' ? 'request' : 'standalone';
    return openLeg(openStream(session, kind, bounds, now()), false, this.#receipt);
  }

  /** Returns whether an event passed. */
  #afterReading(reading: Reading): boolean {
    const sawEvent = reading.takeEvent();
    if (sawEvent) this.#sawEvent();
    if (reading.isBlind) this.#watch?.unreadable();
    // An unfinished block is held only for so long.
    if (reading.heldBytes === 0) {
      if (this.#filterTimer !== null) clearTimeout(this.#filterTimer);
      this.#filterTimer = null;
    } else {
      this.#filterTimer ??= setTimeout(() => this.#pass(reading.release(), false), this.#room.replayHold);
    }
    return sawEvent;
  }

  #closeLeg(clean: boolean): void {
    const leg = this.#leg;
    const session = this.#learning?.session ?? this.#resume?.session ?? null;
    this.#stopTimers();
    if (leg === null || session === null || this.#legClosed) return;
    this.#legClosed = true;
    this.#reading?.close();
    const how = this.#reading === null ? null : { clean, polled: this.#watch?.outcome === 'polled' };
    closeLeg(session, leg, how, this.#room.now());
    if (this.#reading !== null) this.#room.observer.streamClosed(this);
  }

  #stopTimers(): void {
    this.#keepAlive?.stop();
    if (this.#filterTimer !== null) clearTimeout(this.#filterTimer);
    this.#filterTimer = null;
  }

  // Watching a replay.

  #startWatch({ verdict, resolution }: Resume): void {
    const { route, replayHold, replayDeadline, maxHeldBytes } = this.#room;
    this.#target = resolution.target ?? resolution.owners.at(-1) ?? null;
    // A stranger is nobody to the ledger until upstream has accepted him, and waits for upstream's own word.
    const { approved } = resolution.facts;
    if (this.#target !== null && approved) this.#leg = openLeg(this.#target.stream, true, this.#receipt, this.#target);
    this.#watch = new Watch({
      holds: route.mode === 'enforce',
      mustReplay: approved && verdict.rule === 'finished-undelivered',
      replayHold,
      replayDeadline,
      maxHeldBytes,
      polling: () => this.#target !== null && announcesPolling(this.#target.stream),
      displaced: () => this.#target !== null && isDisplaced(this.#target.stream),
      decided: (outcome) => this.#decided(outcome),
    });
  }

  #decided(outcome: Outcome): void {
    this.#settle(outcome);
    switch (outcome) {
      case 'empty':
      case 'silent':
        this.#refuseReplay(outcome);
        return;
      case 'broken':
      case 'abandoned':
        return;
      default:
        this.#commit();
    }
  }

  #settle(outcome: Outcome): void {
    const session = this.#learning?.session ?? this.#resume?.session ?? null;
    const cursor = this.#resume?.cursor ?? null;
    if (session === null || cursor === null || this.#target === null) return;
    settleReplay(session, this.#target, cursor, outcome, this.#room.now());
  }

  #refuseReplay(outcome: 'empty' | 'silent'): void {
    const rule = 'empty-replay';
    const { owners } = this.#resume!.resolution;
    const session = this.#learning?.session ?? this.#resume!.session;
    const context = refusalContext(this.#room, this.#fields, rule, session, this.#resume!.cursor, owners);
    const observes = this.#room.route.mode === 'observe';
    const passes = refusalForm(context) === 'upstream';
    if (observes || !passes) this.#refusal = rule;
    if (observes || passes) {
      this.#commit();
      return;
    }
    const head = this.#heldHead;
    this.#heldHead = null;
    this.#answer(refusalAnswer(this.#room, context, head, this.#rememberedCors(session)));
    if (outcome === 'silent') this.#leaveUpstream();
  }

  #sawEvent(): void {
    if (this.#watch === null) return;
    this.#watch.event();
    // The head passed without one, but the cursor is honoured all the same.
    if (this.#watch.outcome === 'live' && !this.#honoured) this.#settle('replayed');
    this.#honoured = true;
  }

  /** A `live` replay ended in order after all. */
  #settleLive(): void {
    const session = this.#learning?.session ?? null;
    const cursor = this.#resume?.cursor ?? null;
    if (session === null || cursor === null || this.#target === null || this.#leg === null) return;
    if (this.#leg.events > 0 || this.#reading?.contentPending) return;
    this.#room.observer.lateEmpty();
    if (!announcesPolling(this.#target.stream)) settleLateEmpty(session, this.#target, cursor, this.#room.now());
  }

  // The end.

  /** Of the stream it is an exchange of. */
  get ordinal(): number {
    return this.#leg!.stream.ordinal;
  }

  get kind(): StreamKind {
    return this.#leg!.stream.kind;
  }

  session(): string | null {
    const sessionId = this.#learning?.sessionId ?? null;
    return sessionId === null ? null : this.#room.tokens.shown(sessionId);
  }

  /** The response ended in order and the kernel has all of it. */
  finished(): void {
    if (this.#receipt.response !== 'open') return;
    this.#receipt.response = 'normal';
    this.#receipt.flushedAt ??= this.#room.now();
  }

  closed(end: StreamEnd): void {
    if (end === 'destroyed') this.#receipt.response = 'broken';
    if (!this.#upstreamOver) this.#leaveUpstream();
    this.#stopTimers();
    const { session, cursor, verdict } = this.#resume ?? { session: null, cursor: null, verdict: null };
    if (verdict?.action === 'strip' && session !== null && cursor !== null) {
      settleStrip(session, cursor, this.#leg?.events ?? 0, this.#room.now(), this.#strip);
    }
    this.#reportDecision(end);
    this.#room.observer.exchange(this.#report(end));
    this.#in.listener.exchangeClosed(this, this.#in.connection);
  }

  /** Cuts upstream's leg: nobody waits for it any more. */
  #leaveUpstream(): void {
    this.#upstreamOver = true;
    this.#hop?.abort();
    this.#watch?.ended('client-left');
    this.#closeLeg(false);
  }

  /** Once, as soon as everything that was to be decided is known, or else at the end. */
  #reportDecision(end: StreamEnd | 'open' = 'open'): void {
    if (this.#resume === null || this.#decisionReported) return;
    const known = this.#status !== 0 && (this.#watch === null || this.#watch.outcome !== null);
    if (!known && end === 'open') return;
    this.#decisionReported = true;
    this.#room.observer.decided(this.#report(end));
  }

  #report(end: StreamEnd | 'open'): ExchangeReport {
    const { now, tokens, route } = this.#room;
    const since = (at: number | null): number | null => (at === null ? null : at - this.#startedAt);
    const cursor = this.#resume === null ? null : firstValue(this.#fields, 'last-event-id');
    const stream = this.#reading?.leg.stream ?? null;
    return {
      id: this.id,
      method: this.#method,
      path: pathOf(this.#in.target),
      route: route.name,
      guarded: this.#learning !== null,
      status: this.#status,
      rule: this.#resume?.verdict.rule ?? null,
      verdict: this.#resume?.verdict.action ?? null,
      outcome: this.#watch?.outcome ?? null,
      proof: this.#resume?.resolution.proof ?? null,
      refusal: this.#refusal,
      observed: route.mode === 'observe',
      session: () => this.session(),
      cursor: () => (cursor === null ? null : tokens.shown(cursor)),
      traceparent: () => onlyValue(this.#fields, 'traceparent'),
      error: this.#error,
      end,
      stream: stream === null ? null : { ordinal: stream.ordinal, kind: stream.kind },
      events: this.#leg?.events ?? 0,
      answers: this.#reading?.answers ?? 0,
      headAfter: since(this.#headAt),
      firstByteAfter: since(this.#firstByteAt),
      duration: now() - this.#startedAt,
    };
  }
}
