/** Fields on their way through: which cross, in what order, and what is added (sections 8 and 9 of the contract). */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  allValues,
  cameThroughIntermediary,
  carriedOver,
  corsOf,
  endToEnd,
  firstValue,
  isWithoutResumption,
  leavingOut,
  mediaType,
  pairs,
  rewriteLocation,
  type TowardUpstream,
  towardClient,
  towardUpstream,
} from '../../src/core/fields.ts';

describe('reading', () => {
  const fields = ['Set-Cookie', 'a=1', 'X-A', '', 'set-cookie', 'b=2', 'SET-COOKIE', 'a=1'];

  test('finds every value of a name in any case, in order, repeated or empty', () => {
    assert.deepEqual(allValues(fields, 'set-cookie'), ['a=1', 'b=2', 'a=1']);
    assert.deepEqual(allValues(fields, 'x-a'), ['']);
    assert.deepEqual(allValues(fields, 'x-b'), []);
  });

  test('finds the first value, and tells an empty one from none', () => {
    assert.equal(firstValue(fields, 'set-cookie'), 'a=1');
    assert.equal(firstValue(fields, 'x-a'), '');
    assert.equal(firstValue(fields, 'x-b'), null);
  });

  test('never takes a value for a name', () => {
    assert.deepEqual(allValues(['X-A', 'x-b', 'X-B', 'c'], 'x-b'), ['c']);
    assert.equal(firstValue(['X-A', 'x-b'], 'x-b'), null);
  });

  test('goes through names and values in pairs', () => {
    assert.deepEqual(
      [...pairs(['A', '1', 'B', '2'])],
      [
        ['A', '1'],
        ['B', '2'],
      ],
    );
    assert.deepEqual([...pairs([])], []);
  });
});

describe('fields that cross', () => {
  test('keep order, repetition, case and every character of their values', () => {
    const fields = [
      'Mcp-Name',
      'w\xf6rk \xff',
      'cookie',
      'a=1',
      'X-Zz',
      '',
      'Cookie',
      'b=2',
      'mcp-param-region',
      '=?base64?4pyT?=',
    ];
    assert.deepEqual(endToEnd(fields), fields);
  });

  test('are not those of one hop', () => {
    const hop = [
      'Connection',
      'Keep-Alive',
      'Proxy-Authenticate',
      'Proxy-Authorization',
      'Proxy-Connection',
      'TE',
      'Trailer',
      'Transfer-Encoding',
      'Upgrade',
      'HTTP2-Settings',
    ];
    for (const name of hop) {
      assert.deepEqual(endToEnd([name, 'x', 'X-A', '1', name.toLowerCase(), 'y']), ['X-A', '1'], name);
    }
  });

  test('are not those that Connection names, in any case, in one field or several', () => {
    const fields = [
      'X-Hop',
      '1',
      'Connection',
      'keep-alive, X-HOP ,',
      'x-other',
      '2',
      'connection',
      'x-other',
      'X-Hop-Not',
      '3',
    ];
    assert.deepEqual(endToEnd(fields), ['X-Hop-Not', '3']);
  });

  test('are those without which the protocol would change its meaning, whatever Connection names', () => {
    for (const name of ['Mcp-Session-Id', 'Last-Event-ID', 'Authorization', 'MCP-Protocol-Version']) {
      assert.deepEqual(endToEnd([name, 'x', 'Connection', `close, ${name}`]), [name, 'x']);
    }
  });

  test('are not those that are asked to stay', () => {
    assert.deepEqual(endToEnd(['Content-Length', '0', 'X-A', '1'], leavingOut('content-length')), ['X-A', '1']);
  });
});

