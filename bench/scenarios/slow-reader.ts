/** One result of 50 MB to a client that reads slowly: does the proxy hold it, and does it arrive as it was? */
import { type Figure, plain } from '../figures.ts';
import { sink } from '../load.ts';
import { resetPeak, resident } from '../processes.ts';
import { QUICK_SUBJECTS, SUBJECTS, type Subject, type SubjectName } from '../proxies.ts';
import { type Scenario, type Stage, warmUp, withSubjects } from '../stage.ts';
import { posts, throughput } from './json.ts';

const BYTES = 50_000_000;
const RATE = 12_500_000;

async function read(stage: Stage, { port, pids }: Subject): Promise<{ growth: Figure; hash: string; bytes: number }> {
  const before = resident(pids).now;
  resetPeak(pids);
  const names = { rate: RATE };
  const { hash, bytes = 0 } = await sink(stage.workshop, 'slow', port, `/mcp?do=large&bytes=${BYTES}`, names);
  return { growth: plain((resident(pids).peak - before) / 1024 / 1024), hash, bytes };
}

export const slowReader: Scenario = {
  name: 'slow-reader',
  about: 'a result of 50 MB to a client that reads 12.5 MB a second: growth of memory, identical bytes',
  async run(stage) {
    const growth = new Map<SubjectName, Figure[]>();
    const { quick, rounds } = stage.plan;
    for (let round = 0; round < (quick ? 1 : rounds); round++) {
      // New processes each time: what one has grown to once it keeps.
      await withSubjects(stage, quick ? QUICK_SUBJECTS : SUBJECTS, async (subjects) => {
        await warmUp(stage, subjects, 'json', (subject, ms) => throughput(subject, posts(1_024, 64, ms)));
        // All at once: it is memory that is measured, and the rate leaves every CPU idle.
        const results = await Promise.all(subjects.map((subject) => read(stage, subject)));
        const direct = results[0]!;
        for (const [i, { name }] of subjects.entries()) {
          const result = results[i]!;
          if (result.hash !== direct.hash || result.bytes !== direct.bytes) {
            throw new Error(`${name}: the bytes are not those of upstream`);
          }
          if (name !== 'direct') growth.set(name, [...(growth.get(name) ?? []), result.growth]);
        }
      });
    }
    return [
      {
        name: 'slow-reader',
        title: 'growth of resident memory during a 50 MB result to a slow reader',
        unit: 'MB',
        better: 'less',
        each: null,
        figures: Object.fromEntries(growth),
        notes: ['every proxy passed the bytes as upstream sent them'],
      },
    ];
  },
};
