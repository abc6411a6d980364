import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  eventKeyOfBytes,
  eventKeyOfField,
  eventKeyOfFieldAsUtf8,
  KeyHasher,
  MAX_ID_BYTES,
} from '../../src/core/event-key.ts';

const SEED = 0x1234_5678_9abc;

function keyOf(id: string | Uint8Array, seed = SEED): number | null {
  const bytes = typeof id === 'string' ? Buffer.from(id, 'latin1') : id;
  return eventKeyOfBytes(bytes, 0, bytes.length, seed);
}

const IDS = [
  '0',
  'a',
  'ab',
  'abc',
  'abcd',
  'abcde',
  '42/7',
  'a b',
  'a  b',
  'a\tb',
  '_GET_stream_1750000000000_ab12cd34',
  '0c3f1a52-9f0e-4c7b-8a55-3b1f0d2e4c6a_1750000000000_ab12cd34',
  'caf\xc3\xa9',
  'caf\xe9',
  '\xff\xfe\x80',
  '\xa0',
  '\x0b',
  'x'.repeat(300),
];

test('the bytes of an ID and the same bytes as a field value have the same key', () => {
  for (const id of IDS) assert.equal(eventKeyOfField(id, SEED), keyOf(id), id);
});

test('outer spaces and tabs change nothing, in a stream or in a field', () => {
  for (const id of IDS) {
    for (const [before, after] of [
      [' ', ''],
      ['', ' '],
      ['\t', '\t'],
      [' \t ', '\t  \t'],
      ['', '     '],
    ]) {
      assert.equal(keyOf(before + id + after), keyOf(id), JSON.stringify(before + id + after));
      assert.equal(eventKeyOfField(before + id + after, SEED), keyOf(id));
    }
  }
});

test('inner blanks and other outer characters make another ID', () => {
  const variants = ['ab', 'a b', 'a  b', 'a\tb', 'ab\x0b', 'ab\xa0', '\x0cab', 'ab\r', 'ab\n', 'ab\0', 'ba'];
  assert.equal(new Set(variants.map((id) => keyOf(id))).size, variants.length);
});

test('an ID of nothing but blanks has no key', () => {
  for (const id of ['', ' ', '\t', ' \t \t']) {
    assert.equal(keyOf(id), null);
    assert.equal(eventKeyOfField(id, SEED), null);
    assert.equal(eventKeyOfFieldAsUtf8(id, SEED), null);
  }
});

test('only the bytes from start to end count', () => {
  const bytes = Buffer.from('id: abc def\nid: abc\n');
  assert.equal(eventKeyOfBytes(bytes, 4, 11, SEED), keyOf('abc def'));
  assert.equal(eventKeyOfBytes(bytes, 3, 7, SEED), keyOf('abc'));
  assert.equal(eventKeyOfBytes(bytes, 16, 19, SEED), keyOf('abc'));
  assert.equal(eventKeyOfBytes(bytes, 5, 5, SEED), null);
});

test('an ID of 64 KiB has a key, a longer one has none, and outer blanks do not count', () => {
  const longest = 'a'.repeat(MAX_ID_BYTES);
  const key = keyOf(longest);
  assert.notEqual(key, null);
  assert.equal(eventKeyOfField(longest, SEED), key);
  assert.equal(keyOf(`  ${longest}  `), key);
  assert.notEqual(keyOf(longest.slice(1)), key);
  assert.equal(keyOf(`${longest}a`), null);
  assert.equal(eventKeyOfField(`${longest}a`, SEED), null);
});

test('a key is a safe integer that is not negative, whatever the seed', () => {
  const seeds = [0, -0, 1, -1, 2 ** 31, 2 ** 32, 2 ** 53 - 1, -(2 ** 53), 0.5, Number.NaN, Number.POSITIVE_INFINITY];
  for (const seed of seeds) {
    for (const id of IDS) {
      const key = keyOf(id, seed);
      assert.ok(Number.isSafeInteger(key) && (key as number) >= 0, `${key} for ${id} under ${seed}`);
      assert.equal(keyOf(id, seed), key);
    }
  }
});

test('both halves of the seed change the key', () => {
  for (const id of IDS) {
    const seeds = [5, 6, 5 + 2 ** 32, 5 + 2 ** 33, 5 + 2 ** 52];
    assert.equal(new Set(seeds.map((seed) => keyOf(id, seed))).size, seeds.length, id);
  }
});

test('the second reading of a field value is the key of its UTF-8 form in the stream', () => {
  // The stream carries C3 A9, a client that decoded it sends the one byte E9, which Node shows as U+00E9.
  const sent = 'caf\u00e9';
  assert.notEqual(eventKeyOfField(sent, SEED), keyOf(Buffer.from(sent, 'utf8')));
  assert.equal(eventKeyOfFieldAsUtf8(sent, SEED), keyOf(Buffer.from(sent, 'utf8')));
  for (let code = 0x80; code <= 0xff; code++) {
    const value = `a${String.fromCharCode(code)}b`;
    assert.equal(eventKeyOfFieldAsUtf8(value, SEED), keyOf(Buffer.from(value, 'utf8')), code.toString(16));
  }
  assert.equal(eventKeyOfFieldAsUtf8(` ${sent}\t`, SEED), keyOf(Buffer.from(sent, 'utf8')));
});

