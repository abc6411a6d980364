/** What needs no socket: the decision alone, a cursor against a large session, the memory of the ledger. */
import { fileURLToPath } from 'node:url';
import { plain, type Row } from '../figures.ts';
import { output, start } from '../processes.ts';
import type { Scenario, Stage } from '../stage.ts';

/** One line that a program in `inside/` prints. */
export interface Finding {
  readonly name: string;
  readonly title: string;
  readonly unit: string;
  readonly better: Row['better'];
  readonly value: number;
}

/** Runs a program of `inside/` in a process of its own on the proxy's core, once for each round. */
async function runInside({ workshop, plan }: Stage, program: string): Promise<Row[]> {
  const file = fileURLToPath(new URL(`../inside/${program}.ts`, import.meta.url));
  const rows = new Map<string, Finding[]>();
  for (let round = 0; round < plan.fewRounds; round++) {
    const args = ['--expose-gc', '--import', 'tsx', file, workshop.dist, plan.quick ? 'quick' : 'full'];
    const child = start(process.execPath, args, { core: 'proxy', stdio: ['ignore', 'pipe', 'pipe'] });
    const { stdout, stderr, code } = await output(child);
    if (code !== 0) throw new Error(`inside/${program}: ${stderr}`);
    for (const line of stdout.trim().split('\n')) {
      const finding = JSON.parse(line) as Finding;
      rows.set(finding.name, [...(rows.get(finding.name) ?? []), finding]);
    }
  }
  return [...rows.values()].map((findings) => {
    const { name, title, unit, better } = findings[0]!;
    const figures = { product: findings.map(({ value }) => plain(value)) };
    return { name, title, unit, better, each: null, figures, notes: [] };
  });
}

const scenario = (name: string, about: string): Scenario => ({ name, about, run: (stage) => runInside(stage, name) });

export const insideScenarios: readonly Scenario[] = [
  scenario('decide', 'the decision alone'),
  scenario('resolve', 'a cursor in a session of 100 streams with 1,000 IDs each'),
  scenario('ledger', 'memory of the ledger: an event, a session'),
];
