/**
 * The guard in the client's own process: a `fetch` for the official SDK's Streamable HTTP transport that never lets a
 * finished cursor reach the wire, watches what a resume brings, and turns silence into an error that the SDK understands.
 *
 *     SDK transport ──fetch──> [ guard: ledger, rules, watch ] ──fetch──> server
 */
import type { Unrecorded } from '../core/decide.ts';
import { firstValue, isWithoutResumption } from '../core/fields.ts';
import { type FetchLike, readCall } from './call.ts';
import { Exchange, type ResumeReport } from './exchange.ts';
import { createRoom } from './room.ts';

export interface GuardedFetchOptions {
  /** How long the head of a resumed stream waits for its first event, in ms. Default 2,000. */
  readonly replayHold?: number;
  /** How long a replay that must come may take, in ms from the request. Default 5,000. */
  readonly replayDeadline?: number;
  /** How long a result that was read counts as delivered toward a cursor before it, in ms. Default 60,000. */
  readonly proofMemory?: number;
  /** Bytes held back at most, while an outcome is open or a block unfinished. Default 1 MiB. */
  readonly maxHeldBytes?: number;
  /** Sessions remembered; the least recently used one is forgotten. Default 100. */
  readonly maxSessions?: number;
  /** What becomes of a cursor that was never seen here. Default `forward`. */
  readonly unrecorded?: Unrecorded;
  /** Repeated blocks are taken out of a resumed stream. Default true. */
  readonly dedupe?: boolean;
  /** Told what became of each request with a cursor, for logs and tests. What it throws is ignored. */
  readonly onresume?: (report: ResumeReport) => void;
  /** Milliseconds on a monotonic clock. Default `performance.now`. */
  readonly now?: () => number;
}

/**
 * Wraps `fetch` for one client; the result goes into the transport's `fetch` option.
 *
 * Answers of its own are ordinary responses: `405` where there is nothing to resume, which the SDK takes quietly; an
 * event stream with one JSON-RPC error (code -32010) where a pending call can be named, which fails that call at once;
 * `404` or `409` otherwise. Each carries `Proxy-Status: mcp-resume-guard`. Everything else is what `fetch` gives.
 *
 * @param fetch - what makes the calls. Default `globalThis.fetch`.
 * @throws {RangeError} where an option is not a number that makes sense.
 */
export function guardedFetch(fetch: FetchLike = globalThis.fetch, options: GuardedFetchOptions = {}): FetchLike {
  const room = createRoom({
    replayHold: nonNegative('replayHold', options.replayHold ?? 2_000),
    replayDeadline: nonNegative('replayDeadline', options.replayDeadline ?? 5_000),
    proofMemory: nonNegative('proofMemory', options.proofMemory ?? 60_000),
    maxHeldBytes: nonNegative('maxHeldBytes', options.maxHeldBytes ?? 1_048_576),
    maxSessions: positive('maxSessions', options.maxSessions ?? 100),
    unrecorded: options.unrecorded ?? 'forward',
    dedupe: options.dedupe ?? true,
    now: options.now ?? (() => performance.now()),
  });
  const report = (what: ResumeReport): void => {
    try {
      options.onresume?.(what);
    } catch {}
  };
  return async (input, init) => {
    const call = await readCall(fetch, input, init);
    if (call === null || isWithoutResumption(firstValue(call.fields, 'mcp-protocol-version'))) {
      return fetch(input, init);
    }
    return new Exchange(room, call, report).run();
  };
}

function nonNegative(name: string, value: number): number {
  if (value >= 0) return value;
  throw new RangeError(`${name} must not be negative, but is ${value}`);
}

function positive(name: string, value: number): number {
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw new RangeError(`${name} must be a positive integer, but is ${value}`);
}
