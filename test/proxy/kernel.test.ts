// What the proxy reads from /proc/net/tcp: from the text of a table, and of real sockets where there is one.

import assert from 'node:assert/strict';
import files from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import net from 'node:net';
import { type TestContext, test } from 'node:test';
import { endpoint, viewIn as find, kernelTables, tupleOf } from '../../src/proxy/kernel.ts';
import { eventually, within } from '../support/waiting.ts';

const HEADING =
  '  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode                                                     \n';

const STATES = {
  ESTABLISHED: '01',
  SYN_SENT: '02',
  SYN_RECV: '03',
  FIN_WAIT1: '04',
  FIN_WAIT2: '05',
  TIME_WAIT: '06',
  CLOSE: '07',
  CLOSE_WAIT: '08',
  LAST_ACK: '09',
  LISTEN: '0A',
  CLOSING: '0B',
} as const;

interface Line {
  readonly local: string;
  readonly remote: string;
  readonly state: keyof typeof STATES;
  readonly unacknowledged?: number;
  readonly unread?: number;
  readonly inode?: number;
}

/** A table as the kernel writes it. */
function table(...lines: readonly Line[]): string {
  const hex = (value = 0): string => value.toString(16).toUpperCase().padStart(8, '0');
  const rows = lines.map(({ local, remote, state, unacknowledged, unread, inode = 0 }, n) =>
    [
      `${String(n).padStart(4)}: ${local} ${remote} ${STATES[state]} ${hex(unacknowledged)}:${hex(unread)}`,
      ` 00:00000000 00000000  1000        0 ${inode} 1 0000000000000000 20 4 30 10 -1\n`,
    ].join(''),
  );
  return HEADING + rows.join('');
}

// 127.0.0.1:8808, 10.1.2.3:50000, ::1, 2001:db8::ff00:42:8329 and ::ffff:127.0.0.1 on a little-endian machine.
const OURS = '0100007F:2268';
const THEIRS = '0302010A:C350';
const OURS6 = '00000000000000000000000001000000:2268';
const THEIRS6 = 'B80D01200000000000FF000029834200:C350';
const MAPPED_OURS = '0000000000000000FFFF00000100007F:2268';
const MAPPED_THEIRS = '0000000000000000FFFF00000302010A:C350';

test('an endpoint is written as the table writes it', () => {
  assert.equal(endpoint('127.0.0.1', 8808), OURS);
  assert.equal(endpoint('10.1.2.3', 50_000), THEIRS);
  assert.equal(endpoint('::1', 8808), OURS6);
  assert.equal(endpoint('2001:db8::ff00:42:8329', 50_000), THEIRS6);
  assert.equal(endpoint('2001:0DB8:0:0:0:FF00:0042:8329', 50_000), THEIRS6);
  assert.equal(endpoint('::', 1), `${'0'.repeat(32)}:0001`);
  assert.equal(endpoint('fe80::1%eth0', 8808), endpoint('fe80::1', 8808), 'a zone is no part of it');
  assert.equal(endpoint('::ffff:127.0.0.1', 8808), OURS, 'a mapped address counts as its IPv4 address');
  assert.equal(endpoint('::FFFF:10.1.2.3', 50_000), THEIRS);
});

const connection = tupleOf('127.0.0.1', 8808, '10.1.2.3', 50_000);
const viewIn = (text: string, tuple = connection) => find(tuple, text);

test('the bytes a peer has not acknowledged are read in hexadecimal, those we have not read are not counted', () => {
  for (const unacknowledged of [0, 1, 0xab, 3_000_000]) {
    const line = { local: OURS, remote: THEIRS, state: 'ESTABLISHED', unacknowledged, unread: 77 } as const;
    assert.deepEqual(viewIn(table(line)), { unacknowledged, peerClosed: false });
  }
});

