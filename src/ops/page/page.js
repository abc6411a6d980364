// The admin page. Every value goes in as text, never as markup; nothing is fetched from anywhere else.

const get = (id) => document.getElementById(id);
const json = async (path) => (await fetch(path)).json();
const SVG = 'http://www.w3.org/2000/svg';

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function shape(name, properties, title) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  if (title !== undefined) {
    const text = document.createElementNS(SVG, 'title');
    text.textContent = title;
    made.append(text);
  }
  return made;
}

const clock = (at) => new Date(at).toLocaleTimeString();
const dash = (value) => value ?? '–';

function decisionRow(entry) {
  const { at, session, cursor, verdict, rule, outcome, status, words } = entry;
  return element(
    'tr',
    {},
    element('td', {}, clock(at)),
    element('td', {}, dash(session)),
    element('td', {}, dash(cursor)),
    element('td', { class: String(verdict) }, dash(verdict)),
    element('td', {}, dash(rule)),
    element('td', {}, dash(outcome)),
    element('td', {}, status === 0 ? '–' : status),
    element('td', {}, words),
  );
}

const SHOWN = 200;

const shown = new Set();

/** The latest first; one that comes both live and with the list is shown once. */
function addDecision(entry) {
  if (shown.has(entry.id)) return;
  shown.add(entry.id);
  const rows = get('decisions');
  rows.prepend(decisionRow(entry));
  while (rows.children.length > SHOWN) rows.lastElementChild.remove();
}

/** What clients got. The last ones are shown where there are any. */
const GOT = [
  ['stripped', 'finished cursors taken off'],
  ['refused', 'empty replays refused'],
  ['memory', 'answered from memory'],
  ['passed', 'answered by the server'],
  ['observed', 'left as they were (observe only)'],
  ['nothing', 'without an answer'],
];
const ALWAYS = 4;

function drawMinutes(oldestFirst) {
  const minutes = oldestFirst.toReversed();
  const rules = [...new Set(minutes.flatMap(({ rules }) => Object.keys(rules)))].sort();
  get('minutes-none').hidden = rules.length > 0;
  get('minutes-head').replaceChildren(
    rules.length === 0
      ? ''
      : element(
          'tr',
          {},
          element('th', { scope: 'col' }, 'rule'),
          ...minutes.map((_, ago) => element('th', { scope: 'col' }, ago === 0 ? 'now' : `−${ago}`)),
        ),
  );
  get('minutes').replaceChildren(
    ...rules.map((rule) =>
      element(
        'tr',
        {},
        element('th', { scope: 'row' }, rule),
        ...minutes.map(({ rules: counts }) =>
          element('td', counts[rule] ? { class: 'some' } : {}, counts[rule] ?? '·'),
        ),
      ),
    ),
  );
  const totals = GOT.map(([got, what]) => [what, minutes.reduce((sum, minute) => sum + (minute.got[got] ?? 0), 0)]);
  get('totals').replaceChildren(
    ...totals
      .filter(([, count], i) => count > 0 || i < ALWAYS)
      .map(([what, count]) => element('span', {}, element('strong', {}, count), ` ${what}`)),
  );
}

function drawState({ ready, reasons, mode, upstreams }) {
  const state = get('state');
  const parts = [
    ready ? 'ready' : `not ready: ${reasons.join(', ')}`,
    mode === 'observe' ? 'observing only' : 'enforcing',
  ];
  for (const { origin, reachable, connections } of upstreams) {
    parts.push(
      `${origin} ${reachable ? 'reachable' : 'UNREACHABLE'} (${connections} ${connections === 1 ? 'connection' : 'connections'})`,
    );
  }
  state.textContent = parts.join(' · ');
  state.classList.toggle('bad', !ready || upstreams.some(({ reachable }) => !reachable));
}

