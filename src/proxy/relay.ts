/**
 * The way to the client: head once, bytes with backpressure, and exactly one end. A stream that upstream broke is never
 * ended in order: a client that takes half a stream for a whole one does not come back for the rest.
 */
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { type Fields, firstValue } from '../core/fields.ts';
import { lingerNow } from './linger.ts';
import { reclaim } from './reclaim.ts';
import { atTurnsEnd, type Turning } from './turn.ts';
import type { Hop } from './upstream.ts';

/** What RFC 9112 section 4 does not allow in a reason phrase; Node refuses to send it. */
const NOT_IN_REASON = /[^\t\x20-\x7e\x80-\xff]/g;

/** Bytes that may wait for a client that reads on, before upstream waits: a few reads' worth, so that it rarely does. */
const MOST_WAITING = 131_072;
/** What is put together for one write: copying so little costs less than writing each piece by itself. */
const SMALL = 4_096;

/** Whom upstream may have to wait for. */
export const CLIENT = 1;
export const TAP = 2;

/** How the exchange ended for the client. */
export type StreamEnd = 'ended' | 'destroyed' | 'client-left';

export interface RelayListener {
  /** The kernel has taken all bytes that this was wanted to be told of. */
  flushed(): void;
  /** Everything has been handed to the kernel and the response ended in order. */
  finished(): void;
  /** Exactly once, whatever happened. */
  closed(end: StreamEnd): void;
}

export class Relay implements Turning {
  readonly #response: ServerResponse;
  readonly #listener: RelayListener;
  #hop: Hop | null = null;
  #end: StreamEnd | null = null;
  #bodyAllowed = true;
  /** Who cannot take any more of what upstream sends: a sum of CLIENT and TAP. */
  #waitsFor = 0;
  /** Only the end of the connection ends the body. */
  #endsByClose = false;
  /** What came in this turn of the loop: it leaves together at the turn's end. */
  #pieces: Buffer[] = [];
  #bytes = 0;
  /** Since the client was behind last. */
  #passed = 0;
  /** There are such among them whose flushing is to be told. */
  #tells = false;
  /** Writes with such bytes that the kernel has not taken. */
  #unflushed = 0;
  #scheduled = false;
  /** The length of the body is known beforehand, or there is none: hardly a stream that somebody reads as it comes. */
  #isBounded = false;
  /** In order, at the turn's end. */
  #isEnding = false;

  constructor(response: ServerResponse, listener: RelayListener) {
    this.#response = response;
    this.#listener = listener;
    // Before Node's own listener, which may close the connection.
    response.prependListener('finish', () => {
      lingerNow(response);
      listener.finished();
    });
    response.on('close', () => this.left());
    response.on('error', ignore);
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
    this.#isBounded = !this.#bodyAllowed || firstValue(fields, 'content-length') !== null;
    this.#endsByClose = !this.#isBounded && !response.chunkedEncoding;
    if (!this.#isBounded) makeWhole(response);
    this.#schedule();
  }

  /** `tells`: the listener wants to hear when the kernel has taken these bytes and all before. */
  write(piece: Buffer, tells = false): void {
    if (this.over || !this.#bodyAllowed) return;
    this.#pieces.push(piece);
    this.#bytes += piece.length;
    this.#tells ||= tells;
    if (this.#bytes >= MOST_WAITING) this.flush();
    else this.#schedule();
  }

  /** Hands over what has come in this turn. */
  flush(): void {
    if (this.#pieces.length === 0 || this.over) return;
    const last = this.#handOver();
    const isTaken = this.#response.write(last, this.#whenTaken());
    // The client is behind only if the bytes stay here: that a write is larger than Node's mark says little.
    if (isTaken || this.isBlocked || this.#response.writableLength <= MOST_WAITING) return;
    this.wait(CLIENT, true);
    reclaim(this.#passed);
    this.#passed = 0;
    this.#response.once('drain', () => this.wait(CLIENT, false));
  }

  /** Writes all but the last piece, which is returned. */
  #handOver(): Buffer {
    const pieces = this.#pieces;
    const bytes = this.#bytes;
    this.#pieces = [];
    this.#bytes = 0;
    this.#passed += bytes;
    if (pieces.length > 1 && bytes <= pieces.length * SMALL) return Buffer.concat(pieces, bytes);
    const last = pieces.length - 1;
    for (let i = 0; i < last; i++) this.#response.write(pieces[i]!);
    return pieces[last]!;
  }

  #whenTaken(): ((error?: Error | null) => void) | undefined {
    if (!this.#tells) return undefined;
    this.#tells = false;
    this.#unflushed += 1;
    return (error) => {
      this.#unflushed -= 1;
      if (this.#unflushed === 0 && !this.#tells && !error && !this.over) this.#listener.flushed();
    };
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    // An event does not wait for what came on other connections.
    if (this.#isBounded) atTurnsEnd(this);
    else process.nextTick(endTurn, this);
  }

  /** Sends what has come in, if anything waits to be sent; may be called before its time. */
  turnEnded(): void {
    if (!this.#scheduled) return;
    this.#scheduled = false;
    if (this.over || this.#response.writableEnded) return;
    if (this.#isEnding) this.#finish();
    else if (this.#pieces.length > 0) this.flush();
    else this.#response.flushHeaders();
  }

  /** The client's connection is gone, or has no more use for this response. */
  left(): void {
    this.#close(this.#response.writableFinished ? 'ended' : 'client-left');
  }

  /** Ends in order. */
  end(): void {
    if (this.over) return;
    this.#isEnding = true;
    if (!this.#isBounded) this.#finish();
    else this.#schedule();
  }

  #finish(): void {
    const { socket } = this.#response;
    if (this.#pieces.length === 0) {
      this.#response.end();
    } else if (this.#isBounded && this.#bytes <= SMALL && socket !== null) {
      // Node writes a head and what is text as one string, which costs less than gathering the two.
      socket.cork();
      this.#response.write(this.#handOver().toString('latin1'), 'latin1', this.#whenTaken());
      socket.uncork();
      this.#response.end();
    } else {
      this.#response.end(this.#handOver(), this.#whenTaken());
    }
  }

  /** Ends so that nobody can take it for the end: a reset where only the end of the connection ends the body. */
  destroy(): void {
    if (this.over) return;
    this.flush();
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

/** Node keeps the head as it was put together, in some thirty parts. Once it has been looked into, it is one string. */
function makeWhole(response: ServerResponse & { readonly _header?: string | null }): void {
  response._header?.charCodeAt(0);
}

function ignore(): void {}

function endTurn(relay: Relay): void {
  relay.turnEnded();
}