test('IPv6 connections are found, and IPv4-mapped ones under their IPv4 addresses', () => {
  const text = table(
    { local: OURS6, remote: THEIRS6, state: 'ESTABLISHED', unacknowledged: 6 },
    { local: MAPPED_OURS, remote: MAPPED_THEIRS, state: 'ESTABLISHED', unacknowledged: 4 },
  );
  const six = tupleOf('::1', 8808, '2001:db8::ff00:42:8329', 50_000);
  assert.deepEqual(viewIn(text, six), { unacknowledged: 6, peerClosed: false });
  for (const [local, remote] of [
    ['127.0.0.1', '10.1.2.3'],
    ['::ffff:127.0.0.1', '::ffff:10.1.2.3'],
  ] as const) {
    assert.deepEqual(viewIn(text, tupleOf(local, 8808, remote, 50_000)), { unacknowledged: 4, peerClosed: false });
  }
});

test('both tables are read as one', () => {
  const tables = [
    table({ local: OURS, remote: THEIRS, state: 'ESTABLISHED' }),
    table({ local: OURS6, remote: THEIRS6, state: 'ESTABLISHED' }),
  ];
  assert.notEqual(find(connection, ...tables), undefined);
  assert.notEqual(find(tupleOf('::1', 8808, '2001:db8::ff00:42:8329', 50_000), ...tables), undefined);
});

test('a connection is one from both its ends: neither port nor address alone, nor the other way round', () => {
  const text = table({ local: OURS, remote: THEIRS, state: 'ESTABLISHED' });
  assert.equal(viewIn(text, tupleOf('127.0.0.1', 8809, '10.1.2.3', 50_000)), undefined);
  assert.equal(viewIn(text, tupleOf('127.0.0.1', 8808, '10.1.2.4', 50_000)), undefined);
  assert.equal(viewIn(text, tupleOf('10.1.2.3', 50_000, '127.0.0.1', 8808)), undefined);
});

const PEER_CLOSED: Readonly<Record<keyof typeof STATES, boolean | undefined>> = {
  ESTABLISHED: false,
  FIN_WAIT1: false,
  FIN_WAIT2: false,
  TIME_WAIT: false,
  CLOSE: false,
  CLOSE_WAIT: true,
  LAST_ACK: true,
  CLOSING: true,
  // Of these nothing can be said: there is no connection yet.
  SYN_SENT: undefined,
  SYN_RECV: undefined,
  LISTEN: undefined,
};

for (const [state, peerClosed] of Object.entries(PEER_CLOSED) as [keyof typeof STATES, boolean | undefined][]) {
  test(`a connection in ${state} ${peerClosed === undefined ? 'is none' : `has${peerClosed ? '' : ' not'} been closed by its peer`}`, () => {
    const expected = peerClosed === undefined ? undefined : { unacknowledged: 5, peerClosed };
    assert.deepEqual(viewIn(table({ local: OURS, remote: THEIRS, state, unacknowledged: 5 })), expected);
  });
}

test('lines that are none, and a table that ends in the middle of one, do no harm', async (t) => {
  const good = table({ local: OURS, remote: THEIRS, state: 'ESTABLISHED' });
  for (const text of ['', HEADING, '\n\n', `${good}  12: 0100007F`, `${good}garbage\n`, ': : :\n']) {
    assert.equal(viewIn(text) !== undefined, text.startsWith(good), JSON.stringify(text));
    stubTables(t, text);
    assert.equal((await tablesRead()).size, 0);
  }
});

const listener = (local: string, inode: number, state: Line['state'] = 'LISTEN'): Line => ({
  local,
  remote: '00000000:0000',
  state,
  inode,
});

const tablesRead = async () => (await kernelTables(0, () => 1_000, '::', 'linux').listeners(8808)).inodes;