// One row a stream, time to the right. A refusal from memory never reached a stream, so these share the last row: a storm
// is a dense comb of red there. An empty replay was forwarded on the row of its stream, and ends in red.
function drawTimeline({ exchanges, open }) {
  const now = Date.now();
  const all = [...exchanges, ...open.map((entry) => ({ ...entry, duration: now - entry.at, isOpen: true, events: 0 }))];
  const box = get('timeline');
  if (all.length === 0) {
    box.replaceChildren(element('p', { class: 'none' }, 'No exchange of this session is remembered.'));
    return;
  }
  const start = Math.min(...all.map(({ at }) => at));
  const end = Math.max(start + 1_000, ...all.map(({ at, duration }) => at + duration));
  const names = [...new Set(all.filter(({ stream }) => stream).map(({ stream }) => stream.ordinal))].sort(
    (a, b) => a - b,
  );
  const [left, row] = [90, 18];
  const width = Math.max(200, box.clientWidth - left - 10);
  const height = (names.length + 1) * row + 26;
  const x = (at) => left + ((at - start) / (end - start)) * width;
  const svg = shape('svg', { viewBox: `0 0 ${left + width + 10} ${height}`, role: 'img', 'aria-label': summary(all) });
  const label = (text, y) => {
    const made = shape('text', { x: 0, y });
    made.textContent = text;
    svg.append(made);
  };
  names.forEach((ordinal, i) => {
    const kind = all.find(({ stream }) => stream?.ordinal === ordinal).stream.kind;
    label(`${kind} ${ordinal}`, i * row + 13);
    svg.append(shape('line', { class: 'axis', x1: left, x2: left + width, y1: (i + 1) * row, y2: (i + 1) * row }));
  });
  label('no stream', names.length * row + 13);
  for (const entry of all) {
    const i = entry.stream ? names.indexOf(entry.stream.ordinal) : names.length;
    const y = i * row;
    const [from, to] = [x(entry.at), x(entry.at + entry.duration)];
    const words = `${clock(entry.at)} ${entry.method ?? ''} ${entry.status ?? ''} ${entry.rule ?? ''} ${entry.outcome ?? ''}, ${entry.events} events`;
    if (entry.stream)
      svg.append(
        shape(
          'rect',
          { class: entry.isOpen ? 'bar open' : 'bar', x: from, y: y + 5, width: Math.max(2, to - from), height: 8 },
          words,
        ),
      );
    if (entry.verdict)
      svg.append(
        shape('rect', { class: `verdict ${entry.verdict}`, x: from - 1, y: y + 2, width: 3, height: 14 }, words),
      );
    if (entry.verdict && entry.refusal === 'empty-replay' && !entry.observed)
      svg.append(shape('rect', { class: 'verdict refuse', x: to - 1, y: y + 2, width: 3, height: 14 }, words));
    if (entry.answers > 0)
      svg.append(shape('circle', { class: 'dot done', cx: to, cy: y + 9, r: 4 }, `${words}, result`));
    else if (entry.stream && !entry.isOpen && entry.end !== 'ended')
      svg.append(shape('circle', { class: 'dot cut', cx: to, cy: y + 9, r: 4 }, `${words}, ${entry.end}`));
  }
  label(clock(start), height - 4);
  const last = shape('text', { x: left + width, y: height - 4, 'text-anchor': 'end' });
  last.textContent = clock(end);
  svg.append(last);
  box.replaceChildren(svg);
}

function summary(all) {
  const count = (verdict) => all.filter((entry) => entry.verdict === verdict).length;
  return `${all.length} exchanges: ${count('strip')} stripped, ${count('forward')} forwarded, ${count('refuse')} refused`;
}

async function refreshSessions() {
  const select = get('session');
  const chosen = select.value;
  const { sessions } = await json('/api/sessions');
  const named = sessions.filter(({ session }) => session !== null);
  select.replaceChildren(
    ...named.map(({ session, generation, streams, ended }) =>
      element(
        'option',
        { value: session },
        `${session} · generation ${generation} · ${streams} streams${ended ? ' · ended' : ''}`,
      ),
    ),
  );
  if (named.some(({ session }) => session === chosen)) select.value = chosen;
}

async function refresh() {
  const overview = await json('/api/overview');
  drawState(overview);
  drawMinutes(overview.minutes);
  await refreshSessions();
  const session = get('session').value;
  if (session) drawTimeline(await json(`/api/decisions?session=${encodeURIComponent(session)}`));
  else drawTimeline({ exchanges: [], open: [] });
}

const soon = { timer: null };

/** Many decisions in a moment are one refresh. */
function refreshSoon() {
  soon.timer ??= setTimeout(() => {
    soon.timer = null;
    refresh().catch(lost);
  }, 250);
}

function lost() {
  const state = get('state');
  state.textContent = 'The proxy does not answer.';
  state.classList.add('bad');
}

/** What was decided before we listened, also after a lost connection. */
async function catchUp() {
  const { decisions } = await json('/api/decisions');
  for (const entry of decisions.slice(0, SHOWN).reverse()) addDecision(entry);
  await refresh();
}

get('session').addEventListener('change', () => refresh().catch(lost));
const live = new EventSource('/api/decisions');
live.addEventListener('open', () => catchUp().catch(lost));
live.addEventListener('message', ({ data }) => {
  addDecision(JSON.parse(data));
  refreshSoon();
});
live.addEventListener('error', lost);
setInterval(refreshSoon, 5_000);
