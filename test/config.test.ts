import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  type Config,
  configFrom,
  type Fault,
  type Loaded,
  loadConfig,
  REFUSABLE,
  type Sources,
} from '../src/config.ts';
import { KEYS, SETTINGS, variableOf } from '../src/config-schema.ts';
import { GuardError } from '../src/errors.ts';

const PEM = '-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n';

/** Sources with an upstream, a made-up file system below /etc/guard and nothing else. */
function load(sources: Sources & { file?: string; files?: Record<string, string> } = {}): Loaded {
  const { file, files = {}, env = {}, options = {}, ...rest } = sources;
  const known: Record<string, string> = { ...files, ...(file === undefined ? {} : { '/etc/guard/guard.yaml': file }) };
  const named = file !== undefined || 'upstreamUrl' in options || /UPSTREAM(,|$)|ROUTES/.test(Object.keys(env).join());
  return loadConfig({
    cwd: '/etc/guard',
    readFile: (path) => {
      const text = known[path];
      if (text === undefined) throw Object.assign(new Error('ENOENT'), { code: 'ENOENT' });
      return text;
    },
    env: file === undefined ? env : { MCP_RESUME_GUARD_CONFIG: 'guard.yaml', ...env },
    options: named ? options : { upstreamUrl: 'http://localhost:3001/mcp', ...options },
    ...rest,
  });
}

function configOf(loaded: Loaded): Config {
  if (!loaded.ok) assert.fail(JSON.stringify(loaded.faults, null, 2));
  return loaded.config;
}

function faultsOf(loaded: Loaded): readonly Fault[] {
  assert.equal(loaded.ok, false, 'there should be faults');
  return loaded.ok ? [] : loaded.faults;
}

/** The only fault, as one sentence. */
function faultOf(loaded: Loaded): string {
  const faults = faultsOf(loaded);
  assert.equal(faults.length, 1, JSON.stringify(faults, null, 2));
  return `${faults[0]?.where}: ${faults[0]?.problem}`;
}

describe('defaults', () => {
  test('an upstream alone is enough', () => {
    const { routes, ...config } = configOf(load());
    assert.deepEqual(config, {
      upstream: { durableEvents: false },
      listen: { host: '127.0.0.1', port: 8808 },
      admin: { listen: { host: '127.0.0.1', port: 8809 }, isDefault: true, open: false },
      mode: 'enforce',
      unrecorded: 'forward',
      deliveryProof: 'connection',
      refuseWith: 'auto',
      refusals: {},
      proxyStatus: true,
      dedupe: true,
      preserveHost: false,
      store: 'memory',
      storeFailure: 'forward',
      replayHold: 2_000,
      replayDeadline: 5_000,
      proofMemory: 60_000,
      sessionMemory: 600_000,
      drainDelay: 0,
      drainTimeout: 10_000,
      keepAlive: null,
      connectTimeout: 5_000,
      tap: { maxHeldBytes: 1_048_576 },
      log: { level: 'info', format: 'json' },
      bounds: {
        memory: 67_108_864,
        sessions: 10_000,
        streamsPerSession: 1_000,
        eventIdsPerStream: 1_000,
        finishedStreamMemory: 600_000,
        openStreamMemory: 3_600_000,
        eventIdBytes: 256,
        concurrentStreams: 10_000,
        kernelReading: 20,
        connections: 20_000,
        fieldBytes: 131_072,
        bodyBytes: 0,
        headTimeout: 30_000,
      },
    });
    assert.equal(routes.length, 1);
  });

  test('the log is for a person on a terminal, and only there', () => {
    assert.equal(configOf(load({ terminal: true })).log.format, 'pretty');
    assert.equal(configOf(load({ terminal: true, options: { logFormat: 'json' } })).log.format, 'json');
  });

  test('without an upstream anywhere the fault says how to name one', () => {
    assert.match(faultOf(load({ file: 'mode: observe' })), /^upstream: is missing: .*MCP_RESUME_GUARD_UPSTREAM/);
  });
});

