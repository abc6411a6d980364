/**
 * The log of exchanges (behaviour.md section 11). A decision about a resume is one line at `info`, as soon as it is known;
 * if an event stream follows, what became of that is one more at `debug` when it is over, perhaps hours later. Any other
 * exchange is one line at `debug`, at its end. What failed is one line at `warn` instead, and where the same failure comes
 * again and again, one a second, which counts those that were left to `debug`.
 */
import type { ExchangeReport, Observer } from '../report.ts';
import { type Logger, limited } from './logger.ts';

/** In ms: between warnings about one thing, and between failures of one kind. */
const REPEAT = 10_000;
const FAILURES = 1_000;

const isDecision = ({ rule }: ExchangeReport): boolean => rule !== null && rule !== 'not-a-resume';

export function exchangeLog(logger: Logger, now: () => number): Partial<Observer> {
  const blind = limited(logger, 'tap-blind', REPEAT, now);
  const elsewhere = limited(logger, 'no-mcp-here', REPEAT, now);
  const alternates = limited(logger, 'instance-alternates', REPEAT, now);
  /** By route and code: as many as there are, at most. */
  const failures = new Map<string, ReturnType<typeof limited>>();
  const warn = (kind: string): ReturnType<typeof limited> => {
    let found = failures.get(kind);
    if (found === undefined) failures.set(kind, (found = limited(logger, 'exchange', FAILURES, now)));
    return found;
  };
  const exchange = (report: ExchangeReport): void => {
    if (logger.isLevelEnabled('debug')) logger.debug({ event: 'exchange', ...fieldsOf(report) }, 'exchange');
  };
  const failed = (report: ExchangeReport): void => {
    const fields = fieldsOf(report);
    const message = `exchange failed: ${report.error}`;
    if (!warn(`${report.route} ${report.error}`)(fields, message)) {
      logger.debug({ event: 'exchange', ...fields }, message);
    }
  };
  return {
    decided(report) {
      // What failed is over in a moment, and told then.
      if (isDecision(report) && report.error === null) {
        logger.info({ event: 'decision', ...fieldsOf(report) }, 'decision');
      }
    },
    exchange(report) {
      if (isAstray(report)) {
        const { path, route, status } = report;
        elsewhere({ path, route, status }, 'the server knows no MCP here: is this the right path?');
      }
      if (report.error !== null) failed(report);
      else if (!isDecision(report) || report.stream !== null) exchange(report);
    },
    blind: (cause) => void blind({ cause }, 'an event stream cannot be read; it passes unread'),
    instanceAlternates: (route) =>
      void alternates({ route }, 'the values of upstream.instanceField alternate in one session; it is ignored there'),
  };
}

/** Outside of a session 404 and 405 mean that nothing takes requests at this path. */
const isAstray = ({ method, status, guarded, error, session }: ExchangeReport): boolean =>
  method === 'POST' && (status === 404 || status === 405) && guarded && error === null && session() === null;

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
