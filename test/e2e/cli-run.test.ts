import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';
import { describe, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { run } from '../../src/cli.ts';
import { configFrom, loadConfig } from '../../src/config.ts';
import type { startProxy } from '../../src/main.ts';
import { serve } from '../../src/serve.ts';
import { type TestIo, testIo } from '../support/io.ts';
import { within } from '../support/waiting.ts';

/** A server that answers everything with its URL; the test closes it. */
async function upstream(t: TestContext): Promise<string> {
  const server = createServer((request, response) => response.end(request.url));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const ANYWHERE = ['--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0'];

/** The command line at work: resolves once it has said where it listens; the test ends it. */
async function started(t: TestContext, argv: readonly string[], io: TestIo) {
  const code = run(argv, io);
  t.after(async () => {
    io.signal('SIGTERM');
    await within('the end of the command', code, 15_000);
  });
  const failed = code.then((value) => assert.fail(`ended with exit code ${value}: ${io.err()}`));
  await within('the first line', Promise.race([io.printed('\n'), failed]), 10_000, io.err);
  failed.catch(() => {}); // from now on the test decides what an end means
  return { code };
}

interface Listening {
  readonly event: string;
  readonly url: string;
  readonly admin: string | null;
}
const firstLine = (text: string): Listening => JSON.parse(text.slice(0, text.indexOf('\n')));

describe('the proxy as a process', () => {
  test('names its addresses in the first line of the log, and proxies', async (t) => {
    const io = testIo();
    await started(t, [`${await upstream(t)}/mcp`, ...ANYWHERE], io);
    const { event, url, admin } = firstLine(io.out());
    assert.equal(event, 'listening');
    assert.equal(await (await fetch(`${url}/mcp?a=1`)).text(), '/mcp?a=1');
    assert.equal((await fetch(`${admin}/livez`)).status, 200);
  });

  test('names them even when the log is silent', async (t) => {
    const io = testIo();
    await started(t, [await upstream(t), ...ANYWHERE, '--log-level', 'silent'], io);
    assert.equal(firstLine(io.out()).event, 'listening');
  });

  test('names them first even when the start-up had something to warn of', async () => {
    const io = testIo();
    const running = { url: 'http://127.0.0.1:1', adminUrl: null, reload() {}, close: async () => {} };
    const start: typeof startProxy = async (_config, { logger } = {}) => {
      logger?.warn('the default port of the admin listener is taken');
      return running;
    };
    const config = configFrom({ upstream: { url: 'http://127.0.0.1:1' } });
    const code = serve(config, { reload: () => loadConfig({}), version: '0.0.0', start }, io);
    await within('the warning', io.printed('is taken'), 5_000, io.out);
    io.signal('SIGTERM');
    assert.equal(await within('the end', code), 0);
    assert.deepEqual(
      io
        .out()
        .split('\n', 2)
        .map((line) => JSON.parse(line).level),
      ['info', 'warn'],
    );
    assert.equal(firstLine(io.out()).event, 'listening');
  });

  test('says behind the addresses that nobody can see the admin page on 0.0.0.0 without a token', async (t) => {
    const io = testIo();
    await started(t, [await upstream(t), '--listen', '127.0.0.1:0', '--admin', '0.0.0.0:0'], io);
    await within('the warning', io.printed('"event":"admin-closed"'), 5_000, io.out);
    const { admin } = firstLine(io.out());
    const port = new URL(admin ?? '').port;
    const statuses = ['/', '/api/overview', '/readyz'].map(
      async (path) => (await fetch(`http://127.0.0.1:${port}${path}`)).status,
    );
    assert.deepEqual(await Promise.all(statuses), [403, 403, 200]);
  });

  test('says what the start-up warned of even when it failed', async () => {
    const io = testIo();
    const start: typeof startProxy = async (_config, { logger } = {}) => {
      logger?.warn('a hint');
      throw new Error('no');
    };
    const config = configFrom({ upstream: { url: 'http://127.0.0.1:1' } });
    await assert.rejects(serve(config, { reload: () => loadConfig({}), version: '0.0.0', start }, io), /no/);
    assert.ok(io.out().includes('a hint'));
    assert.equal(io.listeners('SIGTERM'), 0);
  });

  test('tells a person where to point the client', async (t) => {
    const io = testIo();
    const origin = await upstream(t);
    await started(t, [`${origin}/mcp`, ...ANYWHERE, '--log-format', 'pretty'], io);
    const [first = '', second = '', third = ''] = io.out().split('\n');
    const [, url] = /^mcp-resume-guard \S+ is listening on (\S+)$/.exec(first) ?? [];
    assert.ok(url, first);
    assert.ok(second.includes(`point the client at ${url}/mcp`), second);
    assert.ok(second.includes(origin), second);
    assert.match(third, /admin page are at http:/);
  });

  test('names no address to a person that leads nowhere', async (t) => {
    const io = testIo();
    const anywhere = ['--listen', '0.0.0.0:0', '--admin', '[::]:0', '--log-format', 'pretty'];
    await started(t, [`${await upstream(t)}/mcp`, ...anywhere], io);
    assert.match(io.out(), /point the client at http:\/\/<this machine>:\d+\/mcp /);
    assert.match(io.out(), /admin page are at http:\/\/<this machine>:\d+\n/);
  });

  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    test(`ends with exit code 0 after ${signal}, and leaves no listener behind`, async (t) => {
      const io = testIo();
      const { code } = await started(t, [await upstream(t), ...ANYWHERE], io);
      const { url } = firstLine(io.out());
      io.signal(signal);
      assert.equal(await within('the end', code, 15_000), 0);
      await assert.rejects(fetch(url));
      assert.deepEqual([io.listeners('SIGTERM'), io.listeners('SIGINT'), io.listeners('SIGHUP')], [0, 0, 0]);
    });
  }

  test('says to a person as the last thing that it has stopped, how long that took, and what was cut', async (t) => {
    const io = testIo();
    const { code } = await started(t, [await upstream(t), ...ANYWHERE, '--log-format', 'pretty'], io);
    io.signal('SIGTERM');
    await within('the end', code, 15_000);
    assert.match(io.out(), /INFO: stopped after \d+ ms, 0 cut .*\n$/);
  });

  test('ends at once, with exit code 1, on a second signal', async (t) => {
    const io = testIo();
    const { code } = await started(t, [await upstream(t), ...ANYWHERE], io);
    io.signal('SIGTERM');
    io.signal('SIGINT');
    assert.deepEqual(io.exits, [1]);
    await within('the end', code, 15_000);
  });

  test('reads its configuration again on SIGHUP, and keeps the old one when the new one is wrong', async (t) => {
    let file = `upstream: { url: "${await upstream(t)}" }`;
    const io = testIo({ readFile: () => file });
    await started(t, ['--config', 'guard.yaml', ...ANYWHERE], io);
    file = file.replace('url', 'ulr');
    io.signal('SIGHUP');
    await within('a complaint', io.printed('"event":"reload-failed"'), 5_000, io.out);
    assert.ok(io.out().includes('upstream.ulr: is not known; did you mean upstream.url?'), io.out());
    file = `mode: observe\n${file.replace('ulr', 'url')}`;
    io.signal('SIGHUP');
    await within('the news', io.printed('"event":"reloaded"'), 5_000, io.out);
    assert.equal(await (await fetch(`${firstLine(io.out()).url}/x`)).text(), '/x');
  });

  test('ends with exit code 1 where somebody else listens, and says where', async (t) => {
    const io = testIo();
    const origin = await upstream(t);
    const taken = new URL(origin).host;
    const code = await within('the end', run(['http://127.0.0.1:1', '--listen', taken, '--no-admin'], io), 15_000);
    assert.equal(code, 1);
    assert.ok(io.err().includes(taken), io.err());
    assert.match(io.err(), /another process listens there \(EADDRINUSE\); --port chooses another/);
    assert.equal(
      io
        .err()
        .split('\n')
        .filter((line) => /^\s+at /.test(line)).length,
      0,
      'no stack for a taken address',
    );
  });
});

test('the launcher starts the built program, which drains on SIGTERM and ends by itself', async (t) => {
  const launcher = fileURLToPath(new URL('../../bin/mcp-resume-guard.js', import.meta.url));
  const child = spawn(process.execPath, [launcher, await upstream(t), ...ANYWHERE], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  t.after(() => child.kill('SIGKILL'));
  let complaints = '';
  child.stderr.on('data', (text) => {
    complaints += text;
  });
  const [line] = await within('the first line', once(createInterface(child.stdout), 'line'), 15_000, () => complaints);
  const { url } = firstLine(`${line}\n`);
  assert.equal(await (await fetch(`${url}/x`)).text(), '/x');
  child.kill('SIGTERM');
  const [code] = await within('the end', once(child, 'exit'), 20_000);
  assert.equal(code, 0, complaints);
});
