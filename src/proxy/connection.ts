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
  readonly facts: ConnectionFacts;
  /** For the kernel's table. */
  readonly tuple: Tuple;
  readonly address: string;
  /** The latest response on it. */
  response: ServerResponse | null;
  /** Those under way on it: more than one where the client sends requests without waiting. */
  readonly exchanges: { connectionClosed(): void }[];
  /** What came last was no HTTP. */
  broken: boolean;
}

const connections = new WeakMap<Socket, ClientConnection>();
const tuples = new WeakMap<ConnectionFacts, Tuple>();

/** Starts writing down what happens on `socket`; once a socket. */
export function watchConnection(socket: Socket, now: () => Millis): ClientConnection {
  const known = connections.get(socket);
  if (known !== undefined) return known;
  const { localAddress = '', localPort = 0, remoteAddress = '', remotePort = 0 } = socket;
  const facts: ConnectionFacts = { failed: false, closed: null, closedAt: null, requestedAt: 0 };
  const closed = (by: 'client' | 'us'): void => {
    if (facts.closed !== null) return;
    facts.closed = by;
    facts.closedAt = now();
  };
  socket.on('error', () => {
    facts.failed = true;
  });
  socket.on('end', () => {
    closed('client');
    // A client that ends its side has left; Node would go on writing to it.
    if (connection.response !== null && !connection.response.writableEnded) socket.destroy();
  });
  socket.on('close', () => {
    closed('us');
    for (const exchange of [...connection.exchanges]) exchange.connectionClosed();
  });
  const connection: ClientConnection = {
    facts,
    tuple: tupleOf(localAddress, localPort, remoteAddress, remotePort),
    address: remoteAddress,
    response: null,
    exchanges: [],
    broken: false,
  };
  connections.set(socket, connection);
  tuples.set(facts, connection.tuple);
  return connection;
}

/** The tuple of a connection that a receipt refers to. */
export function tupleFor(facts: ConnectionFacts): Tuple | null {
  return tuples.get(facts) ?? null;
}
