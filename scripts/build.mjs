/**
 * Builds the package into `dist`: each module by itself, for whoever imports some of them, and the command line in a few
 * files, since a hundred modules take Node.js longer to find and read than they take to run: that was a fifth of the time
 * from start to listening. Other packages stay where they are, but for zod: the command line needs a few of its
 * modules, and all of them were a fourth of its heap.
 */
import { execFileSync } from 'node:child_process';
import { cpSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const zod = fileURLToPath(import.meta.resolve('zod'));

rmSync('dist', { recursive: true, force: true });
execFileSync('tsc', ['-p', 'tsconfig.build.json'], { stdio: 'inherit' });
cpSync('src/ops/page', 'dist/ops/page', { recursive: true });
cpSync(join(dirname(zod), 'LICENSE'), 'dist/ops/LICENSE-zod');
await build({
  entryPoints: ['src/cli.ts'],
  outdir: 'dist',
  // Beside the page, which is read from where the code is.
  chunkNames: 'ops/[name]-[hash]',
  bundle: true,
  splitting: true,
  packages: 'external',
  alias: { zod },
  format: 'esm',
  platform: 'node',
  target: 'node20',
  logLevel: 'warning',
});
