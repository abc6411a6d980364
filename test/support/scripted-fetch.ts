/**
 * A `fetch` that hands each call to the test, which answers it piece by piece.
 *
 *     guarded fetch ──call──▶ script.next() ─▶ ScriptedCall ─▶ respond, write, end | break
 */
import { type Bell, bell } from './waiting.ts';

export class ScriptedCall {
  readonly input: unknown;
  readonly init: RequestInit | undefined;
  readonly method: string;
  readonly headers: Headers;
  readonly signal: AbortSignal | null;
  readonly answered: Promise<Response>;
  /** How often the reader has asked for more. */
  pulls = 0;
  /** The reader gave up. */
  cancelled = false;
  #resolve!: (response: Response) => void;
  #reject!: (error: unknown) => void;
  #body: ReadableStreamDefaultController<Uint8Array> | null = null;
  readonly #bell: Bell;

  constructor(changed: Bell, input: unknown, init: RequestInit | undefined) {
    this.#bell = changed;
    this.input = input;
    this.init = init;
    const request = input instanceof Request ? input : null;
    this.method = init?.method ?? request?.method ?? 'GET';
    this.headers = new Headers(init?.headers ?? request?.headers);
    this.signal = init?.signal ?? null;
    this.answered = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever waits hears of it; a call that is left unanswered does no harm.
    this.answered.catch(() => {});
    this.signal?.addEventListener('abort', () => this.fail(this.signal?.reason));
  }

  /** The cursor, as the server would see it. */
  get cursor(): string | null {
    return this.headers.get('last-event-id');
  }

  /** Sends the head of an event stream, or of what `headers` say. */
  respond(status = 200, headers: Record<string, string> = {}): this {
    const body = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#body = controller;
        },
        pull: () => {
          this.pulls += 1;
          this.#bell.ring();
        },
        cancel: () => {
          this.cancelled = true;
          this.#bell.ring();
        },
      },
      { highWaterMark: 0 },
    );
    const withBody = ![101, 204, 205, 304].includes(status);
    const fields = { 'content-type': 'text/event-stream', ...headers };
    this.#resolve(new Response(withBody ? body : null, { status, headers: fields }));
    return this;
  }

  /** Answers with one text, whole. */
  answer(status: number, headers: Record<string, string>, text: string): void {
    this.respond(status, headers).write(text).end();
  }

  write(bytes: Uint8Array | string): this {
    this.#body?.enqueue(Buffer.from(bytes as string));
    return this;
  }

  end(): void {
    this.#body?.close();
  }

  /** The connection breaks. */
  break(error: unknown = new TypeError('terminated')): void {
    this.#body?.error(error);
  }

  /** There is no answer at all. */
  fail(error: unknown): void {
    this.#reject(error);
    try {
      this.#body?.error(error);
    } catch {}
  }
}

export interface Script {
  readonly fetch: (input: string | URL, init?: RequestInit) => Promise<Response>;
  readonly calls: readonly ScriptedCall[];
  /** The next call that no test has taken. */
  next(what: string): Promise<ScriptedCall>;
  /** Waits until something about a call holds. */
  until(what: string, holds: () => boolean): Promise<void>;
}

export function scriptFetch(): Script {
  const calls: ScriptedCall[] = [];
  const changed = bell();
  let taken = 0;
  return {
    calls,
    fetch(input, init) {
      const call = new ScriptedCall(changed, input, init);
      calls.push(call);
      changed.ring();
      return call.answered;
    },
    async next(what) {
      const at = taken++;
      return changed.until(what, () => calls[at]);
    },
    until: async (what, holds) => void (await changed.until(what, () => holds() || undefined)),
  };
}
