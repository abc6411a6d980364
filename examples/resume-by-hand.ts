// A reconnect layer of your own: what may be resumed, with which fields, and what the answer means.
import type { StreamResumptionGuard } from 'mcp-resume-guard/client';

/**
 * Asks for what came after the last event that was seen of this request. The events, or null where it was finished.
 *
 * @throws {InvalidResumptionError} where it is finished already, or no event with an ID was seen.
 */
export async function resume(
  guard: StreamResumptionGuard,
  url: string,
  id: string | number,
  sessionId: string,
): Promise<string | null> {
  const response = await fetch(url, { headers: guard.buildResumeHeaders(id, sessionId) });
  const body = await response.text();
  switch (guard.interpretResumeResponse(id, response.status, body === '')) {
    case 'continuation_valid':
      return body;
    case 'terminal_already_observed_no_action':
      return null;
    case 'ambiguous_empty_replay_escalate_to_retry':
    case 'buffer_evicted_retry_from_scratch':
      throw new Error('send the request again, with idempotency protection');
  }
}
