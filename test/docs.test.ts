/** What the documents say is so: their commands run, their metrics exist, their links lead somewhere. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { describe, type TestContext, test } from 'node:test';
import { parser } from '@prometheus-io/lezer-promql';
import type { MetricObjectWithValues, MetricValue } from 'prom-client';
import { RULES } from '../src/core/decide.ts';
import { REFUSALS } from '../src/core/refusal.ts';
import { OUTCOMES } from '../src/core/replay.ts';
import { ERRORS } from '../src/errors.ts';
import { createMetrics } from '../src/ops/metrics.ts';
import { type Guard, startGuard } from './support/guard.ts';
import { block, priming, result } from './support/messages.ts';
import { answerEmpty, cutPost, fateOf, finishedPost, openSession } from './support/session.ts';

const ROOT = new URL('../', import.meta.url);
const read = (path: string): string => readFileSync(new URL(path, ROOT), 'utf8');
const DOCS = [...readdirSync(new URL('docs/', ROOT)).map((name) => `docs/${name}`), 'README.md'].filter((name) =>
  name.endsWith('.md'),
);

/** Fenced blocks of one language. */
const fenced = (text: string, language: string): string[] =>
  [...text.matchAll(/^```(\w*)\n([\s\S]*?)^```$/gm)]
    .filter(([, given]) => given === language)
    .map(([, , body = '']) => body);

interface Command {
  readonly file: string;
  readonly line: string;
  /** What the output is to hold: the comment behind the command. */
  readonly expected: string;
}

const CURLS: readonly Command[] = DOCS.flatMap((file) =>
  fenced(read(file), 'sh')
    .flatMap((body) => body.split('\n'))
    .filter((line) => line.startsWith('curl '))
    .map((line) => {
      const [command = '', expected = ''] = line.split(/\s+# /);
      return { file, line: command, expected };
    }),
);

/** Runs the line in a shell, with the addresses of this guard in place of the usual ones. */
function shell(line: string, guard: Guard, env: Readonly<Record<string, string>>) {
  const command = line
    .replaceAll('127.0.0.1:8808', guard.authority)
    .replaceAll('127.0.0.1:8809', new URL(guard.proxy.adminUrl!).host);
  return new Promise<{ code: number; out: string }>((resolve) => {
    const child = execFile(
      '/bin/sh',
      ['-c', `${command} --max-time ${line.includes('-N') ? 2 : 10}`],
      { env: { ...process.env, ...env } },
      (error, out) => resolve({ code: typeof error?.code === 'number' ? error.code : 0, out }),
    );
    child.stdin?.end();
  });
}

/** A guard with something to show, and a cursor that brings nothing. */
async function shown(t: TestContext): Promise<Guard> {
  const guard = await startGuard(t);
  const { client, upstream } = guard;
  await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session: 's-1' }, priming('e1'), block({ id: 'e2', data: result(1) }));
  await cutPost(client, upstream, 2, { session: 's-1' }, priming('f1'));
  await fateOf(client, upstream, { session: 's-1', lei: 'e2' });
  upstream.handle((exchange) => answerEmpty(exchange));
  return guard;
}

