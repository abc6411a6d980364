/**
 * Whatever servers and consumers do to a guarded `fetch`: it settles, it hands on what came, and it never sends the
 * cursor of a request whose result was read.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { type GuardedSession, openSession } from '../support/guarded-session.ts';
import { block, priming, progress, result } from '../support/messages.ts';
import type { ScriptedCall } from '../support/scripted-fetch.ts';
import { within } from '../support/waiting.ts';

/** How a server's side goes on, piece by piece, and ends. */
interface Plan {
  readonly events: number;
  readonly answers: boolean;
  /** The pieces' size in bytes; 0 for one piece an event. */
  readonly size: number;
  readonly end: 'clean' | 'broken' | 'open';
}

const plan: fc.Arbitrary<Plan> = fc.record({
  events: fc.integer({ min: 0, max: 3 }),
  answers: fc.boolean(),
  size: fc.constantFrom(0, 0, 1, 13),
  end: fc.constantFrom('clean', 'broken', 'open'),
});

/** Reads so many pieces and then leaves; null reads to the end. */
const patience = fc.option(fc.integer({ min: 0, max: 4 }), { nil: null, freq: 3 });

type Step =
  | { readonly do: 'post'; readonly plan: Plan; readonly reads: number | null }
  | { readonly do: 'listen' }
  | {
      readonly do: 'resume';
      readonly cursor: number;
      readonly how: 'stream' | 'status' | 'refused' | 'abort';
      readonly plan: Plan;
      readonly reads: number | null;
    };

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ do: fc.constant('post' as const), plan, reads: patience }),
  fc.record({ do: fc.constant('listen' as const) }),
  fc.record({
    do: fc.constant('resume' as const),
    cursor: fc.nat(),
    how: fc.constantFrom('stream', 'stream', 'stream', 'status', 'refused', 'abort'),
    plan,
    reads: patience,
  }),
);

interface Known {
  readonly id: number;
  readonly cursor: string;
  readonly isTerminal: boolean;
}

/** What came of one body at the consumer. */
async function consume(response: Response, reads: number | null): Promise<{ text: string; whole: boolean }> {
  const reader = response.body!.getReader();
  let text = '';
  for (let count = 0; reads === null || count < reads; count += 1) {
    const { done, value } = await within('a piece', reader.read());
    if (done) return { text, whole: true };
    text += Buffer.from(value).toString();
  }
  await reader.cancel();
  return { text, whole: false };
}

class Run {
  readonly #session: GuardedSession;
  readonly #known: Known[] = [];
  /** Requests whose result a consumer has read, and come back for more. */
  readonly #had = new Set<number>();
  #posts = 0;
  #events = 0;

  constructor(session: GuardedSession) {
    this.#session = session;
  }

  async take(one: Step): Promise<void> {
    if (one.do === 'listen') {
      const response = this.#session.get();
      (await this.#session.script.next('the listening GET')).respond();
      await within('the listening stream', response);
    } else if (one.do === 'post') {
      this.#posts += 1;
      const { call, response } = await this.#session.post(this.#posts);
      await this.#stream(call, response, this.#posts, priming(this.#mint()), one.plan, one.reads);
    } else if (this.#known.length > 0) {
      await this.#resume(one, this.#known[one.cursor % this.#known.length]!);
    }
    this.#session.pass(200);
  }

  async #resume(one: Extract<Step, { do: 'resume' }>, { id, cursor, isTerminal }: Known): Promise<void> {
    const { script } = this.#session;
    const before = script.calls.length;
    const abort = new AbortController();
    const response = this.#session.get(cursor, {}, abort.signal);
    await new Promise((resolve) => setImmediate(resolve));
    if (script.calls.length === before) {
      // Answered from memory.
      const answer = await within('an answer from memory', response);
      assert.match(answer.headers.get('proxy-status') ?? '', /^mcp-resume-guard/);
      await answer.text();
      return;
    }
    const call = await script.next('the resume');
    if (isTerminal || this.#had.has(id)) assert.equal(call.cursor, null, `${cursor} is finished`);
    else assert.equal(call.cursor, cursor);
    if (one.how === 'status') {
      call.answer(404, { 'content-type': 'text/plain' }, 'no');
      assert.equal((await within('the status', response)).status, 404);
    } else if (one.how === 'refused') {
      call.fail(new TypeError('fetch failed'));
      await assert.rejects(within('the failure', response), /fetch failed/);
    } else if (one.how === 'abort') {
      abort.abort();
      await assert.rejects(within('the abort', response), { name: 'AbortError' });
    } else {
      // Without its cursor it is a listening stream, whose events are of no request.
      await this.#stream(call, response, call.cursor === null ? 0 : id, '', one.plan, one.reads);
    }
  }

  #mint(): string {
    return `e${++this.#events}`;
  }

  /** The cursors that a consumer has who read this much. */
  #note(id: number, got: string): void {
    for (const [whole, cursor = ''] of got.matchAll(/id: (\S+)\n(?:.+\n)*\n/g)) {
      this.#known.push({ id, cursor, isTerminal: whole.includes('"result"') });
    }
  }

  async #stream(
    call: ScriptedCall,
    pending: Promise<Response>,
    id: number,
    first: string,
    { events, answers, size, end }: Plan,
    reads: number | null,
  ): Promise<void> {
    const blocks = first === '' ? [] : [first];
    for (let n = 0; n < events; n += 1) {
      blocks.push(block({ event: 'message', id: this.#mint(), data: progress(id, n) }));
    }
    // A plain listening GET carries no answers.
    const answered = answers && call.cursor !== null ? true : answers && call.method === 'POST';
    if (answered) blocks.push(block({ id: this.#mint(), data: result(id) }));
    const text = blocks.join('');
    call.respond();
    const pieces = size === 0 ? blocks : (text.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? []);
    for (const piece of pieces) call.write(piece);
    // A body that stays open is read as far as it goes; one that broke loses what is queued.
    if (end === 'clean') call.end();
    const limited = end === 'clean' ? reads : Math.min(reads ?? pieces.length, pieces.length);
    if (end !== 'clean' && text === '') {
      call.break();
      await within('the break', pending).then(
        (response) => assert.rejects(response.text()),
        () => {},
      );
      return;
    }
    const response = await within('the response', pending);
    if (response.headers.has('proxy-status')) {
      assert.equal(text, '', 'only an empty replay is refused');
      await response.text();
      return;
    }
    const { text: got, whole } = await consume(response, limited);
    assert.ok(text.startsWith(got), `${JSON.stringify(got)} is not the beginning of ${JSON.stringify(text)}`);
    this.#note(id, got);
    if (!whole) return;
    assert.equal(got, text);
    if (answered) this.#had.add(id);
  }
}

test('a guarded fetch settles, hands on what came, and keeps finished cursors to itself', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
      const session = await openSession({ replayHold: 20, replayDeadline: 40, dedupe: false });
      const run = new Run(session);
      for (const one of steps) await run.take(one);
      for (const call of session.script.calls) {
        try {
          call.break();
        } catch {}
      }
    }),
    { numRuns: Number(process.env['FUZZ_RUNS'] ?? 150), interruptAfterTimeLimit: 60_000 },
  );
});
