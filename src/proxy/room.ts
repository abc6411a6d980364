/** What `main` hands to every exchange of a route. */

import type { Route } from '../config.ts';
import type { RefusalRule } from '../core/refusal.ts';
import type { Observer } from '../report.ts';
import type { MemoryBounds, SessionStore } from '../store/store.ts';
import type { KernelTables } from './kernel.ts';
import type { Tokens } from './tokens.ts';
import type { Upstream } from './upstream.ts';

export interface RouteRoom {
  readonly route: Route;
  readonly upstream: Upstream;
  readonly store: SessionStore;
  readonly kernel: KernelTables;
  readonly tokens: Tokens;
  readonly observer: Observer;
  /** What becomes of a resume that the shared ledger cannot be asked about. */
  readonly storeFailure: 'forward' | 'refuse';
  readonly bounds: MemoryBounds;
  readonly refusals: Readonly<Partial<Record<RefusalRule, number>>>;
  readonly proxyStatus: boolean;
  /** Durations in ms, sizes in bytes. */
  readonly replayHold: number;
  readonly replayDeadline: number;
  readonly proofMemory: number;
  readonly maxHeldBytes: number;
  readonly keepAlive: number | null;
  /** 0: no limit. */
  readonly bodyBytes: number;
  /** The listener takes no more connections. */
  readonly draining: () => boolean;
  /** Monotonic, in ms. */
  readonly now: () => number;
}
