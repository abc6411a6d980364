/** What a shared store costs: the product with one beside itself without, and what arrives at Redis. */
import { request } from 'node:http';
import { createClient } from 'redis';
import { type Figure, plain, type Row } from '../figures.ts';
import { initialize, post, sink } from '../load.ts';
import { accepting, freePort, pause, start, stop } from '../processes.ts';
import { type Subject, startSubject } from '../proxies.ts';
import { alternate, byName, CpuWatch, type Scenario, type Stage, warmUp, withSubjects } from '../stage.ts';

/** Commands that carry what is told and asked, and not what a connection says of itself. */
const COUNTED = /^cmdstat_(hset|hdel|hgetall|pexpire):calls=(\d+)/gm;
/** Of each subject in each round; a quick run makes fewer. */
const RESUMES = 1_000;
const QUICK_RESUMES = 200;
const STREAMS = 50;
const RATE = 20;

/** A Redis on the core of the load, for as long as `use` takes. */
async function withRedis<T>({ workshop }: Stage, use: (redis: Redis) => Promise<T>): Promise<T> {
  const port = await freePort();
  const args = [
    '--port',
    String(port),
    '--bind',
    '127.0.0.1',
    '--save',
    '',
    '--appendonly',
    'no',
    '--dir',
    workshop.dir,
  ];
  const child = start('redis-server', args, { core: 'load', stdio: ['ignore', 'ignore', 'inherit'] });
  await accepting(port, child);
  process.env['BENCH_STORE'] = `redis://127.0.0.1:${port}/0`;
  process.env['MCP_RESUME_GUARD_STORE_SECRET'] = 'a-secret-of-the-benchmark';
  const client = createClient({ socket: { host: '127.0.0.1', port } });
  await client.connect();
  try {
    return await use({
      async commands() {
        const text = await client.info('commandstats');
        return [...text.matchAll(COUNTED)].reduce((sum, [, , calls]) => sum + Number(calls), 0);
      },
      async bytes() {
        const [, used = ''] = /^used_memory:(\d+)/m.exec(await client.info('memory')) ?? [];
        return Number(used);
      },
    });
  } finally {
    client.destroy();
    await stop(child);
  }
}

interface Redis {
  /** So far. */
  commands(): Promise<number>;
  bytes(): Promise<number>;
}

/** How long a resume took, in µs. */
async function resumeTime(port: number, session: string, cursor: string): Promise<number> {
  const from = process.hrtime.bigint();
  await get(port, session, cursor);
  return Number(process.hrtime.bigint() - from) / 1e3;
}

function get(port: number, session: string, cursor: string): Promise<void> {
  const headers = { Accept: 'text/event-stream', 'Mcp-Session-Id': session, 'Last-Event-ID': cursor };
  return new Promise((resolve, reject) => {
    const sent = request({ host: '127.0.0.1', port, path: '/mcp?do=none', headers }, (response) => {
      response.resume();
      response.on('end', resolve);
      response.on('error', reject);
    });
    sent.on('error', reject);
    sent.end();
  });
}

async function events(stage: Stage, subjects: readonly Subject[]): Promise<Row> {
  const { rounds, window } = stage.plan;
  const eventsPerSecond = async (subject: Subject, ms: number): Promise<Figure> => {
    const cpu = new CpuWatch(subject);
    const target = `/mcp?do=sse&ms=${ms}&batch=1`;
    const { events: count = 0, elapsed = 0 } = await sink(stage.workshop, 'drain', subject.port, target);
    return cpu.figure((count / elapsed) * 1e9, count);
  };
  for (const { port } of subjects) await initialize(port, 'bench-0');
  await warmUp(stage, subjects, 'full speed', eventsPerSecond);
  const figures = byName(await alternate(subjects, rounds, (subject) => eventsPerSecond(subject, window)));
  const title = 'one event stream at full speed, with a shared store and without';
  return { name: 'store-events', title, unit: 'events/s', better: 'more', each: 'event', figures, notes: [] };
}

