/**
 * `Upgrade` on HTTP/1.1. WebSocket goes through http-proxy-3. Any other protocol is declined the way RFC 9110 section
 * 7.8 has it: the request is answered as if the field were not there. (Java's HTTP client offers `h2c` with its first
 * request on every connection.) Node hands over the bare socket as soon as somebody listens for upgrades, so such a
 * request is put back in front of its connection without the field, and parsed again.
 */
import type { IncomingMessage, Server } from 'node:http';
import type { Duplex } from 'node:stream';
import httpProxy from 'http-proxy-3';
import { allValues, endToEnd } from '../core/fields.ts';

export interface UpgradeTarget {
  /** Scheme, host and port. */
  readonly origin: string;
  readonly tls: { readonly ca?: string; readonly cert?: string; readonly key?: string };
  readonly preserveHost: boolean;
}

/** WebSocket and nothing else, on a request that can have no body (RFC 6455 section 4.1). */
export function isWebSocketUpgrade(request: IncomingMessage): boolean {
  return request.headers.upgrade?.trim().toLowerCase() === 'websocket' && request.method === 'GET';
}

/** A body in front of the new protocol would be read by one side as a request and by the other as data. */
export function hasFraming(request: IncomingMessage): boolean {
  return request.headers['content-length'] !== undefined || request.headers['transfer-encoding'] !== undefined;
}

export function createUpgrader(): (
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
  target: UpgradeTarget,
) => void {
  const proxy = httpProxy.createProxyServer({ ws: true, xfwd: true });
  return (request, socket, head, target) => {
    const url = new URL(target.origin);
    const port = url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port);
    socket.on('error', () => socket.destroy());
    const options = {
      target: { host: url.hostname.replace(/^\[|\]$/g, ''), port, protocol: url.protocol, ...target.tls },
      changeOrigin: !target.preserveHost,
      secure: true,
    };
    proxy.ws(request, socket as Parameters<typeof proxy.ws>[1], head, options, () => {
      if (socket.writable && socket.listenerCount('pipe') === 0) socket.end(BAD_GATEWAY);
      else socket.destroy();
    });
  };
}

const BAD_GATEWAY =
  'HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: 50\r\nConnection: close\r\n\r\n' +
  '{"error":"cannot connect to the upstream server"}\n';

/** Serves the request again without its `Upgrade`. */
export function declineUpgrade(server: Server, request: IncomingMessage, socket: Duplex, head: Buffer): void {
  const fields = endToEnd(request.rawHeaders, NONE);
  // These are hop-by-hop, and this hop is not over yet.
  for (const name of ['transfer-encoding', 'te', 'trailer'] as const) {
    for (const value of allValues(request.rawHeaders, name)) fields.push(name, value);
  }
  const closes = allValues(request.rawHeaders, 'connection').some((value) => /(^|,)\s*close\s*(,|$)/i.test(value));
  if (closes) fields.push('Connection', 'close');
  let text = `${request.method} ${request.url} HTTP/${request.httpVersion}\r\n`;
  for (let i = 0; i + 1 < fields.length; i += 2) text += `${fields[i]}: ${fields[i + 1]}\r\n`;
  socket.unshift(Buffer.concat([Buffer.from(`${text}\r\n`, 'latin1'), head]));
  server.emit('connection', socket);
}

const NONE: ReadonlySet<string> = new Set();
