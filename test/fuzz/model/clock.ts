/** Time in the model: it stands still until somebody waits, and whatever is due on the way happens in its order. */
export class Clock {
  now = 1_000;
  readonly #due: { readonly at: number; readonly run: () => void }[] = [];

  /** Runs something `after` ms from now; together with others, in the order of asking. Returns what keeps it from that. */
  in(after: number, run: () => void): () => void {
    const entry = { at: this.now + after, run };
    let place = this.#due.length;
    while (place > 0 && this.#due[place - 1]!.at > entry.at) place -= 1;
    this.#due.splice(place, 0, entry);
    return () => {
      const at = this.#due.indexOf(entry);
      if (at !== -1) this.#due.splice(at, 1);
    };
  }

  /** Things happen one after the other, if in the same millisecond. */
  tick(): void {
    this.now += 0.001;
  }

  wait(ms: number): void {
    const end = this.now + ms;
    for (let next = this.#due[0]; next !== undefined && next.at <= end; next = this.#due[0]) {
      this.#due.shift();
      this.now = next.at;
      next.run();
    }
    this.now = end;
  }
}
