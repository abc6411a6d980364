/**
 * Section 3 of the contract as a table: for each rule the facts that just make it fit and those that just do not, with
 * what is answered instead. Where a fact has a boundary of its own (ten strips, 30 s, a floor), `resolve.test.ts` has
 * the rows; here the fact is given.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  type Action,
  decide,
  type OwnerFacts,
  type ResumeFacts,
  RULES,
  type Rule,
  type RuleName,
} from '../../src/core/decide.ts';
import { REFUSALS } from '../../src/core/refusal.ts';

const OPEN: OwnerFacts = {
  currentGeneration: true,
  standalone: false,
  state: 'open',
  barred: false,
  lastReplayEmpty: false,
};
const FINISHED: OwnerFacts = { ...OPEN, state: 'finished' };
const DELIVERED: OwnerFacts = { ...OPEN, state: 'delivered' };
const LISTENING: OwnerFacts = { ...OPEN, standalone: true };
/** A standalone stream whose last resume was an empty replay. */
const SILENCED: OwnerFacts = { ...LISTENING, lastReplayEmpty: true };
const BARRED: OwnerFacts = { ...OPEN, barred: true };
const earlier = (owner: OwnerFacts): OwnerFacts => ({ ...owner, currentGeneration: false });

/** The resume of a cursor with one open owner, by an approved caller. */
const BASE: ResumeFacts = {
  get: true,
  cursorFields: 1,
  cursorEmpty: false,
  sessionFields: 1,
  withoutResumption: false,
  minted: false,
  approved: true,
  sessionKnown: true,
  sessionEnded: false,
  listening: false,
  owners: [OPEN],
  ownerForgotten: false,
  storm: false,
  unrecorded: 'forward',
  complete: false,
};
const factsOf = (facts: Partial<ResumeFacts>): ResumeFacts => ({ ...BASE, ...facts });

type Answer = `${Action} ${RuleName}`;
/** The facts that differ from a plain resume, what they mean, and the answer. */
type Row = readonly [when: string, facts: Partial<ResumeFacts>, answer: Answer];

const NOWHERE = { owners: [], sessionKnown: false, approved: false } as const;

