/** One response at the scripted client, while it arrives: everything is kept with its time of arrival. */

import type { Connection } from './connection.ts';
import { type Bell, PATIENCE, pause } from './waiting.ts';
import { type Field, type Head, valuesOf } from './wire.ts';

export interface ReplyHead {
  readonly status: number;
  readonly reason: string;
  readonly fields: readonly Field[];
  readonly raw: Buffer;
  /** When it arrived, on the clock of `performance.now()`. */
  readonly at: number;
  /** The first value of a field. */
  field(name: string): string | undefined;
  /** Every value of a field, in order. */
  values(name: string): string[];
}

export interface Arrival {
  readonly bytes: Buffer;
  /** On the clock of `performance.now()`. */
  readonly at: number;
}

/** `end`: the body was complete by its framing. `cut`: the connection went away before. */
export type Ending = 'end' | 'cut';

/** One response, while it arrives. */
export class Reply {
  readonly connection: Connection;
  /** Body bytes without their framing, as they arrived. */
  readonly arrivals: Arrival[] = [];
  readonly #what: string;
  readonly #bell: Bell;
  #head: ReplyHead | undefined;
  #ending: Ending | undefined;
  /** When the body ended or was cut. */
  endedAt: number | undefined;

  constructor(connection: Connection, what: string, changed: Bell) {
    this.connection = connection;
    this.#what = what;
    this.#bell = changed;
  }

  /** The head; fails when the connection closes before it. */
  get head(): Promise<ReplyHead> {
    return this.headWithin(PATIENCE);
  }

  headWithin(ms: number): Promise<ReplyHead> {
    const look = (): ReplyHead | undefined => {
      if (this.#head === undefined && this.#ending !== undefined) {
        throw new Error(`the connection closed before the head of the reply to ${this.#what}`);
      }
      return this.#head;
    };
    return this.#bell.until(`the head of the reply to ${this.#what}`, look, ms, () => this.connection.unread);
  }

  /** Whether the head is there already. */
  get headed(): boolean {
    return this.#head !== undefined;
  }

  /** How the body ended. */
  get ended(): Promise<Ending> {
    return this.endedWithin(PATIENCE);
  }

  endedWithin(ms: number): Promise<Ending> {
    return this.#bell.until(
      `the end of the reply to ${this.#what}`,
      () => this.#ending,
      ms,
      () => this.#sofar(),
    );
  }

  /** How it ended, or nothing while it goes on. */
  get ending(): Ending | undefined {
    return this.#ending;
  }

  /** The body so far. */
  get body(): Buffer {
    return Buffer.concat(this.arrivals.map(({ bytes }) => bytes));
  }

  /** The whole body; fails when it was cut. */
  async bytes(ms = PATIENCE): Promise<Buffer> {
    const ending = await this.endedWithin(ms);
    if (ending === 'cut') throw new Error(`the reply to ${this.#what} was cut after ${this.#sofar()}`);
    return this.body;
  }

  async text(ms = PATIENCE): Promise<string> {
    return (await this.bytes(ms)).toString();
  }

  /** Resolves when the body holds `text`; fails when it ends without. */
  until(text: string, ms = PATIENCE): Promise<void> {
    const look = (): true | undefined => {
      if (this.body.includes(text)) return true;
      if (this.#ending === undefined) return undefined;
      throw new Error(`the reply to ${this.#what} ended without ${JSON.stringify(text)}: ${this.#sofar()}`);
    };
    const what = `${JSON.stringify(text)} in the reply to ${this.#what}`;
    return this.#bell.until(what, look, ms, () => this.#sofar()).then(() => undefined);
  }

  /** Lets `ms` milliseconds pass and fails if a body byte or the end came in them. */
  async quiet(ms: number): Promise<void> {
    const before = this.arrivals.length;
    await pause(ms);
    if (this.arrivals.length > before || this.#ending !== undefined) {
      throw new Error(`the reply to ${this.#what} was to stay quiet for ${ms} ms; instead: ${this.#sofar()}`);
    }
  }

  destroy(): void {
    this.connection.destroy();
  }

  reset(): void {
    this.connection.reset();
  }

  pause(): void {
    this.connection.socket.pause();
  }

  resume(): void {
    this.connection.socket.resume();
  }

  /** For the connection below. */
  takeHead(head: Head): number {
    const [, status = '', reason = ''] = /^HTTP\/1\.[01] (\d{3}) ?(.*)$/.exec(head.start) ?? [];
    if (status === '') throw new Error(`not a status line: ${JSON.stringify(head.start)}`);
    this.#head = {
      status: Number(status),
      reason,
      fields: head.fields,
      raw: head.raw,
      at: performance.now(),
      field: (name) => valuesOf(head.fields, name)[0],
      values: (name) => valuesOf(head.fields, name),
    };
    this.#bell.ring();
    return Number(status);
  }

  /** For the connection below. */
  takeBody(pieces: readonly Buffer[]): void {
    const at = performance.now();
    for (const bytes of pieces) this.arrivals.push({ bytes, at });
    this.#bell.ring();
  }

  /** For the connection below. */
  finish(ending: Ending): void {
    this.#ending ??= ending;
    this.endedAt ??= performance.now();
    this.#bell.ring();
  }

  #sofar(): string {
    const state = this.#ending ?? (this.#head === undefined ? 'no head' : `open, status ${this.#head.status}`);
    return `${state}, ${this.body.length} bytes: ${JSON.stringify(this.body.subarray(-200).toString())}`;
  }
}
