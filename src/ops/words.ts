/**
 * What a decision says, in words: why its rule fits, what was done, and what came of it. The log on a terminal and the
 * admin page both show these.
 */
import type { Action, RuleName } from '../core/decide.ts';
import type { Outcome } from '../core/replay.ts';
import { ERRORS, type ErrorCode } from '../errors.ts';

/** A decision as the log and the history have it. */
export interface Worded {
  readonly rule?: string | null;
  readonly verdict?: string | null;
  readonly outcome?: string | null;
  readonly proof?: string | null;
  readonly refusal?: string | null;
  readonly observed?: boolean;
  readonly error?: string | null;
}

const BECAUSE: Readonly<Record<RuleName, string>> = {
  'not-a-resume': 'This is no resume',
  'revision-without-resumption': 'This revision of the protocol has no resumption',
  'ambiguous-fields': 'A field was given twice',
  'minted-id': 'The cursor is the ID of our own error event',
  'session-ended': 'The server has ended this session',
  'generation-mismatch': 'The cursor is from before the server restarted or the session began anew',
  'finished-while-listening': 'The request is finished, its result arrived, and a listening stream is open',
  'finished-storm': 'The same finished cursor comes again and again and brings nothing',
  finished: 'The request is finished and its result arrived',
  'standalone-below-floor': 'The listening stream could not be continued',
  'below-replay-floor': 'The server could not replay this cursor before',
  'finished-undelivered': 'The request is finished but the client may lack its result',
  'in-window': 'The stream of this cursor is still open',
  'cursor-unrecorded': 'This cursor was never seen here, or is forgotten',
  'session-unrecorded': 'This session was never seen here, or is forgotten',
};

const DONE: Readonly<Record<Action, string>> = {
  pass: 'passed as it came',
  strip: 'the cursor was taken off',
  forward: 'the server was asked',
  refuse: 'answered without asking the server',
};

const WOULD: Readonly<Record<Action, string>> = {
  ...DONE,
  strip: 'the cursor would have been taken off',
  refuse: 'it would have been answered without asking the server',
};

const CAME: Readonly<Record<Outcome, string>> = {
  replayed: 'The server went on where the cursor stands',
  live: 'The server is quiet so far',
  polled: 'The server has nothing yet, as it announced',
  displaced: 'Another connection has taken the stream over',
  empty: 'The server answered with nothing',
  silent: 'The server sent nothing in time',
  broken: 'The connection to the server broke',
  abandoned: 'The client left first',
  'not-a-replay': 'The server answered something else, which passed',
};

/** How delivery was proven, behind the reason of a rule that rests on it. */
const PROVEN: Readonly<Record<string, string>> = {
  'event-id': ' (its cursor says so)',
  connection: ' (its connection says so)',
};

/** One to three sentences, what failed first; empty for what is no decision and did not fail. */
export function inWords({ rule, verdict, outcome, proof, refusal, observed, error }: Worded): string {
  const sentences = error == null ? [] : [failure(error)];
  const because = lookUp(BECAUSE, rule);
  if (because === '') return paragraph(sentences);
  const proven = rule?.startsWith('finished') ? lookUp(PROVEN, proof) : '';
  const did = lookUp(observed ? WOULD : DONE, verdict);
  sentences.push(`${because}${proven}${did === '' ? '' : `: ${did}`}`);
  // A failure says how it ended; the outcome would say it again.
  const came = error == null ? lookUp(CAME, outcome) : '';
  if (came !== '') sentences.push(came + (refusal === 'empty-replay' ? insteadOfNothing(observed) : ''));
  if (observed && (verdict === 'strip' || verdict === 'refuse' || refusal)) sentences.push('Nothing was changed');
  return paragraph(sentences);
}

const paragraph = (sentences: readonly string[]): string => sentences.map((sentence) => `${sentence}.`).join(' ');

/** `Cannot connect to the upstream server` */
function failure(code: string): string {
  const said = Object.hasOwn(ERRORS, code) ? ERRORS[code as ErrorCode].sentence : code;
  return said.charAt(0).toUpperCase() + said.slice(1);
}

const insteadOfNothing = (observed = false): string =>
  observed ? ', and the client would have been told so' : ', and the client was told so';

function lookUp(table: Readonly<Record<string, string>>, key: string | null | undefined): string {
  return key != null && Object.hasOwn(table, key) ? (table[key] ?? '') : '';
}
