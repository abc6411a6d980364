/** Memory of the ledger: of an event that a stream remembers, of a session, beside what the ledger itself reckons. */
import type { Session } from '../../src/core/ledger.ts';
import { BOUNDS, ledger, MemoryStore, playStream, quick, report } from './rooms.ts';

const SESSIONS = quick ? 200 : 1_000;
const EVENTS = BOUNDS.eventIdsPerStream;
const NOW = 1_000;

declare const gc: () => void;

/** Bytes in use once everything else is gone, buffers outside the heap included. */
function used(): number {
  for (let i = 0; i < 3; i++) gc();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

/** Memory of what `make` makes `count` times, for one of them. */
function costOf(count: number, make: (i: number) => unknown): { bytes: number; kept: unknown[] } {
  // One first, so that code and hidden classes are not counted.
  make(count);
  const kept: unknown[] = new Array(count).fill(null);
  const before = used();
  for (let i = 0; i < count; i++) kept[i] = make(i);
  return { bytes: (used() - before) / count, kept };
}

function sessionWith(number: number, events: number): Session {
  const session = ledger.newSession(false, ledger.NO_IDENTITY);
  playStream(session, number, events, true, NOW);
  return session;
}

const bare = costOf(SESSIONS, (i) => sessionWith(i, 1));
const filled = costOf(SESSIONS, (i) => sessionWith(i, EVENTS));
const wrapped = costOf(SESSIONS, (i) => sessionWith(i, EVENTS * 3 + 1));
const reckoned = (sessions: readonly unknown[]): number =>
  sessions.reduce<number>((sum, session) => sum + (session as Session).bytes, 0) / sessions.length;

report({
  name: 'ledger-event',
  title: `memory of an event, streams of ${EVENTS.toLocaleString('en')} events`,
  unit: 'bytes',
  better: 'less',
  value: (filled.bytes - bare.bytes) / (EVENTS - 1),
});
report({
  name: 'ledger-event-wrapped',
  title: 'memory of an event, streams that have forgotten twice as many as they remember',
  unit: 'bytes',
  better: 'less',
  value: (wrapped.bytes - bare.bytes) / (EVENTS - 1),
});
report({
  name: 'ledger-reckoned',
  title: 'memory in use over what the ledger reckons, streams of that kind',
  unit: 'of 1',
  better: 'less',
  value: wrapped.bytes / reckoned(wrapped.kept),
});

const store = new MemoryStore({ ...BOUNDS, memory: Number.POSITIVE_INFINITY });
const perSession = costOf(quick ? 2_000 : 9_999, (i) => {
  const session = store.learn(`bench\n${i}`, { anonymous: false, upstream: ledger.NO_IDENTITY }, NOW);
  playStream(session, i, 3, true, NOW);
  return null;
});
report({
  name: 'ledger-session',
  title: 'memory of a session in the store, with one finished call of three events',
  unit: 'bytes',
  better: 'less',
  value: perSession.bytes,
});
