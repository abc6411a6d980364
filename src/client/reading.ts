/**
 * Reads one event stream on its way to the consumer, and takes repeated blocks out of a resumed one. Whatever goes
 * wrong in the reading, the bytes go on.
 */
import { DuplicateFilter } from '../core/duplicates.ts';
import { EventReader, type ReaderListener } from '../core/event-reader.ts';
import type { ResponseHead } from '../core/jsonrpc.ts';
import type { Leg, Session } from '../core/ledger.ts';
import type { Owner } from '../core/resolve.ts';
import type { Block } from '../core/sse-scanner.ts';
import type { ClientRoom } from './room.ts';

export interface ReadingOptions {
  readonly room: ClientRoom;
  readonly session: Session;
  readonly leg: Leg;
  /** The owner that a watched exchange continues; duplicates are looked for after its cursor. */
  readonly target: Owner | null;
  /** Answers are about to be recorded. */
  readonly answers: (answers: readonly ResponseHead[]) => void;
}

export class Reading implements ReaderListener {
  readonly #options: ReadingOptions;
  readonly #reader: EventReader;
  readonly #filter: DuplicateFilter | null;
  #sawEvent = false;
  #sawAnswer = false;
  #blind = false;

  constructor(options: ReadingOptions) {
    const { room, session, leg, target } = options;
    this.#options = options;
    this.#reader = new EventReader(session, leg, room.tokens.seed, this);
    this.#filter = target !== null && room.dedupe ? new DuplicateFilter(room.maxHeldBytes, true) : null;
  }

  /** Blocks may be taken out, so the length of the body is not what the server said. */
  get filters(): boolean {
    return this.#filter !== null;
  }

  /** Bytes held back until their block is whole. */
  get heldBytes(): number {
    return this.#filter?.heldBytes ?? 0;
  }

  get contentPending(): boolean {
    return this.#blind || this.#reader.contentPending;
  }

  /** Nobody can tell what this stream holds. */
  get isBlind(): boolean {
    return this.#blind;
  }

  /** An event passed since the last call. */
  takeEvent(): boolean {
    const saw = this.#sawEvent;
    this.#sawEvent = false;
    return saw;
  }

  /** An answer passed since the last call. */
  takeAnswer(): boolean {
    const saw = this.#sawAnswer;
    this.#sawAnswer = false;
    return saw;
  }

  /** Reads a chunk and returns what of it, and of what was held, goes on. */
  push(chunk: Uint8Array): readonly Uint8Array[] {
    if (this.#blind) return [chunk];
    try {
      this.#reader.push(chunk);
    } catch {
      this.#blind = true;
      this.#options.session.complete = false;
      return [...this.release(), chunk];
    }
    return this.#filter === null ? [chunk] : this.#filter.pass(chunk, this.#reader.terminatorPending);
  }

  /** Gives out what is held. */
  release(): readonly Uint8Array[] {
    return this.#filter?.release() ?? [];
  }

  block(block: Block, answers: readonly ResponseHead[], end: number): boolean {
    if (answers.length > 0) this.#options.answers(answers);
    const filter = this.#filter;
    if (filter === null) return false;
    const { room, session, leg, target } = this.#options;
    const seen = { key: block.key, length: block.length, answers };
    const found = block.isEvent ? filter.find(session, leg, target!, seen, room.judging()) : null;
    const duplicate = filter.canDrop(block.length) ? found : null;
    filter.ended(end, duplicate, block.isEvent);
    return duplicate !== null;
  }

  recorded(_events: number, answers: readonly ResponseHead[]): void {
    this.#sawEvent = true;
    if (answers.length > 0) this.#sawAnswer = true;
  }
}
