/** The guard for servers. Needs neither Node.js nor a package. */
export {
  type EventStoreLike,
  type GuardEventStoreOptions,
  type GuardedEventStore,
  guardEventStore,
  type SessionEventStore,
} from './guard-event-store.ts';
export {
  ReplayAuthorizer,
  type ReplayAuthorizerOptions,
  type ResumptionRefusal,
  ResumptionTokenError,
  type SessionWindow,
} from './replay-authorizer.ts';
