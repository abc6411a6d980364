import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const exec = promisify(execFile);
const ROOT = fileURLToPath(new URL('../../', import.meta.url));

interface Packed {
  readonly filename: string;
  readonly files: readonly { readonly path: string; readonly mode: number }[];
}

function folder(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), 'guard-package-'));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Packs what was built. Scripts stay out of it: "prepare" would build anew under the feet of other tests. */
async function pack(into: string): Promise<Packed> {
  const { stdout } = await exec('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', into], {
    cwd: ROOT,
  });
  const [packed] = JSON.parse(stdout) as Packed[];
  assert.ok(packed);
  return packed;
}

test('the package holds what runs and what explains it, and nothing else', async (t) => {
  const paths = (await pack(folder(t))).files.map(({ path }) => path);
  for (const path of [
    'bin/mcp-resume-guard.js',
    'dist/cli.js',
    'dist/index.js',
    'dist/index.d.ts',
    'LICENSE',
    'README.md',
  ]) {
    assert.ok(paths.includes(path), `${path} is missing`);
  }
  for (const path of ['config/default.yaml', 'config/schema.json'])
    assert.ok(paths.includes(path), `${path} is missing`);
  const strays = paths.filter((path) => !/^(?:bin|dist|config)\/|^(?:package\.json|LICENSE|[A-Z]+\.md)$/.test(path));
  assert.deepEqual(strays, []);
  assert.deepEqual(
    paths.filter((path) => path.endsWith('.map')),
    [],
  );
});

test('the package runs with nothing but its production dependencies', async (t) => {
  const place = folder(t);
  const { filename } = await pack(place);
  writeFileSync(join(place, 'package.json'), '{"private":true}');
  // What the lock file pins was fetched when this checkout was installed, so nothing has to come over the network twice.
  const install = [
    'install',
    '--omit=dev',
    '--ignore-scripts',
    '--prefer-offline',
    '--no-audit',
    '--no-fund',
    `./${filename}`,
  ];
  await exec('npm', install, { cwd: place, timeout: 100_000 });
  const bin = join(place, 'node_modules', '.bin', 'mcp-resume-guard');
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  assert.equal((await exec(bin, ['--version'], { cwd: place })).stdout, `${version}\n`);
  const checked = await exec(bin, ['check-config', 'http://localhost:3001/mcp'], { cwd: place });
  assert.match(checked.stdout, /^mode: enforce$/m);
  const { Config: _, ...names } = await import(join(place, 'node_modules', 'mcp-resume-guard', 'dist', 'index.js'));
  assert.ok(Object.keys(names).length > 0, 'the library can be imported');
});
