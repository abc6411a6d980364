/**
 * Random streams, cut at random places, read by the scanner and by two others.
 *
 * `eventsource-parser` is an independent implementation of the standard. It gets the whole stream at once, as one
 * string of Latin-1 characters (one per byte), because it differs from the standard, and from the scanner, in these:
 *
 * - it looks for a byte order mark in its first chunk only, so one that is cut in two would be missed;
 * - it waits for what follows a CR at the end of its input; a LF is put behind such a CR, which alters no line;
 * - it says nothing of blocks without a data line, and reports `retry` as it meets it, not by block;
 * - it dispatches a block whose only data line is empty, as the standard does; for the contract that is no data.
 *
 * Blocks without data, their lengths and their `retry` are therefore checked against the standard's own steps,
 * followed to the letter on the whole text.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createParser } from 'eventsource-parser';
import fc from 'fast-check';
import { eventKeyOfField } from '../../src/core/event-key.ts';
import { cutAt, readBlocks, type SeenBlock, tilingFault } from '../support/read-blocks.ts';

const KEY_SEED = 0x1234_5678_9abc;
const RUNS = 5_000;

const pieces = ['a', 'b', '1', '0', ' ', '  ', '\t', ':', '\0', 'id', 'data', '{"a":1}', '\xc3\xa9', '\xef\xbb\xbf'];
const text = fc
  .array(fc.oneof(fc.constantFrom(...pieces, '\xe2\x80\xa8', '\x85', '\xff'), fc.constant('x'.repeat(40))), {
    maxLength: 5,
  })
  .map((parts) => parts.join(''));
const colon = fc.constantFrom(': ', ': ', ': ', ':', ':', ':  ', ' :');
const field = (name: string, value: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(colon, value).map(([between, after]) => name + between + after);
const line = fc.oneof(
  { weight: 6, arbitrary: fc.constant('') },
  { weight: 8, arbitrary: field('data', text) },
  { weight: 3, arbitrary: field('id', text) },
  { weight: 2, arbitrary: field('event', fc.oneof(fc.constantFrom('message', 'messages', 'note', ''), text)) },
  { weight: 2, arbitrary: field('retry', fc.oneof(fc.constantFrom('0', '500', '5x', '1'.repeat(30)), text)) },
  { weight: 2, arbitrary: fc.constantFrom('data', 'id', 'event', 'retry', 'dat', 'datas', 'Data: a', ' id: a') },
  { weight: 1, arbitrary: text.map((rest) => `:${rest}`) },
  { weight: 1, arbitrary: text },
);
const lineEnd = fc.constantFrom('\n', '\r\n', '\r');
const stream = fc
  .tuple(
    fc.oneof(
      { weight: 5, arbitrary: fc.constant('') },
      { weight: 1, arbitrary: fc.constantFrom('\xef\xbb\xbf', '\xef\xbb', '\xef') },
    ),
    fc.oneof(
      fc.array(fc.tuple(line, lineEnd), { maxLength: 40, size: 'max' }),
      fc
        .tuple(fc.array(line, { maxLength: 40, size: 'max' }), lineEnd)
        .map(([lines, end]) => lines.map((one) => [one, end] as const)),
    ),
    fc.oneof(fc.constant(''), line),
  )
  .map(([start, lines, rest]) => start + lines.map(([one, end]) => one + end).join('') + rest);
const cuts = fc.oneof(
  fc.array(fc.nat(700), { maxLength: 12, size: 'max' }),
  fc.constant(Array.from({ length: 2_000 }, (_, at) => at)),
);

/** One block by the standard's steps, with the contract's reading of what an event is. */
type Plain = Omit<SeenBlock, 'start' | 'end'>;

function readByTheBook(whole: string): Plain[] {
  const blocks: Plain[] = [];
  let at = whole.startsWith('\xef\xbb\xbf') ? 3 : 0;
  let start = 0;
  let data = '';
  let event = '';
  let id: string | undefined;
  let retry = false;
  for (const { 0: terminator, index } of whole.matchAll(/\r\n|\n|\r/g)) {
    const current = whole.slice(at, index);
    at = index + terminator.length;
    if (current === '') {
      const joined = data.endsWith('\n') ? data.slice(0, -1) : data;
      blocks.push({
        key: id === undefined ? null : eventKeyOfField(id, KEY_SEED),
        hasId: id !== undefined,
        isMessage: event === '' || event === 'message',
        hasData: joined !== '',
        retry,
        length: index - start,
        isEvent: joined !== '' || id !== undefined || retry,
        data: joined,
      });
      [data, event, id, retry, start] = ['', '', undefined, false, at];
      continue;
    }
    const separator = current.indexOf(':');
    if (separator === 0) continue;
    const name = separator === -1 ? current : current.slice(0, separator);
    const value = separator === -1 ? '' : current.slice(separator + 1).replace(/^ /, '');
    if (name === 'data') data += `${value}\n`;
    else if (name === 'event') event = value;
    else if (name === 'id' && !value.includes('\0')) id = value;
    else if (name === 'retry' && /^[0-9]+$/.test(value)) retry = true;
  }
  return blocks;
}

