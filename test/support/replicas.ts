/** Several proxies in front of one scripted upstream, sharing one Redis; torn down with the test. */
import type { TestContext } from 'node:test';
import { pino } from 'pino';
import { type ConfigFile, configFrom } from '../../src/config.ts';
import { type RunningProxy, type StartOptions, startProxy } from '../../src/main.ts';
import { type Client, createClient } from './client.ts';
import type { LogLine } from './guard.ts';
import { startUpstream, type Upstream } from './upstream.ts';
import { eventually, within } from './waiting.ts';

export const SECRET = 'a-secret-of-these-tests';

export interface ReplicaGuard {
  readonly proxy: RunningProxy;
  readonly client: Client;
  readonly upstream: Upstream;
  readonly logs: readonly LogLine[];
  /** The sum of the samples of a metric whose labels hold these words. */
  metric(name: string, labels?: string): Promise<number>;
  admin(path: string): Promise<string>;
  /** Everything that is known here stands in the shared ledger. */
  told(): Promise<void>;
  /** Ends it in order, as SIGTERM does. */
  close(): Promise<void>;
}

export interface Replicas {
  readonly upstream: Upstream;
  /** Starts one more. */
  start(file?: ConfigFile, options?: StartOptions): Promise<ReplicaGuard>;
}

export async function startReplicas(t: TestContext, store: string, common: ConfigFile = {}): Promise<Replicas> {
  const upstream = await startUpstream();
  const running: ReplicaGuard[] = [];
  t.after(async () => {
    await Promise.all(running.map((replica) => replica.close()));
    await upstream.kill();
    if (upstream.failures.length > 0) throw new AggregateError(upstream.failures);
  });
  return {
    upstream,
    async start(file = {}, options = {}) {
      const logs: LogLine[] = [];
      const logger = pino({ level: 'debug' }, { write: (line) => void logs.push(JSON.parse(line)) });
      const config = configFrom({
        listen: '127.0.0.1:0',
        admin: { listen: '127.0.0.1:0' },
        replayHold: '200ms',
        drainTimeout: '100ms',
        store,
        storeSecret: SECRET,
        ...common,
        ...file,
        upstream: { url: `${upstream.url}/mcp`, ...common.upstream, ...file.upstream },
      });
      // A busy machine is no failure of the store, unless that is what the test is about.
      const proxy = await startProxy(config, { logger, lookupDeadline: 1_000, ...options });
      const client = createClient(proxy.url);
      const admin = async (page: string): Promise<string> => (await fetch(new URL(page, proxy.adminUrl ?? ''))).text();
      const metric: ReplicaGuard['metric'] = async (name, labels = '') => {
        let sum = 0;
        for (const line of (await admin('/metrics')).split('\n')) {
          const isIt = new RegExp(`^mcp_resume_guard_${name}[ {]`).test(line) && line.includes(labels);
          if (isIt) sum += Number(line.slice(line.lastIndexOf(' ') + 1));
        }
        return sum;
      };
      let closing: Promise<void> | null = null;
      const replica: ReplicaGuard = {
        proxy,
        client,
        upstream,
        logs,
        admin,
        metric,
        told: () => eventually('everything to be told', async () => (await metric('store_pending')) === 0),
        close() {
          client.close();
          closing ??= within('the proxy to close', proxy.close(), 10_000);
          return closing;
        },
      };
      running.push(replica);
      return replica;
    },
  };
}
