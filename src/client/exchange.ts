/**
 * The life of one `fetch`, in the order of `proxy/exchange.ts`: decide if it is a resume, send it, learn from the
 * answer, and bring the answer to the consumer, through the watch where a replay is due.
 *
 *     run ──> decide ──┬── refuse ..................... a response of ours, nothing is sent
 *                      └── send ──> head ──> data ──> ended .... the server's response
 *                            └────── failed .................... the promise rejects, or the body breaks
 */
import type { Verdict } from '../core/decide.ts';
import { firstValue, mediaType } from '../core/fields.ts';
import { MALFORMED } from '../core/jsonrpc.ts';
import { Learning } from '../core/learning.ts';
import {
  addRequests,
  announcesPolling,
  closeLeg,
  joinGeneration,
  type Leg,
  NO_IDENTITY,
  openLeg,
  openStream,
  type Session,
  type Strip,
  startListening,
} from '../core/ledger.ts';
import type { RefusalRule } from '../core/refusal.ts';
import type { Outcome } from '../core/replay.ts';
import {
  noteStrip,
  type Owner,
  placeholderFor,
  type Resolution,
  settleLateEmpty,
  settleReplay,
  settleStrip,
} from '../core/resolve.ts';
import { Watch } from '../core/watch.ts';
import { type Call, copyOf, fieldsOf } from './call.ts';
import { Handover } from './handover.ts';
import { Pipe, type PipeOwner } from './pipe.ts';
import { Reading } from './reading.ts';
import { refuse } from './refuse.ts';
import { decideResume, type Resume } from './resume.ts';
import type { ClientRoom } from './room.ts';

/** What became of a resume. */
export interface ResumeReport extends Verdict {
  /** Of a replay that was watched. */
  readonly outcome: Outcome | null;
  /** What it was refused with, if it was. */
  readonly refusal: RefusalRule | null;
}

/** A restart of the server's process cannot be seen from here: generations begin with `initialize` only. */
const UNSEEN = { generation() {}, instanceAlternates() {} };

export class Exchange implements PipeOwner {
  readonly #room: ClientRoom;
  readonly #call: Call;
  readonly #handover: Handover;
  readonly #learning: Learning;
  readonly #report: (report: ResumeReport) => void;
  #resolve: (response: Response) => void = () => {};
  #reject: (error: unknown) => void = () => {};
  #resume: Resume | null = null;
  /** The resume was stripped for an approved caller. */
  #strip: Strip | undefined;
  #refusal: RefusalRule | null = null;
  #leg: Leg | null = null;
  /** The owner that a forwarded resume continues. */
  #target: Owner | null = null;
  #reading: Reading | null = null;
  #watch: Watch | null = null;
  /** Of a watched exchange, which may have to be left. */
  #abort: AbortController | null = null;
  #unfollow: () => void = () => {};
  /** Ends the wait for a listening stream. */
  #answered: () => void = () => {};
  #pipe: Pipe | null = null;
  /** The server's response, while it is held back. */
  #held: Response | null = null;
  /** Terminal events are held back with it. */
  #heldAnswers = false;
  /** The watched exchange brought an event. */
  #honoured = false;
  #stopFilterTimer: (() => void) | null = null;
  #legClosed = false;
  #over = false;

  constructor(room: ClientRoom, call: Call, report: (report: ResumeReport) => void) {
    const { store, tokens, bounds, now } = room;
    this.#room = room;
    this.#call = call;
    this.#report = report;
    this.#handover = new Handover(now);
    const route = { name: call.url.origin, durableEvents: true };
    const surroundings = { store, tokens, bounds, now, route, observer: UNSEEN };
    this.#learning = new Learning(surroundings, call.method, call.fields, call.url.pathname);
  }

