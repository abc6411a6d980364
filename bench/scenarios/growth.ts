/** The same work spread over more streams, and over more sessions: does throughput hold, what does memory do? */
import { type Figure, plain, type Row } from '../figures.ts';
import { sink } from '../load.ts';
import { pause, pss } from '../processes.ts';
import type { Subject, SubjectName } from '../proxies.ts';
import { alternate, byName, CpuWatch, type Scenario, type Stage, warmUp, withSubjects } from '../stage.ts';
import { posts, throughput } from './json.ts';

const MEASURED: readonly SubjectName[] = ['direct', 'nginx', 'http-proxy-3', 'product'];
const MEGABYTE = 1024 * 1024;

/** What the kernel may hold for one stream on its way from upstream; thousands of them would fill the memory. */
const SEND_BUFFER = 16_384;

interface Point {
  readonly throughput: Figure;
  /** In MB. */
  readonly memory: Figure;
}

async function flow(stage: Stage, subject: Subject, streams: number, ms: number): Promise<Point> {
  const target = `/mcp?do=sse&gate=${streams}&sndbuf=${SEND_BUFFER}&ms=${ms}`;
  const cpu = new CpuWatch(subject);
  let memory = Promise.resolve(0);
  const begun = (): void => {
    cpu.restart();
    memory = pause(ms * 0.7).then(() => pss(subject.pids) / MEGABYTE);
  };
  const names = { streams, session: `flow-${streams}` };
  const { events = 0, elapsed = 0 } = await sink(stage.workshop, 'drain', subject.port, target, names, begun);
  return { throughput: cpu.figure((events / elapsed) * 1e9, events), memory: plain(await memory) };
}

async function sessionLoad(subject: Subject, sessions: number, window: number): Promise<Point> {
  const options = { ...posts(1_024, 64, window), env: { BENCH_SESSIONS: String(sessions) } };
  const load = await throughput(subject, options);
  return { throughput: load, memory: plain(pss(subject.pids) / MEGABYTE) };
}

function rowsOf(
  results: ReadonlyMap<Subject, readonly Point[]>,
  { name, title, unit, each }: Pick<Row, 'name' | 'title' | 'unit' | 'each'>,
): Row[] {
  const throughput = new Map(
    [...results].map(([subject, points]) => [subject, points.map((point) => point.throughput)]),
  );
  const memory = new Map(
    [...results]
      .filter(([{ pids }]) => pids.length > 0)
      .map(([subject, points]) => [subject, points.map((point) => point.memory)]),
  );
  return [
    { name, title, unit, better: 'more', each, figures: byName(throughput), notes: [] },
    {
      name: `${name}-memory`,
      title: `${title}: memory (PSS)`,
      unit: 'MB',
      better: 'less',
      each: null,
      figures: byName(memory),
      notes: [],
    },
  ];
}

const overStreams: Scenario = {
  name: 'growth-streams',
  about: 'full speed over 1 to 8,000 streams: throughput and memory',
  run: (stage) =>
    withSubjects(stage, MEASURED, async (subjects) => {
      const { quick, window } = stage.plan;
      const rows: Row[] = [];
      await warmUp(stage, subjects, 'flow', async (subject, ms) => (await flow(stage, subject, 1, ms)).throughput);
      for (const streams of quick ? [100] : [1, 10, 100, 1_000, 8_000]) {
        stage.say(`${streams}`);
        const rounds = quick ? 1 : 3;
        const results = await alternate(subjects, rounds, (subject) => flow(stage, subject, streams, window));
        const title = `${streams.toLocaleString('en')} ${streams === 1 ? 'stream' : 'streams'} at full speed`;
        rows.push(...rowsOf(results, { name: `streams-${streams}`, title, unit: 'events/s', each: 'event' }));
      }
      return rows;
    }),
};

const overSessions: Scenario = {
  name: 'growth-sessions',
  about: 'JSON POST over 10 to 10,000 sessions: throughput and memory',
  run: (stage) =>
    withSubjects(stage, MEASURED, async (subjects) => {
      const { quick, window } = stage.plan;
      const rows: Row[] = [];
      await warmUp(stage, subjects, 'json', async (subject, ms) => (await sessionLoad(subject, 10, ms)).throughput);
      for (const sessions of quick ? [1_000] : [10, 1_000, 10_000]) {
        stage.say(`${sessions}`);
        // Long enough for every session to come up.
        for (const subject of subjects) await sessionLoad(subject, sessions, Math.max(window, sessions / 10));
        const results = await alternate(subjects, quick ? 1 : 3, (subject) => sessionLoad(subject, sessions, window));
        const title = `JSON POST, 1 KB both ways, 64 connections, ${sessions.toLocaleString('en')} sessions`;
        rows.push(...rowsOf(results, { name: `sessions-${sessions}`, title, unit: 'requests/s', each: 'request' }));
      }
      return rows;
    }),
};

export const growthScenarios: readonly Scenario[] = [overStreams, overSessions];
