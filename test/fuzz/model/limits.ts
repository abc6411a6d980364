/** The bounds of section 12, checked on the records themselves after every step. */
import type { Session, Stream } from '../../../src/core/ledger.ts';
import type { World } from './world.ts';

const MOST_CALLERS = 64;
const MOST_ORIGINS = 8;
const MOST_NOTES = 256;
const MOST_RECEIPTS = 4;
/** More than any estimate of a part of a session may come to, in bytes. */
const MOST = { session: 25_000, stream: 12_000, request: 400, eventId: 20 };

/** What is over its bound, or null. */
export function boundsFault(world: World): string | null {
  const { bounds } = world.guard.settings;
  for (const [, session] of world.guard.store.entries()) {
    const fault = sessionFault(session, bounds);
    if (fault !== null) return fault;
  }
  return null;
}

function sessionFault(session: Session, bounds: World['guard']['settings']['bounds']): string | null {
  const { streams, approved, cors, notes, bytes, listening } = session;
  if (streams.size > bounds.streamsPerSession) return `${streams.size} streams`;
  if (approved.length > MOST_CALLERS) return `${approved.length} approved callers`;
  if (cors.size > MOST_ORIGINS) return `${cors.size} origins`;
  if (notes.size > MOST_NOTES) return `notes on ${notes.size} cursors`;
  let most = MOST.session;
  for (const stream of streams) {
    if (stream.ring.size > bounds.eventIdsPerStream) return `${stream.ring.size} event IDs on a stream`;
    if (mostReceipts(stream) > MOST_RECEIPTS) return `${mostReceipts(stream)} receipts for one answer`;
    if (stream.openLegs < 0) return `${stream.openLegs} open exchanges on a stream`;
    most += MOST.stream + stream.requests.size * MOST.request + stream.ring.size * MOST.eventId;
  }
  if (bytes < 0) return `a session of ${bytes} bytes`;
  if (bytes > most) return `a session of ${bytes} bytes where ${most} would be much`;
  return listening < 0 ? `${listening} listening exchanges` : null;
}

function mostReceipts(stream: Stream): number {
  let most = 0;
  for (const answer of stream.requests.values()) most = Math.max(most, answer?.receipts.length ?? 0);
  return most;
}
