/**
 * The two parts of undici that carry a hop. Its index loads `fetch`, WebSocket and caches along with them, which is a
 * fifth of the time from start to listening; hence the paths, and the exact version in `package.json`.
 */
import { createRequire } from 'node:module';
import type { Client as ClientClass, buildConnector as Connect } from 'undici';

const require = createRequire(import.meta.url);

export const Client = require('undici/lib/dispatcher/client.js') as typeof ClientClass;
export type Client = ClientClass;

export const buildConnector = require('undici/lib/core/connect.js') as typeof Connect;
export type Connector = Connect.connector;
export type ConnectOptions = Connect.Options;
