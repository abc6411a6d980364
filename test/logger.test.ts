import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Config } from '../src/config.ts';
import { createLogger, limited } from '../src/ops/logger.ts';

function logTo(log: Config['log'], isTTY = false) {
  const lines: string[] = [];
  return { lines, logger: createLogger(log, { isTTY, write: (line) => void lines.push(line) }) };
}

const DECISION = { method: 'GET', path: '/mcp', status: 409, verdict: 'refuse', rule: 'empty-replay', session: 'ab12' };

describe('the JSON log', () => {
  test('has its fields at top level, the level as a word and the time in ISO 8601', () => {
    const { lines, logger } = logTo({ level: 'info', format: 'json' });
    logger.info(DECISION, 'resume');
    const { time, ...line } = JSON.parse(lines[0] ?? '');
    assert.deepEqual(line, { level: 'info', ...DECISION, msg: 'resume' });
    assert.equal(new Date(time).toISOString(), time);
  });

  test('is written before the call returns', () => {
    const { lines, logger } = logTo({ level: 'info', format: 'json' });
    logger.info('now');
    assert.equal(lines.length, 1);
  });

  test('leaves out what is below its level', () => {
    const { lines, logger } = logTo({ level: 'warn', format: 'json' });
    logger.info('no');
    logger.warn('yes');
    assert.deepEqual(
      lines.map((line) => JSON.parse(line).msg),
      ['yes'],
    );
    const silent = logTo({ level: 'silent', format: 'json' });
    silent.logger.fatal('no');
    assert.equal(silent.lines.length, 0);
  });

  test('never shows a credential, even when handed one', () => {
    const { lines, logger } = logTo({ level: 'info', format: 'json' });
    logger.info({ authorization: 'hush', cookie: 'hush', headers: { any: 'hush' }, rawHeaders: ['hush'] });
    logger.warn({ err: Object.assign(new Error('no'), { headers: { cookie: 'hush' } }) });
    assert.ok(!lines.join('').includes('hush'), lines.join(''));
  });
});

describe('the pretty log', () => {
  test('reads a decision as one would say it', () => {
    const { lines, logger } = logTo({ level: 'info', format: 'pretty' });
    logger.info(DECISION, 'asked upstream');
    assert.match(
      lines[0] ?? '',
      /^\[\d\d:\d\d:\d\d\.\d{3}\] INFO: GET \/mcp 409 refuse empty-replay asked upstream \{"session":"ab12"\}\n$/,
    );
  });

  test('has colours on a terminal only', () => {
    const seen = (isTTY: boolean) => {
      const { lines, logger } = logTo({ level: 'info', format: 'pretty' }, isTTY);
      logger.info(DECISION, 'x');
      return lines.join('').includes('\u001b[');
    };
    assert.deepEqual([seen(true), seen(false)], [true, false]);
  });

  test('lets nothing that passed through control the terminal', () => {
    const { lines, logger } = logTo({ level: 'info', format: 'pretty' });
    logger.info({ path: '/\u009b2J\u001b[2J', status: 200 }, 'bell \u0007');
    assert.doesNotMatch(lines.join(''), /[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/);
  });

  test('keeps the code of a failure on the line', () => {
    const { lines, logger } = logTo({ level: 'info', format: 'pretty' });
    logger.warn({ event: 'refused', error: 'host-not-allowed' }, 'a request was refused');
    assert.match(lines.join(''), /^\S+ WARN: a request was refused \{.*"error":"host-not-allowed".*\}\n$/);
  });

  test('shows the stack of an error', () => {
    const { lines, logger } = logTo({ level: 'info', format: 'pretty' });
    logger.error({ err: new Error('broken pipe') }, 'lost');
    assert.match(lines.join(''), /ERROR: lost/);
    assert.match(lines.join(''), /broken pipe\n\s+at /);
  });
});

describe('a limited warning', () => {
  test('is logged at once, then at most once per interval, with the number left out', () => {
    let now = 0;
    const seen: unknown[] = [];
    const logger = { warn: (fields: object, message: string) => void seen.push([fields, message]) };
    const warn = limited(logger as never, 'store-down', 1_000, () => now);
    for (const at of [5, 6, 1_004, 1_005, 1_006, 3_000]) {
      now = at;
      warn({ at }, 'the store is down');
    }
    assert.deepEqual(seen, [
      [{ event: 'store-down', at: 5, suppressed: 0 }, 'the store is down'],
      [{ event: 'store-down', at: 1_005, suppressed: 2 }, 'the store is down'],
      [{ event: 'store-down', at: 3_000, suppressed: 1 }, 'the store is down'],
    ]);
  });
});
