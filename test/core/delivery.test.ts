/** Section 5 of the contract, the proof by connection: every fact, and each boundary from both sides. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  type ConnectionFacts,
  type ConnectionProof,
  GRACE,
  type KernelView,
  proveByConnection,
  provenSince,
  type Receipt,
} from '../../src/core/delivery.ts';
import { connection, receipt } from '../support/ledger.ts';

/** When the kernel had the terminal event's bytes. */
const FLUSHED = 10_000;

interface Facts {
  readonly receipt?: Partial<Receipt>;
  readonly connection?: Partial<ConnectionFacts>;
  /** Ms after the bytes were flushed. */
  readonly after?: number;
  readonly kernel?: KernelView;
}

function prove({ receipt: facts = {}, connection: on = {}, after = 0, kernel }: Facts): ConnectionProof {
  const whole = receipt({ response: 'normal', flushedAt: FLUSHED, ...facts, connection: connection(on) });
  return proveByConnection(whole, FLUSHED + after, kernel);
}

const ACKNOWLEDGED: KernelView = { unacknowledged: 0, peerClosed: false };
const ONE_BYTE: KernelView = { unacknowledged: 1, peerClosed: false };
const LEFT: KernelView = { unacknowledged: 0, peerClosed: true };
const LEFT_UNREAD: KernelView = { unacknowledged: 1, peerClosed: true };
const byClient = (after: number): Partial<ConnectionFacts> => ({ closed: 'client', closedAt: FLUSHED + after });
const byUs = (after: number): Partial<ConnectionFacts> => ({ closed: 'us', closedAt: FLUSHED + after });

type Row = readonly [when: string, facts: Facts, proof: ConnectionProof];

const ROWS: Readonly<Record<string, readonly Row[]>> = {
  'the bytes were written': [
    ['not yet', { receipt: { flushedAt: null }, after: 1_000, kernel: ACKNOWLEDGED }, 'not-proven'],
    [
      'not yet, though the client asks again',
      { receipt: { flushedAt: null }, connection: { requestedAt: FLUSHED + 1 } },
      'not-proven',
    ],
    ['and the kernel is to be asked', {}, 'ask-kernel'],
  ],
  'the response ended in order, or is still open': [
    ['it broke', { receipt: { response: 'broken' }, after: 1_000, kernel: ACKNOWLEDGED }, 'not-proven'],
    [
      'it broke, though the client asks again',
      { receipt: { response: 'broken' }, connection: { requestedAt: FLUSHED + 1 } },
      'not-proven',
    ],
    ['it is still open', { receipt: { response: 'open' }, kernel: ACKNOWLEDGED }, 'proven'],
    ['it is still open, 99 ms', { receipt: { response: 'open' }, after: 99, kernel: 'unknown' }, 'not-proven'],
    ['it is still open, 100 ms', { receipt: { response: 'open' }, after: 100, kernel: 'unknown' }, 'proven'],
    [
      'it was open when the client left, 99 ms',
      { receipt: { response: 'open' }, connection: byClient(99) },
      'not-proven',
    ],
    [
      'it was open when the client left, 100 ms',
      { receipt: { response: 'open' }, connection: byClient(100) },
      'proven',
    ],
  ],
  'the connection had no error': [
    ['it had one', { connection: { failed: true }, after: 1_000, kernel: ACKNOWLEDGED }, 'not-proven'],
    ['it had one, and we closed it', { connection: { ...byUs(5), failed: true }, kernel: ACKNOWLEDGED }, 'not-proven'],
    ['it had one, late', { connection: { ...byClient(5_000), failed: true }, after: 6_000 }, 'not-proven'],
    [
      'it had one, though the client had asked again',
      { connection: { requestedAt: FLUSHED + 1, failed: true } },
      'not-proven',
    ],
  ],
  'no intermediary stands between': [
    ['one does', { receipt: { forwarded: true }, after: 1_000, kernel: ACKNOWLEDGED }, 'not-proven'],
    [
      'one does, and asks again',
      { receipt: { forwarded: true }, connection: { requestedAt: FLUSHED + 1 } },
      'not-proven',
    ],
  ],
  'the client sent another request': [
    ['just before', { connection: { requestedAt: FLUSHED - 1 }, kernel: ONE_BYTE }, 'not-proven'],
    ['in the same instant', { connection: { requestedAt: FLUSHED }, kernel: ONE_BYTE }, 'not-proven'],
    ['after it', { connection: { requestedAt: FLUSHED + 1 }, kernel: ONE_BYTE }, 'proven'],
    ['after it, and left at once', { connection: { ...byClient(2), requestedAt: FLUSHED + 1 } }, 'proven'],
    ['after it, and the kernel need not be asked', { connection: { requestedAt: FLUSHED + 1 } }, 'proven'],
  ],
  'the client kept its side open for 100 ms': [
    ['it left at once', { connection: byClient(0), after: 1_000 }, 'not-proven'],
    ['it left before', { connection: byClient(-1), after: 1_000 }, 'not-proven'],
    ['it left after 99 ms', { connection: byClient(99), after: 1_000 }, 'not-proven'],
    ['it left after 100 ms', { connection: byClient(100), after: 1_000 }, 'proven'],
    ['it left after 101 ms', { connection: byClient(101), after: 1_000 }, 'proven'],
    ['nobody can ask the kernel: 99 ms', { after: 99, kernel: 'unknown' }, 'not-proven'],
    ['nobody can ask the kernel: 100 ms', { after: 100, kernel: 'unknown' }, 'proven'],
    ['nobody can ask the kernel: 101 ms', { after: 101, kernel: 'unknown' }, 'proven'],
  ],
  'it is still open and the kernel holds no unacknowledged bytes': [
    ['none', { kernel: ACKNOWLEDGED }, 'proven'],
    ['one', { kernel: ONE_BYTE }, 'not-proven'],
    ['one, even after 100 ms', { after: 100, kernel: ONE_BYTE }, 'not-proven'],
    ['one, even after a minute', { after: 60_000, kernel: ONE_BYTE }, 'not-proven'],
    ['the kernel knows no such connection', { after: 1_000, kernel: 'absent' }, 'not-proven'],
    ['none, but the client has just left: 99 ms', { after: 99, kernel: LEFT }, 'not-proven'],
    ['none, but the client has just left: 100 ms', { after: 100, kernel: LEFT }, 'proven'],
    ['one, and the client has left', { after: 1_000, kernel: LEFT_UNREAD }, 'not-proven'],
  ],
  'we closed it first': [
    ['the kernel is to be asked', { connection: byUs(0), after: 1 }, 'ask-kernel'],
    ['nobody can ask the kernel', { connection: byUs(0), after: 1, kernel: 'unknown' }, 'proven'],
    ['the peer has all of it', { connection: byUs(0), after: 1, kernel: ACKNOWLEDGED }, 'proven'],
    ['the peer has all of it and closed too', { connection: byUs(0), after: 1, kernel: LEFT }, 'proven'],
    ['the peer lacks a byte', { connection: byUs(0), after: 1, kernel: ONE_BYTE }, 'not-proven'],
    [
      'the peer answered with a reset and left no trace',
      { connection: byUs(0), after: 1, kernel: 'absent' },
      'not-proven',
    ],
  ],
};