describe('toward upstream', () => {
  const HOW: TowardUpstream = {
    authority: 'server.test:9000',
    preserveHost: false,
    clientAuthority: '127.0.0.1:8808',
    clientAddress: '127.0.0.9',
    scheme: 'http',
    httpVersion: '1.1',
    strip: false,
  };

  test('go the client’s fields, then who forwarded them for whom', () => {
    const fields = ['Host', '127.0.0.1:8808', 'Origin', 'http://localhost', 'Last-Event-ID', 'e1'];
    assert.deepEqual(towardUpstream(fields, HOW), [
      ...['Host', 'server.test:9000', 'Origin', 'http://localhost', 'Last-Event-ID', 'e1'],
      ...['X-Forwarded-For', '127.0.0.9', 'X-Forwarded-Host', '127.0.0.1:8808'],
      ...['X-Forwarded-Proto', 'http', 'Via', '1.1 mcp-resume-guard'],
    ]);
  });

  test('a strip takes the cursor away in any case, and nothing else', () => {
    const fields = ['last-event-id', 'e1', 'Mcp-Session-Id', 's', 'X-Last-Event-ID', 'e1'];
    assert.deepEqual(
      towardUpstream(fields, { ...HOW, strip: true }),
      towardUpstream(['Mcp-Session-Id', 's', 'X-Last-Event-ID', 'e1'], HOW),
    );
  });

  test('the chain of intermediaries is continued', () => {
    const fields = [
      'X-Forwarded-For',
      '192.0.2.1',
      'Via',
      '1.0 edge',
      'x-forwarded-for',
      '192.0.2.2, 192.0.2.3',
      'VIA',
      '1.1 inner',
    ];
    const out = towardUpstream(fields, HOW);
    assert.deepEqual(allValues(out, 'x-forwarded-for'), ['192.0.2.1, 192.0.2.2, 192.0.2.3, 127.0.0.9']);
    assert.deepEqual(allValues(out, 'via'), ['1.0 edge, 1.1 inner, 1.1 mcp-resume-guard']);
  });

  test('what the first of them saw of the client is kept', () => {
    const out = towardUpstream(['X-Forwarded-Host', 'public.test', 'X-Forwarded-Proto', 'https'], HOW);
    assert.deepEqual(allValues(out, 'x-forwarded-host'), ['public.test']);
    assert.deepEqual(allValues(out, 'x-forwarded-proto'), ['https']);
  });

  test('Host is upstream’s own, or the client’s where that is wished and there is one', () => {
    const hostOf = (how: Partial<TowardUpstream>) =>
      allValues(towardUpstream(['Host', 'a'], { ...HOW, ...how }), 'host');
    assert.deepEqual(hostOf({}), ['server.test:9000']);
    assert.deepEqual(hostOf({ preserveHost: true }), ['127.0.0.1:8808']);
    assert.deepEqual(hostOf({ preserveHost: true, clientAuthority: null }), ['server.test:9000']);
    const out = towardUpstream([], { ...HOW, clientAuthority: null });
    assert.deepEqual(allValues(out, 'x-forwarded-host'), []);
  });

  test('an expectation stays here', () => {
    assert.deepEqual(allValues(towardUpstream(['Expect', '100-continue'], HOW), 'expect'), []);
  });
});

test('another intermediary shows itself by Via, Forwarded or X-Forwarded-For, and by nothing else', () => {
  for (const name of ['Via', 'VIA', 'Forwarded', 'x-forwarded-for']) {
    assert.equal(cameThroughIntermediary(['X-A', '1', name, 'x']), true, name);
  }
  for (const name of ['X-Forwarded-Host', 'X-Forwarded-Proto', 'X-Via', 'X-Real-IP']) {
    assert.equal(cameThroughIntermediary([name, 'via']), false, name);
  }
  assert.equal(cameThroughIntermediary([]), false);
});

test('a media type is compared without its case and its parameters', () => {
  for (const [value, type] of [
    ['text/event-stream', 'text/event-stream'],
    ['Text/Event-Stream;Charset=UTF-8', 'text/event-stream'],
    [' text/event-stream ; a="b;c"', 'text/event-stream'],
    ['application/json', 'application/json'],
    ['', ''],
    [null, ''],
  ] as const) {
    assert.equal(mediaType(value), type);
  }
});

