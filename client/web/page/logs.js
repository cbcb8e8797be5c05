// A job's log, followed.
import {h, fill, num, whole, clock} from './ui.js';
import {stream} from './api.js';

const TAIL = 2000;
const MOST = 5000;

export function logsTab(root, {life, name, hooks}) {
  let lines = [];  // as they came
  let last = 0;    // sequence number
  let stop = null;
  let rank = '';
  let find = '';
  const box = h('div', {class: 'logs', tabindex: 0, role: 'log', 'aria-label': 'Log', 'aria-live': 'off'});
  const follow = h('input', {type: 'checkbox', checked: true});
  const only = h('input', {type: 'checkbox', onchange: () => redraw()});
  const ranks = h('select', {'aria-label': 'Rank', onchange: () => { rank = ranks.value; start(); }}, h('option', {value: ''}, 'All ranks'));
  const search = h('input', {type: 'search', placeholder: 'Search', 'aria-label': 'Search in the log', oninput: () => { find = search.value.toLowerCase(); redraw(); }});
  const note = h('span', {class: 'muted small push', role: 'status'});
  fill(root, h('section', {class: 'card', 'aria-label': 'Log'}, h('div', {class: 'title', style: {'padding-bottom': '10px'}}, ranks, search, h('label', {class: 'check'}, only, 'Only lines that match'), h('label', {class: 'check'}, follow, 'Follow'), note), box));
  hooks.push((job) => {
    const world = Math.max(num(job.spec?.resources?.ranks), (job.placements || []).length);
    while (ranks.options.length <= world && ranks.options.length <= 4096) ranks.append(h('option', {value: String(ranks.options.length - 1)}, `Rank ${ranks.options.length - 1}`));
  });

  const wanted = (line) => !find || !only.checked || String(line.text || '').toLowerCase().includes(find);

  function marked(text) {
    if (!find) return text;
    const found = [];
    const low = text.toLowerCase();
    let from = 0;
    for (let i = low.indexOf(find); i >= 0 && found.length < 200; i = low.indexOf(find, from)) {
      found.push(text.slice(from, i), h('mark', {}, text.slice(i, i + find.length)));
      from = i + find.length;
    }
    found.push(text.slice(from));
    return found;
  }

  function row(line) {
    if (num(line.droppedLines) > 0) return h('div', {class: 'gap'}, `${whole(line.droppedLines)} lines until ${clock(line.time)} are not kept any more`);
    return h('div', {}, h('span', {class: 'rank'}, `r${num(line.rank)}`), marked(line.text || ''));
  }

  function count() {
    const matches = find ? lines.filter((line) => String(line.text || '').toLowerCase().includes(find)).length : 0;
    note.textContent = `${whole(lines.length)} line${lines.length === 1 ? '' : 's'}${lines.length >= MOST ? ' (the newest)' : ''}${find ? `, ${whole(matches)} match` : ''}`;
  }

  function down() { if (follow.checked) box.scrollTop = box.scrollHeight; }
  function redraw() { fill(box, lines.filter(wanted).map(row)); count(); down(); }

  let fresh = [];
  let asked = false;
  function add(line) {
    const sequence = num(line.sequence);
    if (sequence && sequence <= last) return;  // the stream was opened again
    last = Math.max(last, sequence);
    fresh.push(line);
    if (asked) return;
    asked = true;
    setTimeout(() => {
      asked = false;
      lines.push(...fresh);
      box.append(...fresh.filter(wanted).map(row));
      fresh = [];
      if (lines.length > MOST) { lines = lines.slice(-MOST); redraw(); }
      count();
      down();
    }, 60);
  }

  function start() {
    stop?.();
    lines = [];
    fresh = [];
    last = 0;
    redraw();
    stop = stream('JobService/StreamLogs', {name, follow: 'true', tail: String(TAIL), ...(rank === '' ? {} : {rank})}, {onMessage: add, onEnd: (status) => { if (status.code) note.textContent = status.message; }});
  }
  box.addEventListener('wheel', (event) => { if (event.deltaY < 0) follow.checked = false; }, {passive: true});
  box.addEventListener('keydown', (event) => { if (['PageUp', 'ArrowUp', 'Home'].includes(event.key)) follow.checked = false; });
  life.add(() => stop?.());
  start();
}
