/**
 * Runs the worked examples of `docs/decisions.md` over real sockets. A line says what the client (`C`) or the upstream
 * (`U`) sends, or what it gets; its parts stand two blanks or more apart, and a remark begins with ` ; `.
 *
 *     C  POST /mcp  request 3
 *     U  200  {id e1, data -}  {id e2, result 3}  end
 *     C  GET /mcp  Last-Event-ID: e2
 *     U  gets GET /mcp  no Last-Event-ID        ; stripped
 *     U  405
 *     C  gets 405
 *
 * Unless a line names another, every request carries the session `s-1`. A line `10 times` runs the lines up to the next
 * empty one so often; a line `with key: value` sets a key of the configuration.
 */
import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import type { ConfigFile } from '../../src/config.ts';
import type { Exchange } from './exchange.ts';
import { type Guard, startGuard } from './guard.ts';
import {
  block,
  error,
  initializeRequest,
  initializeResult,
  notification,
  progress,
  request,
  result,
} from './messages.ts';
import type { Reply } from './reply.ts';
import { openSession } from './session.ts';
import { type Field, valuesOf } from './wire.ts';

const HOLD = 150;
const DEADLINE = 300;
/** A timer may fire this much early by the other clock, in ms. */
const EARLY = 20;

/** Runs one example and returns the guard it ran on. Fails where the wire is not as the example says. */
export async function runExample(t: TestContext, text: string): Promise<Guard> {
  const lines = text.split('\n');
  const settings = lines.flatMap((line) => /^with (\w+): (\w+)$/.exec(line)?.slice(1, 3) ?? []);
  const file = {
    replayHold: `${HOLD}ms`,
    replayDeadline: `${DEADLINE}ms`,
    ...Object.fromEntries(settings.flatMap((key, i) => (i % 2 === 0 ? [[key, settings[i + 1]]] : []))),
  } as ConfigFile;
  const guard = await startGuard(t, { file });
  await openSession(guard.client, guard.upstream, 's-1');
  const play = new Play(guard);
  for (const line of unrolled(lines)) {
    try {
      await play.line(line);
    } catch (fault) {
      throw new Error(`at the line "${line}": ${fault instanceof Error ? fault.message : fault}`, { cause: fault });
    }
  }
  await play.settled();
  return guard;
}

function unrolled(lines: readonly string[]): string[] {
  const out: string[] = [];
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i]!.replace(/\s+; .*$/, '').trimEnd();
    const times = /^(\d+) times$/.exec(line)?.[1];
    if (times === undefined) {
      if (line !== '' && !line.startsWith('with ')) out.push(line);
      continue;
    }
    const until = lines.indexOf('', i);
    const round = unrolled(lines.slice(i + 1, until === -1 ? lines.length : until));
    for (let n = 0; n < Number(times); n++) out.push(...round);
    i = until === -1 ? lines.length : until;
  }
  return out;
}

const FIELD = /^([\w-]+): (.*)$/;
const isBlock = (part: string): boolean => part.startsWith('{') || part.startsWith(':');

/** The blocks of an example as they travel. */
function blockOf(part: string): string {
  if (part.startsWith(':')) return `${part}\n\n`;
  const words = part
    .replace(/^\{|\}$/g, '')
    .split(', ')
    .map((word) => word.split(' '));
  const wordsOf = (name: string): string | undefined =>
    words
      .find(([word]) => word === name)
      ?.slice(1)
      .join(' ');
  const id = wordsOf('id');
  const retry = wordsOf('retry');
  return block({
    ...(id === undefined ? {} : { id }),
    ...(retry === undefined ? {} : { retry: Number(retry) }),
    ...dataOf(wordsOf),
  });
}

function dataOf(wordsOf: (name: string) => string | undefined): { data?: string } {
  const [data, answer, failure, step, note] = ['data', 'result', 'error', 'progress', 'notification'].map(wordsOf);
  if (answer !== undefined) return { data: result(Number(answer)) };
  if (failure !== undefined) return { data: error(Number(failure)) };
  if (step !== undefined) return { data: progress(Number(step)) };
  if (note !== undefined) return { data: notification(`notifications/${note}`) };
  return data === undefined ? {} : { data: data === '-' ? '' : data };
}

class Play {
  readonly #guard: Guard;
  #method = '';
  #askedAt = 0;
  #answeredAt = 0;
  #reply: Reply | null = null;
  #exchange: Exchange | null = null;
  /** What the client has to have before it goes on. */
  #due: (() => Promise<unknown>) | null = null;
  /** The event ID that came with an answer of the guard's own. */
  #minted = '';

  constructor(guard: Guard) {
    this.#guard = guard;
  }

