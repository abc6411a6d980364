/**
 * A random but legal server, clients and network drive the ledger and the decisions as the proxy does, against an oracle
 * that knows everything: what each client really has, and what the server could really still replay. See `model/`; the
 * oracle and the world import nothing of ours.
 *
 *   1. No cursor is stripped or refused while an undelivered result could still be had by it, but for the three rules
 *      that say so.
 *   2. No delivered result is replayed to a client whose cursor proves that it has it.
 *   3. Memory stays within its bounds.
 *   4. Nothing is dropped as a duplicate that the client does not have.
 *   5. Upstream is asked no more often than the probe schedule allows.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { decide, type ResumeFacts, RULES, type Verdict } from '../../src/core/decide.ts';
import { OUTCOMES } from '../../src/core/replay.ts';
import { play } from './model/play.ts';
import { type Script, script } from './model/script.ts';

const RUNS = 20_000;
/** One seed by default, so that a run means the same everywhere; another one by MODEL_SEED. */
const SEED = Number(process.env['MODEL_SEED'] ?? 20_261_130);
const SEEN_AT_LEAST = 0.01;

/** What a counterexample looks like to a person: the story, then what was broken. */
function told(counterexample: Script): string {
  const story: string[] = [];
  const { breach } = play(counterexample, [1, 2, 3, 4, 5], { story });
  return [...story, breach === null ? 'an exception' : `property ${breach.property}: ${breach.message}`].join('\n');
}

test(`in ${RUNS} random worlds no property is broken, and every rule and outcome occurs`, (t) => {
  t.diagnostic(`MODEL_SEED=${SEED}`);
  const seen = new Map<string, number>([...RULES.map(({ name }) => name), ...OUTCOMES].map((name) => [name, 0]));
  const property = fc.property(script, (world) => {
    const { rules, outcomes, breach } = play(world, [1, 2, 3, 4, 5]);
    for (const name of [...rules, ...outcomes]) seen.set(name, (seen.get(name) ?? 0) + 1);
    if (breach !== null) throw breach;
  });
  const result = fc.check(property, { numRuns: RUNS, seed: SEED });
  if (result.failed) {
    const counterexample = result.counterexample?.[0];
    assert.fail(
      `MODEL_SEED=${SEED}, run ${result.numRuns}\n${counterexample ? told(counterexample) : result.errorInstance}`,
    );
  }
  assert.equal(result.numRuns, RUNS);
  const rare = [...seen].filter(([, count]) => count < RUNS * SEEN_AT_LEAST);
  assert.deepEqual(rare, [], `each in ${SEEN_AT_LEAST * RUNS} worlds or more`);
});

/** Pairs whose exchange these worlds show; `test/core/decide.test.ts` has rows for all that can overlap. */
const NOTICED: readonly string[] = [
  'ambiguous-fields',
  'finished-storm',
  'below-replay-floor',
  'in-window',
  'cursor-unrecorded',
];

for (const first of NOTICED) {
  const at = RULES.findIndex(({ name }) => name === first);
  test(`exchanging ${first} and ${RULES[at + 1]?.name} is noticed`, () => {
    const order = [...RULES];
    [order[at], order[at + 1]] = [order[at + 1]!, order[at]!];
    const exchanged = (facts: ResumeFacts): Verdict => {
      const rule = order.find(({ fits }) => fits(facts))!;
      return { rule: rule.name, action: rule.action(facts) };
    };
    const differs = fc.sample(script, { numRuns: 2_000, seed: SEED }).some((world) => {
      const [right, wrong] = [play(world, [], { decide }), play(world, [1, 5], { decide: exchanged })];
      return wrong.breach !== null || wrong.verdicts.join() !== right.verdicts.join();
    });
    assert.ok(differs, 'no world of 2,000 told them apart');
  });
}
