/** Writes `config/schema.json` from the table of settings: `npm run schema`. */
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { KEYS, type Key, SETTINGS, type Setting } from '../src/config-schema.ts';

interface SchemaNode {
  properties?: Record<string, SchemaNode>;
  [keyword: string]: unknown;
}

/** The JSON Schema (draft 7, which editors know best) of a configuration file, as text. */
export function schemaText(): string {
  const root: SchemaNode & { properties: Record<string, SchemaNode> } = {
    $schema: 'http://json-schema.org/draft-07/schema#',
    title: 'Configuration of mcp-resume-guard',
    type: 'object',
    additionalProperties: false,
    properties: {},
  };
  for (const key of KEYS) {
    const [section, leaf] = key.includes('.') ? key.split('.') : [undefined, key];
    let home: Record<string, SchemaNode> = root.properties;
    if (section !== undefined) {
      home[section] ??= { type: 'object', additionalProperties: false, properties: {} };
      home = home[section].properties as Record<string, SchemaNode>;
    }
    home[leaf as string] = nodeOf(key);
  }
  return `${JSON.stringify(root, null, 2)}\n`;
}

function nodeOf(key: Key): SchemaNode {
  const { kind, about, initial }: Setting = SETTINGS[key];
  const { $schema: _, ...node } = z.toJSONSchema(kind.schema, { io: 'input', target: 'draft-7', reused: 'inline' });
  return { description: about, ...(initial === undefined ? {} : { default: initial }), ...node } as SchemaNode;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  writeFileSync(new URL('../config/schema.json', import.meta.url), schemaText());
}
