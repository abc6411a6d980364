/** A session in the ledger (`ledger.ts`) that is told to, and hears of, other replicas, through fields in a map. */
import { proveByConnection } from '../../src/core/delivery.ts';
import type { Leg } from '../../src/core/ledger.ts';
import { Replica } from '../../src/core/replica.ts';
import { decodeViews } from '../../src/core/view.ts';
import { BOUNDS, Scene } from './ledger.ts';

export type Fields = Map<string, string>;

let ids = 0;

/** The clocks of all of them are right, and the same unless a test moves one. */
export class Told extends Scene {
  readonly fields: Fields;
  readonly replica: Replica;
  readonly name: string;
  readonly view: string;
  shift = 5_000_000;

  constructor(fields: Fields = new Map()) {
    super();
    this.fields = fields;
    ids += 1;
    this.name = `replica-${ids}`;
    this.view = `view-${ids}`;
    this.replica = new Replica(this.session, {
      view: this.view,
      replica: this.name,
      bounds: { ...BOUNDS, sessionMemory: 600_000 },
      proofMemory: 60_000,
      newId: () => `stream-${++ids}`,
      proven: (receipt, now) => proveByConnection(receipt, now, undefined) === 'proven',
    });
  }

  get moment(): { now: number; shift: number } {
    return { now: this.now, shift: this.shift };
  }

  /** Everything known here stands in the fields from now on. */
  tell(): this {
    const { set, remove } = this.replica.changes(this.moment);
    for (const [field, value] of set) this.fields.set(field, value);
    for (const field of remove) this.fields.delete(field);
    return this;
  }

  /** Merges what stands in the fields; `alive` names the replicas that still beat. */
  hear(alive: readonly string[] = [], fields: Iterable<readonly [string, string]> = this.fields): this {
    this.replica.absorb(decodeViews(Object.fromEntries(fields)), (name) => alive.includes(name), this.moment);
    return this;
  }

  /** Another replica of the same session, which has heard of nothing yet. */
  other(): Told {
    const other = new Told(this.fields);
    other.now = this.now;
    return other;
  }

  /** An exchange that continues the stream this cursor is of. */
  resumedAt(cursor: string): Leg {
    const { target } = this.resolve(cursor);
    if (target === null) throw new Error(`no stream continues after ${cursor}`);
    return this.resumed({ stream: target.stream } as Leg);
  }
}
