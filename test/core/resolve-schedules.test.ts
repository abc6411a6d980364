/**
 * What changes with time and with what came of earlier resumes: storms of finished cursors, replay floors, probes, and
 * replays that end late. The clock is in hand, so every boundary has a row on each side.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { beginGeneration, NO_IDENTITY } from '../../src/core/ledger.ts';
import { OUTCOMES } from '../../src/core/replay.ts';
import { noteStrip, settleLateEmpty, settleReplay, settleStrip } from '../../src/core/resolve.ts';
import { key, Scene, STRANGER } from '../support/ledger.ts';

/** A finished request whose cursor `e2` proves its own delivery. */
function finished(): Scene {
  const scene = new Scene();
  scene.answered(1, 'e1', 'e2');
  return scene;
}

/** That, with this many fruitless strips, one every `every` ms. */
function stormy(strips = 10, every = 0): Scene {
  const scene = finished();
  for (let i = 0; i < strips; i++) {
    if (i > 0) scene.after(every);
    assert.equal(scene.strip('e2'), 'strip finished');
  }
  return scene;
}

describe('a storm of finished cursors', () => {
  for (const [strips, verdict] of [
    [9, 'strip finished'],
    [10, 'refuse finished-storm'],
  ] as const) {
    test(`after ${strips} fruitless strips the next resume is ${verdict}`, () => {
      assert.equal(stormy(strips).verdict('e2'), verdict);
    });
  }

  for (const [span, verdict] of [
    [29_999, 'refuse finished-storm'],
    [30_000, 'refuse finished-storm'],
    [30_001, 'strip finished'],
  ] as const) {
    test(`ten of them ${span} ms after the first make the next one ${verdict}`, () => {
      assert.equal(
        stormy(10, 1_000)
          .after(span - 9_000)
          .verdict('e2'),
        verdict,
      );
    });
  }

  test('the last ten count: an older one does not keep the row within 30 s, nor break it', () => {
    const scene = finished();
    scene.strip('e2');
    scene.after(60_000);
    for (let i = 0; i < 9; i++) scene.strip('e2');
    assert.equal(scene.verdict('e2'), 'strip finished');
    scene.strip('e2');
    assert.equal(scene.verdict('e2'), 'refuse finished-storm');
  });

  test('a strip that brought an event starts the row anew', () => {
    const scene = stormy(9);
    assert.equal(scene.strip('e2', 1), 'strip finished');
    for (let i = 0; i < 9; i++) scene.strip('e2');
    assert.equal(scene.verdict('e2'), 'strip finished');
    scene.strip('e2');
    assert.equal(scene.verdict('e2'), 'refuse finished-storm');
  });

  test('one that is still open and has brought an event is no part of the row', () => {
    const scene = stormy(9);
    let events = 0;
    noteStrip(scene.session, key('e2'), () => events, scene.now);
    assert.equal(scene.verdict('e2'), 'refuse finished-storm');
    events = 1;
    assert.equal(scene.verdict('e2'), 'strip finished');
  });

  test('it is that of one cursor', () => {
    const scene = finished();
    scene.answered(2, 'f1', 'f2');
    for (let i = 0; i < 10; i++) scene.strip('e2');
    assert.equal(scene.verdict('f2'), 'strip finished');
  });

  test('a stranger neither makes one nor is refused in one', () => {
    const scene = stormy(9);
    for (let i = 0; i < 20; i++) assert.equal(scene.strip('e2', 0, { caller: STRANGER }), 'strip finished');
    assert.equal(scene.verdict('e2'), 'strip finished');
    scene.strip('e2');
    assert.equal(scene.verdict('e2'), 'refuse finished-storm');
    assert.equal(scene.verdict('e2', { caller: STRANGER }), 'strip finished');
  });

  test('it refuses once, and then goes by the schedule of probes', () => {
    const scene = stormy();
    assert.equal(scene.resume('e2').verdict, 'refuse finished-storm');
    const sent: number[] = [];
    const start = scene.now;
    for (let ms = 0; ms <= 140_000; ms += 500) {
      scene.now = start + ms;
      if (scene.strip('e2') === 'strip finished') sent.push(ms);
    }
    assert.deepEqual(sent, [0, 1_000, 3_000, 7_000, 15_000, 31_000, 63_000, 123_000]);
  });

  test('it stays in force, however long the pause, until a strip brings an event', () => {
    const scene = stormy();
    scene.resume('e2');
    scene.strip('e2');
    scene.after(300_000);
    assert.equal(scene.strip('e2'), 'strip finished', 'a probe is due');
    assert.equal(scene.verdict('e2'), 'refuse finished-storm');
    scene.after(2_000);
    assert.equal(scene.strip('e2', 1), 'strip finished');
    for (let i = 0; i < 10; i++) assert.equal(scene.strip('e2'), 'strip finished');
    assert.equal(scene.verdict('e2'), 'refuse finished-storm', 'ten new ones');
  });

  test('one probe is out at a time, and its slot frees itself after 5 s', () => {
    const scene = stormy();
    scene.resume('e2');
    assert.equal(scene.resume('e2').verdict, 'strip finished');
    noteStrip(scene.session, key('e2'), () => 0, scene.now);
    assert.equal(scene.resume('e2').verdict, 'refuse finished-storm');
    assert.equal(scene.after(4_999).verdict('e2'), 'refuse finished-storm');
    assert.equal(scene.after(1).verdict('e2'), 'strip finished');
  });

  test('strips from before it are no probes when they end', () => {
    const scene = finished();
    for (let i = 0; i < 10; i++) {
      assert.equal(scene.resume('e2').verdict, 'strip finished');
      noteStrip(scene.session, key('e2'), () => 0, scene.now);
    }
    assert.equal(scene.resume('e2').verdict, 'refuse finished-storm');
    for (let i = 0; i < 10; i++) settleStrip(scene.session, key('e2'), 0, scene.now);
    assert.equal(scene.strip('e2'), 'strip finished', 'the first probe goes at once');
    assert.equal(scene.verdict('e2'), 'refuse finished-storm');
    assert.equal(scene.after(1_000).verdict('e2'), 'strip finished', 'and the second a second later');
  });

  test('a new generation begins without it', () => {
    const scene = stormy();
    scene.resume('e2');
    beginGeneration(scene.session, NO_IDENTITY);
    scene.answered(1, 'e1', 'e2');
    assert.equal(scene.verdict('e2'), 'strip finished');
  });
});

