/** A drop-in: whatever the rules have no word about is what `fetch` gives, byte for byte, and no sooner than asked for. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { guardedFetch } from '../../src/client/index.ts';
import { openSession, read, URL_OF } from '../support/guarded-session.ts';
import { block, error, priming, request, result } from '../support/messages.ts';
import type { scriptFetch } from '../support/scripted-fetch.ts';

describe('the body of an event stream', () => {
  const text = `﻿: hello\r\n\r\n${priming('p1')}${block({ id: 'n1', data: '{"é":"🔑"}' })}${block({ id: 'e1', data: result(1) })}data: tail`;

  test('arrives as it was sent, wherever it is cut', async () => {
    const bytes = Buffer.from(text);
    for (const size of [1, 2, 3, 7, 64, bytes.length]) {
      const session = await openSession();
      const { call, response } = await session.post(1);
      call.respond();
      const reader = (await response).body!.getReader();
      const seen: Uint8Array[] = [];
      for (let at = 0; at < bytes.length; at += size) {
        call.write(bytes.subarray(at, at + size));
        seen.push((await reader.read()).value!);
      }
      call.end();
      assert.equal((await reader.read()).done, true);
      assert.deepEqual(Buffer.concat(seen), bytes);
    }
  });

  test('is read from the server only as fast as the consumer asks', async () => {
    const session = await openSession();
    const { call, response } = await session.post(1);
    call.respond();
    const body = read(await response);
    for (let n = 0; n < 5; n += 1) {
      await new Promise((resolve) => setImmediate(resolve));
      assert.equal(call.pulls, n, 'nobody has asked for more');
      const piece = body.next();
      await session.script.until('the consumer to ask', () => call.pulls === n + 1);
      call.write(`data: ${n}\n\n`);
      await piece;
    }
  });

  test('is left when the consumer leaves', async () => {
    const session = await openSession();
    const { call, response } = await session.post(1);
    call.respond().write('data: 1\n\n');
    const body = read(await response);
    await body.next();
    await body.cancel();
    await session.script.until('the server to be left', () => call.cancelled);
  });

  test('can be read by the transforms that the SDK puts behind it', async () => {
    const session = await openSession();
    const { call, response } = await session.post(1);
    call.respond().write(text).end();
    let decoded = '';
    const stream = (await response).body!.pipeThrough(new TextDecoderStream());
    for await (const piece of stream as unknown as AsyncIterable<string>) decoded += piece;
    assert.equal(decoded, text.slice(1), 'without the byte order mark');
  });
});

describe('a response', () => {
  test('keeps its status, its fields and its URL', async (t) => {
    const url = await serve(t);
    for (const path of ['/stream', '/redirect', '/json', '/nothing']) {
      const [plain, guarded] = await Promise.all([fetch(url + path), guardedFetch()(url + path)]);
      assert.equal(guarded.status, plain.status);
      assert.equal(guarded.statusText, plain.statusText);
      assert.equal(guarded.url, plain.url);
      assert.equal(guarded.redirected, plain.redirected);
      const fields = ({ headers }: Response) => [...headers].filter(([name]) => name !== 'date');
      assert.deepEqual(fields(guarded), fields(plain));
      assert.equal(await guarded.text(), await plain.text());
    }
  });

  test('to a POST with JSON is the very same object', async () => {
    const session = await openSession();
    const { call, response } = await session.post(1);
    call.answer(200, { 'content-type': 'application/json' }, result(1));
    assert.equal(await response, await call.answered);
  });

  test('to a second `initialize` is read along, and arrives whole', async () => {
    const session = await openSession();
    const body = error(0);
    const { call, response } = await session.post({ body: request(0, 'initialize') });
    call.answer(200, { 'content-type': 'application/json', 'mcp-session-id': 's1' }, body);
    assert.equal(await (await response).text(), body);
  });

  test('whose body is no web stream passes unread', async () => {
    const foreign = { status: 200, headers: new Headers({ 'content-type': 'text/event-stream' }), body: { on() {} } };
    const fetch = guardedFetch(async () => foreign as unknown as Response);
    assert.equal(await fetch(URL_OF, { method: 'POST', body: request(1) }), foreign as unknown as Response);
  });
});

describe('a request', () => {
  for (const [what, body] of Object.entries({
    text: request(1),
    bytes: new TextEncoder().encode(request(1)),
    'a buffer': new TextEncoder().encode(request(1)).buffer,
  })) {
    test(`whose body is ${what} is understood`, async () => {
      const { fetch, script, get } = await openSession();
      const response = fetch(URL_OF, { method: 'POST', headers: { 'mcp-session-id': 's1' }, body });
      const call = await script.next('the POST');
      call
        .respond()
        .write(block({ id: 'e1', data: result(1) }))
        .end();
      await read(await response).all();
      void get('e1');
      assert.equal((await script.next('the resume')).cursor, null);
    });
  }

  test('that is a Request is understood, and its body still the server’s', async () => {
    const { fetch, script, get } = await openSession();
    const headers = { 'mcp-session-id': 's1', 'content-type': 'application/json' };
    const input = new Request(URL_OF, { method: 'POST', headers, body: request(1) });
    const response = fetch(input as unknown as URL);
    const call = await script.next('the POST');
    assert.equal(await (call.input as Request).text(), request(1));
    call
      .respond()
      .write(block({ id: 'e1', data: result(1) }))
      .end();
    await read(await response).all();
    void get('e1');
    assert.equal((await script.next('the resume')).cursor, null);
  });

  test('whose body can be read only once passes, and its cursors do', async () => {
    const { fetch, script, get } = await openSession();
    const body = new Blob([request(1)]).stream();
    const init = { method: 'POST', headers: { 'mcp-session-id': 's1' }, body, duplex: 'half' } as RequestInit;
    const response = fetch(URL_OF, init);
    const call = await script.next('the POST');
    assert.equal(call.init, init);
    call
      .respond()
      .write(block({ id: 'e1', data: result(1) }))
      .end();
    await read(await response).all();
    void get('e1');
    assert.equal((await script.next('the resume')).cursor, 'e1');
  });

  test('that fails rejects with what `fetch` rejected with', async () => {
    const { fetch } = guardedOf(() => Promise.reject(new TypeError('fetch failed')));
    await assert.rejects(fetch(URL_OF, { method: 'POST', body: request(1) }), { message: 'fetch failed' });
    const throwing = guardedOf(() => {
      throw new TypeError('not a promise');
    });
    await assert.rejects(throwing.fetch(URL_OF), { message: 'not a promise' });
  });
});

test('a listener that throws harms nobody', async () => {
  const session = await openSession({
    onresume() {
      throw new Error('my log is full');
    },
  });
  const { call, response } = await session.resume('p1');
  call.answer(404, { 'content-type': 'text/plain' }, 'gone');
  assert.equal((await response).status, 404);
});

test('the global fetch is the default', () => {
  assert.equal(typeof guardedFetch(), 'function');
});

function guardedOf(inner: ReturnType<typeof scriptFetch>['fetch']) {
  return { fetch: guardedFetch(inner) };
}

async function serve(t: TestContext): Promise<string> {
  const server = createServer((incoming, response) => {
    if (incoming.url === '/redirect') response.writeHead(302, { Location: '/stream' }).end();
    else if (incoming.url === '/json')
      response.writeHead(201, 'Made', { 'Content-Type': 'application/json' }).end('{}');
    else if (incoming.url === '/nothing') response.writeHead(204).end();
    else {
      response.writeHead(200, 'Fine', { 'Content-Type': 'text/event-stream', 'X-Own': 'yes' });
      response.end(block({ id: '1', data: 'x' }));
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
