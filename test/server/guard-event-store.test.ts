/** The guarded store by itself, in front of stores that misbehave. The SDK's own: `guard-event-store-sdk.test.ts`. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  type EventStoreLike,
  guardEventStore,
  ReplayAuthorizer,
  ResumptionTokenError,
  type SessionEventStore,
} from '../../src/server/index.ts';

type Message = Readonly<Record<string, unknown>>;

const note = (n: number): Message => ({ jsonrpc: '2.0', method: 'notifications/message', params: { n } });
const result = (id: number): Message => ({ jsonrpc: '2.0', id, result: {} });

/** A store that keeps everything and replays in the order of storing. `order` may change it, or leave something out. */
function plainStore(order: (ids: string[]) => string[] = (ids) => ids) {
  const events = new Map<string, { streamId: string; message: Message }>();
  let replays = 0;
  const store: EventStoreLike<Message> = {
    async storeEvent(streamId, message) {
      const id = `${streamId}/${events.size}`;
      events.set(id, { streamId, message });
      return id;
    },
    async replayEventsAfter(lastEventId, { send }) {
      replays += 1;
      const cursor = events.get(lastEventId);
      const ids = order([...events.keys()]);
      for (const id of ids.slice(ids.indexOf(lastEventId) + 1)) {
        const event = events.get(id)!;
        if (event.streamId === cursor?.streamId) await send(id, event.message);
      }
      return cursor?.streamId ?? '';
    },
  };
  return { store, events, replays: () => replays };
}

/** What a replay sends, and how it ends: an unwritable message is what ends a finished stream. */
async function replay(events: SessionEventStore<Message>, cursor: string) {
  const sent: [string, Message][] = [];
  let ended = false;
  const stream = await events.replayEventsAfter(cursor, {
    async send(id, message) {
      try {
        JSON.stringify(message);
      } catch {
        ended = true;
        throw new Error('cannot be written');
      }
      sent.push([id, message]);
    },
  });
  return { sent, ended, stream };
}

async function fill(events: SessionEventStore<Message>, stream: string, messages: readonly Message[]) {
  const ids: string[] = [];
  for (const message of messages) ids.push(await events.storeEvent(stream, message));
  return ids;
}

const statusOf = (run: () => void): number => {
  try {
    run();
    return 200;
  } catch (error) {
    return (error as ResumptionTokenError).status;
  }
};

