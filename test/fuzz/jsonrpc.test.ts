import assert from 'node:assert/strict';
import { isUtf8 } from 'node:buffer';
import { test } from 'node:test';
import fc from 'fast-check';
import { MessageScanner, type Messages, NO_MESSAGES } from '../../src/core/jsonrpc.ts';

/** The seed of a failed run, to repeat it: `FUZZ_SEED=… node --import tsx --test test/fuzz/jsonrpc.test.ts`. */
const seed = Number(process.env['FUZZ_SEED'] ?? Date.now() % 0x7fffffff);

// Texts are generated as "binary" strings, one character a byte, so that bytes that are no UTF-8 can be among them.

const utf8 = (text: string): string => Buffer.from(text).toString('latin1');
const parse = (binary: string): unknown => JSON.parse(Buffer.from(binary, 'latin1').toString('utf8'));

const oneOf = <T>(...values: T[]): fc.Arbitrary<T> => fc.constantFrom(...values);
const blanks = fc.oneof(
  { weight: 6, arbitrary: fc.constant('') },
  { weight: 1, arbitrary: fc.string({ unit: oneOf(' ', '\n', '\r', '\t'), maxLength: 4 }) },
);
const padded = (token: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(blanks, token, blanks).map((parts) => parts.join(''));

const hexEscape = (code: number, upper: boolean): string => {
  const digits = code.toString(16).padStart(4, '0');
  return `\\u${upper ? digits.toUpperCase() : digits}`;
};

/** What can stand between the quotes of a string. */
const piece = fc.oneof(
  { weight: 6, arbitrary: fc.string({ maxLength: 8 }).map((text) => text.replace(/["\\]/g, "'")) },
  { weight: 2, arbitrary: oneOf('\\"', '\\\\', '\\/', '\\b', '\\f', '\\n', '\\r', '\\t') },
  { weight: 2, arbitrary: fc.tuple(fc.nat(0xffff), fc.boolean()).map(([code, upper]) => hexEscape(code, upper)) },
  { weight: 2, arbitrary: fc.string({ unit: 'grapheme', maxLength: 3 }).map((s) => utf8(s.replace(/["\\]/g, ''))) },
  { weight: 1, arbitrary: oneOf('é', '\u2028', '\u{1f600}', '\ufeff', '\x7f').map(utf8) },
  { weight: 1, arbitrary: oneOf('"id":1', '{', '}', '[', ']', ',', ':', 'result').map((s) => s.replace(/"/g, '\\"')) },
  { weight: 1, arbitrary: fc.integer({ min: 100, max: 400 }).map((length) => 'x'.repeat(length)) },
);
const broken = oneOf('\xff', '\xc3', '\xe2\x82', '\xed\xa0\x80', '\xc0\xaf');
const chars = fc
  .array(fc.oneof({ weight: 30, arbitrary: piece }, { weight: 1, arbitrary: broken }), { maxLength: 5 })
  .map((parts) => parts.join(''));
const string = chars.map((text) => `"${text}"`);

/** The same name, some of its letters as escapes. */
const spelled = (name: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(name, fc.oneof({ weight: 4, arbitrary: fc.constant(0) }, fc.nat(255))).map(([text, bits]) => {
    const letters = [...text].map((c, i) => ((bits >> i) & 1 ? hexEscape(c.charCodeAt(0), bits > 127) : c));
    return `"${letters.join('')}"`;
  });

const number = fc.oneof(
  fc.integer({ min: -3, max: 20 }).map(String),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => JSON.stringify(value)),
  oneOf('-0', '1.0', '1e0', '10E-1', '0.5', '1E+2', '-32601', '-3.2601e4', '-32601.0', '123456789012345', '1e999'),
  oneOf('9007199254740991', '9007199254740992', '9007199254740993', '9007199254740991.7', '-9007199254740993'),
);
const word = oneOf('null', 'true', 'false');

const { value } = fc.letrec<{ value: string; array: string; object: string }>((tie) => ({
  value: padded(fc.oneof({ maxDepth: 3 }, { weight: 3, arbitrary: string }, number, word, tie('array'), tie('object'))),
  array: fc.array(tie('value'), { maxLength: 3 }).map((items) => `[${items.join(',')}]`),
  object: fc
    .array(
      fc.tuple(padded(fc.oneof(string, spelled(oneOf('id', 'method', 'result', 'error', 'code')))), tie('value')),
      {
        maxLength: 3,
      },
    )
    .map((entries) => `{${entries.map((entry) => entry.join(':')).join(',')}}`),
}));

const id = fc.oneof(
  { weight: 6, arbitrary: number },
  { weight: 6, arbitrary: string },
  { weight: 1, arbitrary: fc.oneof(word, value) },
  { weight: 1, arbitrary: oneOf('"__proto__"', '""', '"1"', '"constructor"') },
  { weight: 1, arbitrary: oneOf(4096, 4097).map((length) => `"${'i'.repeat(length)}"`) },
);
const method = fc.oneof(
  { weight: 4, arbitrary: fc.oneof(oneOf('"tools/call"', '"initialize"', '""'), string) },
  { weight: 1, arbitrary: value },
);
const error = fc.oneof(
  oneOf('{"code":-32601,"message":"no"}', '{"code":-32600}', '{"code":"-32601"}', '{"code":[-32601]}', '[-32601]'),
  fc
    .array(fc.tuple(fc.oneof(spelled(oneOf('code')), string), fc.oneof(oneOf('-32601'), value)), { maxLength: 3 })
    .map((entries) => `{${entries.map((entry) => entry.join(':')).join(',')}}`),
  value,
);

const entry = (key: string, of: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(padded(spelled(oneOf(key))), of).map((pair) => pair.join(':'));
const sometimes = (chance: number, of: fc.Arbitrary<string>): fc.Arbitrary<string[]> =>
  fc
    .integer({ min: 1, max: 10 })
    .chain((n) => fc.array(of, { minLength: n <= chance ? 1 : 0, maxLength: n <= chance ? 1 : 0 }));

/** An object that is, or nearly is, a JSON-RPC message: its entries in any order, some of them twice. */
const message = fc
  .tuple(
    sometimes(8, entry('jsonrpc', oneOf('"2.0"'))),
    sometimes(9, entry('id', id)),
    fc.oneof(
      { weight: 4, arbitrary: fc.tuple(entry('result', value)) },
      { weight: 3, arbitrary: fc.tuple(entry('error', error)) },
      { weight: 4, arbitrary: fc.tuple(entry('method', method)) },
      {
        weight: 1,
        arbitrary: fc.array(fc.oneof(entry('result', value), entry('error', error), entry('method', method)), {
          maxLength: 4,
        }),
      },
    ),
    sometimes(1, entry('id', id)),
    sometimes(
      3,
      fc
        .tuple(fc.oneof(string, oneOf('"__proto__"', '""', '"ID"', '"i"', '"id "')), value)
        .map((pair) => pair.join(':')),
    ),
  )
  .chain((groups) => {
    const entries = groups.flat();
    return fc.tuple(fc.shuffledSubarray(entries, { minLength: entries.length }), fc.nat(9));
  })
  // Now and then one entry a second time: the same id twice is one id.
  .map(([entries, n]) => `{${[...entries, ...(n === 0 ? entries.slice(0, 1) : [])].join(',')}}`);

const batch = fc
  .array(fc.oneof({ weight: 4, arbitrary: padded(message) }, value), { maxLength: 4 })
  .map((items) => `[${items.join(',')}]`);
const text = padded(
  fc.oneof({ weight: 6, arbitrary: message }, { weight: 3, arbitrary: batch }, { weight: 1, arbitrary: value }),
);

// The oracle: a text that JSON.parse takes, cut at its top-level commas; JSON.parse for every key and value; the rules of
// the contract on top. (JSON.parse for the whole would lose the ids beyond double precision, and all but the last of
// several ids.)

/** The items between the outer brackets. */
function itemsOf(bracketed: string): string[] {
  const inner = bracketed.trim().slice(1, -1);
  const commas: number[] = [];
  let depth = 0;
  for (const { 0: token, index } of inner.matchAll(/"(?:[^"\\]|\\[\s\S])*"|[{}[\],]/g)) {
    if (token === '{' || token === '[') depth++;
    else if (token === '}' || token === ']') depth--;
    else if (token === ',' && depth === 0) commas.push(index);
  }
  const items = [-1, ...commas].map((comma, n) => inner.slice(comma + 1, commas[n]));
  return inner.trim() === '' ? [] : items;
}

/** The canonical id, or null where it cannot be tracked. */
function canonical(raw: string): string | null {
  const parsed = parse(raw);
  if (typeof parsed === 'number') {
    return Math.abs(parsed) < 2 ** 53 ? `n:${parsed === 0 ? 0 : parsed}` : `n:${raw.trim()}`;
  }
  if (typeof parsed !== 'string' || raw.trim().length - 2 > 4096) return null;
  return isUtf8(Buffer.from(raw, 'latin1')) ? `s:${parsed}` : null;
}

interface Said {
  readonly key: string | null | undefined;
  readonly methods: readonly unknown[];
  readonly results: readonly unknown[];
  readonly errors: readonly unknown[];
}

/** What an object says; nothing, for a text that is none. */
function saidBy(value: string): Said {
  const entries = (value.trim().startsWith('{') ? itemsOf(value) : []).map((item) => {
    const key = /^\s*"(?:[^"\\]|\\[\s\S])*"\s*/.exec(item)![0];
    return { name: parse(key), value: item.slice(key.length + 1) };
  });
  const named = (name: string): string[] => entries.filter((e) => e.name === name).map((e) => e.value);
  const ids = new Set(named('id').map(canonical));
  return {
    key: ids.size > 1 ? null : [...ids][0],
    methods: named('method').map(parse),
    results: named('result'),
    errors: named('error').map(parse),
  };
}

function expected(binary: string, mode: 'requests' | 'responses'): Messages {
  const isBatch = binary.trim().startsWith('[');
  const said = (isBatch ? itemsOf(binary) : [binary]).map(saidBy);
  const requests = said.flatMap(({ key, methods }) => {
    const name = methods.filter((method) => typeof method === 'string').at(-1);
    return mode === 'requests' && key !== undefined && name !== undefined ? [{ key, method: name.slice(0, 128) }] : [];
  });
  const responses = said.flatMap(({ key, methods, results, errors }) =>
    typeof key === 'string' && methods.length === 0 && results.length + errors.length > 0
      ? [{ key, kind: errors.length > 0 ? 'error' : 'result' }]
      : [],
  );
  const error = said[0]?.errors.at(-1) as { code?: unknown } | null | undefined;
  const methodNotFound = !isBatch && said[0]?.methods.length === 0 && error?.code === -32601;
  return { wellFormed: true, requests, responses, methodNotFound } as unknown as Messages;
}

/** What may stand around a piece in its buffer: bytes that would end a string, and bytes that would go on with it. */
const AROUND = [Buffer.from('"}\\,0'), Buffer.from('xxxxx')];

/** Reads `bytes` in pieces, cut at the given thousandths of the length, each piece in the middle of other bytes. */
function read(scanner: MessageScanner, bytes: Buffer, cuts: readonly number[]): Messages {
  const at = [0, ...cuts.map((cut) => Math.floor((cut * bytes.length) / 1000)).sort((a, b) => a - b), bytes.length];
  for (const [n, from] of at.slice(0, -1).entries()) {
    const piece = bytes.subarray(from, at[n + 1]);
    const around = AROUND[(n + bytes.length) % 2]!;
    scanner.push(Buffer.concat([around, piece, around]), around.length, around.length + piece.length);
  }
  return scanner.end();
}

const cuts = fc.oneof(fc.constant([]), fc.array(fc.nat(1000), { maxLength: 12 }));

const runs = { seed, numRuns: 12_000 };

// One scanner each for all runs: it has to leave nothing of one text for the next.
const requests = new MessageScanner('requests');
const responses = new MessageScanner('responses');

test('requests and responses are those that JSON.parse finds, however the text is cut', (t) => {
  t.diagnostic(`FUZZ_SEED=${seed}`);
  const seen = { requests: 0, lost: 0, responses: 0, errors: 0, several: 0, methodNotFound: 0, nothing: 0 };
  fc.assert(
    fc.property(text, cuts, (binary, where) => {
      const bytes = Buffer.from(binary, 'latin1');
      const [whole, ofResponses] = [expected(binary, 'requests'), expected(binary, 'responses')];
      assert.deepEqual(read(requests, bytes, where), whole);
      assert.deepEqual(read(responses, bytes, where), ofResponses);
      seen.requests += whole.requests.length;
      seen.lost += whole.requests.filter(({ key }) => key === null).length;
      seen.responses += whole.responses.length;
      seen.errors += whole.responses.filter(({ kind }) => kind === 'error').length;
      seen.several += whole.requests.length + whole.responses.length > 1 ? 1 : 0;
      seen.methodNotFound += whole.methodNotFound ? 1 : 0;
      seen.nothing += whole.requests.length + whole.responses.length === 0 ? 1 : 0;
    }),
    runs,
  );
  t.diagnostic(JSON.stringify(seen));
  for (const [what, count] of Object.entries(seen)) assert.ok(count > 100, `the generator made only ${count}: ${what}`);
});

const mutation = fc.tuple(
  oneOf('delete', 'insert', 'replace', 'truncate'),
  fc.nat(999),
  fc.oneof(oneOf(...Buffer.from('"\\{}[]:,0-+.eEtrufalsn u\n')), fc.nat(255)),
);

function mutate(binary: string, [how, where, byte]: readonly [string, number, number]): string {
  const at = Math.floor((where * (binary.length + 1)) / 1000);
  const middle = how === 'insert' || how === 'replace' ? String.fromCharCode(byte) : '';
  const tail = how === 'truncate' ? '' : binary.slice(how === 'insert' ? at : at + 1);
  return binary.slice(0, at) + middle + tail;
}

/** Both scanners on a text that may be malformed. */
function check(binary: string, where: readonly number[]): boolean {
  const bytes = Buffer.from(binary, 'latin1');
  const [whole, ofResponses] = [read(requests, bytes, where), read(responses, bytes, where)];
  let valid = true;
  try {
    parse(binary);
  } catch {
    valid = false;
  }
  if (valid) {
    assert.deepEqual(whole, expected(binary, 'requests'));
    assert.deepEqual(ofResponses, expected(binary, 'responses'));
  } else {
    const nothing = { wellFormed: false, requests: [], responses: [], methodNotFound: false };
    assert.deepEqual(whole, nothing);
    // Of a single message with a method the rest is skipped, the fault with it.
    if (ofResponses !== NO_MESSAGES) assert.deepEqual(ofResponses, nothing);
  }
  return valid;
}

test('a text is well-formed when JSON.parse takes it, and one that is not holds no messages', (t) => {
  t.diagnostic(`FUZZ_SEED=${seed}`);
  const seen = { valid: 0, invalid: 0 };
  fc.assert(
    fc.property(text, fc.array(mutation, { minLength: 1, maxLength: 2 }), cuts, (binary, mutations, where) => {
      seen[check(mutations.reduce(mutate, binary), where) ? 'valid' : 'invalid']++;
    }),
    runs,
  );
  t.diagnostic(JSON.stringify(seen));
  for (const [what, count] of Object.entries(seen)) assert.ok(count > 1000, `only ${count} texts were ${what}`);
});

test('any bytes at all are read without an error, and judged as JSON.parse does', (t) => {
  t.diagnostic(`FUZZ_SEED=${seed}`);
  const soup = fc.string({ unit: oneOf(...'{}[]",:\\u0019-+.eEtruefalsnl \n\xff\x00'), maxLength: 24 });
  const words = fc.string({
    unit: oneOf('{', '}', '[', ']', ',', ':', '"id"', '"method"', '"x"', '1', 'null'),
    maxLength: 12,
  });
  fc.assert(
    fc.property(fc.oneof(soup, words), cuts, (binary, where) => {
      check(binary, where);
    }),
    { ...runs, numRuns: 30_000 },
  );
});
