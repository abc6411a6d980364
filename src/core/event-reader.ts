/**
 * Reads one event stream on behalf of the ledger: which blocks it has, which answers are in them, and both written down.
 * It is handed plain bytes; where they come from and where they go is the caller's business.
 *
 *     bytes ──> SseScanner ──> MessageScanner ──> listener: leave it out? ──> ledger
 */
import { MessageScanner, type ResponseHead } from './jsonrpc.ts';
import { type Leg, recordEvent, type Session } from './ledger.ts';
import { type Block, type BlockSink, SseScanner } from './sse-scanner.ts';

export interface ReaderListener {
  /**
   * A block is complete; `end` is where it ends in the chunk being pushed. Returning true leaves it out of the ledger.
   * The block is valid only during the call.
   */
  block(block: Block, answers: readonly ResponseHead[], end: number): boolean;
  /** Events or answers were recorded. */
  recorded(events: number, answers: readonly ResponseHead[]): void;
}

const LINE_FEED = Uint8Array.of(0x0a);
const NO_ANSWERS: readonly ResponseHead[] = [];

/** Not in the middle of an event: whoever begins one takes it, so that thousands of quiet streams have none. */
let spare: MessageScanner | null = null;

export class EventReader implements BlockSink {
  readonly #session: Session;
  readonly #leg: Leg;
  readonly #listener: ReaderListener;
  readonly #scanner: SseScanner;
  /** While an event with data is being read. */
  #messages: MessageScanner | null = null;

  constructor(session: Session, leg: Leg, seed: number, listener: ReaderListener) {
    this.#session = session;
    this.#leg = leg;
    this.#listener = listener;
    this.#scanner = new SseScanner(this, seed);
  }

  /** Bytes of an unfinished block that may become an event. */
  get contentPending(): boolean {
    return this.#scanner.contentPending;
  }

  /** The last byte is inside a block (or a comment) that no blank line has ended yet. */
  get blockOpen(): boolean {
    return this.#scanner.blockOpen;
  }

  get terminatorPending(): boolean {
    return this.#scanner.terminatorPending;
  }

  push(chunk: Uint8Array): void {
    this.#scanner.push(chunk);
  }

  data(bytes: Uint8Array, start: number, end: number): void {
    this.#messages ??= takeScanner();
    this.#messages.push(bytes, start, end);
  }

  dataBreak(): void {
    this.data(LINE_FEED, 0, 1);
  }

  block(block: Block, end: number): void {
    let answers = NO_ANSWERS;
    const messages = this.#messages;
    if (messages !== null) {
      if (block.isMessage) answers = messages.end().responses;
      else messages.reset();
      this.#messages = null;
      spare = messages;
    }
    if (this.#listener.block(block, answers, end) || !block.isEvent) return;
    recordEvent(this.#session, this.#leg, block, answers);
    this.#listener.recorded(1, answers);
  }
}

function takeScanner(): MessageScanner {
  const scanner = spare ?? new MessageScanner('responses');
  spare = null;
  return scanner;
}
