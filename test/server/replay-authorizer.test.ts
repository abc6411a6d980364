import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { ReplayAuthorizer, type ResumptionRefusal, ResumptionTokenError } from '../../src/server/index.ts';

/** A session `s` in its second generation, with events 1 to 10 written and those through 4 dropped. */
function second(): ReplayAuthorizer {
  const authorizer = new ReplayAuthorizer();
  authorizer.open('s');
  authorizer.record('s');
  authorizer.open('s');
  for (let event = 1; event <= 10; event += 1) authorizer.record('s');
  authorizer.dropThrough('s', 4);
  return authorizer;
}

function refusalOf(run: () => void): { reason: ResumptionRefusal; status: number } | null {
  try {
    run();
    return null;
  } catch (error) {
    assert.ok(error instanceof ResumptionTokenError && error instanceof Error, String(error));
    assert.equal(error.name, 'ResumptionTokenError');
    assert.notEqual(error.message, '');
    return { reason: error.reason, status: error.status };
  }
}

describe('a cursor is honoured exactly within its generation and window', () => {
  const rows: readonly [what: string, generation: number, event: number, ResumptionRefusal | null][] = [
    ['just below the floor', 2, 3, 'below-floor'],
    ['at the floor', 2, 4, null],
    ['just above the floor', 2, 5, null],
    ['just below the mark', 2, 9, null],
    ['at the mark', 2, 10, null],
    ['just above the mark', 2, 11, 'above-mark'],
    ['of the generation before', 1, 5, 'superseded'],
    ['of a generation that is still to come', 3, 5, 'generation-differs'],
    ['of generation 0', 0, 5, 'generation-differs'],
    ['of no generation', Number.NaN, 5, 'generation-differs'],
    ['of half a generation', 1.5, 5, 'generation-differs'],
    ['that is no number', 2, Number.NaN, 'below-floor'],
    ['at minus infinity', 2, Number.NEGATIVE_INFINITY, 'below-floor'],
    ['at infinity', 2, Number.POSITIVE_INFINITY, 'above-mark'],
  ];
  for (const [what, generation, event, reason] of rows) {
    test(`one ${what}: ${reason ?? 'accepted'}`, () => {
      const refusal = refusalOf(() => second().authorizeReplay('s', generation, event));
      assert.deepEqual(refusal, reason === null ? null : { reason, status: 409 });
    });
  }

  test('for any window, generation and event', () => {
    const small = fc.integer({ min: 0, max: 12 });
    fc.assert(
      fc.property(small, small, small, small, (generations, mark, floor, event) => {
        const authorizer = new ReplayAuthorizer();
        for (let opened = 0; opened <= generations; opened += 1) authorizer.open('s');
        if (mark > 0) authorizer.record('s', mark);
        authorizer.dropThrough('s', Math.min(floor, mark));
        for (const generation of [generations, generations + 1, generations + 2]) {
          const accepted = refusalOf(() => authorizer.authorizeReplay('s', generation, event)) === null;
          const wanted = generation === generations + 1 && event >= Math.min(floor, mark) && event <= mark;
          assert.equal(accepted, wanted);
        }
      }),
    );
  });
});

