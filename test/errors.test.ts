import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ERRORS, type ErrorCode, errorBody, GuardError } from '../src/errors.ts';

const CODES = Object.keys(ERRORS) as ErrorCode[];

test('every error has the status and the fault of its code', () => {
  for (const code of CODES) {
    const error = new GuardError(code);
    assert.ok(error instanceof Error);
    assert.deepEqual([error.status, error.fault], [ERRORS[code].status, ERRORS[code].fault]);
    assert.equal(error.message, ERRORS[code].sentence);
  }
});

test('no failure of our own can be taken for a refusal', () => {
  for (const code of CODES) assert.ok(![405, 409].includes(ERRORS[code].status), code);
  assert.deepEqual(
    CODES.filter((code) => ERRORS[code].status === 404),
    ['no-route'],
  );
});

test('a body is plain JSON, and no JSON-RPC error', () => {
  for (const code of CODES) {
    const body = JSON.parse(errorBody(code));
    assert.deepEqual(Object.keys(body), ['error']);
    assert.equal(typeof body.error, 'string');
  }
});

test('an error keeps its cause and a message of its own', () => {
  const cause = new Error('ECONNREFUSED');
  const error = new GuardError('upstream-refused', 'http://localhost:1 refused the connection', { cause });
  assert.equal(error.cause, cause);
  assert.match(error.message, /localhost:1/);
});
