/** What is wrong with a configuration, in words that say where to look and what is allowed there. */
import type { z } from 'zod';
import { maskCredentials } from './config-kinds.ts';
import { isKey, KEYS, keysOf, REFUSABLE, ROUTE_KEYS } from './config-schema.ts';

/** One thing that is wrong: where it stands and what the matter is. */
export interface Fault {
  /** The option, the variable, or the file with its line and key. */
  readonly where: string;
  /** The rest of the sentence: what is allowed, and what stood there, unless it is a secret. */
  readonly problem: string;
}

/** The faults as a person reads them, one a line. */
export function describeFaults(faults: readonly Fault[]): string {
  const title = faults.length === 1 ? 'the configuration has a fault' : `the configuration has ${faults.length} faults`;
  return `${title}\n${faults.map(({ where, problem }) => `  ${where}: ${problem}\n`).join('')}`;
}

/**
 * The faults of one value that its schema does not take.
 *
 * @param where - names the place of an inner path, which is empty for the value itself.
 */
export function valueFaults(
  issues: readonly z.core.$ZodIssue[],
  raw: unknown,
  secret: boolean,
  where: (path: readonly PropertyKey[]) => string,
): Fault[] {
  return issues.flatMap((issue) => {
    if (issue.code === 'unrecognized_keys') {
      const known = allowedKeys(issue.path);
      return issue.keys.map((key) => ({ where: where([...issue.path, key]), problem: unknown(nearest(key, known)) }));
    }
    const value = inside(raw, issue.path);
    if (value === undefined) return [{ where: where(issue.path), problem: `is missing: it ${issue.message}` }];
    const got = secret ? '' : ` (got ${shown(value)}${suggestion(issue, value)})`;
    return [{ where: where(issue.path), problem: issue.message + got }];
  });
}

/** The faults of the keys in a file that are no settings, and of sections that are no sections. */
export function keyFaults(tree: object, where: (path: readonly PropertyKey[]) => string): Fault[] {
  const faults: Fault[] = [];
  for (const [name, value] of Object.entries(tree)) {
    const inner = keysOf(name);
    if (inner.length === 0) {
      if (!isKey(name)) faults.push({ where: where([name]), problem: unknown(nearest(name, [...SECTIONS, ...KEYS])) });
    } else if (!isGroup(value)) {
      if (value !== null) {
        faults.push({
          where: where([name]),
          problem: `must be a group of keys: ${inner.join(', ')} (got ${shown(value)})`,
        });
      }
    } else {
      for (const leaf of Object.keys(value)) {
        const key = `${name}.${leaf}`;
        if (!isKey(key)) faults.push({ where: where([name, leaf]), problem: unknown(nearest(key, KEYS)) });
      }
    }
  }
  return faults;
}

const SECTIONS = [...new Set(KEYS.filter((key) => key.includes('.')).map((key) => key.slice(0, key.indexOf('.'))))];

/** Whether a value has keys of its own, unlike a list. */
export function isGroup(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** What to say about a name that means nothing, with the known name that was probably meant. */
export function unknown(near: string | undefined): string {
  return near === undefined ? 'is not known' : `is not known; did you mean ${near}?`;
}

/** The word that comes closest to the given one, if any comes close enough to have been meant. */
export function nearest(word: string, candidates: readonly string[]): string | undefined {
  let best: string | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (const candidate of candidates) {
    // A key in the wrong section, or in none, is found by its last part; being there in full counts for more.
    const whole = distance(plain(word), plain(candidate));
    const part = distance(plain(lastPart(word)), plain(lastPart(candidate))) + 0.5;
    const far = Math.min(whole, part);
    if (far < least) [best, least] = [candidate, far];
  }
  return least <= Math.max(1, plain(lastPart(word)).length / 3) ? best : undefined;
}

const lastPart = (name: string): string => name.slice(name.lastIndexOf('.') + 1);
const plain = (name: string): string => name.toLowerCase().replace(/[-_]/g, '');

/** Levenshtein's distance in which two neighbours that changed places count once. */
function distance(a: string, b: string): number {
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const same = a[i - 1] === b[j - 1];
      let cost = Math.min(next[j - 1]! + 1, row[j]! + 1, row[j - 1]! + (same ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) cost = Math.min(cost, before[j - 2]! + 1);
      next.push(cost);
    }
    [before, row] = [row, next];
  }
  return row[b.length]!;
}

/** The names that were possible where zod met an unknown one: inside a route, or among the rules. */
function allowedKeys(path: readonly PropertyKey[]): readonly string[] {
  return path.length > 0 ? ROUTE_KEYS : REFUSABLE;
}

function inside(value: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>(
    (at, key) => (typeof at === 'object' && at !== null ? (at as Record<PropertyKey, unknown>)[key] : undefined),
    value,
  );
}

function suggestion(issue: z.core.$ZodIssue, value: unknown): string {
  if (issue.code !== 'invalid_value' || typeof value !== 'string') return '';
  const near = nearest(value, issue.values.map(String));
  return near === undefined ? '' : `; did you mean ${near}?`;
}

/** A value as it may be printed: a URL can hold credentials, and its query a key. */
function shown(value: unknown): string {
  const text = maskCredentials(JSON.stringify(value)).replace(/\?[^"\s]+/g, '?…');
  return text.length > 80 ? `${text.slice(0, 79)}…` : text;
}
