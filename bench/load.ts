/** The two ends: wrk and the sink send and read, the upstream answers. All on the same core, which is not the proxy's. */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { request } from 'node:http';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { output, pause, start, stop } from './processes.ts';
import type { Workshop } from './workshop.ts';

const SCRIPT = fileURLToPath(new URL('requests.lua', import.meta.url));

/** Starts an upstream and resolves to its port. */
export async function startUpstream(
  { upstream }: Workshop,
  seed: number,
): Promise<{ port: number; stop(): Promise<void> }> {
  const child = start(upstream, [String(seed)], { core: 'load', stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = (await once(createInterface(child.stdout!), 'line')) as [string];
  return { port: Number(line), stop: () => stop(child) };
}

export interface WrkOptions {
  readonly connections: number;
  /** What is counted, in ms. */
  readonly window: number;
  readonly target: string;
  /** Variables of `requests.lua`. */
  readonly env?: Readonly<Record<string, string>>;
}

/**
 * Nothing is counted before each connection has had a few answers: what it costs to open them is another scenario. But
 * not for longer than this, in ms.
 */
const LONGEST_LEAD_IN = 5_000;
const REQUESTS_EACH = 4;

export interface WrkResult {
  /** Within the window. */
  readonly requests: number;
  /** Requests a second. */
  readonly rate: number;
  /** All answers, those before and after the window too. */
  readonly answers: number;
  /** Of them, those with a status of 400 or more. */
  readonly refused: number;
}

interface WrkReport extends Pick<WrkResult, 'answers' | 'refused'> {
  /** Errors of connections, and timeouts. */
  readonly failed: number;
  /** Milliseconds of the monotonic clock, and how many requests were sent in each. */
  readonly sent: readonly (readonly [number, number])[];
}

/** The clock of `requests.lua`. */
const monotonic = (): number => Number(process.hrtime.bigint() / 1_000_000n);

/**
 * Requests in a closed loop. wrk itself knows whole seconds only, so it is told when to stop. `measuring` is called
 * when the window begins and `measured` when it ends.
 */
export async function wrk(
  port: number,
  { connections, window, target, env = {} }: WrkOptions,
  measuring: () => void,
  measured: () => void,
): Promise<WrkResult> {
  const url = `http://127.0.0.1:${port}${target}`;
  const args = ['-t1', `-c${connections}`, '-d60s', '--timeout', '10s', '-s', SCRIPT, url];
  const flowing = { BENCH_FLOWING: String(connections * REQUESTS_EACH) };
  const child = start('wrk', args, { core: 'load', stdio: ['ignore', 'pipe', 'pipe'], env: { ...env, ...flowing } });
  const said = output(child);
  await Promise.race([once(child.stderr!, 'data'), pause(LONGEST_LEAD_IN)]);
  const from = monotonic();
  measuring();
  await pause(window);
  const until = monotonic();
  measured();
  child.kill('SIGINT');
  const { stdout, stderr } = await said;
  const line = stdout.split('\n').find((text) => text.startsWith('{'));
  if (line === undefined) throw new Error(`wrk said nothing: ${stdout}${stderr}`);
  const { answers, refused, failed, sent } = JSON.parse(line) as WrkReport;
  if (failed > 0) throw new Error(`wrk: ${failed} requests to ${url} failed`);
  const within = sent.filter(([ms]) => ms >= from && ms < until);
  const requests = within.reduce((sum, [, count]) => sum + count, 0);
  return { requests, rate: (requests / (until - from)) * 1_000, answers, refused };
}

export type SinkMode = 'drain' | 'timed' | 'first' | 'slow' | 'hold';
export type Names = Readonly<Record<string, string | number>>;

const sinkArgs = (mode: SinkMode, port: number, target: string, names: Names): string[] => [
  mode,
  String(port),
  target,
  ...Object.entries(names).map(([name, value]) => `${name}=${value}`),
];

/**
 * Runs the sink to its end and resolves to its last line. `measuring` is called when the streams have begun to flow,
 * which for some modes is later than the start.
 *
 * @throws where a stream failed or lost an event.
 */
export async function sink(
  workshop: Workshop,
  mode: SinkMode,
  port: number,
  target: string,
  names: Names = {},
  measuring: () => void = () => {},
): Promise<Readonly<Record<string, number>> & { readonly hash: string }> {
  const args = sinkArgs(mode, port, target, names);
  const child = start(workshop.sink, args, { core: 'load', stdio: ['ignore', 'pipe', 'pipe'] });
  let first = true;
  child.stdout!.once('data', () => {
    if (first) measuring();
    first = false;
  });
  const { stdout, stderr, code } = await output(child);
  const line = stdout.trim().split('\n').at(-1) ?? '';
  if (code !== 0 || !line.startsWith('{')) throw new Error(`sink ${args.join(' ')}: ${stderr}${stdout}`);
  const result = JSON.parse(line) as Record<string, number> & { hash: string };
  if ((result['failed'] ?? 0) > 0 || (result['short'] ?? 0) > 0) {
    throw new Error(`sink ${args.join(' ')}: ${line} ${stderr}`);
  }
  return result;
}

/** Streams that are open and silent. */
export interface IdleStreams {
  /** Opens more of them. */
  open(count: number): Promise<void>;
  /** How many are open, as of the last `open`. */
  readonly alive: number;
  stop(): Promise<void>;
}

export function holdIdle(workshop: Workshop, port: number): IdleStreams {
  const names = { method: 'GET', session: 'idle' };
  const args = sinkArgs('hold', port, '/mcp?do=idle', names);
  const child: ChildProcess = start(workshop.sink, args, { core: 'load', stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface(child.stdout!)[Symbol.asyncIterator]();
  let alive = 0;
  return {
    get alive() {
      return alive;
    },
    async open(count) {
      child.stdin!.write(`open ${count}\n`);
      const { value, done } = await lines.next();
      if (done === true) throw new Error('the sink ended');
      const answer = JSON.parse(value) as { open: number; failed: number };
      alive = answer.open;
      if (answer.failed > 0) throw new Error(`${answer.failed} idle streams did not open`);
    },
    stop: () => stop(child),
  };
}

/** One POST, for setting a scene; resolves when its answer is over. */
export function post(port: number, target: string, session: string | null, method = 'tools/call'): Promise<void> {
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: {} });
  const headers = {
    Accept: 'application/json, text/event-stream',
    'Content-Type': 'application/json',
    'Content-Length': body.length,
    'MCP-Protocol-Version': '2025-11-25',
    ...(session === null ? {} : { 'Mcp-Session-Id': session }),
  };
  return new Promise((resolve, reject) => {
    const sent = request({ host: '127.0.0.1', port, path: target, method: 'POST', headers }, (response) => {
      response.resume();
      response.on('error', reject);
      response.on('end', () => {
        if (response.statusCode === 200) resolve();
        else reject(new Error(`POST ${target}: ${response.statusCode}`));
      });
    });
    sent.on('error', reject);
    sent.end(body);
  });
}

/** Opens a session as a client would. */
export const initialize = (port: number, session: string): Promise<void> =>
  post(port, `/mcp?do=init&session=${session}`, null, 'initialize');
