/**
 * Child processes of the benchmark: pinned to a core, ended by their own id, and read through `/proc` for what they
 * cost. Nothing here outlives the benchmark, however it ends.
 */
import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { cpus } from 'node:os';

/** What is measured has a core of its own; load and upstream share the other. */
export type Core = 'proxy' | 'load';

const running = new Set<ChildProcess>();
const canPin = cpus().length >= 2;

/** SIGTERM, because nginx has a worker to end; what has not ended by then has nobody to serve. */
process.on('exit', () => {
  for (const child of running) child.kill('SIGTERM');
});

export interface Start {
  readonly core: Core;
  readonly stdio?: StdioOptions;
  readonly env?: Readonly<Record<string, string>>;
}

export function start(
  command: string,
  args: readonly string[],
  { core, stdio = 'pipe', env = {} }: Start,
): ChildProcess {
  const pinned = canPin ? ['taskset', '-c', core === 'proxy' ? '0' : '1', command, ...args] : [command, ...args];
  const child = spawn(pinned[0]!, pinned.slice(1), { stdio, env: { ...process.env, ...env } });
  running.add(child);
  child.on('exit', () => running.delete(child));
  child.on('error', () => running.delete(child));
  return child;
}

export const hasEnded = ({ exitCode, signalCode }: ChildProcess): boolean => exitCode !== null || signalCode !== null;

/** Asks a process to end, and after `patience` ms makes it. */
export async function stop(child: ChildProcess, patience = 5_000): Promise<void> {
  if (hasEnded(child)) return;
  const over = once(child, 'exit');
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), patience);
  await over;
  clearTimeout(timer);
}

/** Everything a process says until it ends. */
export async function output(child: ChildProcess): Promise<{ stdout: string; stderr: string; code: number | null }> {
  let stdout = '';
  let stderr = '';
  child.stdout?.on('data', (piece) => {
    stdout += piece;
  });
  child.stderr?.on('data', (piece) => {
    stderr += piece;
  });
  const [code] = (await once(child, 'close')) as [number | null];
  return { stdout, stderr, code };
}

/** A port that nobody listens on, for programs that cannot choose one themselves. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return port;
}

/** Resolves once somebody accepts on `port`, looking every millisecond. */
export async function accepting(port: number, child: ChildProcess, patience = 15_000): Promise<void> {
  const deadline = performance.now() + patience;
  while (!(await accepts(port))) {
    if (hasEnded(child)) throw new Error(`${child.spawnargs.join(' ')} has ended`);
    if (performance.now() > deadline) throw new Error(`nobody listens on ${port} after ${patience} ms`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.on('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.on('error', () => resolve(false));
  });
}

/** A process and those it started, which for nginx is its worker. */
export function withDescendants(pid: number): number[] {
  const children = readdirSync(`/proc/${pid}/task`).flatMap((task) =>
    readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
  );
  return [pid, ...children.flatMap(withDescendants)];
}

/** What the scheduler says of a process, in ns since its start. */
export interface CpuReading {
  /** On a CPU, all threads. */
  readonly ran: number;
  /** The main thread alone: on a CPU, and waiting for one that somebody else had. */
  readonly mainRan: number;
  readonly mainWaited: number;
  readonly at: number;
}

/** Sums over `pids`. */
export function readCpu(pids: readonly number[]): CpuReading {
  let ran = 0;
  let mainRan = 0;
  let mainWaited = 0;
  for (const pid of pids) {
    for (const task of readdirSync(`/proc/${pid}/task`)) {
      const [taskRan = 0, taskWaited = 0] = schedule(`/proc/${pid}/task/${task}/schedstat`);
      ran += taskRan;
      if (task !== String(pid)) continue;
      mainRan += taskRan;
      mainWaited += taskWaited;
    }
  }
  return { ran, mainRan, mainWaited, at: performance.now() * 1e6 };
}

function schedule(path: string): number[] {
  try {
    return readFileSync(path, 'utf8').split(' ').map(Number);
  } catch {
    // A thread that has just ended.
    return [];
  }
}

/** Proportional share of memory in bytes: pages that processes share are counted once. */
export function pss(pids: readonly number[]): number {
  return pids.reduce((sum, pid) => sum + kilobytes(`/proc/${pid}/smaps_rollup`, 'Pss') * 1024, 0);
}

/** Resident memory now, and at its highest since `resetPeak`, in bytes. */
export function resident(pids: readonly number[]): { now: number; peak: number } {
  let now = 0;
  let peak = 0;
  for (const pid of pids) {
    now += kilobytes(`/proc/${pid}/status`, 'VmRSS') * 1024;
    peak += kilobytes(`/proc/${pid}/status`, 'VmHWM') * 1024;
  }
  return { now, peak };
}

/** Makes the kernel measure the peak anew (proc(5), clear_refs). */
export function resetPeak(pids: readonly number[]): void {
  for (const pid of pids) writeFileSync(`/proc/${pid}/clear_refs`, '5');
}

function kilobytes(path: string, name: string): number {
  return Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(readFileSync(path, 'utf8'))?.[1] ?? 0);
}

export const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
