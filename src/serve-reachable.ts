/**
 * Looks once, at start, whether upstream is where it should be and speaks TLS where it should, so that a wrong address is not
 * first heard of from a client. A connect, a handshake, and nothing more.
 */
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { connect as connectTls } from 'node:tls';
import type { Config } from './config.ts';
import type { Logger } from './ops/logger.ts';

type Looked = Pick<Config, 'routes' | 'connectTimeout' | 'upstream'>;

export function sayUnreachable(config: Looked, logger: Pick<Logger, 'warn'>): void {
  for (const origin of new Set(config.routes.map(({ upstream }) => upstream))) sayIfUnreachable(origin, config, logger);
}

function sayIfUnreachable(origin: string, { connectTimeout, upstream }: Looked, logger: Pick<Logger, 'warn'>): void {
  const { hostname, port, protocol } = new URL(origin);
  const secure = protocol === 'https:';
  const at = { host: hostname.replace(/^\[|\]$/g, ''), port: Number(port) || (secure ? 443 : 80) };
  const { ca, cert, key } = upstream;
  const read = (path: string): string => readFileSync(path, 'utf8');
  const socket = secure
    ? connectTls({
        ...at,
        ...(/^[\d.]+$|:/.test(at.host) ? {} : { servername: at.host }),
        ...(ca ? { ca: read(ca) } : {}),
        ...(cert && key ? { cert: read(cert), key: read(key) } : {}),
      })
    : connect(at);
  let connected = false;
  if (connectTimeout > 0) socket.setTimeout(connectTimeout, () => socket.destroy(new Error('no answer in time')));
  socket.unref();
  socket.once('connect', () => (connected = true));
  socket.once(secure ? 'secureConnect' : 'connect', () => socket.destroy());
  socket.once('error', (error: NodeJS.ErrnoException) => {
    const cause = error.code ?? error.message;
    const matter = connected ? `is there, but TLS fails (${hint(cause)})` : 'does not answer yet';
    logger.warn({ event: 'upstream-unreachable', upstream: origin, cause }, `${origin} ${matter}`);
  });
}

/** Of the codes of OpenSSL: those of its own parser, and those about a certificate. */
function hint(code: string): string {
  return code.startsWith('ERR_SSL') ? 'is it http?' : 'upstream.ca names the authority of its certificate';
}
