/** A cursor in a session of 100 streams with 1,000 IDs each: from the request's fields to a verdict, sockets aside. */
import type { ResolveOptions, ResumeRequest } from '../../src/core/resolve.ts';
import type { Credential, EventKey } from '../../src/core/terms.ts';
import { BOUNDS, decide, eventId, keyOf, ledger, playStream, quick, report, resolveResume } from './rooms.ts';

const STREAMS = 100;
const EVENTS = BOUNDS.eventIdsPerStream;
const NOW = 1_000;

const session = ledger.newSession(false, ledger.NO_IDENTITY);
const caller = '' as Credential;
ledger.approve(session, caller);
// Half of them are finished, and all have seen more than they remember, so that the trace of what was dropped counts.
// Their last event has the same ID everywhere: there are servers that stamp every result with one.
const SHARED = eventId(STREAMS, 0);
for (let stream = 0; stream < STREAMS; stream++) {
  playStream(session, stream, EVENTS + 10, stream % 2 === 0, NOW, SHARED);
}

const options: ResolveOptions = {
  unrecorded: 'forward',
  deliveryProof: 'connection',
  proofMemory: 60_000,
  now: NOW + 1_000,
  kernelOf: () => ({ unacknowledged: 0, peerClosed: false }),
};

function resolve(cursor: readonly EventKey[]): string {
  const request: ResumeRequest = {
    get: true,
    cursorFields: 1,
    cursorEmpty: false,
    sessionFields: 1,
    withoutResumption: false,
    minted: false,
    cursor,
    caller,
    forwarded: false,
  };
  return decide(resolveResume(request, session, options).facts).rule;
}

const KINDS: Readonly<Record<string, (i: number) => EventKey>> = {
  'known to one stream': (i) => keyOf(eventId((i * 37) % STREAMS, 11 + ((i * 61) % (EVENTS - 1)))),
  'known to all streams': () => keyOf(SHARED),
  'never seen': (i) => keyOf(eventId(STREAMS + 1, i + 1)),
};

const count = quick ? 1_000 : 5_000;
let slowest = 0;
for (const [kind, cursorOf] of Object.entries(KINDS)) {
  for (let i = 0; i < count / 5; i++) resolve([cursorOf(i)]);
  const times: number[] = [];
  for (let i = 0; i < count; i++) {
    // Nothing is hashed within the time taken: a request's cursor is hashed once, whatever the size of the session.
    const cursor = [cursorOf(i)];
    const began = performance.now();
    resolve(cursor);
    times.push(performance.now() - began);
  }
  times.sort((a, b) => a - b);
  const quantile = (q: number): number => times[Math.floor(times.length * q)]!;
  slowest = Math.max(slowest, quantile(0.5));
  for (const [name, q] of [['median', 0.5] as const, ['p99', 0.99] as const]) {
    report({
      name: `resolve-${kind.replaceAll(' ', '-')}-${name}`,
      title: `resolving a cursor, ${kind}, ${name}`,
      unit: 'ms',
      better: 'less',
      value: quantile(q),
    });
  }
}
report({
  name: 'resolve',
  title: 'resolving a cursor, the slowest of these medians',
  unit: 'ms',
  better: 'less',
  value: slowest,
});
