import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { loadConfig } from '../src/config.ts';

const ROOT = new URL('../', import.meta.url);
const read = (name: string): string => readFileSync(new URL(name, ROOT), 'utf8');

/** The instructions, one each, without comments and with continued lines joined. */
const INSTRUCTIONS = read('Dockerfile')
  .replace(/^\s*#.*\n/gm, '')
  .replace(/\\\n\s*/g, '')
  .split('\n')
  .filter((line) => line.trim() !== '')
  .map((line) => ({ name: line.split(' ')[0] ?? '', rest: line.slice(line.indexOf(' ') + 1).trim() }));

const LAST_STAGE = INSTRUCTIONS.slice(INSTRUCTIONS.findLastIndex(({ name }) => name === 'FROM'));
const rest = (name: string): string[] => LAST_STAGE.filter((one) => one.name === name).map((one) => one.rest);

describe('the image', () => {
  test('is made of slim bases of one release that the package supports', () => {
    const bases = INSTRUCTIONS.filter(({ name }) => name === 'FROM').map((one) => one.rest.split(' ')[0]);
    assert.equal(new Set(bases).size, 1);
    const [, major] = /^node:(\d+)-.*slim$/.exec(bases[0] ?? '') ?? [];
    const [, least] = /(\d+)/.exec(JSON.parse(read('package.json')).engines.node) ?? [];
    assert.ok(Number(major) >= Number(least), `node ${major}`);
  });

  test('holds production dependencies only, installed without running scripts', () => {
    const installs = INSTRUCTIONS.filter(({ rest: text }) => /\bnpm (ci|install|i)\b/.test(text));
    for (const { rest: text } of installs) assert.match(text, /npm ci .*--ignore-scripts/);
    assert.ok(installs.some(({ rest: text }) => text.includes('--omit=dev')));
    const modules = rest('COPY').find((text) => text.includes('node_modules'));
    const [, from] = /--from=(\w+)/.exec(modules ?? '') ?? [];
    const stage = INSTRUCTIONS.findIndex(({ name, rest: text }) => name === 'FROM' && text.endsWith(`AS ${from}`));
    const next = INSTRUCTIONS.findIndex(({ name }, index) => index > stage && name === 'FROM');
    assert.ok(INSTRUCTIONS.slice(stage, next).some(({ rest: text }) => text.includes('--omit=dev')));
  });

  test('runs as an unprivileged user and receives signals itself', () => {
    assert.deepEqual(rest('USER'), ['node']);
    const [entry, ...more] = rest('ENTRYPOINT');
    assert.deepEqual(JSON.parse(entry ?? ''), ['node', '/app/bin/mcp-resume-guard.js']);
    assert.deepEqual(more, []);
    assert.deepEqual(rest('WORKDIR'), ['/app']);
  });

  test('has no default command, so without an upstream it ends with exit code 2', () => {
    assert.deepEqual(rest('CMD'), []);
  });

  test('listens on every address, at the port that it exposes', () => {
    const env = Object.fromEntries(
      rest('ENV').flatMap((text) => text.split(/\s+/).map((pair) => pair.split('=') as [string, string])),
    );
    assert.equal(env['NODE_ENV'], 'production');
    const loaded = loadConfig({ env, options: { upstreamUrl: 'http://localhost:3001' } });
    assert.ok(loaded.ok, JSON.stringify(loaded));
    assert.deepEqual(loaded.config.listen, { host: '0.0.0.0', port: 8808 });
    assert.deepEqual(rest('EXPOSE'), ['8808']);
  });

  test('is built from files that exist and reach the builder', () => {
    const allowed = read('.dockerignore')
      .split('\n')
      .filter((line) => line.startsWith('!'))
      .map((line) => line.slice(1));
    assert.equal(read('.dockerignore').split('\n')[0], '*');
    const copies = INSTRUCTIONS.filter(({ name, rest: text }) => name === 'COPY' && !text.startsWith('--from'));
    for (const source of copies.flatMap(({ rest: text }) => text.split(' ').slice(0, -1))) {
      assert.ok(existsSync(new URL(source, ROOT)), `${source} does not exist`);
      assert.ok(allowed.includes(source), `${source} is kept from the builder`);
    }
  });
});

describe('the health check of the image', () => {
  const [text = ''] = rest('HEALTHCHECK');
  const [program = '', ...args] = JSON.parse(text.slice(text.indexOf('CMD ') + 4)) as string[];

  /** The exit code of the command with this admin address. */
  const check = (admin: string): Promise<number> =>
    new Promise((resolve, reject) => {
      assert.equal(program, 'node');
      const env = { ...process.env, MCP_RESUME_GUARD_ADMIN: admin };
      execFile(process.execPath, args, { env, timeout: 20_000 }, (error) => {
        if (error === null) resolve(0);
        else if (typeof error.code === 'number') resolve(error.code);
        else reject(error);
      });
    });

  /** A server that answers /livez with this status, and everything else with 404. */
  async function adminServer(t: TestContext, status: number): Promise<AddressInfo> {
    const server = createServer((request, response) => {
      response.writeHead(request.url === '/livez' ? status : 404, { connection: 'close' }).end();
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => server.close());
    return server.address() as AddressInfo;
  }

  test('passes while /livez answers', async (t) => {
    const { port } = await adminServer(t, 200);
    assert.equal(await check(`127.0.0.1:${port}`), 0);
    assert.equal(await check(`0.0.0.0:${port}`), 0);
  });

  test('fails when /livez fails, and when nobody answers', async (t) => {
    const { port } = await adminServer(t, 503);
    assert.equal(await check(`127.0.0.1:${port}`), 1);
    // A port that was bound a moment ago and is closed now.
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port: closed } = server.address() as AddressInfo;
    server.close();
    await once(server, 'close');
    assert.equal(await check(`127.0.0.1:${closed}`), 1);
  });

  test('passes where there is no admin listener to ask', async () => {
    assert.equal(await check('off'), 0);
  });

  test('asks at the default address when none is set', () => {
    assert.ok(args.join(' ').includes("|| '127.0.0.1:8809'"));
  });
});
