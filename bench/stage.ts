/** Where a scenario plays: subjects that are started and ended around it, rounds that alternate, and the scheduler's view. */
import type { Figure, Row } from './figures.ts';
import { startUpstream } from './load.ts';
import { type CpuReading, pause, readCpu } from './processes.ts';
import { type Subject, type SubjectName, startSubject } from './proxies.ts';
import type { Workshop } from './workshop.ts';

export interface Plan {
  readonly quick: boolean;
  readonly rounds: number;
  /** The same for scenarios that take their time and have no target. */
  readonly fewRounds: number;
  /** How long one measurement takes, in ms. */
  readonly window: number;
  readonly seed: number;
}

export interface Stage {
  readonly plan: Plan;
  readonly workshop: Workshop;
  /** Says what is going on. */
  readonly say: (text: string) => void;
  /** Every subject, started once and kept to the end: what has served one scenario is warm for the next. */
  readonly shared: () => Promise<readonly Subject[]>;
}

export interface Scenario {
  readonly name: string;
  /** One line for `--help`. */
  readonly about: string;
  run(stage: Stage): Promise<readonly Row[]>;
}

/** An upstream and subjects in front of it. */
export interface Ensemble {
  readonly subjects: readonly Subject[];
  readonly upstream: number;
  stop(): Promise<void>;
}

export async function assemble(workshop: Workshop, seed: number, names: readonly SubjectName[]): Promise<Ensemble> {
  const upstream = await startUpstream(workshop, seed);
  const subjects: Subject[] = [];
  const stop = async (): Promise<void> => {
    await Promise.all(subjects.map((subject) => subject.stop()));
    await upstream.stop();
  };
  try {
    for (const name of names) subjects.push(await startSubject(name, upstream.port, workshop));
  } catch (error) {
    await stop();
    throw error;
  }
  return { subjects, upstream: upstream.port, stop };
}

/** New processes, for as long as `use` takes: for what depends on what a process has been through. */
export async function withSubjects<T>(
  { workshop, plan }: Stage,
  names: readonly SubjectName[],
  use: (subjects: readonly Subject[], upstream: number) => Promise<T>,
): Promise<T> {
  const ensemble = await assemble(workshop, plan.seed, names);
  try {
    return await use(ensemble.subjects, ensemble.upstream);
  } finally {
    await ensemble.stop();
  }
}

type Named = string | Pick<Subject, 'name' | 'lastWords'>;

/** A failure says with whom, and why, where that one has ended. */
async function named<T>(subject: Named, measured: Promise<T>): Promise<T> {
  try {
    return await measured;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    if (typeof subject === 'string') throw new Error(`${subject}: ${reason}`, { cause: error });
    await pause(100);
    const lastWords = subject.lastWords();
    const ended = lastWords === null ? '' : `\n${subject.name} has ended: ${lastWords}`;
    throw new Error(`${subject.name}: ${reason}${ended}`, { cause: error });
  }
}

/** Runs the rounds: the subjects in their order, then in the opposite one, so that nobody is always first or last. */
export async function alternate<S extends Named, T>(
  subjects: readonly S[],
  rounds: number,
  measure: (subject: S, round: number) => Promise<T>,
): Promise<Map<S, T[]>> {
  const results = new Map<S, T[]>(subjects.map((subject) => [subject, []]));
  for (let round = 0; round < rounds; round++) {
    const order = round % 2 === 0 ? subjects : [...subjects].reverse();
    for (const subject of order) results.get(subject)!.push(await named(subject, measure(subject, round)));
  }
  return results;
}

/** In ms. `cpu` is the least CPU time that a proxy has to have had. */
const WARMING = { slice: 400, cpu: 1_500, most: 10 } as const;
const QUICK_WARMING = { slice: 150, cpu: 600, most: 6 } as const;

/**
 * Puts subjects under load one after the other, until a slice of it costs no less CPU time than the one before: then
 * everything that a runtime compiles on the way is compiled. `load` runs for about the ms it is given. A subject that
 * has been through the same `kind` of load is warm already.
 */
export async function warmUp<S extends Pick<Subject, 'name' | 'pids' | 'lastWords'>>(
  { plan }: Stage,
  subjects: readonly S[],
  kind: string,
  load: (subject: S, ms: number) => Promise<Figure>,
): Promise<void> {
  const { slice, cpu: least, most } = plan.quick ? QUICK_WARMING : WARMING;
  for (const subject of subjects) {
    if (subject.pids.length === 0 || isWarm(subject, kind)) continue;
    const began = readCpu(subject.pids).ran;
    let before = Number.POSITIVE_INFINITY;
    for (let slices = 0; slices < most; slices++) {
      const { cpu } = await named(subject, load(subject, slice));
      const cost = cpu ?? Number.POSITIVE_INFINITY;
      if (cost > 0.95 * before && readCpu(subject.pids).ran - began >= least * 1e6) break;
      before = cost;
    }
  }
}

const warmed = new WeakMap<object, Set<string>>();

/** Whether it was asked for before; from now on it is. */
function isWarm(subject: object, kind: string): boolean {
  const kinds = warmed.get(subject) ?? new Set();
  warmed.set(subject, kinds);
  const was = kinds.has(kind);
  kinds.add(kind);
  return was;
}

/** Figures by the name of their subject. */
export function byName(results: ReadonlyMap<Subject, readonly Figure[]>): Row['figures'] {
  return Object.fromEntries([...results].map(([{ name }, figures]) => [name, figures]));
}

const MOST_WAITING = 0.1;

/** What a proxy's processes did between two looks. */
export class CpuWatch {
  readonly #pids: readonly number[];
  #before: CpuReading;
  #after: CpuReading | null = null;

  constructor({ pids }: Pick<Subject, 'pids'>) {
    this.#pids = pids;
    this.#before = readCpu(pids);
  }

  /** Begins anew. */
  restart(): void {
    this.#before = readCpu(this.#pids);
  }

  /** Ends here, whenever `figure` is called. */
  stop(): void {
    this.#after = readCpu(this.#pids);
  }

  /** A figure for `value`, with `units` of work done in between. */
  figure(value: number, units: number): Figure {
    if (this.#pids.length === 0) return { value, cpu: null, busy: null, contended: false };
    const before = this.#before;
    const after = this.#after ?? readCpu(this.#pids);
    const ran = after.mainRan - before.mainRan;
    const waited = after.mainWaited - before.mainWaited;
    return {
      value,
      cpu: units > 0 ? (after.ran - before.ran) / units : null,
      busy: ran / (after.at - before.at),
      contended: waited > MOST_WAITING * (ran + waited),
    };
  }
}
