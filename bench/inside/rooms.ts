/**
 * The product's own modules, as built: run through a loader instead, a function in a hot loop may be wrapped, and the
 * loop would measure the wrapper.
 */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type * as Decide from '../../src/core/decide.ts';
import type { Receipt } from '../../src/core/delivery.ts';
import type * as EventKeys from '../../src/core/event-key.ts';
import type * as Ledger from '../../src/core/ledger.ts';
import type * as Resolve from '../../src/core/resolve.ts';
import type { EventKey, RequestKey } from '../../src/core/terms.ts';
import type * as Memory from '../../src/store/memory.ts';
import type { MemoryBounds } from '../../src/store/store.ts';
import type { Finding } from '../scenarios/inside.ts';

const [, , dist = '', extent = 'full'] = process.argv;

export const quick = extent === 'quick';

const room = async <T>(path: string): Promise<T> => import(pathToFileURL(join(dist, path)).href);

export const { decide, RULES } = await room<typeof Decide>('core/decide.js');
export const { resolveResume } = await room<typeof Resolve>('core/resolve.js');
export const ledger = await room<typeof Ledger>('core/ledger.js');
export const { MemoryStore } = await room<typeof Memory>('store/memory.js');
const { eventKeyOfBytes } = await room<typeof EventKeys>('core/event-key.js');

/** The defaults of behaviour.md section 12; times in ms. */
export const BOUNDS: MemoryBounds = {
  memory: 64 * 2 ** 20,
  sessions: 10_000,
  streamsPerSession: 1_000,
  eventIdsPerStream: 1_000,
  finishedStreamMemory: 600_000,
  openStreamMemory: 3_600_000,
  sessionMemory: 600_000,
};

/** An event ID of 60 characters, as servers mint them: the stream, a time, a number. */
export function eventId(stream: number, event: number): string {
  return `${String(stream).padStart(32, '0')}_1700000000000_${String(event).padStart(13, '0')}`;
}

const buffer = Buffer.alloc(64);

/** The key that the ledger keeps of it. */
export function keyOf(id: string): EventKey {
  return eventKeyOfBytes(buffer, 0, buffer.write(id, 'latin1'), 7)!;
}

export const requestKey = 'n:1' as RequestKey;

/** Of a response that ended in order, on a connection that is still open. */
export function receipt(now: number): Receipt {
  const connection = { failed: false, closed: null, closedAt: null, requestedAt: 0 };
  return { connection, forwarded: false, flushedAt: now, response: 'normal' };
}

/** A stream of a tool call: `events` of them, the last one the result where `finishes`, under `lastId` if given. */
export function playStream(
  session: Ledger.Session,
  number: number,
  events: number,
  finishes: boolean,
  now: number,
  lastId?: string,
): Ledger.Stream {
  const stream = ledger.openStream(session, 'request', BOUNDS, now);
  const requests = [{ key: requestKey, method: 'tools/call' }];
  ledger.addRequests(session, stream, { wellFormed: true, requests, responses: [], methodNotFound: false });
  const leg = ledger.openLeg(stream, false, receipt(now));
  const answers = [{ key: requestKey, kind: 'result' as const }];
  for (let event = 1; event <= events; event++) {
    const last = event === events;
    const id = (last ? lastId : undefined) ?? eventId(number, event);
    const seen = { key: keyOf(id), length: 290, retry: false };
    ledger.recordEvent(session, leg, seen, last && finishes ? answers : []);
  }
  ledger.closeLeg(session, leg, { clean: true, polled: false }, now);
  return stream;
}

export function report(finding: Finding): void {
  console.log(JSON.stringify(finding));
}
