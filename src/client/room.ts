/** What every exchange of one guarded `fetch` shares: the ledger, the clock, the names, the limits. */
import type { Unrecorded } from '../core/decide.ts';
import { eventKeyOfField } from '../core/event-key.ts';
import { type Fields, firstValue } from '../core/fields.ts';
import type { Session } from '../core/ledger.ts';
import type { ResolveOptions } from '../core/resolve.ts';
import type { RequestTokens } from '../core/resume-request.ts';
import type { Credential, Millis } from '../core/terms.ts';
import type { StartTimer } from '../core/watch.ts';
import { type ClientBounds, SessionMemory } from './sessions.ts';

export interface ClientRoom {
  readonly store: SessionMemory;
  readonly tokens: RequestTokens & { mint(): string };
  /** Listening streams that were asked for and not answered yet. */
  readonly asked: Asked;
  readonly bounds: ClientBounds;
  readonly replayHold: Millis;
  readonly replayDeadline: Millis;
  readonly maxHeldBytes: number;
  readonly dedupe: boolean;
  readonly now: () => Millis;
  readonly startTimer: StartTimer;
  /** What delivery is judged by, now. */
  readonly judging: () => ResolveOptions;
}

/** All but the functions has a default (behaviour.md sections 4, 5 and 12). */
export interface RoomOptions {
  readonly unrecorded: Unrecorded;
  readonly replayHold: Millis;
  readonly replayDeadline: Millis;
  readonly proofMemory: Millis;
  readonly maxHeldBytes: number;
  readonly maxSessions: number;
  readonly dedupe: boolean;
  readonly now: () => Millis;
}

const MINUTE: Millis = 60_000;

export function createRoom(options: RoomOptions): ClientRoom {
  const { unrecorded, replayHold, replayDeadline, proofMemory, maxHeldBytes, maxSessions, dedupe, now } = options;
  const bounds: ClientBounds = {
    sessions: maxSessions,
    memory: 16 * 1_048_576,
    sessionMemory: 10 * MINUTE,
    streamsPerSession: 1_000,
    eventIdsPerStream: 1_000,
    finishedStreamMemory: 10 * MINUTE,
    openStreamMemory: 60 * MINUTE,
  };
  return {
    store: new SessionMemory(bounds),
    tokens: createTokens(),
    asked: new Asked(),
    bounds,
    replayHold,
    replayDeadline,
    maxHeldBytes,
    dedupe,
    now,
    startTimer,
    judging: () => ({ unrecorded, deliveryProof: 'connection', proofMemory, now: now(), kernelOf: handedOver }),
  };
}

/**
 * A client that has asked for a listening stream listens, as far as a finished cursor is concerned: taken off, it would
 * make a second one.
 */
export class Asked {
  readonly #counts = new WeakMap<Session, number>();

  /** Returns what to call when the answer is there, or none will come. Only the first call counts. */
  begin(session: Session): () => void {
    let waits = true;
    this.#counts.set(session, this.#count(session) + 1);
    return () => {
      if (waits) this.#counts.set(session, this.#count(session) - 1);
      waits = false;
    };
  }

  any(session: Session): boolean {
    return this.#count(session) > 0;
  }

  #count(session: Session): number {
    return this.#counts.get(session) ?? 0;
  }
}

/** There is no network between the guard and its reader: what was read was received. */
const handedOver: ResolveOptions['kernelOf'] = () => ({ unacknowledged: 0, peerClosed: false });

const startTimer: StartTimer = (ms, run) => {
  const timer: unknown = setTimeout(run, ms);
  // In Node.js a timer keeps the process running; what it waits for does that already, where it is worth it.
  (timer as { readonly unref?: () => void }).unref?.();
  return () => clearTimeout(timer as number);
};

const NO_CREDENTIAL = '' as Credential;

/** The names of one process: nothing of them means anything in another one. */
function createTokens(): ClientRoom['tokens'] {
  const random = crypto.getRandomValues(new Uint32Array(6));
  const seed = (random[0]! & 0x1f_ffff) * 2 ** 32 + random[1]!;
  const prefix = `mrg-${[...random.subarray(2)].map((word) => word.toString(36)).join('')}-`;
  let minted = 0;
  return {
    seed,
    credentialOf(fields: Fields): Credential {
      const presented = firstValue(fields, 'authorization') ?? firstValue(fields, 'cookie');
      return presented === null ? NO_CREDENTIAL : (String(eventKeyOfField(presented, seed)) as Credential);
    },
    mint: () => prefix + String(++minted),
    isMinted: (eventId) => eventId.trim().startsWith(prefix),
  };
}