  async line(line: string): Promise<void> {
    const [who, first = '', ...rest] = line.split(/ {2,}/);
    if (who === 'C') {
      if (first === 'leaves') this.#reply?.destroy();
      else if (first.startsWith('gets ')) await this.#clientGets(first.slice(5), rest);
      else await this.#send(first, rest);
    } else if (who === 'U') {
      if (first === 'gets nothing') await this.#nobodyAsked();
      else if (first === 'loses the client') await (await this.#upstreamHas()).left();
      else if (first.startsWith('gets ')) await this.#upstreamGets(first.slice(5), rest);
      else await this.#answer([first, ...rest]);
    } else throw new Error('neither the client nor the upstream');
  }

  /** The client has what was sent to it. */
  async settled(): Promise<void> {
    await this.#due?.();
    this.#due = null;
  }

  async #send(start: string, parts: readonly string[]): Promise<void> {
    await this.settled();
    const [method = '', path = ''] = start.split(' ');
    const fields: Field[] = [];
    let body: string | undefined;
    for (const part of parts) {
      const [, name, value] = FIELD.exec(part) ?? [];
      if (name !== undefined) fields.push([name, value === 'the same ID' ? this.#minted : (value ?? '')]);
      else if (part === 'initialize') body = initializeRequest();
      else body = request(Number(/^request (\d+)$/.exec(part)?.[1]));
    }
    if (valuesOf(fields, 'mcp-session-id').length === 0) fields.push(['Mcp-Session-Id', 's-1']);
    this.#method = method;
    this.#exchange = null;
    this.#askedAt = performance.now();
    this.#reply = await this.#guard.client.send({ method, path, fields, ...(body === undefined ? {} : { body }) });
  }

  async #upstreamHas(): Promise<Exchange> {
    this.#exchange ??= await this.#guard.upstream.next({ method: this.#method });
    return this.#exchange;
  }

  async #upstreamGets(start: string, parts: readonly string[]): Promise<void> {
    const exchange = await this.#upstreamHas();
    assert.equal(`${exchange.method} ${exchange.target}`, start);
    for (const part of parts) {
      const [, name, value] = FIELD.exec(part) ?? [];
      if (name === undefined) assert.deepEqual(exchange.values(part.replace(/^no /, '')), [], part);
      else assert.ok(exchange.values(name).includes(value!), `${part}: ${exchange.values(name)}`);
    }
  }

  async #nobodyAsked(): Promise<void> {
    const asked = await this.#guard.upstream.nextUnless(this.#reply!.ended, { method: this.#method });
    assert.equal(asked, undefined, 'upstream was asked');
  }

  async #answer(parts: readonly string[]): Promise<void> {
    const exchange = await this.#upstreamHas();
    const reply = this.#reply!;
    const [first = ''] = parts;
    const status = /^\d{3}$/.test(first) ? Number(first) : null;
    const fields = parts.flatMap((part) => {
      const [, name, value] = FIELD.exec(part) ?? [];
      return name === undefined || isBlock(part) ? [] : [[name, value!] as const];
    });
    const blocks = parts.filter(isBlock).map(blockOf);
    const ending = parts.find((part) => ['end', 'cut', 'stays open'].includes(part));
    if (status !== null) {
      if (parts.includes('result of initialize')) await exchange.json(status, initializeResult(), fields);
      else if (ending === undefined) await exchange.answer(status, fields);
      else await exchange.head(status, [['Content-Type', 'text/event-stream'], ...fields]);
    }
    for (const bytes of blocks) await exchange.write(bytes);
    // What the client has not got yet, it must not lose with the connection.
    if (this.#method === 'POST' && blocks.length > 0) await reply.until(blocks.join(''));
    if (ending === 'end') await exchange.end();
    if (ending === 'cut') exchange.cut();
    this.#answeredAt = performance.now();
    if (ending !== 'stays open' && (ending !== undefined || status !== null)) this.#due = () => reply.ended;
  }

  async #clientGets(start: string, parts: readonly string[]): Promise<void> {
    const reply = this.#reply!;
    const head = await reply.head;
    assert.equal(String(head.status), start);
    const blocks: string[] = [];
    for (const part of parts) {
      const [, name, value] = FIELD.exec(part) ?? [];
      if (isBlock(part)) blocks.push(blockOf(part));
      else if (name !== undefined) assert.ok(head.values(name).includes(value!), `${part}: ${head.values(name)}`);
      else if (part === 'end' || part === 'cut') assert.equal(await reply.ended, part);
      else if (part === 'after replayHold') this.#waited(head.at - this.#answeredAt, HOLD);
      else if (part === 'after replayDeadline') this.#waited(head.at - this.#askedAt, DEADLINE);
      else if (part.startsWith('error for ')) await this.#isErrorEvent(reply, Number(part.slice(10)));
      else if (part === 'stays open') assert.equal(reply.endedAt, undefined, 'it is over');
      else if (part.startsWith('no ')) assert.deepEqual(head.values(part.slice(3)), [], part);
      else await this.#isRefusal(reply, part);
    }
    if (blocks.length > 0) {
      await reply.until(blocks.join(''));
      assert.equal(reply.body.toString(), blocks.join(''));
    }
  }

  #waited(took: number, least: number): void {
    assert.ok(took > least - EARLY, `waited ${took} ms, not ${least}`);
  }

  async #isRefusal(reply: Reply, rule: string): Promise<void> {
    const text = await reply.text();
    assert.equal(/"rule":"([\w-]+)"/.exec(text)?.[1], rule, text);
  }

  async #isErrorEvent(reply: Reply, id: number): Promise<void> {
    const text = await reply.text();
    const [, minted = '', data = ''] = /^event: message\nid: (.*)\ndata: (.*)\n\n$/.exec(text) ?? [];
    const message = JSON.parse(data);
    assert.deepEqual([message.id, message.error.code], [id, -32010]);
    this.#minted = minted;
  }
}
