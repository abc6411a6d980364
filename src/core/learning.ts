/**
 * What an answer teaches about its session (behaviour.md section 6): that it exists, who may use it, that it began
 * anew, that it ended. Only a 2xx teaches that a session exists, and only what upstream says ends one.
 */
import { allValues, corsOf, type Fields, firstValue } from './fields.ts';
import { MessageScanner, type Messages, type ResponseHead } from './jsonrpc.ts';
import {
  approve,
  beginGeneration,
  endSession,
  forgetStreams,
  type LedgerBounds,
  missed,
  rememberCors,
  restartedBetween,
  reviveSession,
  type Session,
  type UpstreamIdentity,
} from './ledger.ts';
import type { Credential, Millis } from './terms.ts';

/** What learning needs of its surroundings. */
export interface LearningRoom {
  readonly store: {
    recall(key: string, now: Millis): Session | null;
    learn(key: string, how: { anonymous: boolean; upstream: UpstreamIdentity }, now: Millis): Session;
  };
  readonly tokens: { credentialOf(fields: Fields): Credential };
  readonly route: {
    readonly name: string;
    readonly durableEvents: boolean;
    readonly instanceField?: string | undefined;
  };
  readonly observer: {
    generation(cause: 'initialize' | 'restart' | 'instance'): void;
    instanceAlternates(route: string): void;
  };
  readonly bounds: LedgerBounds;
  readonly now: () => Millis;
}

/** Whether a session's key, see `Learning`, is that of a caller without a session. */
export function isAnonymous(key: string): boolean {
  return key.split('\n', 2)[1] === '';
}

/** Values of `instanceField` that one session may go through. */
const MOST_INSTANCES = 64;

export class Learning {
  readonly #room: LearningRoom;
  readonly #method: string;
  readonly #fields: Fields;
  readonly #address: string;
  /** The session the exchange belongs to, once upstream has said so. */
  session: Session | null = null;
  /** Its ID: the request's, or for `initialize` the response's. */
  sessionId: string | null;
  /** Null where the request names more than one session: then nothing is learnt from it. */
  key: string | null;
  readonly #named: readonly string[];
  #identity: UpstreamIdentity | null = null;
  /** A known session answers `initialize`: its result, not the status, begins a new generation. */
  #initializing = false;
  /** A 404 to an approved caller: ends the session unless its body says that only the method is unknown. */
  #gone = false;
  /** Reads a JSON body that has to be understood. */
  #body: MessageScanner | null = null;

  /** `address`: what tells callers without credentials and sessions apart. */
  constructor(room: LearningRoom, method: string, fields: Fields, address: string) {
    this.#room = room;
    this.#method = method;
    this.#fields = fields;
    this.#address = address;
    const sessions = allValues(fields, 'mcp-session-id');
    this.sessionId = sessions.length === 1 ? sessions[0]! : null;
    this.key = sessions.length > 1 ? null : this.#keyOf(this.sessionId);
    this.#named = sessions.length > 1 ? sessions.map((session) => this.#keyOf(session)) : [];
  }

