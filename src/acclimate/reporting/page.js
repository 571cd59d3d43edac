/* What a reader can do with the page: choose a round, sort and filter tables, save the headline table, read charts
   by keys, choose light or dark. The page reads without it. All numbers come from the JSON in #record; nothing is fetched. */
(() => {
'use strict';
const all = (query, root = document) => Array.from(root.querySelectorAll(query));
const record = JSON.parse(document.getElementById('record').textContent);
let selection = Object.keys(record.selections)[0];

/* --- tabs: one panel per selection, the same one in every section --- */
const groups = all('.views')
  .map(box => ({box, panels: Array.from(box.children).filter(p => p.matches('.view')), tabs: []}))
  .filter(g => g.panels.length > 1);

function show(name) {
  selection = name;
  for (const g of groups) {
    if (!g.panels.some(p => p.dataset.view === name)) continue;
    g.panels.forEach((p, i) => {
      const on = p.dataset.view === name;
      p.hidden = !on;
      g.tabs[i].setAttribute('aria-selected', on);
      g.tabs[i].tabIndex = on ? 0 : -1;
    });
  }
}

function pick(tab, name) {
  const top = tab.getBoundingClientRect().top;
  show(name);
  tab.focus({preventScroll: true});
  window.scrollBy({top: tab.getBoundingClientRect().top - top, behavior: 'instant'});
}

groups.forEach((g, k) => {
  const bar = document.createElement('div');
  bar.className = 'tabs';
  bar.setAttribute('role', 'tablist');
  bar.setAttribute('aria-label', 'Which model is shown');
  g.panels.forEach((p, i) => {
    const tab = document.createElement('button');
    Object.assign(tab, {type: 'button', id: `tab-${k}-${i}`, textContent: p.dataset.name});
    p.id = `view-${k}-${i}`;
    tab.setAttribute('role', 'tab');
    tab.setAttribute('aria-controls', p.id);
    p.setAttribute('role', 'tabpanel');
    p.setAttribute('aria-labelledby', tab.id);
    tab.addEventListener('click', () => pick(tab, p.dataset.view));
    tab.addEventListener('keydown', event => {
      const n = g.tabs.length;
      const to = {ArrowRight: (i + 1) % n, ArrowLeft: (i + n - 1) % n, Home: 0, End: n - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      pick(g.tabs[to], g.panels[to].dataset.view);
    });
    g.tabs.push(tab);
    bar.append(tab);
  });
  g.box.classList.add('tabbed');
  g.box.prepend(bar);
});
if (groups.length) show(selection);

/* --- sorting: numbers by data-v, missing ones last; text as people sort it --- */
const words = new Intl.Collator(undefined, {numeric: true});

function compare(a, b, numeric, sign) {
  if (!numeric) return sign * words.compare(a, b);
  if (a === '' || b === '') return (a === '') - (b === '');
  return sign * (a - b);
}

function sort(table, heads, i) {
  const th = heads[i], numeric = th.classList.contains('num'), was = th.getAttribute('aria-sort');
  const down = was ? was === 'ascending' : numeric;
  heads.forEach(h => h.removeAttribute('aria-sort'));
  th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const value = row => numeric ? row.cells[i].dataset.v : row.cells[i].textContent.trim();
  const rows = Array.from(table.tBodies[0].rows).map(row => [value(row), row]);
  rows.sort((a, b) => compare(a[0], b[0], numeric, down ? -1 : 1));
  table.tBodies[0].append(...rows.map(r => r[1]));
}

const tables = all('table.sortable');
for (const table of tables) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((th, i) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...Array.from(th.childNodes).filter(node => node.className !== 'axis'));
    th.prepend(button);
    button.addEventListener('click', () => sort(table, heads, i));
  });
}

/* --- numbers --- */
const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
const finite = v => typeof v === 'number' && Number.isFinite(v);

function spread(values) {
  const centre = mean(values);
  return Math.sqrt(values.reduce((a, v) => a + (v - centre) ** 2, 0) / (values.length - 1));
}

