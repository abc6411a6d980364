/** The proxy as a process: what it says first, what it does on a signal, and when it is over. */
import { setFlagsFromString } from 'node:v8';
import type { Config, Loaded } from './config.ts';
import type { Io } from './io.ts';
import { type RunningProxy, startProxy } from './main.ts';
import { createLogger, type LogDestination, type Logger } from './ops/logger.ts';
import { sayAdminAccess } from './serve-admin.ts';
import { audiences, foreignRoutes } from './serve-audience.ts';
import { sayUnreachable } from './serve-reachable.ts';

/** What a process needs beside its configuration. */
export interface ServeOptions {
  /** Reads the configuration anew, for SIGHUP. */
  readonly reload: () => Loaded;
  readonly version: string;
  /** Stand in for `startProxy`, `foreignRoutes` in a test. */
  readonly start?: typeof startProxy;
  readonly foreign?: typeof foreignRoutes;
}

/**
 * Runs the proxy until SIGTERM or SIGINT; a second one ends the process at once, with exit code 1.
 *
 * @returns the exit code 0, once the proxy has drained.
 * @throws what `startProxy` throws when it cannot start.
 */
export async function serve(config: Config, options: ServeOptions, io: Io): Promise<number> {
  const { reload, version, start = startProxy, foreign = foreignRoutes } = options;
  keepExchangesYoung();
  // The first line names the addresses, which are known only after a start-up that may already have warned.
  const output = heldBack(io.stdout);
  const logger = createLogger(config.log, output);
  // As process 1 of a container only those signals end us that have a handler, so handlers come before anything else.
  const signals = stopSignals(io);
  try {
    const running = await start(config, { logger, version });
    io.stdout.write(announcement(config, running, version, io));
    output.release();
    sayAdminAccess(config, logger);
    sayUnreachable(config, logger);
    const abroad = foreign(config);
    if (abroad.length > 0) void sayAudiences(config, abroad, running, logger);
    const forgetReload = io.onSignal('SIGHUP', () => applyReload(reload(), running, logger));
    const signal = await signals.first;
    forgetReload();
    logger.info({ event: 'stopping', signal }, 'stopping');
    await running.close(signal);
    return 0;
  } finally {
    output.release();
    signals.forget();
  }
}

/**
 * What an exchange is made of goes when it is over. But where V8 has often found a kind of object alive, it makes the next
 * ones in the old generation, and each of them keeps all of its exchange until that is collected. With requests of 100 KB
 * this was half of all that was done.
 */
function keepExchangesYoung(): void {
  setFlagsFromString('--no-allocation-site-pretenuring');
}

function heldBack(out: Io['stdout']): LogDestination & { release(): void } {
  let held: string[] | null = [];
  return {
    isTTY: out.isTTY === true,
    write(line) {
      if (held === null) out.write(line);
      else held.push(line);
    },
    release() {
      for (const line of held ?? []) out.write(line);
      held = null;
    },
  };
}

function stopSignals(io: Io): { readonly first: Promise<string>; forget(): void } {
  const { promise, resolve } = withResolvers<string>();
  let stopping = false;
  const forget = (['SIGTERM', 'SIGINT'] as const).map((signal) =>
    io.onSignal(signal, () => {
      if (stopping) io.exit(1);
      stopping = true;
      resolve(signal);
    }),
  );
  return {
    first: promise,
    forget: () => {
      for (const off of forget) off();
    },
  };
}

// Promise.withResolvers needs Node.js 22.
function withResolvers<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => {};
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

function applyReload(loaded: Loaded, running: RunningProxy, logger: Logger): void {
  if (!loaded.ok) {
    const faults = loaded.faults.map(({ where, problem }) => `${where}: ${problem}`);
    logger.error({ event: 'reload-failed', faults }, 'the old configuration stays in force');
    return;
  }
  try {
    running.reload(loaded.config);
    logger.info({ event: 'reloaded' }, 'the configuration was read again');
  } catch (err) {
    logger.error({ event: 'reload-failed', err }, 'the configuration could not be put in force');
  }
}

/** Sign-in that cannot work through a local proxy, said before somebody tries (docs/clients.md). */
async function sayAudiences(
  config: Config,
  routes: Config['routes'],
  { url }: RunningProxy,
  logger: Logger,
): Promise<void> {
  for (const { upstream, resource } of await audiences(config, routes).catch(() => [])) {
    logger.warn(
      { event: 'audience-bound', upstream, resource },
      `${upstream} signs clients in for ${resource} alone: a client pointed at ${url} may refuse to sign in, ` +
        'and wants a token that was got elsewhere, or a setting; see docs/clients.md',
    );
  }
}

/** The first line on standard output, which names the addresses; for a person a few more. */
function announcement(config: Config, running: RunningProxy, version: string, io: Io): string {
  const { adminUrl } = running;
  const url = running.url.replace(/\/$/, '');
  /** Where every address is listened on, none of them is where a client could go. */
  const reached = (bound: string): string => bound.replace(/\/\/(?:0\.0\.0\.0|\[::\]):/, '//<this machine>:');
  const routes = config.routes.map(({ host, prefix, guarded, upstream, mode }) => ({
    host,
    prefix,
    guarded,
    upstream,
    mode,
  }));
  if (config.log.format === 'json') {
    let text = '';
    const logger = createLogger({ ...config.log, level: 'info' }, { write: (line) => void (text += line) });
    logger.info(
      { event: 'listening', version, url, admin: adminUrl, mode: config.mode, routes },
      `listening on ${url}`,
    );
    return text;
  }
  const bold = (text: string) => (io.stdout.isTTY ? `\u001b[1m${text}\u001b[22m` : text);
  const lines = routes.map(({ host, prefix, guarded, upstream, mode }) => {
    const clientUrl = reached(url) + (guarded ?? (prefix === '/' ? '' : prefix));
    const covered = guarded === null ? `every path under ${prefix}` : `${guarded}, other paths pass unguarded`;
    const note = [covered, ...(host ? [`Host ${host}`] : []), ...(mode === 'observe' ? ['observe only'] : [])].join(
      '; ',
    );
    return `  point the client at ${bold(clientUrl)}  ->  ${upstream} (${note})\n`;
  });
  return [
    `mcp-resume-guard ${version} is listening on ${url}\n`,
    ...lines,
    adminUrl === null ? '' : `  health, metrics and the admin page are at ${reached(adminUrl)}\n`,
  ].join('');
}
