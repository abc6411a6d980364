import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { RULES } from '../../src/core/decide.ts';
import { OUTCOMES } from '../../src/core/replay.ts';
import { inWords } from '../../src/ops/words.ts';

describe('in words', () => {
  for (const { name } of RULES) {
    test(`${name} has a reason`, () => {
      assert.match(inWords({ rule: name, verdict: 'pass' }), /^[A-Z][^:]+: passed as it came\.$/);
    });
  }
  for (const outcome of OUTCOMES) {
    test(`${outcome} is told`, () => {
      const words = inWords({ rule: 'in-window', verdict: 'forward', outcome });
      assert.match(words, /^The stream of this cursor is still open: the server was asked\. [A-Z].+\.$/);
    });
  }

  for (const [name, decision, expected] of [
    [
      'a strip says what proved it',
      { rule: 'finished', verdict: 'strip', proof: 'event-id' },
      'The request is finished and its result arrived (its cursor says so): the cursor was taken off.',
    ],
    [
      'an empty replay says what the client got',
      { rule: 'in-window', verdict: 'forward', outcome: 'empty', refusal: 'empty-replay' },
      'The stream of this cursor is still open: the server was asked. The server answered with nothing, and the client was told so.',
    ],
    [
      'an empty replay that passed does not',
      { rule: 'in-window', verdict: 'forward', outcome: 'empty' },
      'The stream of this cursor is still open: the server was asked. The server answered with nothing.',
    ],
    [
      'a strip that was only observed took nothing off',
      { rule: 'finished', verdict: 'strip', outcome: 'replayed', observed: true },
      'The request is finished and its result arrived: the cursor would have been taken off. The server went on where the cursor stands. Nothing was changed.',
    ],
    [
      'a forward is the same when it is only observed',
      { rule: 'in-window', verdict: 'forward', outcome: 'replayed', observed: true },
      'The stream of this cursor is still open: the server was asked. The server went on where the cursor stands.',
    ],
    [
      'a rule that rests on no proof says none',
      { rule: 'generation-mismatch', verdict: 'refuse', proof: 'event-id' },
      'The cursor is from before the server restarted or the session began anew: answered without asking the server.',
    ],
    [
      'a failure comes first, and its outcome is not said again',
      { rule: 'in-window', verdict: 'forward', outcome: 'broken', error: 'upstream-refused' },
      'Cannot connect to the upstream server. The stream of this cursor is still open: the server was asked.',
    ],
    ['what is no decision has none', { rule: null, verdict: null }, ''],
    ['a name from elsewhere has none', { rule: 'constructor', verdict: 'toString' }, ''],
  ] as const) {
    test(name, () => assert.equal(inWords(decision), expected));
  }
});