interface Dispatched {
  id: string | undefined;
  event: string | undefined;
  data: string;
}

function readByParser(whole: string): { events: Dispatched[]; retries: number } {
  const events: Dispatched[] = [];
  let retries = 0;
  const parser = createParser({
    onEvent: ({ id, event, data }) => events.push({ id, event, data }),
    onRetry: () => retries++,
  });
  parser.feed(whole.endsWith('\r') ? `${whole}\n` : whole);
  return { events, retries };
}

const plain = ({ start: _start, end: _end, ...rest }: SeenBlock): Plain => rest;

/** FUZZ_SEED repeats a run; without it every run is a new one. */
const seed = process.env['FUZZ_SEED'] === undefined ? Date.now() % 0x7fff_ffff : Number(process.env['FUZZ_SEED']);

test('what eventsource-parser dispatches is what the scanner reports', (t) => {
  t.diagnostic(`FUZZ_SEED=${seed}`);
  let dispatched = 0;
  fc.assert(
    fc.property(stream, cuts, (whole, offsets) => {
      const { blocks } = readBlocks(cutAt(Buffer.from(whole, 'latin1'), offsets), KEY_SEED);
      const seen = blocks.filter((block) => block.hasData);
      const { events } = readByParser(whole);
      const expected = events.filter((event) => event.data !== '');
      dispatched += expected.length;
      assert.deepEqual(
        seen.map(({ key, hasId, isMessage, data }) => ({ key, hasId, isMessage, data })),
        expected.map(({ id, event, data }) => ({
          key: id === undefined ? null : eventKeyOfField(id, KEY_SEED),
          hasId: id !== undefined,
          isMessage: event === undefined || event === 'message',
          data,
        })),
      );
    }),
    { seed, numRuns: RUNS },
  );
  t.diagnostic(`${dispatched} events in ${RUNS} streams`);
  assert.ok(dispatched > RUNS, `only ${dispatched} events: the streams are too poor to prove anything`);
});

test('every block is what the steps of the standard make of it', (t) => {
  t.diagnostic(`FUZZ_SEED=${seed}`);
  let [ids, retries, empty] = [0, 0, 0];
  fc.assert(
    fc.property(stream, cuts, (whole, offsets) => {
      const { blocks } = readBlocks(cutAt(Buffer.from(whole, 'latin1'), offsets), KEY_SEED);
      assert.deepEqual(blocks.map(plain), readByTheBook(whole));
      ids += blocks.filter((block) => block.key !== null).length;
      retries += blocks.filter((block) => block.retry).length;
      empty += blocks.filter((block) => !block.isEvent).length;
    }),
    { seed, numRuns: RUNS },
  );
  for (const count of [ids, retries, empty]) assert.ok(count > RUNS / 10, `${ids}, ${retries}, ${empty}`);
});

test('blocks and their terminators tile the input, and cuts change nothing', (t) => {
  t.diagnostic(`FUZZ_SEED=${seed}`);
  fc.assert(
    fc.property(stream, cuts, cuts, (whole, some, others) => {
      const bytes = Buffer.from(whole, 'latin1');
      const reading = readBlocks(cutAt(bytes, some), KEY_SEED);
      assert.equal(tilingFault(bytes, reading), undefined);
      assert.deepEqual(readBlocks(cutAt(bytes, others), KEY_SEED), reading);
      assert.deepEqual(readBlocks(cutAt(bytes, bytes.keys()), KEY_SEED), reading);
    }),
    { seed, numRuns: RUNS },
  );
});

test('what is pending at any moment follows from the bytes after the last blank line', (t) => {
  t.diagnostic(`FUZZ_SEED=${seed}`);
  fc.assert(
    fc.property(stream, cuts, (whole, offsets) => {
      const bytes = Buffer.from(whole, 'latin1');
      const reading = readBlocks(cutAt(bytes, offsets), KEY_SEED);
      const end = reading.blocks.at(-1)?.end ?? 0;
      const left = whole.slice(end).replace(end === 0 ? /^\xef(\xbb(\xbf|$)|$)/ : /^$/, '');
      const fields = left.split(/\r\n|\n|\r/).filter((one) => one !== '' && !one.startsWith(':'));
      assert.equal(reading.contentPending, fields.length > 0);
      assert.equal(reading.blockOpen, end < whole.length);
      assert.equal(reading.terminatorPending, end === whole.length && whole.endsWith('\r'));
    }),
    { seed, numRuns: RUNS },
  );
});

test('any bytes at all are read without an error', (t) => {
  t.diagnostic(`FUZZ_SEED=${seed}`);
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300, size: 'max' }), cuts, (bytes, offsets) => {
      const whole = Buffer.from(bytes).toString('latin1');
      assert.deepEqual(readBlocks(cutAt(bytes, offsets), KEY_SEED).blocks.map(plain), readByTheBook(whole));
    }),
    { seed, numRuns: RUNS },
  );
});
