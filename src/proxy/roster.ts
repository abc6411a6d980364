/**
 * A set whose members come and go with every request. A `Set` would do, but whenever one makes room it leaves a table
 * behind that refers to the next one: once such a table is old, dead or not, whatever passes through the set later
 * outlives the young generation. That alone was a seventh of the time of a small request.
 */

/** Where a member sits; nobody else's business. */
export interface Seated {
  seat: number | null;
}

export class Roster<T extends Seated> {
  readonly #seats: T[] = [];

  get size(): number {
    return this.#seats.length;
  }

  add(member: T): void {
    member.seat = this.#seats.length;
    this.#seats.push(member);
  }

  /** False where it was not, or no longer, in here. */
  remove(member: T): boolean {
    const { seat } = member;
    if (seat === null) return false;
    const last = this.#seats.pop()!;
    if (last !== member) {
      this.#seats[seat] = last;
      last.seat = seat;
    }
    member.seat = null;
    return true;
  }

  /** All of them now. */
  members(): readonly T[] {
    return [...this.#seats];
  }
}
