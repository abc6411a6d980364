import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type ClientBounds, SessionMemory } from '../../src/client/sessions.ts';
import { endSession, NO_IDENTITY, openLeg, openStream, type Session } from '../../src/core/ledger.ts';

const BOUNDS: ClientBounds = {
  sessions: 3,
  memory: 100_000,
  sessionMemory: 600_000,
  streamsPerSession: 1_000,
  eventIdsPerStream: 1_000,
  finishedStreamMemory: 600_000,
  openStreamMemory: 3_600_000,
};

const learn = (memory: SessionMemory, key: string, now = 0): Session =>
  memory.learn(key, { anonymous: false, upstream: NO_IDENTITY }, now);

test('a session is the same one each time', () => {
  const memory = new SessionMemory(BOUNDS);
  const session = learn(memory, 'a');
  assert.equal(memory.recall('a', 1), session);
  assert.equal(learn(memory, 'a', 2), session);
  assert.equal(memory.recall('b', 3), null);
  assert.equal(memory.size, 1);
});

test('one too many puts out the one used least recently', () => {
  const memory = new SessionMemory(BOUNDS);
  for (const key of ['a', 'b', 'c']) learn(memory, key);
  memory.recall('a', 1);
  learn(memory, 'd');
  assert.equal(memory.size, 3);
  assert.equal(memory.recall('b', 2), null);
  for (const key of ['a', 'c', 'd']) assert.notEqual(memory.recall(key, 2), null);
});

test('an ended session is forgotten after its time, whoever asks next', () => {
  const memory = new SessionMemory(BOUNDS);
  endSession(learn(memory, 'a'), 0);
  endSession(learn(memory, 'b'), 0);
  assert.notEqual(memory.recall('a', 599_999), null);
  assert.equal(memory.recall('a', 600_000), null);
  memory.recall('c', 601_000);
  assert.equal(memory.size, 0);
});

test('streams whose time is over go, seldom as they are looked at', () => {
  const memory = new SessionMemory(BOUNDS);
  const session = learn(memory, 'a');
  openStream(session, 'request', BOUNDS, 0);
  memory.recall('a', 3_599_999);
  assert.equal(session.streams.size, 1);
  memory.recall('a', 3_600_999);
  assert.equal(session.streams.size, 0);
});

test('sessions that take more memory than they may are put out, the one used least recently first', () => {
  const memory = new SessionMemory(BOUNDS);
  const receipt = {
    connection: { failed: false, closed: null, closedAt: null, requestedAt: 0 },
    forwarded: false,
    flushedAt: null,
    response: 'open' as const,
  };
  for (const key of ['a', 'b', 'c']) {
    const session = learn(memory, key);
    for (let n = 0; n < 50; n += 1) openLeg(openStream(session, 'request', BOUNDS, 0), false, receipt);
    assert.ok(session.bytes > 40_000 && session.bytes < 50_000, `${session.bytes}`);
  }
  memory.recall('a', 1_000);
  assert.equal(memory.size, 2);
  assert.equal(memory.recall('a', 1_001), null, 'it was the oldest when the memory was counted');
});
