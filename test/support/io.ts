/** A world for the command line that is made of strings and events. */
import { EventEmitter } from 'node:events';
import { readFileSync } from 'node:fs';
import { Writable } from 'node:stream';
import type { Io } from '../../src/io.ts';

export interface TestIo extends Io {
  /** What was written so far. */
  out(): string;
  err(): string;
  /** Delivers a signal. */
  signal(name: 'SIGTERM' | 'SIGINT' | 'SIGHUP'): void;
  /** How many listeners wait for a signal. */
  listeners(name: 'SIGTERM' | 'SIGINT' | 'SIGHUP'): number;
  /** The codes that `exit` was called with. */
  readonly exits: readonly number[];
  /** Resolves as soon as the text stands on standard output. */
  printed(text: string): Promise<void>;
}

/** Makes such a world; it reads real files unless told otherwise. */
export function testIo(given: Partial<Pick<Io, 'env' | 'cwd' | 'readFile'>> & { isTTY?: boolean } = {}): TestIo {
  const { isTTY = false, ...rest } = given;
  const signals = new EventEmitter();
  const written = new EventEmitter();
  const texts = { out: '', err: '' };
  const exits: number[] = [];
  const writable = (name: 'out' | 'err') =>
    Object.assign(
      new Writable({
        decodeStrings: false,
        write(chunk, _encoding, done) {
          texts[name] += String(chunk);
          written.emit(name);
          done();
        },
      }),
      { isTTY },
    );
  return {
    stdout: writable('out'),
    stderr: writable('err'),
    env: {},
    cwd: process.cwd(),
    readFile: (path) => readFileSync(path, 'utf8'),
    onSignal(signal, listener) {
      signals.on(signal, listener);
      return () => signals.off(signal, listener);
    },
    exit: (code) => void exits.push(code),
    ...rest,
    out: () => texts.out,
    err: () => texts.err,
    signal: (name) => void signals.emit(name),
    listeners: (name) => signals.listenerCount(name),
    exits,
    printed: (text) =>
      new Promise((resolve) => {
        const look = () => {
          if (!texts.out.includes(text)) return;
          written.off('out', look);
          resolve();
        };
        written.on('out', look);
        look();
      }),
  };
}
