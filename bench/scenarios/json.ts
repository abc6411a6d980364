/** JSON in, JSON out: requests a second, and what each costs the proxy. */
import type { Figure, Row } from '../figures.ts';
import { initialize, type WrkOptions, wrk } from '../load.ts';
import type { Subject } from '../proxies.ts';
import { alternate, byName, CpuWatch, type Scenario, type Stage, warmUp } from '../stage.ts';

/** POSTs of a session that the subject knows. */
export function posts(bytes: number, connections: number, window: number): WrkOptions {
  return { connections, window, target: `/mcp?do=json&bytes=${bytes}`, env: { BENCH_BYTES: String(bytes) } };
}

/** JSON requests a second. */
export async function throughput(subject: Subject, options: WrkOptions): Promise<Figure> {
  const cpu = new CpuWatch(subject);
  const { requests, rate, answers, refused } = await wrk(
    subject.port,
    options,
    () => cpu.restart(),
    () => cpu.stop(),
  );
  if (refused > 0) throw new Error(`${refused} of ${answers} POSTs were refused`);
  return cpu.figure(rate, requests);
}

function scenario(name: string, size: string, bytes: number, connections: number): Scenario {
  const title = `JSON POST, ${size} both ways, ${connections} ${connections === 1 ? 'connection' : 'connections'}`;
  return {
    name,
    about: title,
    async run(stage: Stage): Promise<readonly Row[]> {
      const { rounds, fewRounds, window } = stage.plan;
      const subjects = await stage.shared();
      for (const { port } of subjects) await initialize(port, 'bench-0');
      await warmUp(stage, subjects, `json ${bytes}`, (subject, ms) =>
        throughput(subject, posts(bytes, connections, ms)),
      );
      const results = await alternate(subjects, connections === 1 ? fewRounds : rounds, (subject) =>
        throughput(subject, posts(bytes, connections, window)),
      );
      const figures = byName(results);
      return [{ name, title, unit: 'requests/s', better: 'more', each: 'request', figures, notes: [] }];
    },
  };
}

export const jsonScenarios: readonly Scenario[] = [
  scenario('json-1k-64', '1 KB', 1_024, 64),
  scenario('json-1k-1', '1 KB', 1_024, 1),
  scenario('json-100k-64', '100 KB', 102_400, 64),
  scenario('json-100k-1', '100 KB', 102_400, 1),
];
