/**
 * The recent past, for the admin pages: the last decisions, counts by minute, and the streams and resumes of each session.
 * In memory, and without a secret in it: sessions and cursors are the keyed hashes of the log.
 *
 * Bounded in bytes: an entry refers to nothing of its exchange, and its only text of any length is cut and copied, so that
 * so many entries are so many bytes at most ({@link ENTRY_BYTES}). An exchange that neither resumed nor streamed, which is
 * what most of them are, leaves nothing here.
 */
import type { ExchangeReport, Observer, OpenedStream } from '../report.ts';

/** One exchange in the timeline of its session. Times in ms since 1970, durations in ms. */
export interface TimelineEntry {
  readonly id: number;
  readonly at: number;
  readonly duration: number;
  readonly method: string;
  /** 0 where the client got none. */
  readonly status: number;
  readonly rule: string | null;
  readonly verdict: string | null;
  readonly outcome: string | null;
  readonly proof: string | null;
  readonly refusal: string | null;
  readonly observed: boolean;
  /** Number and kind of the stream within its session. */
  readonly stream: { readonly ordinal: number; readonly kind: string } | null;
  readonly events: number;
  /** Terminal events among them. */
  readonly answers: number;
  /** `open` still, `ended` in order, `destroyed` by us, or `client-left`. */
  readonly end: string;
}

/** A decision about a resume, and how its exchange went on. */
export interface DecisionEntry extends TimelineEntry {
  /** Its first {@link MOST_OF_A_PATH} characters. */
  readonly path: string;
  readonly route: string;
  /** In ms: until upstream's head, until the first body byte; null where it did not happen (yet). */
  readonly headAfter: number | null;
  readonly firstByteAfter: number | null;
  readonly error: string | null;
  readonly session: string | null;
  readonly cursor: string | null;
}

/** A stream that is open. */
export interface OpenEntry {
  readonly id: number;
  readonly at: number;
  readonly session: string | null;
  readonly stream: { readonly ordinal: number; readonly kind: string };
}

/**
 * What the client of a resume got: the server's answer to it without its cursor, a refusal in place of an empty replay, a
 * refusal that the server was not asked for, the server's answer to it as it came, that although we would have done one of
 * the others (`mode: observe`), or no answer of either.
 */
export type Got = 'stripped' | 'refused' | 'memory' | 'passed' | 'observed' | 'nothing';

export interface MinuteCounts {
  /** Start of the minute, in ms since 1970. */
  readonly at: number;
  /** Each decision once: under the rule it was refused by, or else the one that fit; an empty replay is `empty-replay`. */
  readonly rules: Readonly<Record<string, number>>;
  /** Each decision once. */
  readonly got: Readonly<Partial<Record<Got, number>>>;
}

/** For the timelines of all sessions. The list of decisions takes 1 MiB more at most, streams that are open next to nothing. */
const TIMELINE_BYTES = 4 * 1_048_576;
/** More than what one entry of a timeline takes, a session of its own included. */
const ENTRY_BYTES = 512;
const MOST_ENTRIES = TIMELINE_BYTES / ENTRY_BYTES;
const MOST_OF_A_SESSION = 200;
const MOST_DECISIONS = 1_000;
const MOST_OF_A_PATH = 256;
const MINUTE = 60_000;
const MINUTES = 15;

export class History {
  readonly observer: Partial<Observer>;
  readonly #clock: () => number;
  readonly #decisions: DecisionEntry[] = [];
  /** The session used last is the last. */
  readonly #timelines = new Map<string, TimelineEntry[]>();
  /** In all timelines. */
  #entries = 0;
  readonly #open = new Map<number, OpenEntry>();
  readonly #minutes: { at: number; rules: Record<string, number>; got: Partial<Record<Got, number>> }[] = [];
  readonly #listeners = new Set<(entry: DecisionEntry) => void>();

  /** `clock`: ms since 1970. */
  constructor(clock: () => number) {
    this.#clock = clock;
    this.observer = {
      decided: (report) => this.#decided(report),
      exchange: (report) => this.#ended(report),
      streamOpened: (stream) => this.#opened(stream),
      streamClosed: ({ id }) => void this.#open.delete(id),
    };
  }

  /** The latest first. */
  decisions(): readonly DecisionEntry[] {
    return this.#decisions.toReversed();
  }

