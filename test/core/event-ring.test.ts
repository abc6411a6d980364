/** The IDs of one stream: bounded, and never "no" about one that was dropped. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { EventRing, ForgottenIds, KeyFilter } from '../../src/core/event-ring.ts';
import type { Position } from '../../src/core/terms.ts';
import { key } from '../support/ledger.ts';

const at = (position: number): Position => position as Position;

/** A ring of this capacity that has seen `e1` to `e<count>`, each 40 bytes long. */
function ringOf(capacity: number, count: number): EventRing {
  const ring = new EventRing(capacity);
  for (let i = 1; i <= count; i++) ring.add(key(`e${i}`), at(i), 40);
  return ring;
}

describe('a ring', () => {
  test('knows where an ID stands, first and last', () => {
    const ring = new EventRing(10);
    for (const [id, position] of [
      ['a', 1],
      ['b', 2],
      ['a', 3],
      ['a', 7],
    ] as const) {
      ring.add(key(id), at(position), 5);
    }
    assert.deepEqual(ring.find(key('a')), { first: 1, last: 7 });
    assert.deepEqual(ring.find(key('b')), { first: 2, last: 2 });
    assert.equal(ring.find(key('c')), null);
    assert.equal(ring.size, 4);
  });

  test('knows the first position of an event with the same ID and length', () => {
    const ring = new EventRing(10);
    ring.add(key('a'), at(1), 5);
    ring.add(key('a'), at(2), 6);
    ring.add(key('a'), at(3), 6);
    assert.deepEqual(
      [4, 5, 6, 7].map((length) => ring.findEqual(key('a'), length)),
      [null, 1, 2, null],
    );
    assert.equal(ring.findEqual(key('b'), 5), null);
  });

  test('keeps positions and lengths apart up to the largest that it can, and takes longer blocks for unequal', () => {
    const longest = 2 ** 24 - 2;
    const ring = new EventRing(10);
    ring.add(key('a'), at(2 ** 28), longest);
    ring.add(key('b'), at(2 ** 28 + 1), longest + 1);
    ring.add(key('c'), at(2 ** 28 + 2), 50_000_000);
    ring.add(key('d'), at(2 ** 28 + 3), 0);
    assert.deepEqual(ring.find(key('a')), { first: 2 ** 28, last: 2 ** 28 });
    assert.equal(ring.findEqual(key('a'), longest), 2 ** 28);
    assert.equal(ring.findEqual(key('b'), longest + 1), null);
    assert.equal(ring.findEqual(key('c'), longest + 1), null);
    assert.equal(ring.findEqual(key('c'), 50_000_000), null);
    assert.deepEqual(ring.find(key('c')), { first: 2 ** 28 + 2, last: 2 ** 28 + 2 });
    assert.equal(ring.findEqual(key('d'), 0), 2 ** 28 + 3);
  });

  for (const [count, known, dropped] of [
    [999, true, false],
    [1_000, true, false],
    [1_001, false, true],
  ] as const) {
    test(`for 1,000 IDs ${known ? 'still knows' : 'no longer knows'} the first of ${count}`, () => {
      const ring = ringOf(1_000, count);
      assert.equal(ring.find(key('e1')) !== null, known);
      assert.equal(ring.mayHaveDropped(key('e1')), dropped);
      assert.deepEqual(ring.find(key('e2')), { first: 2, last: 2 });
      assert.deepEqual(ring.find(key(`e${count}`)), { first: count, last: count });
      assert.equal(ring.size, Math.min(count, 1_000));
    });
  }

  test('says when an older ID had to make room', () => {
    const ring = new EventRing(2);
    assert.deepEqual(
      ['a', 'b', 'c', 'd'].map((id, i) => ring.add(key(id), at(i + 1), 5)),
      [false, false, true, true],
    );
  });

  test('drops the oldest, again and again, and has a trace of all of them', () => {
    const ring = ringOf(100, 1_050);
    for (let i = 1; i <= 950; i++) {
      assert.equal(ring.find(key(`e${i}`)), null, `e${i}`);
      assert.ok(ring.mayHaveDropped(key(`e${i}`)), `e${i}`);
    }
    for (let i = 951; i <= 1_050; i++) assert.equal(ring.find(key(`e${i}`))?.last, i);
  });

  test('mistakes few IDs for dropped ones', () => {
    const ring = ringOf(1_000, 2_000);
    let mistaken = 0;
    for (let i = 0; i < 10_000; i++) if (ring.mayHaveDropped(key(`never ${i}`))) mistaken += 1;
    assert.ok(mistaken < 50, `${mistaken} of 10,000`);
  });

  test('does not say where an ID stood first once an earlier one of it was dropped', () => {
    const ring = new EventRing(2);
    ring.add(key('a'), at(1), 5);
    ring.add(key('b'), at(2), 5);
    ring.add(key('a'), at(3), 5);
    assert.deepEqual(ring.find(key('a')), { first: 0, last: 3 });
    assert.deepEqual(ring.find(key('b')), { first: 2, last: 2 });
  });

  test('takes 16 bytes an ID, and one filter once it has dropped some', () => {
    assert.equal(ringOf(10, 0).bytes, 0);
    assert.equal(ringOf(10, 10).bytes, 160);
    assert.equal(ringOf(10, 11).bytes, 160 + KeyFilter.bytes);
    assert.equal(ringOf(10, 500).bytes, 160 + KeyFilter.bytes);
  });

  test('can be told of an ID that may have been its own', () => {
    const ring = ringOf(10, 3);
    ring.trace(key('x'));
    assert.equal(ring.find(key('x')), null);
    assert.ok(ring.mayHaveDropped(key('x')), 'as if it had been dropped');
    assert.ok(!ring.mayHaveDropped(key('y')), 'nothing else');
  });

  test('gives its IDs, and those it dropped, into a filter', () => {
    const filter = new KeyFilter();
    ringOf(10, 25).traceInto(filter);
    for (let i = 1; i <= 25; i++) assert.ok(filter.mayHave(key(`e${i}`)), `e${i}`);
    assert.ok(!filter.mayHave(key('never')), 'and nothing else');
  });
});

