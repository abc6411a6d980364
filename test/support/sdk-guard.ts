/** The proxy with its own defaults in front of a real server, torn down with the test. */
import type { TestContext } from 'node:test';
import { pino } from 'pino';
import { type ConfigFile, configFrom } from '../../src/config.ts';
import { startProxy } from '../../src/main.ts';
import { within } from './waiting.ts';

export interface SdkGuard {
  /** The upstream's URL with the proxy's authority. */
  readonly url: string;
  /** Decisions about resumes, in order: rule, and outcome where there was one. */
  decisions(): string[];
  /** Log lines of level warn and above. */
  warnings(): LogLine[];
  /** Ends the proxy before the test does. */
  close(): Promise<void>;
}

export type LogLine = Readonly<Record<string, unknown>> & { readonly level: number };

export async function startSdkGuard(t: TestContext, upstream: string, file: ConfigFile = {}): Promise<SdkGuard> {
  const lines: LogLine[] = [];
  const logger = pino({ level: 'debug' }, { write: (line) => void lines.push(JSON.parse(line)) });
  const config = configFrom({
    listen: '127.0.0.1:0',
    admin: { listen: 'off' },
    drainTimeout: '100ms',
    ...file,
    upstream: { ...file.upstream, url: upstream },
  });
  const proxy = await startProxy(config, { logger });
  const close = (): Promise<void> => within('the proxy to close', proxy.close(), 10_000);
  t.after(close);
  const url = new URL(upstream);
  url.host = new URL(proxy.url).host;
  return {
    url: url.href,
    decisions: () =>
      lines
        // One that failed is told at its end, any other as soon as it is known.
        .filter(({ event, error }) => event === 'decision' || error !== undefined)
        .filter(({ rule }) => typeof rule === 'string' && rule !== 'not-a-resume')
        .map(({ rule, outcome }) => (outcome === undefined ? String(rule) : `${rule} ${outcome}`)),
    warnings: () => lines.filter(({ level }) => level >= 40),
    close,
  };
}

/** How the client reaches the server: straight, or with these settings of the proxy between. */
export type Way = 'direct' | ConfigFile;

/** The URL to hand to a client. `decisions` is empty on the direct way. */
export async function take(t: TestContext, way: Way, upstream: string): Promise<SdkGuard> {
  if (way === 'direct') return { url: upstream, decisions: () => [], warnings: () => [], close: async () => {} };
  return startSdkGuard(t, upstream, way);
}
