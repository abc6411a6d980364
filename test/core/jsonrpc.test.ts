import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  idTextOf,
  isBeyondDoubles,
  MessageScanner,
  type Messages,
  NO_MESSAGES,
  requestKeyOf,
} from '../../src/core/jsonrpc.ts';

type Mode = 'requests' | 'responses';

function read(mode: Mode, ...pieces: Uint8Array[]): Messages {
  const scanner = new MessageScanner(mode);
  for (const piece of pieces) scanner.push(piece, 0, piece.length);
  return scanner.end();
}

const readText = (mode: Mode, text: string | Uint8Array): Messages => read(mode, Buffer.from(text));

/** Whole, cut in two at every byte, byte by byte, and as plain bytes between others that would change everything. */
function readEveryWay(mode: Mode, text: string | Uint8Array): Messages {
  const bytes = Buffer.from(text);
  const whole = read(mode, bytes);
  for (let at = 0; at <= bytes.length; at++) {
    assert.deepEqual(read(mode, bytes.subarray(0, at), bytes.subarray(at)), whole, `cut at byte ${at}`);
  }
  const single = Array.from(bytes, (byte) => Uint8Array.of(byte));
  assert.deepEqual(read(mode, ...single), whole, 'byte by byte');
  const among = Uint8Array.from([...Buffer.from('}"\\'), ...bytes, ...Buffer.from('"}\\0')]);
  const scanner = new MessageScanner(mode);
  scanner.push(among, 3, 3 + bytes.length);
  assert.deepEqual(scanner.end(), whole, 'among other bytes');
  // A scanner that has just read something else, unfinished, says the same.
  scanner.push(among, 0, among.length);
  scanner.reset();
  scanner.push(bytes, 0, bytes.length);
  assert.deepEqual(scanner.end(), whole, 'after a reset');
  scanner.push(bytes, 0, bytes.length);
  assert.deepEqual(scanner.end(), whole, 'after another text');
  return whole;
}

/** Requests as `key method`, responses as `key kind`. */
const requestsOf = ({ requests }: Messages): string[] => requests.map(({ key, method }) => `${key} ${method}`);
const responsesOf = ({ responses }: Messages): string[] => responses.map(({ key, kind }) => `${key} ${kind}`);

