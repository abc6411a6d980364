/** What was measured, and what follows from it: rows of figures by subject and round, medians, and ratios by round. */
import type { SubjectName } from './proxies.ts';

/** One measurement. */
export interface Figure {
  readonly value: number;
  /** CPU time of the proxy for each unit of work, in ns; null where there is none. */
  readonly cpu: number | null;
  /** Share of the time that the proxy's busiest thread was on a CPU; null where it was not looked at. */
  readonly busy: number | null;
  /** That thread waited for its CPU for more than a tenth of the time it wanted it: somebody else was there. */
  readonly contended: boolean;
}

/** One quantity, for every subject by rounds: figures with the same index belong to the same round. */
export interface Row {
  readonly name: string;
  readonly title: string;
  readonly unit: string;
  readonly better: 'more' | 'less';
  /** What `cpu` is for: one request, one event. */
  readonly each: string | null;
  readonly figures: Readonly<Partial<Record<SubjectName, readonly Figure[]>>>;
  /** What a reader has to know. */
  readonly notes: readonly string[];
}

/** A figure of a quantity that nothing but itself is looked at. */
export const plain = (value: number): Figure => ({ value, cpu: null, busy: null, contended: false });

export interface Spread {
  readonly median: number;
  readonly least: number;
  readonly most: number;
  readonly count: number;
}

/** @returns null for no values. */
export function spreadOf(values: readonly number[]): Spread | null {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
  return { median, least: sorted[0]!, most: sorted.at(-1)!, count: sorted.length };
}

/** Ratios of so few rounds say nothing, so then the contended ones count as well. */
const FEWEST = 3;

export interface Ratio extends Spread {
  /** Rounds left out, because somebody else used the proxy's CPU. */
  readonly dropped: number;
  /** Too few clean rounds: contended ones are in it. */
  readonly contended: boolean;
}

type Quantity = (figure: Figure) => number | null;
const valueItself: Quantity = ({ value }) => value;

/** One subject against another, round by round. Null where one of them was not measured. */
export function ratioOf(row: Row, one: SubjectName, other: SubjectName, of: Quantity = valueItself): Ratio | null {
  const ours = row.figures[one] ?? [];
  const theirs = row.figures[other] ?? [];
  const all: { ratio: number; contended: boolean }[] = [];
  for (const [round, figure] of ours.entries()) {
    const against = theirs[round];
    if (against === undefined) continue;
    const [above, below] = [of(figure), of(against)];
    if (above === null || below === null || below <= 0) continue;
    all.push({ ratio: above / below, contended: figure.contended || against.contended });
  }
  const clean = all.filter(({ contended }) => !contended);
  const enough = clean.length >= Math.min(FEWEST, all.length);
  const spread = spreadOf((enough ? clean : all).map(({ ratio }) => ratio));
  if (spread === null) return null;
  return { ...spread, dropped: enough ? all.length - clean.length : 0, contended: !enough };
}

/** The same for CPU time, which does not care who else is there, so no round is left out. */
export function cpuRatioOf(row: Row, one: SubjectName, other: SubjectName): Spread | null {
  return ratioOf({ ...row, figures: uncontended(row.figures) }, one, other, ({ cpu }) => cpu);
}

function uncontended(figures: Row['figures']): Row['figures'] {
  const entries = Object.entries(figures).map(([name, list]) => [
    name,
    list.map((figure) => ({ ...figure, contended: false })),
  ]);
  return Object.fromEntries(entries);
}

/** Values of one subject. */
export function valuesOf(row: Row, subject: SubjectName): number[] {
  return (row.figures[subject] ?? []).map(({ value }) => value);
}
