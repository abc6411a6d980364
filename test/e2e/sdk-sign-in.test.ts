/**
 * A local guard in front of somebody else's server that wants a sign-in (OAuth, RFC 9728): what the published clients make
 * of it, and what helps. `docs/clients.md` says the same in words.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { Client as Client2, StreamableHTTPClientTransport as Transport2 } from '@modelcontextprotocol/client';
import { Client as Client132 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as Transport132 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { configFrom } from '../../src/config.ts';
import { startProxy } from '../../src/main.ts';
import { createLogger } from '../../src/ops/logger.ts';
import { initializeResult } from '../support/messages.ts';
import { within } from '../support/waiting.ts';

interface Third {
  readonly origin: string;
  readonly seen: string[];
}

/** Answers `initialize` to whoever has the token, says where to sign in to everybody else, and has moved once. */
async function startThirdParty(t: TestContext): Promise<Third> {
  const seen: string[] = [];
  const server = createServer((request, response) => {
    const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const json = (status: number, body: object | string, fields = {}) =>
      response
        .writeHead(status, { 'Content-Type': 'application/json', ...fields })
        .end(typeof body === 'string' ? body : JSON.stringify(body));
    seen.push(`${request.method} ${request.url}`);
    request.resume();
    switch (request.url) {
      case '/.well-known/oauth-protected-resource/mcp':
        return json(200, { resource: `${origin}/mcp`, authorization_servers: [origin] });
      case '/.well-known/oauth-authorization-server':
        return json(200, {
          issuer: origin,
          authorization_endpoint: `${origin}/authorize`,
          token_endpoint: `${origin}/token`,
          response_types_supported: ['code'],
          code_challenge_methods_supported: ['S256'],
        });
      case '/moved':
        return response.writeHead(307, { Location: `${origin}/mcp` }).end();
      case '/mcp': {
        if (request.headers.authorization !== 'Bearer good') {
          const metadata = `${origin}/.well-known/oauth-protected-resource/mcp`;
          return json(
            401,
            { error: 'invalid_token' },
            { 'WWW-Authenticate': `Bearer resource_metadata="${metadata}"` },
          );
        }
        return request.method === 'POST' ? json(200, initializeResult(0)) : json(405, {}, { Allow: 'POST' });
      }
      default:
        return json(404, {});
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen };
}

async function startGuardOf(t: TestContext, origin: string): Promise<string> {
  const config = configFrom({ upstream: { url: `${origin}/mcp` }, listen: '127.0.0.1:0', admin: { listen: 'off' } });
  const logger = createLogger({ level: 'silent', format: 'json' }, { write: () => {} });
  const proxy = await startProxy({ ...config, drainTimeout: 100 }, { logger });
  t.after(() => proxy.close());
  return proxy.url;
}

interface Signing {
  /** The URL that a person would have been sent to. */
  sentTo: URL | undefined;
  readonly provider: object;
}

/** What an application has to bring along to sign in. */
function signing(over: object = {}): Signing {
  const signs: Signing = {
    sentTo: undefined,
    provider: {
      redirectUrl: 'http://127.0.0.1:1/callback',
      clientMetadata: { redirect_uris: ['http://127.0.0.1:1/callback'] },
      clientInformation: () => ({ client_id: 'test' }),
      tokens: () => undefined,
      saveTokens: () => {},
      redirectToAuthorization: (url: URL) => {
        signs.sentTo = url;
      },
      saveCodeVerifier: () => {},
      codeVerifier: () => 'verifier',
      ...over,
    },
  };
  return signs;
}

type Connect = (url: string, options: object) => Promise<void>;
const INFO = { name: 'test', version: '1' };
const CLIENTS: Readonly<Record<string, Connect>> = {
  '1.32': async (url, options) => {
    const transport = new Transport132(new URL(url), options);
    const client = new Client132(INFO);
    await client.connect(transport as Parameters<typeof client.connect>[0]).finally(() => client.close());
  },
  '2': async (url, options) => {
    const client = new Client2(INFO);
    await client.connect(new Transport2(new URL(url), options)).finally(() => client.close());
  },
};

for (const [version, connect] of Object.entries(CLIENTS)) {
  describe(`the TypeScript client ${version} through a local guard`, () => {
    test('refuses by itself to sign in for the resource that the server names', async (t) => {
      const { origin } = await startThirdParty(t);
      const url = `${await startGuardOf(t, origin)}/mcp`;
      const { provider } = signing();
      await assert.rejects(within('the refusal', connect(url, { authProvider: provider }), 10_000), (error: Error) => {
        assert.ok(
          error.message.includes(`Protected resource ${origin}/mcp does not match expected ${url}`),
          error.message,
        );
        return true;
      });
    });

    test('signs in for it where the application allows that resource', async (t) => {
      const { origin, seen } = await startThirdParty(t);
      const url = `${await startGuardOf(t, origin)}/mcp`;
      const signs = signing({ validateResourceURL: async () => new URL(`${origin}/mcp`) });
      await assert.rejects(
        within('the sign-in', connect(url, { authProvider: signs.provider }), 10_000),
        /Unauthorized/,
      );
      assert.equal(signs.sentTo?.origin, origin);
      assert.equal(signs.sentTo?.searchParams.get('resource'), `${origin}/mcp`);
      assert.ok(seen.includes('GET /.well-known/oauth-protected-resource/mcp'), seen.join());
    });

    test('comes through with a token that it has from elsewhere', async (t) => {
      const { origin } = await startThirdParty(t);
      const url = `${await startGuardOf(t, origin)}/mcp`;
      const requestInit = { headers: { Authorization: 'Bearer good' } };
      await within('the connection', connect(url, { requestInit }), 10_000);
    });
  });
}

test('discovery and redirects stay with the guard', async (t) => {
  const { origin } = await startThirdParty(t);
  const url = await startGuardOf(t, origin);
  const moved = await fetch(`${url}/moved`, { redirect: 'manual' });
  assert.deepEqual([moved.status, moved.headers.get('location')], [307, `${url}/mcp`]);
  const metadata = await fetch(`${url}/.well-known/oauth-protected-resource/mcp`);
  assert.deepEqual(await metadata.json(), { resource: `${origin}/mcp`, authorization_servers: [origin] });
  assert.equal((await fetch(`${url}/.well-known/oauth-authorization-server`)).status, 200);
});
