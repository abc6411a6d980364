/** Learning (`core/learning.ts`) in front of an upstream whose process can be told from the next one. */
import type { Fields } from '../core/fields.ts';
import { Learning as SessionLearning } from '../core/learning.ts';
import { restartedBetween, type Session } from '../core/ledger.ts';
import type { RouteRoom } from './room.ts';

export class Learning extends SessionLearning {
  readonly #upstream: RouteRoom['upstream'];

  constructor(room: RouteRoom, method: string, fields: Fields, address: string) {
    super(room, method, fields, address);
    this.#upstream = room.upstream;
  }

  /** The generation begins with who listens now, which may be more than when this connection was opened. */
  protected override begun(session: Session): void {
    const before = session.upstream;
    this.#upstream
      .identifySoon()
      .then((identity) => {
        if (session.upstream === before && !restartedBetween(before, identity)) session.upstream = identity;
      })
      .catch(() => {});
  }
}
