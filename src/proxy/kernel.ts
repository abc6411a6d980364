/**
 * What the Linux kernel knows about TCP connections, from `/proc/net/tcp` and `tcp6`: bytes a peer has not
 * acknowledged yet (for delivery), and the inodes of sockets that listen on a port (for upstream restarts).
 *
 * A reading costs one pass over the table, so it is made only when a decision needs it, off the event loop, and one
 * reading serves everybody who asks within `bounds.kernelReading`. Anywhere else than on Linux, and whenever the table
 * cannot be read, the answer is "unknown".
 */
import { open, readFile } from 'node:fs/promises';
import { isIP, isIPv4 } from 'node:net';
import type { KernelView } from '../core/delivery.ts';

/** Four ends of a connection, in the notation of the table; see `endpoint`. */
export type Tuple = string;

export interface KernelTables {
  /** Views of all connections, read no earlier than `notBefore` (in ms). */
  connections(notBefore?: number): Promise<Connections>;
  /**
   * Who listens on `port` at a loopback or wildcard address, read no earlier than `notBefore` (in ms). `some`: if there
   * was one last time and it is still there, others need not be looked for.
   */
  listeners(port: number, notBefore?: number, some?: boolean): Promise<Listening>;
}

export interface Connections {
  /** `unknown` where the kernel cannot be asked. */
  viewOf(tuple: Tuple): KernelView;
  /** When the reading began, in ms. */
  readonly readAt: number;
}

export interface Listening {
  /** Of the sockets; empty when unknown, or when there are none. */
  readonly inodes: ReadonlySet<number>;
  /** When the reading began, in ms. */
  readonly readAt: number;
}

const ESTABLISHED = 0x01;
const CLOSE_WAIT = 0x08;
const LISTEN = '0A';
/** The peer has closed its side: CLOSE_WAIT, LAST_ACK, CLOSING. */
const PEER_CLOSED = new Set([CLOSE_WAIT, 0x09, 0x0b]);
const NOBODY: ReadonlySet<number> = new Set();

/** `address:port` as the table writes it. An IPv4-mapped IPv6 address counts as its IPv4 address. */
export function endpoint(address: string, port: number): string {
  return `${addressHex(address)}:${port.toString(16).toUpperCase().padStart(4, '0')}`;
}

export function tupleOf(localAddress: string, localPort: number, remoteAddress: string, remotePort: number): Tuple {
  return `${endpoint(localAddress, localPort)} ${endpoint(remoteAddress, remotePort)}`;
}

function addressHex(address: string): string {
  const plain = address.replace(/%.*$/, '');
  const mapped = plain.toLowerCase().startsWith('::ffff:') ? plain.slice(7) : plain;
  if (isIPv4(mapped)) return littleEndian(Uint8Array.from(mapped.split('.'), Number));
  return littleEndian(ipv6Bytes(plain));
}

function ipv6Bytes(address: string): Uint8Array {
  const [head = '', tail] = address.split('::');
  const left = head === '' ? [] : head.split(':');
  const right = tail === undefined || tail === '' ? [] : tail.split(':');
  const zeros = new Array<string>(Math.max(0, 8 - left.length - right.length)).fill('0');
  const bytes = new Uint8Array(16);
  for (const [i, group] of [...left, ...zeros, ...right].slice(0, 8).entries()) {
    const value = Number.parseInt(group, 16);
    bytes[i * 2] = value >> 8;
    bytes[i * 2 + 1] = value & 0xff;
  }
  return bytes;
}

/** The kernel prints each 32-bit word of an address in host order. */
function littleEndian(bytes: Uint8Array): string {
  let hex = '';
  for (let word = 0; word < bytes.length; word += 4) {
    for (let i = 3; i >= 0; i--) hex += bytes[word + i]!.toString(16).padStart(2, '0');
  }
  return hex.toUpperCase();
}

const MAPPED_PREFIX = '0000000000000000FFFF0000';
const unmapped = (end: string): string => (end.startsWith(MAPPED_PREFIX) ? end.slice(MAPPED_PREFIX.length) : end);

