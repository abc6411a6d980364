/**
 * Two replicas racing on one session. A seeded scheduler interleaves what a server sends, what reaches the client, what
 * the replicas tell and hear, and deaths, and an observer who knows what the client really has judges every verdict:
 *
 *     strip, or a refusal that says "the request is done" ....... only if the client has all results of the stream it resumes
 *     refusal for another generation, or an ended session ....... only if that is so
 *
 * The server numbers its events for the session (no ID comes twice), or uses IDs again, on other streams. Only where it
 * does that within one flush interval may a strip be wrong.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Leg, Stream } from '../../src/core/ledger.ts';
import { Told } from '../support/told.ts';

/** mulberry32: small, and the same everywhere. */
function random(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A call as the server and the client have it. */
interface Call {
  readonly id: number;
  readonly events: { readonly id: string; readonly answers: boolean }[];
  /** What the client has, and its cursor. */
  hasResult: boolean;
  cursor: string | null;
  /** The exchange that carries it: at which replica, and up to where the server has written it. */
  leg: { readonly at: number; readonly leg: Leg; next: number } | null;
}

interface Tally {
  strips: number;
  forwards: number;
  refusals: number;
  /** Strips of a client that lacks a result. */
  wrong: number;
  /** Those of them whose cursor had an owner that this replica could not have heard of: untold, or told to a Redis that was emptied since. */
  unheard: number;
}

const STEPS = 60;

function race(seed: number, reuse: boolean, tally: Tally): void {
  const chance = random(seed);
  const pick = <T>(items: readonly T[]): T | undefined => items[Math.floor(chance() * items.length)];
  const first = new Told();
  const replicas = [first, first.other()];
  const calls: Call[] = [];
  /** Which call each ID was used for, in order, and whether the others could know. */
  const uses = new Map<string, { call: Call; by: Told; told: boolean }[]>();
  let counter = 0;

  const tell = (at: number): void => {
    replicas[at]!.tell();
    for (const list of uses.values()) for (const use of list) if (use.by === replicas[at]) use.told = true;
  };
  const open = (call: Call, at: number, leg: Leg, next: number): void => {
    call.leg = { at, leg, next };
  };
  /** The server writes the next event of a call, and it reaches the client, or the exchange breaks first. */
  const advance = (call: Call): void => {
    const { leg } = call;
    if (leg === null) return;
    const last = call.events.at(-1)?.answers === true;
    if (leg.next === call.events.length && last) {
      finish(call, true);
      return;
    }
    if (leg.next === call.events.length) {
      counter += 1;
      const id = reuse ? `e${counter % 5}` : `e${counter}`;
      call.events.push({ id, answers: chance() < 0.4 });
    }
    const event = call.events[leg.next]!;
    leg.next += 1;
    const here = replicas[leg.at]!;
    here.event(leg.leg, event.id, { answers: event.answers ? [call.id] : [] });
    const list = uses.get(event.id) ?? [];
    if (!list.some((use) => use.call === call)) list.push({ call, by: here, told: false });
    uses.set(event.id, list);
    if (chance() < 0.3) {
      finish(call, false);
      return;
    }
    call.cursor = event.id;
    call.hasResult ||= event.answers;
  };
  /** The exchange is over. In order, the client has it all and says so by its next request, sometimes. */
  const finish = (call: Call, clean: boolean): void => {
    const { leg } = call;
    if (leg === null) return;
    const here = replicas[leg.at]!;
    if (clean) {
      here.end(leg.leg);
      if (chance() < 0.5) leg.leg.receipt.connection.requestedAt = here.now + 1;
      else leg.leg.receipt.connection.failed = true;
    } else {
      leg.leg.receipt.connection.failed = true;
      here.cut(leg.leg);
    }
    call.leg = null;
  };
  const resume = (call: Call, at: number): void => {
    if (call.leg !== null || call.cursor === null) return;
    const here = replicas[at]!;
    // Only what is told without asking is proven here.
    here.kernel = { unacknowledged: 1, peerClosed: false };
    here.hear(replicas.map(({ name }) => name));
    const { verdict, resolution } = here.resume(call.cursor);
    if (verdict.startsWith('forward')) {
      tally.forwards += 1;
      const from = call.events.findIndex(({ id }) => id === call.cursor) + 1;
      const stream: Stream | undefined = resolution.target?.stream;
      if (stream === undefined) return;
      open(call, at, here.resumed({ stream } as Leg), from);
      return;
    }
    if (verdict.startsWith('refuse')) tally.refusals += 1;
    else tally.strips += 1;
    assert.doesNotMatch(verdict, /generation-mismatch|session-ended|minted/, `seed ${seed}`);
    if (call.hasResult) return;
    tally.wrong += 1;
    const unheard = uses.get(call.cursor)?.some((use) => use.call === call && !use.told && use.by !== here);
    if (unheard) tally.unheard += 1;
    else assert.fail(`seed ${seed}: ${verdict} at ${call.cursor}, and the client lacks the result of call ${call.id}`);
  };

  for (let step = 0; step < STEPS; step += 1) {
    for (const replica of replicas) replica.after(10);
    const dice = chance();
    const at = Math.floor(chance() * 2);
    if (dice < 0.12) {
      const call: Call = { id: calls.length + 1, events: [], hasResult: false, cursor: null, leg: null };
      calls.push(call);
      open(call, at, replicas[at]!.post(call.id), 0);
    } else if (dice < 0.6) {
      const call = pick(calls.filter(({ leg }) => leg !== null));
      if (call !== undefined) advance(call);
    } else if (dice < 0.82) {
      const call = pick(calls.filter(({ leg }) => leg === null));
      if (call !== undefined) resume(call, at);
    } else if (dice < 0.95) {
      replicas[at]!.replica.review(replicas[at]!.moment);
      tell(at);
    } else if (dice < 0.98) {
      // Killed with whatever it had not told, and started again.
      for (const call of calls) if (call.leg?.at === at) call.leg = null;
      replicas[at] = replicas[1 - at]!.other();
    } else {
      // Redis is emptied: what only the dead knew is gone.
      first.fields.clear();
      for (const replica of replicas) replica.replica.retell();
      for (const list of uses.values()) for (const use of list) use.told = false;
    }
  }
}

const tallied = (): Tally => ({ strips: 0, forwards: 0, refusals: 0, wrong: 0, unheard: 0 });

test('10,000 interleavings of two replicas on one session, IDs that never come twice: no strip is wrong', (t) => {
  const tally = tallied();
  for (let seed = 0; seed < 10_000; seed += 1) race(seed, false, tally);
  t.diagnostic(JSON.stringify(tally));
  assert.equal(tally.wrong, 0);
  assert.ok(tally.strips > 1_000 && tally.forwards > 1_000, `both happened: ${JSON.stringify(tally)}`);
});

test('2,000 more, IDs that are used again on other streams: wrong only where nobody had told of it', (t) => {
  const tally = tallied();
  for (let seed = 0; seed < 2_000; seed += 1) race(seed, true, tally);
  t.diagnostic(JSON.stringify(tally));
  assert.equal(tally.wrong, tally.unheard);
  assert.ok(tally.strips > 100, `some were stripped: ${JSON.stringify(tally)}`);
});
