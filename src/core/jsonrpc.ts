/**
 * Which JSON-RPC requests does a body open, and which does an event finish? Both are asked of texts that may be 50 MB
 * long and arrive in pieces, so the text is read as a stream of bytes and no document is ever built.
 *
 * The reader is a state machine for the whole grammar of RFC 8259 in three layers:
 *
 * - inside a string only three kinds of byte matter (`"`, `\`, control characters): {@link plainUntil} skips the rest;
 * - escapes, numbers and the words `true`, `false`, `null` step through one table, {@link STEPS};
 * - brackets, commas, colons and the beginnings of tokens are handled one by one, in {@link MessageScanner}.
 *
 * On the way, the few tokens a head is made of (the keys of a message, its id, its method, the code of its error) are
 * captured. A captured token that lies within one piece is read in place; one that is cut is put together in a buffer
 * of a few kilobytes at most.
 */
import type { RequestKey } from './terms.ts';
import { Spelling } from './words.ts';

/** A request: an object with a key `id` and a string as `method`. */
export interface RequestHead {
  /** `null` is an id that cannot be tracked: no string or number, over 4,096 bytes, or given twice with two values. */
  readonly key: RequestKey | null;
  /** Its first 128 UTF-16 units; bytes that are no UTF-8 read as U+FFFD. */
  readonly method: string;
}

/** A response: an object with a trackable `id`, with `result` or `error` (whatever their values), without `method`. */
export interface ResponseHead {
  readonly key: RequestKey;
  /** Where both keys are present, `error`. */
  readonly kind: 'result' | 'error';
}

/** What one JSON text holds, in its order: one message, or a batch (every element that is an object). */
export interface Messages {
  /**
   * One complete JSON text, nothing but white space around it. False also beyond a bound (1,024 levels of brackets,
   * 10,000 heads, 1 MiB of ids). Where it is false, treat a request body as one whose ids are not known.
   */
  readonly wellFormed: boolean;
  /**
   * Always empty in mode `responses`. Of a text that is not well-formed: empty, except beyond a bound, where it is a
   * single request that cannot be tracked.
   */
  readonly requests: readonly RequestHead[];
  /** Empty where the text is not well-formed. */
  readonly responses: readonly ResponseHead[];
  /** The text is one response, no batch, and its error's code is -32601, for whatever id (`null` or none, too). */
  readonly methodNotFound: boolean;
}

/** What {@link ResponseHead} is to a text, for a message that a program holds already. */
export function isResponse(message: object): boolean {
  const { id, result, error, method } = message as Readonly<Record<string, unknown>>;
  const trackable = typeof id === 'string' || typeof id === 'number';
  // As in a text, a key that is there counts whatever its value; what is undefined is not written.
  return trackable && method === undefined && (result !== undefined || error !== undefined);
}

const NO_HEADS: readonly never[] = Object.freeze([]);

const nothing = (wellFormed: boolean, requests: readonly RequestHead[] = NO_HEADS): Messages =>
  Object.freeze({ wellFormed, requests, responses: NO_HEADS, methodNotFound: false });

/**
 * The shared answer for a text without requests or responses. Most often the text is well-formed; that is not checked
 * to the end for a single message with `method` in mode `responses`, whose rest is skipped.
 */
export const NO_MESSAGES: Messages = nothing(true);
/** A text that cannot be read, or was not read at all. */
export const MALFORMED: Messages = nothing(false);
const UNCOUNTED = nothing(false, Object.freeze([Object.freeze({ key: null, method: '' })]));

// Ids

/**
 * The canonical form of an id as a program holds it.
 *
 * @throws RangeError for a number that JSON cannot express (an infinity, or not a number).
 */
export function requestKeyOf(id: string | number): RequestKey {
  if (typeof id === 'string') return `s:${id}` as RequestKey;
  if (!Number.isFinite(id)) throw new RangeError('no JSON-RPC id: the number is not finite');
  return keyOfNumber(String(id));
}

/** The JSON text of an id: `n:1` is `1`, `s:a"b` is `"a\"b"`. */
export function idTextOf(key: RequestKey): string {
  return key.charCodeAt(0) === 0x6e ? key.slice(2) : JSON.stringify(key.slice(2));
}

