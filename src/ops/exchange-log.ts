/** One line for each exchange (behaviour.md section 11): decisions at `info`, failures at `warn`, the rest at `debug`. */
import type { ExchangeReport, Observer } from '../report.ts';
import { type Logger, limited } from './logger.ts';

const REPEAT = 10_000;

export function exchangeLog(logger: Logger, now: () => number): Partial<Observer> {
  const blind = limited(logger, 'tap-blind', REPEAT, now);
  const alternates = limited(logger, 'instance-alternates', REPEAT, now);
  return {
    exchange(report) {
      const decided = report.rule !== null && report.rule !== 'not-a-resume';
      const level = report.error !== null ? 'warn' : decided ? 'info' : 'debug';
      if (!logger.isLevelEnabled(level)) return;
      logger[level](fieldsOf(report), report.error === null ? 'exchange' : `exchange failed: ${report.error}`);
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
    event: 'exchange',
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
    clientLeft: report.clientLeft || undefined,
    events: report.events,
    headMs: round(report.headAfter),
    firstByteMs: round(report.firstByteAfter),
    durationMs: round(report.duration),
  };
}