test('those who listen on the port at a loopback or wildcard address are found by their inodes', async (t) => {
  stubTables(
    t,
    table(
      listener('0100007F:2268', 1),
      listener('0500007F:2268', 2),
      listener('00000000:2268', 3),
      listener('0302010A:2268', 40),
      listener('0100007F:2269', 50),
      listener('0100007F:2268', 60, 'ESTABLISHED'),
    ),
    table(
      listener(OURS6, 4),
      listener(`${'0'.repeat(32)}:2268`, 5),
      listener(MAPPED_OURS, 6),
      listener(THEIRS6.replace('C350', '2268'), 70),
    ),
  );
  assert.deepEqual([...(await tablesRead())].sort(), [1, 2, 3, 4, 5, 6]);
});

test('lines are found wherever the pieces end that a table is read in', async (t) => {
  for (let others = 0; others < 30; others++) {
    const lines = Array.from({ length: others }, (_, i) => listener('0100007F:0050', 100 + i));
    stubTables(t, table(...lines, listener(OURS, 7)), table(...lines, listener(OURS6, 8)));
    assert.deepEqual([...(await tablesRead())], [7, 8], `after ${others} others`);
  }
});

test('to see that the only one still listens, the second table is not read; with two, or another, it is', async (t) => {
  const kernel = kernelTables(0, () => performance.now(), '::', 'linux');
  const found = async (tcp: string, tcp6: string): Promise<[number[], number]> => {
    const counted = stubTables(t, tcp, tcp6);
    const { inodes } = await kernel.listeners(8808, performance.now(), true);
    return [[...inodes], counted.others];
  };
  const [one, two, three] = [1, 2, 3].map((inode) => listener(OURS, inode)) as [Line, Line, Line];
  assert.deepEqual(await found(table(one), HEADING), [[1], 1], 'nothing is known yet');
  assert.deepEqual(await found(table(two, one), HEADING), [[1], 0]);
  assert.deepEqual(await found(table(two), HEADING), [[2], 2], 'it is gone');
  assert.deepEqual(await found(HEADING, table(listener(OURS6, 2))), [[2], 1]);
  assert.deepEqual(await found(table(three), table(listener(OURS6, 4))), [[3, 4], 2]);
  assert.deepEqual(await found(table(three), HEADING), [[3], 1], 'one of two may not have been the only one');
});

test('a connection is looked for in the table of the listener’s family, and in both where that is a name', async (t) => {
  const line = { local: OURS, remote: THEIRS, state: 'ESTABLISHED' } as const;
  const mapped = { local: MAPPED_OURS, remote: MAPPED_THEIRS, state: 'ESTABLISHED' } as const;
  for (const [host, tcp, tcp6, others] of [
    ['127.0.0.1', table(line), null, 0],
    ['0.0.0.0', table(line), null, 0],
    ['::', HEADING, table(mapped), 1],
    ['localhost', table(line), HEADING, 1],
    ['localhost', HEADING, table(mapped), 1],
  ] as const) {
    const counted = stubTables(t, tcp, tcp6);
    const { viewOf } = await kernelTables(0, () => performance.now(), host, 'linux').connections();
    assert.deepEqual(viewOf(connection), { unacknowledged: 0, peerClosed: false }, host);
    assert.equal(counted.others, others, host);
  }
});

// Sharing.

/** Counts readings of the tables, and answers them with texts, or not at all. */
function stubTables(
  t: TestContext,
  tcp: string | null,
  tcp6: string | null = HEADING,
): { readings: number; others: number } {
  const counted = { readings: 0, others: 0 };
  const open = async (path: string) => {
    if (!path.startsWith('/proc/net/tcp')) throw new Error(`unexpected ${path}`);
    const isFirst = path === '/proc/net/tcp';
    if (isFirst) counted.readings += 1;
    else counted.others += 1;
    const text = isFirst ? tcp : tcp6;
    if (text === null) throw Object.assign(new Error('EACCES'), { code: 'EACCES' });
    let left = Buffer.from(text);
    return {
      async read(into: Buffer) {
        const bytesRead = left.copy(into);
        left = left.subarray(bytesRead);
        return { bytesRead };
      },
      async close() {},
      readFile: async () => left.toString('latin1'),
    };
  };
  t.mock.restoreAll();
  t.mock.method(files, 'open', open as never);
  t.mock.method(files, 'readFile', (async (path: string) => (await open(path)).readFile()) as never);
  syncBuiltinESMExports();
  t.after(() => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });
  return counted;
}