/* A row's number of every seed, averaged over streams; nothing unless all streams have the same seeds. */
function bySeed(row, streams, name = 'accuracy', of = selection) {
  const at = record.perSeed.indexOf(name), cells = streams.map(s => row.cells[of][s]);
  const seeds = cells.map(c => c.map(entry => entry[0]).sort().join());
  if (!cells.length || new Set(seeds).size > 1) return [];
  const found = cells[0].map(([seed]) => cells.map(c => c.find(entry => entry[0] === seed)[at]));
  return found.every(seed => seed.every(finite)) ? found.map(mean) : [];
}

/* --- filters: of rows by method and adapter, of columns and panels by stream --- */
const tools = document.getElementById('tools');
const rules = document.head.appendChild(document.createElement('style'));
const chosen = name => {
  const boxes = all(`input[name=${name}]`, tools);
  return boxes.length ? new Set(boxes.filter(b => b.checked).map(b => Number(b.value))) : null;
};
const allStreams = record.streams.map((_, i) => i);

function shownRows() {
  const text = document.getElementById('filter').value.trim().toLowerCase(), adapters = chosen('adapter');
  return record.rows.map((r, i) => i).filter(i => {
    const row = record.rows[i];
    return row.method.toLowerCase().includes(text) && (adapters === null || adapters.has(row.adapter));
  });
}

const shownStreams = () => {
  const streams = chosen('stream');
  return allStreams.filter(s => streams === null || streams.has(s));
};

/* The mean over the streams that are shown, in the form in which the page was written. */
function rewriteMeans(streams) {
  for (const table of all('table.headline')) {
    const of = table.closest('.view').dataset.view;
    const at = Array.from(table.tHead.rows[0].cells).findIndex(th => th.dataset.key === 'mean');
    for (const line of table.tBodies[0].rows) {
      const values = bySeed(record.rows[line.dataset.r], streams, 'accuracy', of), cell = line.cells[at];
      cell.dataset.v = values.length ? mean(values) : '';
      cell.innerHTML = `<b>${values.length ? (mean(values) * 100).toFixed(1) : '\u2013'}</b>`;
      if (values.length > 1) cell.innerHTML += `<small>seeds \u00b1 ${(spread(values) * 100).toFixed(1)}</small>`;
    }
  }
}

/* Of every column that says so, mark the best among the rows that are shown; numbers that read alike are equally good. */
function markBest(rows) {
  for (const table of tables) {
    const lines = Array.from(table.tBodies[0].rows);
    Array.from(table.tHead.rows[0].cells).forEach((th, i) => {
      if (!th.dataset.best) return;
      const value = line => line.cells[i].dataset.v === '' || !rows.has(Number(line.dataset.r))
        ? null : parseFloat(line.cells[i].textContent);
      const values = lines.map(value), known = values.filter(v => v !== null);
      const best = th.dataset.best === 'max' ? Math.max(...known) : Math.min(...known);
      lines.forEach((line, k) => mark(line.cells[i], values[k] === best));
    });
  }
}

function mark(cell, on) {
  if (cell.classList.contains('best') === on && Boolean(cell.querySelector('.vh')) === on) return;
  cell.classList.toggle('best', on);
  cell.querySelector('.vh')?.remove();
  if (on) cell.insertAdjacentHTML('beforeend', '<span class="vh"> best</span>');
}

function filter() {
  const rows = new Set(shownRows()), streams = shownStreams();
  const gone = record.rows.map((_, i) => i).filter(i => !rows.has(i)).map(i => `tr[data-r="${i}"]`);
  const away = allStreams.filter(s => !streams.includes(s));
  gone.push(...away.map(s => `div[data-s="${s}"]`));
  tables.forEach((table, t) => Array.from(table.tHead.rows[0].cells).forEach((th, i) => {
    if (th.dataset.s !== undefined && away.includes(Number(th.dataset.s))) {
      table.dataset.t = t;
      gone.push(`table[data-t="${t}"] tr>:nth-child(${i + 1})`);
    }
  }));
  rules.textContent = gone.length ? `${gone.join()}{display:none}` : '';
  rewriteMeans(streams);
  markBest(rows);
  const said = [`${rows.size} of ${record.rows.length} rows`];
  if (away.length) said.push(`${streams.length} of ${allStreams.length} streams`);
  document.getElementById('count').value = said.join(', ');
}

