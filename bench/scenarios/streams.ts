/** Event streams: at full speed, at a moderate rate, and how soon the first byte is there. */
import type { Figure, Row } from '../figures.ts';
import { initialize, sink } from '../load.ts';
import type { Subject } from '../proxies.ts';
import { alternate, byName, CpuWatch, type Scenario, type Stage, warmUp } from '../stage.ts';

function fullSpeed(name: string, batch: number): Scenario {
  const title = `one event stream at full speed, ${batch === 1 ? 'one event' : `${batch} events`} per write`;
  return {
    name,
    about: title,
    async run(stage: Stage): Promise<readonly Row[]> {
      const { rounds, window } = stage.plan;
      const eventsPerSecond = async (subject: Subject, ms: number): Promise<Figure> => {
        const cpu = new CpuWatch(subject);
        const target = `/mcp?do=sse&ms=${ms}&batch=${batch}`;
        const { events = 0, elapsed = 0 } = await sink(stage.workshop, 'drain', subject.port, target);
        return cpu.figure((events / elapsed) * 1e9, events);
      };
      const subjects = await stage.shared();
      for (const { port } of subjects) await initialize(port, 'bench-0');
      await warmUp(stage, subjects, 'full speed', eventsPerSecond);
      const figures = byName(await alternate(subjects, rounds, (subject) => eventsPerSecond(subject, window)));
      return [{ name, title, unit: 'events/s', better: 'more', each: 'event', figures, notes: [] }];
    },
  };
}

const RATE = 20;
const STREAMS = 500;

/** From the upstream's write to the sink's read, in µs. */
interface Delays {
  readonly p50: Figure;
  readonly p99: Figure;
  /** Share of the events that had not come soon after the end. */
  readonly late: number;
}

async function delays(stage: Stage, subject: Subject, ms: number, warm: number): Promise<Delays> {
  const cpu = new CpuWatch(subject);
  // Long enough for streams that open slowly; the sink leaves when it has seen enough.
  const target = `/mcp?do=timed&hz=${RATE}&gate=${STREAMS}&ms=${warm + ms + 30_000}`;
  const names = { streams: STREAMS, ms, warm };
  const result = await sink(stage.workshop, 'timed', subject.port, target, names, () => cpu.restart());
  const { p50 = 0, p99 = 0, count = 0, events = 0 } = result;
  const late = 1 - count / ((STREAMS * RATE * ms) / 1_000);
  return { p50: cpu.figure(p50 / 1e3, events), p99: cpu.figure(p99 / 1e3, events), late };
}

/** What a proxy adds: its figures less those of the same round without any. */
function added(row: Row): Row {
  const without = row.figures.direct ?? [];
  const entries = Object.entries(row.figures)
    .filter(([name]) => name !== 'direct')
    .map(([name, figures]) => [
      name,
      figures.map((figure, round) => ({ ...figure, value: figure.value - (without[round]?.value ?? 0) })),
    ]);
  const figures = Object.fromEntries(entries) as Row['figures'];
  return { ...row, name: `${row.name}-added`, title: `${row.title}, added over direct`, figures };
}

/** Two rows, from measurements that each have a median and a 99th percentile. */
function quantiles(
  results: ReadonlyMap<Subject, readonly Record<'p50' | 'p99', Figure>[]>,
  { name, title, each, notes }: Pick<Row, 'name' | 'title' | 'each' | 'notes'>,
): [p50: Row, p99: Row] {
  const row = (quantile: 'p50' | 'p99'): Row => ({
    name: `${name}-${quantile}`,
    title: `${title}, ${quantile}`,
    unit: 'µs',
    better: 'less',
    each,
    figures: byName(new Map([...results].map(([subject, list]) => [subject, list.map((both) => both[quantile])]))),
    notes,
  });
  return [row('p50'), row('p99')];
}

const moderate: Scenario = {
  name: 'delay',
  about: `delay of an event: ${STREAMS} streams, ${RATE} events a second each`,
  async run(stage) {
    const { quick, fewRounds, window } = stage.plan;
    const ms = quick ? 300 : window;
    const subjects = await stage.shared();
    await warmUp(stage, subjects, 'moderate', async (subject, slice) => (await delays(stage, subject, slice, 0)).p50);
    const results = await alternate(subjects, fewRounds, (subject) => delays(stage, subject, ms, 50));
    const notes = [...results]
      .filter(([, list]) => list.some(({ late }) => late > 0.05))
      .map(([{ name }]) => `${name} did not keep up: its figures leave out events that came too late`);
    const title = `delay of an event, ${STREAMS} streams, ${RATE} events/s each`;
    const rows = quantiles(results, { name: 'delay', title, each: 'event', notes });
    return rows.flatMap((row) => [row, added(row)]);
  },
};

const firstByte: Scenario = {
  name: 'first-byte',
  about: 'first byte of a POST stream, one connection',
  async run(stage) {
    const { quick, fewRounds } = stage.plan;
    const count = quick ? 200 : 1_000;
    const delay = async (subject: Subject): Promise<{ p50: Figure; p99: Figure }> => {
      const cpu = new CpuWatch(subject);
      const { p50 = 0, p99 = 0 } = await sink(stage.workshop, 'first', subject.port, '/mcp?do=first', { count });
      return { p50: cpu.figure(p50 / 1e3, count), p99: cpu.figure(p99 / 1e3, count) };
    };
    const subjects = await stage.shared();
    for (const { port } of subjects) await initialize(port, 'bench-0');
    await warmUp(stage, subjects, 'first byte', async (subject) => (await delay(subject)).p50);
    const results = await alternate(subjects, fewRounds, delay);
    const title = 'first byte of a POST stream, one connection';
    return quantiles(results, { name: 'first-byte', title, each: 'stream', notes: [] });
  },
};

export const streamScenarios: readonly Scenario[] = [
  fullSpeed('sse-1', 1),
  fullSpeed('sse-40', 40),
  moderate,
  firstByte,
];
