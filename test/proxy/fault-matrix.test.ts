// Everything that can go wrong with a connection, on either side, at every point of every kind of exchange: what the
// other side sees of it, and that nothing of it stays behind.

import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { Exchange } from '../support/exchange.ts';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, initializeResult, priming, progress, result } from '../support/messages.ts';
import type { Reply } from '../support/reply.ts';
import { failureOf } from '../support/session.ts';
import { eventually, pause, within } from '../support/waiting.ts';

const SIDES = ['client', 'upstream'] as const;
const FAULTS = ['RST', 'FIN', 'stall', 'garbage'] as const;
const PHASES = [
  'before the head',
  'in the head',
  'after the head',
  'mid-event',
  'between events',
  'after the end',
] as const;
const KINDS = ['POST, JSON', 'POST, events', 'GET', 'resumed GET, held', 'resumed GET, committed'] as const;

interface Walk {
  readonly side: (typeof SIDES)[number];
  readonly fault: (typeof FAULTS)[number];
  readonly phase: (typeof PHASES)[number];
  readonly kind: (typeof KINDS)[number];
}

const MATRIX: readonly Walk[] = KINDS.flatMap((kind) =>
  PHASES.flatMap((phase) => SIDES.flatMap((side) => FAULTS.map((fault) => ({ side, fault, phase, kind })))),
).filter(
  ({ kind, phase }) => !(kind === 'resumed GET, committed' && phase.endsWith('the head') && phase !== 'after the head'),
);

const titleOf = ({ side, fault, phase, kind }: Walk): string => `${kind}: ${side} ${fault} ${phase}`;

const HEAD = {
  'POST, JSON': { 'Content-Type': 'application/json' },
  'POST, events': { 'Content-Type': 'text/event-stream' },
  GET: { 'Content-Type': 'text/event-stream' },
  'resumed GET, held': { 'Content-Type': 'text/event-stream' },
  'resumed GET, committed': { 'Content-Type': 'text/event-stream' },
} as const;

/** Under load a connection that has served may carry another walk by the time it dies, which would be its undoing. */
const ALONE_ONLY = (walk: Walk): boolean =>
  walk.side === 'upstream' && walk.phase === 'after the end' && walk.fault !== 'stall';

/** Longer than a stall, so that a held replay is still held after it. */
const REPLAY_HOLD = '5s';
const STALL = 60;

/** Hands the walks their exchanges, and answers what they need around them. */
class Field {
  readonly guard: Guard;
  readonly #waiting = new Map<string, (exchange: Exchange) => void>();

  constructor(guard: Guard) {
    this.guard = guard;
    guard.upstream.handle((exchange) => this.#handle(exchange));
  }

  async #handle(exchange: Exchange): Promise<void> {
    const query = new URL(exchange.target, 'http://x').searchParams;
    switch (query.get('do')) {
      case 'initialize':
        return exchange.json(200, initializeResult(), { 'Mcp-Session-Id': query.get('session') ?? '' });
      case 'begin':
        await exchange.events(priming('e1'));
        return exchange.cut();
      case 'ok':
        return exchange.answer(200, {}, 'ok');
      default:
        this.#waiting.get(exchange.target)?.(exchange);
    }
  }

