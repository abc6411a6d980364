/** The watch of `core/watch.ts`, with the timers of Node.js. */
import { type StartTimer, Watch as TimedWatch, type WatchOptions } from '../core/watch.ts';

const startTimer: StartTimer = (ms, run) => {
  const timer = setTimeout(run, ms);
  return () => clearTimeout(timer);
};

export class Watch extends TimedWatch<Buffer> {
  constructor(options: WatchOptions) {
    super(options, startTimer);
  }
}
