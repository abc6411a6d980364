/**
 * The recent past, for the admin pages: the last decisions, counts by rule and minute, and what each session's
 * exchanges were. Bounded, in memory, and without a secret in it: sessions and cursors are the keyed hashes of the log.
 */
import { LRUCache } from 'lru-cache';
import type { ExchangeReport, Observer, OpenedStream } from '../report.ts';

/** One exchange as the pages show it. Times in ms since 1970, durations in ms. */
export interface HistoryEntry {
  readonly id: number;
  readonly at: number;
  readonly duration: number;
  readonly method: string;
  readonly path: string;
  readonly route: string;
  /** 0 where the client got none. */
  readonly status: number;
  /** In ms: until upstream's head, until the first body byte; null where it did not happen (yet). */
  readonly headAfter: number | null;
  readonly firstByteAfter: number | null;
  readonly rule: string | null;
  readonly verdict: string | null;
  readonly outcome: string | null;
  readonly proof: string | null;
  readonly refusal: string | null;
  readonly observed: boolean;
  readonly error: string | null;
  readonly session: string | null;
  readonly cursor: string | null;
  /** Number and kind of the stream within its session. */
  readonly stream: { readonly ordinal: number; readonly kind: string } | null;
  readonly events: number;
  /** Terminal events among them. */
  readonly answers: number;
  /** `open` still, `ended` in order, `destroyed` by us, or `client-left`. */
  readonly end: string;
}

/** A stream that is open. */
export interface OpenEntry {
  readonly id: number;
  readonly at: number;
  readonly session: string | null;
  readonly stream: { readonly ordinal: number; readonly kind: string };
}

export interface MinuteCounts {
  /** Start of the minute, in ms since 1970. */
  readonly at: number;
  /** Decisions by rule, replays that were refused under `empty-replay`. */
  readonly rules: Readonly<Record<string, number>>;
}

const MOST_DECISIONS = 1_000;
const MOST_SESSIONS = 500;
const MOST_OF_A_SESSION = 200;
const MINUTE = 60_000;
const MINUTES = 15;

export class History {
  readonly observer: Partial<Observer>;
  readonly #clock: () => number;
  readonly #decisions: HistoryEntry[] = [];
  readonly #sessions = new LRUCache<string, HistoryEntry[]>({ max: MOST_SESSIONS });
  readonly #open = new Map<number, OpenEntry>();
  readonly #minutes: { at: number; rules: Record<string, number> }[] = [];
  readonly #listeners = new Set<(entry: HistoryEntry) => void>();

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
  decisions(): readonly HistoryEntry[] {
    return this.#decisions.toReversed();
  }

  /** Exchanges of a session, the oldest first, and its open streams. */
  session(hash: string): { readonly exchanges: readonly HistoryEntry[]; readonly open: readonly OpenEntry[] } {
    return {
      exchanges: this.#sessions.get(hash) ?? [],
      open: [...this.#open.values()].filter(({ session }) => session === hash),
    };
  }

  /** The last 15 minutes, the oldest first; minutes without a decision too. */
  minutes(): readonly MinuteCounts[] {
    const now = Math.floor(this.#clock() / MINUTE) * MINUTE;
    return Array.from({ length: MINUTES }, (_, i) => {
      const at = now - (MINUTES - 1 - i) * MINUTE;
      return { at, rules: this.#minutes.find((minute) => minute.at === at)?.rules ?? {} };
    });
  }

  /** Calls back for each decision until the returned function is called. */
  follow(listener: (entry: HistoryEntry) => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  #opened({ id, session, ordinal, kind }: OpenedStream): void {
    this.#open.set(id, { id, at: this.#clock(), session: session(), stream: { ordinal, kind } });
  }

  #decided(report: ExchangeReport): void {
    if (report.rule === null || report.rule === 'not-a-resume') return;
    const entry = this.#entry(report);
    push(this.#decisions, entry, MOST_DECISIONS);
    this.#count(report.rule);
    if (report.refusal === 'empty-replay') this.#count('empty-replay');
    for (const listener of this.#listeners) listener(entry);
  }

  #ended(report: ExchangeReport): void {
    const isDecision = report.rule !== null && report.rule !== 'not-a-resume';
    if (!isDecision && report.stream === null) return;
    const entry = this.#entry(report);
    if (entry.session !== null) this.#ofSession(entry.session, entry);
    // The list shows how it ended, once it has.
    const at = isDecision ? this.#decisions.findLastIndex(({ id }) => id === entry.id) : -1;
    if (at !== -1) this.#decisions[at] = entry;
  }

  #entry({ traceparent: _, session, cursor, ...report }: ExchangeReport): HistoryEntry {
    return { ...report, at: this.#clock() - report.duration, session: session(), cursor: cursor() };
  }

  #ofSession(session: string, entry: HistoryEntry): void {
    const entries = this.#sessions.get(session) ?? [];
    push(entries, entry, MOST_OF_A_SESSION);
    this.#sessions.set(session, entries);
  }

  #count(rule: string): void {
    const at = Math.floor(this.#clock() / MINUTE) * MINUTE;
    let minute = this.#minutes.at(-1);
    if (minute?.at !== at) {
      minute = { at, rules: {} };
      push(this.#minutes, minute, MINUTES);
    }
    minute.rules[rule] = (minute.rules[rule] ?? 0) + 1;
  }
}

/** Appends, and drops the oldest beyond `most`. */
function push<T>(entries: T[], entry: T, most: number): void {
  entries.push(entry);
  if (entries.length > most) entries.shift();
}
