/**
 * Keyed hashes: of credentials (to tell callers apart without keeping their secrets), of session IDs (for logs), and
 * the event IDs we mint, which carry their own proof so that nothing has to be remembered about them.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { allValues, type Fields } from '../core/fields.ts';
import type { Credential } from '../core/terms.ts';

export interface Tokens {
  /** For `core/event-key.ts`. */
  readonly seed: number;
  credentialOf(fields: Fields): Credential;
  /** A short hash that may be shown: 12 hexadecimal digits. */
  shown(secret: string): string;
  mint(): string;
  isMinted(eventId: string): boolean;
}

const NO_CREDENTIAL = '' as Credential;
const MINTED = /^mrg-([A-Za-z0-9_-]{16})-([A-Za-z0-9_-]{22})$/;

/** All values of a field and its name, so that the same text in another field is another credential. */
function presentedBy(fields: Fields, name: 'authorization' | 'cookie'): string | null {
  const values = allValues(fields, name);
  return values.length === 0 ? null : [name, ...values].join('\n');
}

/** `key`: random for a process that shares nothing, from the store otherwise. */
export function createTokens(key: Buffer = randomBytes(32)): Tokens {
  const mac = (purpose: string, text: string): Buffer =>
    createHmac('sha256', key).update(purpose).update('\0').update(text, 'latin1').digest();
  const stamp = (nonce: string): Buffer => mac('minted', nonce).subarray(0, 16);
  const credentials = new LRUCache<string, Credential>({ max: 1_000 });
  // A session is shown with every stream of its own, and a hash takes 3 µs. Lengthy ones are not worth their memory.
  const shownBefore = new LRUCache<string, string>({ max: 1_000 });
  return {
    seed: mac('seed', '').readUInt32LE(0),
    credentialOf(fields) {
      const presented = presentedBy(fields, 'authorization') ?? presentedBy(fields, 'cookie');
      if (presented === null) return NO_CREDENTIAL;
      let credential = credentials.get(presented);
      if (credential === undefined) {
        credential = mac('credential', presented).toString('base64url') as Credential;
        credentials.set(presented, credential);
      }
      return credential;
    },
    shown(secret) {
      let hash = shownBefore.get(secret);
      if (hash === undefined) {
        hash = mac('shown', secret).toString('hex').slice(0, 12);
        if (secret.length <= 256) shownBefore.set(secret, hash);
      }
      return hash;
    },
    mint() {
      const nonce = randomBytes(12).toString('base64url');
      return `mrg-${nonce}-${stamp(nonce).toString('base64url')}`;
    },
    isMinted(eventId) {
      const match = MINTED.exec(eventId.trim());
      if (match === null) return false;
      const given = Buffer.from(match[2]!, 'base64url');
      const wanted = stamp(match[1]!);
      return given.length === wanted.length && timingSafeEqual(given, wanted);
    },
  };
}
