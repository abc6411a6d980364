/** The figures as text for a terminal, in columns. */
import { cpuRatioOf, type Ratio, type Row, ratioOf, type Spread, spreadOf, valuesOf } from './figures.ts';
import { COLUMNS, type SubjectName } from './proxies.ts';
import type { Outcome } from './targets.ts';

/** Three significant digits, and no more than a reader can use. */
export function amount(value: number): string {
  const size = Math.abs(value);
  if (size >= 1_000) return Math.round(value).toLocaleString('en');
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.1 || size === 0 ? value.toFixed(2) : value.toPrecision(2);
}

const range = (spread: Spread): string =>
  spread.count === 1
    ? amount(spread.median)
    : `${amount(spread.median)} (${amount(spread.least)}-${amount(spread.most)})`;

/** A ratio that contended rounds are in wears a `~`. */
const ratioText = (ratio: Ratio | null): string =>
  ratio === null ? '' : `${ratio.contended ? '~' : ''}${range(ratio)}`;

function columns(lines: readonly (readonly string[])[]): string {
  const widths = lines[0]!.map((_, column) => Math.max(...lines.map((line) => line[column]!.length)));
  const padded = lines.map((line) =>
    line
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!)))
      .join('   '),
  );
  return padded.map((line) => `  ${line.trimEnd()}`).join('\n');
}

/** CPU time of one unit of work in µs. */
const microseconds = (ns: number): string => amount(ns / 1_000);

/** One row of figures as a small table: a line for each subject, its ratios to nginx and to http-proxy-3. */
export function tableOf(row: Row): string {
  const present = COLUMNS.filter((name) => row.figures[name] !== undefined);
  const has = (name: SubjectName): boolean => present.includes(name) && present.length > 1;
  const heads = ['', row.unit];
  const cells = new Map<SubjectName, string[]>(
    present.map((name) => {
      const spread = spreadOf(valuesOf(row, name));
      return [name, [name, spread === null ? '' : range(spread)]];
    }),
  );
  const column = (head: string, cell: (name: SubjectName) => string): void => {
    heads.push(head);
    for (const name of present) cells.get(name)!.push(cell(name));
  };
  if (has('nginx')) column('to nginx', (name) => ratioText(ratioOf(row, name, 'nginx')));
  if (has('http-proxy-3')) column('to http-proxy-3', (name) => ratioText(ratioOf(row, name, 'http-proxy-3')));
  if (row.each !== null) {
    const cpuOf = (name: SubjectName): Spread | null =>
      spreadOf((row.figures[name] ?? []).map(({ cpu }) => cpu).filter((cpu) => cpu !== null));
    column(`CPU µs/${row.each}`, (name) => {
      const spread = cpuOf(name);
      return spread === null ? '' : microseconds(spread.median);
    });
    if (has('nginx')) {
      column('CPU to nginx', (name) => {
        const ratio = cpuRatioOf(row, name, 'nginx');
        return ratio === null ? '' : range(ratio);
      });
    }
    column('on CPU', (name) => {
      const spread = spreadOf((row.figures[name] ?? []).map(({ busy }) => busy).filter((busy) => busy !== null));
      return spread === null ? '' : `${Math.round(spread.median * 100)}%`;
    });
  }
  const rounds = Math.max(...present.map((name) => row.figures[name]!.length));
  const title = `${row.name}: ${row.title} (${rounds === 1 ? 'one pass' : `${rounds} rounds`}, ${row.better} is better)`;
  const notes = [...row.notes, ...contention(row, present)].map((note) => `  ${note}`);
  return [title, columns([heads, ...cells.values()]), ...notes].join('\n');
}

function contention(row: Row, present: readonly SubjectName[]): string[] {
  const touched = present.filter((name) => row.figures[name]!.some(({ contended }) => contended));
  if (touched.length === 0) return [];
  const counts = touched.map((name) => {
    const figures = row.figures[name]!;
    return `${name} ${figures.filter(({ contended }) => contended).length} of ${figures.length}`;
  });
  return [`contended rounds: ${counts.join(', ')}`];
}

/** The verdict on every target that was measured. */
export function targetTable(outcomes: readonly Outcome[]): string {
  const lines = outcomes.map(({ text, bound, value, unit, met, contended }) => [
    text,
    `${contended ? '~' : ''}${amount(value)}${unit === '×' ? '' : ' '}${unit}`,
    bound,
    met ? 'met' : 'NOT MET',
  ]);
  return columns([['target', 'measured', 'bound', ''], ...lines]);
}

/** How to read the tables. */
export const LEGEND = [
  'Medians over the rounds, least and most in brackets; ratios are taken round by round. CPU: time on a CPU of the',
  'proxy for each unit of work, from the scheduler. A round is contended when the proxy waited for its CPU more than',
  'a tenth of the time; such rounds are left out of the ratios of values, or, where too few are left, marked with ~.',
].join('\n');
