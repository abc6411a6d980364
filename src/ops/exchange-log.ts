/**
 * One line for each decision at `info`, as soon as it is known (behaviour.md section 11), and one for each exchange at its
 * end: at `warn` where it failed, else at `debug`.
 */
import type { ExchangeReport, Observer } from '../report.ts';
import { type Logger, limited } from './logger.ts';

const REPEAT = 10_000;

export function exchangeLog(logger: Logger, now: () => number): Partial<Observer> {
  const blind = limited(logger, 'tap-blind', REPEAT, now);
  const alternates = limited(logger, 'instance-alternates', REPEAT, now);
  return {
    decided(report) {
      if (report.rule !== 'not-a-resume') logger.info({ event: 'decision', ...fieldsOf(report) }, 'decision');
    },
    exchange(report) {
      const level = report.error === null ? 'debug' : 'warn';
      if (!logger.isLevelEnabled(level)) return;
      const message = report.error === null ? 'exchange' : `exchange failed: ${report.error}`;
      logger[level]({ event: 'exchange', ...fieldsOf(report) }, message);
    },
    blind: (cause) => blind({ cause }, 'an event stream cannot be read; it passes unread'),
    instanceAlternates: (route) =>
      alternates({ route }, 'the values of upstream.instanceField alternate in one session; it is ignored there'),
  };
}

const round = (ms: number | null): number | undefined => (ms === null ? undefined : Math.round(ms * 10) / 10);
const absent = <T>(value: T | null): T | undefined => value ?? undefined;

function fieldsOf(report: ExchangeReport): object {
  return {
    method: report.method,
    path: report.path,
    route: report.route,
    status: report.status,
    verdict: absent(report.verdict),
    rule: absent(report.rule),
    outcome: absent(report.outcome),
    proof: absent(report.proof),
    refusal: absent(report.refusal),
    observed: report.observed || undefined,
    session: absent(report.session()),
    cursor: absent(report.cursor()),
    error: absent(report.error),
    clientLeft: report.end === 'client-left' || undefined,
    events: report.events,
    headMs: round(report.headAfter),
    firstByteMs: round(report.firstByteAfter),
    durationMs: round(report.duration),
  };
}
