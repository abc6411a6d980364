/**
 * A request's body on its way up. What is here within the turn of the loop in which the head came goes as one buffer;
 * anything larger or slower is streamed, with backpressure, and read by the scanner as it passes.
 */
import type { IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import type { MessageScanner, Messages } from '../core/jsonrpc.ts';
import { atTurnsEnd, type Turning } from './turn.ts';

export interface BodyListener {
  /** The request can be sent: without a body, with all of it, or with a stream of it. Once. */
  ready(body: Buffer | Readable | null): void;
  /** The body has been read to its end. */
  read(messages: Messages): void;
  tooLarge(): void;
}

/** Larger bodies are streamed even when they came in one piece. */
const GATHER_BYTES = 65_536;

export class RequestBody implements Turning {
  readonly #request: IncomingMessage;
  readonly #scanner: MessageScanner | null;
  readonly #maxBytes: number;
  readonly #listener: BodyListener;
  #gathered: Buffer[] | null = [];
  #bytes = 0;
  #stream: Readable | null = null;
  #ended = false;
  /** More came than may: nothing is read any more. */
  #over = false;

  /** `maxBytes`: 0 for no limit. */
  constructor(request: IncomingMessage, scanner: MessageScanner | null, maxBytes: number, listener: BodyListener) {
    this.#request = request;
    this.#scanner = scanner;
    this.#maxBytes = maxBytes;
    this.#listener = listener;
  }

  start(): void {
    const request = this.#request;
    const { headers } = request;
    if (headers['content-length'] === undefined && headers['transfer-encoding'] === undefined) {
      if (this.#scanner !== null) this.#listener.read(this.#scanner.end());
      this.#listener.ready(null);
      request.resume();
      return;
    }
    if (this.#maxBytes > 0 && Number(headers['content-length'] ?? 0) > this.#maxBytes) {
      this.#listener.tooLarge();
      return;
    }
    request.on('data', (chunk: Buffer) => this.#data(chunk));
    request.on('end', () => this.#end());
    request.on('error', ignore);
    atTurnsEnd(this);
  }

  /** @internal */
  turnEnded(): void {
    this.#startStream();
  }

  #data(chunk: Buffer): void {
    if (this.#over) return;
    this.#bytes += chunk.length;
    if (this.#maxBytes > 0 && this.#bytes > this.#maxBytes) {
      this.#over = true;
      this.#gathered = null;
      this.#listener.tooLarge();
      return;
    }
    this.#scanner?.push(chunk, 0, chunk.length);
    if (this.#gathered === null) {
      const stream = this.#stream!;
      // Upstream wants no more of it. The client has to get rid of it all the same, and it is read to its end.
      if (!stream.destroyed && !stream.push(chunk)) this.#request.pause();
      return;
    }
    this.#gathered.push(chunk);
    if (this.#bytes > GATHER_BYTES) this.#startStream();
  }

  #end(): void {
    if (this.#over) return;
    this.#ended = true;
    if (this.#scanner !== null) this.#listener.read(this.#scanner.end());
    if (this.#gathered === null) {
      this.#stream?.push(null);
      return;
    }
    const pieces = this.#gathered;
    this.#gathered = null;
    this.#listener.ready(pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces));
  }

  #startStream(): void {
    if (this.#gathered === null || this.#request.destroyed) return;
    const pieces = this.#gathered;
    this.#gathered = null;
    const stream = new Readable({ read: () => this.#request.resume() });
    stream.on('error', ignore);
    stream.on('close', () => this.#request.resume());
    this.#request.on('close', () => {
      // Half a request must not look like a whole one.
      if (!this.#ended) stream.destroy(new Error('the client left within its request'));
    });
    this.#stream = stream;
    for (const piece of pieces) stream.push(piece);
    this.#listener.ready(stream);
  }
}

function ignore(): void {}
