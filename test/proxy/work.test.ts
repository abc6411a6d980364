/**
 * How much the proxy does for an event and for a request, counted and not timed: a change that makes it do more fails
 * here on any machine. The figures are of one run after another has warmed it up.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type Client, createClient } from '../support/client.ts';
import { block, notification, priming, result } from '../support/messages.ts';
import { type ProxyProcess, startProcess } from '../support/proxy-process.ts';
import { openSession } from '../support/session.ts';
import { startUpstream, type Upstream } from '../support/upstream.ts';
import { eventually } from '../support/waiting.ts';
import type { Work } from '../support/work-counter.ts';

interface Setup {
  readonly upstream: Upstream;
  readonly client: Client;
  readonly session: string;
  /** What has been done since the last call. */
  work(): Promise<Work>;
}

async function setUp(t: TestContext): Promise<Setup> {
  const upstream = await startUpstream();
  const counter = new URL('../support/work-counter.ts', import.meta.url);
  const proxy: ProxyProcess = await startProcess(t, [`${upstream.url}/mcp`], counter);
  const client = createClient(proxy.url);
  t.after(async () => {
    client.close();
    await upstream.kill();
    assert.deepEqual(upstream.failures, []);
  });
  const said = (): readonly object[] => proxy.lines.filter(({ event }) => event === 'work');
  const work = async (): Promise<Work> => {
    const before = said().length;
    proxy.child.kill('SIGUSR2');
    await eventually('the counts', () => said().length > before);
    return said().at(-1) as Work;
  };
  return { upstream, client, session: await openSession(client, upstream, 's-1'), work };
}

const EVENTS = 20_000;
const BATCH = 40;

/** A stream of many events; `sends` writes a batch of them. */
async function stream(
  { upstream, client, session, work }: Setup,
  id: number,
  sends: (exchange: Awaited<ReturnType<Upstream['next']>>, blocks: readonly string[]) => Promise<void>,
): Promise<{ work: Work; bytes: number }> {
  const reply = await client.post(id, { session });
  const exchange = await upstream.next();
  await exchange.events(priming(`prime-${id}`));
  await reply.head;
  await work();
  let bytes = 0;
  for (let sent = 0; sent < EVENTS; sent += BATCH) {
    const blocks = Array.from({ length: BATCH }, (_, i) =>
      block({
        id: `${'x'.repeat(50)}-${id}-${sent + i}`,
        data: notification('notifications/message', { level: 'info', data: sent + i }),
      }),
    );
    bytes += blocks.join('').length;
    await sends(exchange, blocks);
  }
  await exchange.end(block({ id: `end-${id}`, data: result(id) }));
  await reply.bytes();
  reply.destroy();
  return { work: await work(), bytes };
}

test('an event costs no look at the store, next to no promise, and few bytes', async (t) => {
  const setup = await setUp(t);
  for (const [name, sends] of [
    ['each a chunk', (exchange, blocks) => exchange.writeEach(blocks)],
    ['together in a chunk', (exchange, blocks) => exchange.write(blocks.join(''))],
  ] as const satisfies readonly (readonly [string, Parameters<typeof stream>[2]])[]) {
    await stream(setup, 1, sends);
    const { work, bytes } = await stream(setup, 2, sends);
    const each = (count: number): number => count / EVENTS;
    t.diagnostic(`${name}: ${JSON.stringify(work)}, ${bytes} bytes`);
    assert.ok(work.store <= 2, `${name}: ${work.store} calls of the store for a whole stream`);
    assert.ok(each(work.promises) <= 0.01, `${name}: ${each(work.promises)} promises an event`);
    assert.ok(each(work.writes) <= 0.1, `${name}: ${each(work.writes)} writes an event`);
    assert.ok(work.joined <= 1.2 * bytes, `${name}: ${work.joined} bytes joined of ${bytes}`);
    assert.ok(each(work.allocated) <= 500, `${name}: ${each(work.allocated)} bytes allocated an event`);
  }
});

const REQUESTS = 1_000;

test('a small request with a small answer costs one write, one look at the store, no promise, and few bytes', async (t) => {
  const setup = await setUp(t);
  const { upstream, client, session, work } = setup;
  upstream.handle((exchange) => exchange.json(200, result(1)));
  const connection = await client.connect();
  const requests = async (): Promise<void> => {
    for (let i = 0; i < REQUESTS; i += 1) await (await client.post(1, { session, on: connection })).bytes();
  };
  await requests();
  await work();
  await requests();
  const done = await work();
  t.diagnostic(JSON.stringify(done));
  const each = (count: number): number => count / REQUESTS;
  assert.ok(each(done.store) <= 1.01, `${each(done.store)} calls of the store a request`);
  assert.ok(each(done.writes) <= 1.01, `${each(done.writes)} writes a request`);
  assert.ok(each(done.promises) <= 0.01, `${each(done.promises)} promises a request`);
  assert.ok(each(done.ticks) <= 10, `${each(done.ticks)} ticks a request`);
  assert.equal(done.joined, 0, 'nothing is put together');
  assert.ok(each(done.allocated) <= 30_000, `${each(done.allocated)} bytes allocated a request`);
});
