/**
 * Clients and their connections: what really arrived, and what was lost on the way. A client process correlates
 * answers by their JSON-RPC id, as real ones do. It knows nothing of the guard.
 */
import type { Clock } from './clock.ts';
import type { Call, WireEvent } from './server.ts';

/** Something a client reads events from, across its reconnects. */
export interface Handle {
  readonly kind: 'request' | 'listening';
  /** The last event ID received, which is what a reconnect asks to go on after. */
  cursor: string | null;
  /** All of them. */
  readonly seen: string[];
}

/** Bytes under way: an event, or the end of a response. */
interface Parcel {
  readonly event: Pick<WireEvent, 'id' | 'uid' | 'answers'> | null;
  readonly handle: Handle;
  /** The kernel has taken it. */
  readonly flushed: () => void;
}

/**
 * One connection between a client and the guard. The first four fields are what the guard has noticed so far; the rest
 * is the truth.
 */
export class Link {
  failed = false;
  closed: 'client' | 'us' | null = null;
  closedAt: number | null = null;
  requestedAt: number;

  readonly process: Process;
  /** The client has nothing more to do with it. */
  dead = false;
  /** Nothing gets through, and nobody knows yet. */
  stuck = false;
  /** The guard's writes wait: the client does not read. */
  blocked = false;
  /** A response is under way on it, until the client has seen its end. */
  busy = false;
  readonly #clock: Clock;
  readonly #latency: number;
  #queue: Parcel[] = [];
  #wire: Parcel[] = [];

  constructor(process: Process, clock: Clock, latency: number) {
    this.process = process;
    this.#clock = clock;
    this.#latency = latency;
    this.requestedAt = clock.now;
  }

  /** What the kernel of the guard's host says, which is no lie. */
  get kernel(): { unacknowledged: number; peerClosed: boolean } | 'absent' {
    if (this.closed !== null && (this.failed || this.#clock.now - this.closedAt! >= 60_000)) return 'absent';
    return { unacknowledged: this.#wire.length, peerClosed: this.dead };
  }

  /** A result for `handle` is written but not there yet. */
  carries(uid: number): boolean {
    return [...this.#wire, ...this.#queue].some(({ event }) => event?.uid === uid);
  }

  request(): void {
    this.requestedAt = this.#clock.now;
    this.busy = true;
  }

  write(parcel: Parcel): void {
    if (this.closed !== null) return;
    this.#queue.push(parcel);
    this.flush();
  }

  /** The kernel takes what waits, unless it is full. */
  flush(): void {
    while (!this.blocked && this.#queue.length > 0) {
      const parcel = this.#queue.shift()!;
      this.#wire.push(parcel);
      parcel.flushed();
      if (this.#latency === 0) this.#arrive();
      else this.#clock.in(this.#latency, () => this.#arrive());
    }
  }

  /** Everything under way arrives, as after a retransmission. */
  settle(): void {
    while (this.#wire.length > 0 && !this.stuck && !this.dead) this.#arrive();
  }

  /** The client lets go: what has not arrived never will. */
  abandon(): void {
    this.dead = true;
    this.busy = false;
    // Its side took the bytes without reading them.
    if (!this.stuck) this.#wire = [];
  }

  #arrive(): void {
    if (this.stuck || this.dead) return;
    const parcel = this.#wire.shift();
    if (parcel === undefined) return;
    if (parcel.event === null) this.busy = false;
    else this.process.receive(parcel.handle, parcel.event);
  }
}

/** A client process with one session. */
export class Process {
  readonly name: string;
  readonly sessionId: string;
  token: string;
  /** Whether its requests come through another intermediary. */
  readonly forwarded: boolean;
  readonly userAgent: string;
  readonly versioned: boolean;
  readonly anonymous: boolean;
  alive = true;
  /** Calls that wait for an answer, by their JSON-RPC id. */
  readonly pending: Map<string, Call>;
  /** Events that arrived. */
  readonly received: Set<number>;
  readonly handles: Handle[];
  readonly links: Link[] = [];
  readonly minted: string[] = [];

  constructor(from: Partial<Process> & Pick<Process, 'name' | 'sessionId' | 'token'>) {
    this.name = from.name;
    this.sessionId = from.sessionId;
    this.token = from.token;
    this.forwarded = from.forwarded ?? false;
    this.userAgent = from.userAgent ?? '';
    this.versioned = from.versioned ?? true;
    this.anonymous = from.anonymous ?? false;
    this.pending = new Map(from.pending);
    this.received = new Set(from.received);
    this.handles = (from.handles ?? []).map((handle) => ({ ...handle, seen: [...handle.seen] }));
  }

  receive(handle: Handle, event: NonNullable<Parcel['event']>): void {
    this.received.add(event.uid);
    for (const { key } of event.answers) this.pending.delete(key);
    if (event.id === null) return;
    handle.cursor = event.id;
    handle.seen.push(event.id);
  }

  /** It waits for the answer to this very call. */
  wants(call: Call): boolean {
    return this.alive && this.pending.get(call.key) === call;
  }
}
