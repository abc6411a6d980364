import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { History } from '../../src/ops/history.ts';
import { plainReport, report } from './reports.ts';

function at(now: number) {
  const clock = { now };
  return { clock, history: new History(() => clock.now) };
}

describe('the recent past', () => {
  test('holds the last thousand decisions, the latest first', () => {
    const { history } = at(0);
    for (let i = 0; i <= 1_000; i++) history.observer.decided?.(report({ id: 7_000 + i }));
    const decisions = history.decisions();
    assert.equal(decisions.length, 1_000);
    assert.deepEqual([decisions[0]?.id, decisions.at(-1)?.id], [8_000, 7_001]);
  });

  test('dates a decision by its request', () => {
    const { history } = at(100_000);
    history.observer.decided?.(report({ duration: 250 }));
    assert.equal(history.decisions()[0]?.at, 99_750);
  });

  test('keeps hashes, and nothing that leads back to the exchange', () => {
    const { history } = at(0);
    history.observer.decided?.(report());
    const [entry] = history.decisions();
    assert.deepEqual([entry?.session, entry?.cursor], ['aaaabbbbcccc', 'ddddeeeeffff']);
    assert.ok(Object.values(entry ?? {}).every((value) => typeof value !== 'function'));
  });

  test('holds no request that was no resume among the decisions', () => {
    const { history } = at(0);
    history.observer.decided?.(plainReport());
    history.observer.decided?.(report({ rule: 'not-a-resume', verdict: 'pass' }));
    assert.deepEqual(history.decisions(), []);
  });

  test('shows the exchanges of one session, streams and decisions, and what is open', () => {
    const { history } = at(0);
    const stream = { ordinal: 3, kind: 'standalone' } as const;
    history.observer.exchange?.(report({ id: 1 }));
    history.observer.exchange?.(plainReport({ id: 2 }));
    history.observer.exchange?.(report({ id: 3, session: () => 'other' }));
    history.observer.streamOpened?.({ id: 4, session: () => 'aaaabbbbcccc', ...stream });
    history.observer.streamOpened?.({ id: 5, session: () => 'aaaabbbbcccc', ...stream });
    history.observer.streamClosed?.({ id: 5, session: () => 'aaaabbbbcccc', ...stream });
    const { exchanges, open } = history.session('aaaabbbbcccc');
    assert.deepEqual([exchanges.map(({ id }) => id), open.map(({ id }) => id)], [[1], [4]]);
  });

  test('remembers two hundred exchanges of a session and five hundred sessions', () => {
    const { history } = at(0);
    for (let i = 0; i <= 200; i++) history.observer.exchange?.(report({ id: 9_000 + i }));
    const { exchanges } = history.session('aaaabbbbcccc');
    assert.deepEqual([exchanges.length, exchanges[0]?.id], [200, 9_001]);
    for (let i = 0; i < 500; i++) history.observer.exchange?.(report({ session: () => `s-${i}` }));
    assert.equal(history.session('aaaabbbbcccc').exchanges.length, 0);
    assert.equal(history.session('s-0').exchanges.length, 1);
  });

  test('counts by rule and minute, empty replays beside, for fifteen minutes', () => {
    const { history, clock } = at(60_000 * 100 + 59_999);
    history.observer.decided?.(report({ outcome: 'empty', refusal: 'empty-replay' }));
    clock.now += 1;
    history.observer.decided?.(report());
    history.observer.decided?.(report());
    const minutes = history.minutes();
    assert.equal(minutes.length, 15);
    assert.deepEqual(
      minutes.slice(-2).map(({ rules }) => rules),
      [{ 'in-window': 1, 'empty-replay': 1 }, { 'in-window': 2 }],
    );
    clock.now += 15 * 60_000;
    assert.ok(history.minutes().every(({ rules }) => Object.keys(rules).length === 0));
  });

  test('tells followers of each decision until they stop', () => {
    const { history } = at(0);
    const seen: number[] = [];
    const stop = history.follow(({ id }) => void seen.push(id));
    history.observer.decided?.(report({ id: 1 }));
    stop();
    history.observer.decided?.(report({ id: 2 }));
    assert.deepEqual(seen, [1]);
  });
});
