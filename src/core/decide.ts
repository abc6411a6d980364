/**
 * Deciding a resume (behaviour.md section 3): one table, tried from the top, the first row that fits wins.
 *
 * The order is the meaning. What is never touched comes first, then what can be answered for certain, then the one
 * rewrite (`strip`), then everything that is forwarded. A row that needs an approved caller says so in its condition:
 * for anybody else it does not fit, so that no answer from memory tells a stranger that a session exists.
 */

export type RuleName =
  | 'not-a-resume'
  | 'revision-without-resumption'
  | 'ambiguous-fields'
  | 'minted-id'
  | 'session-ended'
  | 'generation-mismatch'
  | 'finished-while-listening'
  | 'finished-storm'
  | 'finished'
  | 'standalone-below-floor'
  | 'below-replay-floor'
  | 'finished-undelivered'
  | 'in-window'
  | 'cursor-unrecorded'
  | 'session-unrecorded';

/** What to do with the request. `forward` means: as it came, and watch what comes back. */
export type Action = 'pass' | 'strip' | 'forward' | 'refuse';

export interface Verdict {
  readonly rule: RuleName;
  readonly action: Action;
}

/** A stream that carried the cursor, as far as the rules care. */
export interface OwnerFacts {
  readonly currentGeneration: boolean;
  readonly standalone: boolean;
  readonly state: 'open' | 'finished' | 'delivered';
  /** The cursor is below this stream's replay floor, and, if a forward would continue this one, no probe is due. */
  readonly barred: boolean;
  /** The last resume of this stream was an empty replay, and no answer can be waiting after the cursor all the same. */
  readonly lastReplayEmpty: boolean;
}

export type Unrecorded = 'forward' | 'complete' | 'refuse';

/** Everything section 3 looks at. */
export interface ResumeFacts {
  readonly get: boolean;
  /** `Last-Event-ID` fields in the request, and whether the only one is empty. */
  readonly cursorFields: number;
  readonly cursorEmpty: boolean;
  readonly sessionFields: number;
  /** `MCP-Protocol-Version` is 2026-07-28 or later. */
  readonly withoutResumption: boolean;
  readonly minted: boolean;
  readonly approved: boolean;
  readonly sessionKnown: boolean;
  readonly sessionEnded: boolean;
  /** The session has a live standalone stream through us. */
  readonly listening: boolean;
  /** Owners of the current generation, or, where there are none, of earlier ones. */
  readonly owners: readonly OwnerFacts[];
  /** A stream that was open when it (or this part of it) was forgotten may own the cursor too. */
  readonly ownerForgotten: boolean;
  /** Ten strips of this cursor within 30 s brought nothing, and no probe is due. */
  readonly storm: boolean;
  readonly unrecorded: Unrecorded;
  /** Nothing of this session can be missing here. */
  readonly complete: boolean;
}

export interface Rule {
  readonly name: RuleName;
  readonly fits: (facts: ResumeFacts) => boolean;
  readonly action: (facts: ResumeFacts) => Action;
}

const always =
  (action: Action): Rule['action'] =>
  () =>
    action;

const allOwners = (facts: ResumeFacts, test: (owner: OwnerFacts) => boolean): boolean =>
  facts.owners.length > 0 && !facts.ownerForgotten && facts.owners.every(test);

const delivered = (owner: OwnerFacts): boolean => owner.state === 'delivered';
const allDelivered = (facts: ResumeFacts): boolean => allOwners(facts, delivered);
const undelivered = (facts: ResumeFacts): OwnerFacts[] => facts.owners.filter((owner) => !delivered(owner));

export const RULES: readonly Rule[] = [
  {
    name: 'not-a-resume',
    fits: (f) => !f.get || f.cursorFields === 0 || (f.cursorFields === 1 && f.cursorEmpty),
    action: always('pass'),
  },
  { name: 'revision-without-resumption', fits: (f) => f.withoutResumption, action: always('pass') },
  { name: 'ambiguous-fields', fits: (f) => f.cursorFields > 1 || f.sessionFields > 1, action: always('pass') },
  { name: 'minted-id', fits: (f) => f.minted, action: always('refuse') },
  { name: 'session-ended', fits: (f) => f.sessionEnded && f.approved, action: always('refuse') },
  {
    name: 'generation-mismatch',
    fits: (f) => f.approved && allOwners(f, (owner) => !owner.currentGeneration),
    action: always('refuse'),
  },
  {
    name: 'finished-while-listening',
    fits: (f) => f.approved && f.listening && allDelivered(f),
    action: always('refuse'),
  },
  { name: 'finished-storm', fits: (f) => f.approved && f.storm && allDelivered(f), action: always('refuse') },
  { name: 'finished', fits: allDelivered, action: always('strip') },
  {
    name: 'standalone-below-floor',
    fits: (f) => {
      const [open, ...more] = undelivered(f);
      return open !== undefined && more.length === 0 && !f.ownerForgotten && open.standalone && open.lastReplayEmpty;
    },
    action: always('strip'),
  },
  {
    name: 'below-replay-floor',
    fits: (f) => {
      const open = undelivered(f);
      return f.approved && !f.ownerForgotten && open.length > 0 && open.every((owner) => owner.barred);
    },
    action: always('refuse'),
  },
  {
    name: 'finished-undelivered',
    fits: (f) => allOwners(f, (owner) => owner.state !== 'open'),
    action: always('forward'),
  },
  {
    name: 'in-window',
    fits: (f) => f.owners.some((owner) => owner.state === 'open'),
    action: always('forward'),
  },
  {
    name: 'cursor-unrecorded',
    fits: (f) => f.sessionKnown,
    action: (f) =>
      f.approved && (f.unrecorded === 'refuse' || (f.unrecorded === 'complete' && f.complete && !f.ownerForgotten))
        ? 'refuse'
        : 'forward',
  },
  {
    name: 'session-unrecorded',
    fits: () => true,
    action: (f) => (f.unrecorded === 'refuse' ? 'refuse' : 'forward'),
  },
];

/** The verdict for a request. Total: the last row fits everything. */
export function decide(facts: ResumeFacts): Verdict {
  for (const rule of RULES) {
    if (rule.fits(facts)) return { rule: rule.name, action: rule.action(facts) };
  }
  throw new Error('unreachable: the last rule fits everything');
}
