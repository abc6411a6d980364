/** Where the shared ledger is: the forms of `store`, beside `memory`. */

export interface StoreNode {
  readonly host: string;
  readonly port: number;
}

/** A Redis or Valkey: one server, a Cluster (any of its nodes), or the master that Sentinels name. */
export interface StoreAddress {
  readonly form: 'single' | 'cluster' | 'sentinel';
  readonly tls: boolean;
  readonly nodes: readonly [StoreNode, ...StoreNode[]];
  readonly username?: string;
  readonly password?: string;
  /** Of the master, with Sentinels. */
  readonly master?: string;
  readonly database: number;
}

const FORM = /^(rediss?)(?:\+(cluster|sentinel))?:\/\/(?:([^/@]*)@)?([^/@?#]+)((?:\/[^/?#]+)*)\/?$/;
const NODE = /^(\[[\da-fA-F:.]+\]|[^\s:[\]]+)(?::(\d{1,5}))?$/;

/** Null for a text of another form. */
export function parseStore(text: string): StoreAddress | null {
  const [, scheme, kind, credentials, hosts = '', path = ''] = FORM.exec(text) ?? [];
  if (scheme === undefined || credentials === '***') return null;
  const form = (kind ?? 'single') as StoreAddress['form'];
  const nodes = hosts.split(',').map((host) => parseNode(host, form === 'sentinel' ? 26_379 : 6_379));
  const [first, ...more] = nodes;
  if (first == null || more.includes(null) || (form === 'single' && more.length > 0)) return null;
  const [one, two, three] = path.split('/').slice(1);
  const [master, database = '0'] = form === 'sentinel' ? [one, two] : [undefined, one];
  const tooMuch = form === 'sentinel' ? three !== undefined : two !== undefined;
  const lacksMaster = form === 'sentinel' && master === undefined;
  if (tooMuch || lacksMaster || !/^\d{1,4}$/.test(database) || (form === 'cluster' && database !== '0')) return null;
  const [username = '', ...password] = credentials?.split(':') ?? [];
  return {
    form,
    tls: scheme === 'rediss',
    nodes: [first, ...(more as StoreNode[])],
    ...(username === '' ? {} : { username: decodeURIComponent(username) }),
    ...(password.length === 0 ? {} : { password: decodeURIComponent(password.join(':')) }),
    ...(master === undefined ? {} : { master }),
    database: Number(database),
  };
}

function parseNode(text: string, standard: number): StoreNode | null {
  const [, host, port] = NODE.exec(text) ?? [];
  if (host === undefined || Number(port ?? 0) > 65_535) return null;
  return { host: host.replace(/^\[|\]$/g, ''), port: Number(port ?? standard) };
}
