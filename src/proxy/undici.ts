/**
 * The two parts of undici that carry a hop. Its index loads `fetch`, WebSocket and caches along with them, which is a
 * fifth of the time from start to listening; hence the paths, and the exact version in `package.json`.
 */
import { createRequire } from 'node:module';
import type { Socket } from 'node:net';
import type { Client as ClientClass, buildConnector as Connect } from 'undici';

const require = createRequire(import.meta.url);

export const Client = require('undici/lib/dispatcher/client.js') as typeof ClientClass;
export type Client = ClientClass;

export const buildConnector = require('undici/lib/core/connect.js') as (options: Connect.BuildOptions) => Connector;
export type ConnectOptions = Connect.Options;
/** The socket, before it is connected, and a call once it is or never will be. */
export type Connector = (options: ConnectOptions, callback: Connect.Callback) => Socket;
