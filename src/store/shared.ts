/**
 * The store of several replicas. The ledger of this process is always the first stop: whatever passes is recorded there
 * at once, and told to the others in batches, off the path of the bytes; a resume asks what they know and merges it.
 *
 *     recordEvent ─> record (changed) ··· flush, every 100 ms ──> one HSET per changed session, pipelined ──> shelf
 *     resume ─────────────── consult ──────────── one HGETALL, at most 50 ms ─────────────────────────────> merge, decide
 *
 * Nothing waits in a queue. What has to be told is read off the record when it is told, one batch is on its way at a
 * time, and after a failure the record is told anew. What the record itself had to drop by then is lost, and counted.
 *
 * Every process beats once a second. One that falls silent is dead, or cut off: its open streams end for the others,
 * and for `sessionMemory` nobody claims to know everything.
 */
import { createHmac } from 'node:crypto';
import type { Session, UpstreamIdentity } from '../core/ledger.ts';
import { type Moment, Replica, type ReplicaOptions } from '../core/replica.ts';
import type { Millis } from '../core/terms.ts';
import { decodeViews, type View, type Wall } from '../core/view.ts';
import { MemoryStore } from './memory.ts';
import type { Consulted, Joining, MemoryBounds, SessionKey, SessionStore, StoreCounts } from './store.ts';

/** Where the fields of sessions stand for everybody. Every call may fail, late or never come back. */
export interface Shelf {
  read(key: string): Promise<Readonly<Record<string, string>>>;
  /** One result for each write, in their order: how many fields were new, or the error. */
  write(writes: readonly Write[]): Promise<readonly (number | Error)[]>;
  /** It has not answered for long: whatever it waits for, begin anew. */
  reopen(): void;
}

export interface Write {
  readonly key: string;
  readonly set: readonly (readonly [field: string, value: string])[];
  readonly remove: readonly string[];
  /** From now on the key lives this long; null to leave that as it is. */
  readonly expire: Millis | null;
}

export interface SharedOptions {
  readonly bounds: MemoryBounds;
  readonly proofMemory: Millis;
  readonly shelf: Shelf;
  /** The same for all replicas; session keys are hashed with it. */
  readonly secret: string;
  /** The calendar in ms. */
  readonly wall: () => number;
  readonly now: () => Millis;
  readonly newId: () => string;
  /** Instead of {@link LOOKUP_DEADLINE}. */
  readonly lookupDeadline?: Millis;
  readonly proven: ReplicaOptions['proven'];
  /** Something failed, or works again. */
  readonly health: StoreHealth;
}

export interface StoreHealth {
  failed(error: Error): void;
  recovered(): void;
  /** Events or sessions that could not be told before they had to be dropped here. */
  dropped(count: number): void;
}

export const FLUSH_EVERY: Millis = 100;
export const BEAT_EVERY: Millis = 1_000;
/** A lookup that takes longer is none. */
export const LOOKUP_DEADLINE: Millis = 50;
/** A batch that takes longer has failed, whatever becomes of it. */
const FLUSH_DEADLINE: Millis = 2_000;
/** A replica that has not been heard of for so long is dead to the others. */
const SILENCE: Millis = 3_000;
/** So many beats that failed in a row, and the connection is made anew. */
const REOPEN_AFTER = 5;
const BEATS_LIFETIME: Millis = 3_600_000;
/** The most sessions in one batch. */
const BATCH = 1_000;
/** The most characters in one batch, more or less: what is put together at once keeps bytes waiting. */
const BATCH_SIZE = 262_144;
/** The clocks may drift apart by so much before the difference is taken anew. */
const DRIFT = 50;
const VERSION = 1;

interface Entry {
  readonly name: string;
  readonly replica: Replica;
  /** When its key will expire, and when that was last put off. */
  lifetime: Millis;
  renewedAt: Millis;
}

interface Peer {
  beat: string;
  heardAt: Millis;
  gaps: boolean;
}

