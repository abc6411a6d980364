/** The fields of a GET with `Last-Event-ID`, as the question that `resolve.ts` answers. */
import { eventKeyOfField, eventKeyOfFieldAsUtf8 } from './event-key.ts';
import { allValues, type Fields, firstValue, isWithoutResumption } from './fields.ts';
import type { ResumeRequest } from './resolve.ts';
import type { Credential } from './terms.ts';

/** What makes keys of names, and knows the event IDs that we minted. */
export interface RequestTokens {
  readonly seed: number;
  credentialOf(fields: Fields): Credential;
  isMinted(eventId: string): boolean;
}

/** `forwarded`: it came through another intermediary. */
export function readResumeRequest(tokens: RequestTokens, fields: Fields, forwarded: boolean): ResumeRequest {
  const cursors = allValues(fields, 'last-event-id');
  const value = cursors.length === 1 ? cursors[0]! : '';
  const readings = [eventKeyOfField(value, tokens.seed), eventKeyOfFieldAsUtf8(value, tokens.seed)];
  return {
    get: true,
    cursorFields: cursors.length,
    cursorEmpty: value.trim() === '',
    sessionFields: allValues(fields, 'mcp-session-id').length,
    withoutResumption: isWithoutResumption(firstValue(fields, 'mcp-protocol-version')),
    minted: tokens.isMinted(value),
    cursor: readings.filter((key) => key !== null),
    caller: tokens.credentialOf(fields),
    forwarded,
  };
}
