/** The command line: from arguments to a configuration, to the part of the program that was asked for, to an exit code. */
import { readFileSync } from 'node:fs';
import { Command, CommanderError, Option } from 'commander';
import { describeFaults, effectiveFile, type Fault, loadConfig, type Options, type Sources } from './config.ts';
import { nearest } from './config-faults.ts';
import { type Key, SETTINGS, type Setting } from './config-schema.ts';
import { GuardError } from './errors.ts';
import type { Io } from './io.ts';

/** The exit codes: did what was asked; failed while running; cannot run with this command line or configuration. */
const DONE = 0;
const FAILED = 1;
const UNUSABLE = 2;

const ABOUT = [
  'A transparent reverse proxy for MCP servers that speak Streamable HTTP. It reads the event streams that pass and',
  'learns which requests have their result. A client that comes back with a Last-Event-ID which its server can no',
  'longer honour gets a clear refusal, where the server would have sent nothing at all or a finished result once',
  'more. Everything else passes byte for byte.',
].join(' ');

const SEE_HELP = '(mcp-resume-guard --help lists the options)';

const EXAMPLES = `
Examples:
  mcp-resume-guard http://localhost:3001/mcp
      guards the server there; point the client at http://127.0.0.1:8808/mcp
  mcp-resume-guard --mode observe --config guard.yaml
      decides, logs and counts by the settings of a file, and changes nothing

Every setting has a key in the file and a variable, such as MCP_RESUME_GUARD_MODE.
Options win over variables, and variables over the file.
`;

const GROUPS: readonly (readonly [string, readonly Key[]])[] = [
  ['Addresses:', ['upstream.url', 'listen', 'admin.listen']],
  [
    'Decisions:',
    ['mode', 'replayHold', 'refuseWith', 'unrecorded', 'deliveryProof', 'upstream.durableEvents', 'store'],
  ],
  ['Log:', ['log.level', 'log.format']],
];

/**
 * Runs one command line to its end.
 *
 * @param argv - the arguments after the name of the program.
 * @returns the exit code: 0 done, 1 failed while running, 2 unusable command line or configuration.
 */
export async function run(argv: readonly string[], io: Io = processIo()): Promise<number> {
  // A reader of our output that goes away is no reason to stop proxying.
  io.stdout.on('error', () => {});
  let code = DONE;
  const program = commandLine(io, (result) => {
    code = result;
  });
  try {
    await program.parseAsync(argv, { from: 'user' });
    return code;
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? DONE : UNUSABLE;
    const configuration = error instanceof GuardError && error.code === 'config-invalid';
    io.stderr.write(`mcp-resume-guard: ${error instanceof GuardError ? error.message : stackOf(error)}\n`);
    return configuration ? UNUSABLE : FAILED;
  }
}

