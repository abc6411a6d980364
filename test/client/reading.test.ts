import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Reading } from '../../src/client/reading.ts';
import { createRoom } from '../../src/client/room.ts';
import { eventKeyOfField } from '../../src/core/event-key.ts';
import { NO_IDENTITY, newSession, openLeg } from '../../src/core/ledger.ts';
import { placeholderFor } from '../../src/core/resolve.ts';
import { block, result } from '../support/messages.ts';

test('whatever goes wrong in the reading, the bytes go on, and nothing is concluded from them', () => {
  const room = createRoom({
    unrecorded: 'forward',
    replayHold: 2_000,
    replayDeadline: 5_000,
    proofMemory: 60_000,
    maxHeldBytes: 1_048_576,
    maxSessions: 10,
    dedupe: true,
    now: () => 0,
  });
  const session = newSession(false, NO_IDENTITY);
  session.complete = true;
  const target = placeholderFor(session, eventKeyOfField('p1', room.tokens.seed)!, room.bounds, 0);
  const connection = { failed: false, closed: null, closedAt: null, requestedAt: 0 };
  const leg = openLeg(target.stream, true, { connection, forwarded: false, flushedAt: null, response: 'open' });
  const reading = new Reading({
    room,
    session,
    leg,
    target,
    answers() {
      throw new Error('a fault');
    },
  });
  const text = block({ id: 'e1', data: result(1) });
  const passed: Uint8Array[] = [];
  for (const part of [text.slice(0, 20), text.slice(20), 'data: more\n\n']) {
    passed.push(...reading.push(Buffer.from(part)));
  }
  assert.equal(Buffer.concat(passed).toString(), `${text}data: more\n\n`);
  assert.equal(reading.isBlind, true);
  assert.equal(reading.contentPending, true);
  assert.equal(reading.takeEvent(), false);
  assert.equal(session.complete, false);
});