  /** Makes the call. Rejects as `fetch` does. */
  run(): Promise<Response> {
    return new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
      const { method, fields, signal } = this.#call;
      if (signal?.aborted) throw signal.reason;
      const isResume = method === 'GET' && firstValue(fields, 'last-event-id') !== null;
      if (isResume) this.#decide();
      else this.#send(false);
    });
  }

  // What is decided.

  #decide(): void {
    this.#resume = decideResume(this.#room, this.#call.fields, this.#learning.key);
    const { verdict, resolution, session, cursor } = this.#resume;
    if (verdict.action === 'refuse') {
      this.#refuse(verdict.rule as RefusalRule, session, resolution.owners, null);
      this.#over = true;
      this.#tell(null);
      return;
    }
    const strips = verdict.action === 'strip';
    if (strips && session !== null && cursor !== null && resolution.facts.approved) {
      this.#strip = noteStrip(session, cursor, () => this.#leg?.events ?? 0, this.#room.now());
    }
    if (verdict.action === 'forward') this.#startWatch(verdict, resolution);
    else this.#tell(null);
    this.#send(strips);
  }

  #refuse(rule: RefusalRule, session: Session | null, owners: readonly Owner[], replaced: Response | null): void {
    const cursor = this.#resume?.cursor ?? null;
    this.#refusal = rule;
    this.#resolve(refuse(this.#room, this.#call.url, { rule, session, cursor, owners, replaced }));
  }

  // Toward the server.

  #send(strip: boolean): void {
    const { signal } = this.#call;
    if (this.#watch !== null) {
      const abort = new AbortController();
      this.#abort = abort;
      const follow = (): void => abort.abort(signal?.reason);
      signal?.addEventListener('abort', follow);
      this.#unfollow = () => signal?.removeEventListener('abort', follow);
    }
    if (this.#call.method === 'GET' && this.#watch === null) this.#asks();
    this.#call
      .send({ strip, signal: this.#abort?.signal ?? null })
      .then((response) => this.#head(response))
      .catch((error: unknown) => this.failed(error));
  }

  /** Without a cursor it is a listening stream that is asked for. */
  #asks(): void {
    const { store, asked, now } = this.#room;
    const { key } = this.#learning;
    const session = key === null ? null : store.recall(key, now());
    if (session !== null) this.#answered = asked.begin(session);
  }

  // From the server.

  #head(response: Response): void {
    this.#answered();
    if (this.#over) {
      response.body?.cancel().catch(() => {});
      return;
    }
    const { status, headers, body } = response;
    const isStream = mediaType(headers.get('content-type')) === 'text/event-stream';
    this.#learning.head(status, fieldsOf(headers), this.#call.posted, NO_IDENTITY);
    const { session } = this.#learning;
    if (session !== null) {
      this.#recordCursor(session, status);
      if (isStream) this.#read(session, status);
    }
    this.#held = response;
    if (body !== null && typeof body.getReader !== 'function') {
      // Not a body that can be read along, so nothing is known of it.
      this.#learning.missed();
      this.#watch?.ended('client-left');
      this.#commit();
      return;
    }
    this.#watch?.head(status, isStream);
    if (this.#watch?.holding) {
      this.#pipe ??= new Pipe(body, this);
      this.#pipe.readAhead(() => this.#watch?.holding ?? false).catch((error: unknown) => this.failed(error));
    } else {
      this.#commit();
    }
  }

  data(chunk: Uint8Array): void {
    const reading = this.#reading;
    if (reading === null) {
      this.#learning.body(chunk);
      this.#pass([chunk], false);
      this.#watch?.bytes(chunk.length, true);
      return;
    }
    const pieces = reading.push(chunk);
    this.#pass(pieces, reading.takeAnswer());
    this.#watch?.bytes(chunk.length, reading.contentPending);
    if (reading.takeEvent()) this.#sawEvent();
    if (reading.isBlind) this.#watch?.unreadable();
    this.#limitHolding(reading);
  }

  ended(): void {
    if (this.#over) return;
    this.#learning.ended();
    if (this.#reading !== null) this.#pass(this.#reading.release(), false);
    const wasLive = this.#watch?.outcome === 'live';
    this.#watch?.ended('clean');
    if (wasLive) this.#settleLive();
    this.#closeLeg(true);
    this.#pipe?.end();
    this.#settle();
  }

  /** Before the head is out the promise rejects, so that the client comes back with the cursor that it has. */
  failed(error: unknown): void {
    if (this.#over) return;
    this.#answered();
    const aborted = this.#call.signal?.aborted ?? false;
    if (aborted) this.#handover.left();
    else this.#handover.broke();
    this.#watch?.ended(aborted ? 'client-left' : 'broken');
    this.#closeLeg(false);
    this.#reject(error);
    this.#pipe?.break(error);
    this.#settle();
  }

  // Toward the consumer.

  /** Lets the server's response go, with what was held. */
  #commit(): void {
    const response = this.#held;
    this.#held = null;
    if (response === null) return;
    const isRead = this.#reading !== null || this.#learning.readsBody;
    const canBeRead = typeof response.body?.getReader === 'function';
    if (this.#pipe === null && !(isRead && canBeRead)) {
      // Nobody has to look at the body, or nobody can.
      if (response.body === null) this.#learning.ended();
      this.#resolve(response);
      this.#closeLeg(false);
      this.#settle();
      return;
    }
    this.#pipe ??= new Pipe(response.body, this);
    this.#write(this.#watch?.take() ?? [], this.#heldAnswers);
    this.#resolve(copyOf(response, this.#pipe.readable(), this.#reading?.filters ?? false));
  }

  /** Into the watch's hands while it holds, else to the consumer. `answers`: a terminal event is among the bytes. */
  #pass(pieces: readonly Uint8Array[], answers: boolean): void {
    if (this.#watch?.holding) {
      this.#heldAnswers ||= answers;
      this.#watch.hold(pieces, this.#reading?.heldBytes ?? 0);
    } else {
      this.#write(pieces, answers);
    }
  }

  #write(pieces: readonly Uint8Array[], answers: boolean): void {
    const last = pieces.length - 1;
    for (let i = 0; i < last; i++) this.#pipe?.write(pieces[i]!);
    if (last < 0) return;
    if (answers) this.#handover.gives();
    this.#pipe?.write(pieces[last]!, answers ? this.#handover.taken : undefined);
  }

  // Reading the stream.

  #read(session: Session, status: number): void {
    const { method, posted } = this.#call;
    const ambiguous = this.#resume?.verdict.rule === 'ambiguous-fields';
    if (status !== 200 || ambiguous || (method !== 'GET' && method !== 'POST')) {
      this.#learning.missed();
      return;
    }
    this.#leg ??= this.#openLeg(session);
    const { stream, resumed } = this.#leg;
    if (!resumed && stream.kind === 'request') addRequests(session, stream, posted ?? MALFORMED);
    startListening(session, this.#leg);
    this.#learning.isStream();
    this.#reading = new Reading({
      room: this.#room,
      session,
      leg: this.#leg,
      target: this.#watch === null ? null : this.#target,
      answers: (answers) => {
        if (this.#learning.answered(answers)) joinGeneration(session, stream);
      },
    });
  }

  /** An unrecorded cursor that the server accepted is recorded from now on, so that floor and probes work for it. */
  #recordCursor(session: Session, status: number): void {
    const cursor = this.#resume?.cursor ?? null;
    if (this.#watch === null || this.#target !== null || cursor === null || status < 200 || status > 299) return;
    this.#target = placeholderFor(session, cursor, this.#room.bounds, this.#room.now());
    this.#leg = openLeg(this.#target.stream, true, this.#handover.receipt, this.#target);
  }

  #openLeg(session: Session): Leg {
    const { bounds, now } = this.#room;
    const kind = this.#call.method === 'POST' ? 'request' : 'standalone';
    return openLeg(openStream(session, kind, bounds, now()), false, this.#handover.receipt);
  }

  /** An unfinished block is held only for so long. */
  #limitHolding(reading: Reading): void {
    if (reading.heldBytes === 0) {
      this.#stopFilterTimer?.();
      this.#stopFilterTimer = null;
    } else {
      this.#stopFilterTimer ??= this.#room.startTimer(this.#room.replayHold, () => {
        this.#stopFilterTimer = null;
        this.#pass(reading.release(), false);
      });
    }
  }

  #closeLeg(clean: boolean): void {
    const leg = this.#leg;
    const session = this.#session;
    this.#stopFilterTimer?.();
    this.#stopFilterTimer = null;
    if (leg === null || session === null || this.#legClosed) return;
    this.#legClosed = true;
    const how = this.#reading === null ? null : { clean, polled: this.#watch?.outcome === 'polled' };
    closeLeg(session, leg, how, this.#room.now());
  }

  get #session(): Session | null {
    return this.#learning.session ?? this.#resume?.session ?? null;
  }

  // Watching a replay.

  #startWatch({ rule }: Verdict, { target, owners }: Resolution): void {
    const { replayHold, replayDeadline, maxHeldBytes, startTimer } = this.#room;
    this.#target = target ?? owners.at(-1) ?? null;
    if (this.#target !== null) this.#leg = openLeg(this.#target.stream, true, this.#handover.receipt, this.#target);
    const options = {
      holds: true,
      mustReplay: rule === 'finished-undelivered',
      replayHold,
      replayDeadline,
      maxHeldBytes,
      polling: () => this.#target !== null && announcesPolling(this.#target.stream),
      displaced: () => this.#target !== null && this.#target.stream.openLegs > 1,
      decided: (outcome: Outcome) => this.#decided(outcome),
    };
    this.#watch = new Watch(options, startTimer);
  }

  #decided(outcome: Outcome): void {
    this.#settleReplay(outcome);
    switch (outcome) {
      case 'empty':
      case 'silent': {
        const owners = this.#target === null ? [] : [this.#target];
        const replaced = this.#held;
        this.#held = null;
        this.#refuse('empty-replay', this.#session, owners, replaced);
        if (outcome === 'silent') this.#leaveServer();
        break;
      }
      case 'broken':
      case 'abandoned':
        break;
      default:
        this.#commit();
    }
    this.#tell(outcome);
  }

  #settleReplay(outcome: Outcome): void {
    const cursor = this.#resume?.cursor ?? null;
    const session = this.#session;
    if (session === null || cursor === null || this.#target === null) return;
    settleReplay(session, this.#target, cursor, outcome, this.#room.now());
  }

  #sawEvent(): void {
    if (this.#watch === null) return;
    this.#watch.event();
    // The head passed without one, but the cursor is honoured all the same.
    if (this.#watch.outcome === 'live' && !this.#honoured) this.#settleReplay('replayed');
    this.#honoured = true;
  }

  /** A `live` replay ended in order after all. */
  #settleLive(): void {
    const cursor = this.#resume?.cursor ?? null;
    const session = this.#session;
    if (session === null || cursor === null || this.#target === null || this.#leg === null) return;
    if (this.#leg.events > 0 || this.#reading?.contentPending) return;
    if (!announcesPolling(this.#target.stream)) settleLateEmpty(session, this.#target, cursor, this.#room.now());
  }

  // The end.

  finished(): void {
    this.#handover.finished();
  }

  left(): void {
    this.#handover.left();
    if (this.#over) return;
    this.#watch?.ended('client-left');
    this.#closeLeg(false);
    this.#settle();
  }

  /** Nobody waits for the server's answer any more. */
  #leaveServer(): void {
    this.#abort?.abort();
    void this.#pipe?.abandon();
    this.#closeLeg(false);
    this.#settle();
  }

  #settle(): void {
    if (this.#over) return;
    this.#over = true;
    this.#unfollow();
    const { verdict, session, cursor } = this.#resume ?? { verdict: null, session: null, cursor: null };
    if (verdict?.action !== 'strip' || session === null || cursor === null) return;
    settleStrip(session, cursor, this.#leg?.events ?? 0, this.#room.now(), this.#strip);
  }

  #tell(outcome: Outcome | null): void {
    if (this.#resume !== null) this.#report({ ...this.#resume.verdict, outcome, refusal: this.#refusal });
  }
}
