/** The command line from its sources, for tests that need a process of its own. */
import { run } from '../../src/cli.ts';

process.exitCode = await run(process.argv.slice(2));
