/**
 * What remembers sessions. Verbs, so that a shared store can do with the same ones what it has to: the local ledger is
 * always the first stop.
 */
import type { LedgerBounds, Session, UpstreamIdentity } from '../core/ledger.ts';
import type { Millis } from '../core/terms.ts';

/** A route and a session ID, or a route and a caller without one. */
export type SessionKey = string;

export interface SessionStore {
  /** Asks what other replicas know of a session and merges it into the record here, which is made if they know one. */
  consult(key: SessionKey, how: Joining): Promise<Consulted>;
  /** By then others have told what they knew when this was called, if they can. */
  settled(): Promise<void>;
  /** The session's record, or null where it was never seen here or is forgotten. Counts as a use. */
  recall(key: SessionKey, now: Millis): Session | null;
  /** A 2xx in this session passed: its record, made if there is none. */
  learn(key: SessionKey, how: { anonymous: boolean; upstream: UpstreamIdentity }, now: Millis): Session;
  /** Drops what is over or too much. To be called every second or so. */
  sweep(now: Millis): void;
  readonly counts: StoreCounts;
  /** For the admin pages: the latest used first. */
  entries(): Iterable<readonly [SessionKey, Session]>;
}

export interface StoreCounts {
  readonly sessions: number;
  /** Estimated memory of all records. */
  readonly bytes: number;
  /** Sessions dropped because a bound was reached. */
  readonly evicted: number;
}

/** The bounds of section 12 that a store keeps. */
export interface MemoryBounds extends LedgerBounds {
  /** Bytes for all records together. */
  readonly memory: number;
  readonly sessions: number;
  /** How long an ended session is remembered. */
  readonly sessionMemory: Millis;
}

/** What a session needs that is learnt from other replicas. */
export interface Joining {
  readonly anonymous: boolean;
  readonly upstream: () => Promise<UpstreamIdentity>;
}

/**
 * `own`: nothing is shared. `whole`: the record holds what all replicas know. `gaps`: the same, but some replica lost
 * something it should have told. `failed`: the record holds what is known here.
 */
export type Consulted = 'own' | 'whole' | 'gaps' | 'failed';
