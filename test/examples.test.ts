/** The examples run, and the documentation shows them as they are. They import the package by name, so from `dist`. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { InvalidResumptionError, StreamResumptionGuard } from 'mcp-resume-guard/client';
import { ResumptionTokenError } from 'mcp-resume-guard/server';
import { connect } from '../examples/guarded-client.ts';
import { listener } from '../examples/guarded-server.ts';
import { Journal } from '../examples/replay-window.ts';
import { resume } from '../examples/resume-by-hand.ts';
import { createClient } from './support/client.ts';
import { request } from './support/messages.ts';

const read = (path: string): string => readFileSync(new URL(`../${path}`, import.meta.url), 'utf8');

async function listen(t: TestContext, server: ReturnType<typeof createServer>): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`;
}

test('the guarded client calls a tool of the guarded server, whose cursors are honoured in their own session only', async (t) => {
  const url = await listen(t, listener);
  const client = await connect(url);
  t.after(() => client.close());
  const called = await client.callTool({ name: 'hello' });
  assert.deepEqual(called.content, [{ type: 'text', text: 'hello' }]);

  const raw = createClient(url);
  t.after(() => raw.close());
  const open = async (): Promise<string> => {
    const reply = await raw.initialize();
    await reply.bytes();
    return (await reply.head).field('mcp-session-id') ?? '';
  };
  const [session, other] = [await open(), await open()];
  const version = '2025-11-25';
  const call = { body: request(5, 'tools/call', { name: 'hello', arguments: {} }) };
  const [, cursor = ''] = /id: (\S+)/.exec(await (await raw.post(call, { session, version })).text()) ?? [];
  const replay = await raw.get({ session, version, lei: cursor });
  assert.match(await replay.text(), /"hello"/);
  assert.equal((await (await raw.get({ session: other, version, lei: cursor })).head).status, 409);
  await (await raw.delete({ session, version })).head;
  assert.equal((await (await raw.get({ session, version, lei: cursor })).head).status, 404);
});

test('the resume by hand goes on, stops, and says when to send again', async (t) => {
  const answers: [number, string][] = [
    [200, 'data: more\n\n'],
    [200, ''],
    [409, 'evicted'],
  ];
  const cursors: unknown[] = [];
  const server = createServer(({ headers }, response) => {
    cursors.push(headers['last-event-id']);
    const [status, body] = answers.shift()!;
    response.writeHead(status).end(body);
  });
  const url = await listen(t, server);
  const guard = new StreamResumptionGuard();
  await assert.rejects(resume(guard, url, 1, 's'), InvalidResumptionError);
  guard.observeEvent(1, 'e1', false);
  assert.equal(await resume(guard, url, 1, 's'), 'data: more\n\n');
  await assert.rejects(resume(guard, url, 1, 's'), /send the request again/);
  await assert.rejects(resume(guard, url, 1, 's'), /send the request again/);
  guard.observeEvent(1, 'e2', true);
  await assert.rejects(resume(guard, url, 1, 's'), InvalidResumptionError);
  assert.deepEqual(cursors, ['e1', 'e1', 'e1'], 'what is finished is not asked for');
});

test('the journal replays within its window and refuses outside of it', () => {
  const journal = new Journal();
  const statusOf = (session: string, cursor: string): number => {
    try {
      journal.after(session, cursor);
      return 200;
    } catch (error) {
      return (error as ResumptionTokenError).status;
    }
  };
  assert.equal(statusOf('s', '1-1'), 404);
  journal.open('s');
  const ids = Array.from({ length: 1_005 }, (_, at) => journal.append('s', `event ${at + 1}`));
  assert.deepEqual(journal.after('s', ids.at(-3)!), ['event 1004', 'event 1005']);
  assert.deepEqual(journal.after('s', ids.at(-1)!), []);
  assert.equal(journal.after('s', ids[4]!).length, 1_000);
  assert.equal(statusOf('s', ids[3]!), 409);
  assert.equal(statusOf('s', 'nonsense'), 409);
  journal.open('s');
  assert.equal(statusOf('s', ids.at(-1)!), 409);
  journal.close('s');
  assert.equal(statusOf('s', ids.at(-1)!), 404);
  assert.throws(() => journal.after('s', '1-1'), ResumptionTokenError);
});

test('the documentation shows every example as it is', () => {
  const page = read('docs/in-process.md');
  for (const name of readdirSync(new URL('../examples', import.meta.url))) {
    assert.ok(page.includes(`\`\`\`ts\n${read(`examples/${name}`)}\`\`\``), `docs/in-process.md shows another ${name}`);
  }
});