describe('where requests go', () => {
  const route = (url: string) => configOf(load({ options: { upstreamUrl: url } })).routes[0];

  test('a URL with a path guards that path, and sends every other to the same server', () => {
    const { name, host, prefix, guarded, upstream } = route('http://LOCALHOST:3001/mcp') ?? {};
    assert.deepEqual(
      { name, host, prefix, guarded, upstream },
      { name: '*/', host: null, prefix: '/', guarded: '/mcp', upstream: 'http://localhost:3001' },
    );
  });

  test('one trailing slash of the path makes no difference', () => {
    assert.equal(route('http://localhost:3001/a/mcp/')?.guarded, '/a/mcp');
  });

  test('a URL without a path guards every path', () => {
    assert.equal(route('http://localhost:3001')?.guarded, null);
    assert.equal(route('http://localhost:3001/')?.guarded, null);
  });

  test('https, IPv6 and default ports are understood', () => {
    assert.equal(route('https://mcp.example.com:443/mcp')?.upstream, 'https://mcp.example.com');
    assert.equal(route('http://[::1]:3001/mcp')?.upstream, 'http://[::1]:3001');
  });

  for (const [url, why] of [
    ['ftp://localhost/mcp', 'an http or https URL'],
    ['redis://localhost', 'an http or https URL'],
    ['http://', 'an http or https URL'],
    ['/mcp', 'an http or https URL'],
    ['localhost:3001/mcp', 'did you mean http://localhost:3001/mcp?'],
    ['3001', 'did you mean http://localhost:3001/mcp?'],
    [':3001', 'did you mean http://localhost:3001/mcp?'],
    ['http://user:secret@localhost/mcp', 'must not hold credentials'],
    ['http://localhost/mcp?key=secret', 'must not hold a query'],
    ['http://localhost/mcp?', 'must not hold a query'],
    ['http://localhost/mcp#top', 'must not hold a fragment'],
  ] as const) {
    test(`the upstream ${url} is refused`, () => {
      const fault = faultOf(load({ options: { upstreamUrl: url } }));
      assert.ok(fault.startsWith('<upstream-url>: '), fault);
      assert.ok(fault.includes(why), fault);
      assert.ok(!fault.includes('secret'), 'a fault repeats no secret');
    });
  }

  test('a URL as argument and as option is one too many', () => {
    const loaded = load({ options: { upstreamUrl: 'http://a', upstream: 'http://b' } });
    assert.match(faultOf(loaded), /^--upstream: is given twice/);
  });

  test('routes guard everything under their path, most special first, with options of their own', () => {
    const { routes } = configOf(
      load({
        file: `
dedupe: false
routes:
  - { path: /, upstream: "http://any:1" }
  - { path: /tools/, upstream: "http://tools:1/", mode: observe, instanceField: X-Pod }
  - { host: MCP.example.com, path: /, upstream: "http://mcp:1", dedupe: true, unrecorded: refuse }
`,
      }),
    );
    assert.deepEqual(
      routes.map(({ name, host, prefix, guarded, upstream }) => [name, host, prefix, guarded, upstream]),
      [
        ['mcp.example.com/', 'mcp.example.com', '/', null, 'http://mcp:1'],
        ['*/tools', null, '/tools', null, 'http://tools:1'],
        ['*/', null, '/', null, 'http://any:1'],
      ],
    );
    assert.deepEqual(
      routes.map(({ mode, dedupe, unrecorded, instanceField }) => [mode, dedupe, unrecorded, instanceField]),
      [
        ['enforce', true, 'refuse', undefined],
        ['observe', false, 'forward', 'x-pod'],
        ['enforce', false, 'forward', undefined],
      ],
    );
  });

  test('the upstream of a route has no path of its own, unless it is the same', () => {
    const file = (url: string) => `routes: [{ path: /a, upstream: "${url}" }]`;
    assert.match(faultOf(load({ file: file('http://a:1/b') })), /routes\[0\]\.upstream: must end after host and port/);
    assert.equal(configOf(load({ file: file('http://a:1/a/') })).routes[0]?.upstream, 'http://a:1');
  });

  test('two routes for the same host and path are refused', () => {
    const file = `
routes:
  - { host: a.example, path: /a, upstream: "http://a:1" }
  - { path: /a, upstream: "http://a:2" }
  - { host: A.example, path: /a/, upstream: "http://a:3" }`;
    assert.equal(faultOf(load({ file })), 'guard.yaml:5 routes[2]: has the host and path of routes[0]');
  });

  test('no routes at all are refused, and so is a route without an upstream', () => {
    assert.match(faultOf(load({ file: 'routes: []' })), /guard\.yaml:1 routes: must have at least one route/);
    assert.match(faultOf(load({ file: 'routes: [{ path: /a }]' })), /routes\[0\]\.upstream: is missing/);
  });

  test('routes and an upstream exclude each other, wherever they come from', () => {
    const file = 'routes: [{ path: /a, upstream: "http://a:1" }]';
    const loaded = load({ file, options: { upstreamUrl: 'http://b' } });
    assert.equal(faultOf(loaded), 'guard.yaml:1 routes: cannot be combined with <upstream-url>: give one of them');
  });
});

