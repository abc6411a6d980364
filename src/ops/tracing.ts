/**
 * One span for each exchange, with the verdict as attributes, sent as OTLP over HTTP. The SDK is loaded only where
 * `OTEL_EXPORTER_OTLP_ENDPOINT` is set, and reads the other `OTEL_…` variables itself: headers, sampler, resource.
 *
 * The trace context of a request (`traceparent`, `tracestate`) passes unchanged, so the span of the guard and that of the
 * server are siblings under the client's.
 */
import type { Attributes, SpanContext } from '@opentelemetry/api';
import type { SpanExporter } from '@opentelemetry/sdk-trace-base';
import type { ExchangeReport, Observer } from '../report.ts';
import { type Logger, limited } from './logger.ts';

export interface Tracing {
  readonly observer: Partial<Observer>;
  /** Sends what is still to be sent, for at most {@link FLUSH} ms. */
  close(): Promise<void>;
}

export interface TracingOptions {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly logger: Logger;
  readonly version: string;
  /** Monotonic, in ms. */
  readonly now: () => number;
  /** Loads the SDK. */
  readonly load?: () => Promise<Sdk>;
}

interface Sdk {
  readonly api: typeof import('@opentelemetry/api');
  readonly trace: typeof import('@opentelemetry/sdk-trace-base');
  readonly exporter: typeof import('@opentelemetry/exporter-trace-otlp-http');
  readonly resources: typeof import('@opentelemetry/resources');
}

const FLUSH = 3_000;
const REPEAT = 10_000;

/**
 * @returns null where no endpoint is set or tracing is switched off, and, with a warning, where the endpoint is no URL or
 *   the SDK is not installed.
 */
export async function startTracing(options: TracingOptions): Promise<Tracing | null> {
  const { env, logger, version, now, load = loadSdk } = options;
  const named = endpointOf(env);
  if (named === null || env['OTEL_SDK_DISABLED']?.trim().toLowerCase() === 'true') return null;
  const endpoint = shownUrl(named.url);
  if (endpoint === null) {
    logger.warn({ event: 'tracing-unavailable' }, `${named.variable} is no http or https URL: no spans are sent`);
    return null;
  }
  let sdk: Sdk;
  try {
    sdk = await load();
  } catch (error) {
    logger.warn(
      { event: 'tracing-unavailable', error: (error as NodeJS.ErrnoException).code ?? String(error) },
      'OTEL_EXPORTER_OTLP_ENDPOINT is set, but the OpenTelemetry packages are not installed: no traces are sent. ' +
        'Install with optional dependencies, or remove the variable',
    );
    return null;
  }
  if (env['OTEL_EXPORTER_OTLP_TRACES_PROTOCOL'] === 'grpc' || env['OTEL_EXPORTER_OTLP_PROTOCOL'] === 'grpc') {
    logger.warn({ event: 'tracing-protocol' }, 'traces are sent as http/json, not as grpc: the port is usually 4318');
  }
  const { api, trace, exporter, resources } = sdk;
  const warn = limited(logger, 'tracing', REPEAT, now);
  let failing = false;
  const failed = (message: string): void => {
    failing = true;
    warn({ endpoint, error: saidBy(message) }, `spans cannot be sent to ${endpoint}`);
  };
  const sent = (): void => {
    if (failing) logger.info({ event: 'tracing', endpoint }, `spans go to ${endpoint} again`);
    failing = false;
  };
  // The SDK says through this what it could not send; nobody else in this process uses it.
  const silent = (): void => {};
  api.diag.setLogger(
    {
      error: failed,
      warn: (message) => void warn({ error: saidBy(message) }, 'a fault in tracing'),
      info: silent,
      debug: silent,
      verbose: silent,
    },
    { logLevel: api.DiagLogLevel.WARN, suppressOverrideMessage: true },
  );
  const provider = new trace.BasicTracerProvider({
    resource: resources
      .defaultResource()
      .merge(resources.resourceFromAttributes({ 'service.name': 'mcp-resume-guard', 'service.version': version }))
      .merge(resources.detectResources({ detectors: [resources.envDetector] })),
    spanProcessors: [new trace.BatchSpanProcessor(telling(new exporter.OTLPTraceExporter(), sent))],
  });
  const tracer = provider.getTracer('mcp-resume-guard', version);
  logger.info({ event: 'tracing', endpoint }, `spans go to ${endpoint}`);
  return {
    observer: {
      exchange(report) {
        const end = Date.now();
        const parent = parentOf(report.traceparent());
        const context = parent === null ? api.ROOT_CONTEXT : api.trace.setSpanContext(api.ROOT_CONTEXT, parent);
        const span = tracer.startSpan(
          `${report.method} ${report.route.replace(/^\*/, '')}`,
          { kind: api.SpanKind.SERVER, startTime: end - report.duration, attributes: attributesOf(report) },
          context,
        );
        if (report.error !== null) span.setStatus({ code: api.SpanStatusCode.ERROR, message: report.error });
        span.end(end);
      },
    },
    async close() {
      let timer: NodeJS.Timeout | undefined;
      const patience = new Promise<void>((resolve) => {
        timer = setTimeout(() => {
          failed(`what was left could not be sent within ${FLUSH} ms`);
          resolve();
        }, FLUSH);
      });
      await Promise.race([provider.shutdown().catch((error: unknown) => failed(String(error))), patience]);
      clearTimeout(timer);
      api.diag.disable();
    },
  };
}

