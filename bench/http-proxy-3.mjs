// http-proxy-3 as its manual shows it, with an agent that keeps connections. Arguments: port, upstream's port.
import { Agent, createServer } from 'node:http';
import { createProxyServer } from 'http-proxy-3';

const [port, upstream] = process.argv.slice(2).map(Number);
const agent = new Agent({ keepAlive: true });
const proxy = createProxyServer({ target: `http://127.0.0.1:${upstream}`, agent });
proxy.on('error', (_error, _request, response) => response.destroy?.());
createServer((request, response) => proxy.web(request, response)).listen({ port, host: '127.0.0.1', backlog: 4096 });
