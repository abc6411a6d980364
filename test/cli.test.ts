import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parse } from 'yaml';
import { run } from '../src/cli.ts';
import { KEYS, optionOf } from '../src/config-schema.ts';
import { testIo } from './support/io.ts';

/** Runs a command line that ends by itself. */
async function cli(argv: readonly string[], given: Parameters<typeof testIo>[0] = {}) {
  const io = testIo(given);
  const code = await run(argv, io);
  return { code, out: io.out(), err: io.err() };
}

const UPSTREAM = 'http://localhost:3001/mcp';

describe('--help', () => {
  test('says what the program is, shows examples and lists every option', async () => {
    const { code, out, err } = await cli(['--help']);
    assert.equal(code, 0);
    assert.equal(err, '');
    assert.match(out, /transparent reverse proxy for MCP servers/);
    assert.match(out, /Examples:\n {2}mcp-resume-guard http:\/\/localhost:3001\/mcp\n/);
    for (const key of KEYS) {
      const option = optionOf(key);
      if (option !== undefined) assert.ok(out.includes(`${option} `), `${option} is missing`);
    }
    for (const word of ['--port <n>', '--no-admin', '--config <file>', '--version', 'check-config', 'demo']) {
      assert.ok(out.includes(word), `${word} is missing`);
    }
    assert.ok(out.includes('(default: 127.0.0.1:8808)'));
  });

  test('groups the options', async () => {
    const { out } = await cli(['--help']);
    assert.ok(out.indexOf('Addresses:') < out.indexOf('--listen'));
    assert.ok(out.indexOf('--listen') < out.indexOf('Decisions:'));
    assert.ok(out.indexOf('Decisions:') < out.indexOf('--mode'));
    assert.ok(out.indexOf('--mode') < out.indexOf('Log:'));
  });
});

test('--version prints the version alone', async () => {
  const { code, out } = await cli(['--version']);
  assert.equal(code, 0);
  assert.match(out, /^\d+\.\d+\.\d+\n$/);
});

describe('an unusable command line ends with exit code 2', () => {
  for (const [name, argv, expected] of [
    ['without an upstream', [], /upstream: is missing.*--help/s],
    ['with an unknown option', ['--lisen', 'a:1', UPSTREAM], /unknown option '--lisen'\n\(Did you mean --listen\?\)/],
    ['with an option that lacks its value', ['--mode'], /argument missing/],
    ['with two upstreams', [UPSTREAM, UPSTREAM], /one upstream URL is allowed, and 2 arguments were given/],
    ['with two upstreams to check', ['check-config', UPSTREAM, UPSTREAM], /one upstream URL is allowed, and 2/],
    ['with a mistyped command', ['chek-config'], /chek-config is no command; did you mean check-config\?/],
    ['with a mistyped command and a URL', ['dmo', UPSTREAM], /dmo is no command; did you mean demo\?/],
    [
      'with a command of another program',
      ['start', UPSTREAM],
      /start is no command \(there are check-config, demo, help\); to start, give the URL alone/,
    ],
    [
      'with a command behind the URL',
      [UPSTREAM, 'check-config'],
      /check-config goes first: mcp-resume-guard check-config/,
    ],
    ['with a mistyped command to be helped with', ['help', 'dmo'], /dmo is no command; did you mean demo\?/],
    ['with a URL for the demo', ['demo', UPSTREAM], /demo takes no arguments/],
    ['with options for the demo', ['--port', '1', 'demo'], /demo takes no options/],
    ['with a bad value', ['--mode', 'off', UPSTREAM], /--mode: must be enforce or observe/],
  ] as const) {
    test(name, async () => {
      const { code, out, err } = await cli(argv);
      assert.equal(code, 2);
      assert.equal(out, '');
      assert.match(err, expected);
    });
  }

  test('and everything that is wrong is listed', async () => {
    const { code, err } = await cli(['--mode', 'x', '--replay-hold', '2', '--config', 'missing.yaml', UPSTREAM], {
      env: { MCP_RESUME_GUARD_UNRECORDED: 'x' },
    });
    assert.equal(code, 2);
    for (const place of ['--mode', '--replay-hold', '--config', 'MCP_RESUME_GUARD_UNRECORDED']) {
      assert.ok(err.includes(`  ${place}: `), `${place} is missing from ${err}`);
    }
  });
});

describe('check-config', () => {
  test('prints the settings in force as YAML, and where each was set', async () => {
    const { code, out, err } = await cli(['check-config', UPSTREAM, '--port', '9000', '--no-admin'], {
      env: { MCP_RESUME_GUARD_REPLAY_HOLD: '3s', MCP_RESUME_GUARD_REFUSALS: 'empty-replay=410' },
    });
    assert.equal(code, 0, err);
    assert.match(out, /^upstream:\n {2}url: http:\/\/localhost:3001\/mcp # <upstream-url>$/m);
    assert.match(out, /^listen: 127\.0\.0\.1:9000 # --port$/m);
    assert.match(out, /^ {2}listen: off # --admin$/m);
    assert.match(out, /^replayHold: 3s # MCP_RESUME_GUARD_REPLAY_HOLD$/m);
    assert.match(out, /^ {2}# MCP_RESUME_GUARD_REFUSALS\n {2}empty-replay: 410$/m);
    assert.match(out, /^replayDeadline: 5s$/m);
    assert.match(out, /^ {2}format: json$/m);
  });

  test('takes options before it as well as after it', async () => {
    const { out } = await cli(['--mode', 'observe', 'check-config', '--upstream', UPSTREAM]);
    assert.match(out, /^mode: observe # --mode$/m);
  });

  test('masks secrets', async () => {
    const { out } = await cli(['check-config', UPSTREAM, '--store', 'redis://user:hush@host/0'], {
      env: { MCP_RESUME_GUARD_ADMIN_TOKEN: 'hush', MCP_RESUME_GUARD_STORE_SECRET: 'hush-hush-hush-hush' },
    });
    assert.ok(!out.includes('hush'));
    assert.match(out, /token: "\*+" # MCP_RESUME_GUARD_ADMIN_TOKEN/);
    assert.match(out, /store: redis:\/\/\*\*\*@host\/0 # --store/);
  });

  test('prints what it could read back, with the same result', async () => {
    const env = { MCP_RESUME_GUARD_ALLOWED_HOSTS: 'a,b:1', MCP_RESUME_GUARD_KEEP_ALIVE: '15s' };
    const first = await cli(['check-config', UPSTREAM], { env });
    const again = await cli(['check-config', '--config', 'saved.yaml'], { readFile: () => first.out });
    assert.equal(again.code, 0, again.err);
    assert.deepEqual(parse(again.out), parse(first.out));
  });

  test('lists faults and ends with exit code 2', async () => {
    const { code, out, err } = await cli(['check-config', 'localhost:3001/mcp']);
    assert.equal(code, 2);
    assert.equal(out, '');
    assert.match(err, /did you mean http:\/\/localhost:3001\/mcp\?/);
  });
});
