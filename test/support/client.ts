/** A scripted client on `node:net`, and the MCP requests that most tests send with it. */

import net from 'node:net';
import { Connection, type Outgoing } from './connection.ts';
import { initializeRequest, type RpcId, request } from './messages.ts';
import type { Reply } from './reply.ts';
import { within } from './waiting.ts';
import { type Field, type Fields, pairs } from './wire.ts';

/** What most MCP requests of a test differ in. */
export interface McpOptions {
  readonly session?: string;
  /** `Last-Event-ID`. */
  readonly lei?: string;
  /** `MCP-Protocol-Version`; left out, none is sent. */
  readonly version?: string;
  /** `Authorization: Bearer …` */
  readonly token?: string;
  readonly fields?: Fields;
  readonly path?: string;
  /** Send on this connection. Default: a new one. */
  readonly on?: Connection;
}

export interface Client {
  /** Opens a connection. */
  connect(): Promise<Connection>;
  /** Sends one request on a new connection. */
  send(outgoing: Outgoing): Promise<Reply>;
  /** A POST with one request of this id, or with the body given. */
  post(message: RpcId | { readonly body: string }, options?: McpOptions): Promise<Reply>;
  /** A GET for the event stream; with `lei` a resume. */
  get(options?: McpOptions): Promise<Reply>;
  /** A DELETE of the session. */
  delete(options?: McpOptions): Promise<Reply>;
  /** `initialize`. */
  initialize(options?: McpOptions): Promise<Reply>;
  /** Destroys every connection. */
  close(): void;
}

/** A client of `url`, whose paths default to `path`. */
export function createClient(url: string, path = '/mcp'): Client {
  const { hostname, port, host } = new URL(url);
  const connections = new Set<Connection>();

  const connect = async (): Promise<Connection> => {
    const socket = net.connect({ host: hostname, port: Number(port), noDelay: true });
    const connected = new Promise<void>((resolve, reject) => {
      socket.once('connect', resolve);
      socket.once('error', reject);
    });
    await within(`a connection to ${host}`, connected);
    const connection = new Connection(socket, host);
    connections.add(connection);
    socket.on('close', () => connections.delete(connection));
    return connection;
  };
  const mcp = async (method: string, own: Field[], options: McpOptions, body?: string): Promise<Reply> => {
    const connection = options.on ?? (await connect());
    const fields = [...own, ...mcpFields(options)];
    return connection.send({ method, path: options.path ?? path, fields, ...(body === undefined ? {} : { body }) });
  };

  const client: Client = {
    connect,
    async send(outgoing) {
      return (await connect()).send(outgoing);
    },
    post(message, options = {}) {
      const body = typeof message === 'object' ? message.body : request(message);
      return mcp('POST', [...ACCEPT_BOTH, ['Content-Type', 'application/json']], options, body);
    },
    get(options = {}) {
      return mcp('GET', [['Accept', 'text/event-stream']], options);
    },
    delete(options = {}) {
      return mcp('DELETE', [], options);
    },
    initialize(options = {}) {
      return client.post({ body: initializeRequest() }, options);
    },
    close() {
      for (const connection of connections) connection.destroy();
    },
  };
  return client;
}

const ACCEPT_BOTH: readonly Field[] = [['Accept', 'application/json, text/event-stream']];

function mcpFields({ session, lei, version, token, fields = {} }: McpOptions): Field[] {
  return [
    ...(session === undefined ? [] : [['Mcp-Session-Id', session] as const]),
    ...(version === undefined ? [] : [['MCP-Protocol-Version', version] as const]),
    ...(token === undefined ? [] : [['Authorization', `Bearer ${token}`] as const]),
    ...(lei === undefined ? [] : [['Last-Event-ID', lei] as const]),
    ...pairs(fields),
  ];
}