const ROWS: Readonly<Record<RuleName, readonly Row[]>> = {
  'not-a-resume': [
    ['another method, no cursor', { get: false, cursorFields: 0 }, 'pass not-a-resume'],
    ['another method with a cursor', { get: false }, 'pass not-a-resume'],
    ['another method with an ID we minted', { get: false, minted: true }, 'pass not-a-resume'],
    ['no cursor', { cursorFields: 0 }, 'pass not-a-resume'],
    ['no cursor in a session that ended', { cursorFields: 0, sessionEnded: true }, 'pass not-a-resume'],
    ['no cursor, two session IDs', { cursorFields: 0, sessionFields: 2 }, 'pass not-a-resume'],
    ['another method in a later revision', { get: false, withoutResumption: true }, 'pass not-a-resume'],
    ['one cursor, empty', { cursorEmpty: true, owners: [] }, 'pass not-a-resume'],
    ['one cursor', {}, 'forward in-window'],
    ['two cursors', { cursorFields: 2, owners: [] }, 'pass ambiguous-fields'],
    ['two cursors, one of them empty', { cursorFields: 2, cursorEmpty: true, owners: [] }, 'pass ambiguous-fields'],
  ],
  'revision-without-resumption': [
    ['a revision without resumption', { withoutResumption: true }, 'pass revision-without-resumption'],
    ['and a finished cursor', { withoutResumption: true, owners: [DELIVERED] }, 'pass revision-without-resumption'],
    ['and two cursors', { withoutResumption: true, cursorFields: 2 }, 'pass revision-without-resumption'],
    ['and an ID we minted', { withoutResumption: true, minted: true }, 'pass revision-without-resumption'],
    ['a revision with resumption', { owners: [DELIVERED] }, 'strip finished'],
  ],
  'ambiguous-fields': [
    ['two cursors', { cursorFields: 2 }, 'pass ambiguous-fields'],
    ['three cursors', { cursorFields: 3 }, 'pass ambiguous-fields'],
    ['two session IDs', { sessionFields: 2 }, 'pass ambiguous-fields'],
    ['two session IDs and an ID we minted', { sessionFields: 2, minted: true }, 'pass ambiguous-fields'],
    ['two session IDs and a finished cursor', { sessionFields: 2, owners: [DELIVERED] }, 'pass ambiguous-fields'],
    ['one of each', {}, 'forward in-window'],
    ['no session ID', { sessionFields: 0 }, 'forward in-window'],
  ],
  'minted-id': [
    ['an ID we minted', { minted: true, owners: [] }, 'refuse minted-id'],
    ['whoever asks', { minted: true, ...NOWHERE }, 'refuse minted-id'],
    ['in a session that ended', { minted: true, sessionEnded: true, owners: [] }, 'refuse minted-id'],
    ['an ID that only looks like one', { owners: [] }, 'forward cursor-unrecorded'],
  ],
  'session-ended': [
    ['the session ended, approved caller', { sessionEnded: true }, 'refuse session-ended'],
    ['and the cursor was never seen', { sessionEnded: true, owners: [] }, 'refuse session-ended'],
    [
      'and the cursor is of an earlier generation',
      { sessionEnded: true, owners: [earlier(OPEN)] },
      'refuse session-ended',
    ],
    ['caller not approved', { sessionEnded: true, approved: false }, 'forward in-window'],
    ['the session was revived', { sessionEnded: false }, 'forward in-window'],
  ],
  'generation-mismatch': [
    ['the only owner is earlier', { owners: [earlier(OPEN)] }, 'refuse generation-mismatch'],
    ['all of two are', { owners: [earlier(OPEN), earlier(DELIVERED)] }, 'refuse generation-mismatch'],
    ['it is delivered', { owners: [earlier(DELIVERED)] }, 'refuse generation-mismatch'],
    [
      'it is delivered, the client listens',
      { owners: [earlier(DELIVERED)], listening: true },
      'refuse generation-mismatch',
    ],
    ['the first of two is current', { owners: [OPEN, earlier(OPEN)] }, 'forward in-window'],
    ['the last of two is current', { owners: [earlier(OPEN), OPEN] }, 'forward in-window'],
    ['no owner at all', { owners: [] }, 'forward cursor-unrecorded'],
    ['caller not approved', { owners: [earlier(OPEN)], approved: false }, 'forward in-window'],
    ['an owner may be forgotten', { owners: [earlier(OPEN)], ownerForgotten: true }, 'forward in-window'],
  ],
  'finished-while-listening': [
    ['delivered, and the client listens', { owners: [DELIVERED], listening: true }, 'refuse finished-while-listening'],
    ['all of two', { owners: [DELIVERED, DELIVERED], listening: true }, 'refuse finished-while-listening'],
    ['in a storm', { owners: [DELIVERED], listening: true, storm: true }, 'refuse finished-while-listening'],
    ['no listening stream', { owners: [DELIVERED] }, 'strip finished'],
    ['caller not approved', { owners: [DELIVERED], listening: true, approved: false }, 'strip finished'],
    ['finished, not delivered', { owners: [FINISHED], listening: true }, 'forward finished-undelivered'],
    ['the first of two is open', { owners: [OPEN, DELIVERED], listening: true }, 'forward in-window'],
    ['the last of two is open', { owners: [DELIVERED, OPEN], listening: true }, 'forward in-window'],
    ['no owner at all', { owners: [], listening: true }, 'forward cursor-unrecorded'],
    [
      'an owner may be forgotten',
      { owners: [DELIVERED], listening: true, ownerForgotten: true },
      'forward cursor-unrecorded',
    ],
  ],
  'finished-storm': [
    ['delivered, in a storm', { owners: [DELIVERED], storm: true }, 'refuse finished-storm'],
    ['all of two', { owners: [DELIVERED, DELIVERED], storm: true }, 'refuse finished-storm'],
    ['no storm, or a probe is due', { owners: [DELIVERED] }, 'strip finished'],
    ['caller not approved', { owners: [DELIVERED], storm: true, approved: false }, 'strip finished'],
    ['finished, not delivered', { owners: [FINISHED], storm: true }, 'forward finished-undelivered'],
    ['the first of two is open', { owners: [OPEN, DELIVERED], storm: true }, 'forward in-window'],
    ['the last of two is open', { owners: [DELIVERED, OPEN], storm: true }, 'forward in-window'],
    ['no owner at all', { owners: [], storm: true }, 'forward cursor-unrecorded'],
    [
      'an owner may be forgotten',
      { owners: [DELIVERED], storm: true, ownerForgotten: true },
      'forward cursor-unrecorded',
    ],
  ],
  finished: [
    ['the only owner is delivered', { owners: [DELIVERED] }, 'strip finished'],
    ['whoever asks', { owners: [DELIVERED], approved: false }, 'strip finished'],
    ['all of two', { owners: [DELIVERED, DELIVERED] }, 'strip finished'],
    ['of an earlier generation, for a stranger', { owners: [earlier(DELIVERED)], approved: false }, 'strip finished'],
    ['one of two is not delivered', { owners: [DELIVERED, FINISHED] }, 'forward finished-undelivered'],
    ['one of two is open', { owners: [OPEN, DELIVERED] }, 'forward in-window'],
    ['one of two is a standalone stream', { owners: [LISTENING, DELIVERED] }, 'forward in-window'],
    ['no owner at all', { owners: [] }, 'forward cursor-unrecorded'],
    ['an owner may be forgotten', { owners: [DELIVERED], ownerForgotten: true }, 'forward cursor-unrecorded'],
  ],
  'standalone-below-floor': [
    ['a standalone stream after an empty replay', { owners: [SILENCED] }, 'strip standalone-below-floor'],
    ['whoever asks', { owners: [SILENCED], approved: false }, 'strip standalone-below-floor'],
    ['below its floor', { owners: [{ ...SILENCED, barred: true }] }, 'strip standalone-below-floor'],
    ['beside a delivered one', { owners: [DELIVERED, SILENCED] }, 'strip standalone-below-floor'],
    ['its last resume was no empty replay', { owners: [LISTENING] }, 'forward in-window'],
    ['below its floor all the same', { owners: [{ ...LISTENING, barred: true }] }, 'refuse below-replay-floor'],
    ['not a standalone stream', { owners: [{ ...OPEN, lastReplayEmpty: true }] }, 'forward in-window'],
    ['beside an undelivered one', { owners: [SILENCED, FINISHED] }, 'forward in-window'],
    ['beside an open one', { owners: [SILENCED, OPEN] }, 'forward in-window'],
    ['two of them', { owners: [SILENCED, SILENCED] }, 'forward in-window'],
    ['an owner may be forgotten', { owners: [SILENCED], ownerForgotten: true }, 'forward in-window'],
  ],
  'below-replay-floor': [
    ['below the floor of the only owner', { owners: [BARRED] }, 'refuse below-replay-floor'],
    ['of both owners', { owners: [BARRED, BARRED] }, 'refuse below-replay-floor'],
    ['beside a delivered one', { owners: [DELIVERED, BARRED] }, 'refuse below-replay-floor'],
    ['of a finished one', { owners: [{ ...FINISHED, barred: true }] }, 'refuse below-replay-floor'],
    ['not of the first of two', { owners: [OPEN, BARRED] }, 'forward in-window'],
    ['not of the last of two', { owners: [BARRED, OPEN] }, 'forward in-window'],
    ['not of a finished one', { owners: [BARRED, FINISHED] }, 'forward in-window'],
    ['at the floor, or a probe is due', { owners: [OPEN] }, 'forward in-window'],
    ['caller not approved', { owners: [BARRED], approved: false }, 'forward in-window'],
    ['only of a delivered one', { owners: [{ ...DELIVERED, barred: true }] }, 'strip finished'],
    ['an owner may be forgotten', { owners: [BARRED], ownerForgotten: true }, 'forward in-window'],
  ],
  'finished-undelivered': [
    ['finished, not delivered', { owners: [FINISHED] }, 'forward finished-undelivered'],
    ['whoever asks', { owners: [FINISHED], approved: false }, 'forward finished-undelivered'],
    ['beside a delivered one', { owners: [DELIVERED, FINISHED] }, 'forward finished-undelivered'],
    ['before a delivered one', { owners: [FINISHED, DELIVERED] }, 'forward finished-undelivered'],
    ['the first of two is open', { owners: [OPEN, FINISHED] }, 'forward in-window'],
    ['the last of two is open', { owners: [FINISHED, OPEN] }, 'forward in-window'],
    ['no owner at all', { owners: [] }, 'forward cursor-unrecorded'],
    ['an owner may be forgotten', { owners: [FINISHED], ownerForgotten: true }, 'forward cursor-unrecorded'],
  ],
  'in-window': [
    ['an open owner', { owners: [OPEN] }, 'forward in-window'],
    ['whoever asks', { owners: [OPEN], approved: false }, 'forward in-window'],
    ['a standalone stream', { owners: [LISTENING] }, 'forward in-window'],
    ['whatever is done with unrecorded cursors', { unrecorded: 'refuse', complete: true }, 'forward in-window'],
    ['an owner may be forgotten as well', { ownerForgotten: true }, 'forward in-window'],
    ['no owner', { owners: [] }, 'forward cursor-unrecorded'],
    ['none is open', { owners: [FINISHED] }, 'forward finished-undelivered'],
  ],
  'cursor-unrecorded': [
    ['never recorded', { owners: [] }, 'forward cursor-unrecorded'],
    ['a complete view, which does not matter here', { owners: [], complete: true }, 'forward cursor-unrecorded'],
    ['refuse', { owners: [], unrecorded: 'refuse' }, 'refuse cursor-unrecorded'],
    [
      'refuse, and it is forgotten',
      { owners: [], unrecorded: 'refuse', ownerForgotten: true },
      'refuse cursor-unrecorded',
    ],
    ['refuse, caller not approved', { owners: [], unrecorded: 'refuse', approved: false }, 'forward cursor-unrecorded'],
    ['complete, and the view is', { owners: [], unrecorded: 'complete', complete: true }, 'refuse cursor-unrecorded'],
    ['complete, and the view is not', { owners: [], unrecorded: 'complete' }, 'forward cursor-unrecorded'],
    [
      'complete, caller not approved',
      { owners: [], unrecorded: 'complete', complete: true, approved: false },
      'forward cursor-unrecorded',
    ],
    [
      'complete, but it may be forgotten',
      { owners: [], unrecorded: 'complete', complete: true, ownerForgotten: true },
      'forward cursor-unrecorded',
    ],
    ['the session is not known', NOWHERE, 'forward session-unrecorded'],
  ],
  'session-unrecorded': [
    ['never seen', NOWHERE, 'forward session-unrecorded'],
    ['complete', { ...NOWHERE, unrecorded: 'complete' }, 'forward session-unrecorded'],
    [
      'complete, as if there were something to be complete',
      { ...NOWHERE, unrecorded: 'complete', complete: true },
      'forward session-unrecorded',
    ],
    ['refuse', { ...NOWHERE, unrecorded: 'refuse' }, 'refuse session-unrecorded'],
    [
      'refuse, and the session is known',
      { owners: [], unrecorded: 'refuse', approved: false },
      'forward cursor-unrecorded',
    ],
  ],
};

