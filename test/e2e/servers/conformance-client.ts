/**
 * The client that the conformance suite runs against its own server: `conformance-client.ts <server-url>`. With
 * `E2E_GUARD=1` it talks to that server through a proxy, which it starts as a process of its own.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { connectSdk } from '../../support/sdk-clients.ts';

const CLI = fileURLToPath(new URL('../../../src/cli.ts', import.meta.url));

/** Starts the proxy and resolves with the URL it announces in its first line. */
async function startGuard(upstream: string): Promise<{ url: string; process: ChildProcess }> {
  const program = `process.exitCode = await (await import(${JSON.stringify(CLI)})).run(process.argv.slice(1));`;
  const options = ['--listen', '127.0.0.1:0', '--no-admin', '--log-format', 'json', upstream];
  const child = spawn(
    process.execPath,
    ['--import', 'tsx', '--input-type=module', '--eval', program, '--', ...options],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  );
  for await (const line of createInterface({ input: child.stdout })) {
    const { event, url } = JSON.parse(line) as { event?: string; url?: string };
    if (event !== 'listening' || url === undefined) continue;
    child.stdout.resume();
    return { url, process: child };
  }
  throw new Error('the proxy said nothing');
}

const target = new URL(process.argv[2] ?? '');
const guard = process.env['E2E_GUARD'] === '1' ? await startGuard(target.href) : undefined;
if (guard !== undefined) {
  target.host = new URL(guard.url).host;
  console.log('through the proxy');
}
try {
  const client = await connectSdk('1.32', target.href);
  const tools = await client.listTools();
  for (const tool of tools) {
    const args = tool === 'add_numbers' ? { a: 5, b: 3 } : {};
    console.log(tool, await client.callTool(tool, args, { timeout: 10_000 }));
  }
  await client.close();
} finally {
  guard?.process.kill();
}
