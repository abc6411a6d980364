/**
 * Watching a replay (behaviour.md section 4): what a forwarded resume brought, in one word, and when a cursor that
 * brought nothing may be tried again.
 *
 *      GET with cursor ──> upstream 200 ──┬── event ................. replayed   head and bytes pass at once
 *                          head held      ├── end, nothing .......... empty      409
 *                                         ├── replayHold passes ..... live       head passes, silence is normal
 *                                         └── replayDeadline passes . silent     409, only where a replay must come
 */
import type { Millis } from './terms.ts';

export type Outcome =
  | 'replayed'
  | 'live'
  | 'polled'
  | 'displaced'
  | 'empty'
  | 'silent'
  | 'broken'
  | 'abandoned'
  | 'not-a-replay';

export const OUTCOMES: readonly Outcome[] = [
  'replayed',
  'live',
  'polled',
  'displaced',
  'empty',
  'silent',
  'broken',
  'abandoned',
  'not-a-replay',
];

/** Everything the outcome depends on, as seen so far. */
export interface ReplaySeen {
  /** Upstream's status; null while no head came. */
  readonly status: number | null;
  /** Parsed media type is `text/event-stream`. */
  readonly eventStream: boolean;
  /** Body bytes seen. */
  readonly bytes: number;
  /** An event passed (dropped duplicates are none). */
  readonly event: boolean;
  /** Unterminated bytes that may be an event. */
  readonly content: boolean;
  /** More than `tap.maxHeldBytes` are held. */
  readonly overfull: boolean;
  readonly end: 'open' | 'clean' | 'broken' | 'client-left';
  /** The timer that applies has run out: `replayHold`, or `replayDeadline` where `mustReplay`. */
  readonly timeUp: boolean;
  /** Rule `finished-undelivered`: the result exists, so a replay has to come. */
  readonly mustReplay: boolean;
  /** The server announced that it polls: see `polled`. */
  readonly polling: boolean;
  /** Another exchange of this stream is open upstream. */
  readonly displaced: boolean;
}

/** The outcome, or null while it is still open. Total, and the order of its lines is the order of the contract. */
export function outcomeOf(seen: ReplaySeen): Outcome | null {
  if (seen.status !== null && seen.status !== 200) return 'not-a-replay';
  if (seen.status !== null && !seen.eventStream && seen.bytes > 0) return 'not-a-replay';
  if (seen.event || seen.overfull) return 'replayed';
  if (seen.end === 'client-left') return 'abandoned';
  if (seen.end === 'broken') return 'broken';
  if (seen.end === 'clean') {
    if (seen.content) return seen.mustReplay ? 'replayed' : 'live';
    if (seen.polling && !seen.mustReplay) return 'polled';
    return seen.displaced ? 'displaced' : 'empty';
  }
  if (!seen.timeUp) return null;
  if (!seen.mustReplay) return seen.status === null ? null : 'live';
  return seen.content ? 'replayed' : 'silent';
}

/** A second try at a cursor that was refused from memory: at most one at a time, ever less often. */
export interface Probe {
  /** 0 before the immediate probe. */
  readonly interval: Millis;
  readonly dueAt: Millis;
  /** A probe that never reports back frees its slot here; 0 while none is out. */
  readonly busyUntil: Millis;
}

const FIRST_INTERVAL: Millis = 1_000;
const LONGEST_INTERVAL: Millis = 60_000;
const SLOT: Millis = 5_000;

/** The schedule after a first refusal: the next resume goes through at once. */
export function startProbing(now: Millis): Probe {
  return { interval: 0, dueAt: now, busyUntil: 0 };
}

export function probeIsDue(probe: Probe, now: Millis): boolean {
  return now >= probe.dueAt && now >= probe.busyUntil;
}

export function claimProbe(probe: Probe, now: Millis): Probe {
  return { ...probe, busyUntil: now + SLOT };
}

/** A probe is out and has not reported back, even if its slot has freed itself meanwhile. */
export function probeIsOut(probe: Probe): boolean {
  return probe.busyUntil > 0;
}

/** The schedule after a probe came back without a replay. `nothing` means `empty` or `silent`. */
export function settleProbe(probe: Probe, came: 'nothing' | 'other', now: Millis): Probe {
  const doubled = probe.interval === 0 ? FIRST_INTERVAL : Math.min(probe.interval * 2, LONGEST_INTERVAL);
  const interval = came === 'nothing' ? doubled : Math.max(probe.interval, FIRST_INTERVAL);
  return { interval, dueAt: now + interval, busyUntil: 0 };
}