const RESPONSES: readonly (readonly [what: string, text: string | Uint8Array, responses: readonly string[]])[] = [
  ['a result', '{"jsonrpc":"2.0","id":1,"result":{}}', ['n:1 result']],
  ['an error', '{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}', ['n:1 error']],
  ['the id last', '{"result":{"content":[]},"jsonrpc":"2.0","id":3}', ['n:3 result']],
  ['a result of null (B63)', '{"id":1,"result":null}', ['n:1 result']],
  ['a result of 0 (B63)', '{"id":1,"result":0}', ['n:1 result']],
  [
    'a result of "", false, []',
    '[{"id":1,"result":""},{"id":2,"result":false},{"id":3,"result":[]}]',
    ['n:1 result', 'n:2 result', 'n:3 result'],
  ],
  ['an error of null', '{"id":1,"error":null}', ['n:1 error']],
  ['result and error at once', '{"id":1,"error":{},"result":{}}', ['n:1 error']],
  ['the same, in the other order', '{"id":1,"result":{},"error":{}}', ['n:1 error']],
  ['a text spread over lines (B49)', '{\r\n\t"jsonrpc" : "2.0",\n "id" : 1 ,\n "result" : { }\n}\n', ['n:1 result']],
  ['keys written with escapes', '{"\\u0069d":1,"r\\u0065\\u0073ult":1}', ['n:1 result']],
  [
    'every letter of the keys as an escape',
    '{"\\u0069\\u0064":1,"\\u0065\\u0072\\u0072\\u006F\\u0072":1}',
    ['n:1 error'],
  ],
  ['an id and a result inside the result', '{"result":{"id":7,"result":1,"method":"x"},"id":2}', ['n:2 result']],
  ['an id and a method inside the error', '{"error":{"id":7,"method":"x"},"id":2}', ['n:2 error']],
  ['a text that looks like a message', '{"result":"{\\"id\\":9,\\"method\\":\\"x\\"}","id":2}', ['n:2 result']],
  [
    'keys that are like others',
    '{"ID":5,"i":5,"idd":5,"methods":1,"id ":5,"code":-32601,"id":2,"result":1}',
    ['n:2 result'],
  ],
  ['the same id twice', '{"id":1,"result":0,"id":1.0}', ['n:1 result']],
  ['a batch', '[{"id":1,"result":0}, {"id":"1","error":{}} ]', ['n:1 result', 's:1 error']],
  [
    'a batch with other things',
    '[0,"id",null,[{"id":4,"result":0}],{"method":"m","id":5},{"id":1,"result":0}]',
    ['n:1 result'],
  ],
  ['a number after an element whose id came last', '[{"result":0,"id":1},5,"x",{"result":0}]', ['n:1 result']],

  ['an empty batch', '[]', []],
  ['nested arrays: no batch', '[[{"id":1,"result":0}]]', []],
  ['an id of null (B60)', '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}', []],
  ['no id', '{"result":{}}', []],
  ['neither result nor error', '{"id":1}', []],
  ['result only inside', '{"id":1,"params":{"result":1}}', []],
  ['a method, too', '{"id":1,"result":{},"method":"m"}', []],
  ['a method of null', '{"id":1,"result":{},"method":null}', []],
  ['a method written with an escape', '{"\\u006dethod":"m","id":1,"result":{}}', []],
  ['a notification with an id of null (B62)', '{"method":"notifications/x","id":null,"params":{"result":1}}', []],
  ['an id that is an object', '{"id":{"id":1},"result":1}', []],
  ['an id that is an array', '{"id":[1],"result":1}', []],
  ['an id that is a boolean', '{"id":true,"result":1}', []],
  ['two ids', '{"id":1,"id":2,"result":1}', []],
  ['an id and null', '{"id":1,"result":1,"id":null}', []],
  ['null and an id', '{"id":null,"result":1,"id":1}', []],
  ['two ids of two types', '{"id":1,"id":"1","result":1}', []],
  ['an id that is no UTF-8', Buffer.from('{"id":"a\xff","result":1}', 'latin1'), []],
  ['a surrogate in the id as bytes', Buffer.from('{"id":"\xed\xa0\x80","result":1}', 'latin1'), []],
  ['no object', '"id"', []],
];

for (const [what, text, responses] of RESPONSES) {
  test(`${responses.length > 0 ? 'finishes its request' : 'finishes nothing'}: ${what}`, () => {
    const messages = readEveryWay('responses', text);
    assert.deepEqual(responsesOf(messages), responses);
    assert.equal(messages.wellFormed, true);
    assert.deepEqual(messages.requests, []);
    assert.deepEqual(responsesOf(readEveryWay('requests', text)), responses);
    if (responses.length === 0) assert.equal(readText('responses', text), NO_MESSAGES);
  });
}

const REQUESTS: readonly (readonly [what: string, text: string | Uint8Array, requests: readonly string[]])[] = [
  ['a request', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"id":2}}', ['n:1 tools/call']],
  ['the method first', '{"method":"initialize","id":"a"}', ['s:a initialize']],
  ['an empty method', '{"method":"","id":1}', ['n:1 ']],
  ['a method with escapes', '{"id":1,"method":"tools\\/c\\u0061ll\\n\\\\"}', ['n:1 tools/call\n\\']],
  ['a method in other letters', '{"id":1,"method":"pr\u00fcfe/\u{1f600}"}', ['n:1 pr\u00fcfe/\u{1f600}']],
  ['a method that is no UTF-8', Buffer.from('{"id":1,"method":"a\xffb"}', 'latin1'), ['n:1 a\ufffdb']],
  ['a batch', '[{"id":1,"method":"a"},{"method":"n"},{"id":2,"method":"b"}]', ['n:1 a', 'n:2 b']],
  ['the method given twice', '{"id":1,"method":"a","method":"b"}', ['n:1 b']],
  ['the method given as something else, too', '{"id":1,"method":"a","method":7}', ['n:1 a']],
  ['an id of null', '{"id":null,"method":"m"}', ['null m']],
  ['an id that is an object', '{"id":{"id":1,"method":"x"},"method":"m"}', ['null m']],
  ['an id that is an array', '{"id":[1],"method":"m"}', ['null m']],
  ['an id that is a boolean', '{"id":false,"method":"m"}', ['null m']],
  ['two ids', '{"id":1,"method":"m","id":2}', ['null m']],
  ['three ids, the first like the last', '{"id":1,"id":2,"method":"m","id":1}', ['null m']],
  ['the same id twice', '{"id":"a","method":"m","id":"\\u0061"}', ['s:a m']],
  ['an id that is no UTF-8', Buffer.from('{"id":"\xc3","method":"m"}', 'latin1'), ['null m']],
  ['a request with a result', '{"id":1,"method":"m","result":0}', ['n:1 m']],

  ['a notification', '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"id":1}}', []],
  ['a method that is no string', '{"id":1,"method":["m"]}', []],
  ['a response', '{"id":1,"result":{"id":2,"method":"m"}}', []],
];