/* --- downloads: the headline table as it is filtered and sorted --- */
const upTo = (n, k) => (n * 100).toFixed(k);

/* The rows that are shown, in the order of the table on the screen. */
function orderedRows() {
  const shown = new Set(shownRows());
  const table = all('table.headline').find(t => t.closest('.view').dataset.view === selection);
  return Array.from(table.tBodies[0].rows).map(line => Number(line.dataset.r)).filter(i => shown.has(i));
}

/* Lines of cells {value, spread, rank}; rank 0 is the best of its column, 1 the second. */
function layout() {
  const streams = shownStreams(), rows = orderedRows().map(i => record.rows[i]);
  const columns = [...streams.map(s => [s]), ...(streams.length > 1 ? [streams] : [])];
  const several = rows.some(row => columns.some(c => bySeed(row, c).length > 1));
  const cells = rows.map(row => columns.map(c => {
    const values = bySeed(row, c), one = c.length === 1;
    const over = several ? (values.length > 1 ? spread(values) : NaN) : one ? mean(bySeed(row, c, 'std')) : NaN;
    return {value: values.length ? mean(values) : NaN, spread: over, rank: -1};
  }));
  columns.forEach((_, k) => {
    const known = [...new Set(cells.map(line => upTo(line[k].value, 2)).filter(v => v !== 'NaN'))].sort((a, b) => b - a);
    cells.forEach(line => { line[k].rank = known.indexOf(upTo(line[k].value, 2)); });
  });
  const adapted = rows.some(row => record.adapters[row.adapter] !== 'none');
  const names = rows.map(row => [row.method, ...(adapted ? [record.adapters[row.adapter]] : [])]);
  const head = ['Method', ...(adapted ? ['Adapter'] : []), ...streams.map(s => record.streams[s])];
  if (streams.length > 1) head.push('Average');
  const counts = rows.flatMap(row => columns.map(c => bySeed(row, c).length)).filter(n => n > 0);
  const low = Math.min(...counts), high = Math.max(...counts);
  const seeds = `${low < high ? `${low} to ` : ''}${high}`;
  const over = several ? `standard deviation over ${seeds} seeds` : 'standard deviation over clients';
  const said = `Test accuracy in %, ${record.selections[selection].toLowerCase()}: mean over clients, with the ${over}.`;
  return {head, names, cells, said};
}

