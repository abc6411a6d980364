import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { isResponse, MessageScanner } from '../../src/core/jsonrpc.ts';

const value = fc.oneof(
  fc.constantFrom(null, 0, 1, 1.5, '', 'x', true, undefined),
  fc.array(fc.integer()),
  fc.object({ maxDepth: 1 }),
);
const message = fc.record(
  { jsonrpc: fc.constant('2.0'), id: value, method: value, result: value, error: value, params: value },
  { requiredKeys: [] },
);

test('a message that a program holds is a response exactly if its text is one', () => {
  fc.assert(
    fc.property(message, (held) => {
      const text = new TextEncoder().encode(JSON.stringify(held));
      const scanner = new MessageScanner('responses');
      scanner.push(text, 0, text.length);
      assert.equal(isResponse(held), scanner.end().responses.length === 1);
    }),
    { numRuns: 2_000 },
  );
});
