import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { eventKeyOfField } from '../../src/core/event-key.ts';
import { type Block, SseScanner } from '../../src/core/sse-scanner.ts';
import { byteByByte, cutAt, type Reading, readBlocks, type SeenBlock, tilingFault } from '../support/read-blocks.ts';

const SEED = 0x1234_5678_9abc;

/** What a row expects of a block. Bytes are written as Latin-1 characters. */
interface Expected {
  id?: string; // the last valid `id` line; '' for an empty one
  data?: string;
  named?: true; // an event name other than `message`
  retry?: true;
  isEvent?: false;
  length?: number;
}

interface Row {
  name: string;
  bytes: string;
  blocks: Expected[];
  contentPending?: true;
  blockOpen?: true;
}

const UNFINISHED = { contentPending: true, blockOpen: true } as const;
const R1 = '{"jsonrpc":"2.0","id":1,"result":{}}';

const rows: Row[] = [
  // Line ends
  { name: 'a LF ends a line', bytes: 'data: a\n\n', blocks: [{ data: 'a', length: 8 }] },
  { name: 'a CRLF ends a line', bytes: 'data: a\r\n\r\n', blocks: [{ data: 'a', length: 9 }] },
  { name: 'a bare CR ends a line', bytes: 'data: a\r\r', blocks: [{ data: 'a', length: 8 }] },
  { name: 'a CRLF is one line end', bytes: 'data: a\r\ndata: b\r\n\r\n', blocks: [{ data: 'a\nb' }] },
  { name: 'a LF and a CR are two line ends', bytes: 'data: a\n\rdata: b\n\n', blocks: [{ data: 'a' }, { data: 'b' }] },
  {
    name: 'a CRLF after a CR is the blank line',
    bytes: 'data: a\r\r\ndata: b\n\n',
    blocks: [
      { data: 'a', length: 8 },
      { data: 'b', length: 8 },
    ],
  },
  {
    name: 'all three line ends mix in one block',
    bytes: 'data: a\rdata: b\ndata: c\r\n\ndata: d\n\r\ndata: e\r\n\r',
    blocks: [{ data: 'a\nb\nc' }, { data: 'd' }, { data: 'e' }],
  },
  {
    name: 'every further blank line ends an empty block',
    bytes: '\n\n\r\r\n',
    blocks: Array.from({ length: 4 }, () => ({ isEvent: false, length: 0 }) as const),
  },
  {
    name: 'no other character ends a line (B50)',
    bytes: 'data: a\x0bb\x0cc\x85d\xc2\x85e\xe2\x80\xa8f\xff\n\n',
    blocks: [{ data: 'a\x0bb\x0cc\x85d\xc2\x85e\xe2\x80\xa8f\xff' }],
  },
  { name: 'an empty stream has no block', bytes: '', blocks: [] },

  // The end of the body
  { name: 'a partial name may become content', bytes: 'da', blocks: [], ...UNFINISHED },
  { name: 'an unterminated data line is never dispatched', bytes: 'data: a', blocks: [], ...UNFINISHED },
  { name: 'a block without its blank line is never dispatched', bytes: 'data: a\n', blocks: [], ...UNFINISHED },
  { name: 'an unknown field counts as pending content', bytes: ': c\nfoo', blocks: [], ...UNFINISHED },
  { name: 'a comment opens a block but is no content', bytes: ': data: a', blocks: [], blockOpen: true },
  { name: 'a finished comment is no content either', bytes: ': a\n', blocks: [], blockOpen: true },
  { name: 'a comment after a field leaves content pending', bytes: 'id: a\n: c', blocks: [], ...UNFINISHED },
  { name: 'a comment and a blank line are a block', bytes: ': ping\n\n', blocks: [{ isEvent: false, length: 7 }] },

  // Byte order mark
  { name: 'a BOM at the start is skipped (B48)', bytes: `\xef\xbb\xbfdata: ${R1}\n\n`, blocks: [{ data: R1 }] },
  { name: 'a BOM counts in the length', bytes: '\xef\xbb\xbf\n', blocks: [{ isEvent: false, length: 3 }] },
  { name: 'a BOM alone opens a block but is no content', bytes: '\xef\xbb\xbf', blocks: [], blockOpen: true },
  { name: 'a BOM before a comment is no content', bytes: '\xef\xbb\xbf: c', blocks: [], blockOpen: true },
  {
    name: 'only one BOM is skipped',
    bytes: '\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n',
    blocks: [{ isEvent: false }],
  },
  {
    name: 'a BOM in mid-stream is part of a name (B48)',
    bytes: 'data: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\xef\xbb\xbfdata: d\n\n',
    blocks: [{ data: 'a' }, { isEvent: false }, { data: 'c' }],
  },
  { name: 'half a BOM is part of a name', bytes: '\xef\xbbdata: a\n\n', blocks: [{ isEvent: false }] },
  { name: 'half a BOM and more is pending content', bytes: '\xef\xbbd', blocks: [], ...UNFINISHED },
  { name: 'half a BOM makes a line not blank', bytes: '\xef\n\n', blocks: [{ isEvent: false, length: 2 }] },
  {
    name: 'a BOM after a blank line is none',
    bytes: '\n\xef\xbb\xbfdata: a\n\n',
    blocks: [{ isEvent: false }, { isEvent: false }],
  },

  // Data
  { name: 'data needs no space', bytes: 'data:{"a":1}\n\n', blocks: [{ data: '{"a":1}' }] },
  { name: 'only one space is removed (B56)', bytes: 'data:  x\n\n', blocks: [{ data: ' x' }] },
  { name: 'a tab is not removed', bytes: 'data:\tx\n\n', blocks: [{ data: '\tx' }] },
  { name: 'trailing blanks stay', bytes: 'data: x \t\n\n', blocks: [{ data: 'x \t' }] },
  { name: 'a colon in the value stays', bytes: 'data::a: b\n\n', blocks: [{ data: ':a: b' }] },
  { name: 'empty data is no event', bytes: 'data:\n\n', blocks: [{ isEvent: false }] },
  { name: 'a space alone is empty data', bytes: 'data: \n\n', blocks: [{ isEvent: false }] },
  { name: 'a bare name is empty data', bytes: 'data\n\n', blocks: [{ isEvent: false }] },
  { name: 'two bare data lines make a LF', bytes: 'data\ndata\n\n', blocks: [{ data: '\n' }] },
  { name: 'empty lines of data are kept', bytes: 'data:\ndata: x\ndata:\n\n', blocks: [{ data: '\nx\n' }] },
  {
    name: 'data lines need not be neighbours',
    bytes: 'data: a\n: c\nid: 1\ndata: b\n\n',
    blocks: [{ id: '1', data: 'a\nb' }],
  },
  {
    name: 'data does not reach into the next block',
    bytes: 'data: a\n\ndata\n\n',
    blocks: [{ data: 'a' }, { isEvent: false }],
  },
  {
    name: 'bytes that are not UTF-8 pass',
    bytes: 'data: \xff\xc3\n\ndata: \xe2\x80\n\n',
    blocks: [{ data: '\xff\xc3' }, { data: '\xe2\x80' }],
  },
  {
    name: 'JSON spread over several data lines is joined, a bare name among them (B49)',
    bytes: 'data: {\ndata:   "jsonrpc": "2.0",\ndata\ndata:   "id": 1,\ndata:   "result": {}\ndata: }\n\n',
    blocks: [{ data: '{\n  "jsonrpc": "2.0",\n\n  "id": 1,\n  "result": {}\n}' }],
  },

  // Names
  { name: 'names are case-sensitive (B56)', bytes: 'Data: a\nID: b\nRetry: 1\n\n', blocks: [{ isEvent: false }] },
  {
    name: 'a space before the colon is part of the name (B56)',
    bytes: 'id : q\ndata : a\n\n',
    blocks: [{ isEvent: false }],
  },
  { name: 'a space before the name is part of it', bytes: ' data: a\n\n', blocks: [{ isEvent: false }] },
  {
    name: 'a longer name is another name',
    bytes: 'dataa: a\nids: b\nretryx: 1\nidx\n\n',
    blocks: [{ isEvent: false }],
  },
  { name: 'a shorter name is another name', bytes: 'dat: a\ni: b\nretr: 1\ndat\n\n', blocks: [{ isEvent: false }] },
  { name: 'a name may hold a NUL and match nothing', bytes: 'da\0ta: a\n\0\n\n', blocks: [{ isEvent: false }] },
  { name: 'unknown fields do not disturb', bytes: 'foo: 1\ndata: a\nbar\nx:y:z\n\n', blocks: [{ data: 'a' }] },
  { name: 'a line that is only a colon is a comment', bytes: 'data: a\n:\n\n', blocks: [{ data: 'a' }] },

  // IDs
  { name: 'an ID without data is an event', bytes: 'id: a\n\n', blocks: [{ id: 'a' }] },
  { name: 'an ID needs no space', bytes: 'id:a\n\n', blocks: [{ id: 'a' }] },
  { name: 'an ID may come after the data', bytes: 'data: x\nid: a\n\n', blocks: [{ id: 'a', data: 'x' }] },
  { name: 'an ID applies with comments only', bytes: ': c\nid: a\n: d\n\n', blocks: [{ id: 'a' }] },
  { name: 'the last ID of a block wins', bytes: 'id: a\nid: b\ndata: x\n\n', blocks: [{ id: 'b', data: 'x' }] },
  {
    name: 'an empty ID is valid and has no key',
    bytes: 'id:\n\nid\n\nid: \n\n',
    blocks: [{ id: '' }, { id: '' }, { id: '' }],
  },
  { name: 'a later empty ID empties an earlier one', bytes: 'id: a\nid\n\n', blocks: [{ id: '' }] },
  { name: 'blanks alone are an ID without a key', bytes: 'id: \t \n\n', blocks: [{ id: ' \t ' }] },
  { name: 'an ID with a NUL is ignored (B55)', bytes: 'id: b\x002\n\n', blocks: [{ isEvent: false }] },
  { name: 'a NUL at either edge counts', bytes: 'id:\0a\nid: ab\0\nid: abcd\0efg\n\n', blocks: [{ isEvent: false }] },
  { name: 'an ignored ID leaves an earlier one', bytes: 'id: a\nid: b\0\n\n', blocks: [{ id: 'a' }] },
  { name: 'a valid ID follows an ignored one', bytes: 'id: a\0\nid: b\n\n', blocks: [{ id: 'b' }] },
  { name: 'an ID belongs to its own block only', bytes: 'id: a\n\ndata: x\n\n', blocks: [{ id: 'a' }, { data: 'x' }] },
  { name: 'a colon in an ID stays', bytes: 'id: a:b/0\n\n', blocks: [{ id: 'a:b/0' }] },
  { name: 'an ID of any bytes has a key', bytes: 'id: \xff\xc3\xa9\xe2\n\n', blocks: [{ id: '\xff\xc3\xa9\xe2' }] },
  {
    name: 'outer blanks of an ID do not change its key, inner ones do',
    bytes: 'id:a b\n\nid: \ta b \t\n\nid: a  b\n\n',
    blocks: [{ id: 'a b' }, { id: 'a b' }, { id: 'a  b' }],
  },
  {
    name: 'a NUL line is ignored and a bare name empties the ID (B55)',
    bytes: 'id: a1\ndata: progress\n\nid: b\x002\ndata: x\n\nid\ndata: y\n\n',
    blocks: [{ id: 'a1', data: 'progress' }, { data: 'x' }, { id: '', data: 'y' }],
  },

  // Event names
  { name: 'a block without a name is a message', bytes: 'data: x\n\n', blocks: [{ data: 'x' }] },
  {
    name: 'an empty name is a message',
    bytes: 'event\ndata: x\n\nevent:\ndata: y\n\n',
    blocks: [{ data: 'x' }, { data: 'y' }],
  },
  {
    name: 'the name message is a message',
    bytes: 'event: message\ndata: x\n\nevent:message\ndata: y\n\n',
    blocks: [{ data: 'x' }, { data: 'y' }],
  },
  {
    name: 'a name that only resembles message is another',
    bytes: ['Message', 'messag', 'messages', ' message', 'message ', 'note', 'message\0', '\xff']
      .map((name) => `event: ${name}\ndata: x\n\n`)
      .join(''),
    blocks: Array.from({ length: 8 }, () => ({ data: 'x', named: true }) as const),
  },
  {
    name: 'the last name of a block wins',
    bytes: 'event: note\nevent: message\ndata: x\n\nevent: message\nevent: note\ndata: x\n\n',
    blocks: [{ data: 'x' }, { data: 'x', named: true }],
  },
  { name: 'a later empty name makes it a message', bytes: 'event: note\nevent\ndata: x\n\n', blocks: [{ data: 'x' }] },
  { name: 'a bare event name is no event', bytes: 'event: note\n\n', blocks: [{ named: true, isEvent: false }] },
  {
    name: 'a name belongs to its own block only',
    bytes: 'event: note\n\ndata: x\n\n',
    blocks: [{ named: true, isEvent: false }, { data: 'x' }],
  },
  {
    name: 'a name of any length is compared',
    bytes: `event: ${'message'.repeat(300)}\nid: a\n\n`,
    blocks: [{ id: 'a', named: true }],
  },

  // Retry
  { name: 'a retry alone is an event', bytes: 'retry: 500\n\n', blocks: [{ retry: true }] },
  { name: 'a retry of zero is valid', bytes: 'retry:0\n\n', blocks: [{ retry: true }] },
  { name: 'a retry of any length is valid', bytes: `retry: ${'9'.repeat(400)}\n\n`, blocks: [{ retry: true }] },
  {
    name: 'a retry with anything but digits is ignored (B56)',
    bytes: ['5x', 'x5', '', ' 5', '5 ', '-1', '+1', '1.5', '1e3', '0x1', '5\0', '/', ':', '\xd9\xa3']
      .map((value) => `retry: ${value}\n\n`)
      .join(''),
    blocks: Array.from({ length: 14 }, () => ({ isEvent: false }) as const),
  },
  { name: 'a bare retry is ignored', bytes: 'retry\n\nretry:\n\n', blocks: [{ isEvent: false }, { isEvent: false }] },
  { name: 'an invalid retry leaves a valid one', bytes: 'retry: 5\nretry: x\n\n', blocks: [{ retry: true }] },
  {
    name: 'a retry belongs to its own block only',
    bytes: 'retry: 5\n\n\n',
    blocks: [{ retry: true }, { isEvent: false }],
  },

  // Public bug reports (cases.md)
  {
    name: 'fields come in any order: data, id, retry, then a result (B37)',
    bytes: `data:\nid: 0\nretry: 3000\n\ndata: ${R1}\n\n`,
    blocks: [
      { id: '0', retry: true, length: 24 },
      { data: R1, length: 43 },
    ],
  },
  {
    name: 'IDs of blocks with any name are seen (B43)',
    bytes: 'id: 6\ndata: {"progress":1}\n\nevent: status\nid: 7\ndata: {}\n\n',
    blocks: [
      { id: '6', data: '{"progress":1}' },
      { id: '7', data: '{}', named: true },
    ],
  },
  {
    name: 'priming, progress and result survive every cut (B45)',
    bytes: `id: e0\nretry: 500\ndata: \n\nevent: message\nid: e1\ndata: {"progress":1}\n\nevent: message\nid: e2\ndata: ${R1}\n\n`,
    blocks: [
      { id: 'e0', retry: true },
      { id: 'e1', data: '{"progress":1}' },
      { id: 'e2', data: R1 },
    ],
  },
  {
    name: 'a CRLF in two chunks is one line end (B46)',
    bytes: 'data: {"jsonrpc":"2.0",\r\ndata: "id":1,"result":{}}\r\n\r\n',
    blocks: [{ data: '{"jsonrpc":"2.0",\n"id":1,"result":{}}' }],
  },
  {
    name: 'characters of three and four bytes survive every cut (B50)',
    bytes: `data: {"a":"\xe4\xb8\x96\xf0\x9f\x8c\x8d"}\n\nid: 1\ndata: \xff\xc2\x85\n\n`,
    blocks: [{ data: '{"a":"\xe4\xb8\x96\xf0\x9f\x8c\x8d"}' }, { id: '1', data: '\xff\xc2\x85' }],
  },
  // Whole lines without their blank line
  ...['event: message', 'event: note', 'id: 1', 'data: a', 'retry: 1'].map((line) => ({
    name: `${line} alone is content that waits for its end`,
    bytes: `${line}\n`,
    blocks: [],
    ...UNFINISHED,
  })),
];

