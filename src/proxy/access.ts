/**
 * Who may ask at all (behaviour.md section 8). A page in a browser can make any name resolve to a loopback address and
 * then talk to whatever listens there (DNS rebinding), so a listener on loopback wants a loopback `Host` and `Origin`.
 */

/** `null`: not checked. */
export interface AccessLists {
  readonly hosts: readonly string[] | 'loopback' | null;
  readonly origins: readonly string[] | 'loopback' | null;
}

/** Splits `host:port`; an IPv6 host keeps its brackets off. */
function splitAuthority(authority: string): { host: string; port: string } {
  const match = /^(\[[^\]]*\]|[^:]*)(?::(\d*))?$/.exec(authority.trim());
  if (match === null) return { host: '', port: '' };
  return { host: match[1]!.replace(/^\[|\]$/g, '').toLowerCase(), port: match[2] ?? '' };
}

export function isLoopbackName(host: string): boolean {
  const name = host.replace(/\.$/, '');
  if (name === 'localhost' || name.endsWith('.localhost') || name === '::1') return true;
  const octets = name.split('.');
  return (
    octets.length === 4 &&
    octets[0] === '127' &&
    octets.every((octet) => /^\d{1,3}$/.test(octet) && Number(octet) < 256)
  );
}

export function hostAllowed({ hosts }: AccessLists, authority: string | null): boolean {
  if (hosts === null) return true;
  // HTTP/1.0 knows no `Host`; no browser speaks it.
  if (authority === null) return true;
  const { host, port } = splitAuthority(authority);
  if (hosts === 'loopback') return isLoopbackName(host);
  return hosts.some((allowed) => {
    const wanted = splitAuthority(allowed);
    return wanted.host === host && (wanted.port === '' || wanted.port === port);
  });
}

export function originAllowed({ origins }: AccessLists, values: readonly string[]): boolean {
  if (origins === null) return true;
  return values.every((value) => {
    const origin = value.trim().toLowerCase();
    if (origins !== 'loopback') return origins.includes(origin);
    const match = /^https?:\/\/([^/?#]+)$/.exec(origin);
    return match !== null && isLoopbackName(splitAuthority(match[1]!).host);
  });
}
