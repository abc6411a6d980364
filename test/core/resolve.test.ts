/**
 * From what passed to a verdict: who owns a cursor, what of it is delivered, what is forgotten. Schedules (storms,
 * floors, probes) are in `resolve-schedules.test.ts`, repeated blocks in `resolve-duplicates.test.ts`.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { requestKeyOf } from '../../src/core/jsonrpc.ts';
import {
  addRequests,
  beginGeneration,
  closeLeg,
  endSession,
  NO_IDENTITY,
  openLeg,
  openStream,
  reviveSession,
  stopListening,
} from '../../src/core/ledger.ts';
import { noteRefusal, pendingRequest, resolveResume, unsettledSince } from '../../src/core/resolve.ts';
import { key, receipt, requestsOf, Scene, STRANGER } from '../support/ledger.ts';

describe('owners', () => {
  test('every stream of the session that carried the ID, whatever it is by now', () => {
    const scene = new Scene();
    const one = scene.post(1);
    const listening = scene.listen();
    const other = scene.post(2);
    for (const leg of [one, listening]) scene.event(leg, 'e1');
    scene.event(other, 'e2');
    const { owners, cursor } = scene.resolve('e1');
    assert.deepEqual(
      owners.map(({ stream }) => stream),
      [one.stream, listening.stream],
    );
    assert.equal(cursor, key('e1'));
  });

  test('a cursor that several streams carried is finished when all of them are delivered', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    assert.equal(scene.verdict('e1'), 'strip finished');
    const later = scene.post(2);
    scene.event(later, 'e1');
    assert.equal(scene.verdict('e1'), 'forward in-window', 'it is nobody’s alone any more');
    scene.event(later, 'e3', { answers: [2] });
    scene.end(later);
    assert.equal(scene.verdict('e1'), 'strip finished', 'both are delivered');
  });

  test('an event under an old ID makes its stream an owner too', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    const open = scene.post(2);
    scene.event(open, 'f1');
    assert.equal(scene.verdict('e2'), 'strip finished');
    scene.event(open, 'e2');
    assert.equal(scene.verdict('e2'), 'forward in-window');
  });

  test('a forwarded resume continues the newest owner that is not delivered', () => {
    const scene = new Scene();
    const oldest = scene.unanswered(1, 'e1');
    const newest = scene.unanswered(2, 'e1');
    scene.answered(3, 'e1', 'e2');
    assert.equal(scene.resolve('e1').target?.stream, newest.stream);
    const resumed = scene.resumed(newest);
    scene.event(resumed, 'e3', { answers: [2] });
    scene.end(resumed);
    assert.equal(scene.resolve('e1').target?.stream, oldest.stream);
  });

  test('the last position of an ID on its stream is that of the cursor', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    for (const id of ['e1', 'e2', 'e1', 'e3']) scene.event(leg, id);
    assert.equal(scene.resolve('e1').target?.position, 3);
  });

  test('a cursor that reads two ways is the one that has owners, and the likelier one where neither has', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, 'caf\xc3\xa9');
    const readings = [key('caf\xe9'), key('caf\xc3\xa9')];
    assert.equal(scene.resolve('', { cursor: readings }).cursor, readings[1]);
    assert.equal(scene.resolve('', { cursor: readings }).target?.stream, leg.stream);
    scene.event(leg, 'caf\xe9');
    assert.equal(scene.resolve('', { cursor: readings }).cursor, readings[0]);
    const others = [key('x'), key('y')];
    assert.equal(scene.resolve('', { cursor: others }).cursor, others[0]);
    assert.equal(scene.resolve('', { cursor: [] }).cursor, null);
  });

  test('a session that was never seen has none', () => {
    const scene = new Scene();
    const request = {
      get: true,
      cursorFields: 1,
      cursorEmpty: false,
      sessionFields: 1,
      withoutResumption: false,
      minted: false,
      cursor: [key('e1')],
      caller: STRANGER,
      forwarded: false,
    };
    const { facts, owners, target, proof, cursor } = resolveResume(request, null, scene.options);
    assert.deepEqual([owners, target, proof], [[], null, null]);
    assert.equal(cursor, key('e1'));
    assert.deepEqual(
      [facts.sessionKnown, facts.sessionEnded, facts.approved, facts.listening, facts.complete, facts.storm],
      [false, false, false, false, false, false],
    );
  });
});

describe('delivered by event ID', () => {
  for (const [cursor, verdict] of [
    ['the event before', 'forward finished-undelivered'],
    ['the terminal event', 'strip finished'],
    ['the priming event after', 'strip finished'],
  ] as const) {
    test(`a cursor at ${cursor} is ${verdict}`, () => {
      const scene = new Scene();
      const leg = scene.post(1);
      scene.event(leg, 'the event before');
      scene.event(leg, 'the terminal event', { answers: [1] });
      scene.event(leg, 'the priming event after');
      scene.cut(leg);
      assert.equal(scene.verdict(cursor), verdict);
      assert.equal(scene.resolve(cursor).proof, verdict === 'strip finished' ? 'event-id' : null);
    });
  }

  test('where the terminal event has no ID an earlier one proves nothing, and one minted after it does', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, 'e1');
    scene.event(leg, null, { answers: [1] });
    scene.event(leg, 'e2');
    scene.cut(leg);
    assert.equal(scene.verdict('e1'), 'forward finished-undelivered');
    assert.equal(scene.verdict('e2'), 'strip finished');
  });

  test('an ID that a resume mints before it has brought the answer proves nothing, one after it does', () => {
    const scene = new Scene();
    const resumed = scene.resumed(scene.undelivered(1, 'e1', 'e2'));
    scene.event(resumed, 'p1');
    scene.event(resumed, 'e2', { answers: [1] });
    scene.event(resumed, 'p2');
    scene.cut(resumed);
    assert.equal(scene.verdict('p1'), 'forward finished-undelivered');
    assert.equal(scene.verdict('p2'), 'strip finished');
  });

  test('an ID that stood before the terminal event too proves nothing', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, 'same', { length: 10 });
    scene.event(leg, 'same', { answers: [1], length: 40 });
    scene.cut(leg);
    assert.equal(scene.verdict('same'), 'forward finished-undelivered');
  });

  test('of a batch every answer has to be at or before the cursor', () => {
    const scene = new Scene();
    const leg = scene.post(1, 2);
    scene.event(leg, 'e1', { answers: [2] });
    assert.equal(scene.verdict('e1'), 'forward in-window', 'the other is still open');
    scene.event(leg, 'e2', { answers: [1] });
    scene.cut(leg);
    assert.equal(scene.verdict('e1'), 'forward finished-undelivered');
    assert.equal(scene.verdict('e2'), 'strip finished');
  });

  test('an answer that came on the listening stream is behind cursors of that stream only', () => {
    const scene = new Scene();
    const own = scene.post(1);
    scene.event(own, 'e1');
    const listening = scene.listen();
    scene.event(listening, 'n1', { answers: [1] });
    scene.cut(own);
    scene.kernel = 'absent';
    assert.equal(scene.verdict('e1'), 'forward finished-undelivered');
    assert.equal(scene.verdict('n1'), 'forward in-window', 'a standalone stream is always open');
  });
});

describe('delivered by connection', () => {
  test('what the connection proves lapses proofMemory after the delivery', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    assert.equal(scene.resolve('e1').proof, 'connection');
    const start = scene.now;
    for (const [ms, verdict] of [
      [59_999, 'strip finished'],
      [60_000, 'strip finished'],
      [60_001, 'forward finished-undelivered'],
    ] as const) {
      scene.now = start + ms;
      assert.equal(scene.verdict('e1'), verdict, `${ms} ms`);
    }
    assert.equal(scene.verdict('e2'), 'strip finished', 'an ID proves for ever');
  });

  test('or after the last resume that it stripped', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    const again = scene.after(59_000).now;
    assert.equal(scene.strip('e1'), 'strip finished');
    for (const [ms, verdict] of [
      [60_000, 'strip finished'],
      [60_001, 'forward finished-undelivered'],
    ] as const) {
      scene.now = again + ms;
      assert.equal(scene.verdict('e1'), verdict, `${ms} ms`);
    }
  });

  test('a strip that the cursor itself proved does not renew it', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    const start = scene.now;
    scene.after(59_000);
    assert.equal(scene.strip('e2'), 'strip finished');
    scene.now = start + 60_001;
    assert.equal(scene.verdict('e1'), 'forward finished-undelivered');
  });

  test('a refusal does not renew it either', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    const start = scene.now;
    scene.listen();
    scene.after(59_000);
    assert.equal(scene.resume('e1').verdict, 'refuse finished-while-listening');
    scene.now = start + 60_001;
    assert.equal(scene.verdict('e1'), 'forward finished-undelivered');
  });

  test('it says nothing of clients behind an intermediary, on the POST or on the resume', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    assert.equal(scene.verdict('e1', { forwarded: true }), 'forward finished-undelivered');
    assert.equal(scene.verdict('e2', { forwarded: true }), 'strip finished');
    const leg = openLeg(scene.post(2).stream, false, receipt({ forwarded: true }));
    scene.event(leg, 'f1');
    scene.event(leg, 'f2', { answers: [2] });
    scene.end(leg);
    assert.equal(scene.verdict('f1'), 'forward finished-undelivered');
    assert.equal(scene.verdict('f2'), 'strip finished');
  });

  test('deliveryProof: event-id knows no other proof', () => {
    const scene = new Scene({ deliveryProof: 'event-id' });
    scene.answered(1, 'e1', 'e2');
    assert.equal(scene.verdict('e1'), 'forward finished-undelivered');
    assert.equal(scene.verdict('e2'), 'strip finished');
  });

  test('one of several responses that carried the answer is enough', () => {
    const scene = new Scene();
    const leg = scene.undelivered(1, 'e1', 'e2');
    assert.equal(scene.verdict('e1'), 'forward finished-undelivered');
    const resumed = scene.resumed(leg);
    scene.event(resumed, 'e2', { answers: [1] });
    scene.end(resumed);
    assert.equal(scene.verdict('e1'), 'strip finished');
  });

  test('the proof is that of the ID where that holds for every request, else that of the connection', () => {
    const scene = new Scene();
    const leg = scene.post(1, 2);
    scene.event(leg, 'e1', { answers: [1] });
    scene.event(leg, 'e2', { answers: [2] });
    scene.end(leg);
    assert.equal(scene.resolve('e2').proof, 'event-id');
    assert.equal(scene.resolve('e1').proof, 'connection');
    scene.kernel = 'absent';
    assert.equal(scene.resolve('e1').proof, null);
  });

  test('the kernel is asked where its answer makes a difference, and only there', () => {
    const scene = new Scene();
    const leg = scene.answered(1, 'e1', 'e2');
    scene.unanswered(2, 'f1');
    scene.kernel = undefined;
    assert.deepEqual(scene.resolve('e1').unsettled, [leg.receipt.connection]);
    assert.deepEqual(scene.resolve('e2').unsettled, [], 'the ID proves it');
    assert.deepEqual(scene.resolve('f1').unsettled, [], 'there is nothing to prove');
    assert.deepEqual(scene.resolve('e1', { forwarded: true }).unsettled, [], 'it would not count');
    assert.deepEqual(scene.after(60_001).resolve('e1').unsettled, [], 'it has lapsed');
  });

  test('the kernel’s view has to be as recent as the bytes it is asked about', () => {
    const scene = new Scene();
    const leg = scene.answered(1, 'e1', 'e2');
    const asked: unknown[] = [];
    const kernelOf = (...question: unknown[]) => {
      asked.push(question);
      return undefined;
    };
    scene.kernel = undefined;
    assert.equal(unsettledSince(scene.session, scene.options), leg.receipt.flushedAt);
    assert.equal(unsettledSince(scene.session, { ...scene.options, kernelOf }), leg.receipt.flushedAt);
    assert.deepEqual(asked, [[leg.receipt.connection, leg.receipt.flushedAt]]);
    scene.after(10);
    const later = scene.answered(2, 'f1', 'f2');
    assert.equal(unsettledSince(scene.session, scene.options), later.receipt.flushedAt, 'the latest');
    scene.kernel = 'unknown';
    assert.equal(unsettledSince(scene.session, scene.options), null);
    assert.equal(unsettledSince(new Scene().session, scene.options), null);
  });
});

describe('a session', () => {
  test('that ended is gone for those it knows, until a 2xx revives it', () => {
    const scene = new Scene();
    scene.unanswered(1, 'e1');
    endSession(scene.session, scene.now);
    assert.equal(scene.verdict('e1'), 'refuse session-ended');
    assert.equal(scene.verdict('e1', { caller: STRANGER }), 'forward in-window');
    reviveSession(scene.session);
    assert.equal(scene.verdict('e1'), 'forward in-window');
  });

  test('without an ID does not end, and its listening stream stops nobody', () => {
    const scene = new Scene({ anonymous: true });
    scene.answered(1, 'e1', 'e2');
    scene.listen();
    endSession(scene.session, scene.now);
    assert.equal(scene.verdict('e2'), 'strip finished');
  });

  test('with a live standalone stream refuses a finished cursor, from its head to its end', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    const first = scene.listen();
    const second = scene.listen();
    assert.equal(scene.verdict('e2'), 'refuse finished-while-listening');
    stopListening(scene.session, first);
    stopListening(scene.session, first);
    assert.equal(scene.verdict('e2'), 'refuse finished-while-listening', 'the other one is still there');
    closeLeg(scene.session, second, { clean: true, polled: false }, scene.now);
    assert.equal(scene.verdict('e2'), 'strip finished');
  });

  test('of a new generation knows the cursors of the earlier one, and does not honour them', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, 'e1');
    scene.answered(2, 'f1', 'f2');
    beginGeneration(scene.session, NO_IDENTITY);
    assert.equal(scene.verdict('e1'), 'refuse generation-mismatch');
    assert.equal(scene.verdict('f2'), 'refuse generation-mismatch');
    assert.equal(scene.verdict('e1', { caller: STRANGER }), 'forward in-window');
    assert.equal(scene.verdict('f2', { caller: STRANGER }), 'strip finished');
  });

  test('where an owner of the current generation exists, earlier ones are ignored', () => {
    const scene = new Scene();
    scene.unanswered(1, 'e1');
    beginGeneration(scene.session, NO_IDENTITY);
    scene.answered(1, 'e1', 'e2');
    assert.equal(scene.verdict('e1'), 'strip finished');
    assert.equal(scene.resolve('e1').owners.length, 1);
  });

  test('knows its callers by their credentials', () => {
    const scene = new Scene();
    assert.equal(scene.resolve('e1').facts.approved, true);
    assert.equal(scene.resolve('e1', { caller: STRANGER }).facts.approved, false);
  });
});

describe('a cursor nobody recorded', () => {
  test('becomes the first position of an open stream once upstream accepted it', () => {
    const scene = new Scene();
    assert.equal(scene.resume('e9').verdict, 'forward cursor-unrecorded');
    const { stream, position, state } = scene.settle('e9', scene.resolve('e9'), 'live');
    assert.deepEqual([stream.kind, position, state, stream.mark], ['placeholder', 1, 'open', 1]);
    assert.equal(scene.verdict('e9'), 'forward in-window');
    assert.equal(scene.resolve('e9').target?.stream, stream);
  });

  test('has a floor and probes there like any other', () => {
    const scene = new Scene();
    assert.equal(scene.replay('e9', 'empty'), 'forward cursor-unrecorded');
    assert.equal(scene.replay('e9', 'empty'), 'forward in-window', 'the first probe');
    assert.equal(scene.verdict('e9'), 'refuse below-replay-floor');
  });

  test('is refused under unrecorded: refuse, to approved callers', () => {
    const scene = new Scene({ unrecorded: 'refuse' });
    assert.equal(scene.verdict('e9'), 'refuse cursor-unrecorded');
    assert.equal(scene.verdict('e9', { caller: STRANGER }), 'forward cursor-unrecorded');
  });

  test('is refused under unrecorded: complete while nothing of the session can be missing', () => {
    const scene = new Scene({ unrecorded: 'complete', bounds: { eventIdsPerStream: 2 } });
    const leg = scene.post(1);
    scene.event(leg, 'e1');
    assert.equal(scene.verdict('e9'), 'forward cursor-unrecorded', 'initialize did not pass here');
    scene.session.complete = true;
    assert.equal(scene.verdict('e9'), 'refuse cursor-unrecorded');
    assert.equal(scene.verdict('', { cursor: [] }), 'forward cursor-unrecorded', 'an ID too long for a key');
    scene.event(leg, 'e2');
    assert.equal(scene.verdict('e9'), 'refuse cursor-unrecorded');
    scene.event(leg, 'e3');
    assert.equal(scene.verdict('e9'), 'forward cursor-unrecorded', 'an ID was dropped');
  });
});

describe('what is forgotten', () => {
  const bounds = { eventIdsPerStream: 3 };

  test('an ID that an open stream had to drop is nobody’s, not that of the stream that is delivered', () => {
    const scene = new Scene({ bounds });
    const open = scene.post(1);
    scene.event(open, '0');
    scene.answered(2, '0', 'e2');
    assert.equal(scene.verdict('0'), 'forward in-window');
    for (const id of ['e3', 'e4', 'e5']) scene.event(open, id);
    assert.equal(scene.verdict('0'), 'forward cursor-unrecorded');
    scene.event(open, 'e6', { answers: [1] });
    scene.end(open);
    assert.equal(scene.verdict('0'), 'strip finished', 'once that is delivered too, it does not matter');
  });

  test('an ID of a forgotten open stream is nobody’s either', () => {
    const scene = new Scene();
    scene.unanswered(1, '0');
    scene.after(3_600_000);
    scene.answered(2, '0', 'e2');
    assert.equal(scene.verdict('0'), 'forward in-window');
    assert.equal(scene.resume('0').verdict, 'forward cursor-unrecorded');
    assert.equal(scene.verdict('e2'), 'strip finished', 'other IDs are what they were');
  });

  test('an ID of a forgotten stream that was delivered for certain is', () => {
    const scene = new Scene();
    const { connection } = scene.answered(1, '0', 'e1').receipt;
    connection.requestedAt = scene.after(1).now;
    scene.after(600_000);
    scene.answered(2, '0', 'e2');
    assert.equal(scene.resume('0').verdict, 'strip finished');
  });

  test('a stream that was forgotten while it runs leaves a trace of what it carries later', () => {
    const scene = new Scene({ bounds: { streamsPerSession: 2 } });
    const running = scene.post(1);
    scene.event(running, 'e1');
    scene.post(2);
    scene.post(3);
    assert.equal(scene.verdict('e1'), 'forward cursor-unrecorded', 'forgotten: one stream too many');
    scene.event(running, 'late');
    scene.answered(4, 'late', 'g2');
    assert.equal(scene.verdict('late'), 'forward cursor-unrecorded');
    assert.equal(scene.verdict('g2'), 'strip finished');
  });

  test('a new generation owes nothing to what an earlier one forgot', () => {
    const scene = new Scene();
    scene.unanswered(1, '0');
    scene.after(3_600_000).resume('0');
    beginGeneration(scene.session, NO_IDENTITY);
    scene.answered(2, '0', 'e2');
    assert.equal(scene.verdict('0'), 'strip finished');
  });

  test('the position of an ID is unknown where an earlier one of the same ID may have been dropped', () => {
    const scene = new Scene({ bounds });
    const leg = scene.post(1);
    scene.event(leg, 'same', { length: 10 });
    scene.event(leg, 'e2', { answers: [1] });
    for (const id of ['e3', 'e4']) scene.event(leg, id);
    scene.event(leg, 'same', { length: 50 });
    scene.cut(leg);
    assert.equal(scene.verdict('same'), 'forward finished-undelivered');
    assert.equal(scene.verdict('e4'), 'strip finished');
  });
});

describe('a request that cannot be told', () => {
  test('keeps its stream open: a body that could not be read', () => {
    const scene = new Scene();
    const stream = openStream(scene.session, 'request', scene.bounds, scene.now);
    addRequests(scene.session, stream, { wellFormed: false, requests: [], responses: [], methodNotFound: false });
    const leg = openLeg(stream, false, receipt());
    scene.event(leg, 'e1', { answers: [1] });
    scene.end(leg);
    assert.equal(scene.verdict('e1'), 'forward in-window');
  });

  test('keeps its stream open: an id that no answer can be matched to, beside one that is answered', () => {
    const scene = new Scene();
    const stream = openStream(scene.session, 'request', scene.bounds, scene.now);
    const { requests, ...rest } = requestsOf([1]);
    addRequests(scene.session, stream, { ...rest, requests: [...requests, { key: null, method: 'x' }] });
    const leg = openLeg(stream, false, receipt());
    scene.event(leg, 'e1', { answers: [1] });
    scene.end(leg);
    assert.equal(scene.verdict('e1'), 'forward in-window');
    assert.equal(pendingRequest(scene.resolve('e1').owners), null);
  });
});

describe('the pending request of a cursor', () => {
  const pendingOf = (scene: Scene, cursor: string) => pendingRequest(scene.resolve(cursor).owners);

  test('is the one without an answer', () => {
    const scene = new Scene();
    scene.unanswered('a', 'e1');
    assert.equal(pendingOf(scene, 'e1'), requestKeyOf('a'));
  });

  test('is the one whose answer is not delivered', () => {
    const scene = new Scene();
    scene.undelivered(7, 'e1', 'e2');
    assert.equal(pendingOf(scene, 'e1'), requestKeyOf(7));
  });

  test('of a batch it is the one that is left', () => {
    const scene = new Scene();
    const leg = scene.post(1, 2);
    scene.event(leg, 'e1');
    assert.equal(pendingOf(scene, 'e1'), null, 'two are waiting');
    scene.event(leg, 'e2', { answers: [1] });
    assert.equal(pendingOf(scene, 'e1'), requestKeyOf(2));
  });

  test('is not known where two streams have one', () => {
    const scene = new Scene();
    scene.unanswered(1, 'e1');
    scene.unanswered(2, 'e1');
    assert.equal(pendingOf(scene, 'e1'), null);
  });

  test('is that of the open owner where the others are delivered', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    scene.unanswered(2, 'e1');
    assert.equal(pendingOf(scene, 'e1'), requestKeyOf(2));
  });

  test('is none where everything is delivered, nobody knows the cursor, or a standalone stream owns it', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    const listening = scene.listen();
    scene.event(listening, 'n1');
    scene.replay('e9', 'live');
    for (const cursor of ['e1', 'n1', 'e8', 'e9']) assert.equal(pendingOf(scene, cursor), null, cursor);
  });
});

test('the first refusal of a cursor is remembered until a replay', () => {
  const scene = new Scene();
  scene.unanswered(1, 'e1');
  const first = scene.now;
  assert.equal(noteRefusal(scene.session, key('e1'), first), null);
  assert.equal(noteRefusal(scene.session, key('e1'), first + 500), first);
  assert.equal(noteRefusal(scene.session, key('e1'), first + 900), first, 'the first one counts');
  assert.equal(noteRefusal(scene.session, key('e2'), first + 900), null, 'for each cursor');
  scene.replay('e1', 'live');
  assert.equal(noteRefusal(scene.session, key('e1'), first + 950), first, 'nothing but a replay makes it new');
  scene.replay('e1', 'replayed');
  assert.equal(noteRefusal(scene.session, key('e1'), first + 1_000), null);
});