for (const [what, text, requests] of REQUESTS) {
  test(`${requests.length > 0 ? 'opens a request' : 'opens nothing'}: ${what}`, () => {
    const messages = readEveryWay('requests', text);
    assert.deepEqual(requestsOf(messages), requests);
    assert.equal(messages.wellFormed, true);
    assert.deepEqual(readEveryWay('responses', text).requests, []);
  });
}

const IDS: readonly (readonly [text: string, key: string])[] = [
  ['1', 'n:1'],
  ['1.0', 'n:1'],
  ['1e0', 'n:1'],
  ['10E-1', 'n:1'],
  ['0', 'n:0'],
  ['-0', 'n:0'],
  ['-0.0e5', 'n:0'],
  ['-1', 'n:-1'],
  ['1.5', 'n:1.5'],
  ['1.50', 'n:1.5'],
  ['123456789012345', 'n:123456789012345'],
  ['1234567890123456', 'n:1234567890123456'],
  ['9007199254740991', 'n:9007199254740991'],
  ['-9007199254740991', 'n:-9007199254740991'],
  ['9.007199254740991e15', 'n:9007199254740991'],
  ['9007199254740991.7', 'n:9007199254740991.7'],
  ['9007199254740992', 'n:9007199254740992'],
  ['9007199254740993', 'n:9007199254740993'],
  ['-9007199254740993', 'n:-9007199254740993'],
  ['9007199254740993.0', 'n:9007199254740993.0'],
  ['1e400', 'n:1e400'],
  ['"1"', 's:1'],
  ['""', 's:'],
  ['"__proto__"', 's:__proto__'],
  ['"n:1"', 's:n:1'],
  ['"a\\"b\\\\\\/\\b\\f\\n\\r\\t"', 's:a"b\\/\b\f\n\r\t'],
  ['"\\u00e9\u00e9\\uD83D\\uDE00\u{1f600}"', 's:\u00e9\u00e9\u{1f600}\u{1f600}'],
  ['"\\ud800"', 's:\ud800'],
  ['"\\u0000\u2028\x7f"', 's:\0\u2028\x7f'],
  ['"\ufeffa"', 's:\ufeffa'],
  [`"\ufeff${'a'.repeat(40)}"`, `s:\ufeff${'a'.repeat(40)}`],
];

for (const [text, key] of IDS) {
  test(`the id ${text} is ${JSON.stringify(key)} in a request and in its response`, () => {
    assert.deepEqual(responsesOf(readEveryWay('responses', `{"result":0,"id":${text}}`)), [`${key} result`]);
    assert.deepEqual(requestsOf(readEveryWay('requests', `{"id":${text} ,"method":"m"}`)), [`${key} m`]);
  });
}

test('an id of a program has the same canonical form as its JSON text, and its text leads back to it', () => {
  for (const [text, canonical] of IDS) {
    const { key } = readText('responses', `{"id":${text},"result":0}`).responses[0]!;
    assert.equal(readText('responses', `{"id":${idTextOf(key)},"result":0}`).responses[0]?.key, canonical);
    const id = JSON.parse(text) as string | number;
    if (typeof id === 'string' || Math.abs(id) < 2 ** 53) assert.equal(requestKeyOf(id), canonical);
  }
  assert.equal(requestKeyOf(2 ** 53), 'n:9007199254740992');
  assert.equal(requestKeyOf(1e21), 'n:1e+21');
  assert.equal(idTextOf(requestKeyOf(1)), '1');
  assert.equal(idTextOf(requestKeyOf('a"b')), '"a\\"b"');
  assert.equal(idTextOf(requestKeyOf('\ud800')), '"\\ud800"');
  for (const id of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
    assert.throws(() => requestKeyOf(id), RangeError);
  }
});

