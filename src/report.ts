/** What the proxy reports about an exchange, for logs, metrics and the page. Types only; no secret is ever in it. */
import type { Action, RuleName } from './core/decide.ts';
import type { RefusalRule } from './core/refusal.ts';
import type { Outcome } from './core/replay.ts';
import type { Duplicate, Proof } from './core/resolve.ts';
import type { ErrorCode } from './errors.ts';

export interface ExchangeReport {
  /** Counts exchanges of this process. */
  readonly id: number;
  readonly method: string;
  /** Without query. */
  readonly path: string;
  readonly route: string;
  /** The guard was on for it. */
  readonly guarded: boolean;
  /** Status the client got; 0 where it got none. */
  readonly status: number;
  /** Null for an exchange that is not guarded, or was never decided. */
  readonly rule: RuleName | null;
  readonly verdict: Action | null;
  /** Of a watched replay. */
  readonly outcome: Outcome | null;
  /** How delivery was proven, for the rules that need it. */
  readonly proof: Proof | null;
  /** What the client was refused with, if it was, or would have been in `mode: observe`. */
  readonly refusal: RefusalRule | null;
  readonly observed: boolean;
  /** Keyed hashes, computed when asked for. */
  readonly session: () => string | null;
  readonly cursor: () => string | null;
  /** The field of the request as it came (W3C Trace Context); null where there is none, or more than one. */
  readonly traceparent: () => string | null;
  /** A failure of ours or of upstream's. */
  readonly error: ErrorCode | null;
  /** `open` in a decision that is reported while its exchange goes on. */
  readonly end: 'open' | 'ended' | 'destroyed' | 'client-left';
  /** The stream it was an exchange of: its number within the session, and its kind. */
  readonly stream: { readonly ordinal: number; readonly kind: StreamKindLabel } | null;
  readonly events: number;
  /** Terminal events. */
  readonly answers: number;
  /** In ms: until upstream's head, until the first body byte went out, until the end; null where it did not happen. */
  readonly headAfter: number | null;
  readonly firstByteAfter: number | null;
  readonly duration: number;
}

export type StreamKindLabel = 'request' | 'standalone' | 'placeholder';

/** An exchange whose answer is an event stream that is being read. */
export interface OpenedStream {
  /** Of the exchange. */
  readonly id: number;
  readonly ordinal: number;
  readonly kind: StreamKindLabel;
  /** Keyed hash. */
  session(): string | null;
}

/** Where the proxy tells what happens as it happens. Every call is cheap; nothing is returned. */
export interface Observer {
  /** A resume was decided, and what came of it is known; its exchange may go on for hours. */
  decided(report: ExchangeReport): void;
  /** An exchange is over. */
  exchange(report: ExchangeReport): void;
  events(count: number): void;
  terminal(kind: 'result' | 'error'): void;
  duplicate(kind: Duplicate, action: 'dropped' | 'passed'): void;
  blind(cause: string): void;
  streamOpened(stream: OpenedStream): void;
  streamClosed(stream: OpenedStream): void;
  generation(cause: 'initialize' | 'restart' | 'instance'): void;
  lateEmpty(): void;
  instanceAlternates(route: string): void;
  /** Seconds between an event's bytes coming in and going out; called for a sample. */
  eventDelay(seconds: number): void;
}
