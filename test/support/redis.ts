/** A real Redis server for one test, in a directory of its own, killed with the test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { createClient } from 'redis';
import { eventually, within } from './waiting.ts';

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
    command: (...words) => commandAt(port, words),
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
  return spawnServer([...own, ...settings], 'Ready to accept connections');
}

async function spawnServer(args: readonly string[], readyWhen: string): Promise<ChildProcess> {
  const child = spawn('redis-server', args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  const ready = new Promise<void>((resolve, reject) => {
    child.on('error', reject);
    child.on('exit', () => reject(new Error(`redis-server ended: ${output}`)));
    child.stdout.on('data', (text) => {
      output += text;
      if (output.includes(readyWhen)) resolve();
    });
  });
  await within('redis-server to be ready', ready, 10_000, () => output);
  return child;
}

/** Runs one command on a connection of its own. */
async function commandAt(port: number, words: readonly string[]): Promise<unknown> {
  const client = createClient({ socket: { host: '127.0.0.1', port, reconnectStrategy: false } });
  client.on('error', () => {});
  await within('a connection to redis-server', client.connect());
  try {
    return await within(words.join(' '), client.sendCommand([...words]));
  } finally {
    client.destroy();
  }
}

/** Three masters that share the slots, without replicas; each serves its own while another is away. */
export async function startCluster(t: TestContext): Promise<{ readonly url: string; readonly nodes: RedisServer[] }> {
  const settings = [
    ['--cluster-enabled', 'yes'],
    ['--cluster-node-timeout', '1000'],
    ['--cluster-require-full-coverage', 'no'],
  ].flat();
  const nodes = await Promise.all([0, 1, 2].map(() => startRedis(t, settings)));
  const borders = [0, 5_461, 10_923, 16_384];
  for (const [i, node] of nodes.entries()) {
    await node.command('CLUSTER', 'ADDSLOTSRANGE', String(borders[i]), String(borders[i + 1]! - 1));
    await node.command('CLUSTER', 'MEET', '127.0.0.1', String(nodes[0]!.port));
  }
  for (const node of nodes) {
    const joined = async (): Promise<boolean> => {
      const state = String(await node.command('CLUSTER', 'INFO'));
      return state.includes('cluster_state:ok') && state.includes('cluster_known_nodes:3');
    };
    await eventually('the nodes to have met', joined, 15_000);
  }
  const hosts = nodes.map(({ port }) => `127.0.0.1:${port}`).join(',');
  return { url: `redis+cluster://${hosts}`, nodes };
}

/** A master, a replica of it, and a Sentinel that makes that one the master when the first is gone. */
export async function startSentinel(t: TestContext): Promise<{ readonly url: string; readonly master: RedisServer }> {
  const master = await startRedis(t);
  const replica = await startRedis(t, ['--replicaof', '127.0.0.1', String(master.port)]);
  const synchronised = async (): Promise<boolean> =>
    String(await replica.command('INFO', 'replication')).includes('master_link_status:up');
  await eventually('the replica to follow', synchronised, 15_000);
  const port = await freePort();
  const file = join(master.directory, 'sentinel.conf');
  writeFileSync(
    file,
    [
      `port ${port}`,
      'bind 127.0.0.1',
      `dir ${master.directory}`,
      `sentinel monitor mymaster 127.0.0.1 ${master.port} 1`,
      'sentinel down-after-milliseconds mymaster 500',
      'sentinel failover-timeout mymaster 2000',
    ].join('\n'),
  );
  const child = await spawnServer([file, '--sentinel'], 'Sentinel ID is');
  t.after(() => void child.kill('SIGKILL'));
  const aware = async (): Promise<boolean> =>
    JSON.stringify(await commandAt(port, ['SENTINEL', 'REPLICAS', 'mymaster'])).includes(String(replica.port));
  await eventually('the Sentinel to know the replica', aware, 20_000);
  return { url: `redis+sentinel://127.0.0.1:${port}/mymaster`, master };
}