/** An open request whose stream carried e1 to e5 before it was cut. */
function cut(): Scene {
  const scene = new Scene();
  scene.unanswered(1, 'e1', 'e2', 'e3', 'e4', 'e5');
  return scene;
}

describe('the replay floor', () => {
  test('rises past a cursor below the mark that brought nothing', () => {
    const scene = cut();
    assert.equal(scene.replay('e3', 'empty'), 'forward in-window');
    assert.equal(scene.replay('e3', 'empty'), 'forward in-window', 'the probe');
    for (const [cursor, verdict] of [
      ['e1', 'refuse below-replay-floor'],
      ['e3', 'refuse below-replay-floor'],
      ['e4', 'forward in-window'],
      ['e5', 'forward in-window'],
    ] as const) {
      assert.equal(scene.verdict(cursor), verdict, cursor);
    }
  });

  for (const [cursor, barred] of [
    ['e4', ['e1', 'e2', 'e3', 'e4']],
    ['e5', ['e5']],
  ] as const) {
    test(`an empty replay at ${cursor} of five events bars ${barred.join(', ')}`, () => {
      const scene = cut();
      scene.replay(cursor, 'empty');
      scene.replay(cursor, 'empty');
      const refused = ['e1', 'e2', 'e3', 'e4', 'e5'].filter((id) => scene.verdict(id).startsWith('refuse'));
      assert.deepEqual(refused, barred);
    });
  }

  test('does not fall when an earlier cursor brings nothing too', () => {
    const scene = cut();
    scene.replay('e4', 'empty');
    scene.replay('e1', 'empty');
    assert.equal(scene.verdict('e4'), 'refuse below-replay-floor');
  });

  test('falls back to a cursor that brought a replay, and no further', () => {
    const scene = cut();
    scene.replay('e4', 'empty');
    assert.equal(scene.replay('e2', 'replayed'), 'forward in-window', 'the probe');
    scene.replay('e1', 'empty');
    scene.replay('e1', 'empty');
    for (const [cursor, verdict] of [
      ['e1', 'refuse below-replay-floor'],
      ['e2', 'forward in-window'],
      ['e4', 'forward in-window'],
    ] as const) {
      assert.equal(scene.verdict(cursor), verdict, cursor);
    }
  });

  test('at the mark bars that event alone, also when the stream has gone on', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    for (const id of ['e1', 'e2']) scene.event(leg, id);
    scene.replay('e2', 'empty');
    scene.replay('e2', 'empty');
    scene.event(leg, 'e3');
    assert.deepEqual(
      ['e1', 'e2', 'e3'].map((id) => scene.verdict(id)),
      ['forward in-window', 'refuse below-replay-floor', 'forward in-window'],
    );
  });

  test('is that of every open owner, or it does not bar', () => {
    const scene = new Scene();
    scene.unanswered(1, '0', 'e1');
    scene.replay('0', 'empty');
    scene.replay('0', 'empty');
    assert.equal(scene.verdict('0'), 'refuse below-replay-floor');
    scene.unanswered(2, '0', 'f1');
    assert.equal(scene.verdict('0'), 'forward in-window');
    scene.replay('0', 'empty');
    scene.replay('0', 'empty');
    assert.equal(scene.verdict('0'), 'refuse below-replay-floor', 'both are below it now');
  });

  test('of several open owners the one that would be continued is probed', () => {
    const scene = new Scene();
    scene.unanswered(1, '0', 'e1');
    scene.replay('0', 'empty');
    scene.unanswered(2, '0', 'f1');
    scene.replay('0', 'empty');
    const sent: number[] = [];
    const start = scene.now;
    for (let ms = 0; ms <= 8_000; ms += 500) {
      scene.now = start + ms;
      if (scene.replay('0', 'empty') === 'forward in-window') sent.push(ms);
    }
    assert.deepEqual(sent, [0, 1_000, 3_000, 7_000], 'the schedule of one stream, though two are below their floor');
  });

  test('bars a finished, undelivered stream as well', () => {
    const scene = new Scene();
    scene.undelivered(1, 'e1', 'e2');
    assert.equal(scene.replay('e1', 'silent'), 'forward finished-undelivered');
    assert.equal(scene.replay('e1', 'silent'), 'forward finished-undelivered');
    assert.equal(scene.verdict('e1'), 'refuse below-replay-floor');
  });

  for (const outcome of OUTCOMES) {
    const raises = outcome === 'empty' || outcome === 'silent';
    test(`${raises ? 'rises' : 'does not rise'} by the outcome ${outcome}`, () => {
      const scene = cut();
      scene.replay('e1', outcome);
      scene.replay('e1', outcome);
      assert.equal(scene.verdict('e1'), raises ? 'refuse below-replay-floor' : 'forward in-window');
    });
  }
});

