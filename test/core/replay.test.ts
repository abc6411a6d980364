/**
 * Section 4 of the contract: for each outcome what just makes it so and what just does not, and the schedule of probes.
 * The timers behind `timeUp` and the bytes behind `overfull` are counted in `test/proxy/watch.test.ts`, floor and late
 * empties in `resolve.test.ts`.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  claimProbe,
  OUTCOMES,
  type Outcome,
  outcomeOf,
  type Probe,
  probeIsDue,
  probeIsOut,
  type ReplaySeen,
  settleProbe,
  startProbing,
} from '../../src/core/replay.ts';

/** A head of an event stream, nothing after it yet. */
const QUIET: ReplaySeen = {
  status: 200,
  eventStream: true,
  bytes: 0,
  event: false,
  content: false,
  overfull: false,
  end: 'open',
  timeUp: false,
  mustReplay: false,
  polling: false,
  displaced: false,
};
const NO_HEAD: Partial<ReplaySeen> = { status: null, eventStream: false };
const COMMENT: Partial<ReplaySeen> = { bytes: 9 };
const HALF: Partial<ReplaySeen> = { bytes: 20, content: true };
const EVENT: Partial<ReplaySeen> = { bytes: 40, event: true };
const ENDED: Partial<ReplaySeen> = { end: 'clean' };

type Row = readonly [when: string, seen: Partial<ReplaySeen>, outcome: Outcome | null];