test('two ids beyond double precision stay apart, and are told to be beyond it (B59)', () => {
  const batch = readText('requests', '[{"id":9007199254740992,"method":"m"},{"id":9007199254740993,"method":"m"}]');
  const [first, second] = batch.requests;
  assert.notEqual(first!.key, second!.key);
  const answer = readText('responses', '{"id":9007199254740993,"result":0}');
  assert.deepEqual(answer.responses, [{ key: second!.key, kind: 'result' }]);
  for (const [text, beyond] of [
    ['9007199254740991', false],
    ['9007199254740991.7', true],
    ['9007199254740992', true],
    ['-9007199254740992', true],
    ['1e400', true],
    ['1.5', false],
    ['"9007199254740992"', false],
  ] as const) {
    const { responses } = readText('responses', `{"id":${text},"result":0}`);
    assert.equal(isBeyondDoubles(responses[0]!.key), beyond, text);
  }
});

const METHOD_NOT_FOUND: readonly (readonly [text: string, is: boolean])[] = [
  ['{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}', true],
  ['{"jsonrpc":"2.0","id":null,"error":{"message":"no","code":-32601}}', true],
  ['{"error":{"code":-32601}}', true],
  ['{"id":1,"error":{"data":{"code":1},"c\\u006fde":-3.2601e4 }}', true],
  ['{"id":1,"error":{"code":1,"code":-32601}}', true],
  ['{"id":1,"error":1,"error":{"code":-32601}}', true],
  ['{"id":1,"error":{"code":-32600}}', false],
  ['{"id":1,"error":{"code":"-32601"}}', false],
  ['{"id":1,"error":{"code":[-32601]}}', false],
  ['{"id":1,"error":{"code":{"code":-32601}}}', false],
  ['{"id":1,"error":{"data":{"code":-32601}}}', false],
  ['{"id":1,"error":[{"code":-32601}]}', false],
  ['{"id":1,"error":{"code":-32601,"code":1}}', false],
  ['{"id":1,"error":{"code":-32601},"error":{}}', false],
  ['{"id":1,"error":{},"code":-32601}', false],
  ['{"id":1,"code":-32601,"error":{}}', false],
  ['{"id":1,"result":{"code":-32601}}', false],
  ['{"id":1,"error":{"code":-32601},"method":"m"}', false],
  ['[{"id":1,"error":{"code":-32601}}]', false],
  ['{"id":1,"error":{"code":-32601}', false],
  ['-32601', false],
];

for (const [text, is] of METHOD_NOT_FOUND) {
  test(`${is ? 'says' : 'does not say'} that the method was not found: ${text}`, () => {
    assert.equal(readEveryWay('responses', text).methodNotFound, is);
    assert.equal(readEveryWay('requests', text).methodNotFound, is);
  });
}

