/**
 * The listening stream of a real client breaks after it has carried an event. The sample event store cannot find the
 * stream of such an event's ID again, so a replay of it is empty: what then becomes of the announcements?
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { connectSdk } from '../support/sdk-clients.ts';
import { startCutter } from '../support/sdk-cutter.ts';
import { take } from '../support/sdk-guard.ts';
import { startSdkServer } from '../support/sdk-server.ts';
import { eventually } from '../support/waiting.ts';

describe('a listening stream that breaks', { concurrency: 8 }, () => {
  for (const way of ['direct', {}, { refuseWith: 'event' }, { refuseWith: 'status' }] as const) {
    const name = way === 'direct' ? 'direct' : `proxy, refuseWith ${'refuseWith' in way ? way.refuseWith : 'auto'}`;
    for (const clientVersion of ['1.24', '1.32', '2'] as const) {
      test(`${name}: a ${clientVersion} client listens to a 2 server again after a break`, async (t) => {
        const server = await startSdkServer('2');
        t.after(() => server.close());
        const { url, decisions } = await take(t, way, server.url);
        const cutter = await startCutter(url);
        t.after(() => cutter.close());
        const client = await connectSdk(clientVersion, cutter.url);
        t.after(() => client.close());
        await eventually('the listening stream', () => server.openStreams('GET') === 1);
        await server.announce('before');
        await eventually('the first announcement', () => client.logged.length === 1);

        assert.equal(cutter.cut('GET '), 1);
        await eventually('the server to notice', () => server.openStreams('GET') === 0);
        await eventually('the listening stream', () => server.openStreams('GET') === 1, 8_000);
        await server.announce('after');
        await eventually('the second announcement', () => client.logged.length === 2, 3_000);
        assert.deepEqual(client.logged, ['before', 'after']);
        if (way === 'direct') return;
        // What is still open is logged when it is over.
        await client.close();
        await eventually('the decisions', () => decisions().length === 2);
        assert.deepEqual(decisions(), ['in-window empty', 'standalone-below-floor']);
      });
    }
  }
});
