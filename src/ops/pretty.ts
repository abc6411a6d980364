/**
 * Log lines for a person's eyes. A line about an exchange is told in full and ends with what one may want to search
 * for; every other line is its message and its fields.
 *
 *     [10:04:11.120] INFO: GET /mcp 409 forward in-window empty: The stream of this cursor is still open: the server
 *     was asked. The server answered with nothing, and the client was told so. session 3fa9c2d10b7e cursor 77c1… 12 ms
 */
import { createRequire } from 'node:module';
import type pretty from 'pino-pretty';
import { inWords, type Worded } from './words.ts';

const require = createRequire(import.meta.url);

type Line = Readonly<Record<string, unknown>>;
type Colors = Parameters<pretty.MessageFormatFunc>[3]['colors'];

/** What one looks at first, in this order. */
const FIRST = ['method', 'path', 'status', 'verdict', 'rule', 'outcome'];

/** JSON escapes quotes within a value, so this is found in the field alone. */
const ABOUT_AN_EXCHANGE = /"event":"(?:decision|exchange)"/;

/** Makes the function from a line of JSON to a line to read. */
export function prettyLines(colorize: boolean): (line: string) => string {
  // A log in JSON is sooner there without it.
  const { prettyFactory } = require('pino-pretty') as typeof pretty;
  // `error` is a code here, and stays on the line.
  const shared = { colorize, singleLine: true, translateTime: 'SYS:HH:MM:ss.l', errorLikeObjectKeys: ['err'] };
  const told = prettyFactory({ ...shared, hideObject: true, messageFormat: story });
  const plain = prettyFactory({ ...shared, ignore: FIRST.join(','), messageFormat: sentence });
  // Without an object to show, pino-pretty leaves the end of the line out as well.
  return (line) => (ABOUT_AN_EXCHANGE.test(line) ? `${told(line).trimEnd()}\n` : plain(line));
}

/** `GET /mcp 409 refuse empty-replay`, and whatever else the line says. */
function sentence(log: Line, messageKey: string, _level: string, { colors }: { colors: Colors }): string {
  return [...first(log, colors), visible(log[messageKey])].filter((part) => part !== '').join(' ');
}

function story(log: Line, _messageKey: string, _level: string, { colors }: { colors: Colors }): string {
  const words = inWords(log as Worded);
  const details = [
    ...['session', 'cursor'].filter((field) => log[field] !== undefined).map((field) => `${field} ${log[field]}`),
    log['clientLeft'] === true ? 'the client left' : '',
    Number(log['events']) > 0 ? `${log['events']} ${log['events'] === 1 ? 'event' : 'events'}` : '',
    log['durationMs'] === undefined ? '' : lasting(Number(log['durationMs'])),
    Number(log['suppressed']) > 0 ? `(${log['suppressed']} more like this were left out)` : '',
  ].filter((part) => part !== '');
  const head = first(log, colors).join(' ');
  const tail = colors.dim(visible(details.join(', ')));
  return `${head}${words === '' ? '' : colors.reset(`: ${visible(words)}`)}${details.length === 0 ? '' : `  ${tail}`}`;
}

function first(log: Line, colors: Colors): string[] {
  const paint: Readonly<Record<string, (text: string) => string>> = {
    method: colors.bold,
    status: statusColor(log['status'], colors),
    verdict: log['verdict'] === 'refuse' ? colors.red : log['verdict'] === 'strip' ? colors.yellow : colors.green,
    rule: colors.cyan,
    outcome: log['refusal'] === 'empty-replay' ? colors.red : colors.cyan,
  };
  return FIRST.filter((field) => log[field] !== undefined && log[field] !== null)
    .filter((field) => field !== 'status' || log[field] !== 0)
    .map((field) => (paint[field] ?? String)(visible(log[field])));
}

function statusColor(status: unknown, colors: Colors): (text: string) => string {
  return Number(status) >= 500 ? colors.red : Number(status) >= 400 ? colors.yellow : colors.green;
}

/** `12 ms`, `3.4 s`, `5 min` */
function lasting(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  return ms < 120_000 ? `${Math.round(ms / 100) / 10} s` : `${Math.round(ms / 60_000)} min`;
}

/** A terminal obeys control characters; a path or an error may hold some (C1 ones pass HTTP's grammar as obs-text). */
function visible(value: unknown): string {
  return String(value ?? '').replace(/[\x00-\x1f\x7f-\x9f]/g, '?');
}
