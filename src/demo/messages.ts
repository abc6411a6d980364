/** The JSON-RPC messages a client may send to the demo server, told apart by their keys. */

export type Id = string | number;
export type JsonObject = Readonly<Record<string, unknown>>;

export interface Request {
  readonly kind: 'request';
  readonly id: Id;
  readonly method: string;
  readonly params: JsonObject;
}

export type Message =
  | Request
  | { readonly kind: 'notification'; readonly method: string; readonly params: JsonObject }
  | { readonly kind: 'response' };

export const isObject = (value: unknown): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** One parsed message, or nothing if it is none. */
export function readMessage(value: unknown): Message | undefined {
  if (!isObject(value) || value['jsonrpc'] !== '2.0') return undefined;
  const { id, method } = value;
  if (typeof method !== 'string') return 'result' in value || 'error' in value ? { kind: 'response' } : undefined;
  const params = isObject(value['params']) ? value['params'] : {};
  if (id === undefined) return { kind: 'notification', method, params };
  return typeof id === 'string' || typeof id === 'number' ? { kind: 'request', id, method, params } : undefined;
}
