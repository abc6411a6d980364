/** The demo as a newcomer meets it: what it prints has to be true, and what it offers to copy has to work. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createServer } from 'node:net';
import { Writable } from 'node:stream';
import { type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import { runDemo } from '../../src/demo/demo.ts';
import { runScript } from '../../src/demo/script.ts';
import { startDemoServer } from '../../src/demo/server.ts';
import { bell, eventually, within } from '../support/waiting.ts';

const run = promisify(execFile);

const sockets = () => process.getActiveResourcesInfo().filter((kind) => /^TCP/.test(kind)).length;

/** Starts the demo on free ports and waits until it has said everything. */
async function startDemo(
  t: TestContext,
  ports = { guard: 0, admin: 0 },
  env: Record<string, string> = {},
  isTTY = false,
) {
  const stop = new AbortController();
  const news = bell();
  let text = '';
  let complaints = '';
  const sink = (take: (chunk: string) => void) =>
    new Writable({
      write(chunk, _encoding, done) {
        take(String(chunk));
        news.ring();
        done();
      },
    });
  const stdout = Object.assign(
    sink((chunk) => {
      text += chunk;
    }),
    { isTTY },
  );
  const stderr = sink((chunk) => {
    complaints += chunk;
  });
  const code = runDemo({ stdout, stderr, env, signal: stop.signal }, ports);
  t.after(() => {
    stop.abort();
    return code;
  });
  return {
    code,
    stop: () => stop.abort(),
    text: () => text,
    complaints: () => complaints,
    until: (pattern: RegExp, ms = 10_000) =>
      news.until(
        `${pattern} on the output`,
        () => pattern.exec(text) ?? undefined,
        ms,
        () => text + complaints,
      ),
  };
}

/** The rows of the table: what stands in both columns after each label. */
function rowsOf(text: string): Map<string, [direct: string, guarded: string]> {
  const cells = [...text.matchAll(/^ {2}(\S.*?) {2,}(\d+(?: times)?|once|no) {2,}(\d+(?: times)?|once|no)$/gm)];
  return new Map(cells.map(([, label, direct, guarded]) => [label!, [direct!, guarded!]]));
}

test('the demo shows every fault directly and none of them with the guard, and its two curl lines tell the same', async (t) => {
  await eventually('the sockets of other tests to close', () => sockets() === 0);
  const demo = await startDemo(t);
  await demo.until(/Ctrl-C to stop/);
  assert.equal(demo.complaints(), '');

  const rows = rowsOf(demo.text());
  const row = (label: string) => rows.get(label) ?? assert.fail(`no row "${label}" in ${demo.text()}`);
  const numbers = (label: string) => row(label).map(Number) as [number, number];

  const [sentDirectly, sentGuarded] = numbers('resumes sent');
  assert.equal(sentDirectly, sentGuarded, 'the same script ran twice');
  assert.deepEqual(row('results delivered twice'), ['1', '0']);
  assert.deepEqual(row('silent empties (200 and nothing)'), ['6', '0']);
  assert.deepEqual(row('honest resume completed'), ['once', 'once']);
  assert.deepEqual(row('orders placed'), ['3', '3']);
  assert.deepEqual(row('order confirmations'), ['4', '3']);

  const [, conflicts] = numbers('explicit 409s');
  const [, errors] = numbers('explicit errors for the lost call');
  const [, listening] = numbers('plain listening streams instead');
  assert.ok(conflicts >= 1, 'the first late resume is refused with a 409');
  assert.equal(conflicts + errors, 5, 'each of the five late resumes is refused in so many words');
  assert.equal(listening, 2, 'both resumes of finished calls lose their cursor');

  const [arrivedDirectly, arrivedGuarded] = numbers('resumes that arrived with a cursor');
  assert.equal(arrivedDirectly, sentDirectly);
  assert.ok(arrivedGuarded < arrivedDirectly, 'the guard keeps part of the storm away from the server');
  assert.deepEqual(row('of these, for a finished call'), ['2', '0']);
  assert.deepEqual(row('results sent twice'), ['1', '0']);

  const [straight = '', guarded = '', ...rest] = demo.text().match(/^curl .*$/gm) ?? [];
  assert.deepEqual(rest, []);
  const { stdout: again } = await run('sh', ['-c', straight]);
  assert.match(again, /^HTTP\/1\.1 200 /);
  assert.match(again, /^data: .*Order 3 placed/m);
  await demo.until(/The server got a resume of a finished call: its result sent once more/);
  const { stdout: refused } = await run('sh', ['-c', guarded]);
  assert.match(refused, /^HTTP\/1\.1 409 /);
  assert.match(refused, /"rule":"finished-while-listening"/);
  assert.doesNotMatch(refused, /Order 3 placed/);

  demo.stop();
  assert.equal(await within('the demo to end', demo.code, 5_000), 0);
  await eventually('all sockets to close', () => sockets() === 0);
});

test('the demo takes free ports where its own are taken, and says so', async (t) => {
  const blocker = createServer();
  await new Promise<void>((resolve) => blocker.listen(0, '127.0.0.1', resolve));
  t.after(() => new Promise((resolve) => blocker.close(resolve)));
  const { port } = blocker.address() as { port: number };
  const demo = await startDemo(t, { guard: port, admin: port });
  const [, guardPort, adminPort] = await demo.until(
    new RegExp(
      `guard +http://127\\.0\\.0\\.1:(\\d+)/mcp +\\(${port} is taken\\)\\n +admin +http://127\\.0\\.0\\.1:(\\d+)\\S* +\\(${port} is taken\\)`,
    ),
  );
  assert.equal(new Set([String(port), guardPort, adminPort]).size, 3);
  demo.stop();
  assert.equal(await within('the demo to end', demo.code, 5_000), 0);
});