function assertReading(reading: Reading, bytes: Uint8Array, row: Row, how: string): void {
  assert.equal(tilingFault(bytes, reading), undefined, how);
  assert.equal(reading.blocks.length, row.blocks.length, `${how}: number of blocks`);
  for (const [index, expected] of row.blocks.entries()) {
    const { start: _start, end: _end, ...seen } = reading.blocks[index] as SeenBlock;
    const wanted: Omit<SeenBlock, 'start' | 'end'> = {
      key: expected.id === undefined ? null : eventKeyOfField(expected.id, SEED),
      hasId: expected.id !== undefined,
      isMessage: expected.named !== true,
      hasData: (expected.data ?? '') !== '',
      retry: expected.retry === true,
      isEvent: expected.isEvent !== false,
      data: expected.data ?? '',
      length: expected.length ?? seen.length,
    };
    assert.deepEqual(seen, wanted, `${how}: block ${index}`);
  }
}

for (const row of rows) {
  test(row.name, () => {
    const bytes = Buffer.from(row.bytes, 'latin1');
    const ways: [string, Uint8Array[]][] = [
      ['whole', [bytes]],
      ['byte by byte', byteByByte(bytes)],
      ['as a plain Uint8Array', [new Uint8Array(bytes)]],
      ['in a larger buffer', [Buffer.concat([Buffer.from('\r\n'), bytes, Buffer.from('\n\n')]).subarray(2, -2)]],
      ['with empty chunks between', byteByByte(bytes).flatMap((chunk) => [Buffer.alloc(0), chunk, Buffer.alloc(0)])],
    ];
    for (let cut = 1; cut < bytes.length; cut++) ways.push([`cut at ${cut}`, cutAt(bytes, [cut])]);
    for (const [how, chunks] of ways) {
      const reading = readBlocks(chunks, SEED);
      assertReading(reading, bytes, row, how);
      assert.equal(reading.contentPending, row.contentPending === true, `${how}: contentPending`);
      assert.equal(reading.blockOpen, row.blockOpen === true, `${how}: blockOpen`);
      assert.equal(reading.terminatorPending, row.blocks.length > 0 && !row.blockOpen && row.bytes.endsWith('\r'), how);
    }
    // What follows changes nothing about what was dispatched, and is read as if it stood alone.
    const followed = Buffer.concat([bytes, Buffer.from('x')]);
    assertReading(readBlocks([followed], SEED), followed, row, 'with a byte behind');
    assertReading(readBlocks([bytes, Buffer.from('x')], SEED), followed, row, 'with a chunk behind');
    if (row.blockOpen) return;
    const next = Buffer.concat([bytes, Buffer.from('event: note\nid: next\ndata: after\n\n')]);
    const longer: Row = { ...row, blocks: [...row.blocks, { id: 'next', data: 'after', named: true, length: 33 }] };
    for (const chunks of [[next], byteByByte(next), cutAt(next, [bytes.length])]) {
      assertReading(readBlocks(chunks, SEED), next, longer, 'with a block behind');
    }
  });
}

