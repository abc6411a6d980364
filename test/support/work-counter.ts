/**
 * Loaded into a process of the proxy before anything else: counts what it does, and on SIGUSR2 writes the counts since
 * the last time as a line of the log, `event: "work"`. Counts, unlike times, are the same on a busy machine.
 */
import { createHook } from 'node:async_hooks';
import { Session } from 'node:inspector';
import { Socket } from 'node:net';
import { MemoryStore } from '../../src/store/memory.ts';

export interface Work {
  /** Promises made: every `await` is one or more. */
  readonly promises: number;
  /** Calls of `process.nextTick`. */
  readonly ticks: number;
  /** What connections of clients hand to the kernel: each is one call of it at least. */
  readonly writes: number;
  /** Bytes put together from several pieces. */
  readonly joined: number;
  /** Calls of the session store. */
  readonly store: number;
  /** Bytes of objects that were made, whatever became of them; a sample, scaled up. */
  readonly allocated: number;
}

const SAMPLE = 1_024;

let [promises, ticks, writes, joined, store] = [0, 0, 0, 0, 0];

createHook({
  init(_, type) {
    if (type === 'PROMISE') promises += 1;
    else if (type === 'TickObject') ticks += 1;
  },
}).enable();

/** Calls `seen` after each call of a method. */
function count<T extends object>(owner: T, method: keyof T, seen: (result: unknown, on: T) => void): void {
  const original = owner[method] as (...args: unknown[]) => unknown;
  owner[method] = function counted(this: unknown, ...args: unknown[]) {
    const result = original.apply(this, args);
    seen(result, this as T);
    return result;
  } as T[keyof T];
}

for (const method of ['_write', '_writev'] as const) {
  // Only what a server has accepted knows its server.
  count(Socket.prototype, method, (_, socket) => void (writes += 'server' in socket && socket.server ? 1 : 0));
}
count(Buffer, 'concat', (buffer) => void (joined += (buffer as Buffer).length));
for (const method of ['recall', 'learn'] as const) count(MemoryStore.prototype, method, () => void (store += 1));

const inspector = new Session();
inspector.connect();

/** The inspector answers before `post` returns. */
function sampling(start: boolean): number {
  let allocated = 0;
  if (start) {
    inspector.post('HeapProfiler.startSampling', {
      samplingInterval: SAMPLE,
      includeObjectsCollectedByMajorGC: true,
      includeObjectsCollectedByMinorGC: true,
    } as object);
  } else {
    inspector.post('HeapProfiler.stopSampling', (_, { profile }) => {
      const { samples } = profile as unknown as { samples: readonly { readonly size: number }[] };
      for (const { size } of samples) allocated += size;
    });
  }
  return allocated;
}

sampling(true);

process.on('SIGUSR2', () => {
  const work: Work = { promises, ticks, writes, joined, store, allocated: sampling(false) };
  process.stdout.write(`${JSON.stringify({ event: 'work', ...work })}\n`);
  [promises, ticks, writes, joined, store] = [0, 0, 0, 0, 0];
  sampling(true);
});