describe('precedence', () => {
  const file = 'mode: observe\nreplayHold: 1s\nupstream: { url: "http://file" }';

  test('a file wins over defaults, a variable over the file, an option over the variable', () => {
    const env = { MCP_RESUME_GUARD_REPLAY_HOLD: '2ms' };
    assert.equal(configOf(load({ file })).replayHold, 1_000);
    assert.equal(configOf(load({ file, env })).replayHold, 2);
    assert.equal(configOf(load({ file, env, options: { replayHold: '3ms' } })).replayHold, 3);
    assert.equal(configOf(load({ file, env })).mode, 'observe');
  });

  test('the file that an option names wins over the one that a variable names', () => {
    const files = { '/etc/guard/other.yaml': 'mode: enforce\nupstream: { url: "http://other" }' };
    const config = configOf(load({ file, files, options: { config: 'other.yaml' } }));
    assert.equal(config.routes[0]?.upstream, 'http://other');
  });

  test('an empty variable counts as absent', () => {
    assert.equal(configOf(load({ file, env: { MCP_RESUME_GUARD_MODE: '' } })).mode, 'observe');
  });

  test('--port changes the port alone', () => {
    const listen = (options: Sources['options'] & object, env = {}) => configOf(load({ options, env })).listen;
    assert.deepEqual(listen({ port: '9000' }), { host: '127.0.0.1', port: 9000 });
    assert.deepEqual(listen({ port: '0' }, { MCP_RESUME_GUARD_LISTEN: '[::]:8808' }), { host: '::', port: 0 });
    assert.match(faultOf(load({ options: { port: '65536' } })), /^--port: must be a port from 0 to 65535/);
    assert.match(faultOf(load({ options: { port: '1', listen: 'a:1' } })), /^--port: says the same as --listen/);
  });

  test('--no-admin switches the admin listener off', () => {
    const { admin } = configOf(load({ options: { admin: false } }));
    assert.deepEqual(admin, { listen: null, isDefault: false, open: false });
  });

  test('the admin address is a default until somebody chooses one, be it the same', () => {
    const { admin } = configOf(load({ env: { MCP_RESUME_GUARD_ADMIN: '127.0.0.1:8809' } }));
    assert.equal(admin.isDefault, false);
  });
});

