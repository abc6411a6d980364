/** The admin listener by itself: who may ask, with which method, in which portions. */
import assert from 'node:assert/strict';
import { request } from 'node:http';
import { describe, type TestContext, test } from 'node:test';
import { Registry } from 'prom-client';
import { Admin, type AdminOptions, type SessionView } from '../../src/ops/admin.ts';
import { History } from '../../src/ops/history.ts';
import { within } from '../support/waiting.ts';
import { report } from './reports.ts';

const PRIVATE = ['/', '/page.js', '/page.css', '/api/overview', '/api/config', '/api/sessions', '/api/decisions'];
const OPEN = ['/livez', '/readyz', '/metrics'];

interface Answer {
  readonly status: number;
  readonly fields: Readonly<Record<string, string | string[] | undefined>>;
  readonly text: string;
}

/** An admin listener and one way to ask it; `Host` and the like can be anything. */
async function start(t: TestContext, over: Partial<AdminOptions> = {}) {
  const history = new History(() => 0);
  const admin = new Admin({
    readiness: () => ({ ready: true, reasons: [] }),
    registry: new Registry(),
    history,
    sessions: () => ({ total: 0, sessions: [] }),
    config: () => ({ listen: 'here' }),
    overview: () => ({ mode: 'enforce' }),
    admits: () => true,
    access: { open: true },
    ...over,
  });
  const { port } = await admin.bind('127.0.0.1', 0);
  t.after(() => within('the admin listener to close', admin.close()));
  const ask = (path: string, headers: Record<string, string> = {}, method = 'GET'): Promise<Answer> =>
    within(
      `an answer to ${path}`,
      new Promise((resolve, reject) => {
        const sent = request({ port, host: '127.0.0.1', path, method, headers, agent: false }, (response) => {
          let text = '';
          response.setEncoding('utf8').on('data', (chunk: string) => {
            text += chunk;
          });
          response.on('end', () => resolve({ status: response.statusCode ?? 0, fields: response.headers, text }));
        });
        sent.on('error', reject).end();
      }),
    );
  return { ask, history, url: `http://127.0.0.1:${port}` };
}

const bearer = (token: string) => ({ Authorization: `Bearer ${token}` });
const basic = (token: string, user = 'any') => ({
  Authorization: `Basic ${Buffer.from(`${user}:${token}`).toString('base64')}`,
});

describe('who may ask', () => {
  for (const path of [...OPEN, ...PRIVATE]) {
    test(`anybody on a loopback address: ${path}`, async (t) => {
      const { ask } = await start(t);
      assert.equal((await ask(path)).status, 200);
    });
  }

  for (const path of OPEN) {
    test(`elsewhere ${path} is open`, async (t) => {
      const { ask } = await start(t, { access: { open: false, token: null } });
      assert.equal((await ask(path)).status, 200);
    });
  }

  for (const path of PRIVATE) {
    test(`elsewhere ${path} wants the token`, async (t) => {
      const { ask } = await start(t, { access: { open: false, token: 'right' } });
      const without = await ask(path);
      assert.equal(without.status, 401);
      assert.match(String(without.fields['www-authenticate']), /^Basic realm=/);
      assert.equal((await ask(path, bearer('wrong'))).status, 401);
      assert.equal((await ask(path, bearer('right'))).status, 200);
      assert.equal((await ask(path, basic('right'))).status, 200);
    });

    test(`elsewhere nobody gets ${path} while there is no token`, async (t) => {
      const { ask } = await start(t, { access: { open: false, token: null } });
      assert.equal((await ask(path)).status, 403);
      assert.equal((await ask(path, bearer(''))).status, 403);
    });
  }

  for (const [name, headers] of [
    ['a part of it', bearer('righ')],
    ['more than it', bearer('right!')],
    ['nothing', bearer('')],
    ['it as a user name', basic('', 'right')],
    ['it without a scheme', { Authorization: 'right' }],
    ['what is no Base64', { Authorization: 'Basic %%%' }],
  ] as const) {
    test(`the token is not ${name}`, async (t) => {
      const { ask } = await start(t, { access: { open: false, token: 'right' } });
      assert.equal((await ask('/api/config', headers)).status, 401);
    });
  }

  test('a password may hold colons', async (t) => {
    const { ask } = await start(t, { access: { open: false, token: 'a:b' } });
    assert.equal((await ask('/api/config', basic('a:b'))).status, 200);
  });

  test('nobody whose Host or Origin is not admitted, not even for health', async (t) => {
    const { ask } = await start(t, { admits: (host, origin) => host === 'good' && origin === undefined });
    assert.equal((await ask('/livez', { Host: 'good' })).status, 200);
    assert.equal((await ask('/livez', { Host: 'evil' })).status, 403);
    assert.equal((await ask('/livez', { Host: 'good', Origin: 'http://evil' })).status, 403);
  });
});

