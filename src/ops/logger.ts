/** The log: one JSON object a line with fields at top level, or the same for a person's eyes. Always synchronous. */
import { type DestinationStream, type Logger, pino } from 'pino';
import type { Config } from '../config.ts';
import { prettyLines } from './pretty.ts';

export type { Logger } from 'pino';

/** Where lines go. Colours are for terminals. */
export type LogDestination = DestinationStream & { readonly isTTY?: boolean };

// Secrets are never handed to the log; these paths are for the day somebody forgets.
const SECRETS = ['authorization', 'cookie', 'headers', 'rawHeaders', 'err.headers', 'err.rawHeaders', 'err.body'];

/**
 * Makes a logger that writes to standard output, or to `destination`.
 *
 * @returns a pino logger; `level` is a word, `time` is ISO 8601 in UTC.
 */
export function createLogger(log: Config['log'], destination?: LogDestination): Logger {
  const out: LogDestination = destination ?? pino.destination({ dest: 1, sync: true });
  const options = {
    level: log.level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label: string) => ({ level: label }) },
    redact: { paths: SECRETS, censor: '[redacted]' },
  };
  return pino(options, log.format === 'pretty' ? prettyDestination(out) : out);
}

/** Turns each line into its readable form in this process: no worker thread, nothing that is lost on exit. */
function prettyDestination(out: LogDestination): DestinationStream {
  const format = prettyLines(out.isTTY === true);
  return { write: (line) => void out.write(format(line)) };
}

/**
 * A warning that can come up thousands of times a second: logged at once, then at most once per interval.
 *
 * @param key - the field `event` of the line.
 * @param everyMs - the interval in milliseconds.
 * @param clock - milliseconds, monotonic.
 * @returns what to call each time; it says whether a line was written, and that line says in `suppressed` how many were
 *   left out since the one before.
 */
export function limited(
  logger: Pick<Logger, 'warn'>,
  key: string,
  everyMs: number,
  clock: () => number,
): (fields: object, message: string) => boolean {
  let last = Number.NEGATIVE_INFINITY;
  let suppressed = 0;
  return (fields, message) => {
    const now = clock();
    if (now - last < everyMs) {
      suppressed += 1;
      return false;
    }
    logger.warn({ event: key, ...fields, suppressed }, message);
    last = now;
    suppressed = 0;
    return true;
  };
}