describe('probes of a barred cursor', () => {
  /** At what moments, in ms after the refusal, a cursor that is tried twice a second reaches upstream. */
  function reaches(scene: Scene, until: number, outcomeAt: (ms: number) => 'empty' | 'live' | 'broken'): number[] {
    const start = scene.now;
    const sent: number[] = [];
    for (let ms = 0; ms <= until; ms += 500) {
      scene.now = start + ms;
      if (scene.replay('e1', outcomeAt(ms)).startsWith('forward')) sent.push(ms);
    }
    return sent;
  }

  function barred(): Scene {
    const scene = cut();
    scene.replay('e1', 'empty');
    return scene;
  }

  test('go at once, then after 1 s, 2 s, 4 s and so on, up to 60 s', () => {
    assert.deepEqual(
      reaches(barred(), 250_000, () => 'empty'),
      [0, 1_000, 3_000, 7_000, 15_000, 31_000, 63_000, 123_000, 183_000, 243_000],
    );
  });

  test('come at the same interval again after any other outcome, a second after the immediate one', () => {
    assert.deepEqual(
      reaches(barred(), 3_000, () => 'broken'),
      [0, 1_000, 2_000, 3_000],
    );
    assert.deepEqual(
      reaches(barred(), 7_000, (ms) => (ms < 1_000 ? 'empty' : 'live')),
      [0, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000],
    );
    assert.deepEqual(
      reaches(barred(), 7_000, (ms) => (ms <= 1_000 ? 'empty' : 'live')),
      [0, 1_000, 3_000, 5_000, 7_000],
    );
  });

  for (const [ms, verdict] of [
    [999, 'refuse below-replay-floor'],
    [1_000, 'forward in-window'],
    [1_001, 'forward in-window'],
  ] as const) {
    test(`${ms} ms after a fruitless immediate one the next resume is ${verdict}`, () => {
      const scene = barred();
      scene.replay('e1', 'empty');
      assert.equal(scene.after(ms).verdict('e1'), verdict);
    });
  }

  test('are out one at a time, and a slot frees itself after 5 s', () => {
    const scene = barred();
    assert.equal(scene.resume('e1').verdict, 'forward in-window');
    assert.equal(scene.resume('e1').verdict, 'refuse below-replay-floor');
    assert.equal(scene.after(4_999).verdict('e1'), 'refuse below-replay-floor');
    assert.equal(scene.after(1).verdict('e1'), 'forward in-window');
  });

  test('begin anew after a replay', () => {
    const scene = barred();
    reaches(scene, 7_000, () => 'empty');
    scene.after(8_000);
    assert.equal(scene.replay('e1', 'replayed'), 'forward in-window');
    scene.replay('e1', 'empty');
    assert.deepEqual(
      reaches(scene, 3_500, () => 'empty'),
      [0, 1_000, 3_000],
    );
  });

  test('are not the resumes that were under way when the floor rose', () => {
    const scene = cut();
    const { target } = scene.resume('e1').resolution;
    assert.equal(scene.resume('e1').verdict, 'forward in-window', 'two at once');
    for (let i = 0; i < 2; i++) settleReplay(scene.session, target!, key('e1'), 'empty', scene.now);
    assert.deepEqual(
      reaches(scene, 3_500, () => 'empty'),
      [0, 1_000, 3_000],
    );
  });

  test('are not the resumes of a stranger, who is let through and changes nothing', () => {
    const scene = barred();
    scene.replay('e1', 'empty');
    for (let ms = 0; ms < 900; ms += 100) {
      scene.after(100);
      assert.equal(scene.replay('e1', 'not-a-replay', { caller: STRANGER }), 'forward in-window');
    }
    assert.equal(scene.verdict('e1'), 'refuse below-replay-floor');
    assert.equal(scene.after(100).verdict('e1'), 'forward in-window', 'due a second after the first probe');
  });
});

