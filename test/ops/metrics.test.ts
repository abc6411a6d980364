import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Histogram, Registry } from 'prom-client';
import { RULES } from '../../src/core/decide.ts';
import { OUTCOMES } from '../../src/core/replay.ts';
import { createHistogram } from '../../src/ops/histogram.ts';
import { createMetrics, type Metrics } from '../../src/ops/metrics.ts';
import { startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { answerEmpty, cutPost, finishedPost, openSession } from '../support/session.ts';
import { report } from './reports.ts';

/** Section 11 of the contract, with the labels. */
const NAMES: Readonly<Record<string, readonly string[]>> = {
  resumes_total: ['verdict', 'rule'],
  replays_total: ['outcome'],
  terminal_events_total: ['kind'],
  duplicates_total: ['kind', 'action'],
  storm_requests_absorbed_total: [],
  generations_total: ['cause'],
  sessions: [],
  streams_open: ['kind'],
  events_total: [],
  tap_blind_total: ['cause'],
  store_pending: [],
  store_errors_total: [],
  store_dropped_total: [],
  exchange_seconds: [],
  first_byte_seconds: [],
  event_delay_seconds: [],
};

const nothing = { sessions: () => 0, storeErrors: () => 0, storeDropped: () => 0, storePending: () => 0 };

/** The value of one sample, name without prefix, labels as they are written. */
async function sample({ registry }: Metrics, name: string): Promise<number | undefined> {
  const lines = (await registry.metrics()).split('\n');
  const line = lines.find((text) => text.startsWith(`mcp_resume_guard_${name} `));
  return line === undefined ? undefined : Number(line.slice(line.lastIndexOf(' ')));
}

describe('metrics', () => {
  for (const [name, labels] of Object.entries(NAMES)) {
    test(`${name} is there, with its labels`, async () => {
      const metric = createMetrics(nothing).registry.getSingleMetric(`mcp_resume_guard_${name}`);
      assert.ok(metric);
      assert.deepEqual((metric as unknown as { labelNames: string[] }).labelNames, labels);
    });
  }

  test('have nothing else of ours, and the process beside', async () => {
    const names = createMetrics(nothing)
      .registry.getMetricsAsArray()
      .map(({ name }) => name);
    const own = names.filter((name) => name.startsWith('mcp_resume_guard_'));
    assert.deepEqual(own.map((name) => name.replace('mcp_resume_guard_', '')).sort(), Object.keys(NAMES).sort());
    for (const name of ['process_resident_memory_bytes', 'process_open_fds', 'nodejs_eventloop_lag_p99_seconds']) {
      assert.ok(names.includes(name), name);
    }
  });

  for (const { name } of RULES) {
    test(`rule ${name} is at zero before it first fits`, async () => {
      const metrics = createMetrics(nothing);
      const lines = (await metrics.registry.metrics()).split('\n');
      const own = lines.filter(
        (line) => line.startsWith('mcp_resume_guard_resumes_total{') && line.includes(`rule="${name}"`),
      );
      assert.ok(own.length >= 1 && own.length <= 2, own.join());
      assert.ok(own.every((line) => line.endsWith('} 0')));
    });
  }

  for (const outcome of [...OUTCOMES, 'late-empty']) {
    test(`outcome ${outcome} is at zero before it first comes`, async () => {
      assert.equal(await sample(createMetrics(nothing), `replays_total{outcome="${outcome}"}`), 0);
    });
  }

  test('show the failures of the store as they are, however often they are read', async () => {
    const metrics = createMetrics({ ...nothing, storeErrors: () => 3 });
    assert.equal(await sample(metrics, 'store_errors_total'), 3);
    assert.equal(await sample(metrics, 'store_errors_total'), 3);
  });

  test('count events between two readings once', async () => {
    const metrics = createMetrics(nothing);
    metrics.observer.events(5);
    assert.equal(await sample(metrics, 'events_total'), 5);
    metrics.observer.events(2);
    assert.equal(await sample(metrics, 'events_total'), 7);
  });

  test('count what would have been done where it is only observed', async () => {
    const metrics = createMetrics(nothing);
    metrics.observer.decided(report({ rule: 'below-replay-floor', verdict: 'refuse', observed: true }));
    assert.equal(await sample(metrics, 'resumes_total{verdict="refuse",rule="below-replay-floor"}'), 1);
    assert.equal(await sample(metrics, 'storm_requests_absorbed_total'), 1);
  });

  test('are in seconds', async () => {
    const metrics = createMetrics(nothing);
    metrics.observer.exchange(report({ duration: 1_500, firstByteAfter: 20 }));
    assert.equal(await sample(metrics, 'exchange_seconds_sum'), 1.5);
    assert.equal(await sample(metrics, 'first_byte_seconds_sum'), 0.02);
  });

  test("histograms read as the library's own would", async () => {
    const [name, help, bounds] = ['a_seconds', 'Seconds of a.', [0.0005, 0.001, 2.5, 300]] as const;
    const [ours, theirs] = [new Registry(), new Registry()];
    const observe = createHistogram(ours, name, help, bounds);
    const histogram = new Histogram({ name, help, buckets: [...bounds], registers: [theirs] });
    assert.equal(await ours.metrics(), await theirs.metrics());
    for (const value of [0, 0.0005, 0.00051, 2.5, 2.6, 300, 300.1, 1e9]) {
      observe(value);
      histogram.observe(value);
      assert.equal(await ours.metrics(), await theirs.metrics(), String(value));
    }
  });
});

test('traffic shows in every metric that it should, and no session, cursor or credential in any', async (t) => {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  const session = await openSession(client, upstream, 'secret-session', { token: 'secret-token' });
  const options = { session, token: 'secret-token' };
  await finishedPost(client, upstream, 1, options, priming('secret-e1'), block({ id: 'secret-e2', data: result(1) }));
  await cutPost(client, upstream, 2, options, priming('secret-f1'));
  upstream.handle((exchange) =>
    exchange.values('last-event-id').length > 0 ? answerEmpty(exchange) : exchange.json(405, '{}', { Allow: 'POST' }),
  );
  for (const lei of ['secret-e2', 'secret-f1', 'secret-f1', 'secret-f1']) {
    await (await client.get({ ...options, lei })).text();
  }
  assert.equal(await guard.metric('resumes_total', { rule: 'finished', verdict: 'strip' }), 1);
  assert.equal(await guard.metric('replays_total', { outcome: 'empty' }), 2, 'the first, and the probe at once');
  assert.equal(await guard.metric('storm_requests_absorbed_total'), 1);
  assert.equal(await guard.metric('terminal_events_total', { kind: 'result' }), 1);
  assert.equal(await guard.metric('sessions'), 1);
  assert.ok((await guard.metric('events_total')) >= 3);
  assert.doesNotMatch(await guard.admin('/metrics'), /secret/);
});
