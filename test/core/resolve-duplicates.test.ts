/** Which blocks of a resumed stream repeat what the client has (section 4, Duplicates), and which only look like it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { beginGeneration, type Leg, NO_IDENTITY, openLeg } from '../../src/core/ledger.ts';
import { type Duplicate, duplicateBeforeCursor, duplicateOnLeg, type SeenBlock } from '../../src/core/resolve.ts';
import { key, receipt, responsesTo, Scene } from '../support/ledger.ts';
import type { RpcId } from '../support/messages.ts';

const block = (id: string | null, length = 40, answers: readonly RpcId[] = []): SeenBlock => ({
  key: id === null ? null : key(id),
  length,
  answers: responsesTo(answers),
});

/** What a block would be on a resume of this cursor, before the first event past it. */
function before(scene: Scene, cursor: string, seen: SeenBlock): Duplicate | null {
  const { target } = scene.resolve(cursor);
  assert.ok(target !== null, 'the resume is forwarded');
  return duplicateBeforeCursor(scene.session, target, seen, scene.options);
}

describe('before the first event past the cursor', () => {
  test('the event of the cursor and those before it are repetitions, those after it are none', () => {
    const scene = new Scene();
    scene.unanswered(1, 'e1', 'e2', 'e3');
    assert.deepEqual(
      ['e1', 'e2', 'e3', 'e4'].map((id) => before(scene, 'e2', block(id))),
      ['replayed', 'replayed', null, null],
    );
  });

  test('the length in bytes has to be the same', () => {
    const scene = new Scene();
    scene.unanswered(1, 'e1', 'e2');
    assert.deepEqual(
      [39, 40, 41].map((length) => before(scene, 'e2', block('e1', length))),
      [null, 'replayed', null],
    );
  });

  test('an event without an ID is none', () => {
    const scene = new Scene();
    const leg = scene.post(1);
    scene.event(leg, null);
    scene.event(leg, 'e1');
    scene.cut(leg);
    assert.equal(before(scene, 'e1', block(null)), null);
  });

  test('an event of another stream or of an earlier generation is none', () => {
    const scene = new Scene();
    scene.unanswered(1, 'e1', 'e2');
    scene.unanswered(2, 'f1', 'f2');
    assert.equal(before(scene, 'f2', block('e1')), null);
    beginGeneration(scene.session, NO_IDENTITY);
    assert.equal(before(scene, 'e2', block('e1')), null);
  });

  test('the first answer to an open request is none, whatever its ID', () => {
    const scene = new Scene();
    const leg = scene.post(1, 2);
    scene.event(leg, 'same', { answers: [1] });
    scene.cut(leg);
    assert.equal(before(scene, 'same', block('same', 40, [2])), null);
    assert.equal(before(scene, 'same', block('same', 40, [1])), 'replayed');
  });

  test('where several streams may be meant, nothing that looks alike is a repetition', () => {
    const scene = new Scene();
    scene.unanswered(1, '0', 'e1');
    scene.unanswered(2, '0', 'f1');
    assert.equal(before(scene, '0', block('0')), null);
  });

  test('the result of another request that is delivered is one, with the same ID and length', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    scene.unanswered(2, 'f1', 'f2');
    assert.equal(before(scene, 'f1', block('e2', 40, [1])), 'terminal');
    assert.equal(before(scene, 'f1', block('e3', 40, [1])), null, 'another ID');
    assert.equal(before(scene, 'f1', block(null, 40, [1])), null, 'no ID');
    assert.equal(before(scene, 'f1', block('e2', 41, [1])), null, 'another length');
    assert.equal(before(scene, 'f1', block('e2', 40)), null, 'no result');
    assert.equal(before(scene, 'f1', block('e2', 40, [1, 9])), null, 'one of them nobody knows');
    assert.equal(before(scene, 'f1', block('e2', 40, [1, 2])), null, 'one of them is still open');
  });

  test('a result without a proof of delivery is none', () => {
    const scene = new Scene();
    scene.undelivered(1, 'e1', 'e2');
    scene.unanswered(2, 'f1');
    assert.equal(before(scene, 'f1', block('e2', 40, [1])), null);
  });

  test('nor is one whose proof has lapsed, or does not count', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    scene.unanswered(2, 'f1');
    const seen = block('e2', 40, [1]);
    const { target } = scene.resolve('f1');
    const only = { ...scene.options, deliveryProof: 'event-id' } as const;
    assert.equal(duplicateBeforeCursor(scene.session, target!, seen, only), null);
    scene.after(60_000);
    assert.equal(before(scene, 'f1', seen), 'terminal');
    scene.after(1);
    assert.equal(before(scene, 'f1', seen), null);
  });

  test('nor is one of an earlier generation', () => {
    const scene = new Scene();
    scene.answered(1, 'e1', 'e2');
    beginGeneration(scene.session, NO_IDENTITY);
    scene.unanswered(2, 'f1');
    assert.equal(before(scene, 'f1', block('e2', 40, [1])), null);
  });

  test('nor, without a session, is the result of another stream', () => {
    const scene = new Scene({ anonymous: true });
    scene.answered(1, 'e1', 'e2');
    scene.unanswered(2, 'f1');
    assert.equal(before(scene, 'f1', block('e2', 40, [1])), null);
  });
});

describe('on the exchange itself', () => {
  const resumed = (): { scene: Scene; leg: Leg } => {
    const scene = new Scene();
    const leg = scene.resumed(scene.unanswered(1, 'e1'));
    scene.event(leg, 'e2', { answers: [1] });
    return { scene, leg };
  };

  test('a terminal event that comes again under the same ID is a repetition', () => {
    const { leg } = resumed();
    assert.equal(duplicateOnLeg(leg, block('e2', 40, [1])), 'terminal');
    assert.equal(duplicateOnLeg(leg, block('e2', 99, [1])), 'terminal', 'the ID is enough');
    assert.equal(duplicateOnLeg(leg, block('e3', 40, [1])), null, 'another ID');
    assert.equal(duplicateOnLeg(leg, block(null, 40, [1])), null, 'no ID');
    assert.equal(duplicateOnLeg(leg, block('e2', 40)), null, 'no terminal event');
    assert.equal(duplicateOnLeg(leg, block('e2', 40, [2])), null, 'another request');
    assert.equal(duplicateOnLeg(leg, block('e2', 40, [1, 2])), null, 'another request beside it');
  });

  test('so is one of a request that this stream has not made', () => {
    const { scene, leg } = resumed();
    scene.event(leg, 'x1', { answers: [77] });
    assert.equal(duplicateOnLeg(leg, block('x1', 40, [77])), 'terminal');
  });

  test('one that came on another exchange is none', () => {
    const { scene, leg } = resumed();
    assert.equal(duplicateOnLeg(scene.resumed(leg), block('e2', 40, [1])), null);
  });

  test('nothing is one on an exchange that continues nothing', () => {
    const scene = new Scene();
    const leg = openLeg(scene.post(1).stream, false, receipt());
    scene.event(leg, 'e1', { answers: [1] });
    assert.equal(duplicateOnLeg(leg, block('e1', 40, [1])), null);
  });

  test('the memory for them is bounded', () => {
    const { scene, leg } = resumed();
    for (let id = 1_000; id < 1_256; id++) scene.event(leg, `x${id}`, { answers: [id] });
    assert.equal(duplicateOnLeg(leg, block('e2', 40, [1])), null, 'the oldest is forgotten, and passes');
    assert.equal(duplicateOnLeg(leg, block('x1255', 40, [1_255])), 'terminal');
    assert.equal(leg.terminals?.size, 256);
  });
});
