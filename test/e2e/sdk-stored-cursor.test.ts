/**
 * A cursor that one client stored and another one uses (`resumptionToken`), in the same session, without `initialize`:
 * to the second client nothing has been delivered, whatever the first one saw.
 */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { connectSdk, type SdkClient } from '../support/sdk-clients.ts';
import { take, type Way } from '../support/sdk-guard.ts';
import { type SdkServer, SERVER_VERSIONS, type ServerVersion, startSdkServer } from '../support/sdk-server.ts';
import { eventually, within } from '../support/waiting.ts';

interface Interrupted {
  readonly server: SdkServer;
  readonly token: string;
  decisions(): string[];
  /** A client of the same session that has never seen `initialize`. */
  successor(): Promise<SdkClient>;
}

/** A client calls `gate`, stores its cursor and vanishes. */
async function interrupt(
  t: TestContext,
  clientVersion: '1.32' | '2',
  version: ServerVersion,
  way: Way,
): Promise<Interrupted> {
  const server = await startSdkServer(version);
  t.after(() => server.close());
  const { url, decisions } = await take(t, way, server.url);
  const first = await connectSdk(clientVersion, url);
  t.after(() => first.close());
  const tokens: string[] = [];
  const onresumptiontoken = (token: string): void => void tokens.push(token);
  const call = first.callTool('gate', {}, { onresumptiontoken, onprogress: () => {} });
  const ended = assert.rejects(call);
  // The priming event's ID, then that of the progress.
  await eventually('two cursors', () => tokens.length === 2);
  const { sessionId, protocolVersion } = first;
  assert.ok(sessionId !== undefined && protocolVersion !== undefined);
  await first.close();
  await ended;
  await eventually('the server to notice', () => server.openStreams('POST') === 0);
  return {
    server,
    token: tokens[1]!,
    decisions,
    successor: async () => {
      const second = await connectSdk(clientVersion, url, { sessionId, protocolVersion });
      t.after(() => second.close());
      return second;
    },
  };
}

describe('cursors that another client stored', { concurrency: 8 }, () => {
  for (const way of ['direct', {}] as const) {
    const name = way === 'direct' ? 'direct' : 'proxy';
    for (const version of SERVER_VERSIONS) {
      for (const clientVersion of ['1.32', '2'] as const) {
        const who = `a second ${clientVersion} client of a ${version} server`;

        test(`${name}: ${who} takes over an unfinished call by its stored cursor`, async (t) => {
          const { server, token, successor, decisions } = await interrupt(t, clientVersion, version, way);
          const second = await successor();
          const call = second.callTool('gate', {}, { resumptionToken: token, timeout: 8_000 });
          await eventually('the resume', () => server.resumes().length === 1);
          server.openGate('for the second');
          assert.equal(await within('the result', call, 8_000), 'for the second');
          assert.equal(server.runs.get('gate'), 1);
          if (way === 'direct') return;
          await eventually('the decision', () => decisions().length > 0);
          assert.match(decisions()[0]!, /^in-window/);
        });

        test(`${name}: ${who} gets the result that the first one never got`, async (t) => {
          const { server, token, successor } = await interrupt(t, clientVersion, version, way);
          server.openGate('nobody was there');
          await eventually('the result to be stored', () => server.store.standing(token) === 'finished');
          const second = await successor();
          const call = second.callTool('gate', {}, { resumptionToken: token, timeout: 8_000 });
          assert.equal(await within('the result', call, 8_000), 'nobody was there');
          assert.equal(server.runs.get('gate'), 1);
          assert.equal(await second.callTool('add', { a: 2, b: 2 }), '4');
        });
      }
    }
  }

  test('proxy: a stored cursor before a result that the first client took is honoured once the proof by connection has lapsed', async (t) => {
    const server = await startSdkServer('1.32');
    t.after(() => server.close());
    const { url, decisions } = await take(t, { proofMemory: '300ms' }, server.url);
    const first = await connectSdk('1.32', url);
    t.after(() => first.close());
    const tokens: string[] = [];
    const onresumptiontoken = (token: string): void => void tokens.push(token);
    server.openGate('taken');
    assert.equal(await first.callTool('gate', {}, { onresumptiontoken, onprogress: () => {} }), 'taken');
    const { sessionId, protocolVersion } = first;
    assert.ok(sessionId !== undefined && protocolVersion !== undefined);
    await first.close();
    // The time the proof lasts is what this test is about.
    await new Promise((resolve) => setTimeout(resolve, 500));

    const second = await connectSdk('1.32', url, { sessionId, protocolVersion });
    t.after(() => second.close());
    const call = second.callTool('gate', {}, { resumptionToken: tokens[0]!, timeout: 8_000 });
    assert.equal(await within('the result', call, 8_000), 'taken');
    assert.equal(server.runs.get('gate'), 1);
    // This server leaves a replay open, and an exchange is logged when it is over.
    await second.close();
    await eventually('the decision', () => decisions().length > 0);
    assert.deepEqual(decisions(), ['finished-undelivered replayed']);
  });
});
