/** Plays a script: every step turns into what a client, the server or the network does in that state of the world. */
import { decide, type ResumeFacts, type RuleName, type Verdict } from '../../../src/core/decide.ts';
import type { Outcome } from '../../../src/core/replay.ts';
import { type Handle, type Link, Process } from './client.ts';
import { boundsFault } from './limits.ts';
import type { Script, Step } from './script.ts';
import type { Call, ServerStream } from './server.ts';
import { Breach, newHandle, type Property, STRANGER, type Wire, World } from './world.ts';

export interface Played {
  readonly rules: ReadonlySet<RuleName>;
  readonly outcomes: ReadonlySet<Outcome>;
  readonly verdicts: readonly string[];
  readonly breach: Breach | null;
}

type StepOf<Name extends Step['do']> = Extract<Step, { readonly do: Name }>;

class Play {
  readonly world: World;
  readonly #script: Script;

  constructor(script: Script, world: World) {
    this.#script = script;
    this.world = world;
    const { anonymous, forwarded, userAgent, versioned, seen } = script.client;
    const first = new Process({
      name: 'A',
      sessionId: 's1',
      token: 't',
      anonymous,
      forwarded,
      userAgent,
      versioned,
    });
    world.processes.push(first);
    if (seen) this.#initialize(first, false);
    else world.server.session(first.sessionId).initialized = true;
  }

  step(step: Step): void {
    const { world } = this;
    switch (step.do) {
      case 'call':
        this.#call(step);
        break;
      case 'resume':
        this.#resume(step);
        break;
      case 'odd':
        this.#odd(step);
        break;
      case 'listen':
        world.listen(this.#process(step.who), world.newLink(this.#process(step.who), step.latency), null);
        break;
      case 'emit':
        this.#emit(step);
        break;
      case 'leave':
        this.#leave(step);
        break;
      case 'cut':
        pick(world.wires, step.which)?.cut();
        break;
      case 'wait':
        world.clock.wait(step.ms);
        world.guard.store.sweep(world.clock.now);
        break;
      case 'restart':
        this.#restart(step);
        break;
      case 'down':
      case 'up':
        world.server.up = step.do === 'up';
        break;
      case 'replica':
        world.server.style = { ...world.server.style, unknown: step.unknown, quiet: step.quiet };
        break;
      case 'two-replicas':
        this.#askTwo(step);
        break;
      case 'initialize':
        this.#begin(step);
        break;
      case 'remove':
        this.#remove(step);
        break;
      case 'gone':
        this.#gone(step);
        break;
      case 'successor':
        this.#successor(step);
        break;
      case 'token':
        this.#tokens(step);
        break;
      case 'guard-restart':
        this.#guardRestart();
        break;
    }
  }

  #process(who: number): Process {
    const alive = this.world.processes.filter((process) => process.alive);
    return alive[who % alive.length]!;
  }