const NAMES = RULES.map(({ name }) => name);
const ALL_ROWS = Object.values(ROWS).flat();

for (const [rule, rows] of Object.entries(ROWS)) {
  test(`${rule}: ${rows.length} rows`, () => {
    for (const [when, facts, answer] of rows) {
      const verdict = decide(factsOf(facts));
      assert.equal(`${verdict.action} ${verdict.rule}`, answer, when);
    }
  });
}

// The table of the contract itself.

test('the rules stand in the order of the contract', () => {
  assert.deepEqual(NAMES, [
    'not-a-resume',
    'revision-without-resumption',
    'ambiguous-fields',
    'minted-id',
    'session-ended',
    'generation-mismatch',
    'finished-while-listening',
    'finished-storm',
    'finished',
    'standalone-below-floor',
    'below-replay-floor',
    'finished-undelivered',
    'in-window',
    'cursor-unrecorded',
    'session-unrecorded',
  ]);
});

test('every rule has a row that it answers and one that it just leaves to another', () => {
  assert.deepEqual(Object.keys(ROWS).sort(), [...NAMES].sort());
  for (const name of NAMES) {
    const answers = ROWS[name].map(([, , answer]) => answer.split(' ')[1]);
    assert.ok(answers.includes(name), `${name} answers a row`);
    assert.ok(
      answers.some((answer) => answer !== name),
      `${name} leaves a row to another`,
    );
  }
});

