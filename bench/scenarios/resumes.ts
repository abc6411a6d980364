/**
 * Resumes a second, by what the guard makes of them. The other proxies pass the same requests on, whatever comes back:
 * that is what a resume costs where nobody decides anything.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Figure, Row } from '../figures.ts';
import { initialize, post, type WrkOptions, wrk } from '../load.ts';
import { adminOf, type Subject, type SubjectName } from '../proxies.ts';
import { alternate, byName, CpuWatch, type Scenario, type Stage, warmUp, withSubjects } from '../stage.ts';

const MEASURED: readonly SubjectName[] = ['nginx', 'http-proxy-3', 'product'];
const MEASURED_QUICKLY: readonly SubjectName[] = ['http-proxy-3', 'product'];
const STREAMS_PER_SESSION = 100;
const AT_ONCE = 20;

interface Kind {
  readonly name: string;
  readonly title: string;
  /** How many cursors take turns. */
  readonly cursors: (stage: Stage) => number;
  /** The stream that mints them, as the upstream names it; null for none. */
  readonly mint: 'call' | 'cut' | null;
  /** Which of the stream's three events the client saw last; 0: it sends no cursor. */
  readonly seen: 0 | 1 | 3;
  /** What the upstream is asked for. */
  readonly wants: 'none' | 'replay' | 'empty';
  /** Nobody has seen the cursor before: a new one each time. */
  readonly unique: boolean;
  /** The verdict that the product must have reached, by its own count, for nearly all; null: these are not decided. */
  readonly verdict: { readonly verdict: string; readonly rule: string } | null;
}

// A cursor may be stripped ten times before it counts as a storm, hence many cursors for the one and few for the other.
const KINDS: readonly Kind[] = [
  {
    name: 'pass',
    title: 'GET without a cursor: pass',
    cursors: () => 512,
    mint: null,
    seen: 0,
    wants: 'none',
    unique: false,
    verdict: null,
  },
  {
    name: 'strip',
    title: 'cursor of a finished request: strip',
    cursors: ({ plan }) => (plan.quick ? 1_500 : 20_000),
    mint: 'call',
    seen: 3,
    wants: 'none',
    unique: false,
    verdict: { verdict: 'strip', rule: 'finished' },
  },
  {
    name: 'replayed',
    title: 'cursor of an open request: forward, replayed',
    cursors: () => 512,
    mint: 'cut',
    seen: 1,
    wants: 'replay',
    unique: false,
    verdict: { verdict: 'forward', rule: 'in-window' },
  },
  {
    name: 'empty',
    title: 'cursor never seen: forward, an empty replay becomes 409',
    cursors: () => 512,
    mint: null,
    seen: 1,
    wants: 'empty',
    unique: true,
    verdict: { verdict: 'forward', rule: 'cursor-unrecorded' },
  },
  {
    name: 'refuse',
    title: 'storm on a finished request: refuse from memory',
    cursors: () => 8,
    mint: 'call',
    seen: 3,
    wants: 'none',
    unique: false,
    verdict: { verdict: 'refuse', rule: 'finished-storm' },
  },
];

/** Plays what comes before the resumes, and writes down the cursors for wrk. */
async function setScene(stage: Stage, kind: Kind, subjects: readonly Subject[]): Promise<string> {
  const lines: string[] = [];
  const cursors = kind.cursors(stage);
  for (let from = 0; from < cursors; from += STREAMS_PER_SESSION) {
    const session = `${kind.name}-${from / STREAMS_PER_SESSION}`;
    const tags = Array.from(
      { length: Math.min(STREAMS_PER_SESSION, cursors - from) },
      (_, i) => `${kind.name}-${from + i}`,
    );
    for (const { port } of subjects) {
      await initialize(port, session);
      if (kind.mint === null) continue;
      for (let i = 0; i < tags.length; i += AT_ONCE) {
        const some = tags.slice(i, i + AT_ONCE);
        await Promise.all(some.map((tag) => post(port, `/mcp?do=${kind.mint}&tag=${tag}`, session)));
      }
    }
    for (const tag of tags) {
      lines.push(`${session} ${kind.seen === 0 ? '-' : `${tag}-${kind.seen}`} /mcp?do=${kind.wants}&tag=${tag}`);
    }
  }
  const file = join(stage.workshop.dir, `cursors-${kind.name}`);
  writeFileSync(file, `${lines.join('\n')}\n`);
  return file;
}

