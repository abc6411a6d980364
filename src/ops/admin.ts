/** The admin listener: is it alive, is it ready, what has it counted. GET only; loopback unless the operator opens it. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Registry } from 'prom-client';

export interface Readiness {
  readonly ready: boolean;
  /** Why not, or what is not as it should be. */
  readonly reasons: readonly string[];
}

export interface AdminOptions {
  readonly readiness: () => Readiness;
  readonly registry: Registry;
  /** A `Host` that may ask (DNS rebinding). */
  readonly hostAllowed: (authority: string | null) => boolean;
}

export class Admin {
  readonly #server: Server;
  readonly #options: AdminOptions;

  constructor(options: AdminOptions) {
    this.#options = options;
    this.#server = createServer({ requestTimeout: 10_000 }, (request, response) => {
      this.#serve(request, response).catch(() => response.destroy());
    });
  }

  /** @throws the error of `listen`, such as EADDRINUSE. */
  async bind(host: string, port: number): Promise<{ host: string; port: number }> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(port, host, () => {
        this.#server.off('error', reject);
        resolve();
      });
    });
    const { address, port: bound } = this.#server.address() as AddressInfo;
    return { host: address, port: bound };
  }

  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeAllConnections();
    await closed;
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (!this.#options.hostAllowed(request.headers.host ?? null))
      return send(response, 403, { error: 'this Host is not allowed here' });
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.setHeader('Allow', 'GET, HEAD');
      return send(response, 405, { error: 'the admin listener answers GET only' });
    }
    switch ((request.url ?? '/').split('?', 1)[0]) {
      case '/livez':
        return send(response, 200, { status: 'alive' });
      case '/readyz': {
        const { ready, reasons } = this.#options.readiness();
        return send(response, ready ? 200 : 503, { status: ready ? 'ready' : 'not ready', reasons });
      }
      case '/metrics': {
        const text = await this.#options.registry.metrics();
        response.writeHead(200, { 'Content-Type': this.#options.registry.contentType, 'Cache-Control': 'no-store' });
        response.end(text);
        return;
      }
      default:
        return send(response, 404, { error: 'there is /livez, /readyz and /metrics' });
    }
  }
}

function send(response: ServerResponse, status: number, body: object): void {
  const text = `${JSON.stringify(body)}\n`;
  response.writeHead(status, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(text),
    'Cache-Control': 'no-store',
    'X-Content-Type-Options': 'nosniff',
  });
  response.end(text);
}
