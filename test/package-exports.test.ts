/** The entry points as they are published: types that resolve, nothing pulled in that is not needed. Reads `dist`. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { before, describe, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { checkPackage, createPackageFromTarballData } from '@arethetypeswrong/core';
import { type BuildOptions, build } from 'esbuild';
import { publint } from 'publint';
import { formatMessage } from 'publint/utils';

const exec = promisify(execFile);
const ROOT = fileURLToPath(new URL('../', import.meta.url));
const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
const ENTRIES = ['.', './client', './server'];

describe('the package', () => {
  let tarball = new Uint8Array();

  before(async () => {
    const place = mkdtempSync(join(tmpdir(), 'guard-exports-'));
    // Scripts stay out of it: "prepare" would build anew under the feet of other tests.
    const { stdout } = await exec('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', place], {
      cwd: ROOT,
    });
    tarball = new Uint8Array(readFileSync(join(place, JSON.parse(stdout)[0].filename)));
    rmSync(place, { recursive: true, force: true });
  });

  test('has no packaging fault that publint knows', async () => {
    const { messages } = await publint({ strict: true, pack: { tarball: tarball.slice().buffer } });
    assert.deepEqual(
      messages.map((message) => formatMessage(message, manifest)),
      [],
    );
  });

  test('has types that resolve, at every entry point, for ES modules and for bundlers', async () => {
    const analysis = await checkPackage(createPackageFromTarballData(tarball), { entrypoints: ENTRIES });
    assert.ok(analysis.types, 'there are types');
    for (const entry of ENTRIES) {
      for (const kind of ['node16-esm', 'bundler'] as const) {
        const resolution = analysis.entrypoints[entry]?.resolutions[kind].resolution;
        assert.ok(resolution?.fileName.endsWith('.d.ts'), `${entry} has no types for ${kind}`);
      }
    }
    // It is an ES module only: `require` of it works where Node.js can do that, and TypeScript says so to the others.
    const expected = ({ kind, ...where }: (typeof analysis.problems)[number]): boolean =>
      kind === 'CJSResolvesToESM' ||
      (kind === 'NoResolution' && 'resolutionKind' in where && where.resolutionKind === 'node10');
    assert.deepEqual(
      analysis.problems.filter((problem) => !expected(problem)),
      [],
    );
  });
});

/** The package by itself, without anything it depends on and without what an entry point does not need. */
function alone(t: TestContext, parts: readonly string[]): string {
  const place = mkdtempSync(join(tmpdir(), 'guard-alone-'));
  t.after(() => rmSync(place, { recursive: true, force: true }));
  const home = join(place, 'node_modules', manifest.name);
  mkdirSync(home, { recursive: true });
  cpSync(join(ROOT, 'package.json'), join(home, 'package.json'));
  for (const part of parts) cpSync(join(ROOT, 'dist', part), join(home, 'dist', part), { recursive: true });
  return place;
}

const run = (cwd: string, code: string) => exec(process.execPath, ['--input-type=module', '--eval', code], { cwd });

describe('an entry point', () => {
  test('./client runs with nothing but itself and core', async (t) => {
    const place = alone(t, ['client', 'core']);
    const code = `
      import { guardedFetch, StreamResumptionGuard } from 'mcp-resume-guard/client';
      const fetch = guardedFetch(async () => new Response('data: 1\\n\\n', { headers: { 'content-type': 'text/event-stream' } }));
      const response = await fetch('http://server.test/mcp', { method: 'POST', body: '{"id":1,"method":"m"}' });
      const guard = new StreamResumptionGuard();
      guard.observeEvent(1, 'e1', false);
      console.log(await response.text(), guard.buildResumeHeaders(1, 's')['Last-Event-ID']);`;
    assert.match((await run(place, code)).stdout, /data: 1\n\n e1/);
    await assert.rejects(run(place, `import 'mcp-resume-guard';`), /ERR_MODULE_NOT_FOUND/, 'the proxy is not here');
  });

  test('./server runs with nothing but itself and core', async (t) => {
    const place = alone(t, ['server', 'core']);
    const code = `
      import { guardEventStore, ReplayAuthorizer } from 'mcp-resume-guard/server';
      const events = guardEventStore({ storeEvent: async () => 'x', replayEventsAfter: async () => '' }).forSession('s');
      const id = await events.storeEvent('one', {});
      console.log(await events.replayEventsAfter(id, { send: async () => {} }), new ReplayAuthorizer().open('s'));`;
    assert.match((await run(place, code)).stdout, /one 1/);
  });

  for (const [entry, rooms] of [
    ['client', ['client', 'core']],
    ['server', ['core', 'server']],
  ] as const) {
    test(`./${entry} bundles for a browser, out of ${rooms.join(' and ')} alone`, async () => {
      const { inputs } = await bundle(`export * from 'mcp-resume-guard/${entry}';`, { platform: 'browser' });
      const used = new Set(inputs.map((input) => /^dist\/(\w+)\//.exec(input)?.[1]));
      assert.deepEqual([...used].sort(), rooms);
    });
  }
});

interface Bundled {
  readonly text: string;
  readonly inputs: readonly string[];
}

/** What a bundler makes of this program; `inputs` leaves out the program itself. */
async function bundle(code: string, options: BuildOptions): Promise<Bundled> {
  const { outputFiles, metafile } = await build({
    stdin: { contents: code, resolveDir: ROOT },
    absWorkingDir: ROOT,
    bundle: true,
    format: 'esm',
    minify: true,
    write: false,
    metafile: true,
    logLevel: 'silent',
    ...options,
  });
  const [output] = Object.values(metafile?.outputs ?? {});
  const used = Object.entries(output?.inputs ?? {}).filter(([, { bytesInOutput }]) => bytesInOutput > 0);
  return {
    text: outputFiles?.[0]?.text ?? '',
    inputs: used.map(([input]) => input).filter((input) => input !== '<stdin>'),
  };
}

describe('a bundler leaves out what is not used', () => {
  test('of every entry point all of it, where nothing is', async () => {
    for (const entry of ENTRIES) {
      const name = entry.replace('.', 'mcp-resume-guard');
      const { text } = await bundle(`import '${name}';`, { platform: 'node' });
      assert.equal(text.trim(), '', name);
    }
  });

  test('of ./client the guarded fetch, where only the small guard is used', async () => {
    const { text, inputs } = await bundle(`export { StreamResumptionGuard } from 'mcp-resume-guard/client';`, {
      platform: 'browser',
    });
    assert.deepEqual(
      inputs.filter((input) => input.includes('exchange') || input.includes('ledger')),
      [],
    );
    assert.ok(text.length < 12_000, `${text.length} bytes`);
  });

  test('of the whole package the proxy and its dependencies', async () => {
    const code = `export { StreamResumptionGuard, ReplayAuthorizer } from 'mcp-resume-guard';`;
    const { text, inputs } = await bundle(code, { platform: 'node' });
    assert.deepEqual(
      inputs.filter((input) => !/^dist\/(?:client|server|core)\//.test(input)),
      [],
    );
    assert.doesNotMatch(text, /undici|node:http/);
  });
});