test('the blank line CR at the end of a chunk dispatches at once, and its LF is swallowed', () => {
  const ends: number[] = [];
  const scanner = new SseScanner({ data() {}, dataBreak() {}, block: (_, end) => ends.push(end) }, SEED);
  scanner.push(Buffer.from('data: a\r\n\r'));
  assert.deepEqual(ends, [10]);
  assert.equal(scanner.terminatorPending, true);
  assert.equal(scanner.blockOpen, false);
  scanner.push(Buffer.alloc(0));
  assert.equal(scanner.terminatorPending, true);
  scanner.push(Buffer.from('\n'));
  assert.deepEqual(ends, [10]);
  assert.equal(scanner.terminatorPending, false);
  assert.equal(scanner.blockOpen, false);
  scanner.push(Buffer.from('\n'));
  assert.deepEqual(ends, [10, 1]);
});

test('a CR that ends a field at the end of a chunk leaves no terminator pending', () => {
  const scanner = new SseScanner({ data() {}, dataBreak() {}, block() {} }, SEED);
  scanner.push(Buffer.from('data: a\r'));
  assert.equal(scanner.terminatorPending, false);
  assert.equal(scanner.blockOpen, true);
});

test('the end of a block lies after both bytes of a CRLF in one chunk', () => {
  const ends: number[] = [];
  const scanner = new SseScanner({ data() {}, dataBreak() {}, block: (_, end) => ends.push(end) }, SEED);
  scanner.push(Buffer.from('data: a\r\n\r\ndata: b\n\ndata: c\r\rdata'));
  assert.deepEqual(ends, [11, 20, 29]);
});