function commandLine(io: Io, finish: (code: number) => void): Command {
  const program = new Command('mcp-resume-guard')
    .description(ABOUT)
    .argument(
      '[upstream-url]',
      'the MCP server; with a path, as in http://localhost:3001/mcp, only that path is guarded',
    )
    .allowExcessArguments()
    .exitOverride()
    .showHelpAfterError(SEE_HELP)
    .configureOutput({
      writeOut: (text) => void io.stdout.write(text),
      writeErr: (text) => void io.stderr.write(text),
    })
    .addHelpText('after', EXAMPLES);
  for (const [group, keys] of GROUPS) for (const key of keys) program.addOption(optionFor(key).helpGroup(group));
  program
    .addOption(new Option('--port <n>', 'the port of --listen alone').helpGroup('Addresses:'))
    .addOption(new Option('--no-admin', 'no admin listener').helpGroup('Addresses:'))
    .addOption(new Option('--config <file>', 'settings in YAML or JSON').helpGroup('Addresses:'))
    .version(version(), '--version', 'print the version')
    .helpOption('--help', 'print this');

  const sources = (upstreamUrl?: string): Sources => {
    const options = program.opts<Options>();
    return {
      options: upstreamUrl === undefined ? options : { ...options, upstreamUrl },
      env: io.env,
      cwd: io.cwd,
      readFile: io.readFile,
      terminal: io.stdout.isTTY === true,
    };
  };

  /** Commander knows how many arguments there may be, and not what somebody meant who gives another. */
  const usable = (given: readonly string[], command?: string): boolean => {
    const fault = argumentFault(given, command);
    if (fault !== null) io.stderr.write(`mcp-resume-guard: ${fault}\n${SEE_HELP}\n`);
    return fault === null;
  };

  program.action(async () => {
    finish(usable(program.args) ? await start(sources(program.args[0]), io) : UNUSABLE);
  });
  program
    .command('check-config')
    .argument('[upstream-url]')
    .allowExcessArguments()
    .description('print the settings in force, secrets masked, or everything that is wrong with them')
    .addHelpText('after', '\nTakes every option of mcp-resume-guard itself.')
    .action((_url, _options, { args }: Command) =>
      finish(usable(args, 'check-config') ? checkConfig(sources(args[0]), io) : UNUSABLE),
    );
  program
    .command('demo')
    .allowExcessArguments()
    .description('show what goes wrong without the guard, and what happens with it')
    .action(async (_options, { args }: Command) => {
      if (!usable(args, 'demo')) {
        finish(UNUSABLE);
        return;
      }
      const [option] = Object.keys(program.opts());
      if (option !== undefined) program.error(`error: demo takes no options (got ${option})`);
      const { runDemo } = await import('./demo/demo.ts');
      finish(await runDemo(io));
    });
  return program;
}

function optionFor(key: Key): Option {
  const { option, about, initial }: Setting = SETTINGS[key];
  const shown = initial === undefined || initial === false ? '' : ` (default: ${initial})`;
  return new Option(option ?? '', about + shown);
}

const COMMANDS = ['check-config', 'demo', 'help'];

/** What is wrong with the arguments behind a command, or with all of them where there is none; null if nothing is. */
function argumentFault(given: readonly string[], command?: string): string | null {
  if (command === 'demo') return given.length === 0 ? null : 'demo takes no arguments: mcp-resume-guard demo';
  const tooMany = given.length < 2 ? null : `one upstream URL is allowed, and ${given.length} arguments were given`;
  if (command !== undefined) return tooMany;
  const word = given.find((argument) => /^[a-z-]+$/.test(argument) && argument !== 'help');
  if (word === undefined) return tooMany && `${tooMany}; for several servers a file has routes`;
  const meant = nearest(word, COMMANDS);
  if (meant === word) return `${word} goes first: mcp-resume-guard ${word}`;
  if (meant !== undefined) return `${word} is no command; did you mean ${meant}?`;
  // Alone it may be the name of a host, which is complained about as that.
  return tooMany && `${word} is no command (there are ${COMMANDS.join(', ')}); to start, give the URL alone`;
}

function checkConfig(sources: Sources, io: Io): number {
  const loaded = loadConfig(sources);
  if (!loaded.ok) return complain(loaded.faults, io);
  io.stdout.write(`# In force. A comment says where a setting comes from; without one it is the default.\n`);
  io.stdout.write(effectiveFile(loaded.effective));
  return DONE;
}

function complain(faults: readonly Fault[], io: Io): number {
  io.stderr.write(`mcp-resume-guard: ${describeFaults(faults)}${SEE_HELP}\n`);
  return UNUSABLE;
}

async function start(sources: Sources, io: Io): Promise<number> {
  const loaded = loadConfig(sources);
  if (!loaded.ok) return complain(loaded.faults, io);
  const { serve } = await import('./serve.ts');
  return await serve(loaded.config, { reload: () => loadConfig(sources), version: version() }, io);
}

function version(): string {
  const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
    version: string;
  };
  return version;
}

function stackOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}

function processIo(): Io {
  return {
    stdout: process.stdout,
    stderr: process.stderr,
    env: process.env,
    cwd: process.cwd(),
    readFile: (path) => readFileSync(path, 'utf8'),
    onSignal: (signal, listener) => {
      process.on(signal, listener);
      return () => process.off(signal, listener);
    },
    exit: (code) => process.exit(code),
  };
}