describe('the environment', () => {
  const SAMPLES: Readonly<Record<string, string>> = {
    'upstream.url': 'http://e:1/x',
    'upstream.durableEvents': 'yes',
    'upstream.instanceField': 'X-Pod',
    'upstream.ca': 'ca.pem',
    'upstream.cert': 'cert.pem',
    'upstream.key': 'key.pem',
    routes: '[{"path":"/e","upstream":"http://e:2"}]',
    listen: '[::1]:1',
    'tls.cert': 'cert.pem',
    'tls.key': 'key.pem',
    allowedHosts: 'A.example, b.example:81,',
    allowedOrigins: 'https://A.example:443,null',
    'admin.listen': 'off',
    'admin.token': 'sesame',
    'admin.open': '1',
    mode: 'observe',
    unrecorded: 'refuse',
    refuseWith: 'event',
    refusals: 'empty-replay=410, session-ended = 204',
    proxyStatus: 'false',
    deliveryProof: 'event-id',
    proofMemory: '1.5s',
    dedupe: 'off',
    replayHold: '0',
    replayDeadline: '9ms',
    'tap.maxHeldBytes': '64KiB',
    sessionMemory: '2h',
    store: 'rediss://u:p@r:1/2',
    storeFailure: 'refuse',
    storeSecret: 'sesame-and-16-more',
    storeCa: '/etc/guard/ca.pem',
    preserveHost: 'on',
    keepAlive: '15s',
    connectTimeout: '3m',
    drainDelay: '7s',
    drainTimeout: '8s',
    'log.level': 'silent',
    'log.format': 'pretty',
    'bounds.memory': '64MB',
    'bounds.sessions': '1',
    'bounds.streamsPerSession': '2',
    'bounds.eventIdsPerStream': '3',
    'bounds.finishedStreamMemory': '4s',
    'bounds.openStreamMemory': '5s',
    'bounds.eventIdBytes': '6',
    'bounds.concurrentStreams': '7',
    'bounds.kernelReading': '8ms',
    'bounds.connections': '9',
    'bounds.fieldBytes': '1KiB',
    'bounds.bodyBytes': '1GiB',
    'bounds.headTimeout': '11s',
  };
  const files = Object.fromEntries(['ca', 'cert', 'key'].map((name) => [`/etc/guard/${name}.pem`, PEM]));

  test('has a variable of its own for every key', () => {
    assert.deepEqual(Object.keys(SAMPLES), KEYS);
    assert.equal(new Set(KEYS.map(variableOf)).size, KEYS.length);
    assert.equal(variableOf('tap.maxHeldBytes'), 'MCP_RESUME_GUARD_TAP_MAX_HELD_BYTES');
  });

  test('gives every key its value', () => {
    const without = (key: string) =>
      Object.fromEntries(KEYS.filter((name) => name !== key).map((name) => [variableOf(name), SAMPLES[name]]));
    const { routes, ...config } = configOf(load({ files, env: without('routes') }));
    assert.deepEqual(config, {
      upstream: {
        durableEvents: true,
        instanceField: 'x-pod',
        ca: '/etc/guard/ca.pem',
        cert: '/etc/guard/cert.pem',
        key: '/etc/guard/key.pem',
      },
      listen: { host: '::1', port: 1 },
      tls: { cert: '/etc/guard/cert.pem', key: '/etc/guard/key.pem' },
      allowedHosts: ['a.example', 'b.example:81'],
      allowedOrigins: ['https://a.example', 'null'],
      admin: { listen: null, isDefault: false, token: 'sesame', open: true },
      mode: 'observe',
      unrecorded: 'refuse',
      refuseWith: 'event',
      refusals: { 'empty-replay': 410, 'session-ended': 204 },
      proxyStatus: false,
      deliveryProof: 'event-id',
      proofMemory: 1_500,
      dedupe: false,
      replayHold: 0,
      replayDeadline: 9,
      tap: { maxHeldBytes: 65_536 },
      sessionMemory: 7_200_000,
      store: 'rediss://u:p@r:1/2',
      storeFailure: 'refuse',
      storeSecret: 'sesame-and-16-more',
      storeCa: '/etc/guard/ca.pem',
      preserveHost: true,
      keepAlive: 15_000,
      connectTimeout: 180_000,
      drainDelay: 7_000,
      drainTimeout: 8_000,
      log: { level: 'silent', format: 'pretty' },
      bounds: {
        memory: 64_000_000,
        sessions: 1,
        streamsPerSession: 2,
        eventIdsPerStream: 3,
        finishedStreamMemory: 4_000,
        openStreamMemory: 5_000,
        eventIdBytes: 6,
        concurrentStreams: 7,
        kernelReading: 8,
        connections: 9,
        fieldBytes: 1_024,
        bodyBytes: 1_073_741_824,
        headTimeout: 11_000,
      },
    });
    assert.equal(routes[0]?.upstream, 'http://e:1');
    const { routes: others } = configOf(load({ files, env: without('upstream.url') }));
    assert.equal(others[0]?.upstream, 'http://e:2');
  });

  test('with an unknown variable gets a suggestion', () => {
    assert.equal(
      faultOf(load({ env: { MCP_RESUME_GUARD_REPLAYHOLD: '2s' } })),
      'MCP_RESUME_GUARD_REPLAYHOLD: is not known; did you mean MCP_RESUME_GUARD_REPLAY_HOLD?',
    );
    assert.equal(faultOf(load({ env: { MCP_RESUME_GUARD_XYZZY: '' } })), 'MCP_RESUME_GUARD_XYZZY: is not known');
  });

  test('may hold the variables that Kubernetes makes for Services of this name', () => {
    const env = {
      MCP_RESUME_GUARD_SERVICE_HOST: '10.0.0.1',
      MCP_RESUME_GUARD_SERVICE_PORT: '8808',
      MCP_RESUME_GUARD_SERVICE_PORT_HTTP: '8808',
      MCP_RESUME_GUARD_PORT: 'tcp://10.0.0.1:8808',
      MCP_RESUME_GUARD_PORT_8808_TCP: 'tcp://10.0.0.1:8808',
      MCP_RESUME_GUARD_PORT_8808_TCP_PROTO: 'tcp',
      MCP_RESUME_GUARD_PORT_8808_TCP_PORT: '8808',
      MCP_RESUME_GUARD_PORT_8808_TCP_ADDR: '10.0.0.1',
      MCP_RESUME_GUARD_ADMIN_SERVICE_HOST: '10.0.0.2',
      MCP_RESUME_GUARD_ADMIN_PORT: 'tcp://10.0.0.2:8809',
    };
    configOf(load({ env }));
    assert.match(faultOf(load({ env: { MCP_RESUME_GUARD_PORT: '9000' } })), /^MCP_RESUME_GUARD_PORT: is not known/);
  });

  test('leaves the variables of others alone', () => {
    configOf(load({ env: { MCP_OTHER: 'x', PATH: '/bin', mcp_resume_guard_mode: 'x' } }));
  });
});