/**
 * Is this a number of magnitude 2^53 or more? We keep such ids apart by their text, but a peer that reads numbers as
 * doubles may take two of them for the same one.
 */
export function isBeyondDoubles(key: RequestKey): boolean {
  return key.charCodeAt(0) === 0x6e && Math.abs(Number(key.slice(2))) >= 2 ** 53;
}

function keyOfNumber(text: string): RequestKey {
  const value = Number(text);
  // As a string, -0 is the 0 that it equals.
  return `n:${Math.abs(value) < 2 ** 53 ? value : text}` as RequestKey;
}

// Bounds

const MAX_DEPTH = 1024;
const MAX_HEADS = 10_000;
const MAX_ID_TEXT = 1024 * 1024;
/** Bytes between the quotes, or of the number. */
const MAX_ID = 4096;
const MAX_METHOD = 128;
/** An escape takes up to six bytes for one UTF-16 unit; the longest key of interest has six. */
const LONGEST_ESCAPE = 6;
const MAX_KEY = 6 * LONGEST_ESCAPE;

// States. Up to BEYOND nothing can happen any more; from ESCAPE on STEPS says what comes next; from ZERO on a number
// or word is complete, so that a byte which is no step from there only ends it.

const [BROKEN, SKIPPED, BEYOND] = [0, 1, 2];
const [VALUE, FIRST_VALUE, KEY, FIRST_KEY, COLON, AFTER] = [3, 4, 5, 6, 7, 8];
const STRING = 9;
const [ESCAPE, HEX4, HEX3, HEX2, HEX1] = [10, 11, 12, 13, 14];
const [MINUS, DOT, E, E_SIGN] = [15, 16, 17, 18];
const [T, TR, TRU, F, FA, FAL, FALS, N, NU, NUL] = [19, 20, 21, 22, 23, 24, 25, 26, 27, 28];
const [ZERO, INTEGER, FRACTION, EXPONENT, WORD] = [29, 30, 31, 32, 33];

const [ONE_TO_NINE, DIGIT, HEX] = ['123456789', '0123456789', '0123456789abcdefABCDEF'];

/** The next state by state and byte; where the grammar has none, 0, which is BROKEN. */
// biome-ignore format: one state a line
const STEPS = tableOf([
  [ESCAPE, '"\\/bfnrt', STRING], [ESCAPE, 'u', HEX4],
  [HEX4, HEX, HEX3], [HEX3, HEX, HEX2], [HEX2, HEX, HEX1], [HEX1, HEX, STRING],
  [VALUE, '-', MINUS], [VALUE, '0', ZERO], [VALUE, ONE_TO_NINE, INTEGER],
  [MINUS, '0', ZERO], [MINUS, ONE_TO_NINE, INTEGER],
  [ZERO, '.', DOT], [ZERO, 'eE', E],
  [INTEGER, DIGIT, INTEGER], [INTEGER, '.', DOT], [INTEGER, 'eE', E],
  [DOT, DIGIT, FRACTION],
  [FRACTION, DIGIT, FRACTION], [FRACTION, 'eE', E],
  [E, '+-', E_SIGN], [E, DIGIT, EXPONENT],
  [E_SIGN, DIGIT, EXPONENT],
  [EXPONENT, DIGIT, EXPONENT],
  [VALUE, 't', T], [T, 'r', TR], [TR, 'u', TRU], [TRU, 'e', WORD],
  [VALUE, 'f', F], [F, 'a', FA], [FA, 'l', FAL], [FAL, 's', FALS], [FALS, 'e', WORD],
  [VALUE, 'n', N], [N, 'u', NU], [NU, 'l', NUL], [NUL, 'l', WORD],
]);

function tableOf(rows: readonly (readonly [from: number, bytes: string, to: number])[]): Uint8Array {
  const table = new Uint8Array((WORD + 1) << 8);
  for (const [from, bytes, to] of rows) for (const byte of bytes) table[(from << 8) | byte.charCodeAt(0)] = to;
  return table;
}

const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;

const NOTHING_HELD = new Uint8Array(0);

const isPlain = (byte: number): boolean => byte >= 0x20 && byte !== QUOTE && byte !== BACKSLASH;
const isBlank = (byte: number): boolean => byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;