const ROWS: Readonly<Record<Outcome | 'undecided', readonly Row[]>> = {
  undecided: [
    ['before the head', NO_HEAD, null],
    ['before the head, though the timer ran out', { ...NO_HEAD, timeUp: true }, null],
    ['after the head', {}, null],
    ['after a comment', COMMENT, null],
    ['after half an event', HALF, null],
    ['where a replay must come, in time', { mustReplay: true, ...HALF }, null],
    ['where polling was announced', { polling: true, displaced: true }, null],
  ],
  replayed: [
    ['an event', EVENT, 'replayed'],
    ['an event, then the end', { ...EVENT, ...ENDED }, 'replayed'],
    ['an event, then a cut', { ...EVENT, end: 'broken' }, 'replayed'],
    ['an event where one must come, after the deadline', { ...EVENT, mustReplay: true, timeUp: true }, 'replayed'],
    ['more held than may be', { ...HALF, overfull: true }, 'replayed'],
    ['more held than may be, then a cut', { ...HALF, overfull: true, end: 'broken' }, 'replayed'],
    ['half an event at the deadline, where one must come', { ...HALF, mustReplay: true, timeUp: true }, 'replayed'],
    ['half an event at the end, where one must come', { ...HALF, ...ENDED, mustReplay: true }, 'replayed'],
    ['only a comment at that deadline', { ...COMMENT, mustReplay: true, timeUp: true }, 'silent'],
    ['only a comment at that end', { ...COMMENT, ...ENDED, mustReplay: true }, 'empty'],
    ['an event, with a status that is no 200', { ...EVENT, status: 206 }, 'not-a-replay'],
    ['what looks like an event in another type', { ...EVENT, eventStream: false }, 'not-a-replay'],
  ],
  live: [
    ['nothing when the timer runs out', { timeUp: true }, 'live'],
    ['a comment when the timer runs out', { ...COMMENT, timeUp: true }, 'live'],
    ['half an event when the timer runs out', { ...HALF, timeUp: true }, 'live'],
    ['nothing of another type when the timer runs out', { eventStream: false, timeUp: true }, 'live'],
    ['half an event at the end', { ...HALF, ...ENDED }, 'live'],
    ['half an event at the end of a poll', { ...HALF, ...ENDED, polling: true, displaced: true }, 'live'],
    ['the timer has not run out', {}, null],
    ['no head when the timer runs out', { ...NO_HEAD, timeUp: true }, null],
    ['the timer runs out where a replay must come', { timeUp: true, mustReplay: true }, 'silent'],
    ['the end before the timer', ENDED, 'empty'],
  ],
  polled: [
    ['an end that was announced', { ...ENDED, polling: true }, 'polled'],
    ['after a comment', { ...COMMENT, ...ENDED, polling: true }, 'polled'],
    ['with zero bytes of another type', { ...ENDED, eventStream: false, polling: true }, 'polled'],
    ['while another exchange is open', { ...ENDED, polling: true, displaced: true }, 'polled'],
    ['an end that was not announced', ENDED, 'empty'],
    ['a cut', { end: 'broken', polling: true }, 'broken'],
    ['where a replay must come', { ...ENDED, polling: true, mustReplay: true }, 'empty'],
    ['the announced end brought an event', { ...EVENT, ...ENDED, polling: true }, 'replayed'],
  ],
  displaced: [
    ['an end while another exchange is open', { ...ENDED, displaced: true }, 'displaced'],
    ['after a comment', { ...COMMENT, ...ENDED, displaced: true }, 'displaced'],
    ['where a replay must come', { ...ENDED, displaced: true, mustReplay: true }, 'displaced'],
    ['where one must come, in a poll', { ...ENDED, displaced: true, mustReplay: true, polling: true }, 'displaced'],
    ['no other exchange', ENDED, 'empty'],
    ['a cut', { end: 'broken', displaced: true }, 'broken'],
    ['an event', { ...EVENT, ...ENDED, displaced: true }, 'replayed'],
  ],
  empty: [
    ['an end', ENDED, 'empty'],
    ['an end after a comment', { ...COMMENT, ...ENDED }, 'empty'],
    ['an end without a byte, of any type', { ...ENDED, eventStream: false }, 'empty'],
    ['an end in the instant the timer runs out', { ...ENDED, timeUp: true }, 'empty'],
    ['an end where a replay must come', { ...ENDED, mustReplay: true }, 'empty'],
    ['an end with one byte of another type', { ...ENDED, eventStream: false, bytes: 1 }, 'not-a-replay'],
    ['an end with half an event', { ...ENDED, ...HALF }, 'live'],
    ['an end without a byte, of another status', { ...ENDED, status: 204 }, 'not-a-replay'],
    ['no end yet', {}, null],
  ],
  silent: [
    ['nothing by the deadline', { mustReplay: true, timeUp: true }, 'silent'],
    ['no head by the deadline', { ...NO_HEAD, mustReplay: true, timeUp: true }, 'silent'],
    ['a comment by the deadline', { ...COMMENT, mustReplay: true, timeUp: true }, 'silent'],
    ['nothing of another type', { eventStream: false, mustReplay: true, timeUp: true }, 'silent'],
    ['in a poll, and displaced', { mustReplay: true, timeUp: true, polling: true, displaced: true }, 'silent'],
    ['before the deadline', { mustReplay: true }, null],
    ['no head before the deadline', { ...NO_HEAD, mustReplay: true }, null],
    ['no replay must come', { timeUp: true }, 'live'],
    ['an error by the deadline', { status: 500, mustReplay: true, timeUp: true }, 'not-a-replay'],
  ],
  broken: [
    ['refused', { ...NO_HEAD, end: 'broken' }, 'broken'],
    ['cut after the head', { end: 'broken' }, 'broken'],
    ['cut after a comment', { ...COMMENT, end: 'broken' }, 'broken'],
    ['cut in the first event', { ...HALF, end: 'broken' }, 'broken'],
    ['cut in the instant of the deadline', { mustReplay: true, timeUp: true, end: 'broken' }, 'broken'],
    ['cut after an event', { ...EVENT, end: 'broken' }, 'replayed'],
    ['cut in a body of another type', { eventStream: false, bytes: 1, end: 'broken' }, 'not-a-replay'],
    ['an end in order', ENDED, 'empty'],
  ],
  abandoned: [
    ['before the head', { ...NO_HEAD, end: 'client-left' }, 'abandoned'],
    ['after the head', { end: 'client-left' }, 'abandoned'],
    ['in the first event', { ...HALF, end: 'client-left' }, 'abandoned'],
    ['in the instant of the deadline', { mustReplay: true, timeUp: true, end: 'client-left' }, 'abandoned'],
    ['in a poll, and displaced', { polling: true, displaced: true, end: 'client-left' }, 'abandoned'],
    ['after an event', { ...EVENT, end: 'client-left' }, 'replayed'],
    ['after an error', { status: 404, end: 'client-left' }, 'not-a-replay'],
  ],
  'not-a-replay': [
    ...[199, 201, 202, 204, 206, 301, 304, 400, 401, 404, 405, 409, 500, 503].map(
      (status): Row => [`status ${status}`, { status }, 'not-a-replay'],
    ),
    ['an error where a replay must come', { status: 404, mustReplay: true }, 'not-a-replay'],
    ['one byte of another type', { eventStream: false, bytes: 1 }, 'not-a-replay'],
    [
      'one byte of another type where a replay must come',
      { eventStream: false, bytes: 1, mustReplay: true },
      'not-a-replay',
    ],
    ['another type, and no byte yet', { eventStream: false }, null],
    ['one byte of an event stream', { bytes: 1 }, null],
    ['200', {}, null],
  ],
};

for (const [outcome, rows] of Object.entries(ROWS)) {
  test(`${outcome}: ${rows.length} rows`, () => {
    for (const [when, seen, expected] of rows) assert.equal(outcomeOf({ ...QUIET, ...seen }), expected, when);
  });
}

test('every outcome has a row that comes to it and one that just does not', () => {
  assert.deepEqual(Object.keys(ROWS).sort(), [...OUTCOMES, 'undecided'].sort());
  for (const outcome of OUTCOMES) {
    const seen = ROWS[outcome].map(([, , expected]) => expected);
    assert.ok(seen.includes(outcome), `${outcome} has a row`);
    assert.ok(
      seen.some((other) => other !== outcome),
      `${outcome} has a row that comes to something else`,
    );
  }
});

// What holds whatever is seen.

