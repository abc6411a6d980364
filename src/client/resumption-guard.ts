/**
 * The smallest useful guard, for a reconnect layer that already knows its requests: may this request be resumed, with
 * which fields, and what does the answer mean? It keeps two things per logical request, the cursor and whether the
 * terminal event was seen, and forgets them together.
 */
import { requestKeyOf } from '../core/jsonrpc.ts';
import type { RequestKey } from '../core/terms.ts';

/** A JSON-RPC id: `1` and `"1"` are different requests. */
export type RequestId = string | number;

/** Why a request must not, or cannot, be resumed. */
export type InvalidResumptionReason = 'finished' | 'no-cursor';

/** Thrown where a resume would repeat a finished request, or has no event to continue after. */
export class InvalidResumptionError extends Error {
  override readonly name = 'InvalidResumptionError';
  readonly reason: InvalidResumptionReason;

  constructor(reason: InvalidResumptionReason) {
    super(
      reason === 'finished'
        ? 'the request is finished: its terminal event was seen, there is nothing to resume'
        : 'the request has no cursor: no event with an ID was seen, so nothing says where to continue',
    );
    this.reason = reason;
  }
}

/** What an answer to a resume means for the request. */
export type ResumeMeaning =
  /** Events follow: go on reading. */
  | 'continuation_valid'
  /** The result is here already: nothing to do. */
  | 'terminal_already_observed_no_action'
  /** `200` and nothing: what came after the cursor may be lost. Send the request again, with idempotency protection. */
  | 'ambiguous_empty_replay_escalate_to_retry'
  /** The server says that it cannot honour the cursor (409) or the session (404). Start again from scratch. */
  | 'buffer_evicted_retry_from_scratch';

export interface ResumptionGuardOptions {
  /** Requests remembered at most; the least recently observed is forgotten first. Default 10,000. */
  readonly maxRequests?: number;
}

interface Remembered {
  cursor: string | null;
  finished: boolean;
}

export class StreamResumptionGuard {
  readonly #maxRequests: number;
  readonly #requests = new Map<RequestKey, Remembered>();

  /** @throws {RangeError} where `maxRequests` is not a positive integer. */
  constructor({ maxRequests = 10_000 }: ResumptionGuardOptions = {}) {
    if (!Number.isSafeInteger(maxRequests) || maxRequests < 1) {
      throw new RangeError(`maxRequests must be a positive integer, not ${maxRequests}`);
    }
    this.#maxRequests = maxRequests;
  }

  /** Requests remembered now. */
  get size(): number {
    return this.#requests.size;
  }

  /**
   * Notes an event on the request's stream.
   *
   * @param eventId - its ID; null or undefined where it has none (the cursor stays), empty where it clears the cursor
   *   (HTML standard, section Server-sent events).
   * @param terminal - it is the JSON-RPC response to this request. Once seen, that stays.
   * @throws {TypeError} for an ID that could not travel in a field: with NUL, CR or LF in it.
   */
  observeEvent(requestId: RequestId, eventId: string | null | undefined, terminal: boolean): void {
    if (eventId != null && /[\0\r\n]/.test(eventId)) throw new TypeError('an event ID holds no NUL, CR or LF');
    const key = requestKeyOf(requestId);
    const known = this.#requests.get(key) ?? { cursor: null, finished: false };
    this.#requests.delete(key);
    this.#requests.set(key, known);
    if (eventId != null) known.cursor = eventId === '' ? null : eventId;
    if (terminal) known.finished = true;
    if (this.#requests.size > this.#maxRequests) this.#requests.delete(this.#requests.keys().next().value!);
  }

  /**
   * The fields for a GET that continues the request's stream.
   *
   * @throws {InvalidResumptionError} `finished`, or `no-cursor` (a forgotten request has none either).
   */
  buildResumeHeaders(requestId: RequestId, sessionId: string | null | undefined): Record<string, string> {
    const known = this.#requests.get(requestKeyOf(requestId));
    if (known?.finished) throw new InvalidResumptionError('finished');
    if (known === undefined || known.cursor === null) throw new InvalidResumptionError('no-cursor');
    return {
      Accept: 'text/event-stream',
      'Last-Event-ID': asFieldValue(known.cursor),
      ...(sessionId == null ? {} : { 'Mcp-Session-Id': sessionId }),
    };
  }

  /**
   * What the answer to a resume means. A request that finished meanwhile needs nothing more, whatever is said about its
   * cursor: starting it again could do its work twice.
   *
   * @param bodyEmpty - the body ended without an event.
   * @throws {RangeError} for any status but 200, 404 and 409, the others say nothing about the cursor.
   */
  interpretResumeResponse(requestId: RequestId, status: number, bodyEmpty: boolean): ResumeMeaning {
    if (status !== 200 && status !== 404 && status !== 409) {
      throw new RangeError(`status ${status} says nothing about the cursor (200, 404 and 409 do)`);
    }
    if (status === 200 && !bodyEmpty) return 'continuation_valid';
    if (this.#requests.get(requestKeyOf(requestId))?.finished) return 'terminal_already_observed_no_action';
    return status === 200 ? 'ambiguous_empty_replay_escalate_to_retry' : 'buffer_evicted_retry_from_scratch';
  }

  /** Forgets the request: its cursor and whether it finished, together. Due before its id is used for another one. */
  forget(requestId: RequestId): void {
    this.#requests.delete(requestKeyOf(requestId));
  }
}

/** A field carries bytes, one a character; the cursor's are UTF-8 (HTML standard, section Server-sent events). */
function asFieldValue(cursor: string): string {
  return Array.from(new TextEncoder().encode(cursor), (byte) => String.fromCharCode(byte)).join('');
}