/** Long enough to pay for a view of the buffer in words. */
const LONG_RUN = 128;

/** Where the bytes end that mean nothing inside a string: at a quote, a backslash, a control character, or `end`. */
function plainUntil(bytes: Uint8Array, from: number, end: number): number {
  const near = Math.min(end, from + LONG_RUN);
  let i = from;
  while (i < near && isPlain(bytes[i]!)) i++;
  return i < near || i === end ? i : longRunUntil(bytes, i, end);
}

function longRunUntil(bytes: Uint8Array, from: number, end: number): number {
  let i = from;
  for (; ((bytes.byteOffset + i) & 3) !== 0; i++) if (i === end || !isPlain(bytes[i]!)) return i;
  // Four words at a time, which halves what a long text costs.
  const words = new Int32Array(bytes.buffer, bytes.byteOffset + i, (end - i) >> 2);
  const last = words.length - 3;
  let w = 0;
  while (w < last && !isDoubtful(words, w)) w += 4;
  while (w < last && !isOdd(words, w)) w += 4;
  i += 4 * w;
  while (i < end && isPlain(bytes[i]!)) i++;
  return i;
}

const HIGH = 0x80808080;

/** Whether one of four words holds a quote, a backslash, a control character, or something that is not ASCII. */
function isDoubtful(words: Int32Array, w: number): boolean {
  return ((below(words[w]!) | below(words[w + 1]!) | below(words[w + 2]!) | below(words[w + 3]!)) & HIGH) !== 0;
}

/** The same without what is not ASCII. */
function isOdd(words: Int32Array, w: number): boolean {
  const [a, b, c, d] = [words[w]!, words[w + 1]!, words[w + 2]!, words[w + 3]!];
  return (((below(a) & ~a) | (below(b) & ~b) | (below(c) & ~c) | (below(d) & ~d)) & HIGH) !== 0;
}

/**
 * Has a high bit set where a byte of the word is a quote, a backslash or a control character, or is not ASCII. Of ASCII,
 * `x - k * 0x01010101` has one where some byte of x is below k. Exchanging 0x20 and 0x22, which is what `^ 0x02` does to
 * them, puts the quote among the controls.
 */
function below(word: number): number {
  return ((word ^ 0x02020202) - 0x21212121) | ((word ^ 0x5c5c5c5c) - 0x01010101);
}

// Captured tokens

const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const lenient = new TextDecoder('utf-8', { ignoreBOM: true });

/** The longest text that is put together unit by unit faster than a decoder is called. */
const SHORT_TEXT = 24;

function decode(decoder: InstanceType<typeof TextDecoder>, bytes: Uint8Array, from: number, to: number): string {
  if (to - from > SHORT_TEXT) return decoder.decode(bytes.subarray(from, to));
  let text = '';
  for (let i = from; i < to; i++) {
    const byte = bytes[i]!;
    if (byte >= 0x80) return decoder.decode(bytes.subarray(from, to));
    text += String.fromCharCode(byte);
  }
  return text;
}

/** Resolves the escapes of a string whose grammar has been checked. A lone surrogate stays what it is. */
const unescaped = (raw: string): string => JSON.parse(`"${raw}"`) as string;

/** As much of a cut string as is not in the middle of an escape. */
const WHOLE_UNITS = /^(?:[^\\]|\\u[0-9A-Fa-f]{4}|\\[^u])*/;

/** What the value of a key is to a message. CODE is one of the error object; the others are of the message itself. */
const [OTHER, ID, METHOD, RESULT, ERROR, CODE] = [0, 1, 2, 3, 4, 5];

const ROLES: readonly (readonly [key: string, role: number])[] = [
  ['id', ID],
  ['method', METHOD],
  ['result', RESULT],
  ['error', ERROR],
  ['code', CODE],
];

function roleOf(bytes: Uint8Array, from: number, to: number, escaped: boolean): number {
  if (escaped) {
    const text = unescaped(decode(lenient, bytes, from, to));
    return ROLES.find(([key]) => key === text)?.[1] ?? OTHER;
  }
  for (const [key, role] of ROLES) if (to - from === key.length && spells(bytes, from, key)) return role;
  return OTHER;
}

