/** Whether a guard keeps a past at all. By itself, since it counts what is in the heap. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { queryObjects } from 'node:v8';
import { History } from '../../src/ops/history.ts';
import { startGuard } from '../support/guard.ts';
import { block, result } from '../support/messages.ts';
import { finishedPost, openSession } from '../support/session.ts';

// Says once that it is experimental, which is no complaint about the guard.
const count = (): number => queryObjects(History, { format: 'count' });
assert.equal(count(), 0);

for (const [name, listen, kept] of [
  ['keeps no past where there are no pages to show it', 'off', 0],
  ['keeps one past for its pages', '127.0.0.1:0', 1],
] as const) {
  test(`the guard ${name}`, async (t) => {
    const { client, upstream } = await startGuard(t, { file: { admin: { listen } } });
    await openSession(client, upstream, 's-1');
    await finishedPost(client, upstream, 1, { session: 's-1' }, block({ id: 'e1', data: result(1) }));
    assert.equal(count(), kept);
  });
}
