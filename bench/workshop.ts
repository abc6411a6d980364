/** What the benchmark needs before it can begin: the tools, the two ends in C, and the product, built from its source. */
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, symlinkSync } from 'node:fs';
import { cpus, release, totalmem } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('..', import.meta.url));
const HERE = fileURLToPath(new URL('.', import.meta.url));

/** Each tool with the Debian package that has it. */
const TOOLS = { nginx: 'nginx-light', haproxy: 'haproxy', wrk: 'wrk', cc: 'gcc', taskset: 'util-linux' } as const;

export type Tool = keyof typeof TOOLS;

/** nginx and haproxy are where only root's path leads. */
const SEARCHED = `${process.env['PATH'] ?? ''}:/usr/local/sbin:/usr/sbin:/sbin`;

/** The tools that are not here, and what to type to have them; null where all are. */
export function missingTools(): string | null {
  process.env['PATH'] = SEARCHED;
  const missing = (Object.keys(TOOLS) as Tool[]).filter(
    (tool) => spawnSync('sh', ['-c', `command -v ${tool}`]).status !== 0,
  );
  if (missing.length === 0) return null;
  return (
    `missing: ${missing.join(', ')}\n` +
    `On Debian: apt-get install ${missing.map((tool) => TOOLS[tool]).join(' ')}\n` +
    'Nothing was installed or measured.'
  );
}

const DESCRIPTORS = 17_000;

/** Says so where the kernel does not give a process enough descriptors for 8,000 streams; null where it does. */
export function descriptorWarning(): string | null {
  const hard = /^Max open files\s+\S+\s+(\S+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1];
  if (hard === undefined || hard === 'unlimited' || Number(hard) >= DESCRIPTORS) return null;
  return `At most ${hard} open files: scenarios with thousands of streams will fail (ulimit -Hn ${DESCRIPTORS}).\n`;
}

/** Compiled programs and the product. */
export interface Workshop {
  /** Temporary; everything the benchmark writes is in here. */
  readonly dir: string;
  readonly upstream: string;
  readonly sink: string;
  /** Its `bin`, `dist` and `package.json`. */
  readonly product: string;
  /** `dist` inside it. */
  readonly dist: string;
}

/** @throws when a program does not compile. */
export function furnish(dir: string): Workshop {
  const compiled = (name: string): string => {
    const binary = join(dir, name);
    execFileSync('cc', ['-O2', '-Wall', '-o', binary, join(HERE, `${name}.c`)], { stdio: 'inherit' });
    return binary;
  };
  // Built from a copy, as the package builds itself: what is in `dist` may be older than the source, and somebody may
  // build it anew while we measure.
  const product = join(dir, 'product');
  mkdirSync(product);
  for (const part of ['bin', 'scripts', 'src', 'package.json', 'tsconfig.json', 'tsconfig.build.json']) {
    cpSync(join(ROOT, part), join(product, part), { recursive: true });
  }
  symlinkSync(join(ROOT, 'node_modules'), join(product, 'node_modules'));
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: product, stdio: 'inherit' });
  return { dir, upstream: compiled('upstream'), sink: compiled('sink'), product, dist: join(product, 'dist') };
}

/** What the figures depend on. */
export function surroundings(): Record<string, unknown> {
  const said = (command: string, ...args: string[]): string => {
    const { stdout, stderr } = spawnSync(command, args, { encoding: 'utf8' });
    return `${stdout}${stderr}`.split('\n', 1)[0]!.trim();
  };
  const installed = (name: string): string =>
    (JSON.parse(readFileSync(join(ROOT, 'node_modules', name, 'package.json'), 'utf8')) as { version: string }).version;
  const [cpu] = cpus();
  return {
    machine: {
      cpu: cpu?.model ?? 'unknown',
      cores: cpus().length,
      memory: totalmem(),
      kernel: release(),
      architecture: process.arch,
    },
    versions: {
      node: process.version,
      nginx: said('nginx', '-v').replace(/^.*nginx\//, ''),
      haproxy: /version (\S+)/.exec(said('haproxy', '-v'))?.[1] ?? 'unknown',
      wrk: /wrk (\S+)/.exec(said('wrk', '-v'))?.[1] ?? 'unknown',
      'http-proxy-3': installed('http-proxy-3'),
      undici: installed('undici'),
      'mcp-resume-guard': (JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string }).version,
    },
  };
}
