/**
 * An event store that knows whose events it holds. The official SDK asks its store for "what came after this event",
 * without saying who asks; a store that several sessions share then answers anybody, and one that does not know the
 * event answers with silence. Here each session gets a store of its own in front of the shared one:
 *
 *     transport of session A ──> forSession('A') ──┐   index: what, in which order     ┌──────────────┐
 *                                                  ├─> window: ReplayAuthorizer     ──>│ shared store │
 *     transport of session B ──> forSession('B') ──┘   the latest messages             └──────────────┘
 *
 * Event IDs are minted here, from the session, its generation and a running number: so order needs no clock, and every
 * cursor says whether it is of this session, of an earlier generation, or of an event that is gone.
 */
import { ReplayAuthorizer } from './replay-authorizer.ts';
import { SessionEvents } from './session-events.ts';

/** The event store interface of the official SDK, 1.x and 2.x. */
export interface EventStoreLike<Message> {
  /** Returns the event's ID. */
  storeEvent(streamId: string, message: Message): Promise<string>;
  /** Returns the stream's ID. */
  replayEventsAfter(
    lastEventId: string,
    how: { send: (eventId: string, message: Message) => Promise<void> },
  ): Promise<string>;
  getStreamIdForEventId?(eventId: string): Promise<string | undefined>;
}

/** The same with the look-up that lets the SDK refuse before it answers. */
export type SessionEventStore<Message> = Required<EventStoreLike<Message>>;

export interface GuardEventStoreOptions {
  /** Keeps the windows. Default: one of its own, for 10,000 sessions. Share one to open and evict sessions elsewhere. */
  readonly authorizer?: ReplayAuthorizer;
  /** Sessions at most; the one used least recently is forgotten. Default 10,000. */
  readonly maxSessions?: number;
  /** Events at most that a session can be resumed after; finished streams go first. Default 10,000. */
  readonly maxEvents?: number;
  /** Messages of a session kept at hand, because the shared store may lose their order. Default 100. */
  readonly maxMessages?: number;
  /**
   * The server takes JSON-RPC batches (revision 2025-03-26), so that one answer does not finish a stream, and no replay
   * is ended for it. Default false.
   */
  readonly batches?: boolean;
  /**
   * Ends the replay of a finished stream by a write that fails, after which the SDK's transport closes the response, and
   * reports the failure to its `onerror`. Default true; not needed with 2.x, which closes by itself.
   */
  readonly endFinished?: boolean;
}

export interface GuardedEventStore<Message> {
  /**
   * The store to hand to the transport of this session. Asked for again, it begins a new generation, and the cursors of
   * the one before are refused.
   */
  forSession(sessionId: string): SessionEventStore<Message>;
  /**
   * May this session resume after this event? For the request handler, which can answer with the right status; the SDK
   * knows only 400 for a cursor it must not honour.
   *
   * @throws {ResumptionTokenError} with `status` 404 or 409.
   */
  authorize(sessionId: string, lastEventId: string): void;
  /** The session is over: its cursors are refused with 404, its events are forgotten here (the shared store has no word for it). */
  endSession(sessionId: string): void;
}

/**
 * Guards an event store that sessions share.
 *
 * @throws {RangeError} where a bound is not a positive integer.
 */
export function guardEventStore<Message extends object>(
  store: EventStoreLike<Message>,
  options: GuardEventStoreOptions = {},
): GuardedEventStore<Message> {
  const { maxSessions = 10_000, maxEvents = 10_000, maxMessages = 100 } = options;
  for (const [name, value] of Object.entries({ maxSessions, maxEvents, maxMessages })) {
    if (!Number.isSafeInteger(value) || value < 1) throw new RangeError(`${name} must be a positive integer`);
  }
  const authorizer = options.authorizer ?? new ReplayAuthorizer({ maxSessions });
  /** In the order of use. */
  const sessions = new Map<string, SessionEvents<Message>>();
  const how = {
    store,
    authorizer,
    bounds: { maxEvents, maxMessages },
    batches: options.batches ?? false,
    endFinished: options.endFinished ?? true,
    used(sessionId: string) {
      const events = sessions.get(sessionId);
      if (events === undefined) return;
      sessions.delete(sessionId);
      sessions.set(sessionId, events);
    },
  };
  const drop = (sessionId: string): void => {
    sessions.get(sessionId)?.close();
    sessions.delete(sessionId);
  };
  return {
    forSession(sessionId) {
      const events = new SessionEvents(how, sessionId, sessions.get(sessionId));
      drop(sessionId);
      sessions.set(sessionId, events);
      if (sessions.size > maxSessions) drop(sessions.keys().next().value!);
      return events;
    },
    authorize(sessionId, lastEventId) {
      const events = sessions.get(sessionId);
      // Where there are none the authorizer says why.
      if (events === undefined) authorizer.authorizeReplay(sessionId, Number.NaN, Number.NaN);
      else events.authorize(lastEventId);
    },
    endSession(sessionId) {
      drop(sessionId);
      authorizer.evict(sessionId);
    },
  };
}