/** Resumes a second. Goes on in the list of cursors where the last time with this subject ended. */
function resumesPerSecond(options: Omit<WrkOptions, 'window'>): (subject: Subject, window: number) => Promise<Figure> {
  const sent = new Map<Subject, number>();
  return async (subject, window) => {
    const cpu = new CpuWatch(subject);
    const from = sent.get(subject) ?? 0;
    const { rate, requests, answers } = await wrk(
      subject.port,
      { ...options, window, env: { ...options.env, BENCH_FROM: String(from) } },
      () => cpu.restart(),
      () => cpu.stop(),
    );
    sent.set(subject, from + answers + options.connections);
    return cpu.figure(rate, requests);
  };
}

/** How many resumes the product has decided so far, by `verdict/rule`. */
async function decided(subject: Subject): Promise<Map<string, number>> {
  const text = await (await fetch(new URL('/metrics', adminOf(subject)))).text();
  const sample = /^mcp_resume_guard_resumes_total\{verdict="([^"]+)",rule="([^"]+)"\} (\d+)/gm;
  return new Map([...text.matchAll(sample)].map(([, verdict, rule, count]) => [`${verdict}/${rule}`, Number(count)]));
}

async function measure(stage: Stage, kind: Kind, subjects: readonly Subject[]): Promise<Row> {
  const { fewRounds, window } = stage.plan;
  const file = await setScene(stage, kind, subjects);
  const env = { BENCH_METHOD: 'GET', BENCH_CURSORS: file, ...(kind.unique ? { BENCH_UNIQUE: '1' } : {}) };
  const measured = resumesPerSecond({ connections: 64, target: '/mcp', env });
  await warmUp(stage, subjects, kind.name, (subject, ms) => measured(subject, ms / 2));
  const product = subjects.at(-1)!;
  const before = await decided(product);
  const figures = await alternate(subjects, fewRounds, (subject) => measured(subject, window / 2));
  return {
    name: `resume-${kind.name}`,
    title: `resumes, 64 connections, ${kind.title}`,
    unit: 'requests/s',
    better: 'more',
    each: 'request',
    figures: byName(figures),
    notes: kind.verdict === null ? [] : [share(before, await decided(product), kind.verdict)],
  };
}

function share(
  before: ReadonlyMap<string, number>,
  after: ReadonlyMap<string, number>,
  { verdict, rule }: NonNullable<Kind['verdict']>,
): string {
  const grown = [...after].map(([key, count]) => [key, count - (before.get(key) ?? 0)] as const);
  const all = grown.reduce((sum, [, count]) => sum + count, 0);
  const right = grown.find(([key]) => key === `${verdict}/${rule}`)?.[1] ?? 0;
  const others = grown.filter(([key, count]) => count > 0 && key !== `${verdict}/${rule}`).map(([key]) => key);
  const besides = others.length === 0 ? '' : `, the rest ${others.join(', ')}`;
  return `product: ${((100 * right) / Math.max(1, all)).toFixed(1)}% were ${verdict}, ${rule}${besides}`;
}

export const resumes: Scenario = {
  name: 'resumes',
  about: 'resumes a second: passed, stripped, forwarded, refused',
  run: (stage) =>
    withSubjects(stage, stage.plan.quick ? MEASURED_QUICKLY : MEASURED, async (subjects) => {
      const rows: Row[] = [];
      for (const kind of stage.plan.quick ? KINDS.filter(({ verdict }) => verdict !== null) : KINDS) {
        stage.say(kind.name);
        rows.push(await measure(stage, kind, subjects));
      }
      return rows;
    }),
};
