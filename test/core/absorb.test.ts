// Merging the views of several replicas: the order does not matter, nor how often, and what is unclear forwards.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { SKEW } from '../../src/core/absorb.ts';
import {
  approve,
  beginGeneration,
  closeLeg,
  endSession,
  isComplete,
  isDisplaced,
  joinGeneration,
  type Leg,
  NO_IDENTITY,
  reviveSession,
} from '../../src/core/ledger.ts';
import { noteRefusal } from '../../src/core/resolve.ts';
import type { Credential } from '../../src/core/terms.ts';
import { decodeViews, encodeEvents } from '../../src/core/view.ts';
import { key, STRANGER } from '../support/ledger.ts';
import { type Fields, Told } from '../support/told.ts';

describe('what crosses', () => {
  test('a finished cursor is stripped, an unfinished one forwarded', () => {
    const a = new Told();
    a.answered(1, 'e1', 'e2');
    a.unanswered(2, 'f1');
    const b = a.tell().other().hear();
    assert.equal(b.verdict('e2'), 'strip finished');
    assert.equal(b.verdict('f1'), 'forward in-window');
    assert.equal(b.verdict('x1'), 'forward cursor-unrecorded');
  });

  test('a stream that goes on elsewhere keeps its positions', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    const b = a.tell().other().hear();
    const resumed = b.resumedAt('e1');
    b.event(resumed, 'e2');
    b.event(resumed, 'e3', { answers: [1] });
    b.end(resumed);
    const c = b.tell().other().hear();
    assert.equal(c.verdict('e3'), 'strip finished');
    assert.equal(c.verdict('e2'), 'forward finished-undelivered');
    assert.equal(a.hear().verdict('e3'), 'strip finished', 'where it began as well');
  });

  test('an event that reached two replicas is one event', () => {
    const a = new Told();
    const leg = a.post(1);
    a.event(leg, 'e1');
    const b = a.tell().other().hear();
    a.event(leg, 'e2', { answers: [1] });
    a.cut(leg);
    const resumed = b.resumedAt('e1');
    b.event(resumed, 'e2', { answers: [1] });
    b.end(resumed);
    a.tell();
    const c = b.tell().other().hear();
    assert.equal(c.verdict('e2'), 'strip finished');
    assert.equal(c.verdict('e1'), 'forward finished-undelivered');
  });

  test('a proof by connection, until it lapses; not a kernel that nobody asked', () => {
    const a = new Told();
    const leg = a.answered(1, 'e1', 'e2');
    assert.equal(a.tell().other().hear().verdict('e1'), 'forward finished-undelivered', 'not proven yet');
    leg.receipt.connection.requestedAt = a.now + 10;
    a.after(20).replica.review(a.moment);
    const b = a.tell().other().hear();
    assert.equal(b.verdict('e1'), 'strip finished');
    assert.equal(b.verdict('e1', { forwarded: true }), 'forward finished-undelivered');
    assert.equal(b.after(60_001).verdict('e1'), 'forward finished-undelivered');
  });

  test('a proof that is taken back, as soon as it is heard', () => {
    const a = new Told();
    const leg = a.answered(1, 'e1', 'e2');
    leg.receipt.connection.requestedAt = a.now + 10;
    const b = a.after(20).tell().other().hear();
    assert.equal(b.verdict('e1'), 'strip finished');
    leg.receipt.connection.failed = true;
    a.replica.review(a.moment);
    a.tell();
    assert.equal(b.hear().verdict('e1'), 'forward finished-undelivered');
  });

  test('a delivery by a clock that is ahead proves nothing until then', () => {
    const a = new Told();
    a.shift += 10_000;
    a.answered(1, 'e1', 'e2').receipt.connection.requestedAt = a.now + 10;
    const b = a.after(20).tell().other().hear();
    assert.equal(b.verdict('e1'), 'forward finished-undelivered');
    assert.equal(b.after(10_000).hear().verdict('e1'), 'strip finished');
  });

  test('the end of a session, unless another replica had a 2xx since, or just before', () => {
    for (const [offset, verdict] of [
      [-SKEW - 1, 'refuse session-ended'],
      [-SKEW, 'forward in-window'],
      [100, 'forward in-window'],
    ] as const) {
      const a = new Told();
      a.unanswered(1, 'e1');
      const b = a.tell().other();
      b.session.acceptedAt = b.now + offset;
      endSession(a.session, a.now);
      a.session.acceptedAt = a.now;
      b.tell();
      const c = a.tell().other().hear();
      assert.equal(c.verdict('e1'), verdict, `a 2xx ${offset} ms after the end`);
    }
  });

  test('a session that was revived where it had ended', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    endSession(a.session, a.now);
    const b = a.tell().other().hear();
    assert.equal(b.verdict('e1'), 'refuse session-ended');
    b.tell();
    a.after(5);
    reviveSession(a.session);
    a.session.acceptedAt = a.now;
    a.tell();
    assert.equal(b.after(5).hear().verdict('e1'), 'forward in-window');
  });

  test('a generation: what was opened before, by any clock within reason, is of an earlier one', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    a.after(SKEW - 1);
    a.unanswered(2, 'f1');
    const b = a.tell().other();
    b.after(2);
    b.session.begunAt = b.now;
    b.unanswered(3, 'g1');
    b.tell().hear();
    assert.equal(b.verdict('e1'), 'refuse generation-mismatch');
    assert.equal(b.verdict('f1'), 'forward in-window', 'too close to be sure');
    assert.equal(b.verdict('g1'), 'forward in-window');
    a.after(3).hear();
    assert.equal(a.verdict('e1'), 'refuse generation-mismatch', 'where it was opened as well');
    assert.equal(a.verdict('f1'), 'forward in-window');
    const [gA, gB] = [a.session.generation, b.session.generation];
    a.tell().hear();
    b.tell().hear();
    assert.deepEqual([a.session.generation, b.session.generation], [gA, gB], 'hearing it again begins no other');
  });

  test('the stream that brought the initialize is of the generation that it began, however long it took', () => {
    const a = new Told();
    const { stream } = a.unanswered(1, 'e1');
    a.unanswered(2, 'f1');
    a.after(SKEW + 1);
    beginGeneration(a.session, NO_IDENTITY);
    a.session.begunAt = a.now;
    joinGeneration(a.session, stream);
    const b = a.tell().other().hear();
    assert.equal(b.verdict('e1'), 'forward in-window');
    assert.equal(b.verdict('f1'), 'refuse generation-mismatch');
  });

  test('a generation that only one replica noticed is over for its own streams, and for no others', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    beginGeneration(a.session, NO_IDENTITY);
    const b = a.tell().other();
    b.unanswered(2, 'f1');
    b.tell().hear();
    assert.equal(b.verdict('e1'), 'refuse generation-mismatch');
    assert.equal(a.hear().verdict('f1'), 'forward in-window');
  });

  test('the floor, its probe, and what lowers it again', () => {
    const a = new Told();
    a.unanswered(1, 'e1', 'e2');
    a.replay('e1', 'empty');
    const b = a.tell().other().hear();
    assert.equal(b.replay('e1', 'empty'), 'forward in-window', 'the immediate probe');
    assert.equal(b.verdict('e1'), 'refuse below-replay-floor');
    b.tell();
    assert.equal(a.hear().verdict('e1'), 'refuse below-replay-floor', 'that probe is used up here too');
    a.after(1_000);
    assert.equal(a.replay('e1', 'replayed'), 'forward in-window');
    b.after(1_000);
    a.tell();
    assert.equal(b.hear().verdict('e1'), 'forward in-window');
    assert.equal(b.resolve('e1').target?.stream.floor, 1);
  });

  test('two floors of the same age: the one that forwards', () => {
    const a = new Told();
    a.unanswered(1, 'e1', 'e2', 'e3');
    const b = a.tell().other().hear();
    a.replay('e1', 'empty');
    b.replay('e2', 'empty');
    a.tell();
    b.tell();
    for (const one of [a, b, a.other()]) assert.equal(one.hear().resolve('e2').target?.stream.floor, 2);
  });

  test('a listening stream, as long as its replica beats', () => {
    const a = new Told();
    a.answered(1, 'e1', 'e2');
    const leg = a.listen();
    const b = a.tell().other().hear([a.name]);
    assert.equal(b.verdict('e2'), 'refuse finished-while-listening');
    assert.equal(b.hear([]).verdict('e2'), 'strip finished', 'it is dead');
    assert.equal(b.hear([a.name]).verdict('e2'), 'refuse finished-while-listening');
    a.end(leg);
    a.tell();
    assert.equal(b.hear([a.name]).verdict('e2'), 'strip finished', 'nobody listens any more');
  });

  test('an exchange of a stream that is open upstream, as long as its replica beats', () => {
    const a = new Told();
    const leg = a.post(1);
    a.event(leg, 'e1');
    const b = a.tell().other().hear([a.name]);
    assert.equal(isDisplaced(b.resolve('e1').target!.stream), true);
    assert.equal(isDisplaced(b.hear([]).resolve('e1').target!.stream), false);
    a.cut(leg);
    a.tell();
    assert.equal(isDisplaced(b.hear([a.name]).resolve('e1').target!.stream), false);
  });

  test('approved callers', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    approve(a.session, STRANGER);
    const b = a.tell().other();
    assert.equal(b.resolve('e1', { caller: STRANGER }).facts.approved, false);
    assert.equal(b.hear().resolve('e1', { caller: STRANGER }).facts.approved, true);
    assert.equal(b.resolve('e1', { caller: 'nobody' as Credential }).facts.approved, false);
  });

  test('a storm: strips at all replicas count together, and one that brings something ends it for all', () => {
    const a = new Told();
    a.answered(1, 'e1', 'e2');
    const b = a.tell().other().hear().after(1);
    for (let round = 0; round < 5; round += 1) {
      a.after(10).strip('e2');
      b.after(10).strip('e2');
    }
    b.tell();
    assert.equal(a.tell().hear().verdict('e2'), 'refuse finished-storm');
    const c = a.other().hear();
    assert.equal(c.verdict('e2'), 'refuse finished-storm');
    a.after(10).strip('e2');
    c.after(10);
    assert.equal(b.after(10).verdict('e2'), 'strip finished', 'nobody has told it');
    b.strip('e2', 1);
    b.tell();
    assert.equal(c.hear().verdict('e2'), 'strip finished');
  });

  test('when a cursor was refused first', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    assert.equal(noteRefusal(a.session, key('e1'), a.now), null);
    const b = a.tell().other().hear();
    assert.equal(noteRefusal(b.session, key('e1'), b.now + 900), b.now);
  });

  test('that nothing is missing, or that something is', () => {
    const a = new Told();
    a.session.complete = true;
    const b = a.tell().other();
    assert.equal(isComplete(b.session), false);
    assert.equal(isComplete(b.hear().session), true);
    const gone = new Told(a.fields);
    gone.session.gaps = true;
    gone.tell();
    assert.equal(isComplete(b.hear().session), false);
  });
});

