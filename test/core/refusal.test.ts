/** Section 7 of the contract: status, words and form of a refusal, and what goes with it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { REFUSABLE } from '../../src/config-schema.ts';
import { requestKeyOf } from '../../src/core/jsonrpc.ts';
import {
  type AnswerOptions,
  proxyStatus,
  REFUSALS,
  type RefusalContext,
  type RefusalForm,
  type RefusalRow,
  type RefusalRule,
  refusalAnswer,
  refusalBody,
  refusalEvent,
  refusalForm,
  refusalStatus,
  wantsConnectionLost,
} from '../../src/core/refusal.ts';

const RULES = Object.keys(REFUSALS) as RefusalRule[];
const FIRST = 50_000;

/** The first refusal, toward nobody in particular, of a cursor with one pending request. */
const BASE: RefusalContext = {
  rule: 'empty-replay',
  refuseWith: 'auto',
  versioned: true,
  userAgent: '',
  pending: requestKeyOf(7),
  firstRefusedAt: null,
  now: FIRST,
};
const contextOf = (facts: Partial<RefusalContext>): RefusalContext => ({ ...BASE, ...facts });
const again = (after: number): Partial<RefusalContext> => ({ firstRefusedAt: FIRST, now: FIRST + after });

const EXPECTED: Readonly<Record<RefusalRule, Omit<RefusalRow, 'message'>>> = {
  'minted-id': { status: 405, retry: 'none' },
  'session-ended': { status: 404, retry: 'session' },
  'generation-mismatch': { status: 409, retry: 'session' },
  'finished-while-listening': { status: 409, retry: 'none' },
  'finished-storm': { status: 409, retry: 'none' },
  'below-replay-floor': { status: 409, retry: 'request' },
  'cursor-unrecorded': { status: 409, retry: 'request' },
  'session-unrecorded': { status: 404, retry: 'session' },
  'empty-replay': { status: 409, retry: 'request' },
};

test('every rule that refuses has its status and says what to do next', () => {
  assert.deepEqual(
    Object.fromEntries(RULES.map((rule) => [rule, { status: REFUSALS[rule].status, retry: REFUSALS[rule].retry }])),
    EXPECTED,
  );
});

test('every rule that refuses has one sentence for a person, with what to do in it', () => {
  for (const rule of RULES) {
    const { message, retry } = REFUSALS[rule];
    assert.match(message, /^[A-Z][^.]+\.$/, rule);
    assert.equal(/send the request again/.test(message), retry === 'request', rule);
    assert.equal(/start a new session/.test(message), retry === 'session', rule);
  }
});

test('the rules whose status can be overridden are the rules that refuse', () => {
  assert.deepEqual([...REFUSABLE].sort(), [...RULES].sort());
});

