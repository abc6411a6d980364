/**
 * Did the client get it? (behaviour.md section 5)
 *
 * A proxy sees bytes leave, not arrive. Two things count as proof: a cursor at or after the terminal event (the
 * client says so itself), or the fate of the client's connection after the bytes left:
 *
 *     terminal bytes flushed ──┬── client sends another request on it ........ proven
 *                              ├── still open, nothing unacknowledged ........ proven   (Linux knows)
 *                              ├── still open for 100 ms ..................... proven   (where the kernel is unknown)
 *                              ├── client closes after 100 ms or later ....... proven
 *                              ├── we closed it, and the peer took our bytes . proven
 *                              └── client closes sooner, any error ........... not proven: the cursor is forwarded
 *
 * Proof by connection speaks for the next hop only, and for a while only (`proofMemory`).
 */
import type { Millis } from './terms.ts';

/** How long a client has to keep its side open after the end to count as having read it. */
export const GRACE: Millis = 100;

/** The client's connection, as `proxy/connection.ts` sees it. One object a connection, changed as things happen. */
export interface ConnectionFacts {
  /** An error on the socket, at any time. */
  failed: boolean;
  /** Who closed first; null while both sides are open. */
  closed: 'client' | 'us' | null;
  closedAt: Millis | null;
  /** When the last request began on it. */
  requestedAt: Millis;
}

/** What the kernel says about a connection: bytes the peer has not acknowledged, or that it knows no such connection. */
export type KernelView = { readonly unacknowledged: number; readonly peerClosed: boolean } | 'absent' | 'unknown';

/** One response that carried a terminal event, and what became of it. */
export interface Receipt {
  readonly connection: ConnectionFacts;
  /** The request came through another intermediary (`Via`, `Forwarded`, `X-Forwarded-For`). */
  readonly forwarded: boolean;
  /** When the kernel had taken the terminal event's bytes; null before. */
  flushedAt: Millis | null;
  /** `open` while the response runs, `normal` after its end, `broken` when it was destroyed. */
  response: 'open' | 'normal' | 'broken';
}

export type ConnectionProof = 'proven' | 'not-proven' | 'ask-kernel';

/**
 * Judges one receipt. `kernel` is undefined where it has not been asked yet; the answer is `ask-kernel` only when it
 * would make a difference.
 */
export function proveByConnection(receipt: Receipt, now: Millis, kernel: KernelView | undefined): ConnectionProof {
  const { connection, flushedAt } = receipt;
  if (receipt.forwarded || receipt.response === 'broken' || flushedAt === null || connection.failed)
    return 'not-proven';
  if (connection.requestedAt > flushedAt) return 'proven';
  if (connection.closed === 'client')
    return (connection.closedAt ?? now) - flushedAt >= GRACE ? 'proven' : 'not-proven';
  if (kernel === undefined) return 'ask-kernel';
  if (kernel === 'unknown') {
    return connection.closed === 'us' || now - flushedAt >= GRACE ? 'proven' : 'not-proven';
  }
  // Absent: a connection we closed and the peer answered with a reset leaves no trace, one that ended in order
  // lingers as TIME_WAIT for a minute.
  if (kernel === 'absent' || kernel.unacknowledged > 0) return 'not-proven';
  return kernel.peerClosed && connection.closed === null && now - flushedAt < GRACE ? 'not-proven' : 'proven';
}

/** When the proof began to hold, for `proofMemory`. */
export function provenSince(receipt: Receipt): Millis {
  return receipt.flushedAt ?? 0;
}
