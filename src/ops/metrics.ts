/**
 * The metrics of behaviour.md section 11, on prom-client. Counters of things that happen a million times are plain
 * numbers here and are read when somebody scrapes.
 */
import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import { type Action, type ResumeFacts, RULES, type Rule } from '../core/decide.ts';
import { OUTCOMES } from '../core/replay.ts';
import type { ExchangeReport, Observer } from '../report.ts';
import { createHistogram } from './histogram.ts';

export interface Gauges {
  readonly sessions: () => number;
  /** Failures since the start. */
  readonly storeErrors: () => number;
  /** What had to be dropped before other replicas could be told. */
  readonly storeDropped: () => number;
  readonly storePending: () => number;
}

export interface Metrics {
  readonly registry: Registry;
  readonly observer: Observer;
}

const SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];
/** Refusals that kept a reconnect from reaching upstream. */
const ABSORBED = new Set(['below-replay-floor', 'finished-storm', 'finished-while-listening']);

export function createMetrics(gauges: Gauges): Metrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const registers = [registry];
  const counter = <L extends string>(name: string, help: string, labelNames: readonly L[] = []): Counter<L> =>
    new Counter({ name: `mcp_resume_guard_${name}`, help, labelNames: [...labelNames], registers });
  const histogram = (name: string, help: string): ((seconds: number) => void) =>
    createHistogram(registry, `mcp_resume_guard_${name}`, help, SECONDS);
  const collected = (name: string, help: string, value: () => number): void => {
    new Gauge({
      name: `mcp_resume_guard_${name}`,
      help,
      registers,
      collect() {
        this.set(value());
      },
    });
  };

  const resumes = counter('resumes_total', 'Decided resumes by verdict and rule.', ['verdict', 'rule']);
  const replays = counter('replays_total', 'Watched replays by outcome.', ['outcome']);
  const terminals = counter('terminal_events_total', 'Terminal events seen, by kind of response.', ['kind']);
  const duplicates = counter('duplicates_total', 'Repeated blocks on resumed streams.', ['kind', 'action']);
  const absorbed = counter(
    'storm_requests_absorbed_total',
    'Resumes refused from memory that would have reached upstream.',
  );
  const generations = counter('generations_total', 'New generations of known sessions, by cause.', ['cause']);
  const blind = counter('tap_blind_total', 'Streams the tap could not read to their end.', ['cause']);
  const exchangeSeconds = histogram('exchange_seconds', 'Time from the request to the end of its response.');
  const firstByteSeconds = histogram('first_byte_seconds', 'Time from the request to the first byte of the body.');
  const eventDelay = histogram('event_delay_seconds', 'Time an event spends in the proxy (a sample).');
  const streams = new Gauge({
    name: 'mcp_resume_guard_streams_open',
    help: 'Event streams open through the proxy, by kind.',
    labelNames: ['kind'],
    registers,
  });
  let events = 0;
  const eventsTotal = new Counter({
    name: 'mcp_resume_guard_events_total',
    help: 'Events seen.',
    registers,
    collect() {
      this.inc(events);
      events = 0;
    },
  });
  void eventsTotal;
  collected('sessions', 'Sessions remembered.', gauges.sessions);
  collected('store_pending', 'Sessions of which other replicas do not know everything yet.', gauges.storePending);
  const storeErrors = new Counter({
    name: 'mcp_resume_guard_store_errors_total',
    help: 'Failures of the shared store.',
    registers,
    collect() {
      this.reset();
      this.inc(gauges.storeErrors());
    },
  });
  void storeErrors;
  const storeDropped = new Counter({
    name: 'mcp_resume_guard_store_dropped_total',
    help: 'Events and sessions dropped before other replicas could be told.',
    registers,
    collect() {
      this.reset();
      this.inc(gauges.storeDropped());
    },
  });
  void storeDropped;

  // What has not happened yet is a zero, so that the first time it does is an increase.
  for (const rule of RULES) for (const verdict of verdictsOf(rule)) resumes.inc({ verdict, rule: rule.name }, 0);
  for (const outcome of [...OUTCOMES, 'late-empty']) replays.inc({ outcome }, 0);
  for (const kind of ['result', 'error']) terminals.inc({ kind }, 0);
  for (const kind of ['request', 'standalone', 'placeholder']) streams.inc({ kind }, 0);
  for (const cause of ['initialize', 'restart', 'instance']) generations.inc({ cause }, 0);
  for (const cause of ['encoding', 'decoding', 'failure']) blind.inc({ cause }, 0);
  for (const kind of ['replayed', 'terminal'])
    for (const action of ['dropped', 'passed']) duplicates.inc({ kind, action }, 0);

  const observer: Observer = {
    decided(report: ExchangeReport) {
      if (report.rule !== null && report.verdict !== null) resumes.inc({ verdict: report.verdict, rule: report.rule });
      if (report.outcome !== null) replays.inc({ outcome: report.outcome });
      if (report.verdict === 'refuse' && report.rule !== null && ABSORBED.has(report.rule)) absorbed.inc();
    },
    exchange(report: ExchangeReport) {
      exchangeSeconds(report.duration / 1_000);
      if (report.firstByteAfter !== null) firstByteSeconds(report.firstByteAfter / 1_000);
    },
    events(count) {
      events += count;
    },
    terminal: (kind) => terminals.inc({ kind }),
    duplicate: (kind, action) => duplicates.inc({ kind, action }),
    blind: (cause) => blind.inc({ cause }),
    streamOpened: ({ kind }) => streams.inc({ kind }),
    streamClosed: ({ kind }) => streams.dec({ kind }),
    generation: (cause) => generations.inc({ cause }),
    lateEmpty: () => replays.inc({ outcome: 'late-empty' }),
    instanceAlternates: () => {},
    eventDelay,
  };
  return { registry, observer };
}

/** A resume of nothing that is known. What a rule comes to depends on `unrecorded` at most. */
const FACTS: ResumeFacts = {
  get: true,
  cursorFields: 1,
  cursorEmpty: false,
  sessionFields: 1,
  withoutResumption: false,
  minted: false,
  approved: true,
  sessionKnown: true,
  sessionEnded: false,
  listening: false,
  owners: [],
  ownerForgotten: false,
  storm: false,
  unrecorded: 'forward',
  complete: false,
};

function verdictsOf(rule: Rule): ReadonlySet<Action> {
  return new Set([rule.action(FACTS), rule.action({ ...FACTS, unrecorded: 'refuse' })]);
}
