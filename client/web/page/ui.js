// Elements, words and numbers. Text becomes part of the page as text alone.

// h('a', {class: 'x', href: '#/'}, 'text', child, [children]); onclick and the like are listeners,
// style is an object of properties.
export function h(tag, props, ...children) {
  const el = document.createElement(tag);
  apply(el, props);
  append(el, children);
  return el;
}

// The same for SVG.
export function s(tag, props, ...children) {
  const el = document.createElementNS('http://www.w3.org/2000/svg', tag);
  apply(el, props);
  append(el, children);
  return el;
}

function apply(el, props) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) el.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key, one] of Object.entries(value)) el.style.setProperty(key, one);
    else if (name === 'value' || name === 'checked') el[name] = value;
    else el.setAttribute(name, value === true ? '' : String(value));
  }
}

function append(el, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    el.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export const fill = (el, ...children) => { el.replaceChildren(); append(el, children); return el; };

// Draws again only where `key` says that something is different: focus and selection stay.
export function fillOnce(el, key, make) {
  if (el.dataset.key === key) return;
  el.dataset.key = key;
  fill(el, make());
}

export const num = (x) => (x === undefined || x === null || x === '' ? 0 : Number(x));
export const known = (x) => x !== undefined && x !== null && Number.isFinite(Number(x));

export function count(x) {
  const n = num(x);
  const units = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e4, 'k']];
  for (const [size, unit] of units) if (Math.abs(n) >= size) return three(unit === 'k' ? n / 1e3 : n / size) + unit;
  return Math.abs(n) >= 100 || Number.isInteger(n) ? Math.round(n).toLocaleString('en') : three(n);
}
const three = (x) => (Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 10 ? x.toFixed(1) : x.toFixed(2));

export const whole = (x) => Math.round(num(x)).toLocaleString('en');

export function decimal(x) {
  if (!known(x)) return '–';
  const n = Number(x);
  if (n === 0) return '0';
  const size = Math.abs(n);
  if (size >= 1e9 || size < 1e-3) return n.toExponential(2);
  if (size >= 1e4) return whole(n);
  return size >= 100 ? n.toFixed(1) : size >= 10 ? n.toFixed(2) : n.toFixed(4);
}

export function bytes(x) {
  let n = num(x);
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (Math.abs(n) < 1024) return (unit === 'B' ? n : three(n)) + ' ' + unit;
    n /= 1024;
  }
  return three(n) + ' TiB';
}

export function duration(seconds) {
  const n = Math.max(0, num(seconds));
  if (!Number.isFinite(n)) return '–';
  if (n < 1e-3) return n === 0 ? '0 s' : three(n * 1e6) + ' µs';
  if (n < 1) return three(n * 1000) + ' ms';
  if (n < 10) return n.toFixed(1) + ' s';
  if (n < 60) return Math.round(n) + ' s';
  if (n < 3600) return Math.floor(n / 60) + ' m ' + String(Math.round(n % 60)).padStart(2, '0') + ' s';
  if (n < 86400) return Math.floor(n / 3600) + ' h ' + String(Math.floor((n % 3600) / 60)).padStart(2, '0') + ' m';
  return Math.floor(n / 86400) + ' d ' + Math.floor((n % 86400) / 3600) + ' h';
}

// One figure: "4 m".
export function roughly(seconds) {
  const n = Math.max(0, seconds);
  if (n < 60) return Math.round(n) + ' s';
  if (n < 3600) return Math.round(n / 60) + ' m';
  if (n < 172800) return Math.round(n / 3600) + ' h';
  return Math.round(n / 86400) + ' d';
}

export const percent = (x) => (known(x) ? (100 * Number(x)).toFixed(Number(x) < 0.0995 ? 1 : 0) + '%' : '–');
export const at = (text) => (text ? Date.parse(text) / 1000 : NaN);
export const now = () => Date.now() / 1000;

export function clock(text) {
  const time = new Date(text);
  if (!text || Number.isNaN(time.getTime())) return '–';
  const today = new Date().toDateString() === time.toDateString();
  const hours = time.toLocaleTimeString('en-GB');
  return today ? hours : time.toLocaleDateString('en-CA') + ' ' + hours;
}

// State words. The glyph differs too: none is told by its colour alone.
const STATES = {
  JOB_STATE_QUEUED: ['Waiting', 'wait', '○'], JOB_STATE_STARTING: ['Starting', 'run', '◐'],
  JOB_STATE_RUNNING: ['Running', 'run', '●'], JOB_STATE_RECOVERING: ['Recovering', 'bad', '▲'],
  JOB_STATE_RESIZING: ['Resizing', 'run', '◇'], JOB_STATE_SUSPENDING: ['Suspending', 'pause', '◨'],
  JOB_STATE_SUSPENDED: ['Suspended', 'pause', '■'], JOB_STATE_PREEMPTING: ['Making room', 'wait', '◧'],
  JOB_STATE_CANCELLING: ['Cancelling', 'idle', '◌'], JOB_STATE_SUCCEEDED: ['Succeeded', 'good', '✓'],
  JOB_STATE_FAILED: ['Failed', 'bad', '✕'], JOB_STATE_CANCELLED: ['Cancelled', 'idle', '–'],
  WORKER_STATE_READY: ['Ready', 'good', '●'], WORKER_STATE_DRAINING: ['Draining', 'wait', '◐'],
  WORKER_STATE_DRAINED: ['Drained', 'pause', '■'], WORKER_STATE_DISCONNECTED: ['Disconnected', 'wait', '○'],
  WORKER_STATE_DOWN: ['Down', 'bad', '✕'],
};
export const stateWord = (state) => (STATES[state] || [tidy(state)])[0];
export const stateTone = (state) => (STATES[state] || ['', 'idle'])[1];
export const ended = (state) => ['JOB_STATE_SUCCEEDED', 'JOB_STATE_FAILED', 'JOB_STATE_CANCELLED'].includes(state);

