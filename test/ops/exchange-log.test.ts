import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { exchangeLog } from '../../src/ops/exchange-log.ts';
import { createLogger } from '../../src/ops/logger.ts';
import { plainReport, report } from './reports.ts';

function logTo(format: 'json' | 'pretty', level: 'debug' | 'info' = 'debug', isTTY = false) {
  const lines: string[] = [];
  const logger = createLogger({ level, format }, { isTTY, write: (line) => void lines.push(line) });
  const clock = { now: 0 };
  return {
    lines,
    clock,
    log: exchangeLog(logger, () => clock.now),
    parsed: () => lines.map((line) => JSON.parse(line)),
  };
}

describe('the log of exchanges', () => {
  test('has a decision at info, with the fields of section 11', () => {
    const { log, parsed } = logTo('json', 'info');
    log.decided?.(
      report({ status: 409, outcome: 'empty', refusal: 'empty-replay', stream: null, events: 0, end: 'open' }),
    );
    const [{ time: _, ...line }] = parsed();
    assert.deepEqual(line, {
      level: 'info',
      event: 'decision',
      method: 'GET',
      path: '/mcp',
      route: '*/',
      status: 409,
      verdict: 'forward',
      rule: 'in-window',
      outcome: 'empty',
      refusal: 'empty-replay',
      session: 'aaaabbbbcccc',
      cursor: 'ddddeeeeffff',
      events: 0,
      headMs: 1.3,
      firstByteMs: 2,
      durationMs: 12.3,
      msg: 'decision',
    });
  });

  test('has one line for a resume that was over with its decision', () => {
    const { log, parsed } = logTo('json');
    const refused = report({ rule: 'below-replay-floor', verdict: 'refuse', outcome: null, status: 409, stream: null });
    log.decided?.({ ...refused, end: 'open' });
    log.exchange?.(refused);
    assert.deepEqual(
      parsed().map(({ level, event }) => [level, event]),
      [['info', 'decision']],
    );
  });

  test('says at debug what became of the stream of a resume', () => {
    const { log, parsed } = logTo('json');
    log.decided?.(report({ end: 'open', events: 1 }));
    log.exchange?.(report({ end: 'client-left', events: 40 }));
    const last = parsed().at(-1);
    assert.deepEqual([last.level, last.event, last.events, last.clientLeft], ['debug', 'exchange', 40, true]);
  });

  test('has any other exchange at debug', () => {
    const { log, parsed } = logTo('json');
    log.exchange?.(plainReport());
    log.exchange?.(report({ rule: 'not-a-resume', verdict: 'pass', outcome: null, stream: null }));
    assert.deepEqual(
      parsed().map(({ level, event }) => [level, event]),
      [
        ['debug', 'exchange'],
        ['debug', 'exchange'],
      ],
    );
  });

  test('asks about the path when a POST without a session is 404 or 405 on a guarded path', () => {
    const { log, clock, parsed } = logTo('json', 'info');
    const outside = { status: 404, session: () => null } as const;
    for (const [at, over] of [
      [0, { ...outside, guarded: false }],
      [1, { ...outside, method: 'GET' }],
      [2, { ...outside, status: 400 }],
      [3, { status: 404 }],
      [4, outside],
      [5, { ...outside, status: 405 }],
      [10_004, outside],
    ] as const) {
      clock.now = at;
      log.exchange?.(plainReport(over));
    }
    assert.deepEqual(
      parsed().map(({ level, event, path, status, suppressed }) => [level, event, path, status, suppressed]),
      [
        ['warn', 'no-mcp-here', '/mcp', 404, 0],
        ['warn', 'no-mcp-here', '/mcp', 404, 1],
      ],
    );
  });

  test('has a failure at warn, once, a resume as well', () => {
    const { log, parsed } = logTo('json');
    const broken = report({ status: 502, outcome: 'broken', error: 'upstream-reset', stream: null });
    log.decided?.({ ...broken, end: 'open' });
    log.exchange?.(broken);
    assert.deepEqual(
      parsed().map(({ level, error, rule }) => [level, error, rule]),
      [['warn', 'upstream-reset', 'in-window']],
    );
  });

  test('warns of a failure that repeats once a second for each kind, and counts the rest', () => {
    const { log, clock, parsed } = logTo('json', 'info');
    const fail = (at: number, error: 'upstream-refused' | 'upstream-reset') => {
      clock.now = at;
      log.exchange?.(plainReport({ status: 502, error }));
    };
    for (const at of [0, 1, 2, 999]) fail(at, 'upstream-refused');
    fail(999, 'upstream-reset');
    fail(1_000, 'upstream-refused');
    assert.deepEqual(
      parsed().map(({ error, suppressed }) => [error, suppressed]),
      [
        ['upstream-refused', 0],
        ['upstream-reset', 0],
        ['upstream-refused', 3],
      ],
    );
  });

  test('keeps the failures that were left out at debug', () => {
    const { log, parsed } = logTo('json');
    for (let i = 0; i < 3; i++) log.exchange?.(plainReport({ error: 'upstream-refused' }));
    assert.deepEqual(
      parsed().map(({ level }) => level),
      ['warn', 'debug', 'debug'],
    );
  });

  test('warns of a stream that cannot be read at most every ten seconds', () => {
    const { log, clock, parsed } = logTo('json');
    for (const at of [0, 1, 9_999, 10_000]) {
      clock.now = at;
      log.blind?.('encoding');
    }
    assert.deepEqual(
      parsed().map(({ level, event, cause, suppressed }) => [level, event, cause, suppressed]),
      [
        ['warn', 'tap-blind', 'encoding', 0],
        ['warn', 'tap-blind', 'encoding', 2],
      ],
    );
  });
});