  #stream(process: Process, which: number): ServerStream | null {
    return pick(this.world.server.session(process.sessionId).streams, which);
  }

  #post(process: Process, link: Link, more: Parameters<World['ask']>[3]): Wire {
    const handle = newHandle(process, 'request');
    const wire = this.world.wire(process, link, handle, this.world.ask(process, 'POST', link, more));
    wire.exchange.start();
    return wire;
  }

  // Calls.

  #call({ who, keys, reuse, kept, latency, notes, fate }: StepOf<'call'>): void {
    const { world } = this;
    const process = this.#process(who);
    const link = world.linkFor(process, kept, latency);
    const calls: Call[] = [];
    for (let i = 0; i < keys; i++) {
      const uid = world.calls++;
      // An id that comes again means the new call, whatever becomes of the old one.
      const call = { uid, key: `n:${reuse ? i : uid + 10}` };
      process.pending.set(call.key, call);
      calls.push(call);
    }
    const readable = fate !== 'unreadable';
    const wire = this.#post(process, link, {
      posted: { keys: calls.map(({ key }) => key), initialize: false, readable },
    });
    world.note(() => `${process.name} calls ${calls.map(({ key }) => key).join(' and ')} (${fate})`);
    if (!world.admits(wire)) return;
    if (fate === 'json') {
      this.#answerInJson(process, wire, calls);
      return;
    }
    const stream = world.server.open(wire.session, 'request', calls);
    stream.readable = readable;
    wire.sure = stream;
    stream.pipes.push(wire);
    if (fate === 'late-head') return;
    wire.head();
    if (world.server.style.primes) world.server.emit(stream, 'priming');
    for (let i = 0; i < notes; i++) world.server.emit(stream, 'note');
    this.#befall(stream, wire, link, fate);
  }

  #answerInJson(process: Process, wire: Wire, calls: readonly Call[]): void {
    wire.answer(200, JSON.stringify({ jsonrpc: '2.0', id: calls[0]!.uid, result: {} }));
    for (const { key } of calls) process.pending.delete(key);
  }

  #befall(stream: ServerStream, wire: Wire, link: Link, fate: StepOf<'call'>['fate']): void {
    const { world } = this;
    const { server, clock } = world;
    const finish = (): void => {
      this.#answer(stream, stream);
      server.end(stream);
    };
    switch (fate) {
      case 'done':
      case 'unreadable':
        finish();
        clock.wait(150);
        break;
      case 'done-now':
        finish();
        break;
      case 'left-before':
        clock.wait(60);
        world.leave(link, 0);
        finish();
        break;
      case 'left-in-flight':
        clock.wait(60);
        finish();
        world.leave(link, 0);
        break;
      case 'left-late':
        finish();
        clock.wait(100);
        world.leave(link, 0);
        break;
      case 'vanished':
        clock.wait(60);
        finish();
        world.leave(link, 30);
        break;
      case 'stuck':
        clock.wait(60);
        this.#stick(link);
        finish();
        break;
      case 'blocked':
        clock.wait(60);
        link.blocked = true;
        finish();
        break;
      case 'cut':
        clock.wait(60);
        wire.cut();
        break;
      case 'cut-after':
        this.#answer(stream, stream);
        wire.cut();
        break;
      case 'half':
        wire.part();
        wire.cut();
        break;
      case 'poll':
        clock.wait(60);
        server.end(stream);
        break;
      case 'elsewhere':
        this.#answer(stream, server.listening(wire.session));
        break;
      case 'one-of-two':
        server.answer(stream, [...stream.calls].slice(0, 1), stream);
        clock.wait(60);
        world.leave(link, 0);
        break;
      case 'lost':
        clock.wait(60);
        world.leave(link, 0);
        finish();
        for (const event of stream.log) event.gone = true;
        break;
    }
  }

  /** Answers what is open of a stream's calls: one by one, or a batch in one block. */
  #answer(owner: ServerStream, stream: ServerStream | null): void {
    const calls = [...owner.calls];
    if (stream === null || calls.length === 0) return;
    if (calls.length > 1 && calls[0]!.uid % 3 === 0) this.world.server.answer(owner, calls, stream);
    else for (const call of calls) this.world.server.answer(owner, [call], stream);
  }

  /** Where nobody can ask the kernel, the contract's premise is that bytes arrive within 100 ms. */
  #stick(link: Link): void {
    if (this.#script.kernelKnown) link.stuck = true;
  }

  // Resumes.

  #resume({ who, which, cursor, as, kept, latency, times, gap, leaves, listens }: StepOf<'resume'>): void {
    const { world } = this;
    const process = this.#process(who);
    const handle = pick(process.handles, which);
    if (handle === null) return;
    if (as === 'renewed') process.token = `t${world.names++}`;
    const by = as === 'stranger' ? this.#stranger(process, handle) : process;
    for (let i = 0; i < times; i++) {
      const after = cursorOf(process, handle, cursor);
      if (listens && i === times - 1) world.listen(process, world.newLink(process, latency), null);
      const link = world.linkFor(by, kept, latency);
      const own = by === process ? handle : by.handles[0]!;
      // A client that has no cursor can only listen.
      if (after === null) world.listen(by, link, own);
      else if (world.resume(by, own, { cursor: after, link }) === null) return;
      world.clock.wait(gap);
      if (leaves === 'each' || (leaves === 'all-but-last' && i < times - 1)) world.leave(link, 0);
    }
  }

  /** One replica has nothing to say, and says it late or never; the other says it at once. */
  #askTwo({ who, which, times }: StepOf<'two-replicas'>): void {
    const { server, clock } = this.world;
    const ask = {
      do: 'resume',
      who,
      which,
      cursor: 'last',
      as: 'self',
      kept: false,
      latency: 0,
      listens: false,
    } as const;
    const { style } = server;
    server.style = { ...style, unknown: 'hang', quiet: 'stay' };
    this.#resume({ ...ask, times: 1, gap: 0, leaves: 'none' });
    server.style = { ...style, unknown: 'empty', quiet: 'end' };
    this.#resume({ ...ask, times: 1, gap: 0, leaves: 'each' });
    clock.wait(2_001);
    this.#resume({ ...ask, times, gap: 0, leaves: 'each' });
    server.style = style;
  }

  #stranger(process: Process, handle: Handle): Process {
    const { sessionId, anonymous } = process;
    return new Process({ name: 'a stranger', sessionId, token: STRANGER, anonymous, handles: [handle] });
  }

  #odd({ who, which, what }: StepOf<'odd'>): void {
    const { world } = this;
    const process = this.#process(who);
    const handle = pick(process.handles, which);
    if (handle === null) return;
    const own = cursorOf(process, handle, what === 'minted-twice' ? 'minted' : 'last') ?? '0';
    const odd = {
      empty: { cursor: '' },
      'two-cursors': { cursorFields: 2 },
      'two-sessions': { sessionFields: 2 },
      revision: { withoutResumption: true, ...(which === 1 ? { cursor: '' } : which === 2 ? { cursorFields: 2 } : {}) },
      'minted-twice': { sessionFields: 2 },
    }[what];
    world.resume(process, handle, { cursor: own, link: world.newLink(process, 0), odd });
  }

  // The server and the network.

  #emit({ who, which, what }: StepOf<'emit'>): void {
    const { server } = this.world;
    const process = this.#process(who);
    const stream = this.#stream(process, which);
    if (stream === null || !server.up) return;
    const session = server.session(process.sessionId);
    if (what === 'lose') for (const event of stream.log) event.gone = true;
    if (what === 'end') server.end(stream);
    if (stream.over) return;
    if (what === 'note' || what === 'priming') server.emit(stream, what);
    if (what === 'answer') this.#answer(stream, stream);
    if (what === 'answer-one') server.answer(stream, [...stream.calls].slice(0, 1), stream);
    if (what === 'elsewhere') this.#answer(stream, server.listening(session));
    const pipe = stream.pipes.findLast(({ open }) => open) as Wire | undefined;
    if (what === 'part') pipe?.part();
    if (what === 'blind' && pipe !== undefined) {
      pipe.exchange.goBlind();
      this.world.oracle.missed(session);
    }
    const last = stream.log.findLast(({ answers }) => answers.length > 0);
    if (what === 'again' && last !== undefined && !last.gone) pipe?.send(last, stream);
  }

  #leave({ which, how }: StepOf<'leave'>): void {
    const { world } = this;
    const links = world.processes.flatMap((process) => process.links).filter((link) => link.closed === null);
    const link = pick(links, which);
    if (link === null) return;
    world.note(() => `a connection of ${link.process.name}: ${how}`);
    if (how === 'now') world.leave(link, 0);
    if (how === 'vanish') world.leave(link, 30);
    if (how === 'error') world.fail(link);
    if (how === 'stick') this.#stick(link);
    if (how === 'block') link.blocked = true;
    if (how === 'close-idle') world.closeIdle(link);
    if (how === 'unstick' && link.stuck && !link.dead) {
      link.stuck = false;
      link.settle();
    }
    if (how === 'unblock') {
      link.blocked = false;
      link.flush();
    }
  }

  #restart({ crash, sessions, streams, counters, noticed }: StepOf<'restart'>): void {
    const { world } = this;
    world.note(() => `upstream restarts${noticed ? ', and it shows' : ''}`);
    if (crash) for (const wire of [...world.wires]) wire.cut();
    world.server.restart({ sessions, streams, counters });
    world.server.up = true;
    world.restarted(noticed);
  }

  // Sessions.

  #initialize(process: Process, stream: boolean): void {
    const { world } = this;
    const call = { uid: world.calls++, key: 'n:0' };
    process.pending.set(call.key, call);
    const link = world.newLink(process, 0);
    const posted = { keys: [call.key], initialize: true, readable: true };
    const session = world.server.session(process.sessionId);
    const wire = this.#post(process, link, { session: null, sessionFields: 0, posted });
    world.note(() => `${process.name} initializes`);
    if (!world.server.up) {
      wire.cut();
      return;
    }
    session.alive = true;
    if (session.initialized && !process.anonymous) session.era += 1;
    session.initialized = true;
    if (!stream) {
      this.#answerInJson(process, wire, [call]);
      return;
    }
    const own = world.server.open(session, 'request', [call]);
    wire.sure = own;
    own.pipes.push(wire);
    wire.head();
    this.#answer(own, own);
    world.server.end(own);
    wire.record = world.recordOf(process);
  }

  #begin({ who, stream, fresh }: StepOf<'initialize'>): void {
    const { world } = this;
    const process = this.#process(who);
    if (!fresh) {
      this.#initialize(process, stream);
      return;
    }
    const next = new Process({
      name: String.fromCharCode(65 + world.processes.length),
      sessionId: `s${world.processes.length + 1}`,
      token: process.token,
      anonymous: process.anonymous,
    });
    if (next.anonymous) return;
    world.processes.push(next);
    this.#initialize(next, stream);
  }

  #remove({ who, really }: StepOf<'remove'>): void {
    const { world } = this;
    const process = this.#process(who);
    const link = world.newLink(process, 0);
    const wire = world.wire(process, link, newHandle(process, 'request'), world.ask(process, 'DELETE', link));
    wire.exchange.start();
    world.note(() => `${process.name} deletes its session`);
    if (!world.admits(wire)) return;
    wire.answer(204);
    world.oracle.cleared(wire.record);
    // Some say yes and go on.
    if (really) wire.session.alive = false;
  }

  /** One of the replicas does not know the session, or not the method. */
  #gone({ who, method }: StepOf<'gone'>): void {
    const { world } = this;
    const process = this.#process(who);
    const posted = { keys: [], initialize: false, readable: true };
    const wire = this.#post(process, world.newLink(process, 0), { posted });
    if (world.server.up)
      wire.answer(404, JSON.stringify({ jsonrpc: '2.0', id: 1, error: { code: method ? -32601 : -32001 } }));
    else wire.cut();
  }

  /** A second process of the same client, with what the first has written down. */
  #successor({ who, dies }: StepOf<'successor'>): void {
    const { world } = this;
    const process = this.#process(who);
    if (dies) {
      for (const link of process.links) world.leave(link, 0);
      process.alive = false;
    }
    const next = new Process({ ...process, name: `${process.name}'`, alive: true });
    world.note(() => `${next.name} comes with the cursors of ${process.name}`);
    world.processes.push(next);
  }

  #tokens({ who, times }: StepOf<'token'>): void {
    const { world } = this;
    const process = this.#process(who);
    for (let i = 0; i < times; i++) {
      process.token = `t${world.names++}`;
      const wire = this.#post(process, world.newLink(process, 0), {
        posted: { keys: [], initialize: false, readable: true },
      });
      if (world.admits(wire)) wire.answer(202);
    }
  }

  #guardRestart(): void {
    const { world } = this;
    world.note(() => 'the guard restarts');
    for (const wire of [...world.wires]) wire.cut();
    for (const process of world.processes) for (const link of process.links) world.fail(link);
    world.wires = [];
    world.guard = world.newGuard();
  }
}