const quoted = v => /[",\r\n]/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v ?? '');

function csv() {
  const lines = [['method', 'adapter', 'stream', 'selection', ...record.perSeed, 'up_bytes']];
  for (const i of orderedRows()) {
    const row = record.rows[i];
    for (const s of shownStreams()) {
      for (const seed of row.cells[selection][s]) {
        lines.push([row.method, record.adapters[row.adapter], record.streams[s], selection, ...seed, row.up]);
      }
    }
  }
  return lines.map(line => line.map(quoted).join() + '\n').join('');
}

function markdown() {
  const {head, names, cells, said} = layout();
  const safe = text => text.replaceAll('|', '\\|');
  const form = c => {
    if (Number.isNaN(c.value)) return '\u2013';
    const text = upTo(c.value, 2) + (Number.isNaN(c.spread) ? '' : ` \u00b1 ${upTo(c.spread, 2)}`);
    return c.rank === 0 ? `**${text}**` : text;
  };
  const lines = cells.map((line, i) => [...names[i].map(safe), ...line.map(form)]);
  const rule = head.map((_, i) => i < names[0]?.length ? '---' : '---:');
  return [head.map(safe), rule, ...lines].map(line => `| ${line.join(' | ')} |\n`).join('') + `\n${said} Best in bold.\n`;
}

const TEX = {'\\': '\\textbackslash{}', '~': '\\textasciitilde{}', '^': '\\textasciicircum{}'};
const tex = text => text.replace(/[\\{}$&#%_~^]/g, c => TEX[c] || `\\${c}`);

function latex() {
  const {head, names, cells, said} = layout();
  const form = c => {
    if (Number.isNaN(c.value)) return '--';
    const strong = ['\\mathbf', '\\underline'][c.rank];
    const value = strong ? `${strong}{${upTo(c.value, 2)}}` : upTo(c.value, 2);
    return `$${value}${Number.isNaN(c.spread) ? '' : `_{\\pm ${upTo(c.spread, 2)}}`}$`;
  };
  const left = names[0]?.length || 1;
  const line = items => `${items.join(' & ')} \\\\`;
  return [
    '% needs \\usepackage{booktabs}',
    '\\begin{table}[t]', '\\centering',
    `\\caption{${tex(said)} Best in bold, second best underlined.}`,
    `\\begin{tabular}{${'l'.repeat(left)}${'c'.repeat(head.length - left)}}`, '\\toprule',
    line(head.map(tex)), '\\midrule',
    ...cells.map((c, i) => line([...names[i].map(tex), ...c.map(form)])),
    '\\bottomrule', '\\end{tabular}', '\\end{table}', '',
  ].join('\n');
}

function save(kind) {
  const text = {csv, md: markdown, tex: latex}[kind]();
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type: 'text/plain;charset=utf-8'}));
  link.download = `acclimate-${selection}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

if (tools) {
  tools.hidden = false;
  tools.addEventListener('submit', event => event.preventDefault());
  tools.addEventListener('input', filter);
  tools.addEventListener('reset', () => setTimeout(filter));
  all('[data-save]', tools).forEach(b => b.addEventListener('click', () => save(b.dataset.save)));
  document.getElementById('count').value = `${record.rows.length} rows`;
}

/* --- a leaderboard's rows: by parts of their names, or one per method --- */
for (const form of all('form.narrow')) {
  const [text, once] = all('input', form), seen = new Set();
  const rows = all('table.board tbody tr', form.parentElement).map(line => {
    const method = line.cells[0].textContent, first = !seen.has(method);
    seen.add(method);
    return {line, first, name: `${method} ${line.cells[1].textContent}`.toLowerCase()};
  });
  const narrow = () => {
    const parts = text.value.toLowerCase().split(/\s+/);
    rows.forEach(r => { r.line.hidden = !parts.every(p => r.name.includes(p)) || (once.checked && !r.first); });
    form.querySelector('output').value = `${rows.filter(r => !r.line.hidden).length} of ${rows.length} rows`;
  };
  form.hidden = false;
  form.addEventListener('input', narrow);
  form.addEventListener('submit', event => event.preventDefault());
  narrow();
}

/* --- charts of rounds: what the pointer reads, arrow keys read too --- */
for (const chart of all('svg').filter(c => c.querySelector('.at'))) {
  const strips = all('.at', chart), label = chart.getAttribute('aria-label');
  let at = -1;
  const read = to => {
    at = to;
    strips.forEach((strip, i) => strip.classList.toggle('on', i === at));
    const said = at < 0 ? '' : `: ${all('text', strips[at]).map(t => t.textContent).join(', ')}`;
    chart.setAttribute('aria-label', label + said);
  };
  chart.tabIndex = 0;
  chart.addEventListener('blur', () => read(-1));
  chart.addEventListener('keydown', event => {
    const last = strips.length - 1, back = at < 0 ? last : Math.max(at - 1, 0);
    const to = {ArrowRight: Math.min(at + 1, last), ArrowLeft: back, Home: 0, End: last, Escape: -1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    read(to);
  });
}

/* --- light and dark: as the system has it until the button says otherwise --- */
const theme = document.getElementById('theme'), dark = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? 'dark' : 'light')) === 'dark';
const told = () => theme.setAttribute('aria-pressed', isDark());
theme.hidden = false;
theme.addEventListener('click', () => {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  told();
});
dark.addEventListener('change', told);
told();
})();