test('data is handed on in place, in order, never empty, with its breaks between', () => {
  const first = Buffer.from('data: ab');
  const second = Buffer.from('c\ndata:\ndata');
  const third = Buffer.from(':d\n\n');
  const chunks: Uint8Array[] = [first, second, third];
  const seen: string[] = [];
  const scanner = new SseScanner(
    {
      data: (bytes, start, end) => seen.push(`chunk ${chunks.indexOf(bytes)} from ${start} to ${end}`),
      dataBreak: () => seen.push('break'),
      block: () => seen.push('block'),
    },
    SEED,
  );
  for (const chunk of chunks) scanner.push(chunk);
  assert.deepEqual(seen, [
    'chunk 0 from 6 to 8',
    'chunk 1 from 0 to 1',
    'break',
    'break',
    'chunk 2 from 1 to 2',
    'block',
  ]);
});

test('the block object is one and the same for all blocks', () => {
  const seen = new Set<Block>();
  const scanner = new SseScanner({ data() {}, dataBreak() {}, block: (block) => seen.add(block) }, SEED);
  scanner.push(Buffer.from('id: a\n\nid: b\n\n\n'));
  assert.equal(seen.size, 1);
});

test('an ID of 64 KiB has a key and a longer one has none, but is there', () => {
  const at = 'a'.repeat(65_536);
  for (const [id, key] of [
    [at, eventKeyOfField(at, SEED)],
    [` \t${at}${' '.repeat(70_000)}`, eventKeyOfField(at, SEED)],
    [`${at}a`, null],
    [`${at} a`, null],
    [`${at}${' '.repeat(70_000)}a`, null],
    ['a'.repeat(1 << 20), null],
  ] as const) {
    const bytes = Buffer.from(`id:${id}\n\nid: short\n\n`);
    for (const cuts of [[], [5], [65_538], [65_539], [65_540], Array.from({ length: 99 }, (_, n) => n * 10_007)]) {
      const { blocks } = readBlocks(cutAt(bytes, cuts), SEED);
      assert.deepEqual(
        blocks.map((block) => [block.hasId, block.key]),
        [
          [true, key],
          [true, eventKeyOfField('short', SEED)],
        ],
      );
    }
  }
});

