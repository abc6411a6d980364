/**
 * A server whose sessions outlive its event store: it restarts, keeps every session and can replay nothing. How long does
 * the call that was pending stay pending? `npm test` prints what was measured.
 */
import assert from 'node:assert/strict';
import { after, describe, type TestContext, test } from 'node:test';
import { type ClientVersion, connectSdk, type Exchange } from '../support/sdk-clients.ts';
import { take, type Way } from '../support/sdk-guard.ts';
import { SERVER_VERSIONS, type ServerVersion, startSdkServer } from '../support/sdk-server.ts';
import { eventually, pause } from '../support/waiting.ts';

/** The client's own timer for the call, in milliseconds. */
const TIMER = 8_000;

/** How long nobody listens, in milliseconds: a client's first attempt, after 1 s, meets a refused connect or does not. */
const GAPS = { 'of 1.3 s': 1_300, 'too short to be noticed': 20 } as const;

const WAYS: Readonly<Record<string, Way>> = {
  direct: 'direct',
  auto: { refuseWith: 'auto' },
  status: { refuseWith: 'status' },
  event: { refuseWith: 'event' },
};

interface Measured {
  /** Milliseconds from the restart to the end of the call. */
  readonly pending: number;
  readonly error: string;
  readonly decisions: readonly string[];
  /** Answers to the client's GETs after the restart. */
  readonly answers: readonly number[];
}

async function measure(
  t: TestContext,
  way: Way,
  client: ClientVersion,
  version: ServerVersion,
  gap: number,
): Promise<Measured> {
  const server = await startSdkServer(version);
  t.after(() => server.close());
  const { url, decisions } = await take(t, way, server.url);
  const exchanges: Exchange[] = [];
  const connected = await connectSdk(client, url, { onexchange: (exchange) => exchanges.push(exchange) });
  t.after(() => connected.close());
  // Both streams must be there, or the client comes back on one only.
  await eventually('the listening stream', () => server.openStreams('GET') === 1);
  let progressed = false;
  const call = connected.callTool('gate', {}, { timeout: TIMER, onprogress: () => (progressed = true) });
  const ended = call.then(
    (value) => `resolved with ${value}`,
    (error: Error & { code?: unknown }) => `${error.code} ${error.message}`,
  );
  await eventually('the call to be under way', () => progressed);

  const before = exchanges.length;
  const restarted = performance.now();
  await server.stopListening();
  server.store.empty();
  await pause(gap);
  await server.listenAgain();
  const error = await ended;
  return {
    pending: performance.now() - restarted,
    error,
    decisions: decisions(),
    answers: exchanges.slice(before).map(({ status }) => status),
  };
}

const rows: string[] = [];
const timedOut = (error: string): boolean => /timed out/i.test(error);

describe('a restart that keeps the sessions and loses the events', { concurrency: 2 }, () => {
  for (const [outage, gap] of Object.entries(GAPS)) {
    for (const version of SERVER_VERSIONS) {
      for (const client of ['1.32', '2'] as const) {
        test(`a call of a ${client} client pending over a restart ${outage} of a ${version} server without its events`, async (t) => {
          const names = Object.keys(WAYS);
          const all = await Promise.all(names.map((name) => measure(t, WAYS[name]!, client, version, gap)));
          const measured = Object.fromEntries(names.map((name, at) => [name, all[at]!]));
          for (const name of names) {
            const { pending, error, decisions, answers } = measured[name]!;
            t.diagnostic(
              `${name}: ${Math.round(pending)} ms, ${error}; GETs: ${answers.join(' ')}; ${decisions.join(', ')}`,
            );
          }
          const shown = names.map((name) => {
            const { pending, error } = measured[name]!;
            return timedOut(error) ? 'until its own timer' : `${(pending / 1_000).toFixed(1)} s`;
          });
          rows.push(`| ${client} | ${version} | ${outage} | ${shown.join(' | ')} |`);

          await t.test('direct: it is still pending when its own timer fires', () => {
            assert.ok(timedOut(measured['direct']!.error), measured['direct']!.error);
          });
          await t.test('refuseWith event: it is rejected with our error, well before its timer', () => {
            const { pending, error, decisions } = measured['event']!;
            assert.match(error, /-32010/);
            assert.ok(pending < TIMER / 2, `${pending} ms`);
            assert.ok(decisions.includes('generation-mismatch'), decisions.join());
          });
          await t.test(
            'refuseWith status: the cursor is refused, which these clients report but do not fail the call for',
            () => {
              const { decisions, answers } = measured['status']!;
              assert.ok(decisions.includes('generation-mismatch'), decisions.join());
              assert.ok(answers.includes(409), answers.join());
            },
          );
        });
      }
    }
  }
});

after(() => {
  console.log(
    `| client | server | restart | ${Object.keys(WAYS).join(' | ')} |\n|${'---|'.repeat(3 + Object.keys(WAYS).length)}`,
  );
  for (const row of rows) console.log(row);
});
