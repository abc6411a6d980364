/** The ledger's records: what they hold after what passed, what is forgotten when, and what it all weighs. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { requestKeyOf } from '../../src/core/jsonrpc.ts';
import {
  addRequests,
  announcesPolling,
  approve,
  beginGeneration,
  closeLeg,
  endSession,
  forgetExpired,
  forgetStreams,
  generationOver,
  isFinished,
  type Leg,
  NO_IDENTITY,
  newSession,
  noteOf,
  openLeg,
  openStream,
  rememberCors,
  restartedBetween,
  reviveSession,
  startListening,
  stopListening,
  type UpstreamIdentity,
} from '../../src/core/ledger.ts';
import type { Credential } from '../../src/core/terms.ts';
import { BOUNDS, key, receipt, requestsOf, Scene } from '../support/ledger.ts';
import type { RpcId } from '../support/messages.ts';

const answerOf = (leg: Leg, id: RpcId) => leg.stream.requests.get(requestKeyOf(id));
const MALFORMED = { wellFormed: false, requests: [], responses: [], methodNotFound: false };

describe('a stream', () => {
  test('is finished when every request of its POST has had its terminal event', () => {
    const scene = new Scene();
    const leg = scene.post(1, 'a');
    assert.equal(isFinished(leg.stream), false);
    scene.event(leg, 'e1', { answers: ['a'] });
    assert.equal(isFinished(leg.stream), false);
    scene.event(leg, 'e2', { answers: [1] });
    assert.equal(isFinished(leg.stream), true);
  });

  test('tells 1 from "1"', () => {
    const scene = new Scene();
    const leg = scene.post(1, '1');
    scene.event(leg, 'e1', { answers: [1] });
    assert.equal(isFinished(leg.stream), false);
    scene.event(leg, 'e2', { answers: ['1'] });
    assert.equal(isFinished(leg.stream), true);
  });

  test('is finished by a batch of answers in one event', () => {
    const scene = new Scene();
    const leg = scene.post(1, 2, 3);
    scene.event(leg, 'e1', { answers: [3, 1, 2] });
    assert.equal(isFinished(leg.stream), true);
  });

  test('without requests, of a body that could not be read, standalone or a placeholder never is', () => {
    const scene = new Scene();
    const none = scene.post();
    const unread = openStream(scene.session, 'request', BOUNDS, scene.now);
    addRequests(scene.session, unread, MALFORMED);
    const standalone = scene.listen();
    const placeholder = openStream(scene.session, 'placeholder', BOUNDS, scene.now);
    for (const stream of [none.stream, unread, standalone.stream, placeholder]) {
      scene.event(openLeg(stream, false, receipt()), 'e1', { answers: [1] });
      assert.equal(isFinished(stream), false, stream.kind);
    }
  });

  test('learns its requests late, and once they are known it can finish', () => {
    const scene = new Scene();
    const stream = openStream(scene.session, 'request', BOUNDS, scene.now);
    addRequests(scene.session, stream, MALFORMED);
    addRequests(scene.session, stream, requestsOf([1]));
    scene.event(openLeg(stream, false, receipt()), 'e1', { answers: [1] });
    assert.equal(isFinished(stream), true);
    addRequests(scene.session, stream, requestsOf([1]));
    assert.equal(isFinished(stream), true, 'what it has had it keeps');
  });

  test('counts its events, with an ID or without, from 1', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    assert.deepEqual([scene.event(leg, 'e1'), scene.event(leg, null), scene.event(leg, 'e2')], [1, 2, 3]);
    assert.equal(leg.stream.mark, 3);
    assert.deepEqual(leg.stream.ring.find(key('e2')), { first: 3, last: 3 });
    assert.equal(leg.events, 3);
  });

  test('takes an event that its own exchange repeats for a new one, and one that a resume repeats for the old one', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, 'e1');
    assert.equal(scene.event(leg, 'e1'), 2);
    const resumed = scene.resumed(leg);
    assert.equal(scene.event(resumed, 'e1'), 1);
    assert.equal(scene.event(resumed, 'e1', { length: 41 }), 3, 'another length is another event');
    assert.equal(scene.event(resumed, null), 4);
    assert.equal(leg.stream.mark, 4);
  });

  test('takes the answer to an open request for new, although its ID is old', () => {
    const scene = new Scene();
    const leg = scene.post(1, 2);
    scene.event(leg, 'same', { answers: [1] });
    const resumed = scene.resumed(leg);
    assert.equal(scene.event(resumed, 'same', { answers: [2] }), 2);
    assert.equal(scene.event(resumed, 'same', { answers: [2] }), 1, 'and when it comes again, for the first like it');
    assert.equal(answerOf(leg, 2)?.position, 2);
  });
});

describe('an answer', () => {
  test('is written down with its place and the response that carried it', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, 'e1');
    scene.event(leg, 'e2', { answers: [1], length: 77 });
    const { on, position, key: id, length, receipts } = answerOf(leg, 1)!;
    assert.deepEqual([on, position, id, length, receipts], [leg.stream, 2, key('e2'), 77, [leg.receipt]]);
    assert.equal(leg.sawTerminal, true);
  });

  test('that comes again keeps its place and adds the response, the latest four of them', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, 'e1', { answers: [1] });
    scene.event(leg, 'e1', { answers: [1] });
    assert.equal(answerOf(leg, 1)?.receipts.length, 1, 'one response counts once');
    const resumed = Array.from({ length: 4 }, () => scene.resumed(leg));
    for (const again of resumed) scene.event(again, 'e9', { answers: [1] });
    assert.equal(answerOf(leg, 1)?.position, 1);
    assert.deepEqual(
      answerOf(leg, 1)?.receipts,
      resumed.map(({ receipt }) => receipt),
    );
  });

  test('on another stream finishes the request that is open on exactly one other', () => {
    const scene = new Scene();
    const [one, other, listening] = [scene.post(1), scene.post(2), scene.listen()];
    scene.event(listening, 'n1', { answers: [1] });
    assert.equal(answerOf(one, 1)?.on, listening.stream);
    scene.event(one, 'e1', { answers: [2] });
    assert.equal(answerOf(other, 2)?.on, one.stream);
    assert.equal(one.sawTerminal, false, 'it was none of its own');
  });

  test('on another stream finishes nothing where two have the id open, or none has', () => {
    const scene = new Scene();
    const [one, other, listening] = [scene.post(1), scene.post(1), scene.listen()];
    scene.event(listening, 'n1', { answers: [1, 9] });
    assert.deepEqual([answerOf(one, 1), answerOf(other, 1)], [null, null]);
    scene.event(one, 'e1', { answers: [1] });
    assert.equal(answerOf(other, 1), null, 'each its own');
    scene.event(listening, 'n2', { answers: [1] });
    assert.equal(answerOf(other, 1)?.on, listening.stream, 'now exactly one has it open');
  });

  test('finishes its own stream’s request, although another has the same id open', () => {
    const scene = new Scene();
    const [one, other] = [scene.post(1), scene.post(1)];
    scene.event(one, 'e1', { answers: [1] });
    scene.event(one, 'e1', { answers: [1] });
    assert.equal(isFinished(one.stream), true);
    assert.equal(answerOf(other, 1), null, 'also when it comes twice');
  });

  test('on a stream whose POST nobody knows finishes no other’s request', () => {
    const scene = new Scene();
    const open = scene.post(1);
    const unread = openStream(scene.session, 'request', BOUNDS, scene.now);
    addRequests(scene.session, unread, MALFORMED);
    const placeholder = openStream(scene.session, 'placeholder', BOUNDS, scene.now);
    for (const stream of [unread, placeholder]) scene.event(openLeg(stream, true, receipt()), 'x1', { answers: [1] });
    assert.equal(answerOf(open, 1), null);
  });

  test('on another stream finishes nothing without a session, nor an id that doubles cannot hold', () => {
    const anonymous = new Scene({ anonymous: true });
    const open = anonymous.post(1);
    anonymous.event(anonymous.listen(), 'n1', { answers: [1] });
    assert.equal(answerOf(open, 1), null);
    const scene = new Scene();
    const large = scene.post(2 ** 53);
    scene.event(scene.listen(), 'n1', { answers: [2 ** 53] });
    assert.equal(answerOf(large, 2 ** 53), null);
    scene.event(large, 'e1', { answers: [2 ** 53] });
    assert.equal(isFinished(large.stream), true, 'its own stream’s it does');
  });
});

describe('a server announces polling', () => {
  for (const [name, expected, ids, event, ending] of [
    ['by an event with retry and a clean end', true, [1], { retry: true }, 'end'],
    ['not before that end', false, [1], { retry: true }, 'none'],
    ['not without a retry', false, [1], {}, 'end'],
    ['not by a cut', false, [1], { retry: true }, 'cut'],
    ['not when it has answered', false, [1], { retry: true, answers: [1] }, 'end'],
    ['not on an exchange that answered one of two requests', false, [1, 2], { retry: true, answers: [1] }, 'end'],
  ] as const) {
    test(name, () => {
      const scene = new Scene();
      const leg = scene.post(...ids);
      scene.event(leg, 'e1', event);
      if (ending !== 'none') scene[ending](leg);
      assert.equal(announcesPolling(leg.stream), expected);
    });
  }

  test('still, when it answered the request of another stream', () => {
    const scene = new Scene();
    scene.post(2);
    const leg = scene.post(1);
    scene.event(leg, 'e1', { retry: true, answers: [2] });
    scene.end(leg);
    assert.equal(announcesPolling(leg.stream), true);
  });

  test('again by every poll that brought nothing, and no longer after one that broke its word', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, 'e1', { retry: true });
    scene.end(leg);
    const poll = (how: { clean: boolean; polled: boolean } | null): boolean => {
      closeLeg(scene.session, scene.resumed(leg), how, scene.now);
      return announcesPolling(leg.stream);
    };
    assert.equal(poll({ clean: true, polled: true }), true);
    assert.equal(poll({ clean: true, polled: true }), true);
    assert.equal(poll(null), true, 'an answer that is no stream says nothing');
    assert.equal(poll({ clean: true, polled: false }), false);
  });
});

describe('a session', () => {
  test('listens while one of its standalone streams is live', () => {
    const scene = new Scene();
    const [one, other] = [scene.listen(), scene.listen()];
    startListening(scene.session, one);
    assert.equal(scene.session.listening, 2, 'each counts once');
    stopListening(scene.session, one);
    closeLeg(scene.session, one, { clean: true, polled: false }, scene.now);
    assert.equal(scene.session.listening, 1);
    closeLeg(scene.session, other, null, scene.now);
    assert.equal(scene.session.listening, 0);
    startListening(scene.session, scene.post(1));
    assert.equal(scene.session.listening, 0, 'a POST does not listen');
  });

  test('ends and is revived, but not without an ID', () => {
    const session = newSession(false, NO_IDENTITY);
    endSession(session, 5);
    assert.equal(session.endedAt, 5);
    reviveSession(session);
    assert.equal(session.endedAt, null);
    const anonymous = newSession(true, NO_IDENTITY);
    endSession(anonymous, 5);
    assert.equal(anonymous.endedAt, null);
  });

  test('keeps the latest 64 callers, 8 origins and 256 cursors it has notes about', () => {
    const session = newSession(false, NO_IDENTITY);
    const caller = (i: number): Credential => `c${i}` as Credential;
    for (let i = 0; i < 64; i++) approve(session, caller(i));
    approve(session, caller(0));
    approve(session, caller(64));
    assert.deepEqual(
      [0, 1, 2, 64].map((i) => session.approved.includes(caller(i))),
      [true, false, true, true],
    );
    for (let i = 0; i < 8; i++) rememberCors(session, `o${i}`, ['Vary', 'Origin']);
    rememberCors(session, 'o0', ['Vary', '*']);
    rememberCors(session, 'o8', []);
    assert.deepEqual([session.cors.get('o0'), session.cors.has('o1'), session.cors.size], [['Vary', '*'], false, 8]);
    for (let i = 0; i < 257; i++) noteOf(session, key(`e${i}`)).lateEmpties = i;
    assert.deepEqual(
      [session.notes.size, session.notes.has(key('e0')), session.notes.has(key('e1'))],
      [256, false, true],
    );
    assert.equal(noteOf(session, key('e7')).lateEmpties, 7, 'the same note every time');
  });

  test('in a new generation is alive, and has no notes', () => {
    const scene = new Scene();
    noteOf(scene.session, key('e1'));
    endSession(scene.session, scene.now);
    const upstream = { ...NO_IDENTITY, incarnation: 3 };
    const open = scene.post(1);
    beginGeneration(scene.session, upstream);
    const { generation, endedAt, notes } = scene.session;
    assert.deepEqual([generation, endedAt, notes.size, scene.session.upstream], [2, null, 0, upstream]);
    assert.deepEqual([open.stream.generation, scene.post(2).stream.generation], [1, 2]);
  });
});

describe('upstream was restarted', () => {
  const identity = (incarnation: number, readAt: number, ...listeners: number[]): UpstreamIdentity => ({
    incarnation,
    readAt,
    listeners: new Set(listeners),
  });
  for (const [name, before, after, expected] of [
    ['the same', identity(1, 1, 7), identity(1, 2, 7), false],
    ['a refused connect between', identity(1, 1, 7), identity(2, 2, 7), true],
    ['a refused connect, and nothing was read', identity(1, 0), identity(2, 0), true],
    ['an earlier incarnation', identity(2, 1, 7), identity(1, 2, 7), false],
    ['another listener', identity(1, 1, 7), identity(1, 2, 8), true],
    ['one of two listeners is left', identity(1, 1, 7, 8), identity(1, 2, 8, 9), false],
    ['none of two is left', identity(1, 1, 7, 8), identity(1, 2, 9), true],
    ['it is not known who listened', identity(1, 1), identity(1, 2, 8), false],
    ['it is not known who listens', identity(1, 1, 7), identity(1, 2), false],
    ['the later view is no later', identity(1, 2, 7), identity(1, 2, 8), false],
    ['the later view is older', identity(1, 2, 7), identity(1, 1, 8), false],
  ] as const) {
    test(`${expected ? 'yes' : 'no'}: ${name}`, () => {
      assert.equal(restartedBetween(before, after), expected);
    });
  }

  test('and a stream belongs to the generation in which its connection was opened', () => {
    const session = newSession(false, identity(1, 1, 7));
    assert.equal(generationOver(session, identity(0, 0)), 1, 'there is no earlier one');
    beginGeneration(session, identity(2, 2, 8));
    assert.equal(generationOver(session, identity(1, 1, 7)), 1);
    assert.equal(generationOver(session, identity(2, 2, 8)), 2);
    assert.equal(generationOver(session, identity(2, 3, 9)), 2, 'a restart nobody has noticed yet');
  });
});

describe('what is forgotten', () => {
  const has = (scene: Scene, leg: Leg): boolean => {
    forgetExpired(scene.session, BOUNDS, scene.now);
    return scene.session.streams.has(leg.stream);
  };

  for (const [name, ms, leave] of [
    ['a finished stream 10 min', 600_000, (scene: Scene) => scene.answered(1, 'e1', 'e2')],
    ['a finished stream that is not delivered 10 min', 600_000, (scene: Scene) => scene.undelivered(1, 'e1', 'e2')],
    ['an open stream without an exchange 1 h', 3_600_000, (scene: Scene) => scene.unanswered(1, 'e1')],
    [
      'a standalone stream without an exchange 1 h',
      3_600_000,
      (scene: Scene) => {
        const leg = scene.listen();
        scene.end(leg);
        return leg;
      },
    ],
  ] as const) {
    test(`is remembered before: ${name}`, () => {
      const scene = new Scene();
      const leg = leave(scene);
      const start = scene.now;
      for (const [after, known] of [
        [ms - 1, true],
        [ms, false],
        [ms + 1, false],
      ] as const) {
        scene.now = start + after;
        assert.equal(has(scene, leg), known, `${after} ms`);
      }
    });
  }

  test('is not a stream with an exchange, and the time begins with the end of the last one', () => {
    const scene = new Scene();
    const leg = scene.answered(1, 'e1', 'e2');
    const resumed = scene.resumed(leg);
    assert.equal(has(scene.after(10_000_000), leg), true);
    scene.end(resumed);
    assert.equal(has(scene.after(599_999), leg), true);
    assert.equal(has(scene.after(1), leg), false);
  });

  for (const [streams, known] of [
    [999, true],
    [1_000, true],
    [1_001, false],
  ] as const) {
    test(`of ${streams} streams the first is ${known ? 'known' : 'forgotten'}`, () => {
      const scene = new Scene();
      const first = scene.unanswered(0, 'e0');
      for (let i = 1; i < streams; i++) scene.post(i);
      assert.equal(scene.session.streams.has(first.stream), known);
      assert.equal(scene.session.streams.size, Math.min(streams, 1_000));
      if (!known) assert.equal(scene.verdict('e0'), 'forward cursor-unrecorded');
    });
  }

  test('is, where there is a stream too many, the oldest finished one, else the oldest idle one, else the oldest', () => {
    const scene = new Scene({ bounds: { streamsPerSession: 4 } });
    const running = scene.post(1);
    const idle = scene.unanswered(2, 'f1');
    const done = scene.answered(3, 'g1', 'g2');
    scene.answered(4, 'h1', 'h2');
    const left = () => [running, idle, done].map(({ stream }) => scene.session.streams.has(stream));
    const busy = [scene.post(5)];
    assert.deepEqual(left(), [true, true, false]);
    busy.push(scene.post(6));
    assert.deepEqual(left(), [true, true, false], 'the other finished one went');
    busy.push(scene.post(7));
    assert.deepEqual(left(), [true, false, false]);
    busy.push(scene.post(8));
    assert.deepEqual(left(), [false, false, false]);
    assert.deepEqual(
      busy.map(({ stream }) => scene.session.streams.has(stream)),
      [true, true, true, true],
      'never the new one',
    );
  });

  test('leaves the session incomplete: a stream, or an ID of the 1,000 of a stream', () => {
    const scene = new Scene();
    scene.session.complete = true;
    const leg = scene.post(1);
    for (let i = 0; i < 1_000; i++) scene.event(leg, `e${i}`);
    assert.equal(scene.session.complete, true);
    scene.event(leg, null);
    assert.equal(scene.session.complete, true, 'no ID, nothing dropped');
    scene.event(leg, 'e1000');
    assert.equal(scene.session.complete, false);
    scene.session.complete = true;
    scene.end(leg);
    forgetStreams(scene.session, BOUNDS, scene.now);
    assert.equal(scene.session.complete, false);
  });

  test('with the session’s end is everything that has no exchange', () => {
    const scene = new Scene();
    const running = scene.post(1);
    const idle = scene.unanswered(2, 'e1');
    forgetStreams(scene.session, BOUNDS, scene.now);
    assert.deepEqual([...scene.session.streams], [running.stream]);
    assert.equal(scene.verdict('e1'), 'forward cursor-unrecorded');
    assert.equal(scene.session.streams.has(idle.stream), false);
  });
});

describe('the weight of a session', () => {
  test('grows with what it remembers and falls back when that is forgotten', () => {
    const scene = new Scene();
    const empty = scene.session.bytes;
    assert.ok(empty > 0, 'a session weighs something');
    const legs = [scene.post(1, 2), scene.listen(), scene.post(3)];
    for (const leg of legs) for (let i = 0; i < 1_500; i++) scene.event(leg, `${leg.stream.ordinal} ${i}`);
    const full = scene.session.bytes;
    assert.ok(full >= empty + 3 * 1_000 * 16, `16 bytes an ID at least: ${full - empty}`);
    for (let i = 0; i < 10_000; i++) scene.event(legs[0]!, `more ${i}`);
    assert.equal(scene.session.bytes, full, 'bounded, whatever upstream sends');
    for (const leg of legs) scene.cut(leg);
    forgetStreams(scene.session, BOUNDS, scene.now);
    const trace = scene.session.bytes - empty;
    assert.ok(trace > 0 && trace <= 16_384, `nothing but the trace of open streams is left: ${trace}`);
    beginGeneration(scene.session, NO_IDENTITY);
    assert.equal(scene.session.bytes, empty);
  });

  test('counts nothing twice and nothing that is forgotten', () => {
    const scene = new Scene({ bounds: { streamsPerSession: 1 } });
    const leg = scene.post(1);
    const one = scene.session.bytes;
    addRequests(scene.session, leg.stream, requestsOf([1]));
    assert.equal(scene.session.bytes, one, 'the same request again');
    const next = scene.post(2);
    const trace = scene.session.bytes - one;
    scene.event(leg, 'late');
    addRequests(scene.session, leg.stream, requestsOf([7]));
    assert.equal(scene.session.bytes, one + trace, 'of a forgotten stream that runs on');
    scene.end(next);
    assert.equal(scene.session.bytes, one + trace);
  });
});