/** A session of some requests, which passed at `other` where the store is shared: all of it has to be asked for. */
async function resumes(stage: Stage, subjects: readonly Subject[], other: Subject, requests: number): Promise<Row[]> {
  const session = `store-${requests}`;
  const cursors = Array.from({ length: requests }, (_, n) => `${session}-${n}-3`);
  for (const { port } of subjects.map((subject) => (subject.name === 'product' ? subject : other))) {
    await initialize(port, session);
    for (let n = 0; n < requests; n += 1) await post(port, `/mcp?do=call&tag=${session}-${n}`, session);
  }
  await pause(500);
  // In turns, one at a time: what else the machine does is there for both. The first round only warms up.
  const results = new Map(subjects.map((subject) => [subject, [] as Record<'p50' | 'p99', Figure>[]]));
  const count = stage.plan.quick ? QUICK_RESUMES : RESUMES;
  for (let round = 0; round <= stage.plan.rounds; round += 1) {
    const times = new Map(subjects.map((subject) => [subject, [] as number[]]));
    for (let n = 0; n < count; n += 1) {
      for (const [subject, list] of times) {
        list.push(await resumeTime(subject.port, session, cursors[n % cursors.length]!));
      }
    }
    for (const [subject, list] of times) {
      list.sort((a, b) => a - b);
      const at = (share: number): Figure => plain(list[Math.floor(share * (list.length - 1))]!);
      if (round > 0) results.get(subject)!.push({ p50: at(0.5), p99: at(0.99) });
    }
  }
  const row = (quantile: 'p50' | 'p99', added: boolean): Row => {
    const figures = byName(
      new Map([...results].map(([subject, list]) => [subject, list.map((both) => both[quantile])])),
    );
    const title = `a resume in a session of ${requests} requests, ${quantile}`;
    const common = { unit: 'µs', better: 'less', each: null, notes: [] } as const;
    if (!added) return { name: `store-resume-${requests}-${quantile}`, title, figures, ...common };
    const without = figures.product ?? [];
    const more = (figures['product-store'] ?? []).map(({ value }, i) => plain(value - (without[i]?.value ?? 0)));
    return {
      name: `store-resume-${requests}-${quantile}-added`,
      title: `${title}, added`,
      figures: { 'product-store': more },
      ...common,
    };
  };
  return [row('p50', false), row('p99', false), row('p50', true), row('p99', true)];
}

/** A thousand events a second, in one session or spread over several. */
async function operations(stage: Stage, { port }: Subject, redis: Redis, sessions: number): Promise<Row> {
  const ms = stage.plan.quick ? 2_000 : 10_000;
  const names = Array.from({ length: sessions }, (_, n) => `many-${sessions}-${n}`);
  for (const name of names) await initialize(port, name);
  await pause(300);
  const [before, bytes] = [await redis.commands(), await redis.bytes()];
  const target = `/mcp?do=timed&hz=${RATE}&gate=${STREAMS}&ms=${ms}`;
  await Promise.all(Array.from({ length: STREAMS }, (_, n) => post(port, target, names[n % sessions]!)));
  await pause(300);
  const count = (STREAMS * RATE * ms) / 1_000;
  const figure = plain(((await redis.commands()) - before) / count);
  const memory = Math.round(((await redis.bytes()) - bytes) / count);
  return {
    name: `store-operations-${sessions}`,
    title: `commands to Redis for an event, 1,000 events/s in ${sessions} session${sessions === 1 ? '' : 's'}`,
    unit: '',
    better: 'less',
    each: null,
    figures: { 'product-store': [figure] },
    notes: [`about ${memory} bytes in Redis for an event`],
  };
}

export const store: Scenario = {
  name: 'store',
  about: 'what a shared store costs, beside the product without one (needs redis-server)',
  run: (stage) =>
    withRedis(stage, (redis) =>
      withSubjects(stage, ['product', 'product-store'], async (subjects, upstream) => {
        const rows = [await events(stage, subjects)];
        const other = await startSubject('product-store', upstream, stage.workshop);
        for (const requests of stage.plan.quick ? [10] : [10, 100])
          rows.push(...(await resumes(stage, subjects, other, requests)));
        await other.stop();
        const [, shared] = subjects;
        for (const sessions of stage.plan.quick ? [1] : [1, 5, 50])
          rows.push(await operations(stage, shared!, redis, sessions));
        return rows;
      }),
    ),
};
