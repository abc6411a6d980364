/**
 * The admin listener: is it alive, is it ready, what has it counted, what did it decide and why. GET only. On loopback
 * it is open; elsewhere everything but health and metrics wants `admin.token` (behaviour.md section 8).
 */
import { timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Registry } from 'prom-client';
import type { DecisionEntry, History } from './history.ts';
import { inWords } from './words.ts';

export interface Readiness {
  readonly ready: boolean;
  /** Why not, or what is not as it should be. */
  readonly reasons: readonly string[];
}

/** A session as `/api/sessions` shows it. */
export interface SessionView {
  /** Keyed hash; null for requests without a session. */
  readonly session: string | null;
  readonly route: string;
  readonly generation: number;
  readonly ended: boolean;
  readonly streams: number;
  readonly openRequests: number;
  readonly listening: number;
  readonly bytes: number;
}

/** A part of all sessions. */
export interface SessionsPage {
  readonly total: number;
  readonly sessions: readonly SessionView[];
}

export interface AdminOptions {
  readonly readiness: () => Readiness;
  readonly registry: Registry;
  readonly history: History;
  /** So many from the latest used on, those before `from` left out. */
  readonly sessions: (from: number, count: number) => SessionsPage;
  /** Effective configuration, secrets masked. */
  readonly config: () => object;
  /** What the page says at its top. */
  readonly overview: () => object;
  /** Whether somebody with this `Host` and this `Origin` may ask at all (DNS rebinding). */
  readonly admits: (authority: string | null, origin: string | undefined) => boolean;
  /** `open`: anybody; a string: whoever presents it; null: nobody. */
  readonly access: { readonly open: true } | { readonly open: false; readonly token: string | null };
}

type Handler = (url: URL, request: IncomingMessage, response: ServerResponse) => void | Promise<void>;

const PAGE_FILES: readonly (readonly [path: string, file: string, type: string])[] = [
  ['/', 'index.html', 'text/html; charset=utf-8'],
  ['/page.js', 'page.js', 'text/javascript; charset=utf-8'],
  ['/page.css', 'page.css', 'text/css; charset=utf-8'],
];

/** Nothing from anywhere else, nothing inline, no frame around it. */
const PAGE_POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const PER_PAGE = 100;
const FOLLOWERS = 32;

export class Admin {
  readonly #server: Server;
  readonly #options: AdminOptions;
  readonly #open: Readonly<Record<string, Handler>>;
  readonly #private: Readonly<Record<string, Handler>>;
  #followers = 0;

