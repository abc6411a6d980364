/** What may happen: random scripts of a client, a server and the network between them. */
import fc from 'fast-check';
import type { Style } from './server.ts';

/** How a call goes. */
export type Fate =
  | 'open'
  | 'done'
  | 'done-now'
  | 'left-before'
  | 'left-in-flight'
  | 'left-late'
  | 'vanished'
  | 'stuck'
  | 'blocked'
  | 'cut'
  | 'cut-after'
  | 'half'
  | 'poll'
  | 'elsewhere'
  | 'one-of-two'
  | 'lost'
  | 'json'
  | 'late-head'
  | 'unreadable';

/** Which cursor a resume carries. */
type Cursor = 'last' | 'older' | 'unknown' | 'minted' | '0' | 'r';
type Caller = 'self' | 'stranger' | 'renewed';
type Emission =
  | 'note'
  | 'priming'
  | 'answer'
  | 'answer-one'
  | 'end'
  | 'elsewhere'
  | 'again'
  | 'part'
  | 'lose'
  | 'blind';
type Leaving = 'now' | 'vanish' | 'error' | 'stick' | 'unstick' | 'block' | 'unblock' | 'close-idle';

export type Step =
  | {
      readonly do: 'call';
      readonly who: number;
      readonly keys: 1 | 2;
      readonly reuse: boolean;
      readonly kept: boolean;
      readonly latency: number;
      readonly notes: number;
      readonly fate: Fate;
    }
  | {
      readonly do: 'resume';
      readonly who: number;
      readonly which: number;
      readonly cursor: Cursor;
      readonly as: Caller;
      readonly kept: boolean;
      readonly latency: number;
      readonly times: number;
      readonly gap: number;
      /** Which of the attempts the client gives up. */
      readonly leaves: 'each' | 'all-but-last' | 'none';
      /** It begins to listen before its last attempt. */
      readonly listens: boolean;
    }
  | {
      readonly do: 'odd';
      readonly who: number;
      readonly which: number;
      readonly what: 'empty' | 'two-cursors' | 'two-sessions' | 'revision' | 'minted-twice';
    }
  | { readonly do: 'listen'; readonly who: number; readonly latency: number }
  | {
      readonly do: 'emit';
      readonly who: number;
      readonly which: number;
      readonly what: Emission;
    }
  | {
      readonly do: 'leave';
      readonly which: number;
      readonly how: Leaving;
    }
  | { readonly do: 'cut'; readonly which: number }
  | { readonly do: 'wait'; readonly ms: number }
  | {
      readonly do: 'restart';
      readonly crash: boolean;
      readonly sessions: boolean;
      readonly streams: boolean;
      readonly counters: boolean;
      readonly noticed: boolean;
    }
  | { readonly do: 'down' | 'up' }
  | { readonly do: 'replica'; readonly unknown: Style['unknown']; readonly quiet: Style['quiet'] }
  | { readonly do: 'two-replicas'; readonly who: number; readonly which: number; readonly times: number }
  | { readonly do: 'initialize'; readonly who: number; readonly stream: boolean; readonly fresh: boolean }
  | { readonly do: 'remove'; readonly who: number; readonly really: boolean }
  | { readonly do: 'gone'; readonly who: number; readonly method: boolean }
  | { readonly do: 'successor'; readonly who: number; readonly dies: boolean }
  | { readonly do: 'token'; readonly who: number; readonly times: number }
  | { readonly do: 'guard-restart' };

export interface Script {
  readonly style: Style;
  /** The contract's bounds, or so few that forgetting is the rule. */
  readonly small: boolean;
  readonly kernelKnown: boolean;
  readonly unrecorded: 'forward' | 'complete' | 'refuse';
  readonly deliveryProof: 'connection' | 'event-id';
  readonly client: {
    readonly anonymous: boolean;
    readonly forwarded: boolean;
    readonly userAgent: string;
    readonly versioned: boolean;
    /** Its session began through the guard. */
    readonly seen: boolean;
  };
  readonly steps: readonly Step[];
}

const oneOf = <T>(...choices: readonly (readonly [weight: number, value: T])[]): fc.Arbitrary<T> =>
  fc.oneof(...choices.map(([weight, value]) => ({ weight, arbitrary: fc.constant(value) })));

const unknown = fc.constantFrom<Style['unknown']>(
  ...(['empty', 'empty', 'empty', 'hang', 'hang', 'not-found', 'text', 'cut', 'no-head'] as const),
);
const quiet = oneOf<Style['quiet']>([4, 'stay'], [3, 'end'], [2, 'end-later'], [1, 'cut']);

const style: fc.Arbitrary<Style> = fc.record({
  ids: oneOf<Style['ids']>([3, 'unique'], [2, 'per-stream'], [2, 'shared-priming'], [1, 'one-result-id']),
  primes: oneOf([4, true], [1, false]),
  primesListening: fc.boolean(),
  retries: fc.boolean(),
  bareResults: oneOf([5, false], [1, true]),
  bareNotes: oneOf([5, false], [1, true]),
  resolves: oneOf<Style['resolves']>([3, 'newest'], [2, 'oldest'], [2, 'quiet'], [2, 'all']),
  replays: oneOf<Style['replays']>([3, 'after'], [2, 'inclusive'], [1, 'from-start']),
  primesAgain: oneOf([5, false], [1, true]),
  keeps: oneOf<Style['keeps']>([4, 'all'], [4, 'until-sent'], [1, 'nothing']),
  knowsStream: oneOf([2, true], [1, false]),
  unknown,
  quiet,
  listens: oneOf<Style['listens']>([3, 'yes'], [2, 'never'], [1, 'one'], [1, 'latest']),
  seconds: fc.constantFrom<Style['seconds']>('replace', 'beside', 'refuse'),
});

