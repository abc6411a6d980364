/**
 * Ending a connection whose client is still sending. Bytes that reach a closed socket are answered with a reset, and a
 * reset makes the client forget the response it has not read yet (RFC 9112 section 9.6). So only our side is closed, and
 * what still comes is thrown away, for a while.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';

/** In ms. */
const LINGER = 5_000;

/** Sends `last` and closes our side; the connection goes when the client closes its own, or when time is up. */
export function endConnection(socket: Duplex, last: string): void {
  socket.end(last);
  socket.resume();
  destroyLater(socket);
}

/** Sees to it that a response which finishes before its request has come in whole is not lost with the connection. */
export function lingerAfter(response: ServerResponse): void {
  // Before Node's own listener, which may close the connection.
  response.prependListener('finish', () => lingerNow(response));
}

/** The same, in a listener of that kind. */
export function lingerNow({ req }: ServerResponse): void {
  if (!req.complete) throwAwayRest(req);
}

function throwAwayRest(request: IncomingMessage): void {
  const { socket } = request;
  // What Node does to a connection that closes with its response.
  socket.destroySoon = () => socket.end();
  const cancel = destroyLater(socket);
  request.once('end', () => {
    cancel();
    // The prototype's again.
    delete (socket as { destroySoon?: () => void }).destroySoon;
    if (socket.writableEnded) socket.destroySoon();
  });
  request.resume();
}

function destroyLater(socket: Duplex): () => void {
  const timer = setTimeout(() => socket.destroy(), LINGER);
  const cancel = (): void => clearTimeout(timer);
  socket.once('close', cancel);
  return () => {
    cancel();
    socket.off('close', cancel);
  };
}