// The rows as a whole: they notice when the table is not what it is.

const answerBy = (rules: readonly Rule[], facts: ResumeFacts): string => {
  const rule = rules.find(({ fits }) => fits(facts));
  return rule === undefined ? 'none' : `${rule.action(facts)} ${rule.name}`;
};
const rowsNotice = (rules: readonly Rule[]): boolean =>
  ALL_ROWS.some(([, facts, answer]) => answerBy(rules, factsOf(facts)) !== answer);

/** Neighbours in the table whose conditions exclude each other, and why. All others are told apart by their order. */
const APART: Readonly<Partial<Record<RuleName, { readonly next: RuleName; readonly because: string }>>> = {
  finished: {
    next: 'standalone-below-floor',
    because: 'one wants every owner delivered, the other exactly one that is not',
  },
  'finished-undelivered': {
    next: 'in-window',
    because: 'one wants every owner finished, the other one that is not',
  },
};

describe('exchanging two neighbours', () => {
  test('none of them leaves every row as it is', () => {
    assert.ok(!rowsNotice(RULES), 'no row gets another answer');
  });

  for (let i = 0; i + 1 < RULES.length; i++) {
    const [one, other] = [RULES[i]!, RULES[i + 1]!];
    const apart = APART[one.name];
    if (apart?.next === other.name) {
      test(`${one.name} and ${other.name} makes no difference: ${apart.because}`, () => {
        const both = [...everything()].find((facts) => one.fits(facts) && other.fits(facts));
        assert.equal(both, undefined);
      });
    } else {
      test(`${one.name} and ${other.name} is noticed`, () => {
        assert.ok(rowsNotice(RULES.with(i, other).with(i + 1, one)), 'a row gets another answer');
      });
    }
  }

  test('and the list of neighbours that exclude each other names neighbours', () => {
    for (const [name, { next }] of Object.entries(APART)) {
      assert.equal(NAMES[NAMES.indexOf(name as RuleName) + 1], next);
    }
  });
});

