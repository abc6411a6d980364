/** The reference server `server-everything`, as its own process, through the proxy. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { type AddressInfo, createServer } from 'node:net';
import { type TestContext, test } from 'node:test';
import { connectSdk } from '../support/sdk-clients.ts';
import { startCutter } from '../support/sdk-cutter.ts';
import { startSdkGuard, take } from '../support/sdk-guard.ts';
import { eventually, within } from '../support/waiting.ts';

/** A port that was free a moment ago: this server takes its port from the environment and names none itself. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** Starts the server, and resolves with its URL once it listens. */
async function startEverything(t: TestContext): Promise<string> {
  const port = await freePort();
  const script = createRequire(import.meta.url).resolve('@modelcontextprotocol/server-everything/dist/index.js');
  const child: ChildProcess = spawn(process.execPath, [script, 'streamableHttp'], {
    env: { ...process.env, PORT: String(port) },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  t.after(async () => {
    if (child.exitCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  });
  let said = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  await eventually('server-everything to listen', () => said.includes(`listening on port ${port}`), 15_000);
  return `http://127.0.0.1:${port}/mcp`;
}

test('server-everything: listing, a call with progress and log messages on the listening stream pass', async (t) => {
  const { url, decisions, warnings } = await startSdkGuard(t, await startEverything(t));
  const client = await connectSdk('1.32', url);
  t.after(() => client.close());
  const tools = await client.listTools();
  for (const tool of ['echo', 'trigger-long-running-operation', 'toggle-simulated-logging']) {
    assert.ok(tools.includes(tool), tool);
  }
  assert.equal(await client.callTool('echo', { message: 'hello' }), 'Echo: hello');

  const progress: number[] = [];
  const onprogress = (at: { progress: number }): void => void progress.push(at.progress);
  const long = client.callTool('trigger-long-running-operation', { duration: 0.6, steps: 3 }, { onprogress });
  assert.match(await within('the long operation', long, 10_000), /^Long running operation completed/);
  assert.deepEqual(progress, [1, 2, 3]);

  assert.match(await client.callTool('toggle-simulated-logging'), /^Started/);
  await eventually('a log message on the listening stream', () => client.logged.length > 0, 10_000);
  assert.match(String(client.logged[0]), /level[- ]message/i);
  assert.match(await client.callTool('toggle-simulated-logging'), /^Stopped/);

  assert.deepEqual(client.errors, []);
  assert.deepEqual(decisions(), []);
  assert.deepEqual(warnings(), []);
});

for (const way of ['direct', {}] as const) {
  test(`${way === 'direct' ? 'direct' : 'proxy'}: a call of server-everything cut in the middle gets its result by a replay that carries other requests too`, async (t) => {
    const { url } = await take(t, way, await startEverything(t));
    const cutter = await startCutter(url);
    t.after(() => cutter.close());
    const client = await connectSdk('1.32', cutter.url);
    t.after(() => client.close());
    const progress: number[] = [];
    const onprogress = (at: { progress: number }): void => void progress.push(at.progress);
    // Over before the client is back, a second later: what happens after a resume this server does not deliver.
    const long = client.callTool('trigger-long-running-operation', { duration: 0.8, steps: 4 }, { onprogress });
    await eventually('the first progress', () => progress.length === 1, 5_000);
    assert.ok(cutter.cut('trigger-long-running-operation') >= 1, 'something was cut');
    // Its result stands after the cursor in the server's one log of the session, so the replay brings it once more.
    assert.equal(await client.callTool('echo', { message: 'meanwhile' }), 'Echo: meanwhile');
    assert.match(await within('the long operation', long, 8_000), /^Long running operation completed/);
    assert.deepEqual(progress, [1, 2, 3, 4]);
    assert.equal(await client.callTool('echo', { message: 'after' }), 'Echo: after');
  });
}