test('a refusal takes over what belongs to the browser, the session and the cookies, as it was', () => {
  const kept = ['access-control-allow-origin', '*', 'Access-Control-Max-Age', '5', 'Vary', 'Origin', 'vary', 'Accept'];
  const also = ['MCP-Session-ID', 's', 'Set-Cookie', 'a=1', 'set-cookie', 'b=2'];
  const others = ['ETag', '"x"', 'Content-Length', '0', 'X-Access-Control-Y', 'x', 'Proxy-Status', 'x'];
  assert.deepEqual(carriedOver([...kept, ...others, ...also]), [...kept, ...also]);
  assert.deepEqual(corsOf([...kept, ...others, ...also]), kept, 'and of that, from memory, only what is the browser’s');
});

describe('Location', () => {
  const upstream = 'http://server.test:9000';
  const ours = 'http://127.0.0.1:8808';
  for (const [value, expected] of [
    ['http://server.test:9000/mcp/', 'http://127.0.0.1:8808/mcp/'],
    ['http://server.test:9000', 'http://127.0.0.1:8808'],
    ['http://server.test:9000?a=b', 'http://127.0.0.1:8808?a=b'],
    ['http://server.test:9000#x', 'http://127.0.0.1:8808#x'],
    ['HTTP://Server.Test:9000/Mcp', 'http://127.0.0.1:8808/Mcp'],
    ['//server.test:9000/mcp', '//127.0.0.1:8808/mcp'],
    ['/mcp/', '/mcp/'],
    ['mcp', 'mcp'],
    ['http://server.test:90000/mcp', 'http://server.test:90000/mcp'],
    ['http://server.test/mcp', 'http://server.test/mcp'],
    ['https://server.test:9000/mcp', 'https://server.test:9000/mcp'],
    ['http://server.test:9000.other.test/', 'http://server.test:9000.other.test/'],
    ['http://server.test:9000@other.test/', 'http://server.test:9000@other.test/'],
    ['http://other.test/?to=http://server.test:9000/', 'http://other.test/?to=http://server.test:9000/'],
  ] as const) {
    test(`${value} is ${value === expected ? 'left alone' : `rewritten to ${expected}`}`, () => {
      assert.equal(rewriteLocation(value, upstream, ours), expected);
    });
  }

  test('is known with the port of its scheme and without', () => {
    assert.equal(rewriteLocation('http://server.test:80/a', 'http://server.test', ours), `${ours}/a`);
    assert.equal(rewriteLocation('http://server.test/a', 'http://server.test', ours), `${ours}/a`);
    assert.equal(rewriteLocation('https://server.test:443/a', 'https://server.test', ours), `${ours}/a`);
    assert.equal(rewriteLocation('https://server.test:80/a', 'https://server.test', ours), 'https://server.test:80/a');
  });

  test('is left alone toward a client that named no authority', () => {
    assert.equal(rewriteLocation(`${upstream}/mcp`, upstream, null), `${upstream}/mcp`);
  });

  test('stands where it stood, among the other fields of the answer', () => {
    const how = { upstreamOrigin: upstream, ourOrigin: ours, resized: true };
    const fields = ['A', '1', 'location', `${upstream}/x`, 'Connection', 'close', 'Content-Length', '3', 'B', upstream];
    assert.deepEqual(towardClient(fields, how), ['A', '1', 'location', `${ours}/x`, 'B', upstream]);
  });
});

test('resumption ends with the revision of 2026-07-28', () => {
  for (const [revision, without] of [
    [null, false],
    ['', false],
    ['2025-03-26', false],
    ['2025-11-25', false],
    ['2026-07-27', false],
    ['2026-07-28', true],
    ['2026-07-29', true],
    ['2027-01-01', true],
    [' 2026-07-28 ', true],
    ['2026-7-28', false],
    ['DRAFT-2027', false],
    ['9', false],
  ] as const) {
    assert.equal(isWithoutResumption(revision), without, String(revision));
  }
});