describe('what is unclear', () => {
  test('positions that two replicas gave to different events prove nothing', () => {
    const a = new Told();
    const leg = a.post(1);
    a.event(leg, 'e1');
    const b = a.tell().other().hear();
    a.event(leg, 'e2');
    a.event(leg, 'e3');
    a.cut(leg);
    const resumed = b.resumedAt('e1');
    b.event(resumed, 'f2', { answers: [1] });
    b.cut(resumed);
    a.tell();
    b.tell();
    for (const one of [a, b, a.other()]) {
      assert.equal(one.hear().verdict('e3'), 'forward finished-undelivered', 'nobody knows whether e3 was after f2');
      assert.equal(one.verdict('f2'), 'forward finished-undelivered');
    }
  });

  test('a stream that only a replica tells of which resumed it never finishes', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    const b = a.tell().other().hear();
    const resumed = b.resumedAt('e1');
    b.event(resumed, 'e2', { answers: [1] });
    b.end(resumed);
    b.tell();
    for (const field of [...a.fields.keys()]) if (field.includes(a.view)) a.fields.delete(field);
    assert.equal(b.other().hear().verdict('e2'), 'forward in-window');
  });

  test('an answer on a listening stream that another replica’s request may have been meant by', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    const b = a.tell().other().hear();
    const listening = b.listen();
    const again = a.post(1);
    a.event(again, 'f1');
    b.event(listening, 'n1', { answers: [1] });
    a.tell();
    b.tell();
    const c = a.other().hear();
    assert.equal(c.verdict('e1'), 'forward in-window');
    assert.equal(c.verdict('f1'), 'forward in-window');
    assert.equal(b.hear().verdict('e1'), 'forward in-window');
  });

  test('IDs that a replica had to drop may have been its streams’', () => {
    const a = new Told();
    const leg = a.post(1);
    for (let n = 0; n < 1_200; n += 1) {
      a.event(leg, `e${n}`);
      if (n % 50 === 0) a.tell();
    }
    a.answered(2, 'f1', 'e5');
    const b = a.tell().other().hear();
    assert.equal(b.verdict('e5'), a.verdict('e5'));
    assert.equal(b.verdict('e5'), 'forward cursor-unrecorded', 'e5 was of the open stream as well');
    assert.equal(b.verdict('e1199'), 'forward in-window');
    const segments = [...a.fields.keys()].filter((field) => field.startsWith('e:'));
    assert.ok(segments.length < 22, `${segments.length} segments are kept`);
  });

  test('a stream that a replica forgot leaves its trace for the others', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    a.tell();
    a.after(3_600_000).resume('x');
    a.answered(2, 'f1', 'e1');
    const b = a.tell().other().hear();
    assert.equal(a.verdict('e1'), 'forward cursor-unrecorded');
    assert.equal(b.verdict('e1'), 'forward cursor-unrecorded');
  });

  test('a stream of a dead replica that is too old to be taken over leaves its trace', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    const b = a.tell().other();
    b.after(3_600_000).answered(2, 'f1', 'e1');
    assert.equal(b.verdict('e1'), 'strip finished');
    assert.equal(b.hear().verdict('e1'), 'forward cursor-unrecorded');
    assert.equal(isComplete(b.session), false);
  });

  test('what was forgotten in an earlier generation is no longer told of', () => {
    const a = new Told();
    a.unanswered(1, 'e1');
    a.tell();
    a.after(3_600_000).resume('x');
    a.tell();
    assert.ok(a.fields.has(`f:${a.view}`), 'told');
    beginGeneration(a.session, NO_IDENTITY);
    a.tell();
    assert.ok(!a.fields.has(`f:${a.view}`), 'and taken back');
  });

  test('a field that is none of ours is an error, and changes nothing that is half done into a claim', () => {
    const a = new Told();
    a.answered(1, 'e1', 'e2');
    a.tell();
    a.fields.set(`s:${a.view}:x`, 'not JSON');
    assert.throws(() => decodeViews(Object.fromEntries(a.fields)), SyntaxError);
  });

  test('the text of events is read back as it was written, in any number', () => {
    const entries = [{ key: key('e1'), position: 7, length: 40 }] as never[];
    const fields = {
      'v:x': '["r",1,null,null,null,0,[0,0,0],[]]',
      's:x:y': '[null,[],7,[[6,7]],[0,0,0,null,0,null],0,0,1]',
    };
    const views = decodeViews({ ...fields, 'e:x:y:0': encodeEvents(entries), 'e:x:y:1': encodeEvents([]) });
    assert.deepEqual(views[0]?.streams.get('y')?.events, entries);
  });
});