describe('the form', () => {
  const GO = 'Go-http-client/1.1';
  const none = { pending: null } as const;
  for (const [name, facts, form] of [
    // refuseWith: status
    ['status: the status, at first', { refuseWith: 'status' }, 'status'],
    ['status: the status, ever after', { refuseWith: 'status', ...again(10_000) }, 'status'],
    ['status: the status toward Go', { refuseWith: 'status', userAgent: GO, ...none }, 'status'],
    // refuseWith: event
    ['event: the event at once', { refuseWith: 'event' }, 'event'],
    ['event: whatever the revision', { refuseWith: 'event', versioned: false }, 'event'],
    ['event: the status where no single id is pending', { refuseWith: 'event', ...none }, 'status'],
    [
      'event: the status toward Go where no single id is pending',
      { refuseWith: 'event', userAgent: GO, ...none },
      'status',
    ],
    // auto
    ['auto: the status the first time', {}, 'status'],
    ['auto: the status 0 ms later', again(0), 'status'],
    ['auto: the status 799 ms later', again(799), 'status'],
    ['auto: the event 800 ms later', again(800), 'event'],
    ['auto: the event 801 ms later', again(801), 'event'],
    ['auto: the event an hour later', again(3_600_000), 'event'],
    ['auto: the status then, where no single id is pending', { ...again(800), ...none }, 'status'],
    ['auto: the status then, where the request names no revision', { ...again(800), versioned: false }, 'status'],
    // auto, Go
    ['auto, Go: the event at once', { userAgent: GO }, 'event'],
    ['auto, Go 2.0: the event at once', { userAgent: 'Go-http-client/2.0' }, 'event'],
    ['auto, Go: what upstream says where no single id is pending', { userAgent: GO, ...none }, 'upstream'],
    ['auto, Go: the same ever after', { userAgent: GO, ...none, ...again(800) }, 'upstream'],
    ['auto, Go without a revision: the status', { userAgent: GO, versioned: false }, 'status'],
    ['auto, not quite Go: the status', { userAgent: 'go-http-client/1.1' }, 'status'],
    ['auto, Go behind something else: the status', { userAgent: `x ${GO}` }, 'status'],
  ] satisfies readonly (readonly [string, Partial<RefusalContext>, RefusalForm])[]) {
    test(name, () => {
      for (const rule of RULES) assert.equal(refusalForm(contextOf({ ...facts, rule })), form, rule);
    });
  }

  test('a failed GET looks like a lost connection to Go under auto, and to nobody else', () => {
    for (const [facts, lost] of [
      [{ userAgent: GO }, true],
      [{ userAgent: GO, versioned: false }, false],
      [{ userAgent: GO, refuseWith: 'status' }, false],
      [{ userAgent: GO, refuseWith: 'event' }, false],
      [{ userAgent: 'node' }, false],
      [{}, false],
    ] as const) {
      assert.equal(wantsConnectionLost(contextOf(facts)), lost, JSON.stringify(facts));
    }
  });
});

describe('the status', () => {
  test('is the rule’s own', () => {
    for (const rule of RULES) assert.equal(refusalStatus(contextOf({ rule }), {}), EXPECTED[rule].status);
  });

  for (const [name, facts, quiet] of [
    ['node', { userAgent: 'node' }, true],
    ['undici', { userAgent: 'undici' }, true],
    ['node without a revision', { userAgent: 'node', versioned: false }, false],
    ['node, with refuseWith: status', { userAgent: 'node', refuseWith: 'status' }, false],
    ['node, with refuseWith: event', { userAgent: 'node', refuseWith: 'event' }, false],
    ['Node', { userAgent: 'Node' }, false],
    ['node-fetch', { userAgent: 'node-fetch' }, false],
    ['nobody', { userAgent: '' }, false],
  ] as const) {
    test(`is ${quiet ? 405 : 409} toward ${name}, for what is finished`, () => {
      for (const rule of RULES) {
        const finished = rule === 'finished-while-listening' || rule === 'finished-storm';
        const expected = finished && quiet ? 405 : EXPECTED[rule].status;
        assert.equal(refusalStatus(contextOf({ ...facts, rule }), {}), expected, rule);
      }
    });
  }

  test('is the operator’s where there is one, for that rule alone', () => {
    const node = { rule: 'finished-storm', userAgent: 'node' } as const;
    assert.equal(refusalStatus(contextOf({}), { 'empty-replay': 410 }), 410);
    assert.equal(refusalStatus(contextOf({}), { 'session-ended': 410 }), 409);
    assert.equal(refusalStatus(contextOf(node), { 'finished-storm': 204 }), 204);
  });
});

describe('the body', () => {
  test('of a status is a JSON-RPC error without an id, with the rule and what to do', () => {
    for (const rule of RULES) {
      const { message, retry } = REFUSALS[rule];
      assert.deepEqual(JSON.parse(refusalBody(rule)), {
        jsonrpc: '2.0',
        error: { code: -32010, message, data: { rule, retry } },
      });
    }
  });

  test('of the event is one message event with our ID, and the error for exactly that request', () => {
    for (const id of [7, -1, 0, 1.5, 'a', '7', '', 'a"b\\c', 'line\nbreak', 'caf\u00e9']) {
      const text = refusalEvent('empty-replay', requestKeyOf(id), 'minted-1');
      const lines = text.split('\n');
      assert.deepEqual([lines[0], lines[1], lines.slice(3)], ['event: message', 'id: minted-1', ['', '']]);
      const { id: answered, ...rest } = JSON.parse(lines[2]!.replace(/^data: /, ''));
      assert.equal(answered, id);
      assert.deepEqual(rest, JSON.parse(refusalBody('empty-replay')));
    }
  });

  test('keeps an id that doubles cannot hold as it was written', () => {
    const key = 'n:9007199254740993' as RefusalContext['pending'];
    assert.match(refusalEvent('empty-replay', key!, 'x'), /"id":9007199254740993,/);
  });
});