for (const [condition, rows] of Object.entries(ROWS)) {
  test(`${condition}: ${rows.length} rows`, () => {
    for (const [when, facts, proof] of rows) assert.equal(prove(facts), proof, when);
  });
}

test('the grace is 100 ms', () => {
  assert.equal(GRACE, 100);
});

test('the proof holds from the moment the bytes were flushed', () => {
  assert.equal(provenSince(receipt({ flushedAt: FLUSHED, response: 'normal' })), FLUSHED);
});

describe('the kernel', () => {
  const everyReceipt = function* (): Generator<Facts> {
    for (const response of ['open', 'normal', 'broken'] as const)
      for (const flushedAt of [null, FLUSHED])
        for (const forwarded of [false, true])
          for (const failed of [false, true])
            for (const requestedAt of [0, FLUSHED + 1])
              for (const on of [{}, byClient(50), byClient(150), byUs(50)])
                for (const after of [60, 99, 100, 200])
                  yield {
                    receipt: { response, flushedAt, forwarded },
                    connection: { failed, requestedAt, ...on },
                    after,
                  };
  };
  const VIEWS: readonly KernelView[] = [ACKNOWLEDGED, ONE_BYTE, LEFT, LEFT_UNREAD, 'absent', 'unknown'];

  test('is asked exactly where its answer makes a difference', () => {
    for (const facts of everyReceipt()) {
      const answers = new Set(VIEWS.map((kernel) => prove({ ...facts, kernel })));
      assert.ok(!answers.has('ask-kernel'), 'once is enough');
      assert.equal(prove(facts), answers.size === 1 ? [...answers][0] : 'ask-kernel', JSON.stringify(facts));
    }
  });

  test('never makes proven what an unacknowledged byte speaks against', () => {
    for (const facts of everyReceipt()) {
      if (prove(facts) === 'ask-kernel') assert.equal(prove({ ...facts, kernel: ONE_BYTE }), 'not-proven');
    }
  });
});
