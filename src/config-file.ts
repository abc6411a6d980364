/** Configuration as YAML (of which JSON is a part, YAML 1.2 section 1.3): read with lines to point at, and written. */
import { createRequire } from 'node:module';
import type { Document, LineCounter, Node } from 'yaml';
import type { Fault } from './config-faults.ts';
import { isGroup } from './config-faults.ts';
import { maskCredentials } from './config-kinds.ts';
import { type Key, SETTINGS, type Setting } from './config-schema.ts';

const require = createRequire(import.meta.url);
/** Most starts read no file, and are sooner done without it. */
const yaml = (): typeof import('yaml') => require('yaml');

/** A file that could be read as a mapping: its content, and a name for each place in it. */
export interface FileTree {
  readonly tree: Record<string, unknown>;
  /** `guard.yaml:7 tap.maxHeldBytes` */
  where(path: readonly PropertyKey[]): string;
}

/**
 * Reads the text of a configuration file. Keys without a value count as absent.
 *
 * @returns the tree, or what is wrong with the text, each fault with its line.
 */
export function parseFile(text: string, name: string): FileTree | { readonly faults: readonly Fault[] } {
  const { LineCounter, parseDocument } = yaml();
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  if (document.errors.length > 0) {
    return {
      faults: document.errors.map((error) => {
        const { line, col } = lines.linePos(error.pos[0]);
        return { where: `${name}:${line}:${col}`, problem: `is not valid YAML: ${error.message}` };
      }),
    };
  }
  const tree: unknown = plainTree(document);
  if (typeof tree === 'string') return { faults: [{ where: name, problem: tree }] };
  return {
    tree: tree as Record<string, unknown>,
    where: (path) => {
      const line = lineOf(document.contents, path, lines);
      return `${line === undefined ? name : `${name}:${line}`} ${pathText(path)}`;
    },
  };
}

function plainTree(document: Document.Parsed): Record<string, unknown> | string {
  try {
    const tree: unknown = document.toJS({ maxAliasCount: 100 }) ?? {};
    JSON.stringify(tree); // an anchor that contains itself has no end
    return isGroup(tree) ? tree : 'must be a mapping of settings, such as mode: observe';
  } catch {
    return 'has anchors that cannot be followed';
  }
}

/** `routes[0].path`: how a place inside a value is written. */
export function pathText(path: readonly PropertyKey[]): string {
  return path
    .map((key, index) => (typeof key === 'number' ? `[${key}]` : `${index === 0 ? '' : '.'}${String(key)}`))
    .join('');
}

function lineOf(contents: Node | null, path: readonly PropertyKey[], lines: LineCounter): number | undefined {
  const { isAlias, isMap, isScalar, isSeq } = yaml();
  let node: unknown = contents;
  let offset: number | undefined;
  for (const key of path) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isScalar(item.key) && String(item.key.value) === String(key));
      if (pair === undefined) break;
      offset = (pair.key as Node).range?.[0];
      node = pair.value;
    } else if (isSeq(node) && typeof key === 'number') {
      node = node.items[key];
      offset = (node as Node | undefined)?.range?.[0] ?? offset;
    }
    if (isAlias(node)) break;
  }
  return offset === undefined ? undefined : lines.linePos(offset).line;
}

/** A setting in force, as one would write it in a file. */
export interface Effective {
  readonly key: Key;
  readonly raw: unknown;
  /** Where it was set; null for a default. */
  readonly origin: string | null;
}

/** The settings in force as a configuration file: secrets masked, and what is no default with where it came from. */
export function effectiveFile(settings: readonly Effective[]): string {
  const { Document, isScalar } = yaml();
  const document = new Document({});
  for (const { key, raw, origin } of settings) {
    const node = document.createNode(masked(key, raw));
    if (origin !== null) {
      if (isScalar(node)) node.comment = ` ${origin}`;
      else (node as Node).commentBefore = ` ${origin}`;
    }
    document.setIn(key.split('.'), node);
  }
  return document.toString({ lineWidth: 0 });
}

function masked(key: Key, raw: unknown): unknown {
  const row: Setting = SETTINGS[key];
  if (row.secret) return '********';
  return typeof raw === 'string' ? maskCredentials(raw) : raw;
}
