/**
 * From what an operator wrote to what the program reads. Four layers, each over the one before: defaults, file,
 * environment, options. Every layer is checked whole before they are merged, so that one run names everything that is
 * wrong, in a file as well as in a variable that would have been overridden.
 */
import { readFileSync } from 'node:fs';
import { build, checkFiles, checkTogether, choosePort } from './config-build.ts';
import { describeFaults, type Fault } from './config-faults.ts';
import type { Effective } from './config-file.ts';
import type { Address } from './config-kinds.ts';
import { readLayers, settle, type World } from './config-layers.ts';
import { type ConfigFile, KEYS, type RefusableRule } from './config-schema.ts';
import { GuardError } from './errors.ts';

export { addressText } from './config-build.ts';
export { describeFaults, type Fault } from './config-faults.ts';
export { effectiveFile } from './config-file.ts';
export type { Address } from './config-kinds.ts';
export { type ConfigFile, REFUSABLE, type RefusableRule } from './config-schema.ts';

/** What is decided for each route on its own; a route that says nothing has what the whole configuration says. */
interface RouteOptions {
  readonly mode: 'enforce' | 'observe';
  readonly unrecorded: 'forward' | 'complete' | 'refuse';
  readonly deliveryProof: 'connection' | 'event-id';
  readonly refuseWith: 'auto' | 'status' | 'event';
  readonly dedupe: boolean;
  readonly preserveHost: boolean;
  readonly durableEvents: boolean;
  /** In lower case. */
  readonly instanceField?: string;
}

/**
 * Which requests go to which upstream, and which of them are guarded. The path passes unchanged.
 *
 * `upstream.url: http://h:3001/mcp` is one route with prefix `/` and guarded `/mcp`: every path goes to the same
 * server, one of them guarded. An entry of `routes` guards every path under its prefix.
 */
export interface Route extends RouteOptions {
  /** Names the route in logs, and across a reload: host (or `*`) and prefix. */
  readonly name: string;
  /** Lower case, without a port; null for any. */
  readonly host: string | null;
  /** Covers this path and those below it, by whole segments: `/a` covers `/a`, `/a/` and `/a/b`, not `/ab`. */
  readonly prefix: string;
  /** Only this path, exactly or with one trailing slash; null for every path under the prefix. */
  readonly guarded: string | null;
  /** Scheme, host and port, such as `http://127.0.0.1:3001`. */
  readonly upstream: string;
}

/** The configuration of one proxy. Durations are milliseconds, sizes bytes. See behaviour.md sections 10 and 12. */
export interface Config extends Omit<RouteOptions, 'durableEvents' | 'instanceField'> {
  /** In the order to try them: the first that covers a request has it. */
  readonly routes: readonly Route[];
  readonly upstream: {
    /** Absolute paths of PEM files, readable when the configuration was loaded. */
    readonly ca?: string;
    readonly cert?: string;
    readonly key?: string;
    readonly instanceField?: string;
    readonly durableEvents: boolean;
  };
  readonly listen: Address;
  readonly admin: {
    /** Null: no admin listener. */
    readonly listen: Address | null;
    /** Nobody chose this address, so a free port will do where it is taken. */
    readonly isDefault: boolean;
    readonly token?: string;
    readonly open: boolean;
  };
  /** `memory`, or the URL of a Redis server, which may hold credentials. */
  readonly store: string;
  readonly storeFailure: 'forward' | 'refuse';
  /** What is stored is hashed with it; the same for all replicas. There where `store` is not `memory`. */
  readonly storeSecret?: string;
  /** Absolute path of a PEM file. */
  readonly storeCa?: string;
  readonly replayHold: number;
  readonly replayDeadline: number;
  readonly proofMemory: number;
  readonly sessionMemory: number;
  readonly refusals: Readonly<Partial<Record<RefusableRule, number>>>;
  readonly proxyStatus: boolean;
  /** Lower case; with a port only that port fits, without one any does. Undefined: section 8's own lists. */
  readonly allowedHosts?: readonly string[];
  /** As a browser serialises them. */
  readonly allowedOrigins?: readonly string[];
  readonly drainDelay: number;
  readonly drainTimeout: number;
  /** Null: off. */
  readonly keepAlive: number | null;
  /** 0: without limit. */
  readonly connectTimeout: number;
  readonly tap: { readonly maxHeldBytes: number };
  /** Absolute paths of PEM files, readable when the configuration was loaded. */
  readonly tls?: { readonly cert: string; readonly key: string };
  readonly log: {
    readonly level: 'fatal' | 'error' | 'warn' | 'info' | 'debug' | 'trace' | 'silent';
    readonly format: 'json' | 'pretty';
  };
  readonly bounds: {
    readonly memory: number;
    readonly sessions: number;
    readonly streamsPerSession: number;
    readonly eventIdsPerStream: number;
    readonly finishedStreamMemory: number;
    readonly openStreamMemory: number;
    readonly eventIdBytes: number;
    readonly concurrentStreams: number;
    readonly kernelReading: number;
    readonly connections: number;
    readonly fieldBytes: number;
    /** 0: without limit. */
    readonly bodyBytes: number;
    /** 0: without limit. */
    readonly headTimeout: number;
  };
}

/** Options of the command line under commander's names, `replayHold` for `--replay-hold`. */
export type Options = Readonly<Record<string, string | boolean | undefined>> & {
  /** The argument, which says the same as `--upstream`. */
  readonly upstreamUrl?: string;
};

/** Where settings come from. */
export interface Sources {
  readonly options?: Options;
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Settings in place of a file. */
  readonly settings?: ConfigFile;
  /** @throws the error of `fs.readFileSync` when the file cannot be read. */
  readonly readFile?: (path: string) => string;
  /** Where relative paths start; those in a file start at its directory. */
  readonly cwd?: string;
  /** Whether a person is watching standard output: the default of `log.format`. */
  readonly terminal?: boolean;
}

/** A configuration with the settings it came from, or everything that is wrong. */
export type Loaded =
  | { readonly ok: true; readonly config: Config; readonly effective: readonly Effective[] }
  | { readonly ok: false; readonly faults: readonly Fault[] };

/** Reads all sources and checks them, without any other effect than reading files. */
export function loadConfig(sources: Sources): Loaded {
  const world: World = { readFile: (path) => readFileSync(path, 'utf8'), cwd: process.cwd(), ...sources };
  const faults: Fault[] = [];
  const report = (where: string, problem: string) => faults.push({ where, problem });
  const layers = readLayers(world);
  const settled = settle(layers, faults);
  choosePort(settled, world, report);
  checkFiles(settled, world.readFile, report);
  checkTogether(settled, layers, report);
  if (faults.length > 0) return { ok: false, faults };
  const effective = KEYS.map((key) => settled.get(key)).filter((entry) => entry !== undefined);
  return { ok: true, config: build(settled), effective };
}

/**
 * A configuration from settings alone, as they would stand in a file.
 *
 * @throws GuardError `config-invalid`, with everything that is wrong in its message.
 */
export function configFrom(settings: ConfigFile): Config {
  const loaded = loadConfig({ settings });
  if (loaded.ok) return loaded.config;
  throw new GuardError('config-invalid', describeFaults(loaded.faults));
}