/** The newest but `which`. */
function pick<T>(items: readonly T[], which: number): T | null {
  return items.length === 0 ? null : items[items.length - 1 - (which % items.length)]!;
}

function cursorOf(process: Process, handle: Handle, kind: StepOf<'resume'>['cursor']): string | null {
  switch (kind) {
    case 'last':
      return handle.cursor;
    case 'older':
      return handle.seen[Math.floor(handle.seen.length / 2)] ?? handle.cursor;
    case 'unknown':
      return `x${process.handles.length}`;
    case 'minted':
      return process.minted.at(-1) ?? 'minted-elsewhere';
    case '0':
    case 'r':
      // A client has only cursors that it was given.
      return process.handles.some(({ seen }) => seen.includes(kind)) ? kind : handle.cursor;
  }
}

/** Plays a script to its end, or to the first breach of one of `properties`; `story` gets what happened, line by line. */
export function play(
  script: Script,
  properties: readonly Property[],
  options: { readonly decide?: (facts: ResumeFacts) => Verdict; readonly story?: string[] } = {},
): Played {
  const world = new World(script, options.decide ?? decide, properties, options.story ?? null);
  let breach: Breach | null = null;
  try {
    const game = new Play(script, world);
    for (const step of script.steps) {
      game.step(step);
      const fault = properties.includes(3) ? boundsFault(world) : null;
      if (fault !== null) throw new Breach(3, fault);
    }
  } catch (error) {
    if (!(error instanceof Breach)) throw error;
    breach = error;
  }
  const { rules, outcomes, verdicts } = world;
  return { rules, outcomes, verdicts, breach };
}
