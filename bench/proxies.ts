/**
 * What is measured, side by side. Each proxy is one process (nginx: one worker) on a core of its own, in front of the
 * same upstream; `direct` is that upstream without any. The product runs as anybody would start it: its command line,
 * its defaults, its log at `info` into a file, its admin listener on.
 */
import type { ChildProcess } from 'node:child_process';
import { chmodSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { post } from './load.ts';
import { accepting, freePort, hasEnded, start, stop, withDescendants } from './processes.ts';
import type { Workshop } from './workshop.ts';

export const PROXIES = ['nginx', 'haproxy', 'http-proxy-3', 'bare', 'product'] as const;
export const SUBJECTS = ['direct', ...PROXIES] as const;
/** The product with a shared store, at the URL in `BENCH_STORE`; only where that is what is measured. */
export const COLUMNS = [...SUBJECTS, 'product-store'] as const;
export type SubjectName = (typeof COLUMNS)[number];
type ProxyName = Exclude<SubjectName, 'direct'>;

/** What a quick run leaves out: it is there to say what is out of reach, which changes with Node and undici only. */
export const QUICK_SUBJECTS: readonly SubjectName[] = SUBJECTS.filter((name) => name !== 'bare');

/** Somebody to send requests to. */
export interface Subject {
  readonly name: SubjectName;
  readonly port: number;
  /** Of the proxy, none for `direct`. */
  readonly pids: readonly number[];
  /** The file with what it has said so far. */
  readonly log: string;
  /** What it said last, if it has ended; null while it runs. */
  lastWords(): string | null;
  stop(): Promise<void>;
}

interface Launch {
  readonly command: string;
  readonly args: readonly string[];
}

/** How a proxy is started; files it needs go into `dir`. */
type Recipe = (port: number, upstream: number, dir: string, workshop: Workshop) => Launch;

const IDLE = '1h';

const nginx: Recipe = (port, upstream, dir) => {
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
  writeFileSync(
    join(dir, 'nginx.conf'),
    `daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid ${dir}/nginx.pid; error_log ${dir}/error.log;
events { worker_connections 19000; }
http {
  access_log off; keepalive_requests 1000000000; keepalive_timeout ${IDLE};
  ${temporary.map((name) => `${name}_temp_path ${dir}/${name};`).join(' ')}
  upstream mcp { server 127.0.0.1:${upstream}; keepalive 256; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:${port} backlog=4096;
    location / {
      proxy_pass http://mcp; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout ${IDLE}; client_max_body_size 0;
    }
  }
}
`,
  );
  return { command: 'nginx', args: ['-c', join(dir, 'nginx.conf'), '-e', join(dir, 'error.log')] };
};

const haproxy: Recipe = (port, upstream, dir) => {
  writeFileSync(
    join(dir, 'haproxy.cfg'),
    `global
  nbthread 1
  maxconn 9500
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client ${IDLE}
  timeout server ${IDLE}
frontend in
  bind 127.0.0.1:${port} backlog 4096
  default_backend mcp
backend mcp
  server mcp 127.0.0.1:${upstream}
`,
  );
  return { command: 'haproxy', args: ['-db', '-q', '-f', join(dir, 'haproxy.cfg')] };
};

const httpProxy3: Recipe = (port, upstream) => ({
  command: process.execPath,
  args: [fileURLToPath(new URL('http-proxy-3.mjs', import.meta.url)), String(port), String(upstream)],
});

const bare: Recipe = (port, upstream) => ({
  command: process.execPath,
  args: [fileURLToPath(new URL('bare.mjs', import.meta.url)), String(port), String(upstream)],
});

const product: Recipe = (port, upstream, _dir, workshop) => ({
  command: process.execPath,
  args: [
    join(workshop.product, 'bin', 'mcp-resume-guard.js'),
    ...['--listen', `127.0.0.1:${port}`, '--admin', '127.0.0.1:0', '--log-format', 'json'],
    `http://127.0.0.1:${upstream}/mcp`,
  ],
});

const productStore: Recipe = (...all) => {
  const { command, args } = product(...all);
  return { command, args: [...args, '--store', process.env['BENCH_STORE'] ?? 'memory'] };
};

const RECIPES: Readonly<Record<ProxyName, Recipe>> = {
  nginx,
  haproxy,
  'http-proxy-3': httpProxy3,
  bare,
  product,
  'product-store': productStore,
};

let started = 0;

/** Starts a proxy without waiting for it. */
export async function launch(
  name: ProxyName,
  upstream: number,
  workshop: Workshop,
): Promise<{ child: ChildProcess; port: number; log: string }> {
  started += 1;
  const dir = join(workshop.dir, `${name}-${started}`);
  mkdirSync(dir);
  // nginx gives up root for its worker.
  chmodSync(dir, 0o777);
  const port = await freePort();
  const { command, args } = RECIPES[name](port, upstream, dir, workshop);
  const log = join(dir, 'output.log');
  const file = openSync(log, 'w');
  const child = start(command, args, { core: 'proxy', stdio: ['ignore', file, file] });
  return { child, port, log };
}

/** Starts a subject and waits until it accepts connections. */
export async function startSubject(name: SubjectName, upstream: number, workshop: Workshop): Promise<Subject> {
  if (name === 'direct')
    return { name, port: upstream, pids: [], log: '', lastWords: () => null, stop: async () => {} };
  const { child, port, log } = await launch(name, upstream, workshop);
  try {
    await accepting(port, child);
    // nginx listens before it has its worker.
    await post(port, '/mcp?do=json&bytes=64', null);
  } catch (error) {
    await stop(child);
    throw new Error(`${name} did not start: ${readFileSync(log, 'utf8')}`, { cause: error });
  }
  const lastWords = (): string | null => (hasEnded(child) ? readFileSync(log, 'utf8').slice(-1_000) : null);
  return { name, port, pids: withDescendants(child.pid!), log, lastWords, stop: () => stop(child) };
}

/** Where the product's metrics are, as its first line says. */
export function adminOf({ log }: Subject): string {
  const text = readFileSync(log, 'utf8');
  const listening = text.split('\n').find((line) => line.includes('"event":"listening"'));
  if (listening === undefined) throw new Error(`the product does not say where it listens: ${text}`);
  return (JSON.parse(listening) as { admin: string }).admin;
}
