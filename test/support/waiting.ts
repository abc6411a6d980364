/**
 * Bounded waiting. Every wait of a socket test goes through here, so that a test which waits in vain says what it
 * waited for and what came instead, and never hangs.
 */

/** Milliseconds a wait may take unless the caller says otherwise. */
export const PATIENCE = 3_000;

/** Rejects when `promise` has not settled after `ms` milliseconds. `instead` is asked only then. */
export function within<T>(what: string, promise: Promise<T>, ms = PATIENCE, instead?: () => string): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const timer = setTimeout(() => reject(tooLate(what, ms, instead)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** Something that changes, and those who wait for it to look right. */
export interface Bell {
  /** Says that something changed: everyone who waits looks again. */
  ring(): void;
  /** Resolves with the first value other than `undefined` that `look` returns; what `look` throws rejects. */
  until<T>(what: string, look: () => T | undefined, ms?: number, instead?: () => string): Promise<T>;
}

export function bell(): Bell {
  const waiters = new Set<() => void>();
  return {
    ring() {
      for (const look of [...waiters]) look();
    },
    until<T>(what: string, look: () => T | undefined, ms = PATIENCE, instead?: () => string): Promise<T> {
      return new Promise<T>((resolve, reject) => {
        const settle = (): void => {
          clearTimeout(timer);
          waiters.delete(attempt);
        };
        const attempt = (): void => {
          try {
            const found = look();
            if (found === undefined) return;
            settle();
            resolve(found);
          } catch (error) {
            settle();
            reject(error);
          }
        };
        const timer = setTimeout(() => {
          settle();
          reject(tooLate(what, ms, instead));
        }, ms);
        waiters.add(attempt);
        attempt();
      });
    },
  };
}

/** Looks every few milliseconds until `holds` is true: for state that nobody announces (counters, gauges). */
export async function eventually(what: string, holds: () => boolean | Promise<boolean>, ms = PATIENCE): Promise<void> {
  const deadline = performance.now() + ms;
  while (!(await holds())) {
    if (performance.now() > deadline) throw tooLate(what, ms);
    await pause(5);
  }
}

/** Lets time pass where time itself is what the test is about, such as an upstream that stays silent. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/**
 * Times `run` a few times and returns the shortest, in milliseconds. A busy machine spoils some rounds of a
 * measurement; a delay that the proxy adds is in all of them.
 */
export async function fastestOf(rounds: number, run: () => Promise<number>, enough = 0): Promise<number> {
  let fastest = Number.POSITIVE_INFINITY;
  for (let round = 0; round < rounds && fastest >= enough; round += 1) fastest = Math.min(fastest, await run());
  return fastest;
}

function tooLate(what: string, ms: number, instead?: () => string): Error {
  return new Error(`waited ${ms} ms for ${what}; instead: ${instead?.() ?? 'nothing came'}`);
}
