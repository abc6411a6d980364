/** The guard of `guard.ts` on a clock that the test moves, for schedules and memories of seconds and minutes. */

import type { TestContext } from 'node:test';
import { pino } from 'pino';
import { type ConfigFile, configFrom } from '../../src/config.ts';
import { startProxy } from '../../src/main.ts';
import { createClient } from './client.ts';
import type { Guard, LogLine } from './guard.ts';
import { startUpstream } from './upstream.ts';
import { within } from './waiting.ts';

/** Milliseconds that pass only when the test says so. Timers, such as the one of `replayHold`, run on real time. */
export interface Clock {
  readonly now: () => number;
  advance(ms: number): void;
}

export type TimedGuard = Pick<Guard, 'upstream' | 'client' | 'proxy' | 'url' | 'logs' | 'metric'> & {
  readonly clock: Clock;
};

/** A proxy that judges time by `clock`, with its upstream and its client; torn down with the test. */
export async function startTimedGuard(
  t: TestContext,
  file: ConfigFile = {},
  upstreamFile: ConfigFile['upstream'] = {},
): Promise<TimedGuard> {
  const upstream = await startUpstream();
  const clock = createClock();
  const logs: LogLine[] = [];
  const logger = pino({ level: 'debug' }, { write: (line) => void logs.push(JSON.parse(line)) });
  const config = configFrom({
    listen: '127.0.0.1:0',
    admin: { listen: '127.0.0.1:0' },
    replayHold: '200ms',
    drainTimeout: '100ms',
    ...file,
    upstream: { url: `${upstream.url}/mcp`, ...upstreamFile },
  });
  const proxy = await startProxy(config, { logger, now: clock.now });
  const client = createClient(proxy.url);
  t.after(async () => {
    client.close();
    await within('the proxy to close', proxy.close(), 10_000);
    await upstream.kill();
    if (upstream.failures.length > 0) throw new AggregateError(upstream.failures);
  });
  return {
    upstream,
    client,
    proxy,
    url: proxy.url,
    logs,
    clock,
    async metric(name, labels = {}) {
      const wanted = Object.entries(labels).map(([key, value]) => `${key}="${value}"`);
      const page = await (await fetch(new URL('/metrics', proxy.adminUrl ?? ''))).text();
      return page
        .split('\n')
        .filter((line) => /^mcp_resume_guard_(\w+)/.exec(line)?.[1] === name)
        .filter((line) => wanted.every((label) => line.includes(label)))
        .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
    },
  };
}

/** Stands still at some moment until it is advanced. */
export function createClock(start = 1_000_000): Clock {
  let time = start;
  return {
    now: () => time,
    advance(ms) {
      time += ms;
    },
  };
}
