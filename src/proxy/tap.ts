/**
 * The tap: reads an event stream on its way through and tells the ledger. It sits beside the bytes, never in their
 * way: what it cannot read, or whatever goes wrong in it, makes it blind for this stream, and forwarding goes on. Only
 * a decoder that cannot keep up makes upstream wait, as a slow client does.
 *
 *     upstream ──bytes──┬────────────────> client
 *                       └─> [decoder] ─> reader ─> ledger
 */

import type { Transform } from 'node:stream';
import {
  type BrotliOptions,
  constants,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createInflateRaw,
} from 'node:zlib';
import { EventReader, type ReaderListener } from '../core/event-reader.ts';
import { goBlind, type Leg, type Session } from '../core/ledger.ts';

/** Where a block ends in the chunk is meaningless in a decoded stream. */
export interface TapListener extends ReaderListener {
  blind(cause: string): void;
  /** Decoding has fallen behind, so that more bytes would pile up, or has caught up. */
  behind(is: boolean): void;
}

/** Bytes that may wait for a decoder. */
const UNDECODED = 262_144;

export class Tap {
  readonly #session: Session;
  readonly #leg: Leg;
  readonly #listener: TapListener;
  readonly #reader: EventReader;
  readonly #encoding: string;
  #decoder: Transform | null = null;
  #blind = false;
  #behind = false;

  /** `encoding`: the `Content-Encoding` of the response, empty for none. */
  constructor(session: Session, leg: Leg, encoding: string, seed: number, listener: TapListener) {
    this.#session = session;
    this.#leg = leg;
    this.#listener = listener;
    this.#encoding = encoding.trim().toLowerCase();
    this.#reader = new EventReader(session, leg, seed, listener);
    if (!this.isPlain && !(this.#encoding in DECODERS)) this.#goBlind('encoding');
  }

  /** The bytes are the event stream itself. */
  get isPlain(): boolean {
    return this.#encoding === '' || this.#encoding === 'identity';
  }

  get isBlind(): boolean {
    return this.#blind;
  }

  /** Bytes of an unfinished block that may become an event. */
  get contentPending(): boolean {
    return this.#reader.contentPending;
  }

  /** The last byte is inside a block (or a comment) that no blank line has ended yet. */
  get blockOpen(): boolean {
    return this.#reader.blockOpen;
  }

  get terminatorPending(): boolean {
    return this.#reader.terminatorPending;
  }

  push(chunk: Buffer): void {
    if (this.#blind) return;
    if (this.isPlain) this.#scan(chunk);
    else this.#decode(chunk);
  }

  /** The body is over: calls back when everything in it has been read. */
  finish(done: () => void): void {
    if (this.#decoder === null || this.#blind) done();
    else {
      this.#decoder.once('close', done);
      this.#decoder.end();
    }
  }

  /** Nobody will read any more. */
  close(): void {
    this.#blind = true;
    this.#decoder?.destroy();
  }

  #scan(chunk: Uint8Array): void {
    try {
      this.#reader.push(chunk);
    } catch {
      this.#goBlind('failure');
    }
  }

  #decode(chunk: Buffer): void {
    if (this.#decoder === null) {
      this.#decoder = DECODERS[this.#encoding]!(chunk);
      this.#decoder.on('data', (decoded: Buffer) => this.#scan(decoded));
      this.#decoder.on('error', () => this.#goBlind('decoding'));
      this.#decoder.on('drain', () => {
        if (this.#behind) this.#setBehind(false);
      });
    }
    if (!this.#decoder.write(chunk) && !this.#behind) this.#setBehind(true);
  }

  #setBehind(is: boolean): void {
    this.#behind = is;
    this.#listener.behind(is);
  }

  #goBlind(cause: string): void {
    if (this.#blind) return;
    this.#blind = true;
    goBlind(this.#session, this.#leg.stream);
    this.#decoder?.destroy();
    if (this.#behind) this.#setBehind(false);
    this.#listener.blind(cause);
  }
}

const zlibOptions = {
  flush: constants.Z_SYNC_FLUSH,
  writableHighWaterMark: UNDECODED,
};

/**
 * Decoders that give out what they can after every chunk, and complain about a body that ends inside its coding: what
 * would have come is not known then, so it must not pass for nothing.
 * `deflate` comes with and without zlib's wrapper.
 */
const DECODERS: Readonly<Record<string, (first: Buffer) => Transform>> = {
  gzip: () => createGunzip(zlibOptions),
  'x-gzip': () => createGunzip(zlibOptions),
  deflate: (first) => ((first[0]! & 0x0f) === 8 ? createInflate(zlibOptions) : createInflateRaw(zlibOptions)),
  br: () =>
    createBrotliDecompress({
      flush: constants.BROTLI_OPERATION_FLUSH,
      writableHighWaterMark: UNDECODED,
    } as BrotliOptions),
};
