/** What the command line needs from the world around it, so that a test can hand in another world. */
export interface Io {
  readonly stdout: NodeJS.WritableStream & { readonly isTTY?: boolean };
  readonly stderr: NodeJS.WritableStream;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** The directory that relative paths in options and variables start from. */
  readonly cwd: string;
  /** @throws the error of `fs.readFileSync` when the file cannot be read. */
  readFile(path: string): string;
  /** Calls back on every arrival of the signal until the returned function is called. */
  onSignal(signal: 'SIGTERM' | 'SIGINT' | 'SIGHUP', listener: () => void): () => void;
  /** Ends the process without waiting for anything. */
  exit(code: number): void;
}
