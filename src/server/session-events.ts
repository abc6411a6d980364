/** The events of one generation of one session: their order, the latest messages, and what may be replayed. */
import { isResponse } from '../core/jsonrpc.ts';
import type { EventStoreLike, SessionEventStore } from './guard-event-store.ts';
import { type ReplayAuthorizer, ResumptionTokenError } from './replay-authorizer.ts';

export interface EventBounds {
  readonly maxEvents: number;
  readonly maxMessages: number;
}

export interface Surroundings<Message> {
  readonly store: EventStoreLike<Message>;
  readonly authorizer: ReplayAuthorizer;
  readonly bounds: EventBounds;
  readonly batches: boolean;
  readonly endFinished: boolean;
  /** A session was used: it is not the one to be forgotten next. */
  readonly used: (sessionId: string) => void;
}

interface StoredEvent<Message> {
  readonly number: number;
  /** Its ID in the shared store. */
  readonly storedAs: string;
  readonly stream: Stream<Message>;
  /** Null where only the shared store has it still. */
  message: Message | null;
}

interface Stream<Message> {
  readonly id: string;
  /** Ascending. */
  readonly events: StoredEvent<Message>[];
  finished: boolean;
}

/** One for all: the transport keeps what it is told here, and a closed stream has nothing to be kept for. */
const FINISHED_STREAM = 'finished';

export class SessionEvents<Message extends object> implements SessionEventStore<Message> {
  readonly #how: Surroundings<Message>;
  readonly #sessionId: string;
  readonly #generation: number;
  /** Tells this session's cursors from any other's. */
  readonly mark: string;
  /** By number, ascending. */
  readonly #events = new Map<number, StoredEvent<Message>>();
  readonly #streams = new Map<string, Stream<Message>>();
  /** In the order in which they finished. */
  readonly #finished = new Set<Stream<Message>>();
  /** The latest, whose messages are at hand. */
  readonly #latest: StoredEvent<Message>[] = [];
  #closed = false;

  /** `before`: the events of the generation before this one. */
  constructor(how: Surroundings<Message>, sessionId: string, before?: SessionEvents<Message>) {
    this.#how = how;
    this.#sessionId = sessionId;
    this.#generation = how.authorizer.open(sessionId);
    this.mark = before?.mark ?? randomMark();
  }

  /** Forgets every event. What is stored from now on cannot be resumed after. */
  close(): void {
    this.#closed = true;
    this.#events.clear();
    this.#streams.clear();
    this.#finished.clear();
    this.#latest.length = 0;
  }

