// kill -9 during load: of a replica, of Redis, of a master in a Cluster. No result is lost, and no strip is wrong.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { type Counts, runCrowd, startReplayServer } from '../support/crowd.ts';
import { type ProxyProcess, startProcess } from '../support/proxy-process.ts';
import { startCluster, startRedis } from '../support/redis.ts';
import { SECRET } from '../support/replicas.ts';
import { pause } from '../support/waiting.ts';

/** How long before, and how long after each death, in ms. */
const BETWEEN = 800;

/** Two replicas as processes under load, while `deaths` runs. */
async function under(
  t: TestContext,
  store: string,
  deaths: (replicas: (ProxyProcess | null)[], start: () => Promise<ProxyProcess>) => Promise<void>,
): Promise<Counts> {
  const server = await startReplayServer();
  t.after(() => server.close());
  const directory = mkdtempSync(join(tmpdir(), 'mrg-kills-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const config = join(directory, 'guard.json');
  // As config/replicas.yaml has it. These clients leave with bytes unread that their kernel has acknowledged, which a
  // connection cannot tell from having read them.
  const deliveryProof = 'event-id';
  const upstream = { url: `${server.url}/mcp` };
  const file = { upstream, store, storeSecret: SECRET, deliveryProof, replayHold: '300ms' };
  writeFileSync(config, JSON.stringify(file));
  const start = (): Promise<ProxyProcess> => startProcess(t, ['--config', config, '--log-level', 'warn']);
  const replicas: (ProxyProcess | null)[] = await Promise.all([start(), start()]);
  let over = false;
  const crowd = runCrowd({
    server,
    replicas: () => replicas.map((one) => one?.url ?? null),
    clients: 20,
    over: () => over,
  });
  await pause(BETWEEN);
  await deaths(replicas, start);
  await pause(BETWEEN);
  over = true;
  const counts = await crowd;
  t.diagnostic(JSON.stringify(counts));
  return counts;
}

function nothingIsLost(counts: Counts): void {
  assert.deepEqual(counts.lost, [], 'every call that was begun has its result');
  assert.equal(counts.wrongStrips, 0);
  assert.ok(counts.calls > 50 && counts.resumes > 50, `there was load: ${JSON.stringify(counts)}`);
}

test('a replica is killed three times, and started again', async (t) => {
  const redis = await startRedis(t);
  const counts = await under(t, redis.url, async (replicas, start) => {
    for (const at of [0, 1, 0]) {
      const victim = replicas[at]!;
      replicas[at] = null;
      victim.child.kill('SIGKILL');
      await victim.exited();
      await pause(BETWEEN / 2);
      replicas[at] = await start();
      await pause(BETWEEN);
    }
  });
  nothingIsLost(counts);
});

test('Redis is killed, stays away for a while, and comes back empty', async (t) => {
  const redis = await startRedis(t);
  const counts = await under(t, redis.url, async () => {
    for (let round = 0; round < 2; round += 1) {
      await redis.kill();
      await pause(BETWEEN);
      await redis.restart();
      await pause(BETWEEN);
    }
  });
  nothingIsLost(counts);
});

test('a master of a Cluster is killed, and comes back empty', async (t) => {
  const { url, nodes } = await startCluster(t);
  const counts = await under(t, url, async () => {
    await nodes[0]!.kill();
    await pause(2 * BETWEEN);
    await nodes[0]!.restart();
    await pause(BETWEEN);
  });
  nothingIsLost(counts);
});