// Programs of several replicas, and what a newcomer makes of what they told.

type Step =
  | { readonly do: 'post' | 'listen' | 'tell' | 'hear' | 'begin' | 'end' | 'revive'; readonly at: number }
  | { readonly do: 'event' | 'answer' | 'cut' | 'finish' | 'prove'; readonly at: number; readonly leg: number }
  | { readonly do: 'empty' | 'replayed' | 'strip' | 'resume'; readonly at: number; readonly cursor: number };

const at = fc.nat(2);
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ do: fc.constantFrom('post', 'listen', 'tell', 'hear', 'begin', 'end', 'revive'), at } as const),
  fc.record({ do: fc.constantFrom('event', 'answer', 'cut', 'finish', 'prove'), at, leg: fc.nat(5) } as const),
  fc.record({ do: fc.constantFrom('empty', 'replayed', 'strip', 'resume'), at, cursor: fc.nat(7) } as const),
);

const CURSORS = Array.from({ length: 8 }, (_, n) => `e${n}`);

/** Runs a program at three replicas and returns everything they told. */
function run(steps: readonly Step[]): Told[] {
  const first = new Told();
  const replicas = [first, first.other(), first.other()];
  const legs: (Leg & { open?: boolean })[][] = [[], [], []];
  let requests = 0;
  let events = 0;
  for (const replica of replicas) replica.session.acceptedAt = replica.now;
  for (const what of steps) {
    for (const replica of replicas) replica.after(100);
    const here = replicas[what.at]!;
    const own = legs[what.at]!;
    switch (what.do) {
      case 'post':
        own.push(here.post((requests += 1)));
        break;
      case 'listen':
        own.push(here.listen());
        break;
      case 'tell':
        here.tell();
        break;
      case 'hear':
        here.hear();
        break;
      case 'begin':
        beginGeneration(here.session, NO_IDENTITY);
        here.session.begunAt = here.now;
        break;
      case 'end':
        endSession(here.session, here.now);
        break;
      case 'revive':
        reviveSession(here.session);
        here.session.acceptedAt = here.now;
        here.session.changed = true;
        break;
      case 'empty':
      case 'replayed':
        here.replay(CURSORS[what.cursor]!, what.do);
        break;
      case 'strip':
        here.strip(CURSORS[what.cursor]!);
        break;
      case 'resume': {
        const { target } = here.resolve(CURSORS[what.cursor]!);
        if (target !== null) own.push(here.resumed({ stream: target.stream } as Leg));
        break;
      }
      default: {
        const leg = own[what.leg % Math.max(1, own.length)];
        if (leg === undefined) break;
        const [request] = [...leg.stream.requests.keys()];
        const id = CURSORS[(events += 1) % CURSORS.length]!;
        if (what.do === 'event') here.event(leg, id);
        else if (what.do === 'answer' && request !== undefined) {
          here.event(leg, id, { answers: [Number(request.slice(2))] });
        } else if (what.do === 'prove') {
          leg.receipt.connection.requestedAt = here.now;
          here.replica.review(here.moment);
        } else {
          if (what.do === 'finish') leg.receipt.flushedAt ??= here.now - 1;
          leg.receipt.response = what.do === 'finish' ? 'normal' : 'broken';
          if (leg.open !== false) closeLeg(here.session, leg, { clean: what.do === 'finish', polled: false }, here.now);
          leg.open = false;
        }
      }
    }
  }
  for (const replica of replicas) replica.tell();
  return replicas;
}