const EVERYTHING: readonly ReplaySeen[] = (() => {
  const booleans = [
    'eventStream',
    'event',
    'content',
    'overfull',
    'timeUp',
    'mustReplay',
    'polling',
    'displaced',
  ] as const;
  let all: ReplaySeen[] = [null, 200, 204, 404, 500].flatMap((status) =>
    (['open', 'clean', 'broken', 'client-left'] as const).flatMap((end) =>
      [0, 1].map((bytes) => ({ ...QUIET, status, end, bytes })),
    ),
  );
  for (const name of booleans) all = all.flatMap((seen) => [false, true].map((value) => ({ ...seen, [name]: value })));
  // Without a head there is no body, and without bytes there is nothing in it.
  return all.filter(({ status, eventStream, bytes, event, content, overfull }) => {
    if (status === null && (eventStream || bytes > 0)) return false;
    return bytes > 0 || !(event || content || overfull);
  });
})();
const show = (seen: ReplaySeen): string => JSON.stringify(seen);

test('an exchange that is over always has an outcome, and so has one that ran out of time after its head', () => {
  for (const seen of EVERYTHING) {
    if (seen.end === 'open' && !(seen.timeUp && (seen.status !== null || seen.mustReplay))) continue;
    assert.notEqual(outcomeOf(seen), null, show(seen));
  }
});

test('a refusal takes the place of a 200 without content only, or of no head where a replay must come', () => {
  for (const seen of EVERYTHING) {
    const outcome = outcomeOf(seen);
    if (outcome !== 'empty' && outcome !== 'silent') continue;
    assert.ok(!seen.event && !seen.content && !seen.overfull, show(seen));
    assert.ok(seen.status === 200 || seen.status === null, show(seen));
    assert.ok(seen.eventStream || seen.bytes === 0, show(seen));
    assert.equal(seen.end, outcome === 'empty' ? 'clean' : 'open', show(seen));
    if (outcome === 'silent') assert.ok(seen.mustReplay, show(seen));
  }
});

test('where a replay must come there is no live and no poll', () => {
  for (const seen of EVERYTHING) {
    if (!seen.mustReplay) continue;
    const outcome = outcomeOf(seen);
    assert.ok(outcome !== 'live' && outcome !== 'polled', show(seen));
  }
});

// Probes.

const NOW = 1_000_000;

/** Probes that come back one after another, each sent the moment it is due: the pauses before them, in ms. */
function pausesOf(came: readonly ('nothing' | 'other')[]): number[] {
  let probe = startProbing(NOW);
  let now = NOW;
  return came.map((result) => {
    const pause = probe.dueAt - now;
    now = probe.dueAt;
    probe = settleProbe(claimProbe(probe, now), result, now);
    return pause;
  });
}

describe('a probe', () => {
  test('is due at once after the first refusal', () => {
    assert.ok(probeIsDue(startProbing(NOW), NOW), 'due');
  });

  test('that brings nothing is followed by one after 1 s, 2 s, 4 s and so on, up to 60 s', () => {
    assert.deepEqual(
      pausesOf(Array<'nothing'>(10).fill('nothing')),
      [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000],
    );
  });

  test('that comes to something else re-arms the same interval, 1 s after the immediate one', () => {
    assert.deepEqual(pausesOf(['other', 'other', 'other']), [0, 1_000, 1_000]);
    assert.deepEqual(
      pausesOf(['nothing', 'nothing', 'other', 'other', 'nothing', 'nothing']),
      [0, 1_000, 2_000, 2_000, 2_000, 4_000],
    );
  });

  test('is due when its interval is over, and not a moment before', () => {
    const probe = settleProbe(startProbing(NOW), 'nothing', NOW);
    for (const [after, due] of [
      [0, false],
      [999, false],
      [1_000, true],
      [1_001, true],
    ] as const) {
      assert.equal(probeIsDue(probe, NOW + after), due, `${after} ms`);
    }
  });

  test('keeps its slot for 5 s', () => {
    const probe = claimProbe(startProbing(NOW), NOW);
    for (const [after, due] of [
      [0, false],
      [4_999, false],
      [5_000, true],
      [5_001, true],
    ] as const) {
      assert.equal(probeIsDue(probe, NOW + after), due, `${after} ms`);
    }
  });

  test('that reports back frees its slot for the one after it', () => {
    const claimed = claimProbe(startProbing(NOW), NOW);
    const settled = settleProbe(claimed, 'nothing', NOW + 100);
    assert.deepEqual(settled, { interval: 1_000, dueAt: NOW + 1_100, busyUntil: 0 } satisfies Probe);
    assert.ok(probeIsDue(settled, NOW + 1_100), 'due');
  });

  test('is out from the moment it goes until it reports back, even when its slot is free again', () => {
    const waiting = startProbing(NOW);
    const claimed = claimProbe(waiting, NOW);
    assert.deepEqual([waiting, claimed, settleProbe(claimed, 'other', NOW)].map(probeIsOut), [false, true, false]);
    assert.ok(probeIsDue(claimed, NOW + 6_000) && probeIsOut(claimed), 'due again, and still out');
  });
});