function spells(bytes: Uint8Array, from: number, ascii: string): boolean {
  for (let i = 0; i < ascii.length; i++) if (bytes[from + i] !== ascii.charCodeAt(i)) return false;
  return true;
}

/** How nearly every message with a method begins: what reading it key by key would find, found at once. */
const REQUEST_BEGINS = new Spelling('{"jsonrpc":"2.0","method":"');

function beginsAsRequest(bytes: Uint8Array, from: number, to: number): boolean {
  return to - from >= REQUEST_BEGINS.length && REQUEST_BEGINS.isAt(bytes, from);
}

function keyOfNumberAt(bytes: Uint8Array, from: number, to: number): RequestKey {
  let value = 0;
  if (to - from <= 15) {
    let i = from;
    for (; i < to && bytes[i]! >= 0x30 && bytes[i]! <= 0x39; i++) value = value * 10 + bytes[i]! - 0x30;
    if (i === to) return `n:${value}` as RequestKey;
  }
  return keyOfNumber(decode(lenient, bytes, from, to));
}

function keyOfStringAt(bytes: Uint8Array, from: number, to: number, escaped: boolean): RequestKey | null {
  try {
    const raw = decode(strict, bytes, from, to);
    return `s:${escaped ? unescaped(raw) : raw}` as RequestKey;
  } catch {
    return null;
  }
}

/**
 * Reads JSON texts, one after the other, in pieces of any size. Nothing throws; memory is bounded by the heads it lists
 * (and the bounds of {@link Messages}), whatever the text.
 *
 * Mode `requests` is for bodies of POSTs. Mode `responses` is for events and JSON answers; there a single message that
 * shows the key `method` is no response, and the rest of its text is skipped.
 */
export class MessageScanner {
  private readonly listsRequests: boolean;
  private state = VALUE;

  // Brackets: how many are open, one bit for the kind of each (1 is an object), and the kind of the innermost.
  private depth = 0;
  private readonly kinds: number[] = [];
  private inObject = false;

  // The token being captured: where it begins in this piece (-1: none is), at most how many bytes of it count, and
  // what earlier pieces held of it.
  private mark = -1;
  private limit = 0;
  private held = NOTHING_HELD;
  private heldLength = 0;
  private isKey = false;
  private escaped = false;
  private role = OTHER;

  // The message being read. A message is what opens as an object at `messageDepth`: 1, in a batch 2.
  private messageDepth = 1;
  private inError = false;
  private id: RequestKey | null | undefined = undefined;
  private hasMethod = false;
  private method: string | null = null;
  private hasResult = false;
  private hasError = false;
  private codeFits = false;

  private requests: RequestHead[] | null = null;
  private responses: ResponseHead[] | null = null;
  private heads = 0;
  private idText = 0;

  constructor(mode: 'requests' | 'responses') {
    this.listsRequests = mode === 'requests';
  }

  /** Takes `bytes[start]` up to, not including, `bytes[end]`. The bytes are not kept and not altered. */
  push(bytes: Uint8Array, start: number, end: number): void {
    let state = this.state;
    if (state <= BEYOND) return;
    if (state === VALUE && this.depth === 0 && !this.listsRequests && beginsAsRequest(bytes, start, end)) {
      this.state = SKIPPED;
      return;
    }
    if (this.mark >= 0) this.mark = start;
    let i = start;
    while (i < end) {
      if (state === STRING) {
        i = plainUntil(bytes, i, end);
        if (i === end) break;
        const byte = bytes[i]!;
        if (byte === BACKSLASH) {
          this.escaped = true;
          // The byte after it at once where it is here: heavily escaped texts have millions of these.
          state = i + 1 < end ? STEPS[(ESCAPE << 8) | bytes[++i]!]! : ESCAPE;
        } else state = byte === QUOTE ? this.closeString(bytes, i) : BROKEN;
        i++;
      } else if (state >= ESCAPE) {
        const next = STEPS[(state << 8) | bytes[i]!]!;
        if (next === BROKEN && state >= ZERO) state = this.closeWord(bytes, i, state);
        else {
          state = next;
          i++;
        }
      } else if (state > BEYOND) {
        const byte = bytes[i]!;
        if (!isBlank(byte)) state = this.structure(state, byte, i);
        i++;
      } else break;
    }
    this.state = state;
    if (this.mark >= 0) this.hold(bytes, this.mark, end);
  }

