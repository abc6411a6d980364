/**
 * A scripted upstream: a real server on `node:net` that hands each request to the test, or to a handler.
 *
 *     proxy ──request──▶ upstream.next() ─▶ Exchange ─▶ head, write, end | cut | reset
 */

import net from 'node:net';
import { Exchange } from './exchange.ts';
import { listenOn } from './ports.ts';
import { type Bell, bell, PATIENCE, within } from './waiting.ts';
import { type BodyReader, bodyReader, requestFraming, takeHead } from './wire.ts';

/** Which request a wait is for; what is left out matches anything. */
export interface Match {
  readonly method?: string;
  /** The whole request target. */
  readonly target?: string;
  /** `head`: as soon as the head is there. Default: once the body is complete. */
  readonly when?: 'head' | 'complete';
  /** Milliseconds. */
  readonly within?: number;
}

export type Handler = (exchange: Exchange) => void | Promise<void>;

export interface Upstream {
  readonly url: string;
  readonly port: number;
  /** Every request since the start, in order of arrival. */
  readonly requests: readonly Exchange[];
  /** Connections open now. */
  readonly open: number;
  /** Connections accepted since the start. */
  readonly accepted: number;
  /** What went wrong in handlers or in reading requests; the owner of the upstream makes the test fail with it. */
  readonly failures: readonly Error[];
  /** The first request nobody took yet that fits. */
  next(match?: Match): Promise<Exchange>;
  /** The same, or nothing once `other` has settled first: for requests that may be answered without us. */
  nextUnless(other: Promise<unknown>, match?: Match): Promise<Exchange | undefined>;
  /** From now on this function answers each complete request; `undefined` hands back to `next`. */
  handle(handler: Handler | undefined): void;
  /** As a killed process: stops listening and destroys every connection. */
  kill(): Promise<void>;
  /** Listens again on the same port. */
  restart(): Promise<void>;
}

/** Starts a scripted upstream on a free loopback port. */
export async function startUpstream(handler?: Handler): Promise<Upstream> {
  const changed = bell();
  const requests: Exchange[] = [];
  const failures: Error[] = [];
  const sockets = new Set<net.Socket>();
  let accepted = 0;
  let answer = handler;

  const arrived = (exchange: Exchange): void => {
    if (answer === undefined) return;
    exchange.taken = true;
    Promise.resolve(exchange)
      .then(answer)
      .catch((fault) => {
        failures.push(new Error(`the handler failed at ${exchange}: ${fault}`, { cause: fault }));
        exchange.cut();
      });
  };
  const accept = (socket: net.Socket): void => {
    accepted += 1;
    sockets.add(socket);
    socket.setNoDelay(true);
    const own: Exchange[] = [];
    const leave = (how: 'end' | 'reset'): void => {
      for (const exchange of own) exchange.leave(how);
    };
    socket.on('end', () => leave('end'));
    socket.on('error', () => leave('reset'));
    socket.on('close', () => {
      sockets.delete(socket);
      leave('end');
    });
    const read = requestReader(socket, changed, arrived, (exchange) => {
      own.push(exchange);
      requests.push(exchange);
    });
    socket.on('data', (bytes) => {
      try {
        read(bytes);
      } catch (fault) {
        failures.push(fault as Error);
        socket.destroy();
      }
    });
  };

  const take = (wanted: Match): Exchange | undefined => {
    const found = requests.find((exchange) => !exchange.taken && fits(exchange, wanted));
    if (found) found.taken = true;
    return found;
  };
  const awaited = <T>({ within: ms = PATIENCE, ...wanted }: Match, look: () => T | undefined): Promise<T> => {
    const seen = (): string => `so far: ${requests.join(', ') || 'no request'}`;
    return changed.until(`a request ${JSON.stringify(wanted)} at the upstream`, look, ms, seen);
  };

  let server = net.createServer({ noDelay: true }, accept);
  const port = await listenOn(server);
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    requests,
    failures,
    get open() {
      return sockets.size;
    },
    get accepted() {
      return accepted;
    },
    next(match = {}) {
      return awaited(match, () => take(match));
    },
    async nextUnless(other, match = {}) {
      let settled = false;
      const settle = (): void => {
        settled = true;
        changed.ring();
      };
      other.then(settle, settle);
      const found = await awaited(match, () => take(match) ?? (settled ? NOBODY : undefined));
      return found === NOBODY ? undefined : found;
    },
    handle(next) {
      answer = next;
    },
    async kill() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      for (const socket of sockets) socket.destroy();
      await within('the upstream to close', closed);
    },
    async restart() {
      server = net.createServer({ noDelay: true }, accept);
      await listenOn(server, port);
    },
  };
}

/** Stands for the request that did not come. */
const NOBODY = Symbol('nobody');

function fits(exchange: Exchange, { when = 'complete', method, target }: Match): boolean {
  return (
    (when === 'head' || exchange.complete) &&
    (method === undefined || method === exchange.method) &&
    (target === undefined || target === exchange.target)
  );
}

/** Reads one connection's requests; an upgrade turns the rest of it into the body of that exchange. */
function requestReader(
  socket: net.Socket,
  changed: Bell,
  completed: (exchange: Exchange) => void,
  started: (exchange: Exchange) => void,
): (bytes: Buffer) => void {
  let waiting: Buffer = Buffer.alloc(0);
  let current: { exchange: Exchange; body: BodyReader } | undefined;

  return (bytes) => {
    waiting = waiting.length === 0 ? bytes : Buffer.concat([waiting, bytes]);
    while (waiting.length > 0 || current?.body.done) {
      if (current === undefined) {
        const taken = takeHead(waiting);
        if (taken === undefined) return;
        waiting = taken.rest;
        const exchange = new Exchange(socket, taken.head, changed);
        const upgrade = exchange.field('upgrade') !== undefined;
        const framing = upgrade ? ({ kind: 'close' } as const) : requestFraming(exchange.fields);
        current = { exchange, body: bodyReader(framing) };
        started(exchange);
        exchange.take([], upgrade || current.body.done);
        if (exchange.complete) completed(exchange);
        if (!upgrade && current.body.done) current = undefined;
        continue;
      }
      const { exchange, body } = current;
      const upgraded = exchange.complete;
      const { pieces, rest } = body.feed(waiting);
      waiting = rest;
      exchange.take(pieces, upgraded || body.done);
      if (body.done) {
        current = undefined;
        if (!upgraded) completed(exchange);
      }
    }
  };
}