describe('values', () => {
  const valueFault = (line: string) => faultOf(load({ file: `${line}\nupstream: { url: "http://a" }` }));
  const value = (line: string) => configOf(load({ file: `${line}\nupstream: { url: "http://a" }` }));

  for (const [text, ms] of [
    ['250ms', 250],
    ['2s', 2_000],
    ['10m', 600_000],
    ['1h', 3_600_000],
    ['0.5s', 500],
    ['0s', 0],
    ['0', 0],
    ['"0"', 0],
    ['576h', 2_073_600_000],
  ] as const) {
    test(`a duration may be ${text}`, () => assert.equal(value(`drainDelay: ${text}`).drainDelay, ms));
  }

  for (const [text, why] of [
    ['2000', /must have a unit: ms, s, m or h/],
    ['"2000"', /must have a unit: ms, s, m or h/],
    ['2 s', /must be a duration, such as 250ms/],
    ['-2s', /must be a duration/],
    ['2d', /must be a duration/],
    ['true', /must be a duration/],
    ['[2s]', /must be a duration/],
    ['577h', /must be at most 576h/],
  ] as const) {
    test(`a duration may not be ${text}`, () => assert.match(valueFault(`drainDelay: ${text}`), why));
  }

  test('only where nothing would work without it must a duration be longer than 0', () => {
    assert.match(valueFault('replayDeadline: 0'), /must be longer than 0/);
    assert.equal(value('connectTimeout: 0').connectTimeout, 0);
    assert.equal(value('keepAlive: 0').keepAlive, null);
    assert.equal(value('keepAlive: off').keepAlive, null);
    assert.equal(value('keepAlive: false').keepAlive, null);
    assert.match(valueFault('keepAlive: true'), /such as 15s, or off/);
  });

  for (const [text, bytes] of [
    ['512', 512],
    ['"512"', 512],
    ['512B', 512],
    ['64KiB', 65_536],
    ['1.5MiB', 1_572_864],
    ['64MB', 64_000_000],
    ['1GiB', 1_073_741_824],
  ] as const) {
    test(`a size may be ${text}`, () => assert.equal(value(`tap: { maxHeldBytes: ${text} }`).tap.maxHeldBytes, bytes));
  }

  for (const text of ['64 KiB', '64K', '-1', '1.5', '0', '9999999GiB', 'true']) {
    test(`a size may not be ${text}`, () => {
      assert.match(valueFault(`tap: { maxHeldBytes: ${text} }`), /must be (a size in bytes|at least 1)/);
    });
  }

  for (const text of ['8808', 'localhost', ':8808', 'a:b', '::1:8808', '127.0.0.1:65536', 'http://a:1', 'a@b:1']) {
    test(`an address may not be ${text}`, () =>
      assert.match(valueFault(`listen: "${text}"`), /must (be host:port|have a port)/));
  }

  test('a status of a refusal is 204 or an error, and its rule is one that refuses', () => {
    const statuses = REFUSABLE.map((rule, index) => `${rule}: ${[204, 400, 599][index % 3]}`);
    assert.equal(Object.keys(value(`refusals: { ${statuses.join(', ')} }`).refusals).length, REFUSABLE.length);
    for (const status of [200, 203, 301, 399, 600, 409.5, '"409"']) {
      assert.match(
        valueFault(`refusals: { empty-replay: ${status} }`),
        /refusals\.empty-replay: must be the status 204/,
      );
    }
    assert.match(valueFault('refusals: { emty-replay: 410 }'), /is not known; did you mean empty-replay\?/);
    assert.match(valueFault('refusals: { finished: 410 }'), /refusals\.finished: is not known/);
  });

  test('a list of hosts has at least one; a list of origins may be empty', () => {
    assert.match(valueFault('allowedHosts: []'), /must name at least one host/);
    assert.match(valueFault('allowedHosts: ["http://a"]'), /allowedHosts\[0\]: must be a host name/);
    assert.match(valueFault('allowedOrigins: ["a.example"]'), /allowedOrigins\[0\]: must be an origin/);
    assert.deepEqual(value('allowedOrigins: []').allowedOrigins, []);
    assert.deepEqual(value('allowedOrigins: ["vscode-webview://AB"]').allowedOrigins, ['vscode-webview://ab']);
  });

  test('a word that is nearly right gets a suggestion', () => {
    assert.equal(
      valueFault('mode: observ'),
      'guard.yaml:1 mode: must be enforce or observe (got "observ"; did you mean observe?)',
    );
  });

  test('a secret is not repeated, nor taken when it is the mask that check-config prints', () => {
    assert.equal(
      valueFault('admin: { token: "open sesame" }'),
      'guard.yaml:1 admin.token: must be visible ASCII characters without blanks',
    );
    assert.match(valueFault('admin: { token: "********" }'), /admin\.token: must be/);
    assert.ok(!valueFault('store: "redys://user:secret@host"').includes('secret'));
    assert.match(valueFault('store: "redis://***@host"'), /must be memory or a Redis URL/);
  });
});

