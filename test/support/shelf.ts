/** A shelf in memory, for what is about the store and not about Redis. */
import type { Shelf, Write } from '../../src/store/shared.ts';

export class MemoryShelf implements Shelf {
  readonly keys = new Map<string, Map<string, string>>();
  /** Every write so far. */
  readonly writes: Write[] = [];
  reads = 0;
  reopened = 0;
  /** What reading and writing fail with; null where they do not. */
  readFault: Error | null = null;
  writeFault: Error | null = null;

  async read(key: string): Promise<Readonly<Record<string, string>>> {
    this.reads += 1;
    if (this.readFault !== null) throw this.readFault;
    return Object.fromEntries(this.keys.get(key) ?? []);
  }

  async write(writes: readonly Write[]): Promise<readonly (number | Error)[]> {
    return writes.map((write) => this.writeFault ?? this.#carryOut(write));
  }

  reopen(): void {
    this.reopened += 1;
  }

  #carryOut(write: Write): number {
    this.writes.push(write);
    const fields = this.keys.get(write.key) ?? new Map<string, string>();
    let fresh = 0;
    for (const [field, value] of write.set) {
      fresh += Number(!fields.has(field));
      fields.set(field, value);
    }
    for (const field of write.remove) fields.delete(field);
    if (fields.size > 0) this.keys.set(write.key, fields);
    else this.keys.delete(write.key);
    return fresh;
  }
}
