/**
 * The published TypeScript clients behind one face, so that a test can be a row of a table. Each is the real package with
 * its real transport; nothing is imitated.
 */
import { Client as Client2, StreamableHTTPClientTransport as Transport2 } from '@modelcontextprotocol/client';
import { Client as Client132 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as Transport132 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { LoggingMessageNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import { Client as Client123 } from 'sdk-1.23/client/index.js';
import { StreamableHTTPClientTransport as Transport123 } from 'sdk-1.23/client/streamableHttp.js';
import { Client as Client124 } from 'sdk-1.24/client/index.js';
import { StreamableHTTPClientTransport as Transport124 } from 'sdk-1.24/client/streamableHttp.js';

export type ClientVersion = '1.23' | '1.24' | '1.32' | '2';

export interface CallOptions {
  readonly onprogress?: (progress: { progress: number; total?: number | undefined }) => void;
  /** The client's own timer, in milliseconds. */
  readonly timeout?: number;
  readonly resumptionToken?: string;
  readonly onresumptiontoken?: (token: string) => void;
}

export interface ConnectOptions {
  /** Joins this session, without `initialize`. */
  readonly sessionId?: string;
  readonly protocolVersion?: string;
  /** Sees every exchange of the client with its answer. */
  readonly onexchange?: (exchange: Exchange) => void;
  /** Wraps the client's `fetch`; `onexchange` then sees what reaches the wire. */
  readonly wrapFetch?: (fetch: FetchLike) => FetchLike;
}

export interface Exchange {
  readonly method: string;
  readonly lastEventId: string | null;
  readonly status: number;
  readonly proxyStatus: string | null;
}

export interface SdkClient {
  /** Text of the first content block. */
  callTool(name: string, args?: Record<string, unknown>, options?: CallOptions): Promise<string>;
  listTools(): Promise<string[]>;
  readonly sessionId: string | undefined;
  readonly protocolVersion: string | undefined;
  /** What the transport reported through `onerror`. */
  readonly errors: readonly Error[];
  /** Data of log messages, in the order of arrival. */
  readonly logged: readonly unknown[];
  close(): Promise<void>;
}

export type FetchLike = (input: string | URL, init?: RequestInit) => Promise<Response>;

/** The transport's `fetch` option, where one is needed. */
function fetchOption({ onexchange, wrapFetch }: ConnectOptions): { fetch?: FetchLike } {
  if (onexchange === undefined && wrapFetch === undefined) return {};
  const inner = onexchange === undefined ? fetch : reportingFetch(onexchange);
  return { fetch: wrapFetch === undefined ? inner : wrapFetch(inner) };
}

/** `fetch` that reports each exchange. */
function reportingFetch(report: (exchange: Exchange) => void): FetchLike {
  return async (input, init) => {
    const response = await fetch(input, init);
    report({
      method: init?.method ?? 'GET',
      lastEventId: new Headers(init?.headers).get('last-event-id'),
      status: response.status,
      proxyStatus: response.headers.get('proxy-status'),
    });
    return response;
  };
}

function textOf(result: unknown): string {
  const { content } = result as { content: { text?: string }[] };
  return content[0]?.text ?? '';
}

type Client1 = Client132;
type Transport1 = Transport132;

/** 1.x differ in their packages only; their types are taken to be those of 1.32. */
async function connect1(
  classes: { Client: unknown; Transport: unknown },
  url: string,
  options: ConnectOptions,
): Promise<SdkClient> {
  const { Client, Transport } = classes as { Client: typeof Client132; Transport: typeof Transport132 };
  const errors: Error[] = [];
  const logged: unknown[] = [];
  const client: Client1 = new Client({ name: 'e2e', version: '1' });
  const transport: Transport1 = new Transport(new URL(url), {
    ...(options.sessionId === undefined ? {} : { sessionId: options.sessionId }),
    ...fetchOption(options),
  });
  client.onerror = (error) => errors.push(error);
  client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => void logged.push(params.data));
  if (options.protocolVersion !== undefined) transport.setProtocolVersion(options.protocolVersion);
  await client.connect(transport as Parameters<Client1['connect']>[0]);
  return {
    callTool: async (name, args = {}, callOptions = {}) =>
      textOf(await client.callTool({ name, arguments: args }, undefined, callOptions)),
    listTools: async () => (await client.listTools()).tools.map(({ name }) => name),
    get sessionId() {
      return transport.sessionId;
    },
    get protocolVersion() {
      return transport.protocolVersion;
    },
    errors,
    logged,
    close: () => client.close(),
  };
}

async function connect2(url: string, options: ConnectOptions): Promise<SdkClient> {
  const errors: Error[] = [];
  const logged: unknown[] = [];
  const client = new Client2({ name: 'e2e', version: '1' });
  const transport = new Transport2(new URL(url), {
    ...(options.sessionId === undefined ? {} : { sessionId: options.sessionId }),
    ...(options.protocolVersion === undefined ? {} : { protocolVersion: options.protocolVersion }),
    ...fetchOption(options),
  });
  client.onerror = (error) => void errors.push(error);
  client.setNotificationHandler('notifications/message', ({ params }) => void logged.push(params.data));
  await client.connect(transport);
  return {
    callTool: async (name, args = {}, callOptions = {}) =>
      textOf(await client.callTool({ name, arguments: args }, callOptions)),
    listTools: async () => (await client.listTools()).tools.map(({ name }) => name),
    get sessionId() {
      return transport.sessionId;
    },
    get protocolVersion() {
      return transport.protocolVersion;
    },
    errors,
    logged,
    close: () => client.close(),
  };
}

export function connectSdk(version: ClientVersion, url: string, options: ConnectOptions = {}): Promise<SdkClient> {
  switch (version) {
    case '1.23':
      return connect1({ Client: Client123, Transport: Transport123 }, url, options);
    case '1.24':
      return connect1({ Client: Client124, Transport: Transport124 }, url, options);
    case '1.32':
      return connect1({ Client: Client132, Transport: Transport132 }, url, options);
    case '2':
      return connect2(url, options);
  }
}
