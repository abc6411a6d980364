/** The four places a setting can come from, and what remains when each is laid over the one before. */
import { dirname, resolve } from 'node:path';
import type { Sources } from './config.ts';
import { type Fault, isGroup, keyFaults, nearest, unknown, valueFaults } from './config-faults.ts';
import { parseFile, pathText } from './config-file.ts';
import { filePath } from './config-kinds.ts';
import { KEYS, type Key, optionOf, PREFIX, SETTINGS, type Setting, variableOf } from './config-schema.ts';

/** The sources with everything filled in that reading them needs. */
export type World = Sources & Required<Pick<Sources, 'readFile' | 'cwd'>>;

/** What one source says, in the form that the schema of each setting takes. */
export interface Layer {
  /** What is wrong with the source apart from the values of known settings. */
  readonly faults: readonly Fault[];
  readonly raws: ReadonlyMap<Key, unknown>;
  /** Where relative paths start. */
  readonly base: string;
  /** Names the place of a setting, or of something inside it; null for a default. */
  readonly where: ((key: Key, path: readonly PropertyKey[]) => string) | null;
}

/** A setting in force. */
export interface Entry {
  readonly key: Key;
  readonly raw: unknown;
  readonly value: unknown;
  /** Null for a default. */
  readonly origin: string | null;
  /** Names a place inside the value. */
  where(path: readonly PropertyKey[]): string;
}

/** The layers in ascending order. */
export function readLayers(world: World): readonly Layer[] {
  return [defaults(world), fileLayer(world), variables(world), options(world)];
}

function defaults(world: World): Layer {
  const raws = new Map<Key, unknown>();
  for (const key of KEYS) {
    const { initial }: Setting = SETTINGS[key];
    if (initial !== undefined) raws.set(key, initial);
  }
  raws.set('log.format', world.terminal ? 'pretty' : 'json');
  return { faults: [], raws, base: world.cwd, where: null };
}

function fileLayer(world: World): Layer {
  const without = (...faults: Fault[]): Layer => ({ faults, raws: new Map(), base: world.cwd, where: null });
  if (world.settings !== undefined) return treeLayer(world.settings, world.cwd, pathText);
  const variable = `${PREFIX}CONFIG`;
  const option = world.options?.['config'];
  const name = typeof option === 'string' ? option : world.env?.[variable]?.trim() || undefined;
  if (name === undefined) return without();
  const path = resolve(world.cwd, name);
  let text: string;
  try {
    text = world.readFile(path);
  } catch (error) {
    const where = typeof option === 'string' ? '--config' : variable;
    return without({ where, problem: `${name} ${unreadable(error)}` });
  }
  const parsed = parseFile(text, name);
  return 'faults' in parsed ? without(...parsed.faults) : treeLayer(parsed.tree, dirname(path), parsed.where);
}

/** The clause that says why a file cannot be read. */
export function unreadable(error: unknown): string {
  const reasons: Readonly<Record<string, string>> = {
    ENOENT: 'there is no such file',
    EACCES: 'permission denied',
    EISDIR: 'it is a directory',
  };
  const { code = '', message = String(error) } = error as { code?: string; message?: string };
  return `cannot be read: ${reasons[code] ?? message}`;
}

function treeLayer(tree: object, base: string, where: (path: readonly PropertyKey[]) => string): Layer {
  const raws = new Map<Key, unknown>();
  for (const key of KEYS) {
    const raw = key.split('.').reduce<unknown>((at, name) => (isGroup(at) ? at[name] : undefined), tree);
    if (raw !== undefined && raw !== null) raws.set(key, raw);
  }
  return { faults: keyFaults(tree, where), raws, base, where: (key, path) => where([...key.split('.'), ...path]) };
}

// Kubernetes puts variables for every Service of a namespace into every container, so a Service called
// "mcp-resume-guard" would fill the list of unknown variables (Kubernetes documentation, Service, environment variables).
const SERVICE_LINK = /_SERVICE_HOST$|_SERVICE_PORT(?:_\w+)?$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?$/;

function isServiceLink(name: string, value: string): boolean {
  return SERVICE_LINK.test(name) || (name.endsWith('_PORT') && /^(?:tcp|udp|sctp):\/\//.test(value));
}

function unknownVariable(name: string): string {
  // Compared without the prefix, which makes any two variables look alike.
  const known = [...KEYS.map(variableOf), `${PREFIX}CONFIG`].map((variable) => variable.slice(PREFIX.length));
  const near = nearest(name.slice(PREFIX.length), known);
  return unknown(near && PREFIX + near);
}

function variables(world: World): Layer {
  const faults: Fault[] = [];
  const names = new Map(KEYS.map((key) => [variableOf(key), key]));
  const raws = new Map<Key, unknown>();
  for (const [name, value = ''] of Object.entries(world.env ?? {})) {
    if (!name.startsWith(PREFIX) || name === `${PREFIX}CONFIG`) continue;
    const key = names.get(name);
    if (key === undefined) {
      if (isServiceLink(name, value)) continue;
      faults.push({ where: name, problem: unknownVariable(name) });
    } else if (value.trim() !== '') {
      // An empty variable is how compose files and shells write "not set".
      raws.set(key, SETTINGS[key].kind.fromText(value.trim()));
    }
  }
  return { faults, raws, base: world.cwd, where: (key, path) => [variableOf(key), pathText(path)].join(' ').trimEnd() };
}

function options(world: World): Layer {
  const faults: Fault[] = [];
  const given = world.options ?? {};
  const raws = new Map<Key, unknown>();
  for (const key of KEYS) {
    const value = given[attributeOf(key)];
    if (value === undefined) continue;
    if (value === false) raws.set(key, 'off');
    else raws.set(key, typeof value === 'string' ? SETTINGS[key].kind.fromText(value) : value);
  }
  const argument = given.upstreamUrl;
  if (argument !== undefined) {
    if (raws.has('upstream.url')) {
      faults.push({ where: '--upstream', problem: 'is given twice: as an option and as an argument' });
    }
    raws.set('upstream.url', argument);
  }
  const nameOf = (key: Key) =>
    key === 'upstream.url' && argument !== undefined ? '<upstream-url>' : (optionOf(key) ?? key);
  return { faults, raws, base: world.cwd, where: (key, path) => [nameOf(key), pathText(path)].join(' ').trimEnd() };
}

/** `--replay-hold` is `replayHold`, as commander names it. */
function attributeOf(key: Key): string {
  const option = optionOf(key) ?? '';
  return option.replace(/^--/, '').replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase());
}

/** Checks every value of every layer and collects all faults; of the values that are right the last one counts. */
export function settle(layers: readonly Layer[], faults: Fault[]): Map<Key, Entry> {
  const settled = new Map<Key, Entry>();
  for (const { faults: own, raws, base, where } of layers) {
    faults.push(...own);
    for (const [key, raw] of raws) {
      const row: Setting = SETTINGS[key];
      const place = (path: readonly PropertyKey[]) => where?.(key, path) ?? key;
      const checked = row.kind.schema.safeParse(raw);
      if (!checked.success) {
        faults.push(...valueFaults(checked.error.issues, raw, row.secret === true, place));
        continue;
      }
      const isPath = row.kind === filePath;
      const value: unknown = isPath ? resolve(base, String(checked.data)) : checked.data;
      settled.set(key, { key, raw: isPath ? value : raw, value, origin: where && place([]), where: place });
    }
  }
  return settled;
}
