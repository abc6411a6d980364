/**
 * Memory of large bodies on their way to slow clients. What is read from a socket lies beside the heap, up to 64 KB at a
 * time, and goes with the small object that refers to it. Those are collected when their own room is used up, which takes
 * hundreds of them: a body of 50 MB leaves a third of itself lying about. So while clients are behind they are collected
 * more often. Whoever keeps up does not pay for it.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** Bytes that may lie about. */
const MOST = 4_194_304;

let passed = 0;
let collect: (() => void) | null = null;

/** So many more bytes have passed to a client that is behind. */
export function reclaim(bytes: number): void {
  passed += bytes;
  if (passed < MOST) return;
  passed = 0;
  collect ??= youngCollector();
  collect();
}

function youngCollector(): () => void {
  setFlagsFromString('--expose-gc');
  const collector = runInNewContext('globalThis.gc') as ((how: { type: 'minor' }) => void) | undefined;
  return () => collector?.({ type: 'minor' });
}