export class SharedStore implements SessionStore {
  readonly #options: SharedOptions;
  readonly #memory: MemoryStore;
  readonly #entries = new Map<SessionKey, Entry>();
  readonly #peers = new Map<string, Peer>();
  readonly #name: string;
  readonly #beatsKey = `mrg:${VERSION}:{replicas}`;
  #beats = 0;
  /** Sessions in the batch that has no answer yet. */
  #underWay = 0;
  #lastBeat: string | null = null;
  #flushing: Promise<void> | null = null;
  #beating = false;
  /** What the last beat found. While it cannot be read nobody asks, while it cannot be written nobody tells. */
  #readable = true;
  #writable = true;
  #failures = 0;
  #shift: Millis;
  /** Until then something may be missing that passed at some replica. */
  #gapsUntil: Millis = Number.NEGATIVE_INFINITY;
  #ownGapsUntil: Millis = Number.NEGATIVE_INFINITY;

  constructor(options: SharedOptions) {
    this.#options = options;
    this.#name = options.newId();
    this.#shift = Math.round(options.wall() - options.now());
    this.#memory = new MemoryStore(options.bounds, (key, session) => this.#gone(key, session));
  }

  get counts(): StoreCounts {
    return this.#memory.counts;
  }

  recall(key: SessionKey, now: Millis): Session | null {
    return this.#memory.recall(key, now);
  }

  learn(key: SessionKey, how: { anonymous: boolean; upstream: UpstreamIdentity }, now: Millis): Session {
    const session = this.#memory.learn(key, how, now);
    this.#entryOf(key, session);
    return session;
  }

  sweep(now: Millis): void {
    this.#memory.sweep(now);
  }

  entries(): Iterable<readonly [SessionKey, Session]> {
    return this.#memory.entries();
  }