  constructor(options: AdminOptions) {
    this.#options = options;
    // Followers may be gone without a word; keep-alive probes find out.
    const limits = { requestTimeout: 10_000, keepAlive: true, keepAliveInitialDelay: 15_000 };
    this.#server = createServer(limits, (request, response) => {
      this.#serve(request, response).catch(() => response.destroy());
    });
    this.#open = {
      '/livez': (_url, _request, response) => send(response, 200, { status: 'alive' }),
      '/readyz': (_url, _request, response) => {
        const { ready, reasons } = options.readiness();
        send(response, ready ? 200 : 503, { status: ready ? 'ready' : 'not ready', reasons });
      },
      '/metrics': async (_url, _request, response) => {
        sendText(response, options.registry.contentType, await options.registry.metrics());
      },
    };
    this.#private = {
      '/api/overview': (_url, _request, response) =>
        send(response, 200, { ...options.overview(), minutes: options.history.minutes() }),
      '/api/config': (_url, _request, response) => send(response, 200, options.config()),
      '/api/sessions': (url, _request, response) => this.#sessions(url, response),
      '/api/decisions': (url, request, response) => this.#decisions(url, request, response),
      ...Object.fromEntries(PAGE_FILES.map(([path, file, type]) => [path, pageHandler(file, type)])),
    };
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
    if (!this.#options.admits(request.headers.host ?? null, request.headers.origin)) {
      send(response, 403, { error: 'this Host or Origin is not allowed here' });
      return;
    }
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.setHeader('Allow', 'GET, HEAD');
      send(response, 405, { error: 'the admin listener answers GET only' });
      return;
    }
    const url = new URL(`http://admin/${(request.url ?? '/').replace(/^\/+/, '')}`);
    const open = this.#open[url.pathname];
    if (open !== undefined) return open(url, request, response);
    const handler = this.#private[url.pathname];
    if (handler === undefined) {
      send(response, 404, { error: 'not found', paths: [...Object.keys(this.#open), ...Object.keys(this.#private)] });
    } else if (this.#authorised(request, response)) {
      await handler(url, request, response);
    }
  }

  /** `Authorization: Bearer <token>`, or the token as a password, which is what a browser can ask for. */
  #authorised(request: IncomingMessage, response: ServerResponse): boolean {
    const { access } = this.#options;
    if (access.open) return true;
    if (access.token === null) {
      send(response, 403, { error: 'set admin.token, or admin.open: true, to see this from elsewhere' });
      return false;
    }
    const [scheme = '', value = ''] = (request.headers.authorization ?? '').split(' ', 2);
    const basic =
      scheme.toLowerCase() === 'basic'
        ? Buffer.from(value, 'base64')
            .toString()
            .replace(/^[^:]*:/, '')
        : value;
    if (sameSecret(basic, access.token)) return true;
    response.setHeader('WWW-Authenticate', 'Basic realm="mcp-resume-guard", charset="UTF-8"');
    send(response, 401, { error: 'this wants admin.token' });
    return false;
  }

  #sessions(url: URL, response: ServerResponse): void {
    const page = Math.max(0, Math.trunc(Number(url.searchParams.get('page') ?? 0)) || 0);
    const { total, sessions } = this.#options.sessions(page * PER_PAGE, PER_PAGE);
    send(response, 200, {
      page,
      pages: Math.max(1, Math.ceil(total / PER_PAGE)),
      total,
      sessions: sessions.map((session) => ({
        ...session,
        lastDecisions: session.session === null ? [] : this.#lastDecisions(session.session),
      })),
    });
  }

  #lastDecisions(session: string): object[] {
    return this.#options.history
      .session(session)
      .exchanges.filter(({ verdict }) => verdict !== null)
      .slice(-5)
      .map(({ at, rule, verdict, outcome, proof, status }) => ({ at, rule, verdict, outcome, proof, status }));
  }

  #decisions(url: URL, request: IncomingMessage, response: ServerResponse): void {
    const session = url.searchParams.get('session');
    const { history } = this.#options;
    if (session !== null) {
      send(response, 200, history.session(session));
    } else if ((request.headers.accept ?? '').includes('text/event-stream')) {
      this.#follow(request, response);
    } else {
      send(response, 200, { decisions: history.decisions().map(worded) });
    }
  }

  #follow(request: IncomingMessage, response: ServerResponse): void {
    if (this.#followers >= FOLLOWERS) {
      send(response, 503, { error: `${FOLLOWERS} others are following already` });
      return;
    }
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
    if (request.method === 'HEAD') {
      response.end();
      return;
    }
    this.#followers += 1;
    response.flushHeaders();
    const stop = this.#options.history.follow((entry) => {
      // A follower that does not read misses decisions; it is not worth memory.
      if (!response.writableNeedDrain) response.write(`id: ${entry.id}\ndata: ${JSON.stringify(worded(entry))}\n\n`);
    });
    response.on('close', () => {
      this.#followers -= 1;
      stop();
    });
  }
}

/** With what it means, which is not kept. */
function worded(entry: DecisionEntry): object {
  return { ...entry, words: inWords(entry) };
}

function pageHandler(file: string, type: string): Handler {
  const text = readFileSync(new URL(`./page/${file}`, import.meta.url), 'utf8');
  return (_url, _request, response) => {
    response.setHeader('Content-Security-Policy', PAGE_POLICY);
    response.setHeader('Referrer-Policy', 'no-referrer');
    sendText(response, type, text);
  };
}

function sameSecret(given: string, wanted: string): boolean {
  const [a, b] = [Buffer.from(given), Buffer.from(wanted)];
  return a.length === b.length && timingSafeEqual(a, b);
}

function send(response: ServerResponse, status: number, body: object): void {
  response.statusCode = status;
  sendText(response, 'application/json', `${JSON.stringify(body)}\n`);
}

function sendText(response: ServerResponse, type: string, text: string): void {
  response.setHeader('Content-Type', type);
  response.setHeader('Content-Length', Buffer.byteLength(text));
  response.setHeader('Cache-Control', 'no-store');
  response.setHeader('X-Content-Type-Options', 'nosniff');
  response.end(text);
}