  /** Ends the text, says what it held, and is ready for the next one. */
  end(): Messages {
    const messages = this.outcome();
    this.reset();
    return messages;
  }

  /** Forgets the text so far. */
  reset(): void {
    this.state = VALUE;
    this.depth = 0;
    this.inObject = false;
    this.dropToken();
    this.role = OTHER;
    this.messageDepth = 1;
    this.inError = false;
    this.beginMessage();
    this.requests = null;
    this.responses = null;
    this.heads = 0;
    this.idText = 0;
  }

  private outcome(): Messages {
    const state = this.state;
    if (state === SKIPPED) return NO_MESSAGES;
    if (state === BEYOND) return this.listsRequests ? UNCOUNTED : MALFORMED;
    if (this.depth !== 0 || !(state === AFTER || state >= ZERO)) return MALFORMED;
    const methodNotFound = this.messageDepth === 1 && this.codeFits && !this.hasMethod;
    if (this.heads === 0 && !methodNotFound) return NO_MESSAGES;
    return {
      wellFormed: true,
      requests: this.requests ?? NO_HEADS,
      responses: this.responses ?? NO_HEADS,
      methodNotFound,
    };
  }

  /** The state after a byte that is neither blank nor inside a token. */
  private structure(state: number, byte: number, at: number): number {
    if (state === AFTER) {
      if (byte === COMMA) return this.depth === 0 ? BROKEN : this.inObject ? KEY : VALUE;
      return byte === 0x7d ? this.close(true) : byte === 0x5d ? this.close(false) : BROKEN;
    }
    if (state === COLON) return byte === 0x3a ? VALUE : BROKEN;
    if (state === KEY || state === FIRST_KEY) {
      if (byte === QUOTE) return this.openKey(at + 1);
      return state === FIRST_KEY && byte === 0x7d ? this.close(true) : BROKEN;
    }
    if (byte === QUOTE) return this.openString(at + 1);
    if (byte === 0x7b) return this.open(true);
    if (byte === 0x5b) return this.open(false);
    if (byte === 0x5d && state === FIRST_VALUE) return this.close(false);
    if (this.role === ID || this.role === CODE) this.capture(at, MAX_ID);
    return STEPS[(VALUE << 8) | byte]!;
  }

  private open(object: boolean): number {
    const depth = this.depth;
    if (depth === MAX_DEPTH) return BEYOND;
    const kinds = this.kinds[depth >> 5] ?? 0;
    this.kinds[depth >> 5] = object ? kinds | (1 << (depth & 31)) : kinds & ~(1 << (depth & 31));
    this.inObject = object;
    this.depth = depth + 1;
    if (depth === 0 && !object) this.messageDepth = 2;
    if (object && this.depth === this.messageDepth) this.beginMessage();
    if (this.role === ID) this.noteId(null);
    this.inError ||= this.role === ERROR;
    this.role = OTHER;
    return object ? FIRST_KEY : FIRST_VALUE;
  }

  private close(object: boolean): number {
    if (object !== this.inObject || this.depth === 0) return BROKEN;
    if (object && this.depth === this.messageDepth && !this.endMessage()) return BEYOND;
    const depth = --this.depth;
    if (depth === this.messageDepth) this.inError = false;
    this.inObject = depth > 0 && ((this.kinds[(depth - 1) >> 5]! >> ((depth - 1) & 31)) & 1) === 1;
    return AFTER;
  }

  private openKey(from: number): number {
    this.isKey = true;
    this.escaped = false;
    if (this.depth - this.messageDepth === (this.inError ? 1 : 0)) this.capture(from, MAX_KEY);
    return STRING;
  }

  private openString(from: number): number {
    this.isKey = false;
    this.escaped = false;
    if (this.role === ID) this.capture(from, MAX_ID);
    else if (this.role === METHOD && this.listsRequests) this.capture(from, MAX_METHOD * LONGEST_ESCAPE);
    return STRING;
  }

