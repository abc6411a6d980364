/**
 * What happens on a client's connection, written down for `core/delivery.ts`: who closed first, errors, and whether the
 * client came back on it. One record a connection, for as long as the connection or a receipt refers to it.
 */
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { ConnectionFacts } from '../core/delivery.ts';
import type { Millis } from '../core/terms.ts';
import { type Tuple, tupleOf } from './kernel.ts';

export interface ClientConnection {
  readonly facts: ClientFacts;
  readonly address: string;
  /** The latest response on it. */
  response: ServerResponse | null;
  /** Those under way on it: more than one where the client sends requests without waiting. */
  exchanges: readonly { clientEnded(): void; connectionClosed(): void }[];
  /** What came last was no HTTP. */
  broken: boolean;
  readonly now: () => Millis;
}

/** What a receipt keeps: nothing in it leads to the socket. */
interface ClientFacts extends ConnectionFacts {
  /** For the kernel's table: our end and the client's. */
  readonly ends: readonly [address: string, port: number, address: string, port: number];
}

const CONNECTION = Symbol('connection');
type Watched = Socket & { [CONNECTION]?: ClientConnection };

/** Starts writing down what happens on `socket`; once a socket. */
export function watchConnection(socket: Watched, now: () => Millis): ClientConnection {
  const known = socket[CONNECTION];
  if (known !== undefined) return known;
  const { localAddress = '', localPort = 0, remoteAddress = '', remotePort = 0 } = socket;
  const ends = [localAddress, localPort, remoteAddress, remotePort] as const;
  socket.on('error', onError);
  // Before Node's own listener, which closes our side.
  socket.prependListener('end', onEnd);
  socket.on('close', onClose);
  const connection: ClientConnection = {
    facts: { failed: false, closed: null, closedAt: null, requestedAt: 0, ends },
    address: remoteAddress,
    response: null,
    exchanges: [],
    broken: false,
    now,
  };
  socket[CONNECTION] = connection;
  return connection;
}

function noteClosed({ facts, now }: ClientConnection, by: 'client' | 'us'): void {
  if (facts.closed !== null) return;
  facts.closed = by;
  facts.closedAt = now();
}

function onError(this: Watched): void {
  this[CONNECTION]!.facts.failed = true;
}

function onEnd(this: Watched): void {
  const connection = this[CONNECTION]!;
  noteClosed(connection, 'client');
  for (const exchange of connection.exchanges) exchange.clientEnded();
  // A client that ends its side has left; Node would go on writing to it.
  if (connection.response !== null && !connection.response.writableEnded) this.destroy();
}

function onClose(this: Watched): void {
  const connection = this[CONNECTION]!;
  noteClosed(connection, 'us');
  for (const exchange of connection.exchanges) exchange.connectionClosed();
}

/** The tuple of a connection that a receipt refers to. */
export function tupleFor(facts: ConnectionFacts): Tuple | null {
  return 'ends' in facts ? tupleOf(...(facts as ClientFacts).ends) : null;
}
