/**
 * `docs/decisions.md` says what the code does: its headings are the rules and outcomes, in their order; the verdicts are
 * those of the tables; and every example on it happens on the wire, and is logged and counted, as it says.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { type ResumeFacts, RULES, type RuleName } from '../src/core/decide.ts';
import { REFUSALS, type RefusalRule } from '../src/core/refusal.ts';
import { OUTCOMES, type Outcome } from '../src/core/replay.ts';
import { createMetrics } from '../src/ops/metrics.ts';
import type { ExchangeReport } from '../src/report.ts';
import { runExample } from './support/example.ts';
import type { Guard, LogLine } from './support/guard.ts';
import { eventually } from './support/waiting.ts';

const PAGE = readFileSync(new URL('../docs/decisions.md', import.meta.url), 'utf8');

interface Entry {
  readonly name: string;
  readonly text: string;
}

/** What stands under each heading of the third level. */
const ENTRIES: readonly Entry[] = PAGE.split(/^### /m)
  .slice(1)
  .map((part) => {
    const [heading = '', ...lines] = part.split('\n');
    return { name: heading.replace(/^`|`$/g, ''), text: lines.join('\n').split(/^## /m)[0]! };
  });
const entryOf = (name: string): string => ENTRIES.find((entry) => entry.name === name)!.text;

test('the headings are exactly the rules and the outcomes, in their order', () => {
  assert.deepEqual(
    ENTRIES.map(({ name }) => name),
    [...RULES.map(({ name }) => name), ...OUTCOMES],
  );
});

describe('the verdict under the heading', () => {
  /** All that the action of a rule may look at, in every combination. */
  const facts = (['forward', 'complete', 'refuse'] as const).flatMap((unrecorded) =>
    [true, false].flatMap((approved) =>
      [true, false].map((complete) => ({ unrecorded, approved, complete, ownerForgotten: false }) as ResumeFacts),
    ),
  );

  for (const { name, action } of RULES) {
    test(`${name}`, () => {
      const actions = [...new Set(facts.map(action))];
      const verdicts = actions.map((is) => (is === 'refuse' ? `refuse ${REFUSALS[name as RefusalRule].status}` : is));
      assert.equal(/^Verdict: (.*)$/m.exec(entryOf(name))?.[1], verdicts.join(', or '));
    });
  }

  const ANSWERS: Readonly<Record<Outcome, string>> = {
    replayed: 'pass',
    live: 'pass',
    polled: 'pass',
    displaced: 'pass',
    empty: `refuse ${REFUSALS['empty-replay'].status}`,
    silent: `refuse ${REFUSALS['empty-replay'].status}`,
    broken: 'fail 502',
    abandoned: 'none',
    'not-a-replay': 'pass',
  };
  for (const outcome of OUTCOMES) {
    test(`${outcome}`, () => {
      assert.equal(/^Answer: (.*)$/m.exec(entryOf(outcome))?.[1], ANSWERS[outcome]);
    });
  }
});

describe('every rule and every outcome can be counted', () => {
  const report = (rule: RuleName, outcome: Outcome | null) =>
    ({ rule, verdict: 'forward', outcome, duration: 1, firstByteAfter: null }) as ExchangeReport;

  test('under its own name', async () => {
    const { registry, observer } = createMetrics({
      sessions: () => 0,
      storeErrors: () => 0,
      storeDropped: () => 0,
      storePending: () => 0,
    });
    for (const { name } of RULES) observer.decided(report(name, null));
    for (const outcome of OUTCOMES) observer.decided(report('in-window', outcome));
    observer.lateEmpty();
    const text = await registry.metrics();
    for (const { name } of RULES)
      assert.match(text, new RegExp(`^mcp_resume_guard_resumes_total\\{.*rule="${name}"\\} [1-9]`, 'm'));
    for (const outcome of [...OUTCOMES, 'late-empty']) {
      assert.match(text, new RegExp(`^mcp_resume_guard_replays_total\\{outcome="${outcome}"\\} 1$`, 'm'));
    }
  });
});

const LEVELS: Readonly<Record<string, number>> = { debug: 20, info: 30, warn: 40 };

/** The log line that says all of this. */
async function logged(guard: Guard, expected: Readonly<Record<string, unknown>>): Promise<void> {
  const { level, ...fields } = expected;
  const wanted = { ...fields, level: LEVELS[String(level)] };
  const isIt = (line: LogLine): boolean => Object.entries(wanted).every(([name, value]) => line[name] === value);
  const seen = (): string => JSON.stringify(guard.logs.at(-1));
  await eventually(`a log line ${JSON.stringify(wanted)}`, () => guard.logs.some(isIt)).catch((fault: Error) => {
    throw new Error(`${fault.message}; the last line is ${seen()}`);
  });
}

describe('the examples', () => {
  for (const { name, text } of ENTRIES) {
    const examples = [...text.matchAll(/^```text\n([\s\S]*?)^```$[\s\S]*?^Logged: `(.*)`$/gm)];

    test(`there is one for ${name}`, () => {
      assert.ok(examples.length > 0, 'an example and what is logged');
      assert.equal(examples.length, [...text.matchAll(/^```text$/gm)].length, 'each example says what is logged');
    });

    for (const [, lines = '', line = ''] of examples) {
      test(`of ${name}: ${line}`, async (t) => {
        const guard = await runExample(t, lines);
        const expected = JSON.parse(line) as Readonly<Record<string, string>>;
        await logged(guard, expected);
        const { rule, verdict, outcome } = expected;
        if (verdict !== undefined)
          assert.ok((await guard.metric('resumes_total', { verdict, rule: rule! })) > 0, 'counted');
        if (outcome !== undefined) assert.ok((await guard.metric('replays_total', { outcome })) > 0, 'counted');
        const names = [rule ?? 'not-a-resume', outcome];
        assert.ok(names.includes(name), 'the example is one of this heading');
      });
    }
  }
});
