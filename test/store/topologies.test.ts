// The same ledger in a Cluster, behind Sentinels, and over TLS; and what becomes of it when a master is killed.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { makeAuthority } from '../support/authority.ts';
import { block, priming, result } from '../support/messages.ts';
import { freePort, startCluster, startRedis, startSentinel } from '../support/redis.ts';
import { type ReplicaGuard, startReplicas } from '../support/replicas.ts';
import { cutPost, fateOf, finishedPost, openSession } from '../support/session.ts';
import { eventually } from '../support/waiting.ts';

const fate = ({ client, upstream }: ReplicaGuard, session: string, lei: string) =>
  fateOf(client, upstream, { session, lei });

/** What one replica learns in this session reaches the other. */
async function shares(a: ReplicaGuard, b: ReplicaGuard, session: string, event: string): Promise<void> {
  const blocks = [priming(`${event}-1`), block({ id: event, data: result(event) })];
  await finishedPost(a.client, a.upstream, event, { session }, ...blocks);
  await eventually('the other to know', async () => (await fate(b, session, event)) === 'stripped', 20_000);
}

const SESSIONS = Array.from({ length: 12 }, (_, n) => `s-${n}`);

test('a Cluster of three: sessions on every node, each in one slot, and one master killed', async (t) => {
  const { url, nodes } = await startCluster(t);
  const replicas = await startReplicas(t, url);
  const [a, b] = [await replicas.start(), await replicas.start()];
  for (const session of SESSIONS) {
    await openSession(a.client, a.upstream, session);
    await shares(a, b, session, 'e1');
  }
  const sizes = await Promise.all(nodes.map(async (node) => Number(await node.command('DBSIZE'))));
  assert.equal(
    sizes.reduce((sum, size) => sum + size),
    SESSIONS.length + 1,
    'a key for each session, and the beats',
  );
  assert.ok(
    sizes.every((size) => size > 0),
    `keys on every node: ${sizes.join()}`,
  );
  for (const replica of [a, b]) assert.equal(await replica.metric('store_errors_total'), 0);

  await nodes[1]!.kill();
  for (const session of SESSIONS) {
    // Whatever node it is on: nothing is lost, a result that the other replica may not know of is asked for.
    await cutPost(a.client, a.upstream, 2, { session }, priming('f1'));
    assert.equal(await fate(a, session, 'f1'), 'forwarded f1');
    assert.equal(await fate(b, session, 'e1'), 'stripped');
  }
  await nodes[1]!.restart();
  for (const session of SESSIONS) await shares(b, a, session, 'g1');
});

test('Sentinels: the replica takes over from a master that was killed', async (t) => {
  const { url, master } = await startSentinel(t);
  const replicas = await startReplicas(t, url);
  const [a, b] = [await replicas.start(), await replicas.start()];
  await openSession(a.client, a.upstream, 's-1');
  await shares(a, b, 's-1', 'e1');
  await master.kill();
  await cutPost(a.client, a.upstream, 2, { session: 's-1' }, priming('f1'));
  assert.equal(await fate(b, 's-1', 'e1'), 'stripped');
  assert.equal(await fate(a, 's-1', 'f1'), 'forwarded f1');
  await shares(a, b, 's-1', 'g1');
  await shares(b, a, 's-1', 'h1');
});

test('TLS: a store whose authority is trusted is used, and another one is not', async (t) => {
  const [authority, another] = [await makeAuthority(t), await makeAuthority(t, 'another authority')];
  const { cert, key } = await authority.issue('redis', 'IP:127.0.0.1');
  const port = await freePort();
  const files = ['--tls-cert-file', cert, '--tls-key-file', key, '--tls-ca-cert-file', authority.ca];
  await startRedis(t, ['--tls-port', String(port), ...files, '--tls-auth-clients', 'no']);
  const replicas = await startReplicas(t, `rediss://127.0.0.1:${port}/0`);
  const trusting = { storeCa: authority.ca };
  const [a, b] = [await replicas.start(trusting), await replicas.start(trusting)];
  await openSession(a.client, a.upstream, 's-1');
  await shares(a, b, 's-1', 'e1');
  const stranger = await replicas.start({ storeCa: another.ca });
  assert.ok((await stranger.metric('store_errors_total')) > 0, 'it trusts another authority');
  assert.equal(await fate(stranger, 's-1', 'e1'), 'forwarded e1');
});
