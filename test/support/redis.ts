/** A real Redis server for one test, in a directory of its own, killed with the test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { createClient } from 'redis';
import { within } from './waiting.ts';

export interface RedisServer {
  readonly port: number;
  readonly url: string;
  readonly directory: string;
  /** Runs one command on a connection of its own. */
  command(...words: string[]): Promise<unknown>;
  /** SIGKILL, or another signal. */
  kill(signal?: NodeJS.Signals): Promise<void>;
  /** Starts a killed one again, on the same port; it keeps only what it had on disk. */
  restart(): Promise<void>;
  /** SIGSTOP and SIGCONT: it hangs, with every connection open. */
  freeze(): void;
  thaw(): void;
}

/** Of the operating system's choice; somebody else may take it before it is used. */
export async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as net.AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** Starts a server with these settings beside the usual ones, as on the command line: `['--maxmemory', '1mb']`. */
export async function startRedis(t: TestContext, settings: readonly string[] = []): Promise<RedisServer> {
  const directory = mkdtempSync(join(tmpdir(), 'mrg-redis-'));
  let child: ChildProcess | null = null;
  const kill = async (signal: NodeJS.Signals = 'SIGKILL'): Promise<void> => {
    const ended = child;
    child = null;
    if (ended === null || ended.exitCode !== null || ended.signalCode !== null) return;
    const exit = once(ended, 'exit');
    ended.kill('SIGCONT');
    ended.kill(signal);
    await within('redis-server to end', exit);
  };
  t.after(async () => {
    await kill();
    rmSync(directory, { recursive: true, force: true });
  });
  let port = 0;
  for (let attempt = 0; child === null; attempt += 1) {
    port = await freePort();
    child = await spawnRedis(port, directory, settings).catch((error: Error) => {
      if (attempt === 3) throw error;
      return null;
    });
  }
  return {
    port,
    url: `redis://127.0.0.1:${port}/0`,
    directory,
    command: (...words) => commandAt(port, words, settings),
    kill,
    async restart() {
      child = await spawnRedis(port, directory, settings);
    },
    freeze: () => void child?.kill('SIGSTOP'),
    thaw: () => void child?.kill('SIGCONT'),
  };
}

async function spawnRedis(port: number, directory: string, settings: readonly string[]): Promise<ChildProcess> {
  const own = ['--port', String(port), '--bind', '127.0.0.1', '--dir', directory, '--save', '', '--appendonly', 'no'];
  const args = settings[0] === '--sentinel' ? settings.slice(1) : [...own, ...settings];
  const child = spawn('redis-server', args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  const ready = new Promise<void>((resolve, reject) => {
    child.on('error', reject);
    child.on('exit', () => reject(new Error(`redis-server ended: ${output}`)));
    child.stdout.on('data', (text) => {
      output += text;
      if (output.includes('Ready to accept connections') || output.includes('Sentinel ID is')) resolve();
    });
  });
  await within('redis-server to be ready', ready, 10_000, () => output);
  return child;
}

async function commandAt(port: number, words: string[], settings: readonly string[]): Promise<unknown> {
  const tls = settings.includes('--tls-port');
  if (tls) throw new Error('commands go without TLS');
  const client = createClient({ socket: { host: '127.0.0.1', port, reconnectStrategy: false } });
  client.on('error', () => {});
  await within('a connection to redis-server', client.connect());
  try {
    return await within(words.join(' '), client.sendCommand(words));
  } finally {
    client.destroy();
  }
}