  async storeEvent(streamId: string, message: Message): Promise<string> {
    const { store, bounds, batches, used } = this.#how;
    const storedAs = await store.storeEvent(streamId, message);
    used(this.#sessionId);
    const number = this.#number();
    // A session that is over here goes on for those who are connected: only its cursors are void.
    if (number === null) return storedAs;
    const stream = this.#stream(streamId);
    const event = { number, storedAs, stream, message };
    stream.events.push(event);
    this.#events.set(number, event);
    this.#latest.push(event);
    if (this.#latest.length > bounds.maxMessages) this.#latest.shift()!.message = null;
    if (isResponse(message) && !batches && !stream.finished) {
      stream.finished = true;
      this.#finished.add(stream);
    }
    this.#shed(stream);
    return this.#idOf(number);
  }

  /** Undefined makes the SDK answer 400, before anything of a stream went out. */
  async getStreamIdForEventId(eventId: string): Promise<string | undefined> {
    let event: StoredEvent<Message>;
    try {
      event = this.#find(eventId);
    } catch {
      return undefined;
    }
    const { store } = this.#how;
    // The SDK refuses a stream that still has a connection, if it learns its name here. Without this look-up in the
    // shared store it lets the newcomer win, which is what a client needs whose old connection died unnoticed.
    return store.getStreamIdForEventId === undefined ? `resume of ${event.stream.id}` : event.stream.id;
  }

  async replayEventsAfter(
    lastEventId: string,
    { send }: { send: (eventId: string, message: Message) => Promise<void> },
  ): Promise<string> {
    const cursor = this.#find(lastEventId);
    const { stream } = cursor;
    let last = cursor.number;
    // Events that are stored while this runs are found by looking again.
    for (let next = after(stream, last); next.length > 0; next = after(stream, last)) {
      for (const [number, message] of await this.#messagesOf(next, cursor)) {
        last = number;
        // A priming event left nothing but its ID.
        if (Object.keys(message).length > 0) await send(this.#idOf(number), message);
      }
    }
    if (!stream.finished) return stream.id;
    if (this.#how.endFinished) await send('', unwritable as Message).catch(() => {});
    return FINISHED_STREAM;
  }

  /** @throws {ResumptionTokenError} where the cursor must not be honoured. */
  authorize(lastEventId: string): void {
    this.#find(lastEventId);
  }

  #idOf(number: number): string {
    return `${this.mark}-${this.#generation}-${number}`;
  }

  #find(eventId: string): StoredEvent<Message> {
    const { authorizer, used } = this.#how;
    used(this.#sessionId);
    const [oldest] = this.#events.keys();
    if (oldest !== undefined && this.#isCurrent()) authorizer.dropThrough(this.#sessionId, oldest);
    const [generation, number] = numbersIn(eventId, this.mark);
    authorizer.authorizeReplay(this.#sessionId, generation, number);
    const event = this.#events.get(number);
    // Within the window, but of a finished stream that had to go earlier.
    if (event === undefined) throw new ResumptionTokenError('below-floor');
    return event;
  }

  #isCurrent(): boolean {
    return this.#how.authorizer.window(this.#sessionId)?.generation === this.#generation;
  }

  /** Null where this generation is over. */
  #number(): number | null {
    if (this.#closed) return null;
    if (this.#isCurrent()) return this.#how.authorizer.record(this.#sessionId);
    this.close();
    return null;
  }

  #stream(id: string): Stream<Message> {
    const known = this.#streams.get(id);
    if (known !== undefined) return known;
    const stream: Stream<Message> = { id, events: [], finished: false };
    this.#streams.set(id, stream);
    return stream;
  }

  /** Makes room: the stream that finished first goes whole, else the oldest event. */
  #shed(current: Stream<Message>): void {
    while (this.#events.size > this.#how.bounds.maxEvents) {
      const [first] = this.#finished;
      if (first !== undefined && first !== current) this.#forget(first);
      else this.#forgetOldest();
    }
  }

  #forget(stream: Stream<Message>): void {
    for (const { number } of stream.events) this.#events.delete(number);
    this.#streams.delete(stream.id);
    this.#finished.delete(stream);
  }

  #forgetOldest(): void {
    const [oldest] = this.#events.values();
    if (oldest === undefined) return;
    this.#events.delete(oldest.number);
    oldest.stream.events.shift();
    if (oldest.stream.events.length === 0) this.#forget(oldest.stream);
  }

  /**
   * Asks the shared store for what is not at hand any more. Its order is not relied upon: what it gives is put where it
   * belongs, and what it does not give is lost, which is said and not passed over.
   */
  async #messagesOf(
    events: readonly StoredEvent<Message>[],
    cursor: StoredEvent<Message>,
  ): Promise<(readonly [number, Message])[]> {
    const stored = new Map<string, Message>();
    if (events.some(({ message }) => message === null)) {
      const send = async (eventId: string, message: Message): Promise<void> => void stored.set(eventId, message);
      await this.#how.store.replayEventsAfter(cursor.storedAs, { send });
    }
    return events.map(({ number, storedAs, message: atHand }) => {
      const message = atHand ?? stored.get(storedAs);
      if (message === undefined) throw new ResumptionTokenError('below-floor');
      return [number, message];
    });
  }
}

const randomMark = (): string =>
  [...crypto.getRandomValues(new Uint32Array(2))].map((word) => word.toString(36)).join('');

/** Generation and number of an event ID minted under this mark; not a number in any other. */
function numbersIn(eventId: string, mark: string): [generation: number, number: number] {
  const match = /^([a-z0-9]+)-([1-9][0-9]{0,15})-([1-9][0-9]{0,15})$/.exec(eventId);
  if (match === null || match[1] !== mark) return [Number.NaN, Number.NaN];
  return [Number(match[2]), Number(match[3])];
}

/** The events of a stream after a number, as they are now. */
function after<Message>({ events }: Stream<Message>, number: number): StoredEvent<Message>[] {
  let from = events.length;
  while (from > 0 && events[from - 1]!.number > number) from -= 1;
  return events.slice(from);
}

/** The transport writes messages as JSON, and closes the response where that fails. */
const unwritable = {
  toJSON(): never {
    throw new Error('the stream is finished: its replay ends here, on purpose');
  },
};
