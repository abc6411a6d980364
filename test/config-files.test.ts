import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';
import { schemaText } from '../scripts/write-schema.ts';
import { loadConfig } from '../src/config.ts';
import { KEYS, type Key, SETTINGS } from '../src/config-schema.ts';

const FOLDER = new URL('../config/', import.meta.url);
const read = (name: string): string => readFileSync(new URL(name, FOLDER), 'utf8');
const path = (name: string): string => fileURLToPath(new URL(name, FOLDER));

/** The configurations among the documents: the others are for other programs. */
const CONFIGURATIONS = readdirSync(FOLDER).filter(
  (name) => name.endsWith('.yaml') && read(name).startsWith('# yaml-language-server: $schema=./schema.json\n'),
);

/** The value at a dotted key. */
const at = (tree: unknown, key: Key): unknown =>
  key.split('.').reduce<unknown>((value, name) => (value as Record<string, unknown> | undefined)?.[name], tree);

/** The text with every line that holds a setting behind "#" and no blank switched on. */
const uncommented = (text: string): string => text.replace(/^( *)#(?=[^\s])/gm, '$1').replace(/^#( {2})/gm, '$1');

describe('config/default.yaml', () => {
  test('has every default as it is', () => {
    const tree = parse(read('default.yaml'));
    for (const key of KEYS) {
      // An admin address that is set is no default any more: it is used, or start-up fails.
      const expected = key === 'admin.listen' ? undefined : SETTINGS[key].initial;
      assert.deepEqual(at(tree, key), expected, key);
    }
  });

  test('changes nothing when it is used', () => {
    const options = { upstreamUrl: 'http://localhost:3001/mcp' };
    const loaded = loadConfig({ options: { ...options, config: path('default.yaml') }, env: {} });
    const plain = loadConfig({ options, env: {} });
    assert.ok(loaded.ok && plain.ok, JSON.stringify(loaded));
    assert.deepEqual(loaded.config, plain.config);
  });

  test('shows every setting there is, the ones without a default behind "#"', () => {
    const tree = parse(uncommented(read('default.yaml')));
    for (const key of KEYS) assert.notEqual(at(tree, key), undefined, `${key} is missing`);
    assert.equal(at(tree, 'admin.listen'), SETTINGS['admin.listen'].initial);
  });

  test('shows nothing that would be refused', () => {
    const text = uncommented(read('default.yaml')).replace(/^ {2}url: .*\n/m, '');
    const loaded = loadConfig({
      options: { config: 'default.yaml' },
      env: {},
      readFile: (name) => (name.endsWith('.pem') ? '-----BEGIN X-----' : text),
    });
    assert.deepEqual(loaded.ok ? [] : loaded.faults, []);
  });
});

describe('the examples', () => {
  test('are all there', () => {
    for (const name of ['default.yaml', 'sidecar.yaml', 'local-dev.yaml', 'ingress.yaml', 'replicas.yaml']) {
      assert.ok(CONFIGURATIONS.includes(name), `${name} is missing, or does not name its schema`);
    }
  });

  for (const name of CONFIGURATIONS.filter((file) => file !== 'default.yaml')) {
    test(`${name} can be used as it is`, () => {
      const loaded = loadConfig({ options: { config: path(name) }, env: {} });
      assert.deepEqual(loaded.ok ? [] : loaded.faults, []);
    });
  }

  test('ingress.yaml takes no connection for a proof', () => {
    const loaded = loadConfig({ options: { config: path('ingress.yaml') }, env: {} });
    assert.ok(loaded.ok);
    assert.ok(loaded.config.routes.every(({ deliveryProof }) => deliveryProof === 'event-id'));
    assert.ok((loaded.config.allowedHosts ?? []).length > 0);
  });
});

test('config/schema.json is what the settings say; npm run schema writes it', () => {
  assert.deepEqual(JSON.parse(read('schema.json')), JSON.parse(schemaText()));
});