test('a NUL after more than 64 KiB still makes the line no ID', () => {
  for (const id of [`${'a'.repeat(100_000)}\0`, `${'a'.repeat(100_000)}\0${'a'.repeat(100_000)}`]) {
    const bytes = Buffer.from(`id: ${id}\n\n`);
    for (const cuts of [[], [50_000], [100_004]]) {
      assert.equal(readBlocks(cutAt(bytes, cuts), SEED).blocks[0]?.hasId, false);
    }
  }
});

test('no byte is searched twice, whatever the mixture of line ends', () => {
  let searched = 0;
  class Counting extends Uint8Array {
    override indexOf(byte: number, from = 0): number {
      const found = super.indexOf(byte, from);
      searched += (found === -1 ? this.length : found + 1) - from;
      return found;
    }
  }
  const texts = {
    'LF only': 'data: a\n\n'.repeat(2000),
    'CR only': 'data: a\r\r'.repeat(2000),
    CRLF: 'data: a\r\n\r\n'.repeat(2000),
    'LF with one CR at the end': `${'x\n'.repeat(9000)}\r`,
    'CR with one LF at the end': `${'x\r'.repeat(9000)}\n`,
    'one long line': `data: ${'x'.repeat(18_000)}`,
  };
  for (const [name, text] of Object.entries(texts)) {
    searched = 0;
    new SseScanner({ data() {}, dataBreak() {}, block() {} }, SEED).push(Counting.from(Buffer.from(text)));
    assert.ok(searched <= 2 * text.length, `${name}: ${searched} bytes searched in ${text.length}`);
  }
});

