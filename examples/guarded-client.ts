// The guard inside an SDK client: it goes into the transport's `fetch` option.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { guardedFetch } from 'mcp-resume-guard/client';

export async function connect(url: string): Promise<Client> {
  const fetch = guardedFetch(globalThis.fetch, {
    onresume: ({ rule, outcome, refusal }) => console.error('resume:', rule, outcome ?? '', refusal ?? ''),
  });
  const client = new Client({ name: 'example', version: '1.0.0' });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { fetch }));
  return client;
}