/** Each fact, and how to put every value it can have in its place. */
const FACTS: Readonly<Record<string, (facts: ResumeFacts) => readonly ResumeFacts[]>> = {
  ...Object.fromEntries(
    Object.keys(BASE)
      .filter((name) => name !== 'owners')
      .map((name) => [name, (facts: ResumeFacts) => valuesOf(name).map((value) => ({ ...facts, [name]: value }))]),
  ),
  ...Object.fromEntries(
    Object.keys(OPEN).map((name) => [
      `owners.${name}`,
      (facts: ResumeFacts) =>
        valuesOf(name).map((value) => ({
          ...facts,
          owners: facts.owners.map((owner) => ({ ...owner, [name]: value })),
        })),
    ]),
  ),
  'the first owner alone': (facts) => [facts, { ...facts, owners: facts.owners.slice(0, 1) }],
  'the last owner alone': (facts) => [facts, { ...facts, owners: facts.owners.slice(-1) }],
};

function valuesOf(name: string): readonly unknown[] {
  if (name === 'cursorFields' || name === 'sessionFields') return [0, 1, 2];
  if (name === 'unrecorded') return ['forward', 'complete', 'refuse'];
  return name === 'state' ? ['open', 'finished', 'delivered'] : [false, true];
}

test('the rows notice when a rule no longer looks at a fact, whichever', () => {
  const around = ALL_ROWS.flatMap(([, facts]) => Object.values(FACTS).flatMap((vary) => vary(factsOf(facts))));
  const neighbours = [...new Map(around.map((facts) => [JSON.stringify(facts), facts])).values()];
  const answers = neighbours.map((facts) => answerBy(RULES, facts));
  let looks = 0;
  for (const [i, rule] of RULES.entries()) {
    for (const [name, vary] of Object.entries(FACTS)) {
      const values = vary(BASE).length;
      const blind: readonly Rule[] = [
        { ...rule, fits: (facts) => vary(facts).some(rule.fits) },
        ...Array.from({ length: values }, (_, at) => ({
          ...rule,
          action: (facts: ResumeFacts) => rule.action(vary(facts)[at]!),
        })),
      ];
      for (const other of blind) {
        const rules = RULES.with(i, other);
        if (neighbours.every((facts, at) => answerBy(rules, facts) === answers[at])) continue;
        looks += 1;
        assert.ok(rowsNotice(rules), `${rule.name} would not look at: ${name}`);
      }
    }
  }
  assert.ok(looks > 50, `the rules look at facts, ${looks} times`);
});

