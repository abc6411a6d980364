/** From the start of the process to the first connection it accepts, and from SIGTERM to its end when nothing is open. */
import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { type Figure, plain, type Row } from '../figures.ts';
import { startUpstream } from '../load.ts';
import { accepting, pause, stop } from '../processes.ts';
import { launch } from '../proxies.ts';
import { alternate, type Scenario, type Stage } from '../stage.ts';

/** What still goes on after a start and a first request is over by then; in ms. */
const SETTLING = 300;

/** One request, on a connection that stays. */
async function talk(port: number, agent: Agent): Promise<void> {
  const sent = request({ host: '127.0.0.1', port, path: '/mcp?do=json', method: 'POST', agent });
  sent.end('{"jsonrpc":"2.0","id":1,"method":"ping"}');
  const [response] = await once(sent, 'response');
  response.resume();
  await once(response, 'end');
}

async function live(
  { workshop }: Stage,
  upstream: number,
  name: (typeof NAMES)[number],
): Promise<{ starting: Figure; stopping: Figure }> {
  const agent = new Agent({ keepAlive: true });
  const begun = performance.now();
  const { child, port } = await launch(name, upstream, workshop);
  try {
    await accepting(port, child);
    const starting = performance.now() - begun;
    await talk(port, agent);
    await pause(SETTLING);
    const ended = once(child, 'exit');
    const asked = performance.now();
    child.kill('SIGTERM');
    await Promise.race([
      ended,
      new Promise((_, reject) => setTimeout(reject, 10_000, new Error(`${name} does not end`)).unref()),
    ]);
    return { starting: plain(starting), stopping: plain(performance.now() - asked) };
  } finally {
    agent.destroy();
    await stop(child);
  }
}

/** The two that are of a kind. */
const NAMES = ['http-proxy-3', 'product'] as const;

export const lifecycle: Scenario = {
  name: 'lifecycle',
  about: 'start to listening, SIGTERM to exit when idle',
  async run(stage) {
    const { workshop, plan } = stage;
    const upstream = await startUpstream(workshop, plan.seed);
    try {
      const results = await alternate(NAMES, plan.rounds, (name) => live(stage, upstream.port, name));
      const row = (name: 'starting' | 'stopping', title: string): Row => ({
        name,
        title,
        unit: 'ms',
        better: 'less',
        each: null,
        figures: Object.fromEntries([...results].map(([subject, list]) => [subject, list.map((both) => both[name])])),
        notes: [],
      });
      return [
        row('starting', 'start of the process to its first accepted connection'),
        row('stopping', 'SIGTERM to exit, with one idle connection on each side'),
      ];
    } finally {
      await upstream.stop();
    }
  },
};
