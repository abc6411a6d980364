/** What is found out at the start about servers elsewhere, and how it is said. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { type Config, configFrom, loadConfig } from '../src/config.ts';
import { serve } from '../src/serve.ts';
import { audiences, foreignRoutes } from '../src/serve-audience.ts';
import { testIo } from './support/io.ts';
import { within } from './support/waiting.ts';

const WELL_KNOWN = '/.well-known/oauth-protected-resource';

type Answers = Readonly<Record<string, { readonly status?: number; readonly body: string } | 'never'>>;

/** A server with these documents; a 404 for everything else. */
async function start(t: TestContext, answers: Answers) {
  const asked: string[] = [];
  const server = createServer((request, response) => {
    asked.push(request.url ?? '');
    const answer = answers[request.url ?? ''] ?? { status: 404, body: '' };
    if (answer !== 'never') response.writeHead(answer.status ?? 200).end(answer.body);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { origin, asked, config: configFrom({ upstream: { url: `${origin}/mcp` } }) };
}

const ask = (config: Config) => audiences(config, config.routes);
const RESOURCE = '{"resource":"https://mcp.example.com/mcp"}';

describe('the audience of a server', () => {
  test('stands in its metadata, at the well-known path before that of the server', async (t) => {
    const { config, origin } = await start(t, { [`${WELL_KNOWN}/mcp`]: { body: RESOURCE } });
    assert.deepEqual(await ask(config), [{ upstream: origin, resource: 'https://mcp.example.com/mcp' }]);
  });

  test('or at the well-known path alone', async (t) => {
    const { config, asked } = await start(t, { [WELL_KNOWN]: { body: RESOURCE } });
    assert.equal((await ask(config)).length, 1);
    assert.deepEqual(asked, [`${WELL_KNOWN}/mcp`, WELL_KNOWN]);
  });

  for (const [name, answers] of [
    ['there is none', {}],
    ['it is no JSON', { [WELL_KNOWN]: { body: '<html>' } }],
    ['it is no object', { [WELL_KNOWN]: { body: 'null' } }],
    ['it names no URL', { [WELL_KNOWN]: { body: '{"resource":"mcp"}' } }],
    ['it is endless', { [WELL_KNOWN]: { body: `"${'x'.repeat(100_000)}"` } }],
    ['it is somebody else’s to say', { [WELL_KNOWN]: { status: 302, body: RESOURCE } }],
    ['it never comes', { [`${WELL_KNOWN}/mcp`]: 'never' }],
  ] as const) {
    test(`is not known where ${name}`, async (t) => {
      const { config } = await start(t, answers);
      assert.deepEqual(await within('an end of asking', ask(config), 8_000), []);
    });
  }

  test('is not known where nobody listens', async () => {
    assert.deepEqual(await ask(configFrom({ upstream: { url: 'http://127.0.0.1:1/mcp' } })), []);
  });
});

describe('who is asked', () => {
  for (const [listen, url, expected] of [
    ['127.0.0.1:8808', 'https://mcp.example.com/mcp', 1],
    ['localhost:8808', 'http://192.0.2.1/mcp', 1],
    ['127.0.0.1:8808', 'http://localhost:3001/mcp', 0],
    ['127.0.0.1:8808', 'http://[::1]:3001/mcp', 0],
    ['0.0.0.0:8808', 'https://mcp.example.com/mcp', 0],
  ] as const) {
    test(`${expected === 1 ? 'a server elsewhere' : 'nobody'}: ${listen} before ${url}`, () => {
      assert.equal(foreignRoutes(configFrom({ listen, upstream: { url } })).length, expected);
    });
  }
});

for (const format of ['json', 'pretty'] as const) {
  test(`it is said at the start, ${format}`, async (t) => {
    const { origin, config } = await start(t, { [`${WELL_KNOWN}/mcp`]: { body: RESOURCE } });
    const io = testIo();
    const running = { url: 'http://127.0.0.1:8808', adminUrl: null, reload() {}, close: async () => {} };
    const options = {
      reload: () => loadConfig({}),
      version: '0.0.0',
      start: async () => running,
      foreign: ({ routes }: Pick<Config, 'routes'>) => routes,
    };
    const code = serve({ ...config, log: { level: 'info', format } }, options, io);
    await within(
      'the warning',
      io.printed(
        `${origin} signs clients in for https://mcp.example.com/mcp alone: a client pointed at http://127.0.0.1:8808 may refuse`,
      ),
      5_000,
      io.out,
    );
    assert.match(io.out(), /^[^\n]*listening on/);
    io.signal('SIGTERM');
    assert.equal(await within('the end', code), 0);
  });
}
