/**
 * A response body on its way through: read from the server when the consumer asks for more, handed on piece by piece.
 * A piece counts as taken when the consumer comes back for the next one.
 *
 *     server ──step──> owner ──write──> [ queue ] ──pull──> consumer
 */

/** Who looks at the bytes between the two ends. Nothing here may throw. */
export interface PipeOwner {
  data(chunk: Uint8Array): void;
  /** The server ended the body in order. */
  ended(): void;
  /** The server's side broke, or was aborted. */
  failed(error: unknown): void;
  /** The consumer gave up. */
  left(): void;
  /** The consumer has read everything to the end. */
  finished(): void;
}

interface Piece {
  readonly bytes: Uint8Array;
  readonly taken: (() => void) | undefined;
}

type End = { readonly kind: 'clean' } | { readonly kind: 'broken'; readonly error: unknown };

export class Pipe {
  readonly #owner: PipeOwner;
  readonly #source: ReadableStreamDefaultReader<Uint8Array> | null;
  readonly #queue: Piece[] = [];
  #inHand: Piece | null = null;
  #stepping: Promise<void> | null = null;
  #end: End | null = null;
  /** The server's side has nothing more to say. */
  #dry = false;
  #wake: () => void = () => {};

  /** `source`: null for a body that is none. */
  constructor(source: ReadableStream<Uint8Array> | null, owner: PipeOwner) {
    this.#owner = owner;
    this.#source = source?.getReader() ?? null;
  }

  /** What the consumer reads. Asked for once. */
  readable(): ReadableStream<Uint8Array> {
    // No queue of the stream's own: a pull means that somebody waits for it, and has what was handed out before.
    return new ReadableStream<Uint8Array>(
      {
        pull: (controller) => this.#pull(controller),
        cancel: (reason) => {
          this.#owner.left();
          return this.abandon(reason);
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** Reads ahead of the consumer for as long as `wanted` says so. */
  async readAhead(wanted: () => boolean): Promise<void> {
    while (wanted() && !this.#dry) await this.#step();
  }

  /** Hands bytes on. `taken` is called when the consumer has come back for more. */
  write(bytes: Uint8Array, taken?: () => void): void {
    if (bytes.length === 0 || this.#end !== null) return;
    this.#queue.push({ bytes, taken });
    this.#wake();
  }

  /** After what was written the body ends in order. */
  end(): void {
    this.#end ??= { kind: 'clean' };
    this.#wake();
  }

  /** After what was written the body breaks. */
  break(error: unknown): void {
    this.#end ??= { kind: 'broken', error };
    this.#wake();
  }

  /** Leaves the server's side: nobody waits for it any more. */
  async abandon(reason?: unknown): Promise<void> {
    this.#dry = true;
    await this.#source?.cancel(reason).catch(() => {});
  }

  async #pull(controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> {
    this.#inHand?.taken?.();
    this.#inHand = null;
    for (;;) {
      const piece = this.#queue.shift();
      if (piece !== undefined) {
        this.#inHand = piece;
        controller.enqueue(piece.bytes);
        return;
      }
      if (this.#end?.kind === 'broken') {
        controller.error(this.#end.error);
        return;
      }
      if (this.#end !== null) {
        controller.close();
        this.#owner.finished();
        return;
      }
      await new Promise<void>((wake) => {
        this.#wake = wake;
        if (!this.#dry) void this.#step().then(wake);
      });
    }
  }

  /** One read of the server's side; calls during one share it. */
  #step(): Promise<void> {
    if (this.#dry) return Promise.resolve();
    this.#stepping ??= this.#readOnce().finally(() => {
      this.#stepping = null;
    });
    return this.#stepping;
  }

  async #readOnce(): Promise<void> {
    let chunk: Uint8Array | undefined;
    try {
      chunk = this.#source === null ? undefined : (await this.#source.read()).value;
    } catch (error) {
      if (this.#dry) return;
      this.#dry = true;
      this.#owner.failed(error);
      return;
    }
    if (this.#dry) return;
    if (chunk === undefined) {
      this.#dry = true;
      this.#owner.ended();
    } else {
      this.#owner.data(chunk);
    }
  }
}
