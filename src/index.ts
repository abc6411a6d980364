/** The public names. */
export {
  type FetchLike,
  type GuardedFetchOptions,
  guardedFetch,
  InvalidResumptionError,
  type InvalidResumptionReason,
  type RequestId,
  type ResumeMeaning,
  type ResumeReport,
  type ResumptionGuardOptions,
  StreamResumptionGuard,
} from './client/index.ts';
export {
  type Config,
  type ConfigFile,
  configFrom,
  type Fault,
  type Loaded,
  loadConfig,
  type Sources,
} from './config.ts';
export { type ErrorCode, type ErrorFault, GuardError } from './errors.ts';
export { type RunningProxy, type StartOptions, startProxy } from './main.ts';
export {
  type EventStoreLike,
  type GuardEventStoreOptions,
  type GuardedEventStore,
  guardEventStore,
  ReplayAuthorizer,
  type ReplayAuthorizerOptions,
  type ResumptionRefusal,
  ResumptionTokenError,
  type SessionEventStore,
  type SessionWindow,
} from './server/index.ts';