test('a reading is shared for 20 ms, and no longer than until something happened that it cannot show', async (t) => {
  const counted = stubTables(t, table({ local: OURS, remote: THEIRS, state: 'ESTABLISHED', unacknowledged: 9 }));
  let now = 1_000;
  const kernel = kernelTables(20, () => now, '127.0.0.1', 'linux');
  const ask = async (notBefore?: number): Promise<number> => {
    const { viewOf, readAt } = await kernel.connections(notBefore);
    assert.deepEqual(viewOf(connection), { unacknowledged: 9, peerClosed: false });
    assert.equal(viewOf(tupleOf('127.0.0.1', 1, '127.0.0.1', 2)), 'absent');
    return readAt;
  };
  assert.deepEqual(await Promise.all([ask(), ask(), ask()]), [1_000, 1_000, 1_000]);
  assert.equal(counted.readings, 1, 'one reading for all who ask while it is under way');
  now = 1_020;
  assert.equal(await ask(), 1_000);
  assert.equal(await ask(1_000), 1_000);
  assert.equal(counted.readings, 1);
  assert.equal(await ask(1_001), 1_020, 'it does not show what happened after it');
  now = 1_041;
  assert.equal(await ask(), 1_041);
  assert.equal(counted.readings, 3);
});

test('a reading of who listens is shared in the same way', async (t) => {
  const counted = stubTables(t, table({ local: OURS, remote: '00000000:0000', state: 'LISTEN', inode: 7 }));
  let now = 1_000;
  const kernel = kernelTables(20, () => now, '127.0.0.1', 'linux');
  for (const [at, notBefore, readAt] of [
    [1_000, 0, 1_000],
    [1_020, 1_000, 1_000],
    [1_020, 1_010, 1_020],
    [1_041, 0, 1_041],
  ] as const) {
    now = at;
    const listening = await kernel.listeners(8808, notBefore);
    assert.deepEqual([...listening.inodes], [7]);
    assert.equal(listening.readAt, readAt);
  }
  assert.equal(counted.readings, 3);
});

test('where the table cannot be read, everything is unknown', async (t) => {
  stubTables(t, null);
  const kernel = kernelTables(20, () => 1_000, '127.0.0.1', 'linux');
  assert.equal((await kernel.connections()).viewOf(connection), 'unknown');
  assert.equal((await kernel.listeners(8808)).inodes.size, 0);
});

test('on another system than Linux everything is unknown, and nothing is read', async (t) => {
  const counted = stubTables(t, HEADING);
  const kernel = kernelTables(20, () => 1_000, '127.0.0.1', 'darwin');
  assert.equal((await kernel.connections()).viewOf(connection), 'unknown');
  assert.equal((await kernel.listeners(8808)).inodes.size, 0);
  assert.equal(counted.readings, 0);
});

// Real sockets.

const onLinux = process.platform === 'linux' ? {} : { skip: 'there is no such table here' };
const reading = () => kernelTables(0, () => performance.now(), 'localhost');

interface Ends {
  readonly client: net.Socket;
  readonly server: net.Socket;
  readonly listener: net.Server;
  readonly port: number;
}