// biome-ignore format: a list
const WELL_FORMED = [
  '0', '-0', '12', '-1.5e+10', '1E5', '1e-07', '0.0', '0e0', 'true', 'false', 'null', '""', '[]', '{}', ' [ ] ', '\t{ }\r\n',
  '[1,2]', '[[],{}]', '{"a":[{"b":{}}],"":0}', '{"a":1,"a":2}', '"\\u0000\\uFFFF\\uabCD"', '"\\"\\\\\\/\\b\\f\\n\\r\\t"',
  '"\x7f"', '"\u2028\u0085"', '[0,-1,2.5,"x",true,false,null,[0],{"y":0}]',
];
// biome-ignore format: a list
const MALFORMED = [
  '', ' ', '\n', '{', '[', '}', ']', '[}', '{]', '[1', '[1,', '[1,]', '[,1]', '[,]', '[1 2]', '[1,,2]', '[]]', '1],[2', '[]],[]', '{}},{}', '{}}', '{} {}', '1 1', '1,', 
  '{"a"}', '{"a":}', '{"a":1,}', '{,}', '{"a" 1}', '{"a":1 "b":2}', '{"a"::1}', '{1:1}', '{a:1}', "{'a':1}", '{"a":1]', '["a":1]', '[{]}',
  '{"a":1,"b"}', '{"a",1}', '{null:1}', '{[]:1}', ':', ',', '"', '"a', '"a\\', '"\\"', '"\\x"', '"\\u"', '"\\u12"', '"\\u123"', '"\\u123g"',
  '"\\u 123"', '"\\U0041"', '"\\\'"', '"a\nb"', '"\t"', '"\0"', '"\x1f"', '{"a\n":1}', '01', '-', '-01', '-a', '+1', '1.', '.5', '1.e5', '1e', '1e+',
  '1e5.', '1.5.5', '0x1', '00', '1a', '1-', '- 1', '1 .5', '--1', 'NaN', 'Infinity', '-Infinity', 'nul', 'nulll', 'nuLl', 'True', 'tru', 'truefalse',
  'fals', 'true1', 'undefined', '[tru]', '{"a":nul}', '\ufeff{}', '\ufeff', '{}\ufeff', '\u00a0{}', '\f{}', '{}\v', '//\n{}', '{}/**/', '{}\0', '\0',
  '{"id":1,"result":0', '{"id":1,"result":0}}', '{"id":1,"result":0},', '[{"id":1,"result":0}', '[{"id":1,"result":0},]', '{"id":1,"result":0}x',
  '{"id":01,"result":0}', '{"id":1,"error":{"code":-32601}]',
];

test('the whole of the JSON grammar is checked', () => {
  for (const text of WELL_FORMED) {
    assert.doesNotThrow(() => JSON.parse(text), text);
    assert.equal(readEveryWay('requests', text).wellFormed, true, JSON.stringify(text));
    assert.equal(readEveryWay('responses', text), NO_MESSAGES, JSON.stringify(text));
  }
  const nothing = { wellFormed: false, requests: [], responses: [], methodNotFound: false };
  for (const text of MALFORMED) {
    assert.throws(() => JSON.parse(text), JSON.stringify(text));
    assert.deepEqual(readEveryWay('requests', text), nothing, JSON.stringify(text));
    assert.deepEqual(readEveryWay('responses', text), nothing, JSON.stringify(text));
  }
});

test('bytes that are no UTF-8 are taken inside strings only', () => {
  const bytes = (text: string): Buffer => Buffer.from(text, 'latin1');
  assert.deepEqual(responsesOf(readEveryWay('responses', bytes('{"id":1,"result":"\xff\xc3\xe2\x82"}'))), [
    'n:1 result',
  ]);
  assert.deepEqual(responsesOf(readEveryWay('responses', bytes('{"id":1,"\xff":0,"result":0}'))), ['n:1 result']);
  for (const text of ['\xff', '{\xff}', '{"id":1\xff,"result":0}', '[1,\x80]']) {
    assert.equal(readEveryWay('responses', bytes(text)).wellFormed, false);
  }
});

test('what matters inside a long string is found at every place and alignment', () => {
  const buffer = Buffer.alloc(420);
  for (let offset = 0; offset < 4; offset++) {
    for (let at = 0; at < 400; at += at > 120 && at < 150 ? 1 : 7) {
      for (const byte of [
        0x00, 0x1f, 0x20, 0x21, 0x22, 0x23, 0x5b, 0x5c, 0x5d, 0x7f, 0x80, 0x82, 0x9f, 0xa2, 0xdc, 0xff,
      ]) {
        const text = buffer.subarray(offset, offset + 402).fill(at % 2 ? 0x61 : 0xc3);
        text[0] = text[401] = 0x22;
        text[1 + at] = byte;
        // A quote ends the string early and leaves a rest behind; an escaped `a` or 0xc3 is no escape.
        const valid = byte >= 0x20 && byte !== 0x5c && byte !== 0x22;
        assert.equal(read('requests', text).wellFormed, valid, `byte ${byte} at ${at}, offset ${offset}`);
      }
    }
  }
});