interface Entry {
  readonly local: string;
  readonly state: string;
  readonly unsent: number;
  readonly inode: number;
}

/** One line: `sl local remote state tx:rx tr:when retransmits uid timeout inode …`. Null for the heading. */
function parseLine(line: string): Entry | null {
  const columns = line.trim().split(/\s+/);
  const [sl, local, remote, state, queues] = columns;
  if (sl === undefined || !sl.endsWith(':') || local === undefined || remote === undefined) return null;
  if (state === undefined || queues === undefined) return null;
  return {
    local: unmapped(local),
    state,
    unsent: Number.parseInt(queues.split(':', 1)[0]!, 16),
    inode: Number(columns[9] ?? 0),
  };
}

/**
 * The view of one connection in the text of one or more tables; undefined where it is not there. A table has a line for
 * every connection of the machine, so it is searched, not parsed.
 */
export function viewIn(tuple: Tuple, ...tables: readonly string[]): KernelView | undefined {
  const [local, remote] = tuple.split(' ');
  let view: KernelView | undefined;
  for (const table of tables) {
    for (const wanted of [` ${tuple} `, ` ${MAPPED_PREFIX}${local} ${MAPPED_PREFIX}${remote} `]) {
      for (let at = table.indexOf(wanted); at !== -1; at = table.indexOf(wanted, at + 1)) {
        const start = table.lastIndexOf('\n', at) + 1;
        const end = table.indexOf('\n', at);
        view = viewOf(parseLine(table.slice(start, end === -1 ? table.length : end))) ?? view;
      }
    }
  }
  return view;
}

function viewOf(entry: Entry | null): KernelView | undefined {
  const state = Number.parseInt(entry?.state ?? LISTEN, 16);
  // Only states in which the handshake is over say anything about bytes.
  if (entry === null || entry.state === LISTEN || (state !== ESTABLISHED && state < 0x04)) return undefined;
  return { unacknowledged: entry.unsent, peerClosed: PEER_CLOSED.has(state) };
}

/** It listens on a port at a wildcard or loopback address. */
function isListener({ local }: Entry, port: number): boolean {
  const [address = '', at = ''] = local.split(':');
  return Number.parseInt(at, 16) === port && isLocal(address);
}

function isLocal(hex: string): boolean {
  return /^0+$/.test(hex) || (hex.length === 8 && hex.endsWith('7F')) || hex === '00000000000000000000000001000000';
}

const TABLES = ['/proc/net/tcp', '/proc/net/tcp6'] as const;
type Table = (typeof TABLES)[number];

/** Where the connections are that somebody who listens at `host` has accepted: in the table of the listening socket. */
function tablesOf(host: string): readonly Table[] {
  const family = isIP(host);
  return family === 4 ? ['/proc/net/tcp'] : family === 6 ? ['/proc/net/tcp6'] : TABLES;
}

async function whole(path: Table): Promise<string> {
  return readFile(path, 'latin1');
}

/**
 * The lines of the sockets that listen, which the kernel lists first. It finds each line by searching all sockets, of
 * which a machine has room for some hundred thousand: so no more is asked for than is needed.
 */
async function* listening(path: Table): AsyncIterable<Entry> {
  const file = await open(path, 'r');
  try {
    const piece = Buffer.allocUnsafe(1_024);
    let rest = '';
    for (;;) {
      const { bytesRead } = await file.read(piece, 0, piece.length, null);
      if (bytesRead === 0) return;
      const lines = (rest + piece.toString('latin1', 0, bytesRead)).split('\n');
      rest = lines.pop()!;
      for (const line of lines) {
        const entry = parseLine(line);
        if (entry === null) continue;
        if (entry.state !== LISTEN) return;
        yield entry;
      }
    }
  } finally {
    await file.close();
  }
}