describe('a session', () => {
  test('that was never opened is 404, and so is one that was forgotten', () => {
    const authorizer = second();
    assert.deepEqual(
      refusalOf(() => authorizer.authorizeReplay('t', 1, 1)),
      { reason: 'unknown-session', status: 404 },
    );
    authorizer.forget('s');
    assert.deepEqual(
      refusalOf(() => authorizer.authorizeReplay('s', 2, 5)),
      { reason: 'unknown-session', status: 404 },
    );
    assert.equal(authorizer.window('s'), null);
  });

  test('that was evicted is 404 for every cursor, and takes no more events', () => {
    const authorizer = second();
    authorizer.evict('s');
    for (const generation of [1, 2, 3]) {
      assert.deepEqual(
        refusalOf(() => authorizer.authorizeReplay('s', generation, 5)),
        { reason: 'evicted-session', status: 404 },
      );
    }
    assert.deepEqual(
      refusalOf(() => authorizer.record('s')),
      { reason: 'evicted-session', status: 404 },
    );
    assert.deepEqual(
      refusalOf(() => authorizer.dropThrough('s', 5)),
      { reason: 'evicted-session', status: 404 },
    );
    assert.equal(authorizer.window('s'), null);
  });

  test('that was superseded is 409 for every cursor, until a new generation opens', () => {
    const authorizer = second();
    authorizer.supersede('s');
    assert.deepEqual(
      refusalOf(() => authorizer.authorizeReplay('s', 2, 5)),
      { reason: 'superseded', status: 409 },
    );
    assert.equal(authorizer.open('s'), 3);
    assert.equal(authorizer.record('s'), 1);
    authorizer.authorizeReplay('s', 3, 1);
    assert.deepEqual(
      refusalOf(() => authorizer.authorizeReplay('s', 2, 5)),
      { reason: 'superseded', status: 409 },
    );
  });

  test('that was evicted stays so when it is superseded, and lives again when it is opened', () => {
    const authorizer = second();
    authorizer.evict('s');
    authorizer.supersede('s');
    assert.equal(refusalOf(() => authorizer.authorizeReplay('s', 2, 5))?.status, 404);
    assert.equal(authorizer.open('s'), 3);
    assert.deepEqual(authorizer.window('s'), { generation: 3, replayFloor: 0, highWaterMark: 0 });
  });

  test('that is not known can be evicted, superseded and forgotten without harm', () => {
    const authorizer = new ReplayAuthorizer();
    authorizer.evict('s');
    authorizer.supersede('s');
    authorizer.forget('s');
    assert.equal(authorizer.window('s'), null);
  });
});

describe('floor and mark', () => {
  test('move up only', () => {
    const authorizer = second();
    authorizer.dropThrough('s', 2);
    assert.deepEqual(authorizer.window('s'), { generation: 2, replayFloor: 4, highWaterMark: 10 });
    authorizer.dropThrough('s', 10);
    assert.deepEqual(authorizer.window('s'), { generation: 2, replayFloor: 10, highWaterMark: 10 });
  });

  test('stay within what was written', () => {
    const authorizer = second();
    assert.throws(() => authorizer.dropThrough('s', 11), RangeError);
    assert.throws(() => authorizer.dropThrough('s', 5.5), RangeError);
    assert.throws(() => authorizer.dropThrough('s', Number.NaN), RangeError);
  });

  test('a server may number its events itself, upwards', () => {
    const authorizer = second();
    assert.equal(authorizer.record('s', 500), 500);
    assert.equal(authorizer.record('s'), 501);
    for (const number of [501, 5, 501.5, Number.NaN, 2 ** 53]) {
      assert.throws(() => authorizer.record('s', number), RangeError);
    }
    assert.equal(authorizer.window('s')?.highWaterMark, 501);
  });
});

test('sessions are bounded, and the one used least recently goes first', () => {
  const authorizer = new ReplayAuthorizer({ maxSessions: 2 });
  authorizer.open('a');
  authorizer.open('b');
  authorizer.record('a');
  authorizer.open('c');
  assert.equal(refusalOf(() => authorizer.authorizeReplay('b', 1, 0))?.status, 404);
  authorizer.authorizeReplay('a', 1, 1);
  authorizer.open('d');
  assert.equal(refusalOf(() => authorizer.authorizeReplay('c', 1, 0))?.status, 404);
  authorizer.authorizeReplay('a', 1, 1);
});

test('a bound that is no positive integer is refused', () => {
  for (const maxSessions of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY]) {
    assert.throws(() => new ReplayAuthorizer({ maxSessions }), RangeError);
  }
});
