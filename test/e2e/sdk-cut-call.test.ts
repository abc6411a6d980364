/** Calls whose stream breaks before the result: the result must arrive, once, and the tool must have run once. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type ClientVersion, connectSdk } from '../support/sdk-clients.ts';
import { type Cutter, startCutter } from '../support/sdk-cutter.ts';
import { take } from '../support/sdk-guard.ts';
import { type SdkServer, SERVER_VERSIONS, startSdkServer } from '../support/sdk-server.ts';
import { eventually, within } from '../support/waiting.ts';

/** Where the stream breaks. */
const CUTS: Readonly<Record<string, (near: Cutter, far: Cutter, server: SdkServer) => number>> = {
  'between client and proxy': (near) => near.cut('"gate"'),
  'between proxy and server': (_, far) => far.cut('"gate"'),
  'by the server': (_, __, server) => server.cutCalls(),
};
const CLIENTS: readonly ClientVersion[] = ['1.24', '1.32', '2'];

describe('calls cut before their result', { concurrency: 8 }, () => {
  for (const way of ['direct', {}] as const) {
    const name = way === 'direct' ? 'direct' : 'proxy';
    for (const version of SERVER_VERSIONS) {
      for (const clientVersion of CLIENTS) {
        for (const [where, cut] of Object.entries(CUTS)) {
          for (const answer of ['before', 'after'] as const) {
            test(`${name}: a call of a ${clientVersion} client to a ${version} server cut ${where}, answered ${answer} the client is back, resolves once`, async (t) => {
              const server = await startSdkServer(version);
              t.after(() => server.close());
              const far = await startCutter(server.url);
              t.after(() => far.close());
              const { url, warnings } = await take(t, way, far.url);
              const near = await startCutter(url);
              t.after(() => near.close());
              const client = await connectSdk(clientVersion, near.url);
              t.after(() => client.close());

              const progress: number[] = [];
              let settled = 0;
              const call = client.callTool(
                'gate',
                {},
                { timeout: 15_000, onprogress: (at) => progress.push(at.progress) },
              );
              const watched = call.finally(() => (settled += 1));
              await eventually('the first progress', () => progress.length === 1);
              assert.ok(cut(near, far, server) >= 1, 'something was cut');
              if (answer === 'before') server.openGate('the result');
              await eventually('the client to come back', () => server.resumes().length === 1, 5_000);
              server.openGate('the result');

              assert.equal(await within('the result', watched, 10_000), 'the result');
              assert.equal(settled, 1);
              assert.deepEqual(progress, [1], 'progress arrives once');
              assert.deepEqual(Object.fromEntries(server.runs), { gate: 1 });
              assert.deepEqual(
                client.errors.map(String).filter((text) => /unknown message ID/i.test(text)),
                [],
                'no second result',
              );
              if (where === 'between client and proxy') assert.deepEqual(warnings(), []);
              assert.equal(await client.callTool('add', { a: 1, b: 1 }), '2');
            });
          }
        }

        test(`${name}: a ${version} server that ends the stream to be polled by a ${clientVersion} client delivers its result once`, async (t) => {
          const server = await startSdkServer(version, { retryInterval: 50 });
          t.after(() => server.close());
          const { url, decisions } = await take(t, way, server.url);
          const client = await connectSdk(clientVersion, url);
          t.after(() => client.close());
          const progress: number[] = [];
          const options = {
            timeout: 15_000,
            onprogress: (at: { progress: number }) => void progress.push(at.progress),
          };
          assert.equal(await within('the result', client.callTool('poll', {}, options), 10_000), 'polled');
          assert.deepEqual(progress, [1]);
          assert.deepEqual(Object.fromEntries(server.runs), { poll: 1 });
          assert.ok(server.resumes().length >= 1);
          assert.ok(
            decisions().every((rule) => /^in-window|^finished-undelivered/.test(rule)),
            decisions().join(),
          );
        });
      }
    }
  }

  for (const clientVersion of CLIENTS) {
    test(`proxy: a call of a ${clientVersion} client pending over a restart of the proxy gets its result, for nothing is known against its cursor`, async (t) => {
      const server = await startSdkServer('1.32');
      t.after(() => server.close());
      const first = await take(t, {}, server.url);
      const client = await connectSdk(clientVersion, first.url);
      t.after(() => client.close());
      const progress: number[] = [];
      const onprogress = (at: { progress: number }): void => void progress.push(at.progress);
      const call = client.callTool('gate', {}, { timeout: 15_000, onprogress });
      await eventually('the first progress', () => progress.length === 1);
      await first.close();
      const second = await take(t, { listen: new URL(first.url).host }, server.url);
      await eventually('the client to come back', () => server.resumes().length === 1, 8_000);
      server.openGate('the result');
      assert.equal(await within('the result', call, 10_000), 'the result');
      assert.deepEqual(progress, [1]);
      assert.deepEqual(Object.fromEntries(server.runs), { gate: 1 });
      await client.close();
      await eventually('the decision', () => second.decisions().length > 0);
      assert.match(second.decisions()[0]!, /^(session|cursor)-unrecorded replayed/);
      assert.equal(second.url, first.url);
    });
  }
});
