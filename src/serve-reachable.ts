/** Looks once, at start, whether somebody listens where upstream should be. A connect and nothing more. */
import { connect } from 'node:net';
import type { Config } from './config.ts';
import type { Logger } from './ops/logger.ts';

export function sayUnreachable({ routes, connectTimeout }: Config, logger: Pick<Logger, 'warn'>): void {
  for (const origin of new Set(routes.map(({ upstream }) => upstream)))
    sayIfUnreachable(origin, connectTimeout, logger);
}

/** One connect, so that a wrong address is not first heard of from a client. */
function sayIfUnreachable(origin: string, timeout: number, logger: Pick<Logger, 'warn'>): void {
  const { hostname, port, protocol } = new URL(origin);
  const at = { host: hostname.replace(/^\[|\]$/g, ''), port: Number(port) || (protocol === 'https:' ? 443 : 80) };
  const socket = connect(at);
  if (timeout > 0) socket.setTimeout(timeout, () => socket.destroy(new Error('no answer in time')));
  socket.unref();
  socket.once('connect', () => socket.destroy());
  socket.once('error', (error: NodeJS.ErrnoException) => {
    logger.warn(
      { event: 'upstream-unreachable', upstream: origin, cause: error.code ?? error.message },
      `${origin} does not answer yet`,
    );
  });
}
