/**
 * Imports go one way: bin -> cli -> main -> proxy, ops, store -> core. This reads the import lines and says where they
 * do not. What stands here is the rule; `ARCHITECTURE.md` explains it.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { posix } from 'node:path';
import { describe, test } from 'node:test';

/** For each room the rooms that it may import from, beside itself. */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  bin: ['dist'],
  cli: ['main', 'demo', 'ops', 'config', 'errors', 'io'],
  demo: ['main', 'core', 'config', 'errors', 'io'],
  main: ['proxy', 'ops', 'store', 'report', 'core', 'config', 'errors'],
  index: ['main', 'proxy', 'ops', 'store', 'report', 'core', 'config', 'errors', 'client', 'server'],
  proxy: ['core', 'config', 'errors'],
  ops: ['core', 'config', 'errors'],
  store: ['core', 'config', 'errors'],
  report: ['core', 'errors'],
  config: ['core', 'errors'],
  errors: [],
  io: [],
  client: ['core'],
  server: ['core'],
  core: [],
};

/** The files whose types, and nothing else, rooms beside each other may share: what one needs, what one reports. */
const SHARED_TYPES = ['src/store/store.ts', 'src/report.ts'];
const TYPES_FOR = ['proxy', 'ops'];

/** Rooms that have to run anywhere, and so use neither Node.js nor a package. */
const SELF_CONTAINED = ['core', 'client', 'server'];

