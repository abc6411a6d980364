/** What the client does, step by step: twice the same, once directly and once through the guard. */
import { setTimeout as pause } from 'node:timers/promises';
import { type Answer, type Client, openSession } from './client.ts';

/** The steps, in this order. */
export const STEPS = ['last-event', 'first-event', 'forgotten', 'in-time'] as const;
export type Step = (typeof STEPS)[number];

export interface StepReport {
  readonly step: Step;
  /** One for each resume that was sent. */
  readonly answers: readonly Answer[];
  /** How many results the call had in the end. */
  readonly results: number;
}

export interface Run {
  readonly client: Client;
  readonly steps: readonly StepReport[];
  /** Results of `place_order` that the client received. */
  readonly confirmations: number;
  /** An event of a finished call that the server can still replay after. */
  readonly finishedCursor: string;
}

export interface ScriptOptions {
  /** Where the client finds the server. */
  readonly url: string;
  /** Settles when the server can no longer replay after an event: the one thing a client cannot see for itself. */
  readonly forgotten: (session: string, eventId: string) => Promise<void>;
  readonly onStep: (report: StepReport) => void;
  readonly signal: AbortSignal;
}

const RECONNECTS = 5;
const BETWEEN_RECONNECTS_MS = 420;
/** Long enough for an answer over loopback, short enough for a demo. */
const PATIENCE_MS = 250;

/** The server forgets within half a second; this is only so that nothing waits for ever. */
const FORGET_LIMIT_MS = 5_000;

/**
 * Runs the script. The session is left open, with a listening stream.
 *
 * @throws Error if the server cannot be used at all; AbortError when `signal` aborts
 */
export async function runScript(options: ScriptOptions): Promise<Run> {
  const client = await openSession(options.url, options.signal);
  try {
    return await perform(client, options);
  } catch (error) {
    client.close();
    throw error;
  }
}

async function perform(client: Client, { forgotten, onStep, signal }: ScriptOptions): Promise<Run> {
  const steps: StepReport[] = [];
  const orders: number[] = [];

  async function order() {
    const call = await client.call('place_order', { item: 'tea' }, 'end');
    orders.push(call.id);
    return call;
  }
  function report(step: Step, call: number, answers: Answer[]) {
    const done = { step, answers, results: client.results.get(call) ?? 0 };
    steps.push(done);
    onStep(done);
  }

  // As TypeScript SDK 1.23 does after every call: back with the ID of the result it has just read.
  const first = await order();
  report('last-event', first.id, [await client.resume(first, first.eventIds.at(-1)!, PATIENCE_MS)]);

  // As clients do that keep the first ID they see: back with the ID of the priming event.
  const second = await order();
  report('first-event', second.id, [await client.resume(second, second.eventIds[0]!, PATIENCE_MS)]);

  // A connection lost early, a client that returns late, and then once more and once more.
  const lost = await client.call('count_stock', { shelves: 60, pauseMs: 10 }, 'progress');
  const stale = lost.eventIds.at(-1)!;
  await Promise.race([forgotten(client.session, stale), tooLate(signal)]);
  const storm: Answer[] = [];
  for (let attempt = 0; attempt < RECONNECTS; attempt += 1) {
    if (attempt > 0) await pause(BETWEEN_RECONNECTS_MS, undefined, { signal });
    storm.push(await client.resume(lost, stale, PATIENCE_MS));
  }
  report('forgotten', lost.id, storm);

  // And one that does it right: a connection lost early, and a prompt return.
  const dropped = await client.call('count_stock', { shelves: 8, pauseMs: 40 }, 'progress');
  report('in-time', dropped.id, [await client.resume(dropped, dropped.eventIds.at(-1)!, 10 * PATIENCE_MS)]);

  const last = await order();
  await client.listen();
  const confirmations = orders.reduce((sum, id) => sum + (client.results.get(id) ?? 0), 0);
  return { client, steps, confirmations, finishedCursor: last.eventIds[0]! };
}

async function tooLate(signal: AbortSignal): Promise<never> {
  await pause(FORGET_LIMIT_MS, undefined, { signal, ref: false });
  throw new Error(`the server still remembers everything after ${FORGET_LIMIT_MS} ms`);
}
