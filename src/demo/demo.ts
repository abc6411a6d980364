/** `mcp-resume-guard demo`: the faults of resumption and the guard against them, with nothing to set up. */
import { createServer } from 'node:net';
import { configFrom } from '../config.ts';
import type { Io } from '../io.ts';
import { startProxy } from '../main.ts';
import { type Column, explanation, invitation, paintFor, stepLine, surprises, table } from './report.ts';
import { type Run, runScript } from './script.ts';
import { type DemoServer, startDemoServer } from './server.ts';

/** What the demo needs from the world around it. */
export type DemoIo = Pick<Io, 'stdout' | 'stderr' | 'env'> &
  Partial<Pick<Io, 'onSignal'>> & {
    /** Ends the demo, as SIGINT and SIGTERM do. */
    readonly signal?: AbortSignal;
  };

/** Ports on 127.0.0.1 that the demo would like to have; a taken one is replaced by any free one. */
export interface DemoPorts {
  readonly guard: number;
  readonly admin: number;
}

/** Events the server can replay. Small, so that a late client is too late within a second. */
const MEMORY = 32;

/** The port if it is free, else 0. */
function freeOr0(port: number): Promise<number> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once('error', () => resolve(0));
    probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(port)));
  });
}

/**
 * Runs the script directly and through the guard, prints what happened, and stays up until it is told to stop.
 *
 * @returns the exit code: 0 after a stop, 1 when the demo itself could not run.
 */
export async function runDemo(io: DemoIo, ports: DemoPorts = { guard: 8808, admin: 8809 }): Promise<number> {
  const stop = new AbortController();
  const signal = io.signal === undefined ? stop.signal : AbortSignal.any([io.signal, stop.signal]);
  const stopped = new Promise<'stopped'>((resolve) => {
    if (signal.aborted) resolve('stopped');
    signal.addEventListener('abort', () => resolve('stopped'), { once: true });
  });
  const forget = (['SIGINT', 'SIGTERM'] as const).map((name) => io.onSignal?.(name, () => stop.abort()));
  const closing: (() => unknown)[] = [];
  try {
    await show(io, ports, signal, closing);
    await stopped;
    return 0;
  } catch (error) {
    if (signal.aborted) return 0;
    io.stderr.write(`The demo failed: ${error instanceof Error ? error.message : error}\n`);
    return 1;
  } finally {
    // A second Ctrl-C has its usual effect, should closing take too long.
    for (const unsubscribe of forget) unsubscribe?.();
    for (const close of closing.reverse()) await close();
  }
}

async function show(io: DemoIo, ports: DemoPorts, signal: AbortSignal, closing: (() => unknown)[]): Promise<void> {
  const print = (text: string) => io.stdout.write(`${text}\n`);
  const paint = paintFor(io.stdout.isTTY === true && (io.env['NO_COLOR'] ?? '') === '');
  let watched = false;
  const server = await startDemoServer({
    memory: MEMORY,
    onResume(_session, what) {
      if (watched) print(`  The server got a resume of ${what}.`);
    },
  });
  closing.push(() => server.close());
  const [guardPort, adminPort] = [await freeOr0(ports.guard), await freeOr0(ports.admin)];
  const guard = await startProxy(
    configFrom({
      upstream: { url: server.url },
      listen: `127.0.0.1:${guardPort}`,
      admin: { listen: `127.0.0.1:${adminPort}` },
      log: { level: 'silent' },
      // Whoever tries the printed lines may take their time. By default a proof by connection holds for a minute.
      proofMemory: '24h',
      bounds: { finishedStreamMemory: '24h', openStreamMemory: '24h' },
      drainTimeout: '1s',
    }),
  );
  closing.push(() => guard.close());
  const guardUrl = new URL('/mcp', guard.url).href;

  print('A small MCP server, and a client that resumes badly: first without mcp-resume-guard, then with it.\n');
  print(`  server  ${server.url}  (can replay the last ${MEMORY} events)`);
  print(`  guard   ${guardUrl}${instead(ports.guard, guardPort)}`);
  print(`  admin   ${guard.adminUrl}${instead(ports.admin, adminPort)}\n`);

  const perform = async (url: string): Promise<Run> => {
    const forgotten = server.forgotten;
    const run = await runScript({ url, forgotten, signal, onStep: (report) => print(stepLine(report)) });
    closing.push(() => run.client.close());
    return run;
  };
  print(paint('title', 'Directly'));
  const directRun = await perform(server.url);
  const direct = columnOf(directRun, server);
  await directRun.client.end();
  print(paint('title', 'With the guard'));
  const guardedRun = await perform(guardUrl);
  const guarded = columnOf(guardedRun, server);
  const { session, revision } = guardedRun.client;

  print(`\n${table(direct, guarded, paint)}\n\n${explanation(direct, guarded)}\n`);
  for (const surprise of surprises(direct, guarded)) io.stderr.write(`Not as expected: ${surprise}.\n`);
  const cursor = guardedRun.finishedCursor;
  print(invitation({ serverUrl: server.url, guardUrl, adminUrl: guard.adminUrl, session, revision, cursor }));
  print('\nCtrl-C to stop.');
  watched = true;
}

function instead(wanted: number, got: number): string {
  return wanted !== 0 && got === 0 ? `  (${wanted} is taken)` : '';
}

/** What both ends have noted so far: a copy, since the session goes on. */
function columnOf(client: Run, server: DemoServer): Column {
  const counts = server.counts(client.client.session);
  if (counts === undefined) throw new Error('the session is gone before its time');
  return { client, server: { ...counts } };
}
