/** The proxy in a process of its own, for what only a process has: memory, signals, an exit code. Linux only. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { within } from './waiting.ts';

export interface ProxyProcess {
  readonly child: ChildProcess;
  readonly url: string;
  readonly adminUrl: string;
  /** Log lines so far, the first one included. */
  readonly lines: readonly Readonly<Record<string, unknown>>[];
  /** Resident bytes now. */
  resident(): number;
  /** Most resident bytes since the start, or since `forgetPeak`. */
  peak(): number;
  forgetPeak(): void;
  /** Resolves with the exit code. */
  exited(ms?: number): Promise<number | null>;
}

const MAIN = fileURLToPath(new URL('./proxy-main.ts', import.meta.url));

/**
 * Starts `mcp-resume-guard` with these arguments, on free ports; it is killed with the test. `first`: a module that is
 * loaded before.
 */
export async function startProcess(t: TestContext, argv: readonly string[], first?: URL): Promise<ProxyProcess> {
  const addresses = ['--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0'];
  const loaded = ['--import', 'tsx', ...(first === undefined ? [] : ['--import', first.href])];
  const args = [...loaded, MAIN, ...addresses, '--log-format', 'json', ...argv];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  t.after(() => child.kill('SIGKILL'));
  let complaints = '';
  child.stderr.on('data', (text) => {
    complaints += text;
  });
  const exit = once(child, 'exit');
  const lines: Record<string, unknown>[] = [];
  const output = createInterface(child.stdout);
  output.on('line', (line) => lines.push(JSON.parse(line)));
  await within('the first line', once(output, 'line'), 20_000, () => complaints);
  const { url, admin } = lines[0] as { url: string; admin: string };
  const figure = (name: string): number => {
    const status = readFileSync(`/proc/${child.pid}/status`, 'utf8');
    const [, kilobytes] = new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status) ?? [];
    return Number(kilobytes) * 1024;
  };
  return {
    child,
    url,
    adminUrl: admin,
    lines,
    resident: () => figure('VmRSS'),
    peak: () => figure('VmHWM'),
    // proc(5): 5 resets the peak to what is resident.
    forgetPeak: () => writeFileSync(`/proc/${child.pid}/clear_refs`, '5'),
    async exited(ms = 5_000) {
      const [code] = await within('the process to end', exit, ms, () => complaints);
      return code;
    },
  };
}
