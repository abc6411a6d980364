// The shared store on a shelf in memory: what it tells, when, and what becomes of it when the shelf fails.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { closeLeg, endSession, openLeg, openStream, recordEvent, startListening } from '../../src/core/ledger.ts';
import { key, receipt } from '../support/ledger.ts';
import { HandStore, STORE_BOUNDS, sessionKey } from '../support/shared.ts';
import { MemoryShelf } from '../support/shelf.ts';

/** Events of a new stream in a session. */
function events(hand: HandStore, session: string, ...ids: readonly string[]) {
  const record = hand.learn(session);
  const leg = openLeg(openStream(record, 'request', STORE_BOUNDS, hand.now), false, receipt());
  for (const id of ids) recordEvent(record, leg, { key: key(id), length: 40, retry: false }, []);
  return { record, leg };
}

const knows = (hand: HandStore, session: string, id: string): boolean => {
  const record = hand.store.recall(sessionKey(session), hand.now);
  return [...(record?.streams ?? [])].some(({ ring }) => ring.find(key(id)) !== null);
};

test('an event that passed here is known there once it was told', async () => {
  const shelf = new MemoryShelf();
  const [a, b] = [new HandStore(shelf), new HandStore(shelf)];
  events(a, 's', 'e1');
  assert.equal(await b.consult('s'), 'whole');
  assert.equal(knows(b, 's', 'e1'), false);
  await a.store.flush();
  assert.equal(await b.consult('s'), 'whole');
  assert.equal(knows(b, 's', 'e1'), true);
});

test('a flush is one write for each session that has changed, whatever happened in it, and none for the others', async () => {
  const shelf = new MemoryShelf();
  const hand = new HandStore(shelf);
  for (const session of ['s', 't']) events(hand, session, ...Array.from({ length: 500 }, (_, n) => `e${n}`));
  assert.equal(hand.store.pending, 2);
  await hand.store.flush();
  assert.equal(shelf.writes.length, 2);
  assert.equal(hand.store.pending, 0);
  await hand.store.flush();
  assert.equal(shelf.writes.length, 2, 'nothing has changed');
  events(hand, 's', 'f1');
  await hand.store.flush();
  assert.equal(shelf.writes.length, 3);
  const rewritten = shelf.writes[2]!.set.filter(([field]) => field.startsWith('e:'));
  assert.equal(rewritten.length, 1, 'only the stream that has changed');
});

test('nothing that names a session or an event stands on the shelf', async () => {
  const shelf = new MemoryShelf();
  const hand = new HandStore(shelf);
  events(hand, 'the-session', 'the-event');
  await hand.store.flush();
  const text = JSON.stringify([...shelf.keys].map(([name, fields]) => [name, [...fields]]));
  assert.doesNotMatch(text, /the-session|the-event/);
  assert.match([...shelf.keys.keys()][0]!, /^mrg:1:\*%2F:\{[\w-]{22}\}$/, 'the version, the route, a hash tag');
});

test('another secret is another ledger', async () => {
  const shelf = new MemoryShelf();
  const [a, b] = [new HandStore(shelf), new HandStore(shelf, {}, 'another-secret-than-the-others')];
  events(a, 's', 'e1');
  await a.store.flush();
  await b.consult('s');
  assert.equal(knows(b, 's', 'e1'), false);
});

test('every key expires, the one of an ended session after sessionMemory, and one with an open stream is renewed', async () => {
  const shelf = new MemoryShelf();
  const hand = new HandStore(shelf);
  const { record, leg } = events(hand, 's', 'e1');
  await hand.store.flush();
  assert.equal(shelf.writes.at(-1)?.expire, STORE_BOUNDS.openStreamMemory * 1.25);
  await hand.store.flush();
  hand.now += STORE_BOUNDS.openStreamMemory / 4;
  await hand.store.beat();
  const renewal = shelf.writes.at(-1);
  assert.deepEqual([renewal?.set.length, renewal?.expire], [0, STORE_BOUNDS.openStreamMemory * 1.25]);
  closeLeg(record, leg, { clean: true, polled: false }, hand.now);
  endSession(record, hand.now);
  await hand.store.flush();
  assert.equal(shelf.writes.at(-1)?.expire, STORE_BOUNDS.sessionMemory * 1.25);
});

test('while the shelf cannot be read, what is known here counts; it is asked again after a beat that could', async () => {
  const shelf = new MemoryShelf();
  const hand = new HandStore(shelf);
  events(hand, 's', 'e1');
  shelf.readFault = new Error('away');
  assert.equal(await hand.consult('s'), 'failed');
  assert.equal(knows(hand, 's', 'e1'), true);
  await hand.store.beat();
  const { reads } = shelf;
  assert.equal(await hand.consult('s'), 'failed');
  assert.equal(shelf.reads, reads, 'nobody waits for a shelf that is known to be away');
  shelf.readFault = null;
  await hand.store.beat();
  assert.equal(hand.recoveries, 1);
  assert.equal(await hand.consult('s'), 'whole');
});

test('while the shelf cannot be written, nothing is kept for it; afterwards everything still known is told', async () => {
  const shelf = new MemoryShelf();
  const [a, b] = [new HandStore(shelf), new HandStore(shelf)];
  events(a, 's', 'e1');
  await a.store.flush();
  shelf.writeFault = new Error('OOM command not allowed');
  events(a, 's', 'e2');
  await a.store.flush();
  const failures = a.failures.length;
  assert.ok(failures > 0, 'it is counted');
  events(a, 's', 'e3');
  await a.store.flush();
  assert.equal(a.failures.length, failures, 'not tried before the next beat');
  await b.consult('s');
  assert.deepEqual(
    ['e1', 'e2', 'e3'].map((id) => knows(b, 's', id)),
    [true, false, false],
  );
  shelf.writeFault = null;
  await a.store.beat();
  await a.store.flush();
  await b.consult('s');
  assert.deepEqual(
    ['e1', 'e2', 'e3'].map((id) => knows(b, 's', id)),
    [true, true, true],
  );
  assert.equal(a.dropped, 0);
});

