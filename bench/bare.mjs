// The least that a proxy of node:http and undici does: no guard, no ledger, no log, no field of its own, no error case.
// What it costs nobody built on these two can go below. Arguments: port, upstream's port.
import { createServer } from 'node:http';
import { Client } from 'undici';

const [port, upstream] = process.argv.slice(2).map(Number);
const idle = [];

function endToEnd(fields) {
  const kept = [];
  for (let i = 0; i < fields.length; i += 2) {
    const name = fields[i].toLowerCase();
    if (name !== 'connection' && name !== 'keep-alive' && name !== 'transfer-encoding' && name !== 'host') {
      kept.push(fields[i], fields[i + 1]);
    }
  }
  return kept;
}

function relay(request, response, body) {
  const client =
    idle.pop() ?? new Client(`http://127.0.0.1:${upstream}`, { pipelining: 1, bodyTimeout: 0, headersTimeout: 0 });
  let hop;
  let last = null;
  response.on('drain', () => hop.resume());
  response.on('close', () => {
    if (!response.writableFinished) hop.abort(new Error('the client left'));
  });
  client.dispatch(
    { method: request.method, path: request.url, headers: endToEnd(request.rawHeaders), body },
    {
      onRequestStart(controller) {
        hop = controller;
      },
      onResponseStart(controller, status, _, reason) {
        response.writeHead(status, reason, endToEnd(controller.rawHeaders.map((item) => item.toString('latin1'))));
        if (response.chunkedEncoding) response.flushHeaders();
      },
      onResponseData(controller, chunk) {
        if (response.chunkedEncoding) {
          if (!response.write(chunk)) controller.pause();
          return;
        }
        // A body in one piece leaves with its head.
        if (last !== null && !response.write(last)) controller.pause();
        last = chunk;
      },
      onResponseEnd() {
        idle.push(client);
        response.end(last ?? undefined);
      },
      onResponseError() {
        client.destroy(null, () => {});
        response.destroy();
      },
    },
  );
}

createServer((request, response) => {
  if (request.method === 'GET') {
    relay(request, response, null);
    return;
  }
  const pieces = [];
  request.on('data', (piece) => pieces.push(piece));
  request.on('end', () => relay(request, response, pieces.length === 1 ? pieces[0] : Buffer.concat(pieces)));
}).listen({ port, host: '127.0.0.1', backlog: 4096 });