/** What a replica makes of every cursor. */
function picture(replica: Told): unknown {
  return CURSORS.map((cursor) => {
    const { facts, target } = replica.resolve(cursor);
    const owners = facts.owners.map((owner) => JSON.stringify(owner)).sort();
    return [replica.verdict(cursor), owners, target?.position, target?.first];
  });
}

function newcomer(fields: Fields, now: number): Told {
  const told = new Told(fields);
  told.now = now;
  // Nobody here has asked the kernel about anything.
  told.kernel = undefined;
  return told;
}

/** One seed by default, so that a run means the same everywhere; another one by MODEL_SEED. */
const SEED = Number(process.env['MODEL_SEED'] ?? 20_261_130);

describe('in any order and any number', () => {
  const program = fc.array(step, { minLength: 5, maxLength: 60 });

  test('the order in which views are read does not matter', () => {
    fc.assert(
      fc.property(program, fc.integer(), (steps, seed) => {
        const [{ fields, now }] = run(steps) as [Told, ...Told[]];
        const shuffled = fc.sample(fc.shuffledSubarray([...fields], { minLength: fields.size }), {
          seed,
          numRuns: 1,
        })[0]!;
        assert.deepEqual(picture(newcomer(fields, now).hear([], shuffled)), picture(newcomer(fields, now).hear()));
      }),
      { numRuns: 300, seed: SEED },
    );
  });

  test('nor does it matter that one is read again', () => {
    fc.assert(
      fc.property(program, (steps) => {
        const [{ fields, now }] = run(steps) as [Told, ...Told[]];
        const told = newcomer(fields, now).hear();
        const before = picture(told);
        assert.deepEqual(picture(told.hear().hear()), before);
      }),
      { numRuns: 300, seed: SEED },
    );
  });

  test('nor that they come one by one', () => {
    fc.assert(
      fc.property(program, (steps) => {
        const replicas = run(steps);
        const [{ fields, now }] = replicas as [Told, ...Told[]];
        const told = newcomer(fields, now);
        for (const { view } of replicas) {
          told.hear(
            [],
            [...fields].filter(([field]) => field.split(':')[1] === view),
          );
        }
        // Which parts came first shows in nothing once all have come.
        assert.deepEqual(picture(told.hear()), picture(newcomer(fields, now).hear()));
      }),
      { numRuns: 300, seed: SEED },
    );
  });

  test('a view is told by pieces as it is told at once', () => {
    fc.assert(
      fc.property(program, (steps) => {
        const often = run(steps.flatMap((what) => (what.do === 'hear' ? [what] : [what, { do: 'tell', at: what.at }])));
        const replica = often[0]!;
        const before = picture(newcomer(replica.fields, replica.now).hear());
        replica.fields.clear();
        for (const one of often) {
          one.replica.retell();
          one.tell();
        }
        assert.deepEqual(picture(newcomer(replica.fields, replica.now).hear()), before);
      }),
      { numRuns: 300, seed: SEED },
    );
  });
});