test('Proxy-Status names us, the rule, and what upstream had answered where it was asked', () => {
  assert.equal(proxyStatus('empty-replay', 200), 'mcp-resume-guard; received-status=200; details="empty-replay"');
  assert.equal(proxyStatus('session-ended', null), 'mcp-resume-guard; details="session-ended"');
  assert.equal(proxyStatus('finished', null), 'mcp-resume-guard; details="finished"');
});

describe('the answer', () => {
  const OPTIONS: AnswerOptions = { refusals: {}, proxyStatus: true, mint: () => 'minted-1' };
  const UPSTREAM = {
    status: 200,
    fields: ['Content-Type', 'text/event-stream', 'Set-Cookie', 'a=1', 'X-Other', 'x', 'Vary', 'Origin'],
  };
  const CORS = ['Access-Control-Allow-Origin', 'http://localhost'];

  test('from memory is JSON, not to be stored, and carries what upstream last told that origin', () => {
    assert.deepEqual(refusalAnswer(contextOf({ rule: 'below-replay-floor' }), OPTIONS, null, CORS), {
      status: 409,
      fields: [
        ...['Content-Type', 'application/json', 'Cache-Control', 'no-store'],
        ...['Proxy-Status', 'mcp-resume-guard; details="below-replay-floor"'],
        ...CORS,
      ],
      body: refusalBody('below-replay-floor'),
    });
  });

  test('in place of upstream’s carries what belongs to the browser and the session from there, and nothing else', () => {
    const { fields } = refusalAnswer(BASE, OPTIONS, UPSTREAM, CORS);
    assert.deepEqual(fields.slice(4), [
      ...['Proxy-Status', 'mcp-resume-guard; received-status=200; details="empty-replay"'],
      ...['Set-Cookie', 'a=1', 'Vary', 'Origin'],
    ]);
  });

  test('as an event is a 200 and an event stream', () => {
    const { status, fields, body } = refusalAnswer(contextOf({ refuseWith: 'event' }), OPTIONS, UPSTREAM, []);
    assert.deepEqual(
      [status, fields[1], body],
      [200, 'text/event-stream', refusalEvent('empty-replay', BASE.pending!, 'minted-1')],
    );
  });

  test('says which methods are left where it is a 405, whoever chose it', () => {
    const allow = (context: RefusalContext, refusals: AnswerOptions['refusals'] = {}) => {
      const { fields } = refusalAnswer(context, { ...OPTIONS, refusals }, null, []);
      return fields.includes('Allow') ? fields[fields.indexOf('Allow') + 1] : undefined;
    };
    assert.equal(allow(contextOf({ rule: 'minted-id', pending: null })), 'POST, DELETE');
    assert.equal(allow(contextOf({ rule: 'finished-storm', userAgent: 'node', pending: null })), 'POST, DELETE');
    assert.equal(allow(BASE, { 'empty-replay': 405 }), 'POST, DELETE');
    assert.equal(allow(BASE), undefined);
    assert.equal(allow(contextOf({ rule: 'minted-id', refuseWith: 'event' })), undefined, 'not as an event');
  });

  test('is without a body where it is a 204, and unmarked where that is wished', () => {
    assert.equal(refusalAnswer(BASE, { ...OPTIONS, refusals: { 'empty-replay': 204 } }, UPSTREAM, []).body, '');
    const { fields } = refusalAnswer(BASE, { ...OPTIONS, proxyStatus: false }, UPSTREAM, []);
    assert.ok(!fields.includes('Proxy-Status'), 'no mark');
  });
});
