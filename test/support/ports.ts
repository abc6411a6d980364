/**
 * Ports for servers that are stopped and started again. The kernel gives outgoing connections, and whoever listens on
 * port 0, ports from 32768 on: a port below is not taken by somebody else in between.
 */
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import type { Server } from 'node:net';

const [LOWEST, BEYOND] = [12_000, 32_768];
const ATTEMPTS = 100;

/** Listens on 127.0.0.1: on `port` again, or on one that stays free while nobody listens. */
export async function listenOn(server: Server, port: number | null = null): Promise<number> {
  for (let attempt = 1; ; attempt += 1) {
    const wanted = port ?? randomInt(LOWEST, BEYOND);
    try {
      await once(server.listen(wanted, '127.0.0.1'), 'listening');
      return wanted;
    } catch (error) {
      if (port !== null || attempt === ATTEMPTS || (error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error;
    }
  }
}
