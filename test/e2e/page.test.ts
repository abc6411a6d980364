/** The admin page in a real browser: what an operator sees while it happens. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { after, before, test } from 'node:test';
import { type Browser, chromium, type Page } from 'playwright-core';
import { type Guard, startGuard } from '../support/guard.ts';
import { block, priming, result } from '../support/messages.ts';
import { answerEmpty, cutPost, finishedPost, openSession } from '../support/session.ts';

const CHROMIUM = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);
const skip = CHROMIUM === undefined && process.env['CI'] === undefined ? 'chromium is not installed' : false;
/** Where screenshots go, for somebody who wants to look. */
const SHOTS = process.env['PAGE_SCREENSHOTS'];

let browser: Browser;
before(async () => {
  if (skip !== false) return;
  browser = await chromium.launch({
    executablePath: CHROMIUM!,
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
});
after(() => browser?.close());

interface Watched {
  readonly page: Page;
  readonly complaints: string[];
  readonly foreign: string[];
}

async function open(guard: Guard, options: { dark?: boolean; phone?: boolean } = {}): Promise<Watched> {
  const page = await browser.newPage({
    colorScheme: options.dark ? 'dark' : 'light',
    viewport: options.phone ? { width: 390, height: 800 } : { width: 1200, height: 900 },
  });
  const complaints: string[] = [];
  const foreign: string[] = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('request', (request) => {
    if (!request.url().startsWith(guard.proxy.adminUrl!) && !request.url().startsWith('data:'))
      foreign.push(request.url());
  });
  await page.goto(guard.proxy.adminUrl!);
  return { page, complaints, foreign };
}

const rowOf = (page: Page, rule: string) => page.locator('#decisions tr', { hasText: rule });

async function shot(page: Page, name: string): Promise<void> {
  if (SHOTS === undefined) return;
  await mkdir(SHOTS, { recursive: true });
  await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true });
}

/** One finished cursor stripped, then a dead cursor again and again. */
async function storm(guard: Guard): Promise<void> {
  const { client, upstream } = guard;
  const session = await openSession(client, upstream, 's-1');
  await finishedPost(client, upstream, 1, { session }, priming('e1'), block({ id: 'e2', data: result(1) }));
  await cutPost(client, upstream, 2, { session }, priming('f1'));
  upstream.handle((exchange) =>
    exchange.values('last-event-id').length > 0 ? answerEmpty(exchange) : exchange.json(405, '{}', { Allow: 'POST' }),
  );
  const reply = await client.get({ session, lei: 'e2' });
  assert.equal((await reply.head).status, 405);
  for (let i = 0; i < 25; i++) {
    const refused = await client.get({ session, lei: 'f1' });
    assert.equal((await refused.head).status, 409);
    await refused.text();
  }
}

for (const [name, options] of [
  ['light', {}],
  ['dark', { dark: true }],
  ['on a phone', { phone: true }],
] as const) {
  test(`the page shows a strip, a 409 and a storm as they happen, ${name}`, { skip }, async (t) => {
    const guard = await startGuard(t);
    const { page, complaints, foreign } = await open(guard, options);
    await page.getByText('Nothing has been decided yet').waitFor();
    await storm(guard);
    await rowOf(page, 'finished').first().waitFor();
    await rowOf(page, 'empty').first().waitFor();
    await rowOf(page, 'below-replay-floor').nth(20).waitFor();
    assert.match((await rowOf(page, 'finished').first().textContent()) ?? '', /strip/);
    await page.locator('#minutes tr', { hasText: 'below-replay-floor' }).waitFor();
    await page.locator('#timeline svg .verdict.refuse').nth(20).waitFor({ state: 'attached' });
    await page.locator('#totals', { hasText: /[1-9]\d* answered from memory/ }).waitFor();
    assert.match(
      (await page.locator('#totals').textContent()) ?? '',
      /^1 finished cursors taken off[1-9] empty replays refused\d+ answered from memory0 answered by the server$/,
      'each resume is counted by what its client got',
    );
    await page.locator('#timeline svg .verdict.forward').first().waitFor({ state: 'attached' });
    assert.match(
      (await page.locator('#state').textContent()) ?? '',
      /ready · enforcing · http:\/\/127\.0\.0\.1:\d+ reachable/,
    );
    const overflow = await page.evaluate('document.documentElement.scrollWidth > innerWidth');
    assert.equal(overflow, false, 'the page itself does not scroll sideways');
    await shot(page, name.replaceAll(' ', '-'));
    assert.deepEqual(complaints, []);
    assert.deepEqual(foreign, [], 'nothing is fetched from anywhere else');
    await page.close();
  });
}

test('hostile values from the wire render as text, and the policy forbids inline code', { skip }, async (t) => {
  const guard = await startGuard(t, { path: '' });
  const { client, upstream } = guard;
  const hostile = '<img src=x onerror=alert(1)>';
  const { page, complaints } = await open(guard);
  const session = await openSession(client, upstream, hostile);
  upstream.handle((exchange) => answerEmpty(exchange));
  const reply = await client.get({ session, lei: hostile });
  await reply.head;
  await rowOf(page, 'cursor-unrecorded').first().waitFor();
  assert.equal(await page.locator('img').count(), 0);
  const policy = (await fetch(guard.proxy.adminUrl!)).headers.get('content-security-policy') ?? '';
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe/);
  assert.deepEqual(complaints, []);
  assert.doesNotMatch(await (await fetch(`${guard.proxy.adminUrl}/api/decisions`)).text(), /onerror/);
  await page.close();
});

test('the page can be worked with the keyboard alone and names what it shows', { skip }, async (t) => {
  const guard = await startGuard(t);
  await storm(guard);
  const { page } = await open(guard);
  await page.locator('#timeline svg').waitFor();
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate('document.activeElement.id'), 'session');
  assert.match((await page.locator('#timeline svg').getAttribute('aria-label')) ?? '', /\d+ exchanges: 1 stripped/);
  assert.equal(await page.getByLabel('Session', { exact: true }).count(), 1);
  await page.close();
});
