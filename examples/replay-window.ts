// A server with a journal of its own: it keeps the latest events, and says so when it is asked for older ones.
import { ReplayAuthorizer } from 'mcp-resume-guard/server';

const KEPT = 1_000;

export class Journal {
  readonly #windows = new ReplayAuthorizer();
  readonly #events = new Map<string, string[]>();

  /** Begins the session, or begins it anew: earlier cursors are refused from now on. */
  open(session: string): void {
    this.#windows.open(session);
    this.#events.set(session, []);
  }

  /** Returns the event's ID. */
  append(session: string, event: string): string {
    const number = this.#windows.record(session);
    const events = this.#events.get(session)!;
    events.push(event);
    if (events.length > KEPT) {
      events.shift();
      this.#windows.dropThrough(session, number - KEPT);
    }
    return `${this.#windows.window(session)!.generation}-${number}`;
  }

  /** @throws {ResumptionTokenError} with the status to answer: 409, or 404 for a session that is over. */
  after(session: string, cursor: string): string[] {
    const [generation = Number.NaN, number = Number.NaN] = cursor.split('-').map(Number);
    this.#windows.authorizeReplay(session, generation, number);
    const events = this.#events.get(session)!;
    return events.slice(events.length - (this.#windows.window(session)!.highWaterMark - number));
  }

  close(session: string): void {
    this.#windows.evict(session);
    this.#events.delete(session);
  }
}
