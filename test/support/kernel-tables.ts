/** Stands between the proxy and the kernel's tables of connections, /proc/net/tcp and tcp6. */

import files from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import type { TestContext } from 'node:test';

/** Makes the tables unreadable, as in a container that hides them, until the end of the test. */
export function hideTables(t: TestContext): void {
  const hidden = async () => {
    throw Object.assign(new Error('EACCES'), { code: 'EACCES' });
  };
  replace(t, { open: hidden, readFile: hidden });
}

export interface HeldTables {
  /** Resolves when the tables have been read. */
  readonly read: Promise<void>;
  /** Hands over what was read. */
  release(): void;
}

/** Reads the tables when they are asked for, and keeps what they said until `release`. */
export function holdTables(t: TestContext): HeldTables {
  const { readFile } = files;
  const waiting: (() => void)[] = [];
  let released = false;
  let announce = (): void => {};
  const read = new Promise<void>((resolve) => {
    announce = resolve;
  });
  const held = async (path: string, encoding: 'latin1'): Promise<string> => {
    const text = await readFile(path, encoding);
    if (path === '/proc/net/tcp') announce();
    if (!released) await new Promise<void>((resolve) => void waiting.push(resolve));
    return text;
  };
  replace(t, { readFile: held });
  return {
    read,
    release() {
      released = true;
      for (const resolve of waiting) resolve();
    },
  };
}

function replace(t: TestContext, functions: { readonly open?: unknown; readonly readFile?: unknown }): void {
  for (const [name, run] of Object.entries(functions)) t.mock.method(files, name as 'open', run as never);
  syncBuiltinESMExports();
  t.after(() => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });
}