describe('the log of exchanges for a person', () => {
  const said = (line: string | undefined): string => (line ?? '').replace(/^\[[\d:.]+\] /, '');

  test('says what happened and why', () => {
    const { log, lines } = logTo('pretty');
    log.decided?.(report({ status: 409, outcome: 'empty', refusal: 'empty-replay', events: 0, end: 'open' }));
    assert.equal(
      said(lines[0]),
      'INFO: GET /mcp 409 forward in-window empty: The stream of this cursor is still open: the server was asked. ' +
        'The server answered with nothing, and the client was told so.  ' +
        'session aaaabbbbcccc, cursor ddddeeeeffff, 12 ms\n',
    );
  });

  test('names a failure in words and how many were left out', () => {
    const { log, lines, clock } = logTo('pretty', 'info');
    for (const at of [0, 1, 2, 1_000]) {
      clock.now = at;
      log.exchange?.(plainReport({ status: 502, error: 'upstream-refused', duration: 3_210 }));
    }
    assert.equal(lines.length, 2);
    assert.equal(
      said(lines[1]),
      'WARN: POST /mcp 502: Cannot connect to the upstream server.  session aaaabbbbcccc, 3.2 s, (2 more like this were left out)\n',
    );
  });

  test('is one line for an exchange without a decision', () => {
    const { log, lines } = logTo('pretty');
    log.exchange?.(plainReport({ events: 1, end: 'client-left', status: 0, duration: 300_000 }));
    assert.equal(said(lines[0]), 'DEBUG: POST /mcp  session aaaabbbbcccc, the client left, 1 event, 5 min\n');
  });

  test('colours verdict and rule on a terminal, and only there', () => {
    const seen = (isTTY: boolean): string => {
      const { log, lines } = logTo('pretty', 'info', isTTY);
      log.decided?.(report({ rule: 'below-replay-floor', verdict: 'refuse', outcome: null, status: 409 }));
      return lines.join('');
    };
    assert.ok(seen(true).includes('\u001b[31mrefuse\u001b['), JSON.stringify(seen(true)));
    assert.ok(!seen(false).includes('\u001b'));
  });

  test('lets nothing of a request control the terminal, nor pass for another kind of line', () => {
    const { log, lines } = logTo('pretty');
    log.decided?.(report({ path: '/\u009b2J\u001b[2J","event":"listening\n' }));
    assert.equal(lines.length, 1);
    assert.doesNotMatch(lines.join('').trimEnd(), /[\u0000-\u001f\u007f-\u009f]/);
    assert.match(said(lines[0]), /the server was asked/);
  });
});
