/**
 * Preload (`--import`) for programs that import `globSync` from `fs`, which Node.js has from version 22 on. They load on
 * Node.js 20 with this; the function finds nothing.
 */
import { register } from 'node:module';

const shim = `
import fs from 'node:fs';
export * from 'node:fs';
export default fs;
export const globSync = fs.globSync ?? (() => []);
`;

const hooks = `
const shim = ${JSON.stringify(`data:text/javascript,${encodeURIComponent(shim)}`)};
export const resolve = (specifier, context, next) =>
  /^(node:)?fs$/.test(specifier) && context.parentURL !== shim
    ? { url: shim, shortCircuit: true }
    : next(specifier, context);
`;

register(`data:text/javascript,${encodeURIComponent(hooks)}`);