describe('files', () => {
  test('JSON is read as well', () => {
    const config = configOf(load({ file: '{"mode":"observe","upstream":{"url":"http://a"}}' }));
    assert.equal(config.mode, 'observe');
  });

  test('a key without a value counts as absent, and so does a whole section', () => {
    assert.equal(configOf(load({ file: 'mode:\ntap:\nupstream: { url: "http://a" }' })).mode, 'enforce');
  });

  for (const [name, text, fault] of [
    ['is not YAML', 'mode: [', /^guard\.yaml:1:\d+: is not valid YAML/],
    ['says a key twice', 'mode: observe\nmode: enforce', /^guard\.yaml:2:1: is not valid YAML: .*unique/],
    ['is no mapping', '- mode', /^guard\.yaml: must be a mapping/],
    ['has an endless anchor', 'routes: &a [*a]', /^guard\.yaml: has anchors that cannot be followed/],
  ] as const) {
    test(`one that ${name} is a fault with its place`, () => assert.match(faultOf(load({ file: text })), fault));
  }

  test('unknown keys get a suggestion, from another section too', () => {
    const file =
      'upstream: { url: "http://a", durable: true }\nreplay-hold: 1s\nmaxHeldBytes: 1\nxyzzy: 1\nadmin: off\nupsteam: 1\n';
    assert.deepEqual(
      faultsOf(load({ file })).map(({ where, problem }) => `${where}: ${problem}`),
      [
        'guard.yaml:1 upstream.durable: is not known',
        'guard.yaml:2 replay-hold: is not known; did you mean replayHold?',
        'guard.yaml:3 maxHeldBytes: is not known; did you mean tap.maxHeldBytes?',
        'guard.yaml:4 xyzzy: is not known',
        'guard.yaml:5 admin: must be a group of keys: listen, token, open (got "off")',
        'guard.yaml:6 upsteam: is not known; did you mean upstream?',
      ],
    );
  });

  test('a name from the prototype of objects is no setting', () => {
    const file = 'upstream: { url: "http://a" }\nconstructor: 1\n__proto__: { mode: observe }\n';
    assert.equal(faultsOf(load({ file })).length, 2);
  });

  test('unreachable ones are all named, with what refers to them', () => {
    const file = 'upstream: { url: "https://a", ca: sub/ca.pem }\ntls: { cert: cert.pem, key: /abs/key.pem }';
    const loaded = load({
      files: { '/etc/guard/conf/guard.yaml': file, '/etc/guard/conf/cert.pem': 'not one' },
      options: { config: 'conf/guard.yaml' },
      env: { MCP_RESUME_GUARD_UPSTREAM: 'http://a' },
    });
    assert.deepEqual(
      faultsOf(loaded).map(({ where, problem }) => `${where}: ${problem}`),
      [
        'conf/guard.yaml:1 upstream.ca: /etc/guard/conf/sub/ca.pem cannot be read: there is no such file',
        'conf/guard.yaml:2 tls.cert: /etc/guard/conf/cert.pem is not a PEM file',
        'conf/guard.yaml:2 tls.key: /abs/key.pem cannot be read: there is no such file',
      ],
    );
  });

  test('a configuration file that is missing is one fault, not several', () => {
    assert.equal(
      faultOf(load({ options: { config: 'nope.yaml' }, env: {} })),
      '--config: nope.yaml cannot be read: there is no such file',
    );
    const loaded = loadConfig({
      env: { MCP_RESUME_GUARD_CONFIG: 'nope.yaml' },
      readFile: () => {
        throw Object.assign(new Error('no'), { code: 'EACCES' });
      },
    });
    assert.equal(faultOf(loaded), 'MCP_RESUME_GUARD_CONFIG: nope.yaml cannot be read: permission denied');
  });
});

