/**
 * The events a session of the demo server can still replay: the last few of all its streams together, as a server
 * with bounded memory keeps them. What falls out at the far end is gone for good, and so is every cursor to it.
 */

/** What one POST opened, and whatever connection reads it at the moment. */
export interface Stream<Sink> {
  readonly name: string;
  /** Requests of the POST that have no response yet; at 0 the stream is finished. */
  open: number;
  sink: Sink | undefined;
}

export interface RingEvent<Sink> {
  readonly id: string;
  readonly stream: Stream<Sink>;
  /** Empty in the priming event. */
  readonly data: string;
  /** The response to a request. */
  readonly terminal: boolean;
  /** Complete transmissions of this event, each in a response that was written to its end. */
  sent: number;
}

export interface Ring<Sink> {
  append(stream: Stream<Sink>, data: string, terminal: boolean): RingEvent<Sink>;
  /** The cursor's stream and the events that follow the cursor on it, or nothing if the cursor is not in the ring. */
  after(cursor: string): { stream: Stream<Sink>; events: readonly RingEvent<Sink>[] } | undefined;
}

/** @param capacity events kept, at least 1. @param evicted is called with the ID of each event that falls out. */
export function createRing<Sink>(capacity: number, evicted: (id: string) => void): Ring<Sink> {
  const events: RingEvent<Sink>[] = [];
  let count = 0;
  return {
    append(stream, data, terminal) {
      count += 1;
      const event = { id: `${stream.name}.${count}`, stream, data, terminal, sent: 0 };
      events.push(event);
      if (events.length > capacity) evicted(events.shift()!.id);
      return event;
    },
    after(cursor) {
      const at = events.findIndex((event) => event.id === cursor);
      if (at < 0) return undefined;
      const { stream } = events[at]!;
      return { stream, events: events.slice(at + 1).filter((event) => event.stream === stream) };
    },
  };
}

/** The event as it goes over the wire (HTML standard, server-sent events). JSON on one line needs no splitting. */
export function wireForm(event: { readonly id: string; readonly data: string }): string {
  return `id: ${event.id}\ndata: ${event.data}\n\n`;
}