test('filters that were merged have what either had', () => {
  const [one, other] = [new KeyFilter(), new KeyFilter()];
  one.add(key('a'));
  other.add(key('b'));
  one.merge(other);
  assert.deepEqual(
    ['a', 'b', 'c'].map((id) => one.mayHave(key(id))),
    [true, true, false],
  );
  assert.deepEqual(
    ['a', 'b'].map((id) => other.mayHave(key(id))),
    [false, true],
  );
});

describe('the IDs of forgotten streams', () => {
  const KEEP = 3_600_000;
  const stream = (id: string): EventRing => {
    const ring = new EventRing(10);
    ring.add(key(id), at(1), 5);
    return ring;
  };
  function forget(into: ForgottenIds, count: number, now: number): void {
    for (let i = 0; i < count; i++) into.add(stream(`other ${now} ${i}`), now, KEEP);
  }

  test('are none before anything is forgotten', () => {
    const forgotten = new ForgottenIds();
    assert.ok(!forgotten.mayHave(key('a')), 'nothing is');
    forgotten.addLate(key('a'));
    assert.ok(!forgotten.mayHave(key('a')), 'and nothing follows a stream that was not');
  });

  test('are known as long as few streams were forgotten, however long ago', () => {
    const forgotten = new ForgottenIds();
    forgotten.add(stream('a'), 0, KEEP);
    forget(forgotten, 998, 10 * KEEP);
    assert.ok(forgotten.mayHave(key('a')), 'there is room');
    forgotten.addLate(key('late'));
    assert.ok(forgotten.mayHave(key('late')), 'and for what they carry later');
  });

  for (const [name, early, first, second, known] of [
    ['1,000 more streams, twice, but not for long enough the second time', 999, KEEP, 2 * KEEP - 1, true],
    ['1,000 more streams, twice, each for an hour', 999, KEEP, 2 * KEEP, false],
    ['1,000 more streams, twice, but not for long enough the first time', 999, KEEP - 1, 2 * KEEP, true],
    ['999 streams in all for the first hour', 998, KEEP, 2 * KEEP, true],
  ] as const) {
    test(`after ${name} an ID is ${known ? 'known' : 'gone'}`, () => {
      const forgotten = new ForgottenIds();
      forgotten.add(stream('a'), 0, KEEP);
      forget(forgotten, early, 0);
      forget(forgotten, 1, first);
      assert.ok(forgotten.mayHave(key('a')), 'one change of filters keeps it');
      forget(forgotten, 999, first);
      forget(forgotten, 1, second);
      assert.equal(forgotten.mayHave(key('a')), known);
    });
  }
});