const who = oneOf([5, 0], [2, 1], [1, 2]);
const which = oneOf([6, 0], [3, 1], [1, 2], [1, 3]);
const latency = fc.constantFrom(0, 0, 1, 40);
const fate = oneOf<Fate>(
  [4, 'open'],
  [5, 'done'],
  [2, 'done-now'],
  [3, 'left-before'],
  [3, 'left-in-flight'],
  [2, 'left-late'],
  [2, 'vanished'],
  [2, 'stuck'],
  [1, 'blocked'],
  [2, 'cut'],
  [1, 'cut-after'],
  [1, 'half'],
  [4, 'poll'],
  [2, 'elsewhere'],
  [2, 'one-of-two'],
  [3, 'lost'],
  [1, 'json'],
  [1, 'late-head'],
  [1, 'unreadable'],
);
const rarely = oneOf([6, false], [1, true]);

const call = fc.record({
  do: fc.constant('call' as const),
  who,
  keys: oneOf<1 | 2>([3, 1], [1, 2]),
  reuse: rarely,
  kept: fc.boolean(),
  latency,
  notes: oneOf([3, 0], [2, 1], [1, 3]),
  fate,
});
const resume = fc.record({
  do: fc.constant('resume' as const),
  who,
  which,
  cursor: oneOf<Cursor>([12, 'last'], [3, 'older'], [1, 'unknown'], [1, 'minted'], [1, '0'], [1, 'r']),
  as: oneOf<Caller>([10, 'self'], [1, 'stranger'], [1, 'renewed']),
  kept: fc.boolean(),
  latency,
  times: oneOf([6, 1], [3, 2], [1, 4], [3, 13]),
  gap: fc.constantFrom(0, 0, 100, 900, 1_000, 1_500, 2_600, 6_000, 6_000, 6_000),
  leaves: fc.constantFrom('each' as const, 'each', 'all-but-last', 'all-but-last', 'none'),
  listens: rarely,
});
const odd = fc.record({
  do: fc.constant('odd' as const),
  who,
  which,
  what: fc.constantFrom('empty' as const, 'two-cursors', 'two-sessions', 'revision', 'minted-twice'),
});
const emit = fc.record({
  do: fc.constant('emit' as const),
  who,
  which,
  what: oneOf<Emission>(
    [4, 'note'],
    [1, 'priming'],
    [4, 'answer'],
    [1, 'answer-one'],
    [3, 'end'],
    [2, 'elsewhere'],
    [1, 'again'],
    [1, 'part'],
    [1, 'lose'],
    [1, 'blind'],
  ),
});
const leave = fc.record({
  do: fc.constant('leave' as const),
  which,
  how: oneOf<Leaving>(
    [4, 'now'],
    [2, 'vanish'],
    [1, 'error'],
    [1, 'stick'],
    [1, 'unstick'],
    [1, 'block'],
    [1, 'unblock'],
    [1, 'close-idle'],
  ),
});
const wait = fc.record({
  do: fc.constant('wait' as const),
  ms: fc.constantFrom(1, 50, 99, 100, 101, 800, 1_000, 2_001, 5_001, 30_000, 61_000, 130_000, 700_000),
});
const restart = fc.record({
  do: fc.constant('restart' as const),
  crash: fc.boolean(),
  sessions: oneOf([3, true], [1, false]),
  streams: fc.boolean(),
  counters: fc.boolean(),
  noticed: fc.boolean(),
});

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 24, arbitrary: call },
  { weight: 34, arbitrary: resume },
  { weight: 3, arbitrary: odd },
  { weight: 7, arbitrary: fc.record({ do: fc.constant('listen' as const), who, latency }) },
  { weight: 14, arbitrary: emit },
  { weight: 9, arbitrary: leave },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('cut' as const), which }) },
  { weight: 10, arbitrary: wait },
  { weight: 3, arbitrary: restart },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('replica' as const), unknown, quiet }) },
  {
    weight: 1,
    arbitrary: fc.record({ do: fc.constant('two-replicas' as const), who, which, times: fc.constantFrom(1, 2, 3) }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('down' as const, 'up' as const) }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('initialize' as const), who, stream: fc.boolean(), fresh: fc.boolean() }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('remove' as const), who, really: fc.boolean() }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('gone' as const), who, method: rarely }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('successor' as const), who, dies: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('token' as const), who, times: oneOf([8, 1], [1, 70]) }) },
  { weight: 1, arbitrary: fc.constant({ do: 'guard-restart' as const }) },
);

export const script: fc.Arbitrary<Script> = fc.record({
  style,
  small: oneOf([2, false], [1, true]),
  kernelKnown: oneOf([2, true], [1, false]),
  unrecorded: oneOf<Script['unrecorded']>([4, 'forward'], [2, 'complete'], [1, 'refuse']),
  deliveryProof: oneOf<Script['deliveryProof']>([7, 'connection'], [1, 'event-id']),
  client: fc.record({
    anonymous: rarely,
    forwarded: rarely,
    userAgent: oneOf([6, ''], [1, 'Go-http-client/1.1'], [1, 'node']),
    versioned: oneOf([3, true], [1, false]),
    seen: oneOf([6, true], [1, false]),
  }),
  steps: fc.array(step, { minLength: 4, maxLength: 24, size: 'max' }),
});
