/** Turns what was observed into what a person reads. Every number comes from the client's or the server's own notes. */
import type { Answer } from './client.ts';
import type { Run, Step, StepReport } from './script.ts';
import type { ServerCounts } from './session.ts';

/** One way of running the script, as both ends saw it. */
export interface Column {
  readonly client: Pick<Run, 'steps' | 'confirmations'>;
  readonly server: Readonly<ServerCounts>;
}

const SGR = { bad: '31', good: '32', title: '1' } as const;

/** Marks a text for a terminal with colours; on others it stays as it is. */
export type Paint = (kind: keyof typeof SGR, text: string) => string;

export function paintFor(colour: boolean): Paint {
  return (kind, text) => (colour ? `\x1b[${SGR[kind]}m${text}\x1b[0m` : text);
}

type Count = (column: Column) => number;

const stepOf = ({ client }: Column, step: Step): StepReport | undefined =>
  client.steps.find((report) => report.step === step);
const answers = ({ client }: Column): readonly Answer[] => client.steps.flatMap((report) => report.answers);
const answered =
  (wanted: Answer): Count =>
  (column) =>
    answers(column).filter((answer) => answer === wanted).length;

const resumesSent: Count = (column) => answers(column).length;
const resultsTwice = answered('result-again');
const silentEmpties = answered('silent-empty');
const conflicts = answered('conflict');
const callErrors = answered('call-failed');
const listening = answered('listening');
const reconnects: Count = (column) => stepOf(column, 'forgotten')?.answers.length ?? 0;
const honestResults: Count = (column) => stepOf(column, 'in-time')?.results ?? 0;

function times(count: number): string {
  return count === 1 ? 'once' : `${count} times`;
}

/** A fault should be there directly and gone with the guard; a cure is only ever the guard's. */
type Meaning = 'fault' | 'cure' | 'plain';
type Row = readonly [label: string, meaning: Meaning, cell: (column: Column) => number | string];

const CLIENT_ROWS: readonly Row[] = [
  ['resumes sent', 'plain', resumesSent],
  ['results delivered twice', 'fault', resultsTwice],
  ['silent empties (200 and nothing)', 'fault', silentEmpties],
  ['explicit 409s', 'cure', conflicts],
  ['explicit errors for the lost call', 'cure', callErrors],
  ['plain listening streams instead', 'cure', listening],
  ['order confirmations', 'plain', ({ client }) => client.confirmations],
  ['honest resume completed', 'plain', (column) => (honestResults(column) === 0 ? 'no' : times(honestResults(column)))],
];

const SERVER_ROWS: readonly Row[] = [
  ['resumes that arrived with a cursor', 'plain', ({ server }) => server.resumes],
  ['of these, for a finished call', 'fault', ({ server }) => server.resumesOfFinished],
  ['results sent twice', 'fault', ({ server }) => server.resultsAgain],
  ['answers of 200 and nothing', 'plain', ({ server }) => server.silentEmpties],
  ['orders placed', 'plain', ({ server }) => server.ordersPlaced],
];

const HEADS = ['directly', 'with the guard'];
const LABEL_WIDTH = 38;
const CELL_WIDTH = 16;

function tableLine([label, meaning, cell]: Row, columns: readonly Column[], paint: Paint): string {
  const cells = columns.map((column) => {
    const value = cell(column);
    const text = String(value).padStart(CELL_WIDTH);
    if (meaning === 'fault') return paint(value === 0 ? 'good' : 'bad', text);
    return meaning === 'cure' && value !== 0 ? paint('good', text) : text;
  });
  return `  ${label.padEnd(LABEL_WIDTH)}${cells.join('')}`;
}

/** Both columns side by side. */
export function table(direct: Column, guarded: Column, paint: Paint): string {
  const heads = HEADS.map((head) => head.padStart(CELL_WIDTH)).join('');
  return [
    paint('title', `${'What the client saw'.padEnd(LABEL_WIDTH + 2)}${heads}`),
    ...CLIENT_ROWS.map((row) => tableLine(row, [direct, guarded], paint)),
    paint('title', 'What the server saw'),
    ...SERVER_ROWS.map((row) => tableLine(row, [direct, guarded], paint)),
  ].join('\n');
}