describe('settings together', () => {
  test('a certificate needs its key, and a key its certificate', () => {
    const files = { '/etc/guard/x.pem': PEM };
    const env = { MCP_RESUME_GUARD_TLS_CERT: 'x.pem', MCP_RESUME_GUARD_UPSTREAM_KEY: 'x.pem' };
    assert.deepEqual(
      faultsOf(load({ files, env })).map(({ where, problem }) => `${where} ${problem}`),
      ['MCP_RESUME_GUARD_UPSTREAM_KEY needs upstream.cert as well', 'MCP_RESUME_GUARD_TLS_CERT needs tls.key as well'],
    );
  });

  test('the admin listener is somewhere else than the proxy, unless the kernel picks the ports', () => {
    const options = { listen: '127.0.0.1:9', admin: '127.0.0.1:9' };
    assert.equal(faultOf(load({ options })), '--admin: must be another address than listen');
    configOf(load({ options: { listen: '127.0.0.1:0', admin: '127.0.0.1:0' } }));
    configOf(load({ options: { listen: '127.0.0.1:8809' } }));
  });

  test('everything that is wrong, in every source, is said at once', () => {
    const places = faultsOf(
      load({
        file: 'mode: x\nfoo: 1\nreplayHold: 5\nupstream: { url: nope, ca: ca.pem }',
        env: { MCP_RESUME_GUARD_MODE: 'y', MCP_RESUME_GUARD_FOO: '1', MCP_RESUME_GUARD_BOUNDS_SESSIONS: 'many' },
        options: { mode: 'z', port: 'x', logLevel: 'loud' },
      }),
    ).map(({ where }) => where);
    assert.deepEqual(places, [
      'guard.yaml:2 foo',
      'guard.yaml:4 upstream.url',
      'guard.yaml:1 mode',
      'guard.yaml:3 replayHold',
      'MCP_RESUME_GUARD_FOO',
      'MCP_RESUME_GUARD_MODE',
      'MCP_RESUME_GUARD_BOUNDS_SESSIONS',
      '--mode',
      '--log-level',
      '--port',
      'guard.yaml:4 upstream.ca',
    ]);
  });
});

describe('configFrom', () => {
  test('makes a configuration of settings as they stand in a file', () => {
    const config = configFrom({ upstream: { url: 'http://a:1' }, listen: '127.0.0.1:0', bounds: { sessions: 3 } });
    assert.equal(config.bounds.sessions, 3);
    assert.equal(config.listen.port, 0);
  });

  test('throws everything that is wrong', () => {
    assert.throws(
      () => configFrom({ mode: 'x' as never, dedupe: 1 as never }),
      (error) =>
        error instanceof GuardError && error.code === 'config-invalid' && /mode.*dedupe.*upstream/s.test(error.message),
    );
  });
});

test('every default is a value that its own schema takes', () => {
  for (const key of KEYS) {
    const { kind, initial } = SETTINGS[key];
    if (initial !== undefined) assert.equal(kind.schema.safeParse(initial).success, true, key);
  }
});
