/** The public names. */
export {
  type Config,
  type ConfigFile,
  configFrom,
  type Fault,
  type Loaded,
  loadConfig,
  type Sources,
} from './config.ts';
export { type ErrorCode, type ErrorFault, GuardError } from './errors.ts';
export { type RunningProxy, type StartOptions, startProxy } from './main.ts';