test('a stop in the middle of the script ends the demo with 0 and no complaint', async (t) => {
  await eventually('the sockets of other tests to close', () => sockets() === 0);
  const demo = await startDemo(t);
  await demo.until(/Directly\n.*\n/);
  demo.stop();
  assert.equal(await within('the demo to end', demo.code, 5_000), 0);
  assert.equal(demo.complaints(), '');
  assert.doesNotMatch(demo.text(), /What the client saw/);
  await eventually('all sockets to close', () => sockets() === 0);
});

for (const [isTTY, env, coloured] of [
  [true, {}, true],
  [true, { NO_COLOR: '1' }, false],
  [true, { NO_COLOR: '' }, true],
  [false, {}, false],
] as const) {
  test(`output ${isTTY ? 'to a terminal' : 'to a file'} with NO_COLOR ${JSON.stringify('NO_COLOR' in env ? env.NO_COLOR : undefined)} is ${coloured ? 'coloured' : 'plain'}`, async (t) => {
    const demo = await startDemo(t, undefined, env, isTTY);
    await demo.until(/Directly.*\n/);
    demo.stop();
    await within('the demo to end', demo.code, 5_000);
    assert.equal(demo.text().includes('\x1b['), coloured);
  });
}

test('the demo server alone has the faults that the demo is about', async (t) => {
  const server = await startDemoServer({ memory: 32 });
  t.after(() => server.close());
  const { signal } = new AbortController();
  const { client, steps } = await runScript({ url: server.url, forgotten: server.forgotten, onStep: () => {}, signal });
  assert.deepEqual(
    steps.map(({ step, answers }) => [step, ...answers]),
    [
      ['last-event', 'silent-empty'],
      ['first-event', 'result-again'],
      ['forgotten', ...Array(5).fill('silent-empty')],
      ['in-time', 'result'],
    ],
  );
  const expected = { resumes: 8, resumesOfFinished: 2, resultsAgain: 1, silentEmpties: 6, ordersPlaced: 3 };
  assert.deepEqual(server.counts(client.session), expected);
  await client.end();
  assert.equal(server.counts(client.session), undefined);
  client.close();
});

const BOTH = 'application/json, text/event-stream';
const json = { Accept: BOTH, 'Content-Type': 'application/json' };
const ping = '{"jsonrpc":"2.0","id":1,"method":"ping"}';

for (const [what, status, method, fields, body] of [
  ['a GET without a session', 400, 'GET', { Accept: 'text/event-stream' }],
  ['a GET of an unknown session', 404, 'GET', { Accept: 'text/event-stream', 'Mcp-Session-Id': 'gone' }],
  ['a GET that does not accept event streams', 406, 'GET', { Accept: 'application/json' }],
  ['a POST that accepts JSON only', 406, 'POST', { ...json, Accept: 'application/json' }, ping],
  ['a POST of another media type', 415, 'POST', { Accept: BOTH, 'Content-Type': 'text/plain' }, ping],
  ['a POST that is no JSON', 400, 'POST', json, '{'],
  ['a POST that is no JSON-RPC', 400, 'POST', json, '{"id":1}'],
  ['a POST of an unknown session', 404, 'POST', { ...json, 'Mcp-Session-Id': 'gone' }, ping],
  ['a DELETE without a session', 400, 'DELETE', {}],
  ['another method', 405, 'PUT', {}],
  ['a revision without sessions', 400, 'POST', { ...json, 'MCP-Protocol-Version': '2026-07-28' }, ping],
  ['an Origin that is not loopback', 403, 'POST', { ...json, Origin: 'http://attacker.example' }, ping],
] as const) {
  test(`the demo server answers ${what} with ${status}`, async (t) => {
    const server = await startDemoServer();
    t.after(() => server.close());
    const response = await fetch(server.url, { method, headers: fields, body: body ?? null });
    assert.equal(response.status, status);
    const { error } = (await response.json()) as { error: { message: string } };
    assert.equal(typeof error.message, 'string');
  });
}

test('the demo server speaks 2025-03-26 to whoever asks for it, batches included, and answers notifications with 202', async (t) => {
  const server = await startDemoServer();
  t.after(() => server.close());
  const post = (message: unknown, more = {}) =>
    fetch(server.url, { method: 'POST', headers: { ...json, ...more }, body: JSON.stringify(message) });
  const opened = await post({
    jsonrpc: '2.0',
    id: 'a',
    method: 'initialize',
    params: { protocolVersion: '2025-03-26', capabilities: {}, clientInfo: { name: 'test', version: '1' } },
  });
  const { result } = (await opened.json()) as { result: { protocolVersion: string } };
  assert.equal(result.protocolVersion, '2025-03-26');
  const session = { 'Mcp-Session-Id': opened.headers.get('Mcp-Session-Id')! };
  assert.equal((await post({ jsonrpc: '2.0', method: 'notifications/initialized' }, session)).status, 202);
  const batch = await post(
    [
      { jsonrpc: '2.0', id: 1, method: 'ping' },
      { jsonrpc: '2.0', id: '1', method: 'no/such' },
    ],
    session,
  );
  assert.equal(
    await batch.text(),
    [
      'id: s1.1\ndata: \n\n',
      'id: s1.2\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n',
      'id: s1.3\ndata: {"jsonrpc":"2.0","id":"1","error":{"code":-32601,"message":"Method not found: no/such"}}\n\n',
    ].join(''),
  );
});
