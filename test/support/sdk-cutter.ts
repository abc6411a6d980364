/**
 * A TCP relay that can cut the connections of chosen requests, as a lost network would.
 *
 *     client -- [ cutter ] -- proxy or server
 */
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

export interface Cutter {
  /** The target's URL with this relay's port. */
  readonly url: string;
  /** Resets, on both sides, every connection whose last request contains `text`. Returns how many. */
  cut(text: string): number;
  close(): Promise<void>;
}

export async function startCutter(target: string): Promise<Cutter> {
  const { hostname, port } = new URL(target);
  const pairs = new Map<Socket, { readonly far: Socket; lastSent: string }>();
  const server = createServer((near) => {
    const far = connect(Number(port), hostname);
    const pair = { far, lastSent: '' };
    pairs.set(near, pair);
    near.on('data', (chunk) => {
      // A request may come in several segments; its head starts the text anew.
      const text = chunk.toString('latin1');
      pair.lastSent = /^(POST|GET|DELETE) /.test(text) ? text : pair.lastSent + text;
    });
    near.pipe(far);
    far.pipe(near);
    const end = (): void => {
      pairs.delete(near);
      near.destroy();
      far.destroy();
    };
    for (const socket of [near, far]) socket.on('error', end).on('close', end);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = new URL(target);
  url.port = String((server.address() as AddressInfo).port);
  return {
    url: url.href,
    cut: (text) => {
      const chosen = [...pairs].filter(([, { lastSent }]) => lastSent.includes(text));
      for (const [near, { far }] of chosen) {
        near.resetAndDestroy();
        far.resetAndDestroy();
      }
      return chosen.length;
    },
    close: async () => {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      for (const [near, { far }] of pairs) {
        near.destroy();
        far.destroy();
      }
      await closed;
    },
  };
}