test('a single message that shows a method is not read any further, but only in mode responses', () => {
  const text = '{"jsonrpc":"2.0","method":"notifications/progress" and anything at all';
  assert.equal(readEveryWay('responses', text), NO_MESSAGES);
  assert.equal(readEveryWay('requests', text).wellFormed, false);
  const batch = '[{"method":"m"},{"id":1,"result":0}]';
  assert.deepEqual(responsesOf(readEveryWay('responses', batch)), ['n:1 result']);
  assert.equal(readText('responses', '[{"method":"m"]').wellFormed, false);
  // A method further in, or as a value, skips nothing.
  assert.equal(readText('responses', '{"params":{"method":1},"x":"method",!').wellFormed, false);
});

test('a scanner that skipped, broke or ran over its bounds starts afresh with the next text', () => {
  for (const mode of ['requests', 'responses'] as const) {
    const scanner = new MessageScanner(mode);
    const texts = [
      '{"method":',
      '{]',
      '[[',
      '',
      `${'['.repeat(1025)}`,
      '{"id":"unfini',
      '{"error":{"code":-32601',
      '[{"id":1,"result":0},',
    ];
    for (const text of texts) {
      scanner.push(Buffer.from(text), 0, Buffer.byteLength(text));
      scanner.end();
      const next = Buffer.from('{"result":{"code":-32601},"id":5}');
      scanner.push(next, 0, next.length);
      const messages = scanner.end();
      assert.deepEqual(responsesOf(messages), ['n:5 result'], `after ${text.slice(0, 20)}`);
      assert.equal(messages.methodNotFound, false);
    }
  }
});

test('shared answers are frozen', () => {
  const scanner = new MessageScanner('requests');
  for (const messages of [NO_MESSAGES, scanner.end(), readText('requests', '['.repeat(1025))]) {
    assert.ok(Object.isFrozen(messages) && Object.isFrozen(messages.requests) && Object.isFrozen(messages.responses));
  }
});

const UNTRACKABLE = [{ key: null, method: '' }];

test('1,024 levels of brackets are read, one more is not, and its request cannot be tracked', () => {
  const at = (depth: number): string => `{"id":1,"result":${'['.repeat(depth - 1)}${']'.repeat(depth - 1)}}`;
  assert.deepEqual(responsesOf(readText('responses', at(1024))), ['n:1 result']);
  assert.deepEqual(readText('responses', at(1025)), {
    wellFormed: false,
    requests: [],
    responses: [],
    methodNotFound: false,
  });
  assert.deepEqual(readText('requests', at(1025)).requests, UNTRACKABLE);
  // The kinds of all the levels are remembered, each of them.
  const mixed = '[{"a":'.repeat(512);
  const closed = `${mixed}0${'}]'.repeat(512)}`;
  assert.equal(readText('requests', closed).wellFormed, true);
  for (let level = 0; level < 1024; level += 31) {
    const close = mixed.length + 1 + level;
    const wrong = closed[close] === '}' ? ']' : '}';
    assert.equal(readText('requests', closed.slice(0, close) + wrong + closed.slice(close + 1)).wellFormed, false);
  }
});

test('10,000 heads are listed; with one more there is a single request that cannot be tracked', () => {
  const batch = (count: number, rest: string): string =>
    `[${Array.from({ length: count }, (_, id) => `{"id":${id},${rest}}`).join(',')}]`;
  assert.equal(readText('requests', batch(10_000, '"method":"m"')).requests.length, 10_000);
  const { wellFormed, requests } = readText('requests', batch(10_001, '"method":"m"'));
  assert.deepEqual({ wellFormed, requests }, { wellFormed: false, requests: UNTRACKABLE });
  assert.equal(readText('responses', batch(10_000, '"result":0')).responses.length, 10_000);
  assert.deepEqual(readText('responses', batch(10_001, '"result":0')).responses, []);
  // Elements that are no heads do not count.
  const others = readText('responses', `[${'{},'.repeat(20_000)}{"id":1,"result":0}]`);
  assert.deepEqual(responsesOf(others), ['n:1 result']);
});

