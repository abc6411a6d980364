/** What a request asks for: its target and authority, and which routes that fits. */
import type { IncomingMessage } from 'node:http';
import type { Route } from '../config.ts';

/** Path and query as sent, and the authority: of an absolute target (RFC 9112 section 3.2.2), else of `Host`. */
export function readTarget(request: IncomingMessage): { target: string; authority: string | null } {
  const url = request.url ?? '/';
  const host = request.headers.host ?? null;
  if (url.startsWith('/')) return { target: url, authority: host };
  const absolute = /^https?:\/\/([^/?#]*)(.*)$/i.exec(url);
  if (absolute === null) return { target: url, authority: host };
  const rest = absolute[2]!;
  return { target: rest.startsWith('/') ? rest : `/${rest}`, authority: absolute[1]! };
}

/** A target without its query. */
export function pathOf(target: string): string {
  const query = target.indexOf('?');
  return query === -1 ? target : target.slice(0, query);
}

export function isGuarded(route: Route, target: string): boolean {
  if (route.guarded === null) return true;
  const path = pathOf(target);
  return path === route.guarded || path === `${route.guarded}/`;
}

export function covers(route: Route, authority: string | null, target: string): boolean {
  if (route.host !== null && route.host !== hostOf(authority)) return false;
  const path = pathOf(target);
  const prefix = route.prefix.endsWith('/') ? route.prefix : `${route.prefix}/`;
  return path === route.prefix || path.startsWith(prefix);
}

function hostOf(authority: string | null): string {
  return (authority ?? '').toLowerCase().replace(/:\d*$/, '');
}