export function stateBadge(state, extra = '') {
  const [word, tone, glyph] = STATES[state] || [tidy(state), 'idle', '·'];
  const beat = state === 'JOB_STATE_RUNNING' ? ' beat' : '';
  return h('span', {class: `state ${tone} ${extra}`},
    h('span', {class: 'glyph' + beat, 'aria-hidden': 'true'}, glyph), word);
}

// JOB_REASON_WAITING_FOR_SLOTS -> "waiting for slots"
export function tidy(name) {
  const text = String(name || '').replace(/^(JOB_REASON|JOB_STATE|WORKER_STATE|FAILURE_CLASS|DEVICE_KIND|ROLE)_/, '');
  return text === 'UNSPECIFIED' ? '' : text.toLowerCase().replaceAll('_', ' ');
}

export const short = (name) => String(name || '').replace(/^[a-z]+\//, '');
export const jobLink = (name) => `#/jobs/${encodeURIComponent(short(name))}`;

export function card(title, ...body) {
  return h('section', {class: 'card', 'aria-label': typeof title === 'string' ? title : undefined},
    h('div', {class: 'title'}, h('h2', {}, title)), ...body);
}
export const body = (...children) => h('div', {class: 'body'}, ...children);
export const empty = (text) => h('p', {class: 'empty'}, text);

// columns: ['Name', {text: 'Bytes', num: true}]; rows of cells.
export function table(columns, rows, nothing = 'Nothing yet.') {
  if (rows.length === 0) return empty(nothing);
  const isNum = columns.map((one) => Boolean(one.num));
  return h('div', {class: 'scroll'}, h('table', {},
    h('thead', {}, h('tr', {}, columns.map((one, i) => h('th', {scope: 'col', class: isNum[i] ? 'num' : ''}, one.text ?? one)))),
    h('tbody', {}, rows.map((row) => h('tr', {class: row.class || ''}, row.map((cell, i) => h('td', {class: isNum[i] ? 'num' : ''}, cell)))))));
}

export function meter(share, tone = '', label = '') {
  const part = Math.max(0, Math.min(1, num(share)));
  return h('div', {class: `meter ${tone}`, role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100,
    'aria-valuenow': Math.round(100 * part), 'aria-label': label || 'progress'}, h('i', {style: {width: `${(100 * part).toFixed(2)}%`}}));
}

export function toast(text) {
  const el = h('div', {class: 'toast'}, text);
  document.getElementById('toasts').append(el);
  setTimeout(() => el.remove(), 6000);
}
export const announce = (text) => { document.getElementById('announce').textContent = text; };

// Asks before it does: ask({title, text, fields, action, danger, run}). `run` gets the fields'
// values; its error is shown, and the dialog stays.
export function ask({title, text, fields = [], action, danger = false, run}) {
  const error = h('p', {class: 'error', role: 'alert', hidden: true});
  const inputs = fields.map((field) => {
    let input;
    if (field.options) {
      input = h('select', {name: field.name}, field.options.map((one) => h('option', {value: one}, one)));
    } else {
      input = h(field.lines ? 'textarea' : 'input', {name: field.name, type: field.lines ? null : field.type || 'text', rows: field.lines,
        required: field.required, placeholder: field.placeholder, autocomplete: 'off', spellcheck: 'false'});
    }
    input.value = field.value ?? '';
    return h('label', {class: 'field'}, field.label, input, field.help && h('span', {class: 'muted small'}, field.help));
  });
  const go = h('button', {class: danger ? 'danger' : 'main', type: 'submit'}, action);
  const form = h('form', {onsubmit: submit}, h('h2', {}, title), text && h('p', {class: 'muted break'}, text), inputs, error,
    h('div', {class: 'row'}, h('button', {type: 'button', onclick: () => dialog.close()}, 'Back'), go));
  const dialog = h('dialog', {'aria-label': title, onclose: () => dialog.remove()}, form);
  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    error.hidden = true;
    try {
      await run(Object.fromEntries(new FormData(form)));
      dialog.close();
    } catch (problem) {
      error.textContent = problem.message;
      error.hidden = false;
    }
    go.disabled = false;
  }
  document.body.append(dialog);
  dialog.showModal();
}