test('ids up to 1 MiB together are kept, not more', () => {
  const long = `{"id":"${'i'.repeat(4094)}","method":"m"}`;
  const batch = (more: string): string => `[${`${long},`.repeat(255)}${more}]`;
  assert.equal(readText('requests', batch(long)).requests.length, 256);
  const { wellFormed, requests } = readText('requests', batch(`${long},{"id":1,"method":"m"}`));
  assert.deepEqual({ wellFormed, requests }, { wellFormed: false, requests: UNTRACKABLE });
});

test('an id of 4,096 bytes is tracked, of 4,097 not, be it cut or whole, a string or a number', () => {
  for (const [unit, quote, at] of [
    ['i', '"', 4096],
    ['1', '', 4096],
    ['\u00e9', '"', 2048],
  ] as const) {
    for (const more of [0, 1]) {
      const id = unit.repeat(at) + '1'.repeat(more);
      const bytes = Buffer.from(`{"id":${quote}${id}${quote},"method":"m"}`);
      const key = more ? null : `${quote ? 's' : 'n'}:${id}`;
      for (const cut of [0, 6, 7, 8, 100, 4097, 4102, 4103, 4104, 4105, bytes.length]) {
        const { requests } = read('requests', bytes.subarray(0, cut), bytes.subarray(cut));
        assert.deepEqual(requests, [{ key, method: 'm' }], `cut at ${cut}`);
      }
      const pieces = Array.from(bytes, (byte) => Uint8Array.of(byte));
      assert.deepEqual(read('requests', ...pieces).requests, [{ key, method: 'm' }]);
    }
  }
});

test('an error code is compared by its value, in up to 4,096 bytes', () => {
  for (const [zeros, is] of [
    [4096 - '-32601.'.length, true],
    [4097 - '-32601.'.length, false],
  ] as const) {
    const bytes = Buffer.from(`{"id":1,"error":{"code":-32601.${'0'.repeat(zeros)}}}`);
    assert.equal(read('responses', bytes).methodNotFound, is);
    assert.equal(read('responses', bytes.subarray(0, 1000), bytes.subarray(1000)).methodNotFound, is);
  }
});

test('a method of 128 units is kept whole, and a longer one is cut there, never in the middle of an escape', () => {
  for (const unit of [
    'm',
    '\\n',
    '\\u00e9',
    '\\ud83d\\ude00',
    '\u00e9',
    '\u4e2d',
    '\u{1f600}',
    '\\\\',
    '\\\\u0041',
    'x\\u0041',
  ]) {
    for (const lead of ['', 'a', 'ab', '\\t', '\u4e2d']) {
      for (const count of [20, 63, 64, 65, 127, 128, 129, 3000]) {
        const raw = lead + unit.repeat(count);
        const bytes = Buffer.from(`{"id":1,"method":"${raw}"}`);
        const method = (JSON.parse(`"${raw}"`) as string).slice(0, 128);
        assert.deepEqual(read('requests', bytes).requests, [{ key: 'n:1', method }]);
        const [cut, further] = [Math.floor(bytes.length / 3), Math.floor(bytes.length / 2)];
        const pieces = [bytes.subarray(0, cut), bytes.subarray(cut, further), bytes.subarray(further)];
        assert.deepEqual(read('requests', ...pieces).requests, [{ key: 'n:1', method }]);
      }
    }
  }
});

// Large texts: one linear pass, next to no memory

const PIECE = 65_536;

function readInPieces(scanner: MessageScanner, bytes: Buffer, afterEach = (): void => {}): Messages {
  for (let from = 0; from < bytes.length; from += PIECE) {
    scanner.push(bytes, from, Math.min(from + PIECE, bytes.length));
    afterEach();
  }
  return scanner.end();
}

const filled = (head: string, unit: string, tail: string, megabytes: number): Buffer =>
  Buffer.from(head + unit.repeat((megabytes * 1e6) / unit.length) + tail);

const HEAD = '{"result":{"text":"';
const TAIL = '"},"jsonrpc":"2.0","id":7}';

