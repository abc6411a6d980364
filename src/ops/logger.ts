/** The log: one JSON object a line with fields at top level, or the same for a person's eyes. Always synchronous. */
import { type DestinationStream, type Logger, pino } from 'pino';
import pretty from 'pino-pretty';
import type { Config } from '../config.ts';

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

const IN_MESSAGE = ['method', 'path', 'status', 'verdict', 'rule', 'outcome'];

/** Turns each line into its readable form in this process: no worker thread, nothing that is lost on exit. */
function prettyDestination(out: LogDestination): DestinationStream {
  const format = pretty.prettyFactory({
    colorize: out.isTTY === true,
    singleLine: true,
    translateTime: 'SYS:HH:MM:ss.l',
    ignore: IN_MESSAGE.join(','),
    messageFormat: sentence,
  });
  return { write: (line) => void out.write(format(line)) };
}

type Colors = Parameters<pretty.MessageFormatFunc>[3]['colors'];

/** `GET /mcp 409 refuse empty-replay`, and whatever else the line says. */
function sentence(
  log: Record<string, unknown>,
  messageKey: string,
  _level: string,
  { colors }: { colors: Colors },
): string {
  const paint: Readonly<Record<string, (text: string) => string>> = {
    method: colors.bold,
    status: statusColor(log['status'], colors),
    verdict: log['verdict'] === 'refuse' ? colors.red : log['verdict'] === 'strip' ? colors.yellow : colors.green,
    rule: colors.cyan,
    outcome: colors.cyan,
  };
  return [...IN_MESSAGE, messageKey]
    .filter((field) => log[field] !== undefined && log[field] !== null && log[field] !== '')
    .map((field) => (paint[field] ?? String)(visible(String(log[field]))))
    .join(' ');
}

function statusColor(status: unknown, colors: Colors): (text: string) => string {
  return Number(status) >= 500 ? colors.red : Number(status) >= 400 ? colors.yellow : colors.green;
}

/** A terminal obeys control characters; a path or an error may hold some (C1 ones pass HTTP's grammar as obs-text). */
function visible(text: string): string {
  return text.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, '?');
}

/**
 * A warning that can come up thousands of times a second: logged at once, then at most once per interval.
 *
 * @param key - the field `event` of the line.
 * @param everyMs - the interval in milliseconds.
 * @param clock - milliseconds, monotonic.
 * @returns what to call each time; a line says in `suppressed` how many were left out since the one before.
 */
export function limited(
  logger: Pick<Logger, 'warn'>,
  key: string,
  everyMs: number,
  clock: () => number,
): (fields: object, message: string) => void {
  let last = Number.NEGATIVE_INFINITY;
  let suppressed = 0;
  return (fields, message) => {
    const now = clock();
    if (now - last < everyMs) {
      suppressed += 1;
      return;
    }
    logger.warn({ event: key, ...fields, suppressed }, message);
    last = now;
    suppressed = 0;
  };
}