/** What core must not even mention: it decides from what it is given, at once, and remembers nothing by itself. */
const IMPURE = [
  /\bDate\.now\b/,
  /\bnew Date\b/,
  /\bperformance\b/,
  /\bset(?:Timeout|Interval|Immediate)\b/,
  /\bqueueMicrotask\b/,
  /\bPromise\b/,
  /\basync\b/,
  /\bawait\b/,
  /\bMath\.random\b/,
  /\bprocess\./,
  /\bconsole\./,
  /\bcrypto\./,
  /\bfetch\(/,
];

interface Import {
  readonly from: string;
  readonly typeOnly: boolean;
}

function importsOf(text: string): Import[] {
  const code = withoutComments(text);
  const statements = /^\s*(?:import|export)\s+(type\s)?(?:[\w*{}\s,$]+?\sfrom\s+)?['"]([^'"]+)['"]/gm;
  const dynamic = /\bimport\(\s*['"]([^'"]+)['"]\s*\)/g;
  return [
    ...[...code.matchAll(statements)].map(([, type, from = '']) => ({ from, typeOnly: type !== undefined })),
    ...[...code.matchAll(dynamic)].map(([, from = '']) => ({ from, typeOnly: false })),
  ];
}

/** Good enough for this: comments of whole lines, and those behind code and a blank. */
function withoutComments(text: string): string {
  return text.replace(/^\s*\/\*[\s\S]*?\*\//gm, '').replace(/(^|\s)\/\/.*$/gm, '$1');
}

/** `src/core/decide.ts` is in core, `src/config-schema.ts` in config, `src/serve.ts` is a part of cli. */
function roomOf(file: string): string {
  const [top = '', second = '', third] = file.split('/');
  if (top !== 'src') return top;
  if (third !== undefined) return second;
  const name = second.replace(/\.ts$/, '').replace(/-.*/, '');
  return name === 'serve' ? 'cli' : name;
}

/** Every breach of the rule, as a sentence. */
function breaches(files: ReadonlyMap<string, string>): string[] {
  const found: string[] = [];
  for (const [file, text] of files) {
    const room = roomOf(file);
    const allowed = MAY_IMPORT[room];
    if (allowed === undefined) {
      found.push(`${file} is in no room that this test knows`);
      continue;
    }
    for (const { from, typeOnly } of importsOf(text)) {
      if (!from.startsWith('.')) {
        if (SELF_CONTAINED.includes(room))
          found.push(`${file} imports ${from}, but ${room} uses neither Node.js nor packages`);
        continue;
      }
      const target = posix.join(posix.dirname(file), from);
      const other = roomOf(target);
      if (other === room || allowed.includes(other)) continue;
      const isShared = SHARED_TYPES.includes(target) && TYPES_FOR.includes(room);
      if (isShared && typeOnly) continue;
      const rule = isShared ? 'only with "import type"' : `only from ${[room, ...allowed].join(', ')}`;
      found.push(`${file} imports ${target}; ${room} may import ${rule}`);
    }
    if (room !== 'core') continue;
    for (const pattern of IMPURE) {
      const [word] = pattern.exec(withoutComments(text)) ?? [];
      if (word !== undefined) found.push(`${file} says ${word}; core has no clock, no timer, no promise and no logger`);
    }
  }
  return found;
}

function sources(): Map<string, string> {
  const root = new URL('../', import.meta.url);
  const files = ['bin', 'src'].flatMap((folder) =>
    readdirSync(new URL(folder, root), { recursive: true, encoding: 'utf8' })
      .filter((name) => /\.[jt]s$/.test(name))
      .map((name) => posix.join(folder, name.replaceAll('\\', '/'))),
  );
  return new Map(files.map((file) => [file, readFileSync(new URL(file, root), 'utf8')]));
}

test('imports go one way', () => {
  const files = sources();
  assert.ok(files.size > 10, 'the sources are there');
  assert.deepEqual(breaches(files), []);
});

test('what rooms share by type has nothing but types to share', () => {
  const report = sources().get('src/report.ts');
  if (report === undefined) return;
  assert.ok(importsOf(report).every(({ typeOnly }) => typeOnly));
  assert.doesNotMatch(withoutComments(report), /^export (?!type|interface)/m);
});

test('the launcher is nothing but a launcher', () => {
  const launcher = sources().get('bin/mcp-resume-guard.js') ?? '';
  assert.ok(launcher.split('\n').filter((line) => line.trim() !== '').length <= 3);
  assert.deepEqual(importsOf(launcher), [{ from: '../dist/cli.js', typeOnly: false }]);
});

describe('this test notices', () => {
  for (const [name, file, text, expected] of [
    ['a package in core', 'src/core/a.ts', `import { z } from 'zod';`, /imports zod/],
    ['Node.js in core', 'src/core/a.ts', `import type { Hash } from 'node:crypto';`, /imports node:crypto/],
    ['a clock in core', 'src/core/a.ts', 'const now = Date.now();', /says Date\.now/],
    ['a promise in core', 'src/core/a.ts', 'export async function a() {}', /says async/],
    ['core importing upwards', 'src/core/a.ts', `import { b } from '../errors.ts';`, /core may import only from core/],
    ['a room importing its neighbour', 'src/proxy/a.ts', `import { b } from '../ops/b.ts';`, /imports src\/ops\/b\.ts/],
    [
      'the neighbour in several lines',
      'src/ops/a.ts',
      `import {\n  a,\n  b,\n} from '../proxy/b.ts';`,
      /src\/proxy\/b\.ts/,
    ],
    ['an import for its effect', 'src/store/a.ts', `import '../proxy/b.ts';`, /src\/proxy\/b\.ts/],
    ['a re-export', 'src/store/a.ts', `export * from '../proxy/b.ts';`, /src\/proxy\/b\.ts/],
    ['a dynamic import', 'src/ops/a.ts', `const b = await import('../main.ts');`, /src\/main\.ts/],
    ['values of the store', 'src/proxy/a.ts', `import { b } from '../store/store.ts';`, /only with "import type"/],
    ['values of what is reported', 'src/ops/a.ts', `import { b } from '../report.ts';`, /only with "import type"/],
    ['types of another file of the store', 'src/proxy/a.ts', `import type { B } from '../store/redis.ts';`, /redis/],
    ['the configuration importing main', 'src/config-x.ts', `import { a } from './main.ts';`, /config may import/],
    ['a room that nobody knows', 'src/common/a.ts', '', /no room/],
    ['the launcher reaching into the sources', 'bin/a.js', `import { run } from '../src/cli.ts';`, /src\/cli\.ts/],
  ] as const) {
    test(name, () => {
      const found = breaches(new Map([[file, text]]));
      assert.equal(found.length, 1, JSON.stringify(found));
      assert.match(found[0] ?? '', expected);
    });
  }

  test('and leaves alone what is allowed', () => {
    const allowed: [string, string][] = [
      ['src/core/a.ts', `// no async, no Date.now\n/** A Promise is elsewhere. */\nimport type { B } from './b.ts';`],
      ['src/proxy/a.ts', `import type { Store } from '../store/store.ts';\nimport { a } from '../core/a.ts';`],
      ['src/main.ts', `import { a } from './proxy/a.ts';\nimport { b } from './store/redis.ts';\nimport 'undici';`],
      ['src/serve.ts', `import { createLogger } from './ops/logger.ts';`],
      ['src/client/a.ts', `import { a } from '../core/a.ts';`],
      ['src/ops/page/a.ts', `import { a } from '../metrics.ts';`],
    ];
    assert.deepEqual(breaches(new Map(allowed)), []);
  });
});