  async consult(key: SessionKey, how: Joining): Promise<Consulted> {
    const { now, shelf, health, lookupDeadline = LOOKUP_DEADLINE } = this.#options;
    if (!this.#readable) return 'failed';
    try {
      const fields = await within(lookupDeadline, shelf.read(this.#nameOf(key)));
      const known = this.#memory.recall(key, now());
      const views = decodeViews(fields, known === null ? undefined : this.#entryOf(key, known).replica.options.view);
      if (views.length > 0) {
        const session = known ?? this.learn(key, { anonymous: how.anonymous, upstream: await how.upstream() }, now());
        const { replica } = this.#entryOf(key, session);
        replica.absorb(views, (name) => this.#isAlive(name), this.#moment());
        this.#clearAway(key, fields, views);
      }
    } catch (error) {
      health.failed(error as Error);
      return 'failed';
    }
    return this.#hasGaps() ? 'gaps' : 'whole';
  }

  /** Sessions of which others do not know everything yet. */
  get pending(): number {
    let pending = this.#underWay;
    for (const { replica } of this.#entries.values()) pending += Number(replica.session.changed);
    return pending;
  }

  settled(): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, FLUSH_EVERY + LOOKUP_DEADLINE));
  }

  /** Tells what has changed. One batch is under way at a time; never rejects. */
  flush(): Promise<void> {
    this.#flushing ??= this.#flush().finally(() => {
      this.#flushing = null;
    });
    return this.#flushing;
  }

  /** Tells that this process lives, hears who else does, and looks again at what only time changes. Never rejects. */
  async beat(): Promise<void> {
    if (this.#beating) return;
    this.#beating = true;
    const moment = this.#moment();
    for (const { replica } of this.#entries.values()) replica.review(moment);
    const error = await this.#beat().then(
      () => null,
      (reason: Error) => reason,
    );
    this.#beating = false;
    if (error === null) {
      this.#failures = 0;
      this.#options.health.recovered();
      return;
    }
    this.#failures += 1;
    this.#options.health.failed(error);
    if (this.#failures % REOPEN_AFTER === 0) this.#options.shelf.reopen();
  }

  async #beat(): Promise<void> {
    const { shelf, now } = this.#options;
    const beats = await within(FLUSH_DEADLINE, shelf.read(this.#beatsKey)).catch((error: Error) => error);
    this.#readable = !(beats instanceof Error);
    if (beats instanceof Error) throw beats;
    this.#hear(beats);
    this.#beats += 1;
    this.#lastBeat = `${this.#beats}${now() < this.#ownGapsUntil ? ':gaps' : ''}`;
    const beat = {
      key: this.#beatsKey,
      set: [[this.#name, this.#lastBeat]] as const,
      remove: this.#silent(),
      expire: BEATS_LIFETIME,
    };
    const writes = within(FLUSH_DEADLINE, shelf.write([beat, ...this.#renewals()]));
    const failure = (await writes.catch((error: Error) => [error])).find((result) => result instanceof Error);
    this.#writable = failure === undefined;
    if (failure !== undefined) throw failure;
  }

  /** Tells everything that is still to be told, and that nobody need wait for more. */
  async close(): Promise<void> {
    await this.flush();
    await this.flush();
    const farewell = { key: this.#beatsKey, set: [], remove: [this.#name], expire: null };
    await within(FLUSH_DEADLINE, this.#options.shelf.write([farewell])).catch(() => {});
  }

  async #flush(): Promise<void> {
    const { shelf, health } = this.#options;
    if (!this.#writable) return;
    const moment = this.#moment();
    const writes: Write[] = [];
    const told: { entry: Entry; fresh: number | null }[] = [];
    let lost = 0;
    let size = 0;
    for (const [key, entry] of this.#entries) {
      if (!entry.replica.session.changed) continue;
      if (writes.length === BATCH || size > BATCH_SIZE) break;
      // The next batch begins with those that this one leaves out.
      this.#entries.delete(key);
      this.#entries.set(key, entry);
      const changes = entry.replica.changes(moment);
      lost += changes.lost;
      const expire = this.#expiryOf(entry, moment.now);
      if (changes.set.length + changes.remove.length === 0 && expire === null) continue;
      writes.push({ key: entry.name, set: changes.set, remove: changes.remove, expire });
      for (const [, value] of changes.set) size += value.length;
      told.push({ entry, fresh: changes.fresh });
    }
    if (lost > 0) this.#lose(lost);
    if (writes.length === 0) return;
    this.#underWay = writes.length;
    let results: readonly (number | Error)[];
    try {
      results = await within(FLUSH_DEADLINE, shelf.write(writes));
    } catch (error) {
      results = writes.map(() => error as Error);
    }
    this.#underWay = 0;
    let failure: Error | null = null;
    for (const [i, { entry, fresh }] of told.entries()) {
      const result = results[i] ?? new Error('no answer');
      if (result instanceof Error) failure = result;
      // More fields were new than should have been: what stood there is gone.
      else if (fresh === null || result <= fresh) continue;
      else this.#gapsUntil = moment.now + this.#options.bounds.sessionMemory;
      entry.lifetime = 0;
      entry.replica.retell();
    }
    if (failure === null) return;
    this.#writable = false;
    health.failed(failure);
  }

  #moment(): Moment {
    const { now, wall } = this.#options;
    const at = now();
    const shift = Math.round(wall() - at);
    if (Math.abs(shift - this.#shift) > DRIFT) this.#shift = shift;
    return { now: at, shift: this.#shift };
  }

  #nameOf(key: SessionKey): string {
    const route = key.slice(0, key.indexOf('\n'));
    const session = createHmac('sha256', this.#options.secret).update(`session\0${key}`, 'latin1').digest('base64url');
    return `mrg:${VERSION}:${encodeURIComponent(route)}:{${session.slice(0, 22)}}`;
  }

  #entryOf(key: SessionKey, session: Session): Entry {
    const known = this.#entries.get(key);
    if (known?.replica.session === session) return known;
    const { newId, bounds, proofMemory, proven } = this.#options;
    const replica = new Replica(session, {
      view: newId(),
      replica: this.#name,
      bounds,
      proofMemory,
      newId,
      proven,
    });
    const entry = { name: this.#nameOf(key), replica, lifetime: 0, renewedAt: 0 };
    this.#entries.set(key, entry);
    return entry;
  }

  #gone(key: SessionKey, session: Session): void {
    if (this.#entries.get(key)?.replica.session !== session) return;
    this.#entries.delete(key);
    if (session.changed && session.endedAt === null) this.#lose(1);
  }

  #lose(count: number): void {
    this.#options.health.dropped(count);
    const until = this.#options.now() + this.#options.bounds.sessionMemory;
    this.#gapsUntil = until;
    this.#ownGapsUntil = until;
  }

  #hasGaps(): boolean {
    const now = this.#options.now();
    return now < this.#gapsUntil || [...this.#peers.values()].some(({ gaps }) => gaps);
  }

  // How long keys live.

  /** How long the key shall live from now on, or null where it lives long enough. */
  #expiryOf(entry: Entry, now: Millis): Millis | null {
    const { bounds } = this.#options;
    const ended = entry.replica.session.endedAt !== null;
    const lifetime = ended ? bounds.sessionMemory : Math.max(bounds.openStreamMemory, bounds.sessionMemory);
    if (lifetime === entry.lifetime && now - entry.renewedAt < lifetime / 4) return null;
    entry.lifetime = lifetime;
    entry.renewedAt = now;
    return Math.max(1_000, Math.round(lifetime * 1.25));
  }

  /** Sessions whose streams are open and say nothing must not expire. */
  #renewals(): Write[] {
    const now = this.#options.now();
    const writes: Write[] = [];
    for (const entry of this.#entries.values()) {
      if (writes.length === BATCH) break;
      if (now - entry.renewedAt < entry.lifetime / 4 || !entry.replica.isLive) continue;
      const expire = this.#expiryOf(entry, now);
      if (expire !== null) writes.push({ key: entry.name, set: [], remove: [], expire });
    }
    return writes;
  }

  /** Views of the dead that nobody can use any more: a session that is always in use never expires with them. */
  #clearAway(key: SessionKey, fields: Readonly<Record<string, string>>, views: readonly View[]): void {
    const { now, shift } = this.#moment();
    const oldest = now + shift - 2 * this.#options.bounds.openStreamMemory;
    const useless = views.filter((view) => lastWordOf(view) < oldest && !this.#isAlive(view.session.replica));
    if (useless.length === 0) return;
    const ids = new Set(useless.map(({ id }) => id));
    const remove = Object.keys(fields).filter((field) => ids.has(field.split(':')[1] ?? ''));
    void this.#options.shelf.write([{ key: this.#nameOf(key), set: [], remove, expire: null }]).catch(() => {});
  }

  // Who else is there.

  /** Those that have fallen silent go with the next beat. */
  #isAlive(name: string): boolean {
    return this.#peers.has(name);
  }

  #hear(beats: Readonly<Record<string, string>>): void {
    const now = this.#options.now();
    for (const [name, beat] of Object.entries(beats)) {
      if (name === this.#name) continue;
      const peer = this.#peers.get(name);
      if (peer?.beat === beat) continue;
      this.#peers.set(name, { beat, heardAt: now, gaps: beat.endsWith(':gaps') });
    }
    for (const name of this.#peers.keys()) if (beats[name] === undefined) this.#peers.delete(name);
    if (this.#lastBeat === null || beats[this.#name] === this.#lastBeat) return;
    // The shelf is not the one that was written to: it was emptied, or an older copy has taken over.
    this.#gapsUntil = now + this.#options.bounds.sessionMemory;
    for (const { replica } of this.#entries.values()) replica.retell();
  }

  /** Those that nobody hears any more. What they had still to tell is lost. */
  #silent(): string[] {
    const now = this.#options.now();
    const dead = [...this.#peers].filter(([, { heardAt }]) => now - heardAt >= SILENCE).map(([name]) => name);
    for (const name of dead) this.#peers.delete(name);
    if (dead.length > 0) this.#gapsUntil = now + this.#options.bounds.sessionMemory;
    return dead;
  }
}

function lastWordOf({ session, streams }: View): Wall {
  const told = [...streams.values()].map(({ facts }) => facts.at);
  return Math.max(session.acceptedAt ?? 0, session.begunAt ?? 0, session.endedAt ?? 0, ...told);
}

/** Rejects after `ms`; what the promise comes to then is nobody's business. */
function within<T>(ms: Millis, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no answer within ${ms} ms`)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
