/**
 * The shelf in Redis 7 or Valkey 8: a hash for each session, through the official client, which is an optional
 * dependency and loaded here and nowhere else. Four commands, no script: HGETALL to ask, HSET, HDEL and PEXPIRE to tell.
 */
import type { StoreAddress, StoreNode } from '../config-store.ts';
import { GuardError } from '../errors.ts';
import type { Shelf, Write } from './shared.ts';

export interface RedisOptions {
  readonly address: StoreAddress;
  /** PEM of the authorities to trust, instead of the usual ones. */
  readonly ca?: string;
  /** The connection has a problem. It is mended by itself. */
  readonly troubled: (error: Error) => void;
}

/** What one server, a Cluster and a Sentinel have in common. */
interface Client {
  connect(): Promise<unknown>;
  destroy(): void | Promise<void>;
  on(event: 'error', listener: (error: Error) => void): unknown;
  hGetAll(key: string): Promise<Record<string, string>>;
  hSet(key: string, fields: Record<string, string>): Promise<number>;
  hDel(key: string, fields: string[]): Promise<number>;
  pExpire(key: string, ms: number): Promise<unknown>;
}

type Redis = typeof import('redis');

/** Commands that wait for an answer. One more is an error at once, so that a server that hangs costs no memory. */
const MOST_WAITING = 20_000;
const CONNECT_TIMEOUT = 2_000;
/** How long a start waits for the store, in ms. */
const PATIENCE = 1_000;
const LONGEST_PAUSE = 1_000;

export class RedisShelf implements Shelf {
  readonly #redis: Redis;
  readonly #options: RedisOptions;
  #client: Client;
  #connecting: Promise<unknown> = Promise.resolve();

  /**
   * Waits a moment for the connection; if there is none by then, it is made when it can be.
   *
   * @throws {GuardError} `config-invalid` where the client is not installed.
   */
  static async open(options: RedisOptions): Promise<RedisShelf> {
    let redis: Redis;
    try {
      redis = await import('redis');
    } catch (error) {
      const message = 'store: Redis needs the package redis, which is not installed: npm install redis';
      throw new GuardError('config-invalid', message, { cause: error });
    }
    const shelf = new RedisShelf(redis, options);
    await shelf.#connected(PATIENCE);
    return shelf;
  }

  private constructor(redis: Redis, options: RedisOptions) {
    this.#redis = redis;
    this.#options = options;
    this.#client = this.#connect();
  }

  async read(key: string): Promise<Readonly<Record<string, string>>> {
    return this.#client.hGetAll(key);
  }

  /** In one tick, so that the client sends them as one pipeline. */
  write(writes: readonly Write[]): Promise<(number | Error)[]> {
    const client = this.#client;
    return Promise.all(writes.map((write) => carryOut(client, write).catch((error: Error) => error)));
  }

  reopen(): void {
    discard(this.#client);
    this.#client = this.#connect();
  }

  close(): void {
    discard(this.#client);
  }

  #connect(): Client {
    const client = clientFor(this.#redis, this.#options);
    const { troubled } = this.#options;
    client.on('error', troubled);
    this.#connecting = client.connect().catch(troubled);
    return client;
  }

  #connected(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      void this.#connecting.finally(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }
}

async function carryOut(client: Client, { key, set, remove, expire }: Write): Promise<number> {
  const [fresh = 0] = await Promise.all([
    set.length === 0 ? 0 : client.hSet(key, Object.fromEntries(set)),
    remove.length === 0 ? 0 : client.hDel(key, [...remove]),
    expire === null ? 0 : client.pExpire(key, expire),
  ]);
  return fresh;
}

function discard(client: Client): void {
  try {
    void Promise.resolve(client.destroy()).catch(() => {});
  } catch {
    // It was not open.
  }
}

function clientFor(redis: Redis, { address, ca }: RedisOptions): Client {
  const { username, password, database, nodes } = address;
  const pause = (retries: number): number => Math.min(50 * 2 ** retries, LONGEST_PAUSE);
  const tls = address.tls ? { tls: true as const, ...(ca === undefined ? {} : { ca }) } : {};
  const socket = { connectTimeout: CONNECT_TIMEOUT, reconnectStrategy: pause, noDelay: true };
  const common = {
    ...(username === undefined ? {} : { username }),
    ...(password === undefined ? {} : { password }),
    disableOfflineQueue: true,
    commandsQueueMaxLength: MOST_WAITING,
    name: 'mcp-resume-guard',
  };
  const at = ({ host, port }: StoreNode) => ({ host, port, ...socket, ...tls });
  switch (address.form) {
    case 'single':
      return redis.createClient({ ...common, database, socket: at(nodes[0]) }) as unknown as Client;
    case 'cluster':
      return redis.createCluster({
        rootNodes: nodes.map((node) => ({ ...common, socket: at(node) })),
        defaults: { ...common, socket: { ...socket, ...tls } },
      }) as unknown as Client;
    case 'sentinel':
      return redis.createSentinel({
        name: address.master!,
        sentinelRootNodes: nodes.map(({ host, port }) => ({ host, port })),
        nodeClientOptions: { ...common, database, socket: { ...socket, ...tls } },
        sentinelClientOptions: { socket: { ...socket, ...tls } },
        scanInterval: 1_000,
        passthroughClientErrorEvents: true,
      } as Parameters<Redis['createSentinel']>[0]) as unknown as Client;
  }
}