const LARGE: readonly (readonly [what: string, head: string, unit: string, tail: string])[] = [
  ['a result of plain text', HEAD, 'lorem ipsum dolor sit amet, ', TAIL],
  ['a result of nothing but escapes', HEAD, '\\"', TAIL],
  ['a result of lines', HEAD, `${'x'.repeat(190)}\\n`, TAIL],
  ['a result of objects', '{"result":[', '{"id":[1.5,true]},', '0],"id":7}'],
  ['a key', '{"', 'k', '":0,"result":0,"id":7}'],
  ['an id in the result', '{"result":{"id":"', 'i', '"},"id":7}'],
  ['an error code', '{"id":7,"error":{"code":', '1', '}}'],
];

for (const [what, head, unit, tail] of LARGE) {
  test(`${what} of 50 MB is read in linear time, with less than 2 MB of memory`, (t) => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const scanner = new MessageScanner('responses');
    const [small, large] = [filled(head, unit, tail, 5), filled(head, unit, tail, 50)];

    const used = (): number => {
      collect();
      const { heapUsed, external, arrayBuffers } = process.memoryUsage();
      return heapUsed + external + arrayBuffers;
    };
    readInPieces(scanner, small);
    const before = used();
    let most = 0;
    let pieces = 0;
    readInPieces(scanner, large, () => {
      if (++pieces % 100 === 0) most = Math.max(most, used() - before);
    });
    assert.ok(pieces > 700);
    assert.ok(most < 2e6, `${most} bytes more`);

    // Time on the processor, the least of several runs, the two sizes in turn: other programs disturb that little.
    const best = { small: Number.POSITIVE_INFINITY, large: Number.POSITIVE_INFINITY };
    for (let round = 0; round < 3; round++) {
      for (const [size, bytes] of [
        ['small', small],
        ['large', large],
      ] as const) {
        const start = process.cpuUsage();
        const messages = readInPieces(scanner, bytes);
        // Their sum is exact; which of it was the user's, the kernel guesses from its ticks.
        const { user, system } = process.cpuUsage(start);
        best[size] = Math.min(best[size], (user + system) / 1000);
        assert.deepEqual(
          messages.responses.map(({ key }) => key),
          ['n:7'],
        );
      }
    }
    t.diagnostic(`${most} bytes more; ${best.small.toFixed(1)} ms for 5 MB, ${best.large.toFixed(1)} ms for 50 MB`);
    assert.ok(best.large < 25 * best.small, `${best.large / best.small} times as long for ten times the text`);
    // The same in one piece.
    scanner.push(large, 0, large.length);
    assert.deepEqual(
      scanner.end().responses.map(({ key }) => key),
      ['n:7'],
    );
  });
}

test('an id or a method of 10 MB in a request costs no more than its bound', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const scanner = new MessageScanner('requests');
  for (const [head, tail, request] of [
    ['{"method":"m","id":"', '"}', { key: null, method: 'm' }],
    ['{"method":"m","id":', '}', { key: null, method: 'm' }],
    ['{"id":1,"method":"', '"}', { key: 'n:1', method: '7'.repeat(128) }],
  ] as const) {
    const bytes = filled(head, '7', tail, 10);
    collect();
    const before = process.memoryUsage();
    let most = 0;
    const { requests } = readInPieces(scanner, bytes, () => {
      const { heapUsed, arrayBuffers } = process.memoryUsage();
      most = Math.max(most, heapUsed + arrayBuffers - before.heapUsed - before.arrayBuffers);
    });
    assert.deepEqual(requests, [request]);
    assert.ok(most < 2e6, `${most} bytes more`);
  }
});

test('what comes after a fault, a method or too many brackets is not looked at', () => {
  const rest = Buffer.alloc(10_000_000, '"\\u0041');
  for (const [text, messages] of [
    ['{"method":', NO_MESSAGES],
    ['{]', readText('responses', '{]')],
    ['['.repeat(1025), readText('responses', '{]')],
  ] as const) {
    const scanner = new MessageScanner('responses');
    scanner.push(Buffer.from(text), 0, text.length);
    const start = process.cpuUsage();
    for (let i = 0; i < 100; i++) scanner.push(rest, 0, rest.length);
    const elapsed = process.cpuUsage(start).user / 1000;
    assert.deepEqual(scanner.end(), messages);
    // To look at a gigabyte would take several seconds.
    assert.ok(elapsed < 500, `${elapsed} ms`);
  }
});
