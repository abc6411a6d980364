/** Thousands of silent streams: what each costs in memory, and what they cost everybody else. */
import { type Figure, plain, type Row } from '../figures.ts';
import { holdIdle, initialize } from '../load.ts';
import { pause, pss } from '../processes.ts';
import { PROXIES, type Subject, type SubjectName, startSubject } from '../proxies.ts';
import { alternate, CpuWatch, type Scenario, type Stage, warmUp, withSubjects } from '../stage.ts';
import { posts, throughput } from './json.ts';

/** How many streams, in two steps. A quick run has no time for thousands. */
function stepsOf({ plan }: Stage): { few: number; many: number } {
  return plan.quick ? { few: 250, many: 1_000 } : { few: 2_000, many: 8_000 };
}

interface Cost {
  /** In KB. */
  readonly slope: Figure;
  readonly few: Figure;
  readonly base: Figure;
  /** Streams opened a second. */
  readonly opening: Figure;
  readonly loaded: readonly Figure[];
  /** Throughput with the streams over that without them, by round. */
  readonly kept: readonly Figure[];
}

/** Memory once it has come to rest, in bytes. */
async function settled({ pids }: Subject): Promise<number> {
  let before = pss(pids);
  for (let look = 0; look < 12; look++) {
    await pause(250);
    const now = pss(pids);
    if (Math.abs(now - before) < 0.002 * before) return now;
    before = now;
  }
  return before;
}

async function costOf(stage: Stage, name: Exclude<SubjectName, 'direct'>): Promise<Cost> {
  const { fewRounds, window } = stage.plan;
  const { few, many } = stepsOf(stage);
  // Two of a kind, one with the streams and one without, so that both can be measured in each round.
  return withSubjects(stage, [name], async ([bare], upstream) => {
    const loaded = await startSubject(name, upstream, stage.workshop);
    const idle = holdIdle(stage.workshop, loaded.port);
    try {
      for (const { port } of [bare!, loaded]) await initialize(port, 'bench-0');
      await warmUp(stage, [bare!, loaded], 'json', (subject, ms) => throughput(subject, posts(1_024, 64, ms)));
      const base = await settled(loaded);
      await idle.open(few);
      const atFew = await settled(loaded);
      const cpu = new CpuWatch(loaded);
      const began = performance.now();
      await idle.open(many - few);
      const opening = cpu.figure(((many - few) / (performance.now() - began)) * 1_000, many - few);
      const atMany = await settled(loaded);
      // A runtime compiles some of its code anew for what it has not met before.
      await throughput(loaded, posts(1_024, 64, Math.max(window, 1_000)));
      const results = await alternate([bare!, loaded], fewRounds, (subject) =>
        throughput(subject, posts(1_024, 64, window)),
      );
      await idle.open(0);
      if (idle.alive !== many) throw new Error(`${name}: ${many - idle.alive} idle streams were lost`);
      const without = results.get(bare!)!;
      const withStreams = results.get(loaded)!;
      return {
        opening,
        base: plain(base / 1024 / 1024),
        few: plain((atFew - base) / few / 1024),
        slope: plain((atMany - atFew) / (many - few) / 1024),
        loaded: withStreams,
        kept: withStreams.map((figure, round) => ({
          ...figure,
          value: figure.value / without[round]!.value,
          contended: figure.contended || without[round]!.contended,
        })),
      };
    } finally {
      await idle.stop();
      await loaded.stop();
    }
  });
}

const row = (
  name: string,
  title: string,
  unit: string,
  better: Row['better'],
  costs: ReadonlyMap<SubjectName, Cost>,
  of: (cost: Cost) => readonly Figure[],
): Row => ({
  name,
  title,
  unit,
  better,
  each: null,
  figures: Object.fromEntries([...costs].map(([subject, cost]) => [subject, of(cost)])),
  notes: [],
});

export const idle: Scenario = {
  name: 'idle',
  about: '2,000 and 8,000 idle streams: memory of each, and JSON throughput beside them',
  async run(stage) {
    const costs = new Map<SubjectName, Cost>();
    const [few, many] = Object.values(stepsOf(stage)).map((count) => count.toLocaleString('en'));
    for (const name of stage.plan.quick ? (['nginx', 'product'] as const) : PROXIES) {
      stage.say(name);
      costs.set(name, await costOf(stage, name));
    }
    const beside = `JSON POST, 1 KB both ways, 64 connections, beside ${many} idle streams`;
    const loaded = row('json-idle', beside, 'requests/s', 'more', costs, ({ loaded }) => loaded);
    const opening = row('idle-opening', 'opening event streams', 'streams/s', 'more', costs, ({ opening }) => [
      opening,
    ]);
    return [
      { ...opening, each: 'stream' },
      row('idle-base', 'memory without streams, after JSON load (PSS)', 'MB', 'less', costs, ({ base }) => [base]),
      row('idle-few', `memory per idle stream, 0 to ${few} (PSS)`, 'KB', 'less', costs, ({ few }) => [few]),
      row('idle-slope', `memory per idle stream, ${few} to ${many} (PSS)`, 'KB', 'less', costs, ({ slope }) => [slope]),
      { ...loaded, each: 'request', notes: ['each proxy was measured by itself: compare with the next table'] },
      row('json-idle-kept', `${beside}, over the same without`, 'of 1', 'more', costs, ({ kept }) => kept),
    ];
  },
};