describe('what may be asked', () => {
  for (const method of ['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']) {
    for (const path of ['/livez', '/api/decisions', '/elsewhere']) {
      test(`not ${method} ${path}`, async (t) => {
        const { ask } = await start(t);
        const { status, fields } = await ask(path, {}, method);
        assert.deepEqual([status, fields['allow']], [405, 'GET, HEAD']);
      });
    }
  }

  test('HEAD is GET without a body, also for what is live', async (t) => {
    const { ask } = await start(t);
    const { status, text, fields } = await ask('/api/config', {}, 'HEAD');
    assert.deepEqual([status, text, fields['content-type']], [200, '', 'application/json']);
    assert.equal((await ask('/api/decisions', { Accept: 'text/event-stream' }, 'HEAD')).status, 200);
  });

  test('another path is 404 and says what there is', async (t) => {
    const { ask } = await start(t);
    const { status, text } = await ask('/api/secrets');
    assert.equal(status, 404);
    assert.deepEqual(JSON.parse(text).paths, [
      ...OPEN,
      ...['/api/overview', '/api/config', '/api/sessions', '/api/decisions', '/', '/page.js', '/page.css'],
    ]);
  });

  for (const path of ['//livez', '/livez?full', '/livez#x']) {
    test(`${path} is /livez`, async (t) => {
      const { ask } = await start(t);
      assert.equal((await ask(path)).status, 200);
    });
  }

  for (const path of ['/../package.json', '/%2e%2e/package.json', '/page.js/', '/__proto__', '/constructor']) {
    test(`${path} is nothing`, async (t) => {
      const { ask } = await start(t);
      assert.equal((await ask(path)).status, 404);
    });
  }

  test('nothing is stored on its way, and types are not guessed', async (t) => {
    const { ask } = await start(t);
    for (const path of [...OPEN, ...PRIVATE]) {
      const { fields } = await ask(path);
      assert.deepEqual([fields['cache-control'], fields['x-content-type-options']], ['no-store', 'nosniff'], path);
    }
  });
});

test('/readyz says why not', async (t) => {
  const state = { ready: true, reasons: ['http://127.0.0.1:3001 refuses connections'] };
  const { ask } = await start(t, { readiness: () => state });
  const up = await ask('/readyz');
  assert.deepEqual([up.status, JSON.parse(up.text)], [200, { status: 'ready', reasons: state.reasons }]);
  Object.assign(state, { ready: false, reasons: ['draining'] });
  const down = await ask('/readyz');
  assert.deepEqual([down.status, JSON.parse(down.text)], [503, { status: 'not ready', reasons: ['draining'] }]);
});