test('the state between chunks does not grow with a line of 50 MB', () => {
  let received = 0;
  let blocks = 0;
  const scanner = new SseScanner(
    {
      data: (_, start, end) => {
        received += end - start;
      },
      dataBreak() {},
      block: (block) => {
        blocks++;
        assert.equal(block.length, 6 + 800 * 65_536 + 1);
      },
    },
    SEED,
  );
  const chunk = Buffer.alloc(65_536, 'x');
  scanner.push(Buffer.from('data: '));
  for (let n = 0; n < 800; n++) scanner.push(chunk);
  scanner.push(Buffer.from('\n\n'));
  assert.equal(received, 800 * 65_536);
  assert.equal(blocks, 1);
});

interface Recording {
  server: string;
  exchange: string;
  chunks: number[];
  blocks: { length: number; comments?: number; id?: string; event?: string; retry?: number; data?: string }[];
  rest: number;
}

const streams = new URL('../fixtures/streams/', import.meta.url);
const recordings = readdirSync(streams).filter((name) => name.endsWith('.sse'));

test('there are recordings of at least three kinds of server', () => {
  const kinds = new Set(recordings.map((name) => name.split('-')[0]));
  assert.ok(kinds.size >= 3, [...kinds].join());
});

for (const name of recordings) {
  test(`the recorded stream ${name} is read as its description says`, () => {
    const bytes = readFileSync(new URL(name, streams));
    const recording: Recording = JSON.parse(readFileSync(new URL(name.replace('.sse', '.json'), streams), 'utf8'));
    const edges: number[] = [];
    for (const size of recording.chunks) edges.push((edges.at(-1) ?? 0) + size);
    const row: Row = {
      name,
      bytes: '',
      blocks: recording.blocks.map(({ length, id, event, retry, data }) => ({
        length,
        ...(id === undefined ? {} : { id }),
        ...(data === undefined ? {} : { data: Buffer.from(data).toString('latin1') }),
        ...(event === undefined || event === 'message' ? {} : { named: true as const }),
        ...(retry === undefined ? {} : { retry: true as const }),
        ...(id === undefined && retry === undefined && !data ? { isEvent: false as const } : {}),
      })),
    };
    for (const [how, chunks] of [
      ['whole', [bytes]],
      ['as it arrived', cutAt(bytes, edges)],
      ['byte by byte', byteByByte(bytes)],
      [
        'in sevens',
        cutAt(
          bytes,
          Array.from(bytes, (_, at) => at).filter((at) => at % 7 === 0),
        ),
      ],
    ] as const) {
      const reading = readBlocks(chunks, SEED);
      assertReading(reading, bytes, row, how);
      assert.equal(bytes.length - (reading.blocks.at(-1)?.end ?? 0), recording.rest, how);
    }
  });
}
