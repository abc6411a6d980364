/** The guard for clients. Runs wherever `fetch` does; needs neither Node.js nor a package. */
export type { Action, RuleName, Unrecorded } from '../core/decide.ts';
export type { RefusalRule } from '../core/refusal.ts';
export type { Outcome } from '../core/replay.ts';
export type { FetchLike } from './call.ts';
export type { ResumeReport } from './exchange.ts';
export { type GuardedFetchOptions, guardedFetch } from './guarded-fetch.ts';
export {
  InvalidResumptionError,
  type InvalidResumptionReason,
  type RequestId,
  type ResumeMeaning,
  type ResumptionGuardOptions,
  StreamResumptionGuard,
} from './resumption-guard.ts';
