/**
 * One request at the scripted upstream, kept exactly as it arrived, and the pen for its answer: only what the test
 * says, down to the chunk, the missing final chunk and the reset.
 */

import { STATUS_CODES } from 'node:http';
import type net from 'node:net';
import { type Bell, PATIENCE, within } from './waiting.ts';
import { asBuffer, chunk, type Field, type Fields, type Head, LAST_CHUNK, pairs, valuesOf, writeHead } from './wire.ts';

/** How the upstream frames its answer. `close` ends the body by closing, `none` sends no framing field at all. */
export type AnswerFraming = 'chunked' | 'close' | 'none' | `length:${number}`;

export interface HeadOptions {
  /** Default: `chunked`; `none` for 204, 304, 1xx and answers to HEAD. */
  readonly framing?: AnswerFraming;
  readonly reason?: string;
}

/** One request as it arrived, and the pen for its answer. */
export class Exchange {
  /** When the head was complete, on the clock of `performance.now()`. */
  readonly at = performance.now();
  readonly method: string;
  readonly target: string;
  readonly fields: readonly Field[];
  readonly rawHead: Buffer;
  /** The connection it came on. */
  readonly socket: net.Socket;
  /** True once the request's body is complete. */
  complete = false;
  /** Set by the first wait that took this exchange, so that the next wait gets another one. */
  taken = false;
  readonly #bell: Bell;
  readonly #pieces: Buffer[] = [];
  #framing: AnswerFraming = 'chunked';
  #peer: 'end' | 'reset' | undefined;

  constructor(socket: net.Socket, head: Head, changed: Bell) {
    const [method = '', target = ''] = head.start.split(' ');
    this.method = method;
    this.target = target;
    this.fields = head.fields;
    this.rawHead = head.raw;
    this.socket = socket;
    this.#bell = changed;
  }

  /** The first value of a request field. */
  field(name: string): string | undefined {
    return valuesOf(this.fields, name)[0];
  }

  /** Every value of a request field, in order. */
  values(name: string): string[] {
    return valuesOf(this.fields, name);
  }

  /** The body so far; after an upgrade, what the peer sent since. */
  get body(): Buffer {
    return Buffer.concat(this.#pieces);
  }

  get text(): string {
    return this.body.toString();
  }

  /** Sends the head. Resolves when the kernel took it. */
  head(status: number, fields: Fields = {}, options: HeadOptions = {}): Promise<void> {
    const bodiless = this.method === 'HEAD' || status < 200 || status === 204 || status === 304;
    this.#framing = options.framing ?? (bodiless ? 'none' : 'chunked');
    const reason = options.reason ?? STATUS_CODES[status] ?? '';
    return this.raw(writeHead(`HTTP/1.1 ${status} ${reason}`, [...pairs(fields), ...framingFields(this.#framing)]));
  }

  /** Sends body bytes: one chunk where the framing is chunked, the bare bytes otherwise. */
  write(bytes: Uint8Array | string): Promise<void> {
    return this.raw(this.#framing === 'chunked' ? chunk(bytes) : bytes);
  }

  /** Sends several pieces in one write to the socket, each a chunk of its own. */
  writeEach(pieces: Iterable<Uint8Array | string>): Promise<void> {
    const framed = this.#framing === 'chunked' ? Array.from(pieces, chunk) : Array.from(pieces, asBuffer);
    return this.raw(Buffer.concat(framed));
  }

  /** Sends bytes past any framing. Rejects when the peer has left. */
  raw(bytes: Uint8Array | string): Promise<void> {
    const written = new Promise<void>((resolve, reject) => {
      this.socket.write(bytes, (fault) => (fault ? reject(fault) : resolve()));
    });
    return within(`the peer to take ${bytes.length} bytes of the answer to ${this}`, written, 2 * PATIENCE);
  }

  /** Ends the body well: the final chunk, or the end of the connection where the framing is `close`. */
  async end(bytes?: Uint8Array | string): Promise<void> {
    if (bytes !== undefined) await this.write(bytes);
    if (this.#framing === 'chunked') await this.raw(LAST_CHUNK);
    if (this.#framing === 'close') this.socket.end();
  }

  /** Closes the connection with the body unfinished. */
  cut(): void {
    this.socket.destroy();
  }

  /** Closes the connection with a RST. */
  reset(): void {
    this.socket.resetAndDestroy();
  }

  /** A whole answer in one go, with its length. */
  async answer(status: number, fields: Fields = {}, body: Uint8Array | string = ''): Promise<void> {
    const bytes = asBuffer(body);
    const bodiless = this.method === 'HEAD' || status === 204 || status === 304;
    this.socket.cork();
    const head = this.head(status, fields, bodiless ? {} : { framing: `length:${bytes.length}` });
    const rest = bodiless || bytes.length === 0 ? null : this.raw(bytes);
    this.socket.uncork();
    await Promise.all([head, rest]);
  }

  /** A whole JSON answer. */
  json(status: number, body: string, fields: Fields = {}): Promise<void> {
    return this.answer(status, [['Content-Type', 'application/json'], ...pairs(fields)], body);
  }

  /** Opens a chunked event stream and writes the blocks, each as a chunk. */
  async events(...blocks: readonly string[]): Promise<void> {
    await this.head(200, { 'Content-Type': 'text/event-stream' });
    for (const text of blocks) await this.write(text);
  }

  /** Resolves when the peer has left: with FIN, or with a reset. */
  left(ms = PATIENCE): Promise<'end' | 'reset'> {
    return this.#bell.until(
      `the peer to close the connection of ${this}`,
      () => this.#peer,
      ms,
      () => 'it stayed',
    );
  }

  /** Whether the peer has left. */
  get gone(): boolean {
    return this.#peer !== undefined;
  }

  /** Resolves when the request's body is complete. */
  whole(ms = PATIENCE): Promise<Buffer> {
    const look = (): Buffer | undefined => (this.complete ? this.body : undefined);
    return this.#bell.until(`the whole body of ${this}`, look, ms, () => `${this.body.length} bytes`);
  }

  /** Resolves when the body, or what came after an upgrade, holds `text`. */
  until(text: string, ms = PATIENCE): Promise<void> {
    const look = (): true | undefined => this.body.includes(text) || undefined;
    return this.#bell
      .until(`${JSON.stringify(text)} in the body of ${this}`, look, ms, () => JSON.stringify(this.text))
      .then(() => undefined);
  }

  toString(): string {
    return `${this.method} ${this.target}`;
  }

  /** For the parser below: more of the body came. */
  take(pieces: readonly Buffer[], complete: boolean): void {
    this.#pieces.push(...pieces);
    this.complete = complete;
    this.#bell.ring();
  }

  /** For the connection below: the peer closed it. */
  leave(how: 'end' | 'reset'): void {
    this.#peer ??= how;
    this.#bell.ring();
  }
}

function framingFields(framing: AnswerFraming): Field[] {
  if (framing === 'chunked') return [['Transfer-Encoding', 'chunked']];
  if (framing === 'close') return [['Connection', 'close']];
  if (framing === 'none') return [];
  return [['Content-Length', framing.slice('length:'.length)]];
}
