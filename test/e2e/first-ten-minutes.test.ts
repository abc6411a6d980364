/** The tutorial, walked as it is written: what is typed is run in a shell, and what is seen has to be seen. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { eventually, within } from '../support/waiting.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const PAGE = readFileSync(new URL('../../docs/first-ten-minutes.md', import.meta.url), 'utf8');
const PATIENCE = 30_000;

/** Ports of the page, each of which becomes a free one. */
const PORTS = ['3001', '3999', '8808', '8809', '8818', '8819'];

interface Step {
  readonly command: string;
  readonly seen: readonly string[];
}

interface Block {
  /** What of a guard's log is shown, or what happens in a terminal. */
  readonly kind: 'console' | 'log';
  /** Of a terminal: `in a terminal of its own` and the like; empty for the one where curl is. */
  readonly where: string;
  readonly steps: readonly Step[];
}

function blocksOf(page: string): Block[] {
  return [...page.matchAll(/^```(console|log)\n([\s\S]*?)^```$/gm)].map(([, kind, body = '']) => {
    const lines = body.trimEnd().split('\n');
    const where = lines[0]?.startsWith('# ') ? lines.shift()!.slice(2) : '';
    const steps: { command: string; seen: string[] }[] = [];
    for (const line of lines) {
      if (line.startsWith('$ ')) steps.push({ command: line.slice(2), seen: [] });
      else if (steps.length === 0) steps.push({ command: '', seen: [line] });
      else steps.at(-1)?.seen.push(line);
    }
    return { kind: kind as Block['kind'], where, steps };
  });
}

/** Whether the lines are all there, in this order, with others between them. */
function holds(text: string, lines: readonly string[]): boolean {
  const pattern = lines.map((line) => line.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&').replaceAll('…', '.*'));
  return new RegExp(pattern.join('[^]*?')).test(text);
}

async function freePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1'));
  await Promise.all(servers.map((server) => once(server, 'listening')));
  const ports = servers.map((server) => (server.address() as AddressInfo).port);
  await Promise.all(servers.map((server) => once(server.close(), 'close')));
  return ports;
}

/** A terminal: a shell of its own, which ends with the test, and what was printed there. */
class Terminal {
  readonly #child: ChildProcess;
  #text = '';

  constructor(t: TestContext, env: Readonly<Record<string, string>>) {
    // In a group of its own, so that Ctrl-C reaches what it runs, as from a keyboard.
    this.#child = spawn('bash', ['--norc'], { cwd: ROOT, env: { ...process.env, ...env }, detached: true });
    for (const output of [this.#child.stdout, this.#child.stderr])
      output?.setEncoding('utf8').on('data', (text: string) => {
        this.#text += text;
      });
    t.after(() => this.#signal('SIGKILL'));
  }

  #signal(signal: NodeJS.Signals): void {
    if (this.#child.exitCode === null && this.#child.signalCode === null) process.kill(-this.#child.pid!, signal);
  }

  type(line: string): void {
    this.#child.stdin?.write(`${line}\n`);
  }

  async sees(lines: readonly string[]): Promise<void> {
    const missing = () => `${lines.join('\n')}\n--- in\n${this.#text}`;
    await eventually('what the page shows', () => holds(this.#text, lines), PATIENCE).catch(() =>
      assert.fail(`not seen: ${missing()}`),
    );
  }

  /** What the line prints; the shell is ready for the next one then. */
  async run(line: string): Promise<string> {
    this.#text = '';
    this.type(`${line}\necho "done"$((1))`);
    await eventually(`the end of ${line}`, () => /done1$/m.test(this.#text), PATIENCE);
    return this.#text.replaceAll('\r', '');
  }

  async interrupt(): Promise<void> {
    const exit = once(this.#child, 'exit');
    this.#signal('SIGINT');
    this.#child.stdin?.end();
    await within('the end of what ran in a terminal', exit, PATIENCE);
  }
}

test('docs/first-ten-minutes.md: everything that is typed prints what the page shows', async (t) => {
  const free = await freePorts(PORTS.length);
  const page = PORTS.reduce((text, port, i) => text.replace(new RegExp(`\\b${port}\\b`, 'g'), String(free[i])), PAGE);
  const [, , guard, admin] = free;
  const env = {
    MCP_RESUME_GUARD_LISTEN: `127.0.0.1:${guard}`,
    MCP_RESUME_GUARD_ADMIN: `127.0.0.1:${admin}`,
    MCP_RESUME_GUARD_LOG_FORMAT: 'pretty',
  };
  const shell = new Terminal(t, env);
  const others: Terminal[] = [];
  const open = async ({ command, seen }: Step): Promise<Terminal> => {
    const terminal = new Terminal(t, env);
    terminal.type(command);
    await terminal.sees(seen);
    return terminal;
  };
  const blocks = blocksOf(page);
  assert.ok(blocks.length >= 12, `${blocks.length} blocks`);
  for (const { kind, where, steps } of blocks) {
    const [step] = steps;
    if (kind === 'log') {
      await others[1]?.sees(step?.seen ?? []);
    } else if (where === 'in a terminal of its own') {
      others.push(await open(step!));
    } else if (where === 'in the terminal of the server, after Ctrl-C') {
      await others[0]?.interrupt();
      others[0] = await open(step!);
    } else if (where === 'Ctrl-C in the terminal of the guard') {
      await others[1]?.interrupt();
      await others[1]?.sees(step?.seen ?? []);
    } else {
      assert.equal(where, '', 'a place that the page does not explain');
      for (const { command, seen } of steps) {
        const printed = await shell.run(command);
        assert.ok(holds(printed, seen), `${command}\n--- printed\n${printed}\n--- and not\n${seen.join('\n')}`);
      }
    }
  }
  for (const terminal of [shell, others[0]!]) await terminal.interrupt();
});