async function loadSdk(): Promise<Sdk> {
  const [api, trace, exporter, resources] = await Promise.all([
    import('@opentelemetry/api'),
    import('@opentelemetry/sdk-trace-base'),
    import('@opentelemetry/exporter-trace-otlp-http'),
    import('@opentelemetry/resources'),
  ]);
  return { api, trace, exporter, resources };
}

const TRACEPARENT = /^(?!ff)[\da-f]{2}-(?!0{32})([\da-f]{32})-(?!0{16})([\da-f]{16})-([\da-f]{2})(-.*)?$/;

/** W3C Trace Context, section 3.2: version 00 has these four parts and no more; a later one may have more. */
export function parentOf(traceparent: string | null): SpanContext | null {
  const match = TRACEPARENT.exec(traceparent?.trim() ?? '');
  if (match === null || (match[4] !== undefined && match[0].startsWith('00'))) return null;
  const [, traceId = '', spanId = '', flags = ''] = match;
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & 1, isRemote: true };
}

/** What the log line has, under OpenTelemetry's names where it has some. */
function attributesOf(report: ExchangeReport): Attributes {
  const own: Readonly<Record<string, string | number | boolean | null>> = {
    route: report.route,
    rule: report.rule,
    verdict: report.verdict,
    outcome: report.outcome,
    proof: report.proof,
    refusal: report.refusal,
    observed: report.observed,
    session: report.session(),
    cursor: report.cursor(),
    stream: report.stream?.kind ?? null,
    events: report.events,
    answers: report.answers,
    end: report.end,
    head_ms: report.headAfter,
    first_byte_ms: report.firstByteAfter,
  };
  const attributes: Attributes = { 'http.request.method': report.method, 'url.path': report.path };
  if (report.status !== 0) attributes['http.response.status_code'] = report.status;
  if (report.error !== null) attributes['error.type'] = report.error;
  for (const [name, value] of Object.entries(own)) {
    if (value !== null) attributes[`mcp_resume_guard.${name}`] = value;
  }
  return attributes;
}

/** Where the OTLP exporter sends spans, as its specification has it: the variable for traces is a whole URL. */
function endpointOf(env: TracingOptions['env']): { readonly variable: string; readonly url: string } | null {
  const { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: whole, OTEL_EXPORTER_OTLP_ENDPOINT: base } = env;
  if (whole) return { variable: 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', url: whole };
  return base ? { variable: 'OTEL_EXPORTER_OTLP_ENDPOINT', url: `${base.replace(/\/$/, '')}/v1/traces` } : null;
}

/** Without credentials and query, which may be a key; null for what is no URL of a collector. */
function shownUrl(text: string): string | null {
  if (!/^https?:/i.test(text) || !URL.canParse(text)) return null;
  const { origin, pathname } = new URL(text);
  return origin + pathname;
}

/** The exporter, which also tells of each batch that arrived; the SDK itself tells of failures alone. */
function telling(exporter: SpanExporter, arrived: () => void): SpanExporter {
  return {
    export: (spans, done) =>
      exporter.export(spans, (result) => {
        if (result.error === undefined) arrived();
        done(result);
      }),
    forceFlush: async () => exporter.forceFlush?.(),
    shutdown: () => exporter.shutdown(),
  };
}

/** The SDK's messages are text, or JSON of an error with its stack, and may go on for pages. */
function saidBy(message: string): string {
  const { code, message: inner } = asObject(message);
  return String(code ?? (inner || message))
    .split('\n', 1)[0]!
    .slice(0, 300);
}

function asObject(text: string): Readonly<Record<string, unknown>> {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}
