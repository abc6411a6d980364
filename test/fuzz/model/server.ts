/**
 * An upstream server that is legal, but as odd as servers come: it may prime every stream with one ID, restart its
 * counters, stamp all results with one ID, replay too much, too little or nothing, answer on the listening stream.
 * This is the truth about what a cursor still buys. It knows nothing of the guard.
 */

/** A JSON-RPC request of a client. `key` is its id, which may come again; `uid` never does. */
export interface Call {
  readonly uid: number;
  readonly key: string;
}

/** One block of an event stream, as the server made it. */
export interface WireEvent {
  readonly uid: number;
  readonly id: string | null;
  readonly length: number;
  readonly retry: boolean;
  readonly hasData: boolean;
  /** The calls that it answers. */
  readonly answers: readonly Call[];
  /** The server can no longer replay it. */
  gone: boolean;
}

/** What the server sends one exchange into. */
export interface Pipe {
  readonly open: boolean;
  send(event: WireEvent, stream: ServerStream): void;
  end(): void;
  cut(): void;
}

export interface Style {
  readonly ids: 'unique' | 'per-stream' | 'shared-priming' | 'one-result-id';
  readonly primes: boolean;
  /** Listening streams as well. */
  readonly primesListening: boolean;
  /** Priming events carry a `retry`: the server announces that it is to be polled. */
  readonly retries: boolean;
  readonly bareResults: boolean;
  readonly bareNotes: boolean;
  /** Which streams a cursor means, where several carried it. */
  readonly resolves: 'newest' | 'oldest' | 'quiet' | 'all';
  readonly replays: 'after' | 'inclusive' | 'from-start';
  /** Every resumed exchange gets a priming event of its own at the end of the replay. */
  readonly primesAgain: boolean;
  readonly keeps: 'all' | 'until-sent' | 'nothing';
  /** Finds a cursor's stream even where the events are gone. */
  readonly knowsStream: boolean;
  /** The answer to a cursor it cannot find. */
  readonly unknown: 'empty' | 'hang' | 'not-found' | 'text' | 'cut' | 'no-head';
  /** What a resume with nothing to replay gets. */
  readonly quiet: 'stay' | 'end' | 'end-later' | 'cut';
  readonly listens: 'yes' | 'never' | 'one' | 'latest';
  /** What a second exchange of one stream means for the first. */
  readonly seconds: 'replace' | 'beside' | 'refuse';
}

export class ServerStream {
  readonly kind: 'request' | 'listening';
  readonly ordinal: number;
  /** Which incarnation of the session it belongs to. */
  readonly era: number;
  readonly log: WireEvent[] = [];
  /** The calls that its POST made; those of them that wait for an answer. */
  readonly posted: readonly Call[];
  readonly calls: Set<Call>;
  readonly pipes: Pipe[] = [];
  /** Nothing more will come. */
  over = false;
  /** Its POST could be read on the way. */
  readable = true;
  counter = 0;

  constructor(kind: ServerStream['kind'], ordinal: number, era: number, posted: readonly Call[]) {
    this.kind = kind;
    this.ordinal = ordinal;
    this.era = era;
    this.posted = posted;
    this.calls = new Set(posted);
  }

  /** The first place of this ID in everything the stream ever carried, or -1. */
  indexOf(id: string): number {
    return this.log.findIndex((event) => event.id === id);
  }
}

export interface ServerSession {
  readonly id: string;
  /** What the server remembers; a restart may empty it. */
  streams: ServerStream[];
  /** Everything there ever was, for whoever wants to know the truth. */
  readonly ever: ServerStream[];
  alive: boolean;
  initialized: boolean;
  era: number;
}

/** A stream that a cursor leads to: what comes `from` there on is replayed, what comes after `after` is news. */
interface Part {
  readonly stream: ServerStream;
  readonly from: number;
  readonly after: number;
}

const PRIMING = 20;
const NOTE = 40;
const RESULT = 60;

export class Server {
  /** How it behaves; another replica may behave differently. */
  style: Style;
  readonly sessions = new Map<string, ServerSession>();
  readonly #later: (after: number, run: () => void) => void;
  up = true;
  #events = 0;
  #ids = 0;

  constructor(style: Style, later: (after: number, run: () => void) => void) {
    this.style = style;
    this.#later = later;
  }

  session(id: string): ServerSession {
    const known = this.sessions.get(id);
    if (known !== undefined) return known;
    const session: ServerSession = { id, streams: [], ever: [], alive: true, initialized: false, era: 0 };
    this.sessions.set(id, session);
    return session;
  }

  open(session: ServerSession, kind: ServerStream['kind'], calls: readonly Call[]): ServerStream {
    const stream = new ServerStream(kind, session.ever.length, session.era, calls);
    session.streams.push(stream);
    session.ever.push(stream);
    return stream;
  }

  /** The stream that carries what belongs to no request. */
  listening(session: ServerSession): ServerStream | null {
    return session.streams.findLast(({ kind, over }) => kind === 'listening' && !over) ?? null;
  }

  emit(stream: ServerStream, kind: 'priming' | 'note' | 'result', answers: readonly Call[] = []): WireEvent {
    const bare = kind === 'result' ? this.style.bareResults : kind === 'note' && this.style.bareNotes;
    const uid = this.#events++;
    const event: WireEvent = {
      uid,
      id: bare ? null : this.#idFor(stream, kind),
      // Mostly the same, so that blocks are easily taken for one another.
      length: (kind === 'priming' ? PRIMING : kind === 'note' ? NOTE : RESULT) + (uid % 4 === 0 ? 1 : 0),
      retry: kind === 'priming' && this.style.retries,
      hasData: kind !== 'priming',
      answers,
      gone: this.style.keeps === 'nothing',
    };
    stream.log.push(event);
    // Only the latest exchange of a stream is written to.
    const pipe = stream.pipes.findLast(({ open }) => open);
    if (pipe !== undefined) this.#send(pipe, event, stream);
    return event;
  }

