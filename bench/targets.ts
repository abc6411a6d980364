/** What must hold, as ratios within one run wherever another proxy does the same work. */
import { type Ratio, type Row, ratioOf, spreadOf, valuesOf } from './figures.ts';
import type { SubjectName } from './proxies.ts';

export interface Target {
  readonly text: string;
  /** The row it is about. */
  readonly row: string;
  readonly atLeast?: number;
  readonly atMost?: number;
  readonly unit: string;
  /** Null where it was not measured. */
  readonly value: (row: Row) => { readonly value: number; readonly contended: boolean } | null;
}

export interface Outcome {
  readonly text: string;
  readonly bound: string;
  readonly value: number;
  readonly unit: string;
  readonly met: boolean;
  /** Somebody else used the CPU, in too many rounds to leave those out. */
  readonly contended: boolean;
}

const to =
  (other: SubjectName): Target['value'] =>
  (row) => {
    const ratio: Ratio | null = ratioOf(row, 'product', other);
    return ratio === null ? null : { value: ratio.median, contended: ratio.contended };
  };

const itself: Target['value'] = (row) => {
  const spread = spreadOf(valuesOf(row, 'product'));
  if (spread === null) return null;
  return { value: spread.median, contended: (row.figures.product ?? []).every(({ contended }) => contended) };
};

const x = '×';

export const TARGETS: readonly Target[] = [
  {
    text: 'one event stream at full speed, with a shared store, to without',
    row: 'store-events',
    atLeast: 0.85,
    unit: x,
    value: (row) => {
      const ratio = ratioOf(row, 'product-store', 'product');
      return ratio === null ? null : { value: ratio.median, contended: ratio.contended };
    },
  },
  {
    text: 'what asking a shared store adds to a resume, 10 requests, 99th percentile',
    row: 'store-resume-10-p99-added',
    atMost: 3_000,
    unit: 'µs',
    value: (row) => {
      const spread = spreadOf(valuesOf(row, 'product-store'));
      const figures = row.figures['product-store'] ?? [];
      return spread === null ? null : { value: spread.median, contended: figures.every(({ contended }) => contended) };
    },
  },
  {
    text: 'commands to a shared store for an event, one session of 1,000 events/s',
    row: 'store-operations-1',
    atMost: 0.05,
    unit: '',
    value: (row) => {
      const spread = spreadOf(valuesOf(row, 'product-store'));
      return spread === null ? null : { value: spread.median, contended: false };
    },
  },
  {
    text: 'JSON 1 KB, 64 connections, to http-proxy-3',
    row: 'json-1k-64',
    atLeast: 2.2,
    unit: x,
    value: to('http-proxy-3'),
  },
  { text: 'JSON 1 KB, 64 connections, to nginx', row: 'json-1k-64', atLeast: 0.33, unit: x, value: to('nginx') },
  {
    text: 'JSON 1 KB, 64 connections, beside idle streams, to without',
    row: 'json-idle-kept',
    atLeast: 0.9,
    unit: x,
    value: itself,
  },
  {
    text: 'JSON 100 KB, 64 connections, to http-proxy-3',
    row: 'json-100k-64',
    atLeast: 0.95,
    unit: x,
    value: to('http-proxy-3'),
  },
  { text: 'SSE, one event per write, to http-proxy-3', row: 'sse-1', atLeast: 1.1, unit: x, value: to('http-proxy-3') },
  { text: 'SSE, one event per write, to nginx', row: 'sse-1', atLeast: 0.33, unit: x, value: to('nginx') },
  { text: 'SSE, 40 events per write, to nginx', row: 'sse-40', atLeast: 0.8, unit: x, value: to('nginx') },
  { text: 'added delay p50, 500 streams, to nginx', row: 'delay-p50-added', atMost: 1.8, unit: x, value: to('nginx') },
  { text: 'memory per idle stream', row: 'idle-slope', atMost: 20, unit: 'KB', value: itself },
  { text: 'growth for 50 MB to a slow reader', row: 'slow-reader', atMost: 8, unit: 'MB', value: itself },
  { text: 'ledger, memory of an event', row: 'ledger-event', atMost: 40, unit: 'bytes', value: itself },
  {
    text: 'ledger, the same once streams forget',
    row: 'ledger-event-wrapped',
    atMost: 40,
    unit: 'bytes',
    value: itself,
  },
  { text: 'resolving a cursor', row: 'resolve', atMost: 2, unit: 'ms', value: itself },
  { text: 'decisions', row: 'decisions', atLeast: 1_000_000, unit: '/s', value: itself },
  { text: 'SIGTERM to exit', row: 'stopping', atMost: 100, unit: 'ms', value: itself },
  { text: 'start to listening', row: 'starting', atMost: 400, unit: 'ms', value: itself },
];

/** The targets whose rows were measured. */
export function judge(rows: readonly Row[]): Outcome[] {
  const outcomes: Outcome[] = [];
  for (const { text, row: name, atLeast, atMost, unit, value: of } of TARGETS) {
    const row = rows.find((candidate) => candidate.name === name);
    const found = row === undefined ? null : of(row);
    if (found === null) continue;
    const { value, contended } = found;
    const met = value >= (atLeast ?? Number.NEGATIVE_INFINITY) && value <= (atMost ?? Number.POSITIVE_INFINITY);
    const bound = atLeast === undefined ? `<= ${atMost?.toLocaleString('en')}` : `>= ${atLeast.toLocaleString('en')}`;
    outcomes.push({ text, bound, value, unit, met, contended });
  }
  return outcomes;
}