  /** Upstream's head, to a request whose body held `posted`. */
  head(status: number, fields: Fields, posted: Messages | null, identity: UpstreamIdentity): void {
    if (this.key === null) {
      // Whichever session upstream took it for, what comes of it is not known there.
      for (const key of this.#named) {
        const session = this.#room.store.recall(key, this.#room.now());
        if (session !== null) missed(session);
      }
      return;
    }
    this.#identity = identity;
    if (status >= 200 && status <= 299) {
      this.#succeeded(fields, posted?.requests.some(({ method }) => method === 'initialize') ?? false, identity);
    } else if (status === 404 && (this.#method === 'POST' || this.#method === 'DELETE')) {
      this.#notFound(fields);
    }
  }

  /** The body has to be handed in, although it is no event stream. */
  get readsBody(): boolean {
    return this.#body !== null;
  }

  /** Bytes of a body that is no event stream. */
  body(chunk: Uint8Array): void {
    this.#body?.push(chunk, 0, chunk.length);
  }

  /** A stream of this session passes unread. */
  missed(): void {
    if (this.session !== null) missed(this.session);
  }

  /** The body is an event stream, whose answers come one by one. */
  isStream(): void {
    this.#body = null;
  }

  /** Answers went by. True where one of them began a new generation. */
  answered(answers: readonly ResponseHead[]): boolean {
    if (!this.#initializing || this.session === null) return false;
    if (!answers.some(({ kind }) => kind === 'result')) return false;
    this.#initializing = false;
    this.#begin(this.session, 'initialize');
    this.session.complete = true;
    this.session.gaps = false;
    this.session.begunAt = this.#room.now();
    return true;
  }

  /** The body is over, in order. */
  ended(): void {
    const messages = this.#body?.end() ?? null;
    if (this.#gone && this.session !== null && messages?.methodNotFound !== true) {
      endSession(this.session, this.#room.now());
    }
    if (messages !== null) this.answered(messages.responses);
  }

  #succeeded(fields: Fields, isInitialize: boolean, identity: UpstreamIdentity): void {
    const { store, now, tokens } = this.#room;
    if (isInitialize) {
      this.sessionId = firstValue(fields, 'mcp-session-id');
      this.key = this.#keyOf(this.sessionId);
    }
    const key = this.key!;
    const known = store.recall(key, now());
    const session = known ?? store.learn(key, { anonymous: this.sessionId === null, upstream: identity }, now());
    this.session = session;
    if (known === null) {
      session.complete = isInitialize;
      if (isInitialize) session.begunAt = now();
      if (!session.anonymous) this.begun(session);
    } else if (!session.anonymous) {
      if (restartedBetween(session.upstream, identity)) this.#begin(session, 'restart');
      this.#initializing = isInitialize;
      if (isInitialize) this.#body = new MessageScanner('responses');
    }
    if (!session.anonymous) this.#noticeInstance(session, fields);
    if (!isInitialize) reviveSession(session);
    session.acceptedAt = now();
    session.changed = true;
    approve(session, tokens.credentialOf(this.#fields));
    const origin = firstValue(this.#fields, 'origin');
    if (origin !== null) rememberCors(session, origin, corsOf(fields));
    if (this.#method === 'DELETE' && !session.anonymous) {
      endSession(session, now());
      forgetStreams(session, this.#room.bounds, now());
    }
  }

  /** A new session is known by its ID, or a known one has begun a new generation. */
  protected begun(_session: Session): void {}

  #notFound(fields: Fields): void {
    const { store, now, tokens } = this.#room;
    const session = store.recall(this.key!, now());
    if (session === null || !session.approved.includes(tokens.credentialOf(this.#fields))) return;
    this.session = session;
    this.#gone = true;
    if (firstValue(fields, 'content-encoding') === null) this.#body = new MessageScanner('responses');
  }

  #noticeInstance(session: Session, fields: Fields): void {
    const { route, observer } = this.#room;
    const name = route.durableEvents ? undefined : route.instanceField;
    const value = name === undefined ? null : firstValue(fields, name);
    const { instance } = session;
    if (value === null || instance.alternates || value === instance.value) return;
    // So many in one session are no restarts either.
    if (instance.past.includes(value) || instance.past.length >= MOST_INSTANCES) {
      instance.alternates = true;
      observer.instanceAlternates(route.name);
      return;
    }
    if (instance.value !== null) {
      instance.past = [...instance.past, instance.value];
      this.#begin(session, 'instance');
    }
    instance.value = value;
  }

  #begin(session: Session, cause: 'initialize' | 'restart' | 'instance'): void {
    beginGeneration(session, this.#identity ?? session.upstream);
    this.begun(session);
    this.#room.observer.generation(cause);
  }

  #keyOf(sessionId: string | null): string {
    const { route, tokens } = this.#room;
    if (sessionId !== null) return `${route.name}\n${sessionId}`;
    return `${route.name}\n\n${tokens.credentialOf(this.#fields)}\n${this.#address}`;
  }
}
