/**
 * Failures with a name. A refusal of a resume is no failure and lives in `core/refusal.ts`; what stands here is what
 * went wrong, whose fault it was, and the status that tells a client so (behaviour.md section 7, last paragraph).
 */

/** Whose fault a failure is: it decides the log level and who has to act. */
export type ErrorFault = 'client' | 'upstream' | 'configuration' | 'ours';

interface ErrorKind {
  /** The status to answer with, if anything can still be answered. */
  readonly status: number;
  readonly fault: ErrorFault;
  /** One sentence for the client. It never repeats anything that the client or upstream sent. */
  readonly sentence: string;
}

/** Every code with its status, its fault and its sentence. RFC 9110 section 15 defines the statuses, RFC 6585 the 431. */
export const ERRORS = {
  'config-invalid': { status: 500, fault: 'configuration', sentence: 'the configuration is not valid' },
  'address-unavailable': { status: 500, fault: 'configuration', sentence: 'cannot listen on that address' },
  'bad-request': { status: 400, fault: 'client', sentence: 'the request is malformed' },
  'host-not-allowed': { status: 403, fault: 'client', sentence: 'this Host is not allowed here' },
  'origin-not-allowed': { status: 403, fault: 'client', sentence: 'this Origin is not allowed here' },
  'no-route': { status: 404, fault: 'client', sentence: 'no route covers this path' },
  'body-too-large': { status: 413, fault: 'client', sentence: 'the request body is larger than allowed' },
  'fields-too-large': { status: 431, fault: 'client', sentence: 'the request header fields are larger than allowed' },
  // Never sent, since nobody is left to read it; 499 is what operators know from access logs.
  'client-gone': { status: 499, fault: 'client', sentence: 'the client left' },
  'upstream-unresolved': { status: 502, fault: 'upstream', sentence: 'the name of the upstream server is not known' },
  'upstream-refused': { status: 502, fault: 'upstream', sentence: 'cannot connect to the upstream server' },
  'upstream-reset': { status: 502, fault: 'upstream', sentence: 'the upstream server broke the connection' },
  'upstream-bad-head': { status: 502, fault: 'upstream', sentence: 'the upstream server sent a malformed response' },
  'upstream-timeout': { status: 504, fault: 'upstream', sentence: 'the upstream server did not answer in time' },
  'loop-detected': { status: 508, fault: 'configuration', sentence: 'the request came back through this proxy' },
  draining: { status: 503, fault: 'ours', sentence: 'shutting down' },
  overloaded: { status: 503, fault: 'ours', sentence: 'too many streams are open' },
  'store-unavailable': { status: 503, fault: 'ours', sentence: 'the shared store is unavailable' },
  internal: { status: 500, fault: 'ours', sentence: 'internal error' },
} as const satisfies Record<string, ErrorKind>;

/** The closed set of error codes; they appear in logs as they are. */
export type ErrorCode = keyof typeof ERRORS;

/** A failure with a code from {@link ERRORS}. The message is for logs and may name addresses, never secrets. */
export class GuardError extends Error {
  override readonly name = 'GuardError';
  readonly code: ErrorCode;
  /** A hint: the status to answer with, where a head can still be sent. */
  readonly status: number;
  readonly fault: ErrorFault;

  constructor(code: ErrorCode, message: string = ERRORS[code].sentence, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.status = ERRORS[code].status;
    this.fault = ERRORS[code].fault;
  }
}

/**
 * The body of an answer that reports a failure of our own: plain JSON, never a JSON-RPC error, which a client would
 * take for its server's word (behaviour.md section 7).
 *
 * @returns `{"error":"…"}`, to be sent as `application/json`.
 */
export function errorBody(code: ErrorCode): string {
  return JSON.stringify({ error: ERRORS[code].sentence });
}
