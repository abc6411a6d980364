/** Reports as an exchange makes them, for tests of what is shown. */
import type { ExchangeReport } from '../../src/report.ts';

let count = 0;

/** A forwarded resume that was replayed, unless told otherwise. */
export function report(over: Partial<ExchangeReport> = {}): ExchangeReport {
  count += 1;
  return {
    id: count,
    method: 'GET',
    path: '/mcp',
    route: '*/',
    guarded: true,
    status: 200,
    rule: 'in-window',
    verdict: 'forward',
    outcome: 'replayed',
    proof: null,
    refusal: null,
    observed: false,
    session: () => 'aaaabbbbcccc',
    cursor: () => 'ddddeeeeffff',
    traceparent: () => null,
    error: null,
    end: 'ended',
    stream: { ordinal: 0, kind: 'request' },
    events: 2,
    answers: 1,
    headAfter: 1.26,
    firstByteAfter: 2,
    duration: 12.34,
    ...over,
  };
}

/** A POST whose answer was JSON. */
export const plainReport = (over: Partial<ExchangeReport> = {}): ExchangeReport =>
  report({
    method: 'POST',
    rule: null,
    verdict: null,
    outcome: null,
    cursor: () => null,
    stream: null,
    events: 0,
    answers: 0,
    ...over,
  });
