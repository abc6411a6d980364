/**
 * The way to the client: head once, bytes with backpressure, and exactly one end. A stream that upstream broke is never
 * ended in order: a client that takes half a stream for a whole one does not come back for the rest.
 */
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { type Fields, firstValue } from '../core/fields.ts';
import type { Hop } from './upstream.ts';

/** What RFC 9112 section 4 does not allow in a reason phrase; Node refuses to send it. */
const NOT_IN_REASON = /[^\t\x20-\x7e\x80-\xff]/g;

/** Whom upstream may have to wait for. */
export const CLIENT = 1;
export const TAP = 2;

/** How the exchange ended for the client. */
export type StreamEnd = 'ended' | 'destroyed' | 'client-left';

export interface RelayListener {
  /** Everything has been handed to the kernel and the response ended in order. */
  finished(): void;
  /** Exactly once, whatever happened. */
  closed(end: StreamEnd): void;
}

export class Relay {
  readonly #response: ServerResponse;
  readonly #listener: RelayListener;
  #hop: Hop | null = null;
  #end: StreamEnd | null = null;
  #bodyAllowed = true;
  /** Who cannot take any more of what upstream sends: a sum of CLIENT and TAP. */
  #waitsFor = 0;
  /** Only the end of the connection ends the body. */
  #endsByClose = false;

  constructor(response: ServerResponse, listener: RelayListener) {
    this.#response = response;
    this.#listener = listener;
    response.on('finish', () => listener.finished());
    response.on('close', () => this.left());
    response.on('drain', () => this.wait(CLIENT, false));
    response.on('error', () => {});
  }

  /** Reading from `hop` stops while the client does not keep up. */
  follow(hop: Hop): void {
    this.#hop = hop;
  }

  get headSent(): boolean {
    return this.#response.headersSent;
  }

  get over(): boolean {
    return this.#end !== null;
  }

  /** Bytes wait for the client. */
  get isBlocked(): boolean {
    return (this.#waitsFor & CLIENT) !== 0;
  }

  /** Stops reading from upstream, or goes on once nobody has to be waited for. */
  wait(whom: typeof CLIENT | typeof TAP, is: boolean): void {
    const before = this.#waitsFor;
    this.#waitsFor = is ? before | whom : before & ~whom;
    if (before === 0 && is) this.#hop?.pause();
    else if (before !== 0 && this.#waitsFor === 0) this.#hop?.resume();
  }

  /**
   * Sends the head at once, so that a quiet stream is not a late one; body bytes that are here already travel in the
   * same packet.
   */
  head(status: number, reason: string, fields: Fields, method: string): void {
    const response = this.#response;
    response.sendDate = false;
    this.#bodyAllowed = method !== 'HEAD' && status !== 204 && status !== 304;
    response.writeHead(status, reason.replace(NOT_IN_REASON, ''), fields as string[]);
    this.#endsByClose = this.#bodyAllowed && firstValue(fields, 'content-length') === null && !response.chunkedEncoding;
    process.nextTick(() => {
      if (!this.over) response.flushHeaders();
    });
  }

  /** `flushed` is called once the kernel has taken these bytes and all before, or with an error. */
  write(piece: Buffer, flushed?: (error?: Error | null) => void): void {
    if (this.over || !this.#bodyAllowed) return;
    if (!this.#response.write(piece, flushed)) this.wait(CLIENT, true);
  }

  /** The client's connection is gone, or has no more use for this response. */
  left(): void {
    this.#close(this.#response.writableFinished ? 'ended' : 'client-left');
  }

  /** Ends in order. */
  end(last?: string): void {
    if (this.over) return;
    if (last === undefined) this.#response.end();
    else this.#response.end(last);
  }

  /** Ends so that nobody can take it for the end: a reset where only the end of the connection ends the body. */
  destroy(): void {
    if (this.over) return;
    const { socket } = this.#response;
    const reset = this.#endsByClose && socket !== null && 'resetAndDestroy' in socket;
    this.#close('destroyed');
    if (reset) (socket as Socket).resetAndDestroy();
    else this.#response.destroy();
  }

  #close(end: StreamEnd): void {
    if (this.#end !== null) return;
    this.#end = end;
    this.#listener.closed(end);
  }
}
