/** A certificate authority of a test's own, in a directory that goes with the test. Needs `openssl`. */
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Paths of PEM files, and what is in them. */
export interface Issued {
  readonly cert: string;
  readonly key: string;
  readonly pem: { readonly cert: string; readonly key: string };
}

export interface Authority {
  /** Path of the authority's own certificate. */
  readonly ca: string;
  readonly pem: string;
  /** Issues a certificate for `subject` and these alternative names, such as `DNS:localhost`, `IP:127.0.0.1`. */
  issue(subject: string, ...names: readonly string[]): Promise<Issued>;
}

const NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];

/** Makes an authority. */
export async function makeAuthority(t: TestContext, name = 'test authority'): Promise<Authority> {
  const directory = mkdtempSync(join(tmpdir(), 'authority-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const file = (base: string): string => join(directory, base);
  const ca = file('ca.pem');
  const caKey = file('ca-key.pem');
  await run('openssl', [
    ...['req', '-x509', ...NEW_KEY, '-keyout', caKey, '-out', ca, '-days', '2', '-subj', `/CN=${name}`],
    ...['-addext', 'keyUsage=critical,keyCertSign'],
  ]);
  let serial = 0;
  return {
    ca,
    pem: readFileSync(ca, 'utf8'),
    async issue(subject, ...names) {
      serial += 1;
      const [cert, key, request, extensions] = ['cert', 'key', 'csr', 'ext'].map((kind) =>
        file(`${serial}-${kind}.pem`),
      );
      if (!cert || !key || !request || !extensions) throw new Error('unreachable');
      await run('openssl', ['req', '-new', ...NEW_KEY, '-keyout', key, '-out', request, '-subj', `/CN=${subject}`]);
      writeFileSync(extensions, names.length > 0 ? `subjectAltName=${names.join(',')}\n` : '');
      await run('openssl', [
        ...['x509', '-req', '-in', request, '-CA', ca, '-CAkey', caKey, '-set_serial', String(serial)],
        ...['-days', '2', '-extfile', extensions, '-out', cert],
      ]);
      return { cert, key, pem: { cert: readFileSync(cert, 'utf8'), key: readFileSync(key, 'utf8') } };
    },
  };
}