describe('the curl lines of the documents', () => {
  test('are there', () => assert.ok(CURLS.length >= 10, String(CURLS.length)));

  for (const { file, line, expected } of CURLS) {
    test(`${file}: ${line}`, async (t) => {
      const guard = await shown(t);
      const env = { ADMIN_TOKEN: 'any', SESSION: 's-1', CURSOR: 'f1' };
      const follows = /\s-s?N\s/.test(line);
      const running = shell(line, guard, env);
      // Somebody who follows sees what happens from now on. The last of it is cut short when the test is over.
      const resume = (): Promise<unknown> =>
        guard.client
          .get({ session: 's-1', lei: 'f1' })
          .then((reply) => reply.text())
          .catch(() => {});
      const traffic = follows ? setInterval(() => void resume(), 100) : undefined;
      const { code, out } = await running;
      clearInterval(traffic);
      // 28: the time is up, which is the only end of following.
      assert.equal(code, follows ? 28 : 0, out);
      if (follows) assert.match(out, /^id: \d+\ndata: \{.*"words":"[A-Z]/);
      assert.ok(out.includes(expected), `${out} does not hold ${expected}`);
      assert.ok(follows || out.length > 0);
    });
  }
});

describe('docs/metrics.md', () => {
  const text = read('docs/metrics.md');
  const { registry } = createMetrics({
    sessions: () => 0,
    storeErrors: () => 0,
    storeDropped: () => 0,
    storePending: () => 0,
  });
  const rows = [...text.matchAll(/^\| `(mcp_resume_guard_\w+)` \| (\w+) \| (?:(`.*?) )?\| (.+) \|$/gm)];

  test('has every metric that there is, with its type and labels, and no other', async () => {
    const registered = registry
      .getMetricsAsArray()
      .map((metric) => metric as unknown as { name: string; type: string; labelNames: string[] })
      .filter(({ name }) => name.startsWith('mcp_resume_guard_'));
    const types = new Map((await registry.getMetricsAsJSON()).map(({ name, type }) => [name, String(type)]));
    assert.deepEqual(
      rows.map(([, name = '', type, labels = '']) => [name, type, [...labels.matchAll(/`(\w+)`/g)].map(([, l]) => l)]),
      registered
        .map(({ name, labelNames }) => [name, types.get(name), labelNames])
        .sort(([a], [b]) => order(String(a)) - order(String(b))),
    );
    function order(name: string): number {
      return rows.findIndex(([, documented]) => documented === name);
    }
  });

  test('says what else there is', () => {
    const others = registry
      .getMetricsAsArray()
      .map(({ name }) => name)
      .filter((name) => !name.startsWith('mcp_resume_guard_'));
    assert.ok(
      others.every((name) => /^(?:process|nodejs)_/.test(name)),
      others.join(),
    );
    for (const [name] of text.matchAll(/(?:process|nodejs)_\w+/g)) {
      if (name !== 'process_' && name !== 'nodejs_') assert.ok(others.includes(name), name);
    }
  });

  test('has every value of every label', async () => {
    const all = (await registry.getMetricsAsJSON()) as MetricObjectWithValues<MetricValue<string>>[];
    for (const { name, values } of all.filter((metric) => metric.name.startsWith('mcp_resume_guard_'))) {
      for (const { labels } of values) {
        for (const [label, value] of Object.entries(labels)) {
          if (label === 'le') continue;
          const short = name.replace('mcp_resume_guard_', '');
          const row = text.split('\n').find((line) => line.startsWith(`| \`${label}\` | \`${short}\` |`));
          assert.ok(row?.includes(`\`${value}\``), `${name}{${label}="${value}"}`);
        }
      }
    }
  });

  test('has rules and outcomes in the order of the contract', () => {
    const listed = (label: string) =>
      [...(text.split('\n').find((line) => line.startsWith(`| \`${label}\``)) ?? '').matchAll(/`([\w-]+)`/g)]
        .map(([, word]) => word)
        .slice(2);
    assert.deepEqual(
      listed('rule'),
      RULES.map(({ name }) => name),
    );
    assert.deepEqual(listed('outcome'), [...OUTCOMES, 'late-empty']);
  });

  test('says where refusals are that are under no rule', async () => {
    const names: readonly string[] = RULES.map(({ name }) => name);
    const elsewhere = Object.keys(REFUSALS).filter((rule) => !names.includes(rule));
    assert.deepEqual(elsewhere, ['empty-replay']);
    for (const file of ['docs/metrics.md', 'docs/decisions.md', 'README.md'])
      assert.match(read(file), /`empty-replay`[^|#]*?`replays_total\{outcome="empty"\}`/, file);
  });

  test('asks in PromQL', () => {
    const expressions = fenced(text, 'promql').flatMap((body) => body.trim().split('\n'));
    assert.ok(expressions.length >= 4);
    for (const expr of expressions) {
      let isWhole = true;
      parser.parse(expr).iterate({
        enter: ({ type }) => {
          if (type.isError) isWhole = false;
        },
      });
      assert.ok(isWhole, expr);
      for (const [name] of expr.matchAll(/mcp_resume_guard_\w+/g)) {
        assert.ok(registry.getSingleMetric(name.replace(/_bucket$/, '')), name);
      }
    }
  });
});

test('docs/operations.md has a command and an explanation for everything that the admin listener serves', async (t) => {
  const { proxy } = await startGuard(t);
  const { paths } = (await (await fetch(new URL('/elsewhere', proxy.adminUrl!))).json()) as { paths: string[] };
  const [, looking = ''] = /^## Looking\n([\s\S]*?)^## /m.exec(read('docs/operations.md')) ?? [];
  const commands = fenced(looking, 'sh').join('');
  const explained = [...looking.matchAll(/^- (?:`[^`]+`.*?)$/gm)].join();
  const served = paths.filter((path) => !/^\/(?:page\.\w+)?$/.test(path));
  assert.ok(served.length >= 7, served.join());
  for (const path of served) {
    assert.match(commands, new RegExp(`127\\.0\\.0\\.1:8809${path}\\b`), `no command for ${path}`);
    assert.ok(explained.includes(`\`${path}\``), `${path} is not explained`);
  }
  for (const [, path = ''] of commands.matchAll(/127\.0\.0\.1:8809(\/[\w/]*)/g))
    assert.ok(paths.includes(path), `${path} is not served`);
});

test('docs/operations.md names failures by their codes, with their statuses', () => {
  const rows = [...read('docs/operations.md').matchAll(/^\| (\d{3}) \| (.*?) \|/gm)];
  const named = rows.flatMap(([, status, codes = '']) =>
    [...codes.matchAll(/`([\w-]+)`/g)].map(([, code = '']) => [code, Number(status)] as const),
  );
  assert.ok(named.length >= 6);
  for (const [code, status] of named)
    assert.equal((ERRORS as Record<string, { status: number }>)[code]?.status, status, code);
});

const anchorsOf = (text: string): string[] =>
  [...text.matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) =>
    heading
      .toLowerCase()
      .replace(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  );

describe('links', () => {
  for (const file of DOCS.filter((name) => /operations|metrics|clients|first/.test(name))) {
    for (const [, target = ''] of read(file).matchAll(/\]\(([^)]+)\)/g)) {
      if (/^https?:/.test(target)) continue;
      test(`${file} -> ${target}`, () => {
        const [path = '', anchor] = target.split('#');
        const url = path === '' ? new URL(file, ROOT) : new URL(path, new URL(file, ROOT));
        assert.ok(existsSync(url), `${target} is not there`);
        if (anchor !== undefined) assert.ok(anchorsOf(readFileSync(url, 'utf8')).includes(anchor), anchor);
      });
    }
  }

  test('of the README lead here', () => {
    for (const name of ['first-ten-minutes', 'operations', 'metrics', 'clients'])
      assert.ok(read('README.md').includes(`(docs/${name}.md)`));
  });
});
