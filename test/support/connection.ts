/**
 * One connection of the scripted client. Requests go out on it exactly as the test says, one after another or at
 * once; it stays open after its replies until the test, or the peer, closes it.
 */

import type net from 'node:net';
import { Reply } from './reply.ts';
import { bell, PATIENCE } from './waiting.ts';
import {
  asBuffer,
  type BodyReader,
  bodyReader,
  chunk,
  type Field,
  type Fields,
  type Framing,
  type Head,
  LAST_CHUNK,
  pairs,
  responseFraming,
  takeHead,
  valuesOf,
  writeHead,
} from './wire.ts';

export interface Outgoing {
  readonly method: string;
  /** The request target as it goes on the wire. */
  readonly path: string;
  /** Sent as they stand. `Host` is added where it is missing. */
  readonly fields?: Fields;
  readonly body?: Uint8Array | string;
  /** How the body is framed. Default: `length` where there is a body. `none`: the test writes it itself. */
  readonly framing?: 'length' | 'chunked' | 'none';
}

/** One connection; requests may be sent on it one after another. */
export class Connection {
  readonly socket: net.Socket;
  /** Interim (1xx) responses other than 101, in order. */
  readonly interim: Head[] = [];
  readonly #authority: string;
  readonly #bell = bell();
  readonly #expected: { reply: Reply; method: string }[] = [];
  #waiting: Buffer = Buffer.alloc(0);
  #body: { reader: BodyReader; framing: Framing } | undefined;
  #closed = false;
  #failed = false;

  constructor(socket: net.Socket, authority: string) {
    this.socket = socket;
    this.#authority = authority;
    socket.setNoDelay(true);
    socket.on('data', (bytes) => this.#read(bytes));
    socket.on('end', () => this.#over());
    socket.on('error', () => {
      this.#failed = true;
    });
    socket.on('close', () => {
      this.#closed = true;
      this.#over();
    });
  }

  /** Sends one request; its reply arrives by and by. */
  send({ method, path, fields = {}, body, framing = body === undefined ? 'none' : 'length' }: Outgoing): Reply {
    const reply = new Reply(this, `${method} ${path}`, this.#bell);
    this.#expected.push({ reply, method });
    const given = pairs(fields);
    const host: Field[] = valuesOf(given, 'host').length > 0 ? [] : [['Host', this.#authority]];
    const bytes = asBuffer(body ?? '');
    const ending: Record<typeof framing, Field[]> = {
      length: [['Content-Length', String(bytes.length)]],
      chunked: [['Transfer-Encoding', 'chunked']],
      none: [],
    };
    const head = writeHead(`${method} ${path} HTTP/1.1`, [...host, ...given, ...ending[framing]]);
    const tail =
      framing === 'chunked'
        ? [...(bytes.length > 0 ? [chunk(bytes)] : []), LAST_CHUNK]
        : framing === 'length'
          ? [bytes]
          : [];
    this.socket.write(Buffer.concat([head, ...tail]));
    return reply;
  }

  /** Sends bytes past any framing. */
  write(bytes: Uint8Array | string): void {
    this.socket.write(bytes);
  }

  /** Announces a reply to something sent with `write`. */
  expect(method = 'GET'): Reply {
    const reply = new Reply(this, 'raw bytes', this.#bell);
    this.#expected.push({ reply, method });
    return reply;
  }

  /** Sends FIN and goes on reading. */
  halfClose(): void {
    this.socket.end();
  }

  destroy(): void {
    this.socket.destroy();
  }

  reset(): void {
    this.socket.resetAndDestroy();
  }

  /** Resolves when the peer, or the test, has closed the connection. */
  closed(ms = PATIENCE): Promise<void> {
    const look = (): true | undefined => this.#closed || undefined;
    return this.#bell.until('the connection to close', look, ms, () => 'it is open').then(() => undefined);
  }

  /** Resolves when `count` interim responses have come. */
  interims(count: number, ms = PATIENCE): Promise<void> {
    const look = (): true | undefined => this.interim.length >= count || undefined;
    return this.#bell.until(`${count} interim responses`, look, ms, () => this.unread).then(() => undefined);
  }

  /** What came and belongs to no reply yet, for messages. */
  get unread(): string {
    return this.#waiting.length === 0 ? 'nothing came' : JSON.stringify(this.#waiting.toString('latin1'));
  }

  #read(bytes: Buffer): void {
    this.#waiting = this.#waiting.length === 0 ? bytes : Buffer.concat([this.#waiting, bytes]);
    for (let current = this.#expected[0]; current !== undefined; current = this.#expected[0]) {
      if (this.#body === undefined && !this.#readHead(current.reply, current.method)) return;
      if (this.#body === undefined) continue;
      const { pieces, rest } = this.#body.reader.feed(this.#waiting);
      this.#waiting = rest;
      current.reply.takeBody(pieces);
      if (!this.#body.reader.done) return;
      this.#body = undefined;
      this.#expected.shift();
      current.reply.finish('end');
    }
  }

  /** Takes one head, interim or final; false while it is incomplete. */
  #readHead(reply: Reply, method: string): boolean {
    const taken = takeHead(this.#waiting);
    if (taken === undefined) return false;
    this.#waiting = taken.rest;
    const status = Number(taken.head.start.split(' ')[1]);
    if (status >= 100 && status < 200 && status !== 101) {
      this.interim.push(taken.head);
      this.#bell.ring();
      return true;
    }
    reply.takeHead(taken.head);
    const framing: Framing = status === 101 ? { kind: 'close' } : responseFraming(method, status, taken.head.fields);
    this.#body = { reader: bodyReader(framing), framing };
    return true;
  }

  #over(): void {
    const [first, ...others] = this.#expected.splice(0);
    first?.reply.finish(this.#body?.framing.kind === 'close' && !this.#failed ? 'end' : 'cut');
    for (const { reply } of others) reply.finish('cut');
    this.#bell.ring();
  }
}