describe('/api/sessions', () => {
  const view = (index: number): SessionView => ({
    session: `s-${index}`,
    route: '*/',
    generation: 1,
    ended: false,
    streams: 2,
    openRequests: 1,
    listening: 0,
    bytes: 100,
  });
  const many = (total: number) => ({
    sessions: (from: number, count: number) => ({
      total,
      sessions: Array.from({ length: Math.max(0, Math.min(count, total - from)) }, (_, i) => view(from + i)),
    }),
  });

  for (const [query, first, length, page] of [
    ['', 's-0', 100, 0],
    ['?page=0', 's-0', 100, 0],
    ['?page=1', 's-100', 100, 1],
    ['?page=2', 's-200', 50, 2],
    ['?page=3', undefined, 0, 3],
    ['?page=-1', 's-0', 100, 0],
    ['?page=1.9', 's-100', 100, 1],
    ['?page=x', 's-0', 100, 0],
  ] as const) {
    test(`a hundred at a time: ${query || 'no page'}`, async (t) => {
      const { ask } = await start(t, many(250));
      const answer = JSON.parse((await ask(`/api/sessions${query}`)).text);
      assert.deepEqual([answer.page, answer.pages, answer.total], [page, 3, 250]);
      assert.deepEqual([answer.sessions[0]?.session, answer.sessions.length], [first, length]);
    });
  }

  test('no session is one empty page', async (t) => {
    const { ask } = await start(t, many(0));
    assert.deepEqual(JSON.parse((await ask('/api/sessions')).text), { page: 0, pages: 1, total: 0, sessions: [] });
  });

  test('each with the last five decisions of its own', async (t) => {
    const { ask, history } = await start(t, many(2));
    for (let i = 0; i < 7; i++) {
      history.observer.exchange?.(report({ session: () => 's-1', status: 400 + i, proof: 'event-id' }));
    }
    const [other, own] = JSON.parse((await ask('/api/sessions')).text).sessions;
    assert.deepEqual(other.lastDecisions, []);
    assert.deepEqual(
      own.lastDecisions.map(({ status }: { status: number }) => status),
      [402, 403, 404, 405, 406],
    );
    assert.deepEqual(Object.keys(own.lastDecisions[0]), ['at', 'rule', 'verdict', 'outcome', 'proof', 'status']);
  });
});

describe('/api/decisions', () => {
  test('has rule, outcome, proof, times and words, the latest first', async (t) => {
    const { ask, history } = await start(t);
    history.observer.decided?.(report({ id: 1 }));
    history.observer.decided?.(
      report({ id: 2, rule: 'finished', verdict: 'strip', outcome: null, proof: 'connection' }),
    );
    const { decisions } = JSON.parse((await ask('/api/decisions')).text);
    assert.deepEqual(
      decisions.map(({ id, rule, outcome, proof }: Record<string, unknown>) => [id, rule, outcome, proof]),
      [
        [2, 'finished', null, 'connection'],
        [1, 'in-window', 'replayed', null],
      ],
    );
    const [{ at, duration, headAfter, firstByteAfter, words }] = decisions;
    assert.deepEqual([at, duration, headAfter, firstByteAfter], [-12.34, 12.34, 1.26, 2]);
    assert.match(
      words,
      /^The request is finished and its result arrived \(its connection says so\): the cursor was taken off\.$/,
    );
  });

  test('are told live to whoever asks for an event stream', async (t) => {
    const { url, history } = await start(t);
    const followed = await fetch(`${url}/api/decisions`, { headers: { Accept: 'text/event-stream' } });
    assert.equal(followed.headers.get('content-type'), 'text/event-stream');
    const reader = followed.body!.pipeThrough(new TextDecoderStream()).getReader();
    history.observer.decided?.(report({ id: 41, rule: 'session-ended', verdict: 'refuse', outcome: null }));
    const { value = '' } = await within('the decision', reader.read());
    const [, id, data] = /^id: (\d+)\ndata: (.*)\n\n$/.exec(value) ?? [];
    assert.equal(id, '41');
    const { rule, words } = JSON.parse(data ?? '');
    assert.deepEqual(
      [rule, words],
      ['session-ended', 'The server has ended this session: answered without asking the server.'],
    );
    await reader.cancel();
  });

  test('are told to 32 at once, and to the next when one has left', async (t) => {
    const { url, ask } = await start(t);
    const leave = new AbortController();
    const follow = (signal?: AbortSignal) =>
      fetch(`${url}/api/decisions`, { headers: { Accept: 'text/event-stream' }, ...(signal ? { signal } : {}) });
    const all = await Promise.all(Array.from({ length: 32 }, () => follow(leave.signal)));
    assert.ok(all.every(({ status }) => status === 200));
    const refused = await ask('/api/decisions', { Accept: 'text/event-stream' });
    assert.equal(refused.status, 503);
    leave.abort();
    await within(
      'a free place',
      (async () => {
        for (;;) {
          const response = await follow();
          await response.body?.cancel();
          if (response.status === 200) return;
        }
      })(),
    );
  });
});