test('what had to make room meanwhile is counted, and nobody claims to know everything for sessionMemory', async () => {
  const shelf = new MemoryShelf();
  const [a, b] = [new HandStore(shelf), new HandStore(shelf)];
  for (const hand of [a, b]) await hand.store.beat();
  events(a, 's', ...Array.from({ length: 1_300 }, (_, n) => `e${n}`));
  await a.store.flush();
  assert.equal(a.dropped, 300);
  await a.store.beat();
  await b.store.beat();
  assert.equal(await a.consult('s'), 'gaps');
  assert.equal(await b.consult('s'), 'gaps', 'the beat says so');
  for (const hand of [a, b]) hand.now += STORE_BOUNDS.sessionMemory;
  for (const hand of [a, b, a, b]) await hand.store.beat();
  assert.equal(await b.consult('s'), 'whole');
});

test('a session that had to make room before it was told is counted', async () => {
  const hand = new HandStore(new MemoryShelf(), { sessions: 1 });
  events(hand, 's', 'e1');
  events(hand, 't', 'e1');
  assert.equal(hand.dropped, 1);
  await hand.store.flush();
  events(hand, 'u', 'e1');
  assert.equal(hand.dropped, 1, 'that one was told');
});

test('a shelf that was emptied is filled again, by all who know something, and has gaps until then', async () => {
  const shelf = new MemoryShelf();
  const [a, b] = [new HandStore(shelf), new HandStore(shelf)];
  events(a, 's', 'e1');
  for (const hand of [a, b]) {
    await hand.store.flush();
    await hand.store.beat();
  }
  shelf.keys.clear();
  await a.store.beat();
  await a.store.flush();
  await b.store.beat();
  assert.equal(await b.consult('s'), 'gaps');
  assert.equal(knows(b, 's', 'e1'), true);
});

test('one key that was lost is noticed by the next write to it', async () => {
  const shelf = new MemoryShelf();
  const [a, b] = [new HandStore(shelf), new HandStore(shelf)];
  const { record, leg } = events(a, 's', 'e1');
  await a.store.flush();
  shelf.keys.clear();
  recordEvent(record, leg, { key: key('e2'), length: 40, retry: false }, []);
  await a.store.flush();
  await a.store.flush();
  assert.equal(await a.consult('s'), 'gaps');
  await b.consult('s');
  assert.deepEqual(
    ['e1', 'e2'].map((id) => knows(b, 's', id)),
    [true, true],
  );
});

test('a replica that falls silent listens no more after three seconds, and leaves gaps; one that says goodbye leaves none', async () => {
  for (const [polite, consulted] of [
    [false, 'gaps'],
    [true, 'whole'],
  ] as const) {
    const shelf = new MemoryShelf();
    const [a, b] = [new HandStore(shelf), new HandStore(shelf)];
    const record = a.learn('s');
    const leg = openLeg(openStream(record, 'standalone', STORE_BOUNDS, a.now), false, receipt());
    startListening(record, leg);
    await a.store.flush();
    await a.store.beat();
    await b.store.beat();
    const listens = async (): Promise<boolean> => {
      await b.consult('s');
      return b.store.recall(sessionKey('s'), b.now)?.elsewhere.listening ?? false;
    };
    assert.equal(await listens(), true);
    b.now += 2_999;
    assert.equal(await listens(), true);
    if (polite) await a.store.close();
    b.now += 1;
    await b.store.beat();
    assert.equal(await listens(), false);
    assert.equal(await b.consult('s'), consulted);
  }
});

test('after five beats in a row that failed the connection is made anew', async () => {
  const shelf = new MemoryShelf();
  const hand = new HandStore(shelf);
  shelf.readFault = new Error('away');
  for (let beat = 0; beat < 4; beat += 1) await hand.store.beat();
  assert.equal(shelf.reopened, 0);
  await hand.store.beat();
  assert.equal(shelf.reopened, 1);
});

test('views of the dead are cleared away once nobody can use them, where the session lives on', async () => {
  const shelf = new MemoryShelf();
  const [a, b] = [new HandStore(shelf), new HandStore(shelf)];
  events(a, 's', 'e1');
  await a.store.flush();
  b.now += 2 * STORE_BOUNDS.openStreamMemory;
  await b.consult('s');
  const fields = (): number => [...shelf.keys.values()][0]?.size ?? 0;
  assert.equal(fields(), 3);
  b.now += 1;
  await b.consult('s');
  assert.equal(fields(), 0);
});

test('a batch is bounded, and the next one begins with what it left out', async () => {
  const shelf = new MemoryShelf();
  const hand = new HandStore(shelf);
  const ids = Array.from({ length: 1_000 }, (_, n) => `e${n}`);
  for (let n = 0; n < 20; n += 1) events(hand, `s${n}`, ...ids);
  await hand.store.flush();
  const first = shelf.writes.length;
  assert.ok(first > 5 && first < 20, `${first} of 20 sessions`);
  for (let n = 0; n < first; n += 1) events(hand, `s${n}`, ...ids);
  await hand.store.flush();
  const names = new Set(shelf.writes.map(({ key: name }) => name));
  assert.equal(names.size, Math.min(20, 2 * first));
});
