/** Opens MCP sessions through the proxy, so that a test can begin where its subject begins. */

import assert from 'node:assert/strict';
import type { Client, McpOptions } from './client.ts';
import type { Exchange } from './exchange.ts';
import { initializeResult, type RpcId } from './messages.ts';
import type { Reply } from './reply.ts';
import type { Upstream } from './upstream.ts';

/** Runs `initialize`; the upstream answers it with this session ID. The caller is approved from then on. */
export async function openSession(
  client: Client,
  upstream: Upstream,
  id: string,
  options: McpOptions = {},
): Promise<string> {
  const reply = await client.initialize(options);
  const exchange = await upstream.next({ method: 'POST' });
  await exchange.json(200, initializeResult(), { 'Mcp-Session-Id': id });
  const head = await reply.head;
  assert.equal(head.status, 200, 'initialize passes');
  assert.equal(head.field('mcp-session-id'), id);
  await reply.bytes();
  return id;
}

/** Both ends of one exchange. */
export interface Pair {
  readonly reply: Reply;
  readonly exchange: Exchange;
}

/** A POST of one request whose answer is an open event stream with these blocks, all of them at the client. */
export async function postStream(
  client: Client,
  upstream: Upstream,
  id: RpcId | { readonly body: string },
  options: McpOptions,
  ...blocks: readonly string[]
): Promise<Pair> {
  const reply = await client.post(id, options);
  const exchange = await upstream.next({ method: 'POST' });
  await exchange.events(...blocks);
  await reply.head;
  if (blocks.length > 0) await reply.until(blocks.join(''));
  return { reply, exchange };
}

/** A POST whose event stream holds these blocks and ended well. */
export async function finishedPost(...args: Parameters<typeof postStream>): Promise<Pair> {
  const pair = await postStream(...args);
  await pair.exchange.end();
  assert.equal(await pair.reply.ended, 'end');
  return pair;
}

/** A POST whose event stream holds these blocks and was cut. */
export async function cutPost(...args: Parameters<typeof postStream>): Promise<Pair> {
  const pair = await postStream(...args);
  pair.exchange.cut();
  assert.equal(await pair.reply.ended, 'cut');
  return pair;
}

/** A GET through the proxy that reached the upstream. */
export async function forwardedGet(client: Client, upstream: Upstream, options: McpOptions): Promise<Pair> {
  const reply = await client.get(options);
  const exchange = await upstream.next({ method: 'GET' });
  return { reply, exchange };
}

/**
 * What becomes of a resume: the `Last-Event-ID` that the upstream saw, `stripped`, or the rule of the refusal where
 * the upstream saw nothing. The upstream answers 405, which every rule lets through and nothing keeps state of.
 */
export async function fateOf(client: Client, upstream: Upstream, options: McpOptions): Promise<Fate> {
  const reply = await client.get(options);
  const exchange = await upstream.nextUnless(reply.ended, { method: 'GET' });
  if (exchange === undefined) {
    const { status, rule } = await refusalOf(reply);
    return `refused ${status} ${rule}`;
  }
  await exchange.answer(405, { Allow: 'POST' });
  assert.equal((await reply.head).status, 405, 'the 405 of the upstream passes');
  await reply.bytes();
  const cursor = exchange.field('last-event-id');
  return cursor === undefined ? 'stripped' : `forwarded ${cursor}`;
}

export type Fate = 'stripped' | `forwarded ${string}` | `refused ${number} ${string}`;

export interface Refusal {
  readonly status: number;
  readonly rule: string;
  readonly retry: string;
  readonly proxyStatus: string | undefined;
}

/** Reads a refusal of the proxy's own and checks its form (contract, section 7). */
export async function refusalOf(reply: Reply): Promise<Refusal> {
  const head = await reply.head;
  const text = await reply.text();
  assert.equal(head.field('content-type'), 'application/json', `a refusal is JSON; got ${head.status} ${text}`);
  assert.equal(head.field('cache-control'), 'no-store');
  const body = JSON.parse(text);
  assert.equal(body.jsonrpc, '2.0');
  assert.ok(!('id' in body), 'a refusal answers no request');
  assert.equal(body.error.code, -32010);
  assert.equal(typeof body.error.message, 'string');
  const { rule, retry } = body.error.data;
  return { status: head.status, rule, retry, proxyStatus: head.field('proxy-status') };
}

/** A plain failure of the proxy's own: JSON `{"error":"…"}` and nothing of JSON-RPC (contract, section 7). */
export async function failureOf(reply: Reply): Promise<number> {
  const head = await reply.head;
  const body = JSON.parse(await reply.text());
  assert.match(head.field('content-type') ?? '', /^application\/json/);
  assert.deepEqual(Object.keys(body), ['error']);
  assert.equal(typeof body.error, 'string');
  return head.status;
}

/** Answers with an event stream that ends without a byte. */
export async function answerEmpty(exchange: Exchange): Promise<void> {
  await exchange.events();
  await exchange.end();
}