test('the rows notice when a rule is left out, or does something else', () => {
  const actions: readonly Action[] = ['pass', 'strip', 'forward', 'refuse'];
  for (const [i, rule] of RULES.entries()) {
    assert.ok(rowsNotice(RULES.toSpliced(i, 1)), `${rule.name} left out`);
    for (const action of actions) {
      const other = { ...rule, action: () => action };
      const same = ROWS[rule.name].every(
        ([, facts]) => !rule.fits(factsOf(facts)) || rule.action(factsOf(facts)) === action,
      );
      if (!same) assert.ok(rowsNotice(RULES.with(i, other)), `${rule.name} would ${action}`);
    }
  }
});

// What holds for all facts there can be.

const someOwners = (): OwnerFacts[] =>
  [true, false].flatMap((currentGeneration) =>
    [true, false].flatMap((standalone) =>
      (['open', 'finished', 'delivered'] as const).flatMap((state) =>
        [true, false].flatMap((barred) =>
          [true, false].map((lastReplayEmpty) => ({ currentGeneration, standalone, state, barred, lastReplayEmpty })),
        ),
      ),
    ),
  );

const OWNERS: readonly (readonly OwnerFacts[])[] = (() => {
  const singles = someOwners();
  const kinds = [OPEN, BARRED, FINISHED, DELIVERED, LISTENING, SILENCED, earlier(OPEN), earlier(DELIVERED)];
  return [[], ...singles.map((one) => [one]), ...kinds.flatMap((one) => kinds.map((other) => [one, other]))];
})();

/** Every combination of facts that the later rules look at, and every one that the first rules do. */
function* everything(): Generator<ResumeFacts> {
  const vary = (names: readonly (keyof ResumeFacts)[], from: readonly ResumeFacts[]): readonly ResumeFacts[] =>
    names.reduce((all, name) => all.flatMap((facts) => FACTS[name]!(facts)), from);
  const requests = vary(
    ['get', 'cursorFields', 'cursorEmpty', 'sessionFields', 'withoutResumption', 'minted', 'approved', 'sessionEnded'],
    [BASE],
  );
  const states = vary(
    ['approved', 'sessionKnown', 'sessionEnded', 'listening', 'ownerForgotten', 'storm', 'unrecorded', 'complete'],
    [BASE],
  );
  for (const facts of requests) for (const owners of [[], [OPEN], [DELIVERED]]) yield { ...facts, owners };
  for (const facts of states) for (const owners of OWNERS) yield { ...facts, owners };
}

test('whatever the facts, the first rule that fits answers', () => {
  for (const facts of everything()) {
    const { action, rule } = decide(facts);
    assert.equal(`${action} ${rule}`, answerBy(RULES, facts));
  }
});

test('nothing is stripped while an owner is open, except from a standalone stream that was empty', () => {
  for (const facts of everything()) {
    const { action, rule } = decide(facts);
    if (action !== 'strip') continue;
    assert.ok(facts.owners.length > 0 && !facts.ownerForgotten, JSON.stringify(facts));
    const open = facts.owners.filter(({ state }) => state !== 'delivered');
    if (rule === 'finished') assert.equal(open.length, 0);
    else
      assert.deepEqual(
        open.map(({ standalone, lastReplayEmpty }) => [standalone, lastReplayEmpty]),
        [[true, true]],
      );
  }
});

test('a stranger is refused nothing that a session would have to exist for', () => {
  for (const facts of everything()) {
    if (facts.approved) continue;
    const { action, rule } = decide(facts);
    if (action === 'refuse') assert.ok(rule === 'minted-id' || rule === 'session-unrecorded', rule);
  }
});

test('every refusal has its words, and nothing else does but the empty replay', () => {
  const refusing = new Set<string>(['empty-replay']);
  for (const facts of everything()) {
    const { action, rule } = decide(facts);
    if (action === 'refuse') refusing.add(rule);
  }
  assert.deepEqual([...refusing].sort(), Object.keys(REFUSALS).sort());
});
