/**
 * A server whose sessions outlive its event store: it restarts, keeps every session and can replay nothing. How long does
 * the call that was pending stay pending? `npm test` prints what was measured.
 */
import assert from 'node:assert/strict';
import { after, describe, type TestContext, test } from 'node:test';
import { type ClientVersion, connectSdk, type Exchange } from '../support/sdk-clients.ts';
import { type Cutter, startCutter } from '../support/sdk-cutter.ts';
import { take, type Way } from '../support/sdk-guard.ts';
import { type SdkServer, SERVER_VERSIONS, type ServerVersion, startSdkServer } from '../support/sdk-server.ts';
import { eventually, pause } from '../support/waiting.ts';

/** The client's own timer for the call, in milliseconds. */
const TIMER = 8_000;

type Outage = (server: SdkServer, cutter: Cutter) => Promise<void>;

/** A restart that lasts `gap` milliseconds. */
const restart =
  (gap: number): Outage =>
  async (server) => {
    await server.stopListening();
    server.store.empty();
    await pause(gap);
    await server.listenAgain();
  };

/** A client's first attempt, after 1 s, meets a refused connect or does not. */
const RESTARTS: Readonly<Record<string, Outage>> = {
  'restart of 1.3 s': restart(1_300),
  'restart of 20 ms': restart(20),
};

/** The server drops its old events, and soon after the client loses the connection of its call. */
const evict: Outage = async (server, cutter) => {
  server.store.empty();
  assert.ok(cutter.cut('"gate"') >= 1, 'something was cut');
};

const WAYS: Readonly<Record<string, Way>> = {
  direct: 'direct',
  auto: { refuseWith: 'auto' },
  status: { refuseWith: 'status' },
  event: { refuseWith: 'event' },
};

interface Measured {
  /** Milliseconds from the outage to the end of the call. */
  readonly pending: number;
  readonly error: string;
  readonly decisions: readonly string[];
  /** Answers to the client's GETs after the outage. */
  readonly answers: readonly number[];
}

async function measure(
  t: TestContext,
  way: Way,
  client: ClientVersion,
  version: ServerVersion,
  outage: Outage,
): Promise<Measured> {
  const server = await startSdkServer(version);
  t.after(() => server.close());
  const { url, decisions } = await take(t, way, server.url);
  const exchanges: Exchange[] = [];
  const cutter = await startCutter(url);
  t.after(() => cutter.close());
  const connected = await connectSdk(client, cutter.url, { onexchange: (exchange) => exchanges.push(exchange) });
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
  const broken = performance.now();
  await outage(server, cutter);
  const error = await ended;
  return {
    pending: performance.now() - broken,
    error,
    decisions: decisions(),
    answers: exchanges.slice(before).map(({ status }) => status),
  };
}

const rows: string[] = [];
const timedOut = ({ error }: Measured): boolean => /timed out/i.test(error);

type Table = Readonly<Record<'direct' | 'auto' | 'status' | 'event', Measured>>;

/** Measures all ways at once, and notes a row of the table. */
async function measureAll(
  t: TestContext,
  name: string,
  client: ClientVersion,
  version: ServerVersion,
  outage: Outage,
): Promise<Table> {
  const names = Object.keys(WAYS);
  const all = await Promise.all(names.map((way) => measure(t, WAYS[way]!, client, version, outage)));
  for (const [at, { pending, error, decisions, answers }] of all.entries()) {
    const said = `${Math.round(pending)} ms, ${error}; GETs: ${answers.join(' ')}; ${decisions.join(', ')}`;
    t.diagnostic(`${names[at]}: ${said}`);
  }
  const cells = all.map((one) => (timedOut(one) ? 'until its own timer' : `${(one.pending / 1_000).toFixed(1)} s`));
  rows.push(`| ${[client, version, name, ...cells].join(' | ')} |`);
  return Object.fromEntries(names.map((way, at) => [way, all[at]!])) as unknown as Table;
}

function assertRejectedByUs({ error, pending }: Measured): void {
  assert.match(error, /^-32010 /);
  assert.ok(pending < TIMER / 2, `${pending} ms`);
}

describe('a server that keeps its sessions and loses their events', { concurrency: 2 }, () => {
  for (const version of SERVER_VERSIONS) {
    for (const client of ['1.32', '2'] as const) {
      for (const [name, outage] of Object.entries(RESTARTS)) {
        test(`a call of a ${client} client pending over a ${name} of a ${version} server without its events`, async (t) => {
          const { direct, auto, status, event } = await measureAll(t, name, client, version, outage);
          assert.ok(timedOut(direct), `direct it is pending until its own timer fires: ${direct.error}`);
          assertRejectedByUs(event);
          // These clients report a status and leave the call pending.
          assert.ok(status.answers.includes(409), status.answers.join());
          // One attempt was used up on the refused connect, and `auto` wants to see the client twice.
          if (name === 'restart of 20 ms') assertRejectedByUs(auto);
          for (const { decisions } of [auto, status, event]) {
            assert.ok(decisions.includes('generation-mismatch'), decisions.join());
          }
        });
      }
    }
  }

  for (const client of ['1.32', '2'] as const) {
    test(`a call of a ${client} client cut from a 2 server that has dropped its events`, async (t) => {
      const { direct, auto, status, event } = await measureAll(t, 'events dropped', client, '2', evict);
      assert.ok(timedOut(direct), `direct it is pending until its own timer fires: ${direct.error}`);
      assertRejectedByUs(event);
      assertRejectedByUs(auto);
      assert.ok(status.answers.includes(409), status.answers.join());
      for (const { decisions } of [auto, status, event]) assert.equal(decisions[0], 'in-window empty');
    });

    // It holds the replay open, which is also what a server does whose tool is still at work.
    test(`a call of a ${client} client cut from a 1.32 server that has dropped its events is pending until its timer, on every way`, async (t) => {
      const table = await measureAll(t, 'events dropped', client, '1.32', evict);
      for (const measured of Object.values(table)) assert.ok(timedOut(measured), measured.error);
    });

    for (const way of ['direct', { upstream: { durableEvents: true } }] as const) {
      const name = way === 'direct' ? 'direct' : 'proxy with durableEvents';
      test(`${name}: a call of a ${client} client pending over a restart that loses no events gets its result`, async (t) => {
        const outcome = await measure(t, way, client, '2', async (server) => {
          await server.stopListening();
          await pause(20);
          await server.listenAgain();
          server.openGate('survived');
        });
        assert.equal(outcome.error, 'resolved with survived');
      });
    }
  }
});

after(() => {
  const heads = ['client', 'server', 'what happens', ...Object.keys(WAYS)];
  console.log(`| ${heads.join(' | ')} |\n|${'---|'.repeat(heads.length)}`);
  for (const row of rows.sort()) console.log(row);
});