async function connect(t: TestContext, host: string): Promise<Ends> {
  const listener = net.createServer({ allowHalfOpen: true });
  await within(
    `listening on ${host}`,
    new Promise<void>((resolve, reject) => {
      listener.once('error', reject);
      listener.listen(0, host, resolve);
    }),
  );
  const { port } = listener.address() as net.AddressInfo;
  const accepted = new Promise<net.Socket>((resolve) => listener.once('connection', resolve));
  const client = net.connect({ port, host: host === '::' ? '127.0.0.1' : host, allowHalfOpen: true });
  const server = await within('the connection', accepted);
  for (const socket of [client, server]) socket.on('error', () => {});
  t.after(() => {
    client.destroy();
    server.destroy();
    listener.close();
  });
  return { client, server, listener, port };
}

function tupleOfSocket({ localAddress = '', localPort = 0, remoteAddress = '', remotePort = 0 }: net.Socket): string {
  return tupleOf(localAddress, localPort, remoteAddress, remotePort);
}

const unacknowledgedOf = async (socket: net.Socket): Promise<number> => {
  const view = (await reading().connections()).viewOf(tupleOfSocket(socket));
  assert.ok(typeof view === 'object', `the connection is ${view}`);
  return view.unacknowledged;
};

for (const host of ['127.0.0.1', '::1', '::']) {
  test(
    `a socket at ${host} whose peer does not read shows bytes without acknowledgement, until it does`,
    onLinux,
    async (t) => {
      let ends: Ends;
      try {
        ends = await connect(t, host);
      } catch (fault) {
        assert.match(String(fault), /EADDRNOTAVAIL|EAFNOSUPPORT/);
        t.skip('this machine has no IPv6');
        return;
      }
      const { client, server } = ends;
      assert.equal(await unacknowledgedOf(server), 0);
      client.pause();
      server.write('a few bytes that the kernel of the peer takes');
      await eventually('them to be acknowledged', async () => (await unacknowledgedOf(server)) === 0);
      server.write(Buffer.alloc(8_000_000));
      await eventually('bytes to be held up', async () => (await unacknowledgedOf(server)) > 0);
      client.resume();
      await eventually('all of them to be acknowledged', async () => (await unacknowledgedOf(server)) === 0);
    },
  );
}

test(
  'a peer that has closed its side is seen, one that was reset is absent, one that ended in order lingers',
  onLinux,
  async (t) => {
    const viewOf = async (tuple: string) => (await reading().connections()).viewOf(tuple);
    const closed = await connect(t, '127.0.0.1');
    closed.client.end();
    await eventually('the FIN', async () => {
      const view = await viewOf(tupleOfSocket(closed.server));
      return typeof view === 'object' && view.peerClosed;
    });

    const reset = await connect(t, '127.0.0.1');
    const resetTuple = tupleOfSocket(reset.server);
    reset.client.resetAndDestroy();
    await eventually('the reset', async () => (await viewOf(resetTuple)) === 'absent');

    const ended = await connect(t, '127.0.0.1');
    const endedTuple = tupleOfSocket(ended.server);
    ended.server.resume();
    ended.client.resume();
    ended.server.end('the last bytes');
    await within('the client to read them', new Promise((resolve) => ended.client.once('end', resolve)));
    ended.client.end();
    await within('the server to close', new Promise((resolve) => ended.server.once('close', resolve)));
    assert.deepEqual(await viewOf(endedTuple), { unacknowledged: 0, peerClosed: false });
  },
);

test('the inode of a listening socket is another one after it was opened anew on the same port', onLinux, async (t) => {
  const { listener, port, client, server } = await connect(t, '127.0.0.1');
  const before = await reading().listeners(port);
  assert.equal(before.inodes.size, 1);
  client.destroy();
  server.destroy();
  await within('the listener to close', new Promise((resolve) => listener.close(resolve)));
  assert.equal((await reading().listeners(port)).inodes.size, 0);
  await new Promise<void>((resolve) => listener.listen(port, '127.0.0.1', resolve));
  const after = await reading().listeners(port);
  assert.equal(after.inodes.size, 1);
  assert.notDeepEqual([...after.inodes], [...before.inodes]);
});