describe('a guarded event store', () => {
  test('replays what came after the cursor on its stream, and returns the name of the stream', async () => {
    const events = guardEventStore(plainStore().store).forSession('s');
    const ids = await fill(events, 'one', [note(1), note(2)]);
    await fill(events, 'two', [note(9)]);
    const [last] = await fill(events, 'one', [note(3)]);
    assert.deepEqual(await replay(events, ids[0]!), {
      sent: [
        [ids[1], note(2)],
        [last, note(3)],
      ],
      ended: false,
      stream: 'one',
    });
  });

  test('gives every event an ID of its own, even where the store behind it repeats one', async () => {
    const { store } = plainStore();
    const events = guardEventStore({ ...store, storeEvent: async () => 'always the same' }).forSession('s');
    const ids = await fill(events, 'one', [note(1), note(2), note(3)]);
    assert.equal(new Set(ids).size, 3);
    assert.deepEqual(
      (await replay(events, ids[0]!)).sent.map(([, message]) => message),
      [note(2), note(3)],
    );
  });

  test('does not replay what a priming event left behind', async () => {
    const events = guardEventStore(plainStore().store).forSession('s');
    const ids = await fill(events, 'one', [note(1), {}, note(2)]);
    assert.deepEqual((await replay(events, ids[0]!)).sent, [[ids[2], note(2)]]);
    assert.deepEqual((await replay(events, ids[1]!)).sent, [[ids[2], note(2)]]);
  });

  test('sends what is stored while it replays', async () => {
    const events = guardEventStore(plainStore().store).forSession('s');
    const [first] = await fill(events, 'one', [note(0), note(1)]);
    const sent: Message[] = [];
    await events.replayEventsAfter(first!, {
      async send(_id, message) {
        sent.push(message);
        if (sent.length < 4) await events.storeEvent('one', note(sent.length + 1));
      },
    });
    assert.deepEqual(sent, [note(1), note(2), note(3), note(4)]);
  });

  test('ends the replay of a finished stream, by an error as by a result, and of no other', async () => {
    const events = guardEventStore(plainStore().store).forSession('s');
    const error: Message = { jsonrpc: '2.0', id: 'x', error: { code: 1, message: 'm' } };
    const question: Message = { jsonrpc: '2.0', id: 5, method: 'sampling/createMessage' };
    const [byResult] = await fill(events, 'one', [note(1), result(1)]);
    const [byError] = await fill(events, 'two', [note(1), error]);
    const [running] = await fill(events, 'three', [note(1), question]);
    const replays = await Promise.all([byResult, byError, running].map((cursor) => replay(events, cursor!)));
    assert.deepEqual(
      replays.map(({ ended }) => ended),
      [true, true, false],
    );
    const [one, two, three] = replays.map(({ stream }) => stream);
    assert.equal(one, two, 'the transport keeps one name for all that is over');
    assert.equal(three, 'three');
  });

  test('leaves it open where it is told to, and where one answer may not be the last', async () => {
    for (const options of [{ endFinished: false }, { batches: true }]) {
      const events = guardEventStore(plainStore().store, options).forSession('s');
      const ids = await fill(events, 'one', [note(1), result(1), result(2)]);
      const { sent, ended } = await replay(events, ids[0]!);
      assert.equal(sent.length, 2);
      assert.equal(ended, false);
    }
  });

  test('lets a transport refuse a cursor by its look-up, and names no stream that the transport could mistake for a conflict', async () => {
    const events = guardEventStore(plainStore().store).forSession('s');
    const [id] = await fill(events, 'one', [note(1)]);
    assert.equal(await events.getStreamIdForEventId('unknown'), undefined);
    const named = await events.getStreamIdForEventId(id!);
    assert.ok(named !== undefined && named !== 'one', named);
  });

  test('keeps the conflict check of a store that has the look-up itself', async () => {
    const { store } = plainStore();
    const events = guardEventStore({ ...store, getStreamIdForEventId: async () => 'whatever' }).forSession('s');
    const [id] = await fill(events, 'one', [note(1)]);
    assert.equal(await events.getStreamIdForEventId(id!), 'one');
  });

  test('numbers events as they are stored, so that what the transport writes first comes first', async () => {
    const { store } = plainStore();
    const open: (() => void)[] = [];
    const slow: EventStoreLike<Message> = {
      ...store,
      async storeEvent(streamId, message) {
        if (message['params'] !== undefined) await new Promise<void>((resolve) => open.push(resolve));
        return store.storeEvent(streamId, message);
      },
    };
    const events = guardEventStore(slow).forSession('s');
    const [start] = await fill(events, 'one', [{}]);
    const written: string[] = [];
    const writing = [1, 2, 3].map(async (n) => written.push(await events.storeEvent('one', note(n))));
    for (const finish of [2, 0, 1]) {
      open[finish]!();
      await new Promise((resolve) => setImmediate(resolve));
    }
    await Promise.all(writing);
    const { sent } = await replay(events, start!);
    assert.deepEqual(
      sent,
      [3, 1, 2].map((n, at) => [written[at], note(n)]),
    );
  });

  test('passes on what the store behind it throws', async () => {
    const failing = { ...plainStore().store, storeEvent: () => Promise.reject(new Error('the disk is full')) };
    await assert.rejects(guardEventStore(failing).forSession('s').storeEvent('one', note(1)), /the disk is full/);
  });
});

describe('cursors', () => {
  test('of another session, of nobody and of a later event are refused with 409, in every way to ask', async () => {
    const guarded = guardEventStore(plainStore().store);
    const [mine, other] = [guarded.forSession('mine'), guarded.forSession('other')];
    const [id] = await fill(mine, 'one', [note(1)]);
    await fill(other, 'one', [note(1)]);
    const later = id!.replace(/1$/, '2');
    const older = id!.replace(/1$/, '0');
    const [, otherGeneration] = [id, id!.replace(/-1-1$/, '-2-1')];
    for (const [session, events, cursor] of [
      ['other', other, id!],
      ['mine', mine, 'nobody'],
      ['mine', mine, later],
      ['mine', mine, older],
      ['mine', mine, otherGeneration],
      ['mine', mine, `${id} `],
      ['mine', mine, id!.replace(/1$/, '01')],
    ] as const) {
      assert.equal(
        statusOf(() => guarded.authorize(session, cursor)),
        409,
        cursor,
      );
      assert.equal(await events.getStreamIdForEventId(cursor), undefined);
      await assert.rejects(replay(events, cursor), ResumptionTokenError);
    }
    assert.equal(
      statusOf(() => guarded.authorize('mine', id!)),
      200,
    );
  });

  test('of an earlier generation are superseded; what the old transport still stores cannot be resumed after', async () => {
    const guarded = guardEventStore(plainStore().store);
    const before = guarded.forSession('s');
    const [id] = await fill(before, 'one', [note(1)]);
    const now = guarded.forSession('s');
    const [late] = await fill(before, 'one', [note(2)]);
    const [fresh] = await fill(now, 'one', [note(3)]);
    assert.throws(() => guarded.authorize('s', id!), { reason: 'superseded' });
    assert.equal(
      statusOf(() => guarded.authorize('s', late!)),
      409,
    );
    guarded.authorize('s', fresh!);
    await assert.rejects(replay(before, fresh!), ResumptionTokenError);
  });

  test('of a session that is unknown or over are refused with 404', async () => {
    const guarded = guardEventStore(plainStore().store);
    assert.throws(() => guarded.authorize('never', 'x'), { status: 404, reason: 'unknown-session' });
    const events = guarded.forSession('s');
    const [id] = await fill(events, 'one', [note(1)]);
    guarded.endSession('s');
    assert.throws(() => guarded.authorize('s', id!), { status: 404, reason: 'evicted-session' });
    assert.equal(await events.getStreamIdForEventId(id!), undefined);
    assert.ok(await events.storeEvent('one', note(2)), 'whoever is still connected is served');
  });

  test('follow an authorizer that is shared with the rest of the server', async () => {
    const authorizer = new ReplayAuthorizer();
    const guarded = guardEventStore(plainStore().store, { authorizer });
    const events = guarded.forSession('s');
    const [id] = await fill(events, 'one', [note(1), note(2), note(3)]);
    authorizer.dropThrough('s', 2);
    assert.throws(() => guarded.authorize('s', id!), { reason: 'below-floor' });
    authorizer.open('s');
    assert.throws(() => guarded.authorize('s', id!), { reason: 'superseded' });
    authorizer.evict('s');
    assert.throws(() => guarded.authorize('s', id!), { status: 404 });
  });
});

