/** A scripted upstream, the proxy and a scripted client in one call, on real sockets, torn down with the test. */

import type { TestContext } from 'node:test';
import { pino } from 'pino';
import { type Config, type ConfigFile, configFrom } from '../../src/config.ts';
import { type RunningProxy, startProxy } from '../../src/main.ts';
import { type Client, createClient } from './client.ts';
import { type Handler, startUpstream, type Upstream } from './upstream.ts';
import { within } from './waiting.ts';

export interface GuardOptions {
  /** Keys of a configuration file, over the defaults of these tests. With `routes` there is no `upstream.url`. */
  readonly file?: ConfigFile;
  /** Keys of `upstream` in the file, beside the URL. */
  readonly upstreamFile?: ConfigFile['upstream'];
  /** The path that is guarded; with an empty one every path is. Default: `/mcp`. */
  readonly path?: string;
  /** Answers every request, where the test does not do so itself. */
  readonly handler?: Handler;
}

export type LogLine = Readonly<Record<string, unknown>> & { readonly level: number };

export interface Guard {
  readonly upstream: Upstream;
  readonly client: Client;
  readonly proxy: RunningProxy;
  readonly url: string;
  /** `host:port` of the proxy. */
  readonly authority: string;
  /** Every log line so far, debug lines included unless the file sets another level. */
  readonly logs: readonly LogLine[];
  /** Log lines at level warn or above. */
  warnings(): LogLine[];
  /** A page of the admin listener. */
  admin(path: string): Promise<string>;
  /** The sum of every sample of one metric, name without prefix, whose labels hold all of `labels`. */
  metric(name: string, labels?: Readonly<Record<string, string>>): Promise<number>;
}

const WARN = 40;

/** Starts all three. The test fails if the upstream's script or the process complained in the meantime. */
export async function startGuard(t: TestContext, options: GuardOptions = {}): Promise<Guard> {
  const { path = '/mcp' } = options;
  const upstream = await startUpstream(options.handler);
  const logs: LogLine[] = [];
  const logger = pino(
    { level: options.file?.log?.level ?? 'debug' },
    { write: (line) => void logs.push(JSON.parse(line)) },
  );
  const complaints: Error[] = [];
  const complain = (warning: Error): void => void complaints.push(warning);
  process.on('warning', complain);

  const proxy = await startProxy(testConfig(upstream.url + path, options), { logger });
  const client = createClient(proxy.url, path || '/');
  t.after(async () => {
    client.close();
    await within('the proxy to close', proxy.close(), 10_000);
    await upstream.kill();
    process.off('warning', complain);
    const faults = [...upstream.failures, ...complaints];
    if (faults.length > 0) throw new AggregateError(faults, faults.map(String).join('; '));
  });

  const admin = async (page: string): Promise<string> => {
    if (proxy.adminUrl === null) throw new Error('the admin listener is off');
    return (await fetch(new URL(page, proxy.adminUrl))).text();
  };
  return {
    upstream,
    client,
    proxy,
    url: proxy.url,
    authority: new URL(proxy.url).host,
    logs,
    warnings: () => logs.filter(({ level }) => level >= WARN),
    admin,
    async metric(name, labels = {}) {
      const wanted = Object.entries(labels).map(([key, value]) => `${key}="${value}"`);
      const samples = (await admin('/metrics'))
        .split('\n')
        .filter(
          (line) => /^mcp_resume_guard_(\w+)/.exec(line)?.[1] === name && wanted.every((label) => line.includes(label)),
        );
      return samples.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
    },
  };
}

/** The configuration as an operator's file would give it, with waits short enough for tests. */
function testConfig(url: string, { file = {}, upstreamFile = {} }: GuardOptions): Config {
  return configFrom({
    listen: '127.0.0.1:0',
    admin: { listen: '127.0.0.1:0' },
    replayHold: '200ms',
    drainTimeout: '100ms',
    ...file,
    upstream: { ...(file.routes === undefined ? { url } : {}), ...upstreamFile },
  });
}
