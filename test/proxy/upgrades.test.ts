/** What is seen of a WebSocket that passes: one line and one count when it ends, like any other exchange. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Guard, type LogLine, startGuard } from '../support/guard.ts';
import { eventually } from '../support/waiting.ts';

const UPGRADE = { Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Key': 'x' };
const [DEBUG, WARN] = [20, 40];

const ask = ({ client }: Guard) => client.send({ method: 'GET', path: '/mcp?key=hush', fields: UPGRADE });

/** The one line of an upgrade that is over; it is there when the metrics have counted it too. */
async function lineOf(guard: Guard): Promise<LogLine> {
  const lines = () => guard.logs.filter(({ event }) => event === 'exchange');
  await eventually('a line', () => lines().length > 0);
  assert.equal(lines().length, 1);
  assert.equal(await guard.metric('exchange_seconds_count'), 1);
  assert.doesNotMatch(JSON.stringify(lines()), /hush/);
  return lines()[0]!;
}

const seen = ({ level, method, path, status, error, clientLeft }: LogLine) => ({
  level,
  method,
  path,
  status,
  ...(error !== undefined && { error }),
  ...(clientLeft !== undefined && { clientLeft }),
});

test('an upgrade is one line at debug and one exchange in the metrics, when its connection closes', async (t) => {
  const guard = await startGuard(t);
  const reply = await ask(guard);
  const exchange = await guard.upstream.next();
  await exchange.head(101, UPGRADE);
  assert.equal((await reply.head).status, 101);
  assert.deepEqual(
    guard.logs.filter(({ event }) => event === 'exchange'),
    [],
  );
  exchange.cut();
  const line = await lineOf(guard);
  assert.deepEqual(seen(line), { level: DEBUG, method: 'GET', path: '/mcp', status: 101 });
  assert.ok(Number(line['headMs']) <= Number(line['durationMs']), JSON.stringify(line));
});

test('an upgrade that upstream declines is told with the status it gave', async (t) => {
  const guard = await startGuard(t);
  const reply = await ask(guard);
  await (await guard.upstream.next()).answer(403, {}, 'no');
  assert.equal(await reply.text(), 'no');
  assert.deepEqual(seen(await lineOf(guard)), { level: DEBUG, method: 'GET', path: '/mcp', status: 403 });
});

test('an upgrade without an upstream is a warning', async (t) => {
  const guard = await startGuard(t);
  await guard.upstream.kill();
  assert.equal((await (await ask(guard)).head).status, 502);
  const error = 'upstream-refused';
  assert.deepEqual(seen(await lineOf(guard)), { level: WARN, method: 'GET', path: '/mcp', status: 502, error });
  await guard.upstream.restart();
});

for (const [name, status, how] of [
  ['an upgraded connection that upstream resets', 101, 'reset'],
  ['an answer to an upgrade that upstream resets', 403, 'reset'],
  ['an answer to an upgrade that upstream cuts short', 403, 'cut'],
] as const) {
  test(`${name} is a warning`, async (t) => {
    const guard = await startGuard(t);
    const reply = await ask(guard);
    const exchange = await guard.upstream.next();
    await exchange.head(status, UPGRADE, { framing: status === 101 ? 'none' : 'length:10' });
    await reply.head;
    exchange[how]();
    const error = 'upstream-reset';
    assert.deepEqual(seen(await lineOf(guard)), { level: WARN, method: 'GET', path: '/mcp', status, error });
  });
}

test('a client that leaves before an answer to its upgrade is no failure', async (t) => {
  const guard = await startGuard(t);
  const reply = await ask(guard);
  await guard.upstream.next();
  reply.connection.reset();
  const left = { level: DEBUG, method: 'GET', path: '/mcp', status: 0, clientLeft: true };
  assert.deepEqual(seen(await lineOf(guard)), left);
});

test('a client that leaves an upgraded connection is no failure', async (t) => {
  const guard = await startGuard(t);
  const reply = await ask(guard);
  await (await guard.upstream.next()).head(101, UPGRADE);
  await reply.head;
  reply.connection.reset();
  assert.deepEqual(seen(await lineOf(guard)), { level: DEBUG, method: 'GET', path: '/mcp', status: 101 });
});
