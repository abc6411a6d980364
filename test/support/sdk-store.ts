/**
 * The event store the TypeScript SDK ships as its sample, with a book of its own: which event ID lies on which stream, and
 * which streams have had their terminal event. So "a cursor of a finished request" is known where it counts: at the server.
 */
import { InMemoryEventStore } from '@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js';
import type { JSONRPCMessage } from '@modelcontextprotocol/sdk/types.js';

type Send = (eventId: string, message: JSONRPCMessage) => Promise<void>;

/** True for a JSON-RPC result or error with an id. */
function isTerminal(message: object): boolean {
  return 'id' in message && !('method' in message) && ('result' in message || 'error' in message);
}

export class BookkeepingStore {
  #events = new InMemoryEventStore();
  readonly #streamOf = new Map<string, string>();
  readonly #finished = new Set<string>();
  readonly #terminalIds = new Set<string>();

  async storeEvent(streamId: string, message: JSONRPCMessage): Promise<string> {
    // The sample's IDs are not ordered within one millisecond, so a replay could lose the event after the cursor.
    const started = Date.now();
    while (Date.now() === started) await new Promise((resolve) => setImmediate(resolve));
    const eventId = await this.#events.storeEvent(streamId, message);
    this.#streamOf.set(eventId, streamId);
    if (isTerminal(message)) {
      this.#finished.add(streamId);
      this.#terminalIds.add(eventId);
    }
    return eventId;
  }

  replayEventsAfter(lastEventId: string, { send }: { send: Send }): Promise<string> {
    return this.#events.replayEventsAfter(lastEventId, { send });
  }

  /** What a restart does to a store that lives in memory. The book of what was once stored stays. */
  empty(): void {
    this.#events = new InMemoryEventStore();
  }

  /** `terminal`: the cursor is a terminal event's ID; `finished`: an earlier ID of a stream that has had its terminal event. */
  standing(eventId: string): 'terminal' | 'finished' | 'open' | 'unknown' {
    if (this.#terminalIds.has(eventId)) return 'terminal';
    const stream = this.#streamOf.get(eventId);
    if (stream === undefined) return 'unknown';
    return this.#finished.has(stream) ? 'finished' : 'open';
  }
}
