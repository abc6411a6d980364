/**
 * The words of the behaviour contract, section 2, as types. Nothing here runs, except the few constructors
 * that brand a value. A branded type is its base type to the machine and a different thing to the compiler, so a
 * position can never be handed in where a generation is meant.
 */

declare const brand: unique symbol;
type Brand<T, Name extends string> = T & { readonly [brand]: Name };

/** `Mcp-Session-Id` as it travels: opaque, Latin-1, never logged. */
export type SessionId = Brand<string, 'SessionId'>;

/**
 * An event ID as the ledger keeps it: a seeded 53-bit hash of its bytes without outer blanks (see `event-key.ts`).
 * IDs are only ever compared for equality. Two IDs that collide make one more owner or one more known cursor; with 53
 * bits and at most a million remembered IDs a session, one lookup in ten thousand million meets such a pair.
 */
export type EventKey = Brand<number, 'EventKey'>;

/** A JSON-RPC id in canonical form: `n:` and the number, or `s:` and the string. `1` and `"1"` differ. */
export type RequestKey = Brand<string, 'RequestKey'>;

/** The ordinal the ledger gives an event on its stream, from 1. Events without an ID take one too. */
export type Position = Brand<number, 'Position'>;

/** One incarnation of a session ID, from 1. */
export type Generation = Brand<number, 'Generation'>;

/** Milliseconds on the clock the caller injects; monotonic, no relation to the calendar. */
export type Millis = number;

/** Keyed hash of a caller's credentials (`Authorization`, else `Cookie`, else nothing at all). */
export type Credential = Brand<string, 'Credential'>;