describe('a standalone stream', () => {
  function listened(): Scene {
    const scene = new Scene();
    const leg = scene.listen();
    for (const id of ['n1', 'n2', 'n3']) scene.event(leg, id);
    scene.cut(leg);
    return scene;
  }

  for (const outcome of OUTCOMES) {
    const strips = outcome === 'empty' || outcome === 'silent';
    test(`${strips ? 'is' : 'is not'} stripped after ${outcome}`, () => {
      const scene = listened();
      scene.replay('n2', outcome);
      assert.equal(scene.verdict('n2'), strips ? 'strip standalone-below-floor' : 'forward in-window');
      assert.equal(scene.verdict('n2', { caller: STRANGER }), scene.verdict('n2'), 'whoever asks');
    });
  }

  test('is stripped for its other cursors as well, of which one says as much as another', () => {
    const scene = listened();
    scene.replay('n2', 'empty');
    assert.equal(scene.verdict('n3'), 'strip standalone-below-floor');
  });

  test('is not stripped while a request is open that may be answered on it, as others were before', () => {
    const scene = new Scene();
    const leg = scene.listen();
    const answered = scene.post(1);
    scene.event(leg, 'n1', { answers: [1] });
    scene.end(answered);
    const waiting = scene.post(2);
    scene.cut(leg);
    scene.replay('n1', 'empty');
    assert.equal(scene.replay('n1', 'empty'), 'forward in-window');
    scene.event(waiting, 'e1', { answers: [2] });
    assert.equal(scene.verdict('n1'), 'strip standalone-below-floor');
  });

  test('that shares its cursor with an open request is not stripped', () => {
    const scene = listened();
    scene.replay('n2', 'empty');
    scene.unanswered(1, 'n2');
    assert.equal(scene.verdict('n2'), 'forward in-window');
  });
});

