/**
 * The guard inside real SDK clients, against real SDK servers: what they do without it, and with it. `npm test` prints
 * how long a call stays pending whose events are gone.
 */
import assert from 'node:assert/strict';
import { after, describe, type TestContext, test } from 'node:test';
import { guardedFetch, type ResumeReport } from '../../src/client/index.ts';
import { type ClientVersion, connectSdk, type SdkClient } from '../support/sdk-clients.ts';
import { type Cutter, startCutter } from '../support/sdk-cutter.ts';
import {
  type SdkServer,
  SERVER_VERSIONS,
  type ServerOptions,
  type ServerVersion,
  startSdkServer,
} from '../support/sdk-server.ts';
import { eventually, fastestOf, within } from '../support/waiting.ts';

type Way = 'bare' | 'guarded';
const WAYS: readonly Way[] = ['bare', 'guarded'];

interface Setting {
  readonly server: SdkServer;
  readonly cutter: Cutter;
  readonly client: SdkClient;
  readonly reports: readonly ResumeReport[];
  /** When the server's answers to requests with a cursor came in. */
  readonly answers: readonly number[];
}

async function set(
  t: TestContext,
  clientVersion: ClientVersion,
  version: ServerVersion,
  way: Way,
  options: ServerOptions = {},
): Promise<Setting> {
  const server = await startSdkServer(version, options);
  t.after(() => server.close());
  const cutter = await startCutter(server.url);
  t.after(() => cutter.close());
  const reports: ResumeReport[] = [];
  const answers: number[] = [];
  const client = await connectSdk(clientVersion, cutter.url, {
    onexchange: ({ lastEventId }) => void (lastEventId !== null && answers.push(performance.now())),
    ...(way === 'guarded' && {
      wrapFetch: (fetch) => guardedFetch(fetch, { onresume: (report) => reports.push(report) }),
    }),
  });
  t.after(() => client.close());
  if (!options.withoutListening)
    await eventually('the listening stream', () => server.openStreams('GET') === 1, 15_000);
  return { server, cutter, client, reports, answers };
}

describe('cursors of finished requests', { concurrency: 8 }, () => {
  /** `comebacks`: of a client of this version, after initialize (1.23), a call that succeeds and one that fails. */
  const rows: readonly [ClientVersion, comebacks: number][] = [
    ['1.23', 3],
    ['1.24', 1],
    ['1.32', 1],
    ['2', 0],
  ];
  for (const version of SERVER_VERSIONS) {
    for (const [clientVersion, comebacks] of rows) {
      const who = `a ${clientVersion} client of a ${version} server`;
      const use = async ({ client }: Setting): Promise<void> => {
        assert.equal(await client.callTool('add', { a: 1, b: 2 }), '3');
        await assert.rejects(client.callTool('fail'), /it cannot be done/);
      };

      test(`bare: ${who} comes back with ${comebacks}`, async (t) => {
        const setting = await set(t, clientVersion, version, 'bare');
        await use(setting);
        const { server } = setting;
        await eventually('the cursors', () => server.finishedCursors().length === comebacks, 15_000);
        if (version !== '1.32') return;
        await eventually('the replays', () => server.openStreams('GET') === 1 + comebacks, 15_000);
      });

      test(`guarded: ${who} comes back with none, leaves no stream open and notices nothing`, async (t) => {
        const setting = await set(t, clientVersion, version, 'guarded');
        await use(setting);
        const { server, client, reports } = setting;
        await eventually('the guard to be asked', () => reports.length === comebacks, 15_000);
        assert.deepEqual(
          new Set(reports.map(({ rule }) => rule)),
          new Set(comebacks === 0 ? [] : ['finished-while-listening']),
        );
        assert.equal(server.resumes().length, 0);
        assert.equal(server.openStreams('GET'), 1);
        assert.deepEqual(client.errors, []);
        await server.announce('still listening');
        await eventually('the announcement', () => client.logged.includes('still listening'));
        assert.equal(await client.callTool('add', { a: 2, b: 2 }), '4');
      });
    }

    test(`guarded: a 1.23 client of a ${version} server that never speaks first asks without a cursor, and stops`, async (t) => {
      const setting = await set(t, '1.23', version, 'guarded', { withoutListening: true });
      assert.equal(await setting.client.callTool('add', { a: 1, b: 2 }), '3');
      const { server, reports } = setting;
      await eventually('the guard to be asked', () => reports.length === 2, 15_000);
      assert.equal(reports[0]?.rule, 'finished');
      // The second one may come while the first is on its way, and is then answered from memory.
      const sent = reports.filter(({ rule }) => rule === 'finished').length;
      const gets = (): number => server.seen.filter(({ method }) => method === 'GET').length;
      await eventually('its GETs', () => gets() === 1 + sent, 15_000);
      assert.equal(server.resumes().length, 0);
      assert.equal(server.openStreams('GET'), 0);
      assert.deepEqual(setting.client.errors, []);
    });
  }
});

const measured: string[] = [];

/** Calls a tool, empties the server's store and cuts the call. How long after the empty answer does it fail, in ms? */
async function loseEvents({ server, cutter, client, answers }: Setting, timeout: number) {
  let progressed = false;
  const before = answers.length;
  const begun = performance.now();
  const call = client.callTool('gate', {}, { timeout, onprogress: () => (progressed = true) });
  const failed = call.then(
    () => assert.fail('it has no result'),
    (error: Error & { code?: unknown }) => ({ error, at: performance.now() }),
  );
  await eventually('the call to be under way', () => progressed);
  server.store.empty();
  assert.ok(cutter.cut('"gate"') >= 1, 'something was cut');
  const { error, at } = await failed;
  return { error, afterCall: at - begun, afterAnswer: at - answers[before]! };
}