describe('bounds', () => {
  const numbers = (count: number): Message[] => Array.from({ length: count }, (_, at) => note(at));

  test('messages that are no longer at hand come from the store behind, in the order of storing whatever its own', async () => {
    const { store, replays } = plainStore((ids) => [ids[0]!, ...ids.slice(1).reverse()]);
    const events = guardEventStore(store, { maxMessages: 3 }).forSession('s');
    const ids = await fill(events, 'one', numbers(10));
    const { sent } = await replay(events, ids[0]!);
    assert.deepEqual(
      sent,
      ids.slice(1).map((id, at) => [id, note(at + 1)]),
    );
    assert.equal(replays(), 1);
    await replay(events, ids[7]!);
    assert.equal(replays(), 1, 'the last three are at hand');
  });

  test('an event that the store behind has lost is said to be lost, before anything is sent', async () => {
    const { store } = plainStore((ids) => ids.filter((id) => id !== 'one/4'));
    const events = guardEventStore(store, { maxMessages: 3 }).forSession('s');
    const ids = await fill(events, 'one', numbers(10));
    const sent: string[] = [];
    const send = async (id: string): Promise<void> => void sent.push(id);
    await assert.rejects(events.replayEventsAfter(ids[2]!, { send }), { reason: 'below-floor' });
    assert.deepEqual(sent, []);
    assert.equal((await replay(events, ids[4]!)).sent.length, 5);
  });

  test('finished streams make room before running ones, and their cursors are refused', async () => {
    const guarded = guardEventStore(plainStore().store, { maxEvents: 6 });
    const events = guarded.forSession('s');
    const [listening] = await fill(events, 'listening', [note(0)]);
    const [first] = await fill(events, 'first', [note(1), result(1)]);
    const [second] = await fill(events, 'second', [note(1), result(2)]);
    const [third] = await fill(events, 'third', [note(1), result(3)]);
    assert.throws(() => guarded.authorize('s', first!), { status: 409, reason: 'below-floor' });
    for (const id of [listening, second, third]) guarded.authorize('s', id!);
  });

  test('without a finished stream the oldest event goes, and what followed it can still be resumed after', async () => {
    const authorizer = new ReplayAuthorizer();
    const guarded = guardEventStore(plainStore().store, { maxEvents: 5, maxMessages: 50, authorizer });
    const events = guarded.forSession('s');
    const ids = await fill(events, 'one', numbers(8));
    assert.throws(() => guarded.authorize('s', ids[2]!), { status: 409, reason: 'below-floor' });
    assert.equal((await replay(events, ids[3]!)).sent.length, 4);
    assert.deepEqual(authorizer.window('s'), { generation: 1, replayFloor: 4, highWaterMark: 8 });
  });

  test('sessions: the one used least recently is forgotten', async () => {
    const guarded = guardEventStore(plainStore().store, { maxSessions: 2 });
    const [a, b] = [guarded.forSession('a'), guarded.forSession('b')];
    const [ofA] = await fill(a, 'one', [note(1)]);
    const [ofB] = await fill(b, 'one', [note(1)]);
    guarded.authorize('a', ofA!);
    guarded.forSession('c');
    assert.throws(() => guarded.authorize('b', ofB!), { status: 404 });
    guarded.authorize('a', ofA!);
  });

  test('sessions: also where the windows are kept elsewhere, for longer', async () => {
    const guarded = guardEventStore(plainStore().store, { maxSessions: 1, authorizer: new ReplayAuthorizer() });
    const [id] = await fill(guarded.forSession('a'), 'one', [note(1)]);
    guarded.authorize('a', id!);
    guarded.forSession('b');
    assert.throws(() => guarded.authorize('a', id!), { status: 409 });
  });

  test('are positive integers', () => {
    for (const value of [0, -1, 1.5, Number.NaN]) {
      for (const name of ['maxSessions', 'maxEvents', 'maxMessages']) {
        assert.throws(() => guardEventStore(plainStore().store, { [name]: value }), RangeError);
      }
    }
  });
});
