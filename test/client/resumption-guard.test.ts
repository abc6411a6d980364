import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  InvalidResumptionError,
  type InvalidResumptionReason,
  type ResumeMeaning,
  StreamResumptionGuard,
} from '../../src/client/index.ts';

function refusalOf(run: () => unknown): InvalidResumptionReason {
  try {
    run();
  } catch (error) {
    assert.ok(error instanceof InvalidResumptionError && error instanceof Error, String(error));
    assert.equal(error.name, 'InvalidResumptionError');
    return error.reason;
  }
  assert.fail('it was built');
}

describe('the fields of a resume', () => {
  test('name the last event and the session', () => {
    const guard = new StreamResumptionGuard();
    guard.observeEvent(1, 'e1', false);
    guard.observeEvent(1, 'e2', false);
    assert.deepEqual(guard.buildResumeHeaders(1, 's'), {
      Accept: 'text/event-stream',
      'Last-Event-ID': 'e2',
      'Mcp-Session-Id': 's',
    });
  });

  test('leave out a session that there is none of', () => {
    const guard = new StreamResumptionGuard();
    guard.observeEvent(1, 'e1', false);
    for (const session of [null, undefined]) {
      assert.deepEqual(Object.keys(guard.buildResumeHeaders(1, session)), ['Accept', 'Last-Event-ID']);
    }
  });

  test('are refused for a finished request, whatever comes after its end', () => {
    const guard = new StreamResumptionGuard();
    guard.observeEvent(1, 'e1', false);
    guard.observeEvent(1, 'e2', true);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'finished',
    );
    guard.observeEvent(1, 'e3', false);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'finished',
    );
  });

  test('are refused for a request that finished without a cursor as finished', () => {
    const guard = new StreamResumptionGuard();
    guard.observeEvent(1, null, true);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'finished',
    );
  });

  test('are refused for a request without a cursor', () => {
    const guard = new StreamResumptionGuard();
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'no-cursor',
    );
    guard.observeEvent(1, null, false);
    guard.observeEvent(1, undefined, false);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'no-cursor',
    );
  });

  test('keep the cursor over an event without an ID, and lose it with an empty one', () => {
    const guard = new StreamResumptionGuard();
    guard.observeEvent(1, 'e1', false);
    guard.observeEvent(1, null, false);
    assert.equal(guard.buildResumeHeaders(1, 's')['Last-Event-ID'], 'e1');
    guard.observeEvent(1, '', false);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'no-cursor',
    );
    guard.observeEvent(1, 'e2', false);
    assert.equal(guard.buildResumeHeaders(1, 's')['Last-Event-ID'], 'e2');
  });

  test('carry any ID as the bytes of its UTF-8, which is what a stream had', () => {
    const guard = new StreamResumptionGuard();
    for (const id of ['plain', 'é', 'ключ', '🔑']) {
      guard.observeEvent(1, id, false);
      const headers = new Headers(guard.buildResumeHeaders(1, 's'));
      assert.equal(Buffer.from(headers.get('last-event-id') ?? '', 'latin1').toString(), id);
    }
  });

  test('could not carry some IDs, which no stream can have', () => {
    const guard = new StreamResumptionGuard();
    for (const id of ['a\nb', 'a\rb', 'a\0b']) assert.throws(() => guard.observeEvent(1, id, false), TypeError);
    assert.equal(guard.size, 0);
  });
});

describe('each request for itself', () => {
  test('1 and "1" are two requests', () => {
    const guard = new StreamResumptionGuard();
    guard.observeEvent(1, 'number', true);
    guard.observeEvent('1', 'string', false);
    assert.equal(guard.buildResumeHeaders('1', 's')['Last-Event-ID'], 'string');
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'finished',
    );
    assert.equal(guard.interpretResumeResponse(1, 200, true), 'terminal_already_observed_no_action');
    assert.equal(guard.interpretResumeResponse('1', 200, true), 'ambiguous_empty_replay_escalate_to_retry');
  });

  test('a request that is forgotten loses its cursor and its end together', () => {
    const guard = new StreamResumptionGuard();
    guard.observeEvent(1, 'e1', true);
    guard.observeEvent(2, 'f1', false);
    guard.forget(1);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'no-cursor',
    );
    assert.equal(guard.interpretResumeResponse(1, 200, true), 'ambiguous_empty_replay_escalate_to_retry');
    guard.observeEvent(1, null, false);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'no-cursor',
    );
    assert.equal(guard.buildResumeHeaders(2, 's')['Last-Event-ID'], 'f1');
  });

  test('beyond the bound the one observed least recently is forgotten, whole', () => {
    const guard = new StreamResumptionGuard({ maxRequests: 2 });
    guard.observeEvent(1, 'e1', true);
    guard.observeEvent(2, 'f1', false);
    guard.observeEvent(1, 'e2', false);
    guard.observeEvent(3, 'g1', false);
    assert.equal(guard.size, 2);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(2, 's')),
      'no-cursor',
    );
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'finished',
    );
    guard.observeEvent(4, 'h1', false);
    assert.equal(
      refusalOf(() => guard.buildResumeHeaders(1, 's')),
      'no-cursor',
    );
  });

  test('asking does not remember', () => {
    const guard = new StreamResumptionGuard();
    assert.throws(() => guard.buildResumeHeaders(1, 's'));
    guard.interpretResumeResponse(2, 200, true);
    guard.forget(3);
    assert.equal(guard.size, 0);
  });
});

describe('the answer to a resume', () => {
  const rows: readonly [status: number, empty: boolean, running: ResumeMeaning, finished: ResumeMeaning][] = [
    [200, false, 'continuation_valid', 'continuation_valid'],
    [200, true, 'ambiguous_empty_replay_escalate_to_retry', 'terminal_already_observed_no_action'],
    [404, true, 'buffer_evicted_retry_from_scratch', 'terminal_already_observed_no_action'],
    [404, false, 'buffer_evicted_retry_from_scratch', 'terminal_already_observed_no_action'],
    [409, true, 'buffer_evicted_retry_from_scratch', 'terminal_already_observed_no_action'],
    [409, false, 'buffer_evicted_retry_from_scratch', 'terminal_already_observed_no_action'],
  ];
  for (const [status, empty, running, finished] of rows) {
    test(`${status}, ${empty ? 'empty' : 'with a body'}: ${running}; once finished: ${finished}`, () => {
      const guard = new StreamResumptionGuard();
      guard.observeEvent(1, 'e1', false);
      assert.equal(guard.interpretResumeResponse(1, status, empty), running);
      guard.observeEvent(1, 'e2', true);
      assert.equal(guard.interpretResumeResponse(1, status, empty), finished);
    });
  }

  test('with any other status it means nothing', () => {
    const guard = new StreamResumptionGuard();
    guard.observeEvent(1, 'e1', true);
    for (const status of [0, 100, 199, 201, 202, 204, 304, 400, 401, 403, 405, 410, 500, 502, 503, Number.NaN]) {
      assert.throws(() => guard.interpretResumeResponse(1, status, true), RangeError);
    }
  });
});

test('bounds and ids that make no sense are refused', () => {
  for (const maxRequests of [0, -1, 1.5, Number.NaN]) {
    assert.throws(() => new StreamResumptionGuard({ maxRequests }), RangeError);
  }
  assert.throws(() => new StreamResumptionGuard().observeEvent(Number.NaN, 'e', false), RangeError);
});
