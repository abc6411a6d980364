/**
 * May this cursor be replayed in this session? For servers that keep their own event store: a session has a generation,
 * a generation has a window `[replayFloor, highWaterMark]` of what it can still replay after, and a cursor outside of
 * it, or of another generation, is refused in words instead of being answered with silence.
 *
 *      evicted events │ replayFloor ......... highWaterMark │ not written yet
 *          409        │          replay                     │       409
 */

/** Why a cursor is refused. */
export type ResumptionRefusal =
  | 'unknown-session'
  | 'evicted-session'
  | 'superseded'
  | 'generation-differs'
  | 'below-floor'
  | 'above-mark';

const STATUS: Readonly<Record<ResumptionRefusal, 404 | 409>> = {
  'unknown-session': 404,
  'evicted-session': 404,
  superseded: 409,
  'generation-differs': 409,
  'below-floor': 409,
  'above-mark': 409,
};

const MESSAGE: Readonly<Record<ResumptionRefusal, string>> = {
  'unknown-session': 'the session is not known',
  'evicted-session': 'the session was evicted',
  superseded: 'the generation was superseded',
  'generation-differs': 'the cursor is of a generation that this session never had',
  'below-floor': 'the events after the cursor are no longer stored',
  'above-mark': 'the cursor is of an event that was never written',
};

/** A cursor that must not be replayed, with the status to answer it with. */
export class ResumptionTokenError extends Error {
  override readonly name = 'ResumptionTokenError';
  readonly reason: ResumptionRefusal;
  /** 404 where the client has to start a new session, 409 where the cursor is void. */
  readonly status: 404 | 409;

  constructor(reason: ResumptionRefusal) {
    super(MESSAGE[reason]);
    this.reason = reason;
    this.status = STATUS[reason];
  }
}

/** The state of one session. Event numbers are the server's own count within a generation. */
export interface SessionWindow {
  readonly generation: number;
  /** The lowest number a client may have seen last and still get everything after it. */
  readonly replayFloor: number;
  /** The highest number written. */
  readonly highWaterMark: number;
}

export interface ReplayAuthorizerOptions {
  /** Sessions remembered at most, evicted ones included; the least recently used is forgotten first. Default 10,000. */
  readonly maxSessions?: number;
}

interface Remembered {
  generation: number;
  replayFloor: number;
  highWaterMark: number;
  state: 'live' | 'superseded' | 'evicted';
}

export class ReplayAuthorizer {
  readonly #maxSessions: number;
  readonly #sessions = new Map<string, Remembered>();

  /** @throws {RangeError} where `maxSessions` is not a positive integer. */
  constructor({ maxSessions = 10_000 }: ReplayAuthorizerOptions = {}) {
    if (!Number.isSafeInteger(maxSessions) || maxSessions < 1) {
      throw new RangeError(`maxSessions must be a positive integer, not ${maxSessions}`);
    }
    this.#maxSessions = maxSessions;
  }

  /**
   * Opens the session, or, where it is known, a new generation of it: everything minted before is superseded.
   *
   * @returns the generation, from 1.
   */
  open(session: string): number {
    const generation = (this.#sessions.get(session)?.generation ?? 0) + 1;
    this.#sessions.delete(session);
    this.#sessions.set(session, { generation, replayFloor: 0, highWaterMark: 0, state: 'live' });
    if (this.#sessions.size > this.#maxSessions) this.#sessions.delete(this.#sessions.keys().next().value!);
    return generation;
  }

  /**
   * An event was written in the current generation.
   *
   * @param eventId - its number, where the server counts for itself. Default: the next one.
   * @returns its number, from 1.
   * @throws {ResumptionTokenError} where the session is not live.
   * @throws {RangeError} for a number that is no safe integer above the mark.
   */
  record(session: string, eventId?: number): number {
    const live = this.#live(session);
    const number = eventId ?? live.highWaterMark + 1;
    if (!Number.isSafeInteger(number) || number <= live.highWaterMark) {
      throw new RangeError(`event ${number} does not come after event ${live.highWaterMark}`);
    }
    live.highWaterMark = number;
    return number;
  }

  /**
   * Events up to and including this number are no longer stored, so nothing before it can be continued.
   *
   * @throws {ResumptionTokenError} where the session is not live.
   * @throws {RangeError} beyond what was written.
   */
  dropThrough(session: string, eventId: number): void {
    const live = this.#live(session);
    if (!Number.isSafeInteger(eventId) || eventId > live.highWaterMark) {
      throw new RangeError(`event ${eventId} was never written in this session`);
    }
    live.replayFloor = Math.max(live.replayFloor, eventId);
  }

  /** The session is over; its ID stays known, so that its cursors are refused as what they are. */
  evict(session: string): void {
    const known = this.#sessions.get(session);
    if (known !== undefined) known.state = 'evicted';
  }

  /** Everything minted so far is void, and no new generation is open yet. `open` begins one. */
  supersede(session: string): void {
    const known = this.#sessions.get(session);
    if (known?.state === 'live') known.state = 'superseded';
  }

  /** Forgets the session altogether. */
  forget(session: string): void {
    this.#sessions.delete(session);
  }

  /** @returns the session's window, or null where it is not live. */
  window(session: string): SessionWindow | null {
    const known = this.#sessions.get(session);
    if (known?.state !== 'live') return null;
    const { generation, replayFloor, highWaterMark } = known;
    return { generation, replayFloor, highWaterMark };
  }

  /**
   * Accepts exactly when the session is live, the generation is its current one, and
   * `replayFloor <= eventId <= highWaterMark`.
   *
   * @throws {ResumptionTokenError} otherwise.
   */
  authorizeReplay(session: string, generation: number, eventId: number): void {
    const live = this.#live(session);
    if (generation !== live.generation) {
      const earlier = Number.isSafeInteger(generation) && generation >= 1 && generation < live.generation;
      throw new ResumptionTokenError(earlier ? 'superseded' : 'generation-differs');
    }
    if (!(eventId >= live.replayFloor)) throw new ResumptionTokenError('below-floor');
    if (!(eventId <= live.highWaterMark)) throw new ResumptionTokenError('above-mark');
  }

  #live(session: string): Remembered {
    const known = this.#sessions.get(session);
    if (known === undefined) throw new ResumptionTokenError('unknown-session');
    if (known.state === 'evicted') throw new ResumptionTokenError('evicted-session');
    if (known.state === 'superseded') throw new ResumptionTokenError('superseded');
    // The order of the map is the order of use.
    this.#sessions.delete(session);
    this.#sessions.set(session, known);
    return known;
  }
}
