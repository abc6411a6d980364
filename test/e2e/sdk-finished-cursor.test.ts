/**
 * Clients that come back with the cursor of a request that was answered long ago: what reaches a real server without the
 * proxy, and with it.
 */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { type ClientVersion, connectSdk, type Exchange, type SdkClient } from '../support/sdk-clients.ts';
import { take, type Way } from '../support/sdk-guard.ts';
import {
  type SdkServer,
  SERVER_VERSIONS,
  type ServerOptions,
  type ServerVersion,
  startSdkServer,
} from '../support/sdk-server.ts';
import { eventually } from '../support/waiting.ts';

interface Setting {
  readonly server: SdkServer;
  readonly client: SdkClient;
  /** Exchanges of the client that carried a cursor, with their answers. */
  comebacks(): Exchange[];
  decisions(): string[];
}

async function set(
  t: TestContext,
  client: ClientVersion,
  version: ServerVersion,
  way: Way,
  options: ServerOptions = {},
): Promise<Setting> {
  const server = await startSdkServer(version, options);
  t.after(() => server.close());
  const { url, decisions } = await take(t, way, server.url);
  const exchanges: Exchange[] = [];
  const connected = await connectSdk(client, url, { onexchange: (exchange) => exchanges.push(exchange) });
  t.after(() => connected.close());
  if (!options.withoutListening) await eventually('the listening stream', () => server.openStreams('GET') === 1);
  return {
    server,
    client: connected,
    comebacks: () => exchanges.filter(({ lastEventId }) => lastEventId !== null),
    decisions,
  };
}

interface Row {
  readonly client: ClientVersion;
  readonly what: string;
  /** Cursors of finished requests that a client of this version sends: also one for `initialize` up to 1.23. */
  readonly comebacks: number;
  call(client: SdkClient): Promise<void>;
}

const succeeds = async (client: SdkClient): Promise<void> =>
  assert.equal(await client.callTool('add', { a: 1, b: 2 }), '3');
const fails = (client: SdkClient): Promise<void> => assert.rejects(client.callTool('fail'), /it cannot be done/);

const ROWS: readonly Row[] = [
  { client: '1.23', what: 'after a successful call', comebacks: 2, call: succeeds },
  { client: '1.23', what: 'after a JSON-RPC error', comebacks: 2, call: fails },
  { client: '1.24', what: 'after a JSON-RPC error', comebacks: 1, call: fails },
  { client: '1.32', what: 'after a JSON-RPC error', comebacks: 1, call: fails },
];

describe('cursors of finished requests', { concurrency: 8 }, () => {
  for (const version of SERVER_VERSIONS) {
    for (const { client: clientVersion, what, comebacks, call } of ROWS) {
      test(`direct: a ${clientVersion} client of a ${version} server comes back with the terminal's cursor ${what}`, async (t) => {
        const { server, client } = await set(t, clientVersion, version, 'direct');
        await call(client);
        await eventually('the cursor at the server', () => server.finishedCursors().length === comebacks, 5_000);
        assert.ok(server.finishedCursors().every(({ cursor }) => cursor === 'terminal'));
      });

      test(`proxy: no cursor of a ${clientVersion} client reaches a ${version} server ${what}, and the client is unharmed`, async (t) => {
        const { server, client, comebacks: seen, decisions } = await set(t, clientVersion, version, {});
        await call(client);
        await eventually('the client to come back', () => seen().length === comebacks, 5_000);
        assert.deepEqual(server.resumes(), []);
        // To this client 405 is a calm "no stream here": no retry, no error.
        assert.deepEqual(
          seen().map(({ status }) => status),
          Array(comebacks).fill(405),
        );
        assert.deepEqual(decisions(), Array(comebacks).fill('finished-while-listening'));
        assert.deepEqual(client.errors, []);
        assert.equal(server.openStreams('GET'), 1, 'the listening stream is the only stream left open');

        assert.equal(await client.callTool('add', { a: 3, b: 4 }), '7');
        await server.announce('still listening');
        await eventually('the announcement', () => client.logged.length === 1);
        assert.deepEqual(client.logged, ['still listening']);
      });

      test(`observe: the cursor of a ${clientVersion} client reaches a ${version} server ${what} as it does without the proxy`, async (t) => {
        const { server, client } = await set(t, clientVersion, version, { mode: 'observe' });
        await call(client);
        await eventually('the cursor at the server', () => server.finishedCursors().length === comebacks, 5_000);
      });
    }

    test(`direct: each call of a 1.23 client leaves a stream open at a 1.32 server, or is answered empty by a 2 server (${version})`, async (t) => {
      const { server, client } = await set(t, '1.23', version, 'direct');
      await succeeds(client);
      await succeeds(client);
      await eventually('the cursors', () => server.finishedCursors().length === 3, 5_000);
      if (version === '1.32') return assert.equal(server.openStreams('GET'), 1 + 3);
      await eventually('the empty answers', () => server.finishedCursors().every(({ status }) => status === 200));
    });

    for (const clientVersion of ['1.23', '1.24', '1.32', '2'] as const) {
      for (const way of ['direct', {}] as const) {
        const name = way === 'direct' ? 'direct' : 'proxy';
        test(`${name}: calls, progress, errors and announcements of a ${clientVersion} client and a ${version} server arrive`, async (t) => {
          const { server, client } = await set(t, clientVersion, version, way);
          assert.deepEqual(await client.listTools(), ['add', 'fail', 'slow', 'late', 'gate', 'poll']);
          await succeeds(client);
          const progress: number[] = [];
          const onprogress = ({ progress: at }: { progress: number }): void => void progress.push(at);
          assert.equal(await client.callTool('slow', {}, { onprogress }), 'slow is done');
          assert.deepEqual(progress, [1, 2, 3]);
          await fails(client);
          await server.announce('first');
          await server.announce('second');
          await eventually('the announcements', () => client.logged.length === 2);
          assert.deepEqual(client.logged, ['first', 'second']);
          assert.deepEqual(Object.fromEntries(server.runs), { add: 1, slow: 1, fail: 1 });
          if (way !== 'direct') assert.deepEqual(server.finishedCursors(), []);
        });
      }
    }
  }

  test('proxy: a finished cursor is stripped where the server has no listening stream, and the client takes the 405 calmly', async (t) => {
    const { server, client, comebacks, decisions } = await set(t, '1.23', '1.32', {}, { withoutListening: true });
    await succeeds(client);
    await eventually('the client to come back', () => comebacks().length === 2, 5_000);
    await eventually('the decisions', () => decisions().length === 2);
    assert.deepEqual(decisions(), ['finished', 'finished']);
    assert.deepEqual(server.resumes(), []);
    // The client's own attempt to listen, and the two that came without their cursor.
    assert.equal(server.seen.filter(({ method }) => method === 'GET').length, 3);
    assert.deepEqual(
      comebacks().map(({ status, proxyStatus }) => [status, proxyStatus]),
      Array(2).fill([405, null]),
    );
    assert.deepEqual(client.errors, []);
    await succeeds(client);
  });

  test('proxy: a 2 client never comes back for a finished request, so nothing is decided', async (t) => {
    const { client, comebacks, decisions } = await set(t, '2', '2', {});
    await succeeds(client);
    await fails(client);
    assert.equal(await client.callTool('slow'), 'slow is done');
    assert.deepEqual(comebacks(), []);
    assert.deepEqual(decisions(), []);
  });
});