test('an ASCII field value has no second reading', () => {
  for (const value of ['a', 'abc-123', 'x\x7f', 'a\tb']) assert.equal(eventKeyOfFieldAsUtf8(value, SEED), null);
});

test('a character that is no byte has no key', () => {
  for (const value of ['\u0100', 'a\u20ac', '\ud83c\udf0d']) {
    assert.equal(eventKeyOfField(value, SEED), null);
    assert.equal(eventKeyOfFieldAsUtf8(value, SEED), null);
  }
});

test('the key does not depend on how the ID was cut into pieces', () => {
  const hasher = new KeyHasher(SEED);
  for (const id of ['abcdefghijklm', '  ab cd  ef   ', '\t a\t\t\tb \t', '   ', 'a', 'caf\xc3\xa9 and 12345 more']) {
    const bytes = Buffer.from(id, 'latin1');
    for (let first = 0; first <= bytes.length; first++) {
      for (let second = first; second <= bytes.length; second++) {
        hasher.start();
        hasher.update(bytes, 0, first);
        hasher.update(bytes, first, second);
        hasher.update(bytes, second, bytes.length);
        assert.equal(hasher.finish(), keyOf(id), `${JSON.stringify(id)} cut at ${first} and ${second}`);
      }
    }
    hasher.start();
    for (let at = 0; at < bytes.length; at++) hasher.update(bytes, at, at + 1);
    assert.equal(hasher.finish(), keyOf(id));
  }
});

test('a NUL is noticed at every place and forgotten at the next start', () => {
  const hasher = new KeyHasher(SEED);
  for (let length = 1; length <= 13; length++) {
    for (let place = 0; place < length; place++) {
      const bytes = Buffer.alloc(length, 0x80);
      bytes[place] = 0;
      for (let cut = 0; cut <= length; cut++) {
        hasher.start();
        hasher.update(bytes, 0, cut);
        hasher.update(bytes, cut, length);
        assert.equal(hasher.hasNul, true, `${length} bytes, NUL at ${place}, cut at ${cut}`);
      }
    }
  }
  hasher.start();
  assert.equal(hasher.hasNul, false);
});

test('no byte but NUL is taken for one', () => {
  const hasher = new KeyHasher(SEED);
  for (let byte = 1; byte <= 0xff; byte++) {
    for (let other = 1; other <= 0xff; other++) {
      hasher.start();
      hasher.update(Buffer.from([byte, other, byte, byte, other, byte, byte]), 0, 7);
      if (hasher.hasNul) assert.fail(`${byte} and ${other}`);
    }
  }
});

test('IDs that resemble each other have different keys, spread over the whole range', () => {
  const kinds: ((n: number) => string)[] = [
    (n) => String(n),
    (n) => `${n % 100}/${Math.floor(n / 100)}`,
    (n) => n.toString(16).padStart(16, '0'),
    (n) => n.toString(2).padStart(17, '0'),
    (n) => `0c3f1a52-9f0e-4c7b-8a55-3b1f0d2e4c6a_${1_750_000_000_000 + n}`,
  ];
  const count = 40_000;
  for (const kind of kinds) {
    const keys = new Set<number>();
    const high = new Uint32Array(256);
    const low = new Uint32Array(256);
    for (let n = 0; n < count; n++) {
      const key = keyOf(kind(n)) as number;
      keys.add(key);
      high[Math.floor(key / 2 ** 45)]! += 1;
      low[key % 256]! += 1;
    }
    assert.equal(keys.size, count, kind(0));
    // 156 expected in each of 256 parts; a sound hash stays within six standard deviations (12.5).
    for (const part of [...high, ...low]) assert.ok(Math.abs(part - count / 256) < 75, `${kind(0)}: ${part}`);
  }
});

test('each bit of an ID moves each bit of the key about half the time', () => {
  const flips = new Uint32Array(53);
  let trials = 0;
  for (let round = 0; round < 60; round++) {
    const bytes = Buffer.from(`stream-${round * 7919}_${round}`);
    const before = BigInt(keyOf(bytes) as number);
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      const changed = Buffer.from(bytes);
      changed[bit >> 3]! ^= 1 << (bit & 7);
      let moved = BigInt(keyOf(changed) as number) ^ before;
      for (let at = 0; moved !== 0n; at++, moved >>= 1n) if (moved & 1n) flips[at]! += 1;
      trials++;
    }
  }
  for (const [at, count] of flips.entries()) {
    const share = count / trials;
    assert.ok(share > 0.46 && share < 0.54, `bit ${at} moved in ${share} of ${trials}`);
  }
});