  /** Exchanges of a session, the oldest first, and its open streams. */
  session(hash: string): { readonly exchanges: readonly TimelineEntry[]; readonly open: readonly OpenEntry[] } {
    return {
      exchanges: this.#timelines.get(hash) ?? [],
      open: [...this.#open.values()].filter(({ session }) => session === hash),
    };
  }

  /** The last 15 minutes, the oldest first; minutes without a decision too. */
  minutes(): readonly MinuteCounts[] {
    const now = Math.floor(this.#clock() / MINUTE) * MINUTE;
    return Array.from({ length: MINUTES }, (_, i) => {
      const at = now - (MINUTES - 1 - i) * MINUTE;
      return this.#minutes.find((minute) => minute.at === at) ?? { at, rules: {}, got: {} };
    });
  }

  /** Calls back for each decision until the returned function is called. */
  follow(listener: (entry: DecisionEntry) => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  #opened(opened: OpenedStream): void {
    const { id, ordinal, kind } = opened;
    this.#open.set(id, { id, at: this.#clock(), session: opened.session(), stream: { ordinal, kind } });
  }

  #decided(report: ExchangeReport): void {
    if (!isDecision(report)) return;
    const entry = decisionEntry(report, this.#clock());
    push(this.#decisions, entry, MOST_DECISIONS);
    this.#count(report);
    for (const listener of this.#listeners) listener(entry);
  }

  #ended(report: ExchangeReport): void {
    const decided = isDecision(report);
    if (!decided && report.stream === null) return;
    const now = this.#clock();
    const session = report.session();
    if (session !== null) this.#ofSession(session, timelineEntry(report, now));
    // The list shows how it ended, once it has.
    const at = decided ? this.#decisions.findLastIndex(({ id }) => id === report.id) : -1;
    if (at !== -1) this.#decisions[at] = decisionEntry(report, now);
  }

  #ofSession(session: string, entry: TimelineEntry): void {
    const timeline = this.#timelines.get(session) ?? [];
    this.#entries += push(timeline, entry, MOST_OF_A_SESSION);
    this.#timelines.delete(session);
    this.#timelines.set(session, timeline);
    for (const [oldest, { length }] of this.#timelines) {
      if (this.#entries <= MOST_ENTRIES) break;
      this.#timelines.delete(oldest);
      this.#entries -= length;
    }
  }

  #count(report: ExchangeReport): void {
    const at = Math.floor(this.#clock() / MINUTE) * MINUTE;
    let minute = this.#minutes.at(-1);
    if (minute?.at !== at) {
      minute = { at, rules: {}, got: {} };
      push(this.#minutes, minute, MINUTES);
    }
    const [rule, got] = [String(report.refusal ?? report.rule), whatClientGot(report)];
    minute.rules[rule] = (minute.rules[rule] ?? 0) + 1;
    minute.got[got] = (minute.got[got] ?? 0) + 1;
  }
}

const isDecision = ({ rule }: ExchangeReport): boolean => rule !== null && rule !== 'not-a-resume';

function whatClientGot({ verdict, refusal, observed, error, status }: ExchangeReport): Got {
  if (error !== null || status === 0) return 'nothing';
  if (observed && (refusal !== null || verdict === 'strip')) return 'observed';
  if (refusal !== null) return verdict === 'refuse' ? 'memory' : 'refused';
  return verdict === 'strip' ? 'stripped' : 'passed';
}

function timelineEntry(report: ExchangeReport, now: number): TimelineEntry {
  return {
    id: report.id,
    at: now - report.duration,
    duration: report.duration,
    method: report.method,
    status: report.status,
    rule: report.rule,
    verdict: report.verdict,
    outcome: report.outcome,
    proof: report.proof,
    refusal: report.refusal,
    observed: report.observed,
    stream: report.stream,
    events: report.events,
    answers: report.answers,
    end: report.end,
  };
}

function decisionEntry(report: ExchangeReport, now: number): DecisionEntry {
  return {
    ...timelineEntry(report, now),
    // A copy: what is cut from a string keeps all of it.
    path: Buffer.from(report.path.slice(0, MOST_OF_A_PATH), 'latin1').toString('latin1'),
    route: report.route,
    headAfter: report.headAfter,
    firstByteAfter: report.firstByteAfter,
    error: report.error,
    session: report.session(),
    cursor: report.cursor(),
  };
}

/** Appends, and drops the oldest beyond `most`. Returns how many there are more. */
function push<T>(entries: T[], entry: T, most: number): 0 | 1 {
  entries.push(entry);
  if (entries.length <= most) return 1;
  entries.shift();
  return 0;
}
