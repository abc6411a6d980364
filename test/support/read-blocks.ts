/** Runs the scanner over chunks and writes down everything it says, as values that outlive the call. */

import { type Block, SseScanner } from '../../src/core/sse-scanner.ts';

export interface SeenBlock extends Block {
  /** The joined data lines, one character per byte. */
  data: string;
  /** Offset in the stream of the block's first byte. */
  start: number;
  /** Offset just after the terminator of the blank line, a LF that came in a later chunk included. */
  end: number;
}

export interface Reading {
  blocks: SeenBlock[];
  contentPending: boolean;
  blockOpen: boolean;
  terminatorPending: boolean;
}

export function readBlocks(chunks: Iterable<Uint8Array>, seed: number): Reading {
  const blocks: SeenBlock[] = [];
  let data = '';
  let offset = 0;
  let start = 0;
  const scanner = new SseScanner(
    {
      data(bytes, from, to) {
        data += Buffer.from(bytes.subarray(from, to)).toString('latin1');
      },
      dataBreak() {
        data += '\n';
      },
      block(block, end) {
        blocks.push({ ...block, data, start, end: offset + end });
        data = '';
        start = offset + end;
      },
    },
    seed,
  );
  for (const chunk of chunks) {
    const last = blocks.at(-1);
    if (last !== undefined && scanner.terminatorPending && chunk[0] === 10) start = last.end += 1;
    scanner.push(chunk);
    offset += chunk.length;
  }
  const { contentPending, blockOpen, terminatorPending } = scanner;
  return { blocks, contentPending, blockOpen, terminatorPending };
}

/** The bytes in pieces, cut before each of the given offsets; what lies outside is ignored. */
export function cutAt(bytes: Uint8Array, offsets: Iterable<number>): Uint8Array[] {
  const inside = [...new Set(offsets)].filter((at) => at > 0 && at < bytes.length).sort((a, b) => a - b);
  const edges = [0, ...inside, bytes.length];
  return inside.length === 0 ? [bytes] : edges.slice(1).map((end, index) => bytes.subarray(edges[index], end));
}

/** The bytes one by one. */
export function byteByByte(bytes: Uint8Array): Uint8Array[] {
  return Array.from(bytes, (_, at) => bytes.subarray(at, at + 1));
}

/**
 * The first fault in how blocks and their terminators tile the input, or `undefined`: each block must begin where the
 * one before ended and consist of `length` bytes and one line end.
 */
export function tilingFault(bytes: Uint8Array, reading: Reading): string | undefined {
  const text = Buffer.from(bytes).toString('latin1');
  let at = 0;
  for (const [index, block] of reading.blocks.entries()) {
    if (block.start !== at) return `block ${index} starts at ${block.start}, not ${at}`;
    const terminator = text.slice(at + block.length, block.end);
    if (!['\n', '\r', '\r\n'].includes(terminator)) return `block ${index} ends in ${JSON.stringify(terminator)}`;
    if (terminator === '\r' && text[block.end] === '\n') return `block ${index} leaves its LF behind`;
    at = block.end;
  }
  if (reading.blockOpen !== at < bytes.length) return `${bytes.length - at} bytes left, blockOpen ${reading.blockOpen}`;
  return undefined;
}