describe('replays that end late, without an event', () => {
  function late(scene: Scene, times: number, cursor = 'e1'): void {
    for (let i = 0; i < times; i++) {
      const { verdict, resolution } = scene.resume(cursor);
      assert.equal(verdict, 'forward in-window', `number ${i + 1}`);
      scene.settle(cursor, resolution, 'live');
      settleLateEmpty(scene.session, resolution.target!, key(cursor), scene.now);
    }
  }

  test('nine in a row change nothing, the tenth sets the floor', () => {
    const scene = cut();
    late(scene, 9);
    assert.equal(scene.verdict('e1'), 'forward in-window');
    assert.equal(scene.resolve('e1').facts.owners[0]?.lastReplayEmpty, false);
    late(scene, 1);
    assert.equal(scene.resolve('e1').facts.owners[0]?.lastReplayEmpty, true);
    assert.equal(scene.replay('e1', 'empty'), 'forward in-window', 'the immediate probe');
    assert.equal(scene.verdict('e1'), 'refuse below-replay-floor');
  });

  test('ten in a row of a standalone stream have it stripped', () => {
    const scene = new Scene();
    const leg = scene.listen();
    scene.event(leg, 'n1');
    scene.cut(leg);
    late(scene, 10, 'n1');
    assert.equal(scene.verdict('n1'), 'strip standalone-below-floor');
  });

  test('every other outcome breaks the row', () => {
    for (const outcome of OUTCOMES) {
      if (outcome === 'live' || outcome === 'empty' || outcome === 'silent') continue;
      const scene = cut();
      late(scene, 9);
      scene.replay('e1', outcome);
      late(scene, 9);
      assert.equal(scene.resolve('e1').facts.owners[0]?.lastReplayEmpty, false, outcome);
    }
  });

  test('a live replay that has not ended does not', () => {
    const scene = cut();
    late(scene, 9);
    scene.replay('e1', 'live');
    late(scene, 1);
    assert.equal(scene.resolve('e1').facts.owners[0]?.lastReplayEmpty, true);
  });

  test('the row is that of one cursor', () => {
    const scene = cut();
    late(scene, 9, 'e1');
    late(scene, 9, 'e2');
    assert.equal(scene.resolve('e1').facts.owners[0]?.lastReplayEmpty, false);
  });

  test('ten in a row on probes double the interval like an empty replay', () => {
    const scene = cut();
    scene.replay('e1', 'empty');
    for (let i = 0; i < 10; i++) {
      late(scene, 1);
      scene.after(1_000);
    }
    assert.equal(scene.verdict('e1'), 'refuse below-replay-floor', 'a second is not enough any more');
    assert.equal(scene.after(1_000).verdict('e1'), 'forward in-window', 'two are');
  });
});
