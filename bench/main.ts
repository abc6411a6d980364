/**
 * The benchmark: every scenario, all proxies side by side in one run, and whether the targets are met.
 *
 *     npm run bench                          everything, about twenty minutes
 *     npm run bench -- --quick               everything, shorter, under three minutes
 *     npm run bench -- --only json-1k-64     one scenario (may be given more than once)
 */
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import type { Row } from './figures.ts';
import { QUICK_SUBJECTS, SUBJECTS, type Subject } from './proxies.ts';
import { growthScenarios } from './scenarios/growth.ts';
import { idle } from './scenarios/idle.ts';
import { insideScenarios } from './scenarios/inside.ts';
import { jsonScenarios } from './scenarios/json.ts';
import { lifecycle } from './scenarios/lifecycle.ts';
import { resumes } from './scenarios/resumes.ts';
import { slowReader } from './scenarios/slow-reader.ts';
import { store } from './scenarios/store.ts';
import { streamScenarios } from './scenarios/streams.ts';
import { assemble, type Ensemble, type Plan, type Scenario } from './stage.ts';
import { LEGEND, tableOf, targetTable } from './table.ts';
import { judge } from './targets.ts';
import { descriptorWarning, furnish, missingTools, ROOT, surroundings } from './workshop.ts';

const SCENARIOS: readonly Scenario[] = [
  ...jsonScenarios,
  ...streamScenarios,
  idle,
  slowReader,
  resumes,
  ...insideScenarios,
  lifecycle,
  ...growthScenarios,
  store,
];

interface Wishes {
  readonly plan: Plan;
  readonly scenarios: readonly Scenario[];
  readonly json: string;
}

const HELP = `npm run bench -- [options]

  --quick          shorter windows; under three minutes
  --only <name>    this scenario alone; may be given more than once
  --rounds <n>     rounds of each scenario (default: 5)
  --seed <n>       of what the upstream sends (default: 1)
  --json <file>    where the figures go (default: bench/results/latest.json)

Scenarios:
${SCENARIOS.map(({ name, about }) => `  ${name.padEnd(17)}${about}`).join('\n')}
`;

/** @throws for what the command line cannot mean. */
function readArguments(argv: readonly string[]): Wishes | 'help' {
  const { values } = parseArgs({
    args: [...argv],
    options: {
      quick: { type: 'boolean', default: false },
      only: { type: 'string', multiple: true },
      rounds: { type: 'string', default: '5' },
      seed: { type: 'string', default: '1' },
      json: { type: 'string', default: join(ROOT, 'bench', 'results', 'latest.json') },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) return 'help';
  const whole = (name: 'rounds' | 'seed'): number => {
    const value = Number(values[name]);
    if (!Number.isSafeInteger(value) || value < 1) throw new Error(`--${name} must be a whole number from 1`);
    return value;
  };
  const unknown = values.only?.filter((name) => !SCENARIOS.some((scenario) => scenario.name === name)) ?? [];
  if (unknown.length > 0) throw new Error(`no such scenario: ${unknown.join(', ')} (--help lists them)`);
  const { quick } = values;
  return {
    plan: {
      quick,
      rounds: whole('rounds'),
      fewRounds: quick ? Math.min(3, whole('rounds')) : whole('rounds'),
      window: quick ? 200 : 2_000,
      seed: whole('seed'),
    },
    scenarios: SCENARIOS.filter(({ name }) => values.only?.includes(name) ?? true),
    json: values.json,
  };
}

async function run({ plan, scenarios, json }: Wishes): Promise<number> {
  const missing = missingTools();
  if (missing !== null) {
    console.error(missing);
    return 2;
  }
  const dir = mkdtempSync(join(tmpdir(), 'bench-'));
  // nginx gives up root for its worker, which still has to get to its files.
  chmodSync(dir, 0o755);
  process.on('exit', () => rmSync(dir, { recursive: true, force: true }));
  const began = performance.now();
  const workshop = furnish(dir);
  const { machine, versions } = surroundings();
  console.log(`${JSON.stringify(machine)}\n${JSON.stringify(versions)}\n${JSON.stringify(plan)}\n\n${LEGEND}\n`);
  let ensemble: Promise<Ensemble> | null = null;
  const shared = async (): Promise<readonly Subject[]> =>
    (await (ensemble ??= assemble(workshop, plan.seed, plan.quick ? QUICK_SUBJECTS : SUBJECTS))).subjects;
  const warning = descriptorWarning();
  if (warning !== null) console.log(warning);
  const rows: Row[] = [];
  const failures: { scenario: string; reason: string }[] = [];
  for (const { name, run: play } of scenarios) {
    const since = performance.now();
    const say = (text: string): void => void process.stderr.write(`  ${name}: ${text}\n`);
    try {
      const found = await play({ plan, workshop, say, shared });
      rows.push(...found);
      console.log(`${found.map(tableOf).join('\n\n')}\n`);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      failures.push({ scenario: name, reason });
      console.log(`${name} FAILED: ${reason}\n`);
    }
    say(`${((performance.now() - since) / 1_000).toFixed(1)} s`);
  }
  await (ensemble as Promise<Ensemble> | null)?.then(({ stop }) => stop());
  const targets = judge(rows);
  const seconds = Math.round((performance.now() - began) / 1_000);
  if (targets.length > 0) console.log(`${targetTable(targets)}\n`);
  if (plan.quick) console.log('A quick run tells what has changed by a lot. For the targets, run it in full.\n');
  mkdirSync(dirname(json), { recursive: true });
  const at = new Date().toISOString();
  writeFileSync(
    json,
    `${JSON.stringify({ at, seconds, machine, versions, plan, targets, failures, rows }, null, 1)}\n`,
  );
  console.log(`${seconds} s; figures in ${json}`);
  return failures.length > 0 ? 1 : 0;
}

// Children and the temporary directory go on exit, so an interrupt has to become one.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => process.exit(130));

try {
  const wishes = readArguments(process.argv.slice(2));
  if (wishes === 'help') process.stdout.write(HELP);
  else process.exitCode = await run(wishes);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 2;
}