  private closeString(bytes: Uint8Array, at: number): number {
    if (!this.isKey) {
      if (this.mark >= 0) this.endToken(bytes, at, STRING);
      this.role = OTHER;
      return AFTER;
    }
    if (this.mark < 0) return COLON;
    this.endToken(bytes, at, KEY);
    return this.role === METHOD && !this.listsRequests && this.messageDepth === 1 ? SKIPPED : COLON;
  }

  private closeWord(bytes: Uint8Array, at: number, state: number): number {
    if (this.mark >= 0) this.endToken(bytes, at, state);
    this.role = OTHER;
    return AFTER;
  }

  private capture(from: number, limit: number): void {
    this.mark = from;
    this.limit = limit;
    this.heldLength = 0;
  }

  /** Keeps what this piece holds of the token, as far as it counts. */
  private hold(bytes: Uint8Array, from: number, to: number): void {
    const length = this.heldLength;
    const wanted = Math.min(this.limit, length + to - from);
    if (wanted > this.held.length) {
      const grown = new Uint8Array(Math.min(this.limit, Math.max(64, 2 * wanted)));
      grown.set(this.held);
      this.held = grown;
    }
    if (wanted > length) this.held.set(bytes.subarray(from, from + wanted - length), length);
    this.heldLength = length + to - from;
  }

  private dropToken(): void {
    this.mark = -1;
    this.held = NOTHING_HELD;
  }

  /** Reads the captured token that ends before `bytes[at]`. `state` says what it is: KEY, STRING, or a word's last. */
  private endToken(bytes: Uint8Array, at: number, state: number): void {
    let text = bytes;
    let from = this.mark;
    let to = at;
    if (this.heldLength > 0) {
      this.hold(bytes, from, at);
      text = this.held;
      from = 0;
      to = this.heldLength;
    }
    this.mark = -1;
    const fits = to - from <= this.limit;
    if (state === KEY) this.noteKey(fits ? roleOf(text, from, to, this.escaped) : OTHER);
    else if (this.role === METHOD) this.noteMethod(text, from, fits ? to : from + this.limit);
    else if (this.role === CODE) this.codeFits = fits && Number(decode(lenient, text, from, to)) === -32601;
    else if (!fits || state === WORD) this.noteId(null);
    else if (state === STRING) this.noteId(keyOfStringAt(text, from, to, this.escaped));
    else this.noteId(keyOfNumberAt(text, from, to));
  }

  private noteKey(role: number): void {
    this.role = OTHER;
    if ((role === CODE) !== this.inError) return;
    this.role = role;
    if (role === METHOD) this.hasMethod = true;
    else if (role === RESULT) this.hasResult = true;
    else if (role === ERROR) this.hasError = true;
    // Of a key given twice the last counts, as for most readers (RFC 8259, section 4). Ids are stricter.
    if (role === ERROR || role === CODE) this.codeFits = false;
  }

  private noteMethod(bytes: Uint8Array, from: number, to: number): void {
    const raw = decode(lenient, bytes, from, to);
    const text = this.escaped ? unescaped(WHOLE_UNITS.exec(raw)?.[0] ?? '') : raw;
    this.method = text.length > MAX_METHOD ? text.slice(0, MAX_METHOD) : text;
  }

  private noteId(key: RequestKey | null): void {
    this.id = this.id === undefined || this.id === key ? key : null;
  }

  private beginMessage(): void {
    this.id = undefined;
    this.hasMethod = false;
    this.method = null;
    this.hasResult = false;
    this.hasError = false;
    this.codeFits = false;
  }

  /** Lists the message, if it is a request or a response; false where that is one too many. */
  private endMessage(): boolean {
    const key = this.id;
    if (key === undefined) return true;
    if (this.hasMethod) {
      if (!this.listsRequests || this.method === null) return true;
      (this.requests ??= []).push({ key, method: this.method });
    } else if (key !== null && (this.hasResult || this.hasError)) {
      (this.responses ??= []).push({ key, kind: this.hasError ? 'error' : 'result' });
    } else return true;
    this.idText += key?.length ?? 0;
    return ++this.heads <= MAX_HEADS && this.idText <= MAX_ID_TEXT;
  }
}