describe('a call whose events are gone', { concurrency: 8 }, () => {
  for (const clientVersion of ['1.23', '1.24', '1.32', '2'] as const) {
    test(`bare: of a ${clientVersion} client waits for its own timer`, async (t) => {
      const timeout = 4_000;
      const { error, afterCall, afterAnswer } = await loseEvents(await set(t, clientVersion, '2', 'bare'), timeout);
      measured.push(`${clientVersion} bare: ${afterAnswer.toFixed(0)} ms after the answer, ${error.message}`);
      assert.match(error.message, /timed out/i);
      assert.ok(afterCall >= timeout - 5, `${afterCall} ms`);
    });

    test(`guarded: of a ${clientVersion} client fails within 100 ms of the empty answer`, async (t) => {
      const setting = await set(t, clientVersion, '2', 'guarded');
      const fastest = await fastestOf(3, async () => {
        const { error, afterAnswer } = await loseEvents(setting, 10_000);
        measured.push(`${clientVersion} guarded: ${afterAnswer.toFixed(1)} ms after the answer, ${error.message}`);
        assert.match(error.message, /send the request again, with idempotency protection/i);
        assert.equal(error.code, -32010);
        return afterAnswer;
      });
      assert.ok(fastest < 100, `${fastest} ms`);
      const { server, client, reports } = setting;
      assert.equal(reports.filter(({ refusal }) => refusal === 'empty-replay').length, 3);
      assert.equal(await client.callTool('add', { a: 1, b: 2 }), '3', 'the session goes on');
      await eventually('the resumes to be over', () => server.openStreams('GET') === 1);
    });
  }
});

after(() => {
  for (const line of measured.sort()) console.log(line);
});

describe('a call cut before its result', { concurrency: 8 }, () => {
  for (const way of WAYS) {
    for (const version of SERVER_VERSIONS) {
      for (const clientVersion of ['1.24', '1.32', '2'] as const) {
        for (const answer of ['before', 'after'] as const) {
          test(`${way}: of a ${clientVersion} client, answered by a ${version} server ${answer} it is back, resolves once`, async (t) => {
            const { server, cutter, client } = await set(t, clientVersion, version, way);
            const progress: number[] = [];
            const onprogress = (at: { progress: number }): void => void progress.push(at.progress);
            const call = client.callTool('gate', {}, { timeout: 30_000, onprogress });
            await eventually('the first progress', () => progress.length === 1);
            assert.ok(cutter.cut('"gate"') >= 1, 'something was cut');
            if (answer === 'before') server.openGate('the result');
            await eventually('the client to come back', () => server.resumes().length === 1, 15_000);
            server.openGate('the result');
            assert.equal(await within('the result', call, 20_000), 'the result');
            assert.deepEqual(progress, [1]);
            assert.equal(server.runs.get('gate'), 1);
            assert.equal(await client.callTool('add', { a: 1, b: 1 }), '2');
          });
        }

        test(`${way}: of a ${clientVersion} client by a ${version} server that wants to be polled, resolves once`, async (t) => {
          const { server, client } = await set(t, clientVersion, version, way, { retryInterval: 50 });
          const progress: number[] = [];
          const options = {
            timeout: 15_000,
            onprogress: (at: { progress: number }) => void progress.push(at.progress),
          };
          assert.equal(await within('the result', client.callTool('poll', {}, options), 10_000), 'polled');
          assert.deepEqual(progress, [1]);
          assert.equal(server.runs.get('poll'), 1);
        });
      }
    }
  }
});

describe('a stored cursor', { concurrency: 4 }, () => {
  for (const version of SERVER_VERSIONS) {
    for (const clientVersion of ['1.32', '2'] as const) {
      test(`guarded: of another process is taken at its word by a ${clientVersion} client of a ${version} server`, async (t) => {
        const { server, cutter, client, reports } = await set(t, clientVersion, version, 'guarded');
        const tokens: string[] = [];
        const onresumptiontoken = (token: string): void => void tokens.push(token);
        const call = client.callTool('gate', {}, { onresumptiontoken, onprogress: () => {} });
        const ended = assert.rejects(call);
        await eventually('two cursors', () => tokens.length === 2);
        const { sessionId, protocolVersion } = client;
        assert.ok(sessionId !== undefined && protocolVersion !== undefined, 'it is connected');
        await client.close();
        await ended;
        assert.deepEqual(reports, []);
        const told: ResumeReport[] = [];
        const second = await connectSdk(clientVersion, cutter.url, {
          sessionId,
          protocolVersion,
          wrapFetch: (fetch) => guardedFetch(fetch, { onresume: (report) => told.push(report) }),
        });
        t.after(() => second.close());
        const resumed = second.callTool('gate', {}, { resumptionToken: tokens[1]!, timeout: 8_000 });
        await eventually('the resume', () => server.resumes().length === 1);
        server.openGate('for the second');
        assert.equal(await within('the result', resumed, 8_000), 'for the second');
        assert.match(told[0]?.rule ?? '', /^(session|cursor)-unrecorded$/);
      });
    }
  }
});
