/**
 * The one thing that a local proxy in front of somebody else's server cannot make work: tokens that are bound to an
 * audience. A server that says in its metadata (RFC 9728) which resource it is makes clients ask for tokens for that
 * resource, and a client that was pointed at the guard sees another URL than the one it came to. Better said at the start
 * than found out at sign-in.
 */
import { readFileSync } from 'node:fs';
import type { Agent } from 'undici';
import type { Config, Route } from './config.ts';
import { isLoopbackName } from './main.ts';

/** What a server says it is, for a route that a person has put a local guard in front of. */
export interface Audience {
  readonly upstream: string;
  /** The URL that tokens are for. */
  readonly resource: string;
}

const PATIENCE = 3_000;
const LONGEST = 65_536;

/** The routes that lead away from this machine, where we listen on this machine alone. */
export function foreignRoutes({ listen, routes }: Pick<Config, 'listen' | 'routes'>): readonly Route[] {
  if (!isLoopbackName(listen.host)) return [];
  return routes.filter(({ upstream }) => !isLoopbackName(new URL(upstream).hostname.replace(/^\[|\]$/g, '')));
}

/** Asks the servers of these routes; who does not answer within 3 s, or says nothing, is left out. */
export async function audiences(config: Config, routes: readonly Route[]): Promise<readonly Audience[]> {
  const { ca, cert, key } = config.upstream;
  const read = (path: string): string => readFileSync(path, 'utf8');
  const { Agent } = await import('undici');
  const agent = new Agent({
    connect: { ...(ca ? { ca: read(ca) } : {}), ...(cert && key ? { cert: read(cert), key: read(key) } : {}) },
  });
  try {
    const found = await Promise.all(
      routes.map(async ({ upstream, guarded, prefix }) => ({
        upstream,
        resource: await resourceOf(agent, upstream, guarded ?? prefix),
      })),
    );
    return found.filter((audience): audience is Audience => audience.resource !== null);
  } finally {
    await agent.destroy();
  }
}

/** RFC 9728, section 3: the well-known path goes between host and path. Servers with one resource leave the path out. */
async function resourceOf(agent: Agent, origin: string, path: string): Promise<string | null> {
  const { request } = await import('undici');
  const wellKnown = '/.well-known/oauth-protected-resource';
  for (const target of new Set([path === '/' ? wellKnown : wellKnown + path, wellKnown])) {
    try {
      const { statusCode, body } = await request(origin + target, {
        dispatcher: agent,
        headers: { accept: 'application/json' },
        signal: AbortSignal.timeout(PATIENCE),
      });
      let text = '';
      for await (const chunk of body.setEncoding('utf8')) {
        text += chunk;
        if (text.length > LONGEST) return null;
      }
      const { resource } = statusCode === 200 ? JSON.parse(text) : {};
      if (typeof resource === 'string' && URL.canParse(resource)) return new URL(resource).href;
    } catch {
      // Not there, or not what it should be: there is nothing to say about it.
    }
  }
  return null;
}
