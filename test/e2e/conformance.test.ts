/**
 * The published conformance suites, run direct and through the proxy: what passes, warns and fails must be the same. The
 * fixture server does not do everything the suites know, so some checks fail, on both ways alike.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type SdkGuard, startSdkGuard } from '../support/sdk-guard.ts';
import { startConformanceServer } from './servers/conformance-server.ts';

const SUITES = {
  '0.1.16': '@modelcontextprotocol/conformance',
  '0.2.0-alpha.12': 'conformance-next',
} as const;
type Suite = keyof typeof SUITES;

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

interface Results {
  /** `scenario check STATUS`, sorted, each once. */
  readonly checks: readonly string[];
  readonly output: string;
}

/** Runs a suite's program to its end, at most two minutes, and reads the checks it wrote down. */
async function run(
  t: TestContext,
  suite: Suite,
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<Results> {
  const directory = await mkdtemp(join(tmpdir(), 'conformance-'));
  t.after(() => rm(directory, { recursive: true, force: true }));
  const program = createRequire(import.meta.url).resolve(`${SUITES[suite]}/dist/index.js`);
  const preload = new URL('./servers/fs-glob-sync.mjs', import.meta.url).href;
  const child = spawn(process.execPath, ['--import', preload, program, ...args, '--output-dir', directory], {
    cwd: here('../..'),
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: 120_000,
    killSignal: 'SIGKILL',
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  // A failed check is an exit code of 1 too; the checks say which.
  await once(child, 'close');
  const checks = new Set<string>();
  for (const entry of await readdir(directory)) {
    const scenario = entry.replace(/-\d{4}-\d\d-\d\dT.*$/, '').replace(/^server-/, '');
    const found = JSON.parse(await readFile(join(directory, entry, 'checks.json'), 'utf8')) as {
      id: string;
      status: string;
    }[];
    for (const { id, status } of found) checks.add(`${scenario} ${id} ${settled(id, status)}`);
    output += await readFile(join(directory, entry, 'stdout.txt'), 'utf8').catch(() => '');
  }
  return { checks: [...checks].sort(), output };
}

/** A reconnect more than 200 ms late is a warning, which on a busy machine says nothing about the proxy. */
function settled(id: string, status: string): string {
  return id === 'client-sse-retry-timing' && status === 'WARNING' ? 'SUCCESS' : status;
}

interface Row {
  readonly suite: Suite;
  readonly server: '1.32' | '2';
  readonly args: readonly string[];
  /** Successful checks that the direct way must have, so that two empty results are no pass. */
  readonly atLeast: number;
}

const ROWS: readonly Row[] = [
  { suite: '0.1.16', server: '1.32', args: ['--suite', 'all'], atLeast: 44 },
  { suite: '0.1.16', server: '2', args: ['--suite', 'all'], atLeast: 44 },
  { suite: '0.2.0-alpha.12', server: '1.32', args: ['--requirements', '2025-11-25'], atLeast: 50 },
  { suite: '0.2.0-alpha.12', server: '2', args: ['--requirements', '2025-11-25'], atLeast: 50 },
  { suite: '0.2.0-alpha.12', server: '2', args: ['--requirements', '2026-07-28'], atLeast: 90 },
];

const successes = (checks: readonly string[]): number => checks.filter((check) => check.endsWith(' SUCCESS')).length;

describe('conformance suites', { concurrency: 2 }, () => {
  for (const { suite, server: version, args, atLeast } of ROWS) {
    test(`conformance ${suite} ${args.join(' ')}: the checks of a ${version} server are the same through the proxy`, async (t) => {
      const server = await startConformanceServer(version);
      t.after(() => server.close());
      const guard: SdkGuard = await startSdkGuard(t, server.url);
      const direct = await run(t, suite, ['server', '--url', server.url, ...args]);
      assert.ok(successes(direct.checks) >= atLeast, `${successes(direct.checks)}\n${direct.output}`);
      const guarded = await run(t, suite, ['server', '--url', guard.url, ...args]);
      assert.deepEqual(guarded.checks, direct.checks);
      t.diagnostic(
        `${direct.checks.length} checks, ${successes(direct.checks)} successful; ${guard.decisions().join(', ')}`,
      );
    });
  }

  for (const suite of Object.keys(SUITES) as Suite[]) {
    for (const scenario of ['sse-retry', 'tools_call']) {
      test(`conformance ${suite}: the client scenario ${scenario} passes through a proxy process as it does direct`, async (t) => {
        const command = `${process.execPath} --import tsx ${here('./servers/conformance-client.ts')}`;
        const client = ['client', '--scenario', scenario, '--command', command];
        const direct = await run(t, suite, client);
        const guarded = await run(t, suite, client, { E2E_GUARD: '1' });
        assert.ok(successes(direct.checks) > 0, direct.output);
        assert.doesNotMatch(direct.output, /through the proxy/);
        assert.match(guarded.output, /through the proxy/);
        assert.deepEqual(guarded.checks, direct.checks, guarded.output);
        t.diagnostic(direct.checks.join(', '));
      });
    }
  }
});
