import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
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

  test('remembers two hundred exchanges of a session', () => {
    const { history } = at(0);
    for (let i = 0; i <= 200; i++) history.observer.exchange?.(report({ id: 9_000 + i }));
    const { exchanges } = history.session('aaaabbbbcccc');
    assert.deepEqual([exchanges.length, exchanges[0]?.id], [200, 9_001]);
  });

  test('forgets the session that was used least recently when there are too many entries', () => {
    const { history } = at(0);
    const end = (session: string) => history.observer.exchange?.(report({ session: () => session }));
    for (let i = 0; i < 8_192; i++) end(`s-${i}`);
    end('s-0');
    const remembered = [0, 1, 2].map((i) => history.session(`s-${i}`).exchanges.length);
    assert.deepEqual(remembered, [2, 0, 1]);
  });

  test('stays within a few MiB, whatever passes', () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const heap = (): number => {
      collect();
      return process.memoryUsage().heapUsed;
    };
    const { history } = at(1_800_000_000_000.5);
    const fill = (count: number): void => {
      for (let i = 0; i < count; i++) {
        const path = `/${String(i).padEnd(2_000, 'x')}?`.split('?', 1)[0]!;
        const hash = i.toString(16).padStart(12, '0');
        const resume = report({ path, duration: i + 0.5, session: () => hash, cursor: () => `${hash}0`.slice(1) });
        history.observer.decided?.(resume);
        history.observer.exchange?.(resume);
      }
    };
    fill(100);
    const before = heap();
    fill(30_000);
    const grown = heap() - before;
    assert.ok(grown < 5 * 1_048_576, `${grown} bytes`);
    assert.equal(history.decisions().length, 1_000);
  });

  test('is not touched by an exchange that neither resumed nor streamed', () => {
    const { history } = at(0);
    history.observer.exchange?.(plainReport({ session: () => assert.fail('a hash is not asked for') }));
  });

  test('counts each decision once a minute, for fifteen minutes, an empty replay as empty-replay', () => {
    const { history, clock } = at(60_000 * 100 + 59_999);
    history.observer.decided?.(report({ outcome: 'empty', refusal: 'empty-replay', status: 409 }));
    clock.now += 1;
    history.observer.decided?.(report());
    history.observer.decided?.(report());
    const minutes = history.minutes();
    assert.equal(minutes.length, 15);
    assert.deepEqual(
      minutes.slice(-2).map(({ rules, got }) => [rules, got]),
      [
        [{ 'empty-replay': 1 }, { refused: 1 }],
        [{ 'in-window': 2 }, { passed: 2 }],
      ],
    );
    clock.now += 15 * 60_000;
    assert.ok(history.minutes().every(({ rules }) => Object.keys(rules).length === 0));
  });

  for (const [name, over, got] of [
    ['a finished cursor that was taken off', { rule: 'finished', verdict: 'strip', outcome: null }, 'stripped'],
    ['a refusal in place of an empty replay', { outcome: 'empty', refusal: 'empty-replay', status: 409 }, 'refused'],
    [
      'a refusal from memory',
      { rule: 'below-replay-floor', verdict: 'refuse', refusal: 'below-replay-floor', status: 409, outcome: null },
      'memory',
    ],
    ['a refusal that gave way to the answer of the server', { rule: 'below-replay-floor', outcome: 'empty' }, 'passed'],
    ['an error of the server', { outcome: 'not-a-replay', status: 404 }, 'passed'],
    ['an empty replay, observed', { outcome: 'empty', refusal: 'empty-replay', observed: true }, 'observed'],
    ['a finished cursor, observed', { rule: 'finished', verdict: 'strip', observed: true }, 'observed'],
    ['a replay, observed', { observed: true }, 'passed'],
    ['a broken replay', { outcome: 'broken', error: 'upstream-reset', status: 502 }, 'nothing'],
    ['a replay whose client left', { outcome: 'abandoned', status: 0 }, 'nothing'],
  ] as const) {
    test(`counts what the client got: ${name} is ${got}`, () => {
      const { history } = at(0);
      history.observer.decided?.(report(over));
      assert.deepEqual(history.minutes().at(-1)?.got, { [got]: 1 });
    });
  }

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
