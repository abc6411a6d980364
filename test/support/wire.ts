/**
 * The least of HTTP/1.1 that both ends of a socket test need: heads as the bytes they were, fields as ordered pairs,
 * and a body reader for the four ways a body can end (RFC 9112 section 6.3). Lenient on purpose: the tests judge
 * what the proxy sent, this file only takes it apart.
 */

/** Name and value as they stood on the wire, bytes as Latin-1. */
export type Field = readonly [name: string, value: string];

export type Fields = readonly Field[] | Readonly<Record<string, string>>;

export interface Head {
  /** The request line or status line. */
  readonly start: string;
  readonly fields: readonly Field[];
  /** The head with its final blank line, byte for byte. */
  readonly raw: Buffer;
}

export type Framing =
  | { readonly kind: 'none' }
  | { readonly kind: 'length'; readonly length: number }
  | { readonly kind: 'chunked' }
  | { readonly kind: 'close' };

const BLANK_LINE = '\r\n\r\n';

/** The first head in `bytes` and what follows it, or nothing while the head is incomplete. */
export function takeHead(bytes: Buffer): { head: Head; rest: Buffer } | undefined {
  const end = bytes.indexOf(BLANK_LINE);
  if (end === -1) return undefined;
  const raw = bytes.subarray(0, end + BLANK_LINE.length);
  const [start = '', ...lines] = raw.subarray(0, end).toString('latin1').split('\r\n');
  const fields = lines.map((line): Field => {
    const colon = line.indexOf(':');
    return colon === -1 ? [line, ''] : [line.slice(0, colon), line.slice(colon + 1).replace(/^[ \t]+|[ \t]+$/g, '')];
  });
  return { head: { start, fields, raw }, rest: bytes.subarray(end + BLANK_LINE.length) };
}

/** Every value of a field, in order; names are compared without case. */
export function valuesOf(fields: readonly Field[], name: string): string[] {
  return fields.filter(([candidate]) => candidate.toLowerCase() === name.toLowerCase()).map(([, value]) => value);
}

export function pairs(fields: Fields): readonly Field[] {
  return Array.isArray(fields) ? (fields as readonly Field[]) : Object.entries(fields);
}

/** The lines of a head, ready to send. */
export function writeHead(start: string, fields: readonly Field[]): Buffer {
  const lines = fields.map(([name, value]) => `${name}: ${value}\r\n`).join('');
  return Buffer.from(`${start}\r\n${lines}\r\n`, 'latin1');
}

export function asBuffer(bytes: Uint8Array | string): Buffer {
  return typeof bytes === 'string' ? Buffer.from(bytes) : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** One chunk of the chunked coding. */
export function chunk(bytes: Uint8Array | string): Buffer {
  const body = asBuffer(bytes);
  return Buffer.concat([Buffer.from(`${body.length.toString(16)}\r\n`), body, Buffer.from('\r\n')]);
}

export const LAST_CHUNK = Buffer.from('0\r\n\r\n');

/** How the body after a request's head ends. */
export function requestFraming(fields: readonly Field[]): Framing {
  if (isChunked(fields)) return { kind: 'chunked' };
  return lengthOf(fields) ?? { kind: 'none' };
}

/** How the body after a response's head ends. */
export function responseFraming(method: string, status: number, fields: readonly Field[]): Framing {
  if (method === 'HEAD' || status < 200 || status === 204 || status === 304) return { kind: 'none' };
  if (isChunked(fields)) return { kind: 'chunked' };
  return lengthOf(fields) ?? { kind: 'close' };
}

function isChunked(fields: readonly Field[]): boolean {
  return valuesOf(fields, 'transfer-encoding').some((value) => /\bchunked\b/i.test(value));
}

function lengthOf(fields: readonly Field[]): Framing | undefined {
  const [length] = valuesOf(fields, 'content-length');
  return length === undefined ? undefined : { kind: 'length', length: Number(length) };
}

/** Takes a body out of a byte stream, piece by piece as the pieces arrive. */
export interface BodyReader {
  /** Whether the body is complete. A body that ends with the connection never is. */
  readonly done: boolean;
  /** Hands in bytes; returns the body's share of them and what lies after the body. */
  feed(bytes: Buffer): { pieces: Buffer[]; rest: Buffer };
}

export function bodyReader(framing: Framing): BodyReader {
  switch (framing.kind) {
    case 'none':
      return lengthReader(0);
    case 'length':
      return lengthReader(framing.length);
    case 'close':
      return {
        done: false,
        feed: (bytes) => ({ pieces: bytes.length > 0 ? [bytes] : [], rest: bytes.subarray(bytes.length) }),
      };
    case 'chunked':
      return chunkedReader();
  }
}

function lengthReader(length: number): BodyReader {
  let left = length;
  return {
    get done() {
      return left === 0;
    },
    feed(bytes) {
      const piece = bytes.subarray(0, left);
      left -= piece.length;
      return { pieces: piece.length > 0 ? [piece] : [], rest: bytes.subarray(piece.length) };
    },
  };
}

function chunkedReader(): BodyReader {
  let line = '';
  let left = 0;
  let expecting: 'size' | 'data' | 'after-data' | 'trailer' | 'nothing' = 'size';

  const endLine = (complete: string): void => {
    line = '';
    if (expecting === 'size') {
      left = Number.parseInt(complete, 16);
      if (Number.isNaN(left)) throw new Error(`not a chunk size: ${JSON.stringify(complete)}`);
      expecting = left === 0 ? 'trailer' : 'data';
    } else if (expecting === 'after-data') {
      expecting = 'size';
    } else if (complete === '') {
      expecting = 'nothing';
    }
  };

  return {
    get done() {
      return expecting === 'nothing';
    },
    feed(bytes) {
      const pieces: Buffer[] = [];
      let rest = bytes;
      while (rest.length > 0 && expecting !== 'nothing') {
        if (expecting === 'data') {
          const piece = rest.subarray(0, left);
          pieces.push(piece);
          left -= piece.length;
          rest = rest.subarray(piece.length);
          if (left === 0) expecting = 'after-data';
          continue;
        }
        const end = rest.indexOf('\n');
        const through = end === -1 ? rest.length : end + 1;
        line += rest.subarray(0, through).toString('latin1');
        rest = rest.subarray(through);
        if (end !== -1) endLine(line.replace(/\r?\n$/, ''));
      }
      return { pieces, rest };
    },
  };
}
