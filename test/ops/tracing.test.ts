/** Traces against a collector of our own on a loopback address: what is sent, under whom, and what never is. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { pino } from 'pino';
import { parentOf, startTracing } from '../../src/ops/tracing.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { answerEmpty, cutPost, finishedPost, forwardedGet, openSession } from '../support/session.ts';
import { bell, eventually, within } from '../support/waiting.ts';
import { plainReport, report } from './reports.ts';

interface Span {
  readonly traceId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly status: { readonly code?: number; readonly message?: string };
  readonly attributes: Readonly<Record<string, unknown>>;
}

interface Collector {
  readonly url: string;
  readonly bodies: string[];
  readonly fields: IncomingHttpHeaders[];
  readonly paths: string[];
  spans(): Span[];
  resource(): Readonly<Record<string, unknown>>;
  until(count: number): Promise<Span[]>;
}

type Attribute = { key: string; value: Record<string, unknown> };
const plainly = (attributes: readonly Attribute[]): Record<string, unknown> =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, Object.values(value)[0]]));

/** Takes OTLP over HTTP as JSON, and answers with these statuses, the last one from then on. */
async function startCollector(t: TestContext, ...statuses: number[]): Promise<Collector> {
  const bodies: string[] = [];
  const fields: IncomingHttpHeaders[] = [];
  const paths: string[] = [];
  const changed = bell();
  const server = createServer((request, response) => {
    let body = '';
    request.setEncoding('utf8').on('data', (chunk: string) => {
      body += chunk;
    });
    request.on('end', () => {
      bodies.push(body);
      fields.push(request.headers);
      paths.push(request.url ?? '');
      const status = statuses.length > 1 ? statuses.shift() : statuses[0];
      response.writeHead(status ?? 200, { 'Content-Type': 'application/json' }).end('{}');
      changed.ring();
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const parts = () => bodies.flatMap((body) => JSON.parse(body).resourceSpans);
  const spans = (): Span[] =>
    parts()
      .flatMap(({ scopeSpans }) => scopeSpans)
      .flatMap((scope) => scope.spans)
      .map((span) => ({ ...span, attributes: plainly(span.attributes) }));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    bodies,
    fields,
    paths,
    spans,
    resource: () => plainly(parts()[0].resource.attributes),
    until: (count) =>
      changed.until(
        `${count} spans`,
        () => (spans().length >= count ? spans() : undefined),
        10_000,
        () => JSON.stringify(spans()),
      ),
  };
}

/** Sets variables of this process until the test is over. */
function setEnv(t: TestContext, variables: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(variables)) {
    const before = process.env[name];
    process.env[name] = value;
    t.after(() => {
      if (before === undefined) delete process.env[name];
      else process.env[name] = before;
    });
  }
}

/** A guard that sends its traces to the collector, ten times a second. */
async function traced(t: TestContext, collector: Collector): Promise<Guard> {
  setEnv(t, { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, OTEL_BSP_SCHEDULE_DELAY: '100' });
  return startGuard(t);
}

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const SPAN = 'b7ad6b7169203331';
const TRACEPARENT = `00-${TRACE}-${SPAN}-01`;

describe('with OTEL_EXPORTER_OTLP_ENDPOINT', () => {
  test('each exchange is a span with its verdict, under the span of the client', async (t) => {
    const collector = await startCollector(t);
    const guard = await traced(t, collector);
    const { client, upstream } = guard;
    const session = await openSession(client, upstream, 'secret-session', { token: 'secret-token' });
    const fields = { traceparent: TRACEPARENT, tracestate: 'vendor=1' };
    const options = { session, token: 'secret-token', fields };
    await finishedPost(client, upstream, 1, options, priming('secret-e1'), block({ id: 'secret-e2', data: result(1) }));
    const { reply, exchange } = await forwardedGet(client, upstream, { ...options, lei: 'secret-e2' });
    assert.deepEqual([exchange.field('traceparent'), exchange.field('tracestate')], [TRACEPARENT, 'vendor=1']);
    await exchange.json(405, '{}', { Allow: 'POST' });
    await reply.text();
    const spans = await collector.until(3);
    const [initialize, post, get] = spans;
    assert.equal(initialize?.parentSpanId, undefined);
    assert.deepEqual([post?.traceId, post?.parentSpanId, post?.name, post?.kind], [TRACE, SPAN, 'POST /', 2]);
    assert.deepEqual(
      [post?.attributes['mcp_resume_guard.events'], post?.attributes['mcp_resume_guard.answers']],
      [2, 1],
    );
    assert.equal(get?.parentSpanId, SPAN);
    const { 'mcp_resume_guard.session': shown, ...attributes } = get?.attributes ?? {};
    assert.match(String(shown), /^[0-9a-f]{12}$/);
    for (const [name, value] of Object.entries({
      'http.request.method': 'GET',
      'http.response.status_code': 405,
      'url.path': '/mcp',
      'mcp_resume_guard.route': '*/',
      'mcp_resume_guard.rule': 'finished',
      'mcp_resume_guard.verdict': 'strip',
      'mcp_resume_guard.proof': 'event-id',
      'mcp_resume_guard.observed': false,
      'mcp_resume_guard.end': 'ended',
    })) {
      assert.equal(attributes[name], value, name);
    }
    assert.ok(!('mcp_resume_guard.outcome' in attributes), 'what is not known is left out');
    assert.doesNotMatch(collector.bodies.join(), /secret/);
    assert.deepEqual(new Set(collector.paths), new Set(['/v1/traces']));
  });

  test('an empty replay says so, and the span lasts as long as its exchange', async (t) => {
    const collector = await startCollector(t);
    const { client, upstream } = await traced(t, collector);
    const started = Date.now();
    const session = await openSession(client, upstream, 's-1');
    await cutPost(client, upstream, 1, { session }, priming('e1'));
    upstream.handle((exchange) => answerEmpty(exchange));
    const reply = await client.get({ session, lei: 'e1' });
    assert.equal((await reply.head).status, 409);
    await reply.text();
    const span = (await collector.until(3)).find(({ name }) => name.startsWith('GET'));
    assert.deepEqual(
      ['rule', 'verdict', 'outcome', 'refusal'].map((name) => span?.attributes[`mcp_resume_guard.${name}`]),
      ['in-window', 'forward', 'empty', 'empty-replay'],
    );
    const [from, to] = [Number(span?.startTimeUnixNano) / 1e6, Number(span?.endTimeUnixNano) / 1e6];
    // Of two clocks, one counts whole milliseconds.
    assert.ok(from >= started - 2 && from <= to && to <= Date.now() + 2, `${started} ${from} ${to} ${Date.now()}`);
  });

  test('a failure is an error, with its name', async (t) => {
    const collector = await startCollector(t);
    const { client, upstream } = await traced(t, collector);
    await upstream.kill();
    assert.equal((await (await client.post(1)).head).status, 502);
    const [span] = await collector.until(1);
    assert.deepEqual(span?.status, { code: 2, message: 'upstream-refused' });
    assert.equal(span?.attributes['error.type'], 'upstream-refused');
    await upstream.restart();
  });

  test('what is not sent yet is sent at the end', async (t) => {
    const collector = await startCollector(t);
    setEnv(t, { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, OTEL_BSP_SCHEDULE_DELAY: '60000' });
    const { client, upstream, proxy } = await startGuard(t);
    await openSession(client, upstream, 's-1');
    assert.equal(collector.spans().length, 0);
    await within('the proxy to close', proxy.close(), 10_000);
    assert.equal(collector.spans().length, 1);
  });

  test('the resource is named, and the usual variables count', async (t) => {
    const collector = await startCollector(t);
    setEnv(t, {
      OTEL_EXPORTER_OTLP_HEADERS: 'x-tenant=blue',
      OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment.name=test',
    });
    const { client, upstream } = await traced(t, collector);
    await openSession(client, upstream, 's-1');
    await collector.until(1);
    const resource = collector.resource();
    assert.deepEqual(
      [resource['service.name'], resource['service.version'], resource['deployment.environment.name']],
      ['mcp-resume-guard', 'unknown', 'test'],
    );
    assert.equal(collector.fields[0]?.['x-tenant'], 'blue');
  });

  test('the service may have another name', async (t) => {
    const collector = await startCollector(t);
    setEnv(t, { OTEL_SERVICE_NAME: 'guard-of-search' });
    const { client, upstream } = await traced(t, collector);
    await openSession(client, upstream, 's-1');
    await collector.until(1);
    assert.equal(collector.resource()['service.name'], 'guard-of-search');
  });

  test('a sampler may leave spans out; the client may have decided for it', async (t) => {
    const collector = await startCollector(t);
    setEnv(t, { OTEL_TRACES_SAMPLER: 'parentbased_always_off' });
    const { client, upstream } = await traced(t, collector);
    await openSession(client, upstream, 's-1');
    const options = { session: 's-1', fields: { traceparent: TRACEPARENT } };
    await finishedPost(client, upstream, 1, options, block({ id: 'e1', data: result(1) }));
    const spans = await collector.until(1);
    assert.deepEqual(
      spans.map(({ name, traceId }) => [name, traceId]),
      [['POST /', TRACE]],
    );
  });

  test('the log says where spans go', async (t) => {
    const collector = await startCollector(t);
    const { logs } = await traced(t, collector);
    const line = logs.find(({ event }) => event === 'tracing');
    assert.deepEqual(
      [line?.['msg'], line?.['endpoint']],
      [`spans go to ${collector.url}/v1/traces`, `${collector.url}/v1/traces`],
    );
  });

  test('a collector that fails costs one warning, and one line when it takes spans again', async (t) => {
    const collector = await startCollector(t, 400, 400, 200);
    const guard = await traced(t, collector);
    const { client, upstream } = guard;
    const tracing = (level: number) => guard.logs.filter((line) => line['event'] === 'tracing' && line.level === level);
    for (const [index, name] of ['s-1', 's-2', 's-3'].entries()) {
      await openSession(client, upstream, name);
      await eventually(`batch ${index + 1}`, () => collector.bodies.length > index, 10_000);
    }
    await eventually('the good news', () => tracing(30).length === 2, 10_000);
    assert.deepEqual(
      [...tracing(40), ...tracing(30).slice(1)].map(({ msg }) => msg),
      [`spans cannot be sent to ${collector.url}/v1/traces`, `spans go to ${collector.url}/v1/traces again`],
    );
  });

  test('a collector that is away is warned of, at the latest at the end', async (t) => {
    setEnv(t, { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1', OTEL_BSP_SCHEDULE_DELAY: '100' });
    const { client, upstream, proxy, warnings } = await startGuard(t);
    await openSession(client, upstream, 's-1');
    await within('the proxy to close', proxy.close(), 10_000);
    assert.deepEqual(
      warnings().map(({ msg }) => msg),
      ['spans cannot be sent to http://127.0.0.1:1/v1/traces'],
    );
  });
});

describe('without it', () => {
  const quiet = pino({ level: 'silent' });
  const never = async (): Promise<never> => assert.fail('the SDK is not to be loaded');

  for (const [name, env] of [
    ['nothing is loaded', {}],
    ['an empty one is none', { OTEL_EXPORTER_OTLP_ENDPOINT: '' }],
    ['OTEL_SDK_DISABLED wins', { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1', OTEL_SDK_DISABLED: 'TRUE' }],
  ] as const) {
    test(name, async () => {
      assert.equal(await startTracing({ env, logger: quiet, version: '1', now: () => 0, load: never }), null);
    });
  }

  test('the trace context passes all the same', async (t) => {
    const { client, upstream } = await startGuard(t);
    const reply = await client.get({ fields: { traceparent: TRACEPARENT, tracestate: 'a=1,b=2' } });
    const exchange = await upstream.next();
    assert.deepEqual([exchange.field('traceparent'), exchange.field('tracestate')], [TRACEPARENT, 'a=1,b=2']);
    await exchange.answer(405, { Allow: 'POST' });
    await reply.text();
  });
});

test('packages that are missing are said clearly, and the guard goes on', async () => {
  const lines: Record<string, unknown>[] = [];
  const logger = pino({}, { write: (line) => void lines.push(JSON.parse(line)) });
  const tracing = await startTracing({
    env: { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:4318' },
    logger,
    version: '1',
    now: () => 0,
    load: async () => {
      throw Object.assign(new Error('Cannot find package'), { code: 'ERR_MODULE_NOT_FOUND' });
    },
  });
  assert.equal(tracing, null);
  assert.deepEqual([lines[0]?.['level'], lines[0]?.['error']], [40, 'ERR_MODULE_NOT_FOUND']);
  assert.match(String(lines[0]?.['msg']), /OpenTelemetry packages are not installed: no traces are sent/);
});

for (const [name, env, expected] of [
  [
    'credentials and a query are not shown',
    { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://user:hush@collector.example/spans?key=hush' },
    /^spans go to https:\/\/collector\.example\/spans$/,
  ],
  [
    'the endpoint for traces is a whole URL and wins',
    { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1', OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'http://127.0.0.1:2/' },
    /^spans go to http:\/\/127\.0\.0\.1:2\/$/,
  ],
  [
    'an endpoint without a scheme is warned of',
    { OTEL_EXPORTER_OTLP_ENDPOINT: 'localhost:4318' },
    /^OTEL_EXPORTER_OTLP_ENDPOINT is no http or https URL: no spans are sent$/,
  ],
] as const) {
  test(name, async (t) => {
    const lines: string[] = [];
    const logger = pino({}, { write: (line) => void lines.push(line) });
    const tracing = await startTracing({ env, logger, version: '1', now: () => 0 });
    t.after(() => tracing?.close());
    assert.match(JSON.parse(lines[0] ?? '{}').msg, expected);
    assert.doesNotMatch(lines.join(), /hush/);
  });
}

test('an endpoint for grpc is warned of', async (t) => {
  const lines: Record<string, unknown>[] = [];
  const tracing = await startTracing({
    env: { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:4317', OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' },
    logger: pino({}, { write: (line) => void lines.push(JSON.parse(line)) }),
    version: '1',
    now: () => 0,
  });
  t.after(() => tracing?.close());
  assert.match(String(lines[0]?.['msg']), /as http\/json, not as grpc/);
});

test('a collector that never answers does not hold up the end', async (t) => {
  const server = createServer(() => {}).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  setEnv(t, { OTEL_EXPORTER_OTLP_ENDPOINT: url });
  const quiet = pino({ level: 'silent' });
  const tracing = await startTracing({ env: process.env, logger: quiet, version: '1', now: () => 0 });
  tracing?.observer.exchange?.(report());
  tracing?.observer.exchange?.(plainReport());
  await within('the end', tracing?.close() ?? Promise.reject(new Error('no tracing')), 6_000);
});

describe('the field traceparent (W3C Trace Context)', () => {
  for (const [name, value, expected] of [
    ['with the sampled flag', TRACEPARENT, 1],
    ['without it', `00-${TRACE}-${SPAN}-00`, 0],
    ['with flags of the future', `00-${TRACE}-${SPAN}-fe`, 0],
    ['of a later version with more parts', `cc-${TRACE}-${SPAN}-01-what-comes`, 1],
    ['of version 00 with more parts', `00-${TRACE}-${SPAN}-01-more`, null],
    ['of version ff', `ff-${TRACE}-${SPAN}-01`, null],
    ['without a trace', `00-${'0'.repeat(32)}-${SPAN}-01`, null],
    ['without a span', `00-${TRACE}-${'0'.repeat(16)}-01`, null],
    ['in capitals', TRACEPARENT.toUpperCase(), null],
    ['that is too short', `00-${TRACE}-${SPAN}`, null],
    ['with something behind it', `${TRACEPARENT}x`, null],
    ['that is empty', '', null],
    ['that is not there', null, null],
  ] as const) {
    test(`${name}`, () => {
      const parent = parentOf(value);
      const wanted = { traceId: TRACE, spanId: SPAN, traceFlags: expected, isRemote: true };
      assert.deepEqual(parent, expected === null ? null : wanted);
    });
  }
});