/** What is not as it should be, a sentence each. */
export function surprises(direct: Column, guarded: Column): readonly string[] {
  const found: string[] = [];
  for (const [label, meaning, cell] of [...CLIENT_ROWS, ...SERVER_ROWS]) {
    if (meaning !== 'fault') continue;
    if (cell(direct) === 0) found.push(`directly, "${label}" is 0`);
    if (cell(guarded) !== 0) found.push(`with the guard, "${label}" is not 0`);
  }
  for (const [index, column] of [direct, guarded].entries()) {
    if (honestResults(column) !== 1)
      found.push(`${HEADS[index]}, the honest resume brought its result ${times(honestResults(column))}`);
  }
  return found;
}

const STEP_TEXT: Readonly<Record<Step, string>> = {
  'last-event': 'order confirmed, back with its last event ID',
  'first-event': 'order confirmed, back with its first event ID',
  forgotten: 'call lost, back too late, again and again',
  'in-time': 'call dropped, back in time',
};

const ANSWER_TEXT: Readonly<Record<Exclude<Answer, `status-${number}`>, string>> = {
  result: 'the result',
  'result-again': 'THE SAME RESULT AGAIN',
  'silent-empty': '200 AND NOTHING',
  conflict: '409',
  'call-failed': 'an error for that call',
  listening: 'a plain listening stream',
  quiet: 'an open stream that says nothing',
  events: 'events, but no result',
  broken: 'a broken connection',
};

/** One step and the answers to its resumes, equal neighbours folded. */
export function stepLine({ step, answers: all }: StepReport): string {
  const folded: { answer: Answer; count: number }[] = [];
  for (const answer of all) {
    const last = folded.at(-1);
    if (last?.answer === answer) last.count += 1;
    else folded.push({ answer, count: 1 });
  }
  const texts = folded.map(({ answer, count }) => {
    const text = (ANSWER_TEXT as Record<string, string>)[answer] ?? answer.replace('-', ' ');
    return count > 1 ? `${count} x ${text}` : text;
  });
  return `  ${STEP_TEXT[step].padEnd(48)}${texts.join(', ')}`;
}

/** What happened and why, in words. */
export function explanation(direct: Column, guarded: Column): string {
  const held = ({ client, server }: Column) =>
    `${client.confirmations} confirmations for ${server.ordersPlaced} orders`;
  return `What happened directly
  Silent empties: ${silentEmpties(direct)} of ${resumesSent(direct)} resumes. Either nothing was left to send, or the server had forgotten the place.
  A client cannot tell one from the other, and both look like success: nobody hears that a call was lost.
  Results delivered twice: ${resultsTwice(direct)}. The session was alive and the server still had the event, but neither
  means that the client is without it. It now holds ${held(direct)}.

What the guard did
  It read the events as they passed, so it knew which calls were finished and that their results had arrived.
  Finished calls: it took the cursor off ${times(listening(guarded))}, and a plain GET reached the server. The client
  holds ${held(guarded)}.
  The lost call: instead of silence the client got 409 ${times(conflicts(guarded))}, and an error for that very call ${times(callErrors(guarded))}.
  The server was asked ${times(guarded.server.silentEmpties)}, not ${times(reconnects(guarded))}.
  The honest resume: passed untouched, and its result came ${times(honestResults(guarded))}.`;
}

/** What a person needs to go on from here. */
export interface Invitation {
  readonly serverUrl: string;
  readonly guardUrl: string;
  /** The admin page, if there is one. */
  readonly adminUrl: string | null;
  readonly session: string;
  /** The negotiated protocol revision. */
  readonly revision: string;
  /** An event of a finished call that the server can still replay after. */
  readonly cursor: string;
}

/** Two lines to copy, and places to look at. The quotes are double because every shell takes them. */
export function invitation({ serverUrl, guardUrl, adminUrl, session, revision, cursor }: Invitation): string {
  const fields = [
    'Accept: text/event-stream',
    `Mcp-Session-Id: ${session}`,
    `MCP-Protocol-Version: ${revision}`,
    `Last-Event-ID: ${cursor}`,
  ];
  const curl = (url: string) => `curl -is -m 5 ${fields.map((field) => `-H "${field}"`).join(' ')} ${url}`;
  return `Try it
  The same request to two ports: what came after this event? It belongs to an order whose confirmation arrived.

  Straight to the server, the confirmation comes again:
${curl(serverUrl)}

  Through the guard, an answer that says what is the matter:
${curl(guardUrl)}

${adminUrl === null ? '' : `  What the guard decided, and why: ${adminUrl}\n`}  For an MCP client of your own: ${guardUrl} (tools: place_order, count_stock)`;
}
