/** What travels in the bodies of socket tests: JSON-RPC messages and SSE blocks, as text. */

export type RpcId = string | number;

export interface BlockParts {
  readonly event?: string;
  readonly id?: string;
  /** Milliseconds. */
  readonly retry?: number;
  /** One `data` line; left out, the block has none. */
  readonly data?: string;
}

/** One SSE block with the fields in the order the TypeScript SDK writes them: event, id, retry, data. */
export function block({ event, id, retry, data }: BlockParts): string {
  const lines = [
    ...(event === undefined ? [] : [`event: ${event}`]),
    ...(id === undefined ? [] : [`id: ${id}`]),
    ...(retry === undefined ? [] : [`retry: ${retry}`]),
    ...(data === undefined ? [] : [`data: ${data}`]),
  ];
  return `${lines.join('\n')}\n\n`;
}

/** The priming event of revision 2025-11-25: an ID, empty data, perhaps a `retry`. */
export function priming(id: string, retry?: number): string {
  return block({ id, data: '', ...(retry === undefined ? {} : { retry }) });
}

export function request(id: RpcId, method = 'tools/call', params: unknown = { name: 'work', arguments: {} }): string {
  return JSON.stringify({ jsonrpc: '2.0', id, method, params });
}

export function notification(method: string, params: unknown = {}): string {
  return JSON.stringify({ jsonrpc: '2.0', method, params });
}

export function result(id: RpcId, value: unknown = { content: [{ type: 'text', text: 'done' }] }): string {
  return JSON.stringify({ jsonrpc: '2.0', id, result: value });
}

export function error(id: RpcId | null, code = -32603, message = 'it broke'): string {
  return JSON.stringify({ jsonrpc: '2.0', id, error: { code, message } });
}

export function progress(token: RpcId, done = 1, total = 2): string {
  return notification('notifications/progress', { progressToken: token, progress: done, total });
}

export function initializeRequest(id: RpcId = 0): string {
  return request(id, 'initialize', {
    protocolVersion: '2025-11-25',
    capabilities: {},
    clientInfo: { name: 'scripted-client', version: '1.0.0' },
  });
}

export function initializeResult(id: RpcId = 0): string {
  return result(id, {
    protocolVersion: '2025-11-25',
    capabilities: { tools: {} },
    serverInfo: { name: 'scripted-upstream', version: '1.0.0' },
  });
}