/** Inodes that listen on a port; null where nobody can say. */
async function listenersOn(port: number): Promise<ReadonlySet<number> | null> {
  const found = await readTables(TABLES, async (path) => {
    const inodes: number[] = [];
    for await (const entry of listening(path)) if (isListener(entry, port)) inodes.push(entry.inode);
    return inodes;
  });
  return found === null ? null : new Set(found.flat());
}

/** Whether a certain one is among them. */
async function listens(inode: number, port: number): Promise<boolean> {
  for (const path of TABLES) {
    try {
      for await (const entry of listening(path)) if (entry.inode === inode && isListener(entry, port)) return true;
    } catch {
      // Then it is not known.
    }
  }
  return false;
}

interface Reading<T> {
  readonly value: T;
  /** When it began. */
  readonly at: number;
}

/**
 * Shares one reading among all who ask within `time`. Who needs a later one than is under way waits for the next, with
 * everybody else who does: a burst of connections costs two readings, not one each.
 */
function shared<T>(
  read: () => Promise<T>,
  time: number,
  now: () => number,
): (notBefore?: number) => Promise<Reading<T>> {
  let latest: { readonly at: number; readonly reading: Promise<Reading<T>> } | null = null;
  let next: Promise<Reading<T>> | null = null;
  let running = false;
  const start = (): Promise<Reading<T>> => {
    const at = now();
    running = true;
    const reading = read()
      .then((value) => ({ value, at }))
      .finally(() => {
        running = false;
      });
    latest = { at, reading };
    return reading;
  };
  return (notBefore = 0) => {
    if (latest !== null && now() - latest.at <= time && latest.at >= notBefore) return latest.reading;
    if (!running || latest === null) return start();
    next ??= latest.reading.then(() => {
      next = null;
      return start();
    });
    return next;
  };
}

/** What `read` makes of each table; null where there are none. */
async function readTables<T>(paths: readonly Table[], read: (path: Table) => Promise<T>): Promise<T[] | null> {
  const results = await Promise.all(paths.map((path) => read(path).catch(() => null)));
  const readable = results.filter((result) => result !== null);
  // A machine without IPv6 has one table only; the first one has to be there.
  return results[0] === null ? null : readable;
}

interface PortReader {
  readonly all: (notBefore?: number) => Promise<Reading<ReadonlySet<number> | null>>;
  /** The only one found last time, if it is still there; else null. */
  readonly same: (notBefore?: number) => Promise<Reading<ReadonlySet<number> | null>>;
}

/** `sharedFor` in ms (`bounds.kernelReading`); `host`: where the proxy itself listens. */
export function kernelTables(
  sharedFor: number,
  now: () => number,
  host: string,
  platform: string = process.platform,
): KernelTables {
  if (platform !== 'linux') {
    return {
      connections: async () => ({ viewOf: () => 'unknown', readAt: now() }),
      listeners: async () => ({ inodes: NOBODY, readAt: 0 }),
    };
  }
  const connections = shared(() => readTables(tablesOf(host), whole), sharedFor, now);
  const ports = new Map<number, PortReader>();
  const readerOf = (port: number): PortReader => {
    let found = NOBODY;
    const all = async () => {
      const inodes = await listenersOn(port);
      found = inodes ?? NOBODY;
      return inodes;
    };
    const same = async () => {
      const before = found;
      const [only] = before;
      return only !== undefined && before.size === 1 && (await listens(only, port)) ? before : null;
    };
    return { all: shared(all, sharedFor, now), same: shared(same, sharedFor, now) };
  };
  return {
    async connections(notBefore) {
      const { value: tables, at } = await connections(notBefore);
      return { viewOf: (tuple) => (tables === null ? 'unknown' : (viewIn(tuple, ...tables) ?? 'absent')), readAt: at };
    },
    async listeners(port, notBefore, some = false) {
      const reader = ports.get(port) ?? readerOf(port);
      ports.set(port, reader);
      const same = some ? await reader.same(notBefore) : null;
      if (same !== null && same.value !== null) return { inodes: same.value, readAt: same.at };
      const { value, at } = await reader.all(notBefore);
      return { inodes: value ?? NOBODY, readAt: at };
    },
  };
}
