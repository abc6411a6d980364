/** Decisions a second: the table of rules against facts that are there already. */
import type { OwnerFacts, ResumeFacts } from '../../src/core/decide.ts';
import { decide, quick, RULES, report } from './rooms.ts';

const owner: OwnerFacts = {
  currentGeneration: true,
  standalone: false,
  state: 'open',
  barred: false,
  lastReplayEmpty: false,
};
const base: ResumeFacts = {
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
  owners: [owner],
  ownerForgotten: false,
  storm: false,
  unrecorded: 'forward',
  complete: false,
};
const delivered: OwnerFacts = { ...owner, state: 'delivered' };

/** For each rule the facts that it fits, most with two owners. */
const FACTS: readonly ResumeFacts[] = [
  { ...base, get: false },
  { ...base, withoutResumption: true },
  { ...base, cursorFields: 2 },
  { ...base, minted: true },
  { ...base, sessionEnded: true },
  { ...base, owners: [{ ...owner, currentGeneration: false }] },
  { ...base, owners: [delivered, delivered], listening: true },
  { ...base, owners: [delivered, delivered], storm: true },
  { ...base, owners: [delivered, delivered] },
  { ...base, owners: [delivered, { ...owner, standalone: true, lastReplayEmpty: true }] },
  { ...base, owners: [{ ...owner, barred: true }, delivered] },
  { ...base, owners: [{ ...owner, state: 'finished' }, delivered] },
  { ...base, owners: [owner, delivered] },
  { ...base, owners: [] },
  { ...base, owners: [], sessionKnown: false },
];

for (const [i, facts] of FACTS.entries()) {
  const { rule } = decide(facts);
  if (rule !== RULES[i]?.name) throw new Error(`facts ${i} come to ${rule}, not ${RULES[i]?.name}`);
}

let kept = 0;

/** Decisions a second over these facts in turn. */
function speed(facts: readonly ResumeFacts[], decisions: number): number {
  const began = performance.now();
  for (let i = 0, at = 0; i < decisions; i++) {
    kept += decide(facts[at]!).rule.length;
    at = at + 1 === facts.length ? 0 : at + 1;
  }
  return (decisions / (performance.now() - began)) * 1_000;
}

const decisions = quick ? 500_000 : 3_000_000;
speed(FACTS, decisions);
report({
  name: 'decisions',
  title: 'decisions, every rule in turn',
  unit: 'decisions/s',
  better: 'more',
  value: speed(FACTS, decisions),
});
const slowest = Math.min(...FACTS.map((facts) => speed([facts], decisions / 5)));
report({
  name: 'decisions-slowest',
  title: 'decisions, the slowest rule',
  unit: 'decisions/s',
  better: 'more',
  value: slowest,
});
if (kept === 0) throw new Error('nothing was decided');
