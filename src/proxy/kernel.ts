/**
 * What the Linux kernel knows about TCP connections, from `/proc/net/tcp` and `tcp6`: bytes a peer has not
 * acknowledged yet (for delivery), and the inodes of sockets that listen on a port (for upstream restarts).
 *
 * A reading costs one pass over the table, so it is made only when a decision needs it, off the event loop, and one
 * reading serves everybody who asks within `bounds.kernelReading`. Anywhere else than on Linux, and whenever the table
 * cannot be read, the answer is "unknown".
 */
import { open, readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import type { KernelView } from '../core/delivery.ts';

/** Four ends of a connection, in the notation of the table; see `endpoint`. */
export type Tuple = string;

export interface KernelTables {
  /** Views of all connections, read no earlier than `notBefore` (in ms). */
  connections(notBefore?: number): Promise<Connections>;
  /** Who listens on `port` at a loopback or wildcard address, read no earlier than `notBefore` (in ms). */
  listeners(port: number, notBefore?: number): Promise<Listening>;
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
  return [addressHex(address), port.toString(16).toUpperCase().padStart(4, '0')].join(':');
}

export function tupleOf(localAddress: string, localPort: number, remoteAddress: string, remotePort: number): Tuple {
  // One string: a template would keep each of its parts, for every connection.
  return [endpoint(localAddress, localPort), endpoint(remoteAddress, remotePort)].join(' ');
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

/** Inodes listening on a port at a wildcard or loopback address. */
export function parseListeners(port: number, ...tables: readonly string[]): Set<number> {
  const wanted = port.toString(16).toUpperCase().padStart(4, '0');
  const inodes = new Set<number>();
  for (const table of tables) {
    for (const line of table.split('\n')) {
      const entry = parseLine(line);
      if (entry?.state !== LISTEN) continue;
      const [address, at] = entry.local.split(':');
      if (at === wanted && address !== undefined && isLocal(address)) inodes.add(entry.inode);
    }
  }
  return inodes;
}

function isLocal(hex: string): boolean {
  return /^0+$/.test(hex) || (hex.length === 8 && hex.endsWith('7F')) || hex === '00000000000000000000000001000000';
}

const TABLES = ['/proc/net/tcp', '/proc/net/tcp6'] as const;

async function whole(path: string): Promise<string> {
  return readFile(path, 'latin1');
}

/** The kernel lists listening sockets first: read no further than those. */
async function listeningPart(path: string): Promise<string> {
  const file = await open(path, 'r');
  try {
    const piece = Buffer.allocUnsafe(16_384);
    let text = '';
    for (;;) {
      const { bytesRead } = await file.read(piece, 0, piece.length, null);
      if (bytesRead === 0) return text;
      text += piece.toString('latin1', 0, bytesRead);
      const lastLine = text.slice(text.lastIndexOf('\n', text.length - 2) + 1);
      const entry = parseLine(lastLine);
      if (entry !== null && entry.state !== LISTEN) return text;
    }
  } finally {
    await file.close();
  }
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

async function readTables(read: (path: string) => Promise<string>): Promise<string[] | null> {
  const texts = await Promise.all(TABLES.map((path) => read(path).catch(() => null)));
  const readable = texts.filter((text) => text !== null);
  // A machine without IPv6 has one table only; the other one has to be there.
  return texts[0] === null ? null : readable;
}

/** `sharedFor` in ms (`bounds.kernelReading`). */
export function kernelTables(sharedFor: number, now: () => number, platform: string = process.platform): KernelTables {
  if (platform !== 'linux') {
    return {
      connections: async () => ({ viewOf: () => 'unknown', readAt: now() }),
      listeners: async () => ({ inodes: NOBODY, readAt: 0 }),
    };
  }
  const connections = shared(() => readTables(whole), sharedFor, now);
  const listening = shared(() => readTables(listeningPart), sharedFor, now);
  return {
    async connections(notBefore) {
      const { value: tables, at } = await connections(notBefore);
      return { viewOf: (tuple) => (tables === null ? 'unknown' : (viewIn(tuple, ...tables) ?? 'absent')), readAt: at };
    },
    async listeners(port, notBefore) {
      const { value: tables, at } = await listening(notBefore);
      return { inodes: tables === null ? NOBODY : parseListeners(port, ...tables), readAt: at };
    },
  };
}