  /** Answers calls of `owner` in one event, on `stream`. */
  answer(owner: ServerStream, calls: readonly Call[], stream: ServerStream): void {
    if (calls.length === 0) return;
    for (const call of calls) owner.calls.delete(call);
    this.emit(stream, 'result', calls);
  }

  /** Ends what is open of a stream; with nothing left to answer, for good. */
  end(stream: ServerStream): void {
    if (stream.calls.size === 0 && stream.kind === 'request') stream.over = true;
    for (const pipe of stream.pipes.splice(0)) pipe.end();
  }

  /** A GET without a cursor. Returns a status other than 200, or the stream. */
  listen(session: ServerSession): ServerStream | number {
    const current = this.listening(session);
    const open = current?.pipes.some((pipe) => pipe.open) ?? false;
    if (this.style.listens === 'never') return 405;
    if (this.style.listens === 'one' && open) return 409;
    if (this.style.listens === 'latest' && current !== null) this.end(current);
    return this.open(session, 'listening', []);
  }

  /** Where a cursor leads now; empty where it cannot be found. */
  find(session: ServerSession, cursor: string): readonly Part[] {
    const parts: Part[] = [];
    for (const stream of session.streams) {
      const after = stream.indexOf(cursor);
      if (after === -1 || !(this.style.knowsStream || stream.log.some(({ id, gone }) => id === cursor && !gone)))
        continue;
      const from = this.style.replays === 'from-start' ? 0 : this.style.replays === 'inclusive' ? after : after + 1;
      parts.push({ stream, from, after });
    }
    if (this.style.resolves === 'all' || parts.length === 0) return parts;
    if (this.style.resolves === 'oldest') return parts.slice(0, 1);
    const quiet = ({ stream }: Part): boolean => !stream.pipes.some((pipe) => pipe.open);
    const part = this.style.resolves === 'quiet' ? parts.find(quiet) : undefined;
    return [part ?? parts.at(-1)!];
  }

  /** The calls whose answers a client could get for this cursor, now or once they are there. */
  obtainable(session: ServerSession, cursor: string): { call: Call; stream: ServerStream }[] {
    const found: { call: Call; stream: ServerStream }[] = [];
    if (!session.alive) return found;
    for (const { stream, after } of this.find(session, cursor)) {
      for (const { answers, gone } of stream.log.slice(after + 1)) {
        if (!gone) for (const call of answers) found.push({ call, stream });
      }
      for (const call of stream.calls) found.push({ call, stream });
    }
    return found;
  }

  /** Replays after a cursor into an exchange whose head is out, and goes on with what is still alive. */
  resume(session: ServerSession, parts: readonly Part[], pipe: Pipe): void {
    let sent = 0;
    let attached = 0;
    for (const { stream, from } of parts) {
      const others = stream.pipes.some((other) => other.open);
      if (others && this.style.seconds === 'refuse') continue;
      if (this.style.seconds === 'replace') for (const other of stream.pipes.splice(0)) other.end();
      for (const event of stream.log.slice(from)) {
        if (event.gone || !pipe.open) continue;
        this.#send(pipe, event, stream);
        sent += 1;
      }
      if (stream.over) continue;
      stream.pipes.push(pipe);
      attached += 1;
      if (this.style.primesAgain) {
        this.emit(stream, 'priming');
        sent += 1;
      }
    }
    if (!pipe.open) return;
    const { quiet } = this.style;
    if (sent === 0 && quiet === 'cut') this.#leave(session, pipe, () => pipe.cut());
    else if (sent === 0 && quiet === 'end') this.#leave(session, pipe, () => pipe.end());
    else if (sent === 0 && quiet === 'end-later') {
      this.#later(2_500, () => {
        if (pipe.open) this.#leave(session, pipe, () => pipe.end());
      });
    } else if (attached === 0 && (sent > 0 || quiet !== 'stay')) pipe.end();
  }

  /** A new process: what it does not keep is lost, and its counters may start anew. */
  restart(keeps: { readonly sessions: boolean; readonly streams: boolean; readonly counters: boolean }): void {
    // Whoever still knows the streams goes on counting.
    if (!keeps.counters && !keeps.streams) this.#ids = 0;
    for (const session of this.sessions.values()) {
      if (!keeps.sessions) session.alive = false;
      if (!keeps.streams) session.streams = [];
    }
  }

  #send(pipe: Pipe, event: WireEvent, stream: ServerStream): void {
    if (this.style.keeps === 'until-sent') event.gone = true;
    pipe.send(event, stream);
  }

  #leave(session: ServerSession, pipe: Pipe, how: () => void): void {
    for (const { pipes } of session.streams) if (pipes.includes(pipe)) pipes.splice(pipes.indexOf(pipe), 1);
    how();
  }

  #idFor(stream: ServerStream, kind: 'priming' | 'note' | 'result'): string {
    const { ids } = this.style;
    if (ids === 'per-stream') return String(stream.counter++);
    if (ids === 'shared-priming' && kind === 'priming') return '0';
    if (ids === 'one-result-id' && kind === 'result') return 'r';
    return `e${this.#ids++}`;
  }
}
