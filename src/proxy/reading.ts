/**
 * Reading one event stream as it passes: the tap with the ledger behind it, and, on a resumed exchange, the filter that
 * takes repeated blocks out.
 */
import type { Messages, ResponseHead } from '../core/jsonrpc.ts';
import type { Leg, Session } from '../core/ledger.ts';
import type { Owner, ResolveOptions } from '../core/resolve.ts';
import type { Block } from '../core/sse-scanner.ts';
import { DuplicateFilter } from './duplicates.ts';
import { resolveOptions } from './resume.ts';
import type { RouteRoom } from './room.ts';
import { Tap, type TapListener } from './tap.ts';

export interface ReadingOptions {
  readonly room: RouteRoom;
  readonly session: Session;
  readonly leg: Leg;
  /** The owner that a watched exchange continues; duplicates are looked for after its cursor. */
  readonly target: Owner | null;
  /** What the kernel said when the resume was decided. */
  readonly kernelOf: ResolveOptions['kernelOf'];
  /** Of the response; empty for none. */
  readonly encoding: string;
  readonly listener: ReadingListener;
}

export interface ReadingListener {
  /** Answers are about to be recorded. */
  answering(answers: readonly ResponseHead[]): void;
  /** Something was read outside `push`: the stream is encoded, and decoding takes its time. */
  decoded(): void;
  /** Decoding has fallen behind, or has caught up. */
  behind(is: boolean): void;
}

export class Reading implements TapListener {
  readonly leg: Leg;
  readonly #options: ReadingOptions;
  readonly #tap: Tap;
  readonly #filter: DuplicateFilter | null;
  #pushing = false;
  #sawEvent = false;
  #sawAnswer = false;
  /** Not counted yet: one count a chunk is enough. */
  #events = 0;
  /** Terminal events so far. */
  answers = 0;

  constructor(options: ReadingOptions) {
    const { room, session, leg, target, encoding } = options;
    this.#options = options;
    this.leg = leg;
    this.#tap = new Tap(session, leg, encoding, room.tokens.seed, this);
    const filters = target !== null && this.#tap.isPlain && room.route.dedupe;
    this.#filter = filters ? new DuplicateFilter(room.maxHeldBytes, room.route.mode === 'enforce') : null;
  }

  /** Blocks may be taken out, so the length of the body is not what upstream said. */
  get filters(): boolean {
    return this.#filter?.drops ?? false;
  }

  /** Bytes the filter holds back until their block is whole. */
  get heldBytes(): number {
    return this.#filter?.heldBytes ?? 0;
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

  get contentPending(): boolean {
    return this.#tap.contentPending;
  }

  get isBlind(): boolean {
    return this.#tap.isBlind;
  }

  /** A comment could be written here without touching an event. */
  get betweenEvents(): boolean {
    return this.#tap.isPlain && !this.#tap.isBlind && !this.#tap.blockOpen && this.heldBytes === 0;
  }

  /** Reads a chunk and returns what of it, and of what was held, goes on. */
  push(chunk: Buffer): readonly Buffer[] {
    this.#pushing = true;
    this.#tap.push(chunk);
    this.#pushing = false;
    this.#countEvents();
    return this.#filter === null ? [chunk] : this.#filter.pass(chunk, this.#tap.terminatorPending);
  }

  /** Gives out what the filter holds. */
  release(): readonly Buffer[] {
    return this.#filter?.release() ?? [];
  }

  /** The body is over: calls back when all of it has been read. */
  finish(done: () => void): void {
    this.#tap.finish(done);
  }

  close(): void {
    this.#tap.close();
  }

  block(block: Block, answers: Messages['responses'], end: number): boolean {
    if (answers.length > 0) this.#options.listener.answering(answers);
    const filter = this.#filter;
    if (filter === null) return false;
    const duplicate = block.isEvent ? this.#judge(filter, block, answers) : null;
    filter.ended(end, duplicate, block.isEvent);
    return duplicate !== null;
  }

  recorded(events: number, answers: readonly ResponseHead[]): void {
    this.#events += events;
    this.#sawEvent = true;
    if (answers.length > 0) {
      const { observer } = this.#options.room;
      this.#sawAnswer = true;
      this.answers += answers.length;
      for (const { kind } of answers) observer.terminal(kind);
    }
    if (!this.#pushing) {
      this.#countEvents();
      this.#options.listener.decoded();
    }
  }

  #countEvents(): void {
    if (this.#events > 0) this.#options.room.observer.events(this.#events);
    this.#events = 0;
  }

  blind(cause: string): void {
    this.#options.room.observer.blind(cause);
    if (!this.#pushing) this.#options.listener.decoded();
  }

  behind(is: boolean): void {
    this.#options.listener.behind(is);
  }

  #judge(filter: DuplicateFilter, block: Block, answers: readonly ResponseHead[]): 'replayed' | 'terminal' | null {
    const { room, session, leg, target, kernelOf } = this.#options;
    const seen = { key: block.key, length: block.length, answers };
    const found = filter.find(session, leg, target!, seen, resolveOptions(room, kernelOf));
    if (found === null) return null;
    const drops = filter.canDrop(block.length);
    room.observer.duplicate(found, drops ? 'dropped' : 'passed');
    return drops ? found : null;
  }
}