  /** The exchange that will come for this target. */
  async exchange(target: string): Promise<Exchange> {
    const came = new Promise<Exchange>((resolve) => this.#waiting.set(target, resolve));
    return within(`a request for ${target}`, came, 10_000).finally(() => this.#waiting.delete(target));
  }

  /** A session whose request 7 was cut after its first event. */
  async interrupted(session: string): Promise<void> {
    const { client } = this.guard;
    const opened = await client.initialize({ path: `/mcp?do=initialize&session=${session}` });
    await opened.bytes(10_000);
    const cut = await client.post(7, { session, path: '/mcp?do=begin' });
    await cut.endedWithin(10_000);
    opened.destroy();
  }

  async stillWorks(): Promise<void> {
    const reply = await this.guard.client.post(1, { path: '/mcp?do=ok' });
    assert.equal(await reply.text(10_000), 'ok');
    reply.destroy();
  }
}

async function ask({ guard: { client } }: Field, kind: Walk['kind'], path: string, session: string): Promise<Reply> {
  if (kind.startsWith('POST')) return client.post(7, { path, session });
  return client.get({ path, session, ...(kind === 'GET' ? {} : { lei: 'e1' }) });
}

/** How far an exchange got. */
interface Point {
  /** The head is at the client, with these bytes; nothing while the head is still to come, or held back. */
  readonly seen: string | undefined;
  /** What the client will have got in the end. */
  readonly whole: string;
  /** Does what is left for a good end. */
  readonly complete: () => Promise<void>;
}

/** Takes an exchange to the point where something is to go wrong. */
async function reach(exchange: Exchange, { kind, phase }: Walk): Promise<Point> {
  const isJson = kind === 'POST, JSON';
  const first = kind === 'resumed GET, committed' ? block({ id: 'x0', data: progress(7) }) : '';
  const event = isJson ? result(7) : block({ id: 'x1', data: result(7) });
  const half = event.slice(0, 20);
  const whole = first + event;
  const head = async (): Promise<void> => {
    await exchange.head(200, HEAD[kind]);
    if (first !== '') await exchange.write(first);
  };
  const isHeld = kind === 'resumed GET, held';
  switch (phase) {
    case 'before the head':
      return { seen: undefined, whole, complete: () => head().then(() => exchange.end(event)) };
    case 'in the head': {
      const text = `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: ${HEAD[kind]['Content-Type']}\r\n\r\n`;
      await exchange.raw(text.slice(0, 30));
      return { seen: undefined, whole, complete: () => exchange.raw(text.slice(30)).then(() => exchange.end(event)) };
    }
    case 'after the head':
      await head();
      return { seen: isHeld ? undefined : first, whole, complete: () => exchange.end(event) };
    case 'mid-event':
      await head();
      await exchange.write(half);
      return { seen: isHeld ? undefined : first + half, whole, complete: () => exchange.end(event.slice(20)) };
    case 'between events':
      await head();
      await exchange.write(event);
      return { seen: whole, whole, complete: () => exchange.end() };
    case 'after the end':
      await head();
      await exchange.end(event);
      return { seen: whole, whole, complete: async () => {} };
  }
}

async function upstreamFails(exchange: Exchange, reply: Reply, { fault, phase }: Walk, point: Point): Promise<void> {
  const isOver = phase === 'after the end';
  if (fault === 'stall') {
    const before = reply.body.length;
    await pause(STALL);
    assert.equal(reply.body.length, before);
    await point.complete();
  } else if (fault === 'RST') {
    exchange.reset();
  } else if (fault === 'FIN') {
    exchange.socket.end();
  } else {
    await exchange.raw(phase === 'in the head' ? '\u0000garbage\r\n\r\n' : 'garbage\r\n\r\n').catch(() => {});
  }
  if (isOver || fault === 'stall') {
    assert.equal(await reply.text(10_000), point.whole);
  } else if (point.seen === undefined) {
    assert.equal(await failureOf(reply), 502);
  } else {
    assert.equal(await reply.endedWithin(10_000), 'cut');
    assert.equal(reply.body.toString(), point.seen);
  }
  if (fault === 'garbage') await exchange.left(10_000);
}

async function clientFails(exchange: Exchange, reply: Reply, { fault, phase }: Walk, point: Point): Promise<void> {
  const { connection } = reply;
  if (fault === 'stall') {
    reply.pause();
    await pause(STALL);
    await point.complete();
    reply.resume();
    assert.equal(await reply.text(10_000), point.whole);
  } else if (fault === 'garbage') {
    const refused = connection.expect();
    connection.write('garbage\r\n\r\n');
    await pause(5);
    await point.complete();
    assert.equal(await reply.text(10_000), point.whole);
    assert.equal(await failureOf(refused), 400);
    await connection.closed(10_000);
  } else {
    if (fault === 'RST') connection.reset();
    else connection.halfClose();
    if (phase === 'after the end') await connection.closed(10_000);
    else await exchange.left(10_000);
  }
}

/** One walk: from a question, to where it goes wrong, to what the other side sees of that. */
async function run(field: Field, walk: Walk, n: number, session = 's-1'): Promise<void> {
  const path = `/mcp?walk=${n}`;
  if (walk.kind.startsWith('resumed')) await field.interrupted(session);
  const coming = field.exchange(path);
  const reply = await ask(field, walk.kind, path, session);
  const exchange = await coming;
  const point = await reach(exchange, walk);
  if (point.seen !== undefined) {
    await reply.headWithin(10_000);
    await reply.until(point.seen, 10_000);
  }
  await (walk.side === 'client' ? clientFails : upstreamFails)(exchange, reply, walk, point);
  reply.destroy();
}

async function startField(t: TestContext): Promise<Field> {
  const bounds = { streamsPerSession: 20, eventIdsPerStream: 20 };
  return new Field(await startGuard(t, { file: { replayHold: REPLAY_HOLD, log: { level: 'fatal' }, bounds } }));
}

/** Sockets of this process: of the client, of the upstream, and both kinds of the proxy’s. */
const sockets = (): number => process.getActiveResourcesInfo().filter((kind) => kind === 'TCPSocketWrap').length;

describe('the matrix', { concurrency: 8 }, () => {
  for (const [n, walk] of MATRIX.entries()) {
    test(titleOf(walk), async (t) => {
      const field = await startField(t);
      await run(field, walk, n);
      await field.stillWorks();
    });
  }
});

test('a thousand random walks of the matrix under load leave sockets, listeners and heap where they were', {
  timeout: 120_000,
}, async (t) => {
  const field = await startField(t);
  const seed = Number(process.env['WALK_SEED'] ?? Date.now() % 2 ** 31);
  t.diagnostic(`WALK_SEED=${seed}`);
  let state = seed | 1;
  const random = (below: number): number => {
    // Marsaglia's xorshift32.
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
  const crowded = MATRIX.filter((walk) => !ALONE_ONLY(walk));
  let n = 0;
  const walks = async (count: number): Promise<void> => {
    const last = n + count;
    const walker = async (_: unknown, session: number): Promise<void> => {
      while (n < last) {
        const own = n;
        n += 1;
        const walk = crowded[random(crowded.length)]!;
        await run(field, walk, own, `s-${session}`).catch((fault) => {
          throw new Error(`walk ${own}, seed ${seed}, ${titleOf(walk)}: ${fault}`, { cause: fault });
        });
      }
    };
    await Promise.all(Array.from({ length: 24 }, walker));
    await field.stillWorks();
    field.guard.client.close();
    // Idle connections to upstream go after four seconds.
    await eventually('upstream to be left alone', () => field.guard.upstream.open === 0, 8_000);
    // What the scripted upstream remembers is not the proxy's.
    (field.guard.upstream.requests as Exchange[]).length = 0;
  };
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const heap = async (): Promise<number> => {
    for (let round = 0; round < 3; round += 1) {
      collect();
      await pause(20);
    }
    return process.memoryUsage().heapUsed;
  };
  const before = sockets();
  await walks(200);
  await eventually('the sockets to go', () => sockets() <= before);
  const warm = await heap();
  await walks(1_000);
  await eventually('the sockets to go', () => sockets() <= before);
  const grown = ((await heap()) - warm) / 1_048_576;
  t.diagnostic(`the heap grew by ${grown.toFixed(2)} MiB`);
  // Two KiB a walk go to what the admin page shows, up to its bound. An exchange that stays behind is ten times that.
  assert.ok(grown < 6, `${grown} MiB`);
});
