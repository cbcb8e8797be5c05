// Line charts on a canvas: a line for what is typical, a band from the least to the most of what a
// pixel stands for. Charts of one Group show the same place under the pointer, and the same part.
import {h, decimal, duration, count, percent, fill} from './ui.js';

const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 22;

export class Group {
  charts = new Set();
  at = null;
  range = null;
  axis = 'step';  // or 'time'
  log = false;
  #asked = false;
  show(at) { this.at = at; this.draw(); }
  zoom(range) { this.range = range; this.draw(); }
  draw() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => { this.#asked = false; for (const chart of this.charts) chart.draw(); });
  }
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// 1, 2 or 5 times a power of ten, about so many in the span.
function ticks(low, high, wanted, least = 0) {
  const raw = Math.max((high - low) / wanted, least);
  if (!(raw > 0) || !Number.isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= raw);
  const found = [];
  for (let one = Math.ceil(low / step) * step; one <= high + step * 1e-9; one += step) found.push(Math.abs(one) < step * 1e-9 ? 0 : one);
  return found;
}

// With as many digits as tell it from the next tick, `step` away.
function label(value, step) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  const digits = Math.max(1, Math.min(8, Math.ceil(Math.log10(size / Math.abs(step || size)) - 1e-9) + 1));
  if (size < 1e-3) return value.toExponential(digits - 1).replace('.0e', 'e');
  if (size < 1e4) return String(Number(value.toPrecision(Math.max(digits, 3))));
  return digits > 3 ? Math.round(value).toLocaleString('en') : count(value).replace(/\.0+(?=\D)/, '');
}

// The index of the last element that is at most `x`, or -1.
function before(xs, x) {
  let low = -1;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle - 1;
  }
  return low;
}

export class Chart {
  // series: [{name, color: '--s1', steps: [], means: [], mins: [], maxs: [], seconds: []}]
  constructor(group, {title, unit = '', linear = false, percent = false}) {
    this.percent = percent;
    this.group = group;
    this.unit = unit;
    this.linear = linear;
    this.series = [];
    this.title = title;
    this.canvas = h('canvas', {tabindex: 0, role: 'img', 'aria-label': title});
    this.read = h('div', {class: 'read'});
    this.el = h('div', {class: 'chart'}, this.canvas, this.read);
    group.charts.add(this);
    this.#listen();
    this.resize = new ResizeObserver(() => group.draw());
    this.resize.observe(this.canvas);
  }

  end() { this.resize.disconnect(); this.group.charts.delete(this); }

  set(series) { this.series = series; this.group.draw(); }

  #xs(one) { return this.group.axis === 'time' ? one.seconds : one.steps; }

  #listen() {
    const {canvas, group} = this;
    let from = null;
    const place = (event) => this.toX?.(event.clientX - canvas.getBoundingClientRect().left);
    canvas.addEventListener('pointermove', (event) => { group.drag = from === null ? null : [from, place(event)]; group.show(place(event)); });
    canvas.addEventListener('pointerleave', () => { if (from === null) group.show(null); });
    canvas.addEventListener('pointerdown', (event) => { if (event.pointerType === 'mouse') { from = place(event); canvas.setPointerCapture(event.pointerId); } });
    canvas.addEventListener('pointerup', () => {
      const drag = group.drag;
      from = null;
      group.drag = null;
      if (drag && this.width && Math.abs(this.fromX(drag[0]) - this.fromX(drag[1])) > 8) group.zoom([Math.min(...drag), Math.max(...drag)]);
      else group.draw();
    });
    canvas.addEventListener('dblclick', () => group.zoom(null));
    canvas.addEventListener('keydown', (event) => {
      const [low, high] = this.domain || [0, 1];
      const step = (high - low) / 50;
      if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') {
        event.preventDefault();
        const here = group.at ?? high;
        group.show(Math.max(low, Math.min(high, here + (event.key === 'ArrowLeft' ? -step : step))));
      } else if (event.key === 'Escape') { group.at = null; group.zoom(null); }
    });
  }

  #bounds() {
    let [low, high] = [Infinity, -Infinity];
    for (const one of this.series) {
      const xs = this.#xs(one);
      if (xs.length) { low = Math.min(low, xs[0]); high = Math.max(high, xs[xs.length - 1]); }
    }
    if (low > high) return this.group.range;
    return this.group.range || (low === high ? [low - 1, high + 1] : [low, high]);
  }

  // What is drawn of a series: for each pixel column the mean, the least and the most.
  #columns(one, [low, high], width) {
    const xs = this.#xs(one);
    const columns = [];
    const first = Math.max(0, before(xs, low));
    let last = before(xs, high) + 1;
    if (last >= xs.length) last = xs.length - 1;
    let column = null;
    for (let i = first; i <= last; ++i) {
      const x = Math.round(((xs[i] - low) / (high - low)) * width);
      const mean = one.means[i];
      if (column === null || column.x !== x) { column = {x, sum: 0, n: 0, min: Infinity, max: -Infinity}; columns.push(column); }
      if (!Number.isFinite(mean)) continue;
      column.sum += mean;
      column.n += 1;
      column.min = Math.min(column.min, one.mins?.[i] ?? mean);
      column.max = Math.max(column.max, one.maxs?.[i] ?? mean);
    }
    return columns.map((c) => ({...c, mean: c.n ? c.sum / c.n : NaN}));
  }

  draw() {
    const {canvas} = this;
    const width = canvas.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(HEIGHT * ratio); }
    const pen = canvas.getContext('2d');
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, HEIGHT);
    const domain = this.#bounds();
    this.domain = domain;
    if (!domain) return this.#tell(pen, width, 'No points yet.');
    const inner = width - LEFT - RIGHT;
    const drawn = this.series.map((one) => this.#columns(one, domain, inner));
    const log = this.group.log && !this.linear;
    let [low, high] = [Infinity, -Infinity];
    for (const columns of drawn) for (const c of columns) if (c.n && (!log || c.min > 0)) { low = Math.min(low, c.min); high = Math.max(high, c.max); }
    if (low > high) return this.#tell(pen, width, 'No finite points.');
    // What hardly changes looks so.
    const least = Math.max(Math.abs(low), Math.abs(high)) * 0.01 || 1;
    if (high - low < least) { const more = (least - (high - low)) / 2; low -= more; high += more; }
    const scale = log ? Math.log10 : (x) => x;
    const pad = (scale(high) - scale(low)) * 0.06;
    const [bottom, top] = [scale(low) - pad, scale(high) + pad];
    this.width = width;
    this.fromX = (x) => LEFT + ((x - domain[0]) / (domain[1] - domain[0])) * inner;
    this.toX = (px) => domain[0] + ((px - LEFT) / inner) * (domain[1] - domain[0]);
    const y = (value) => TOP + (1 - (scale(value) - bottom) / (top - bottom)) * (HEIGHT - TOP - BOTTOM);
    this.#axes(pen, width, domain, y, log ? [low, high] : [bottom, top], log);
    drawn.forEach((columns, i) => this.#line(pen, columns, color(this.series[i].color), y));
    this.#pointer(pen, width, y);
    this.#words(domain);
  }

  #tell(pen, width, text) {
    pen.fillStyle = color('--ink-3');
    pen.font = '13px system-ui, "Liberation Sans", sans-serif';
    pen.textAlign = 'center';
    pen.fillText(text, width / 2, HEIGHT / 2);
    this.read.replaceChildren();
  }

  #axes(pen, width, domain, y, [low, high], log) {
    pen.font = '11px system-ui, "Liberation Sans", sans-serif';
    pen.fillStyle = color('--ink-3');
    pen.strokeStyle = color('--line');
    pen.lineWidth = 1;
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    let values = ticks(low, high, 4);
    if (log) {
      const decades = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) for (const m of [1, 2, 5]) decades.push(m * 10 ** power);
      const inside = decades.filter((one) => one >= low && one <= high);
      if (inside.length >= 2) values = inside.length > 6 ? inside.filter((one) => /^1(e|0|$)|^0\.0*1$/.test(String(one))) : inside;
    }
    const gap = log ? 0 : values[1] - values[0];
    for (const value of values) {
      const py = Math.round(y(value)) + 0.5;
      if (py < TOP - 4 || py > HEIGHT - BOTTOM + 4) continue;
      pen.beginPath(); pen.moveTo(LEFT, py); pen.lineTo(width - RIGHT, py); pen.stroke();
      pen.fillText(this.percent ? `${label(value * 100, gap * 100)}%` : label(value, gap), LEFT - 6, py);
    }
    pen.textAlign = 'center';
    pen.textBaseline = 'top';
    const time = this.group.axis === 'time';
    const begin = time ? this.start ?? domain[0] : 0;
    const marks = ticks(domain[0] - begin, domain[1] - begin, Math.max(2, Math.floor(width / 110)), time ? 0 : 1);
    for (const mark of marks) {
      const px = this.fromX(mark + begin);
      if (px < LEFT - 1 || px > width - RIGHT + 1) continue;
      pen.fillText(time ? duration(mark) : label(mark, marks[1] - marks[0]), Math.max(LEFT, Math.min(px, width - 26)), HEIGHT - BOTTOM + 6);
    }
  }

  #line(pen, columns, ink, y) {
    const shown = columns.filter((c) => c.n);
    if (!shown.length) return;
    pen.fillStyle = ink;
    pen.globalAlpha = 0.18;
    pen.beginPath();
    shown.forEach((c, i) => pen[i ? 'lineTo' : 'moveTo'](LEFT + c.x, y(c.max)));
    for (const c of shown.toReversed()) pen.lineTo(LEFT + c.x, y(c.min));
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = ink;
    pen.lineWidth = 1.6;
    pen.lineJoin = 'round';
    pen.beginPath();
    let drawing = false;
    for (const c of columns) {
      if (!c.n) { drawing = false; continue; }
      pen[drawing ? 'lineTo' : 'moveTo'](LEFT + c.x, y(c.mean));
      drawing = true;
    }
    pen.stroke();
    if (shown.length <= 24) for (const c of shown) { pen.beginPath(); pen.arc(LEFT + c.x, y(c.mean), 2.2, 0, 7); pen.fill(); }
  }

  #pointer(pen, width, y) {
    const {at, drag} = this.group;
    if (drag) {
      pen.fillStyle = color('--accent');
      pen.globalAlpha = 0.12;
      pen.fillRect(this.fromX(drag[0]), TOP, this.fromX(drag[1]) - this.fromX(drag[0]), HEIGHT - TOP - BOTTOM);
      pen.globalAlpha = 1;
    }
    if (at === null || at === undefined) return;
    const px = this.fromX(at);
    if (px < LEFT || px > width - RIGHT) return;
    pen.strokeStyle = color('--line-strong');
    pen.beginPath(); pen.moveTo(px, TOP); pen.lineTo(px, HEIGHT - BOTTOM); pen.stroke();
    for (const one of this.series) {
      const i = before(this.#xs(one), at);
      if (i < 0 || !Number.isFinite(one.means[i])) continue;
      pen.fillStyle = color(one.color);
      pen.beginPath(); pen.arc(this.fromX(this.#xs(one)[i]), y(one.means[i]), 3.2, 0, 7); pen.fill();
    }
  }

  // The numbers under the pointer, or the last ones; the same for who does not see the canvas.
  #words(domain) {
    const at = this.group.at ?? domain[1];
    const parts = [];
    let words = this.title;
    for (const one of this.series) {
      const i = before(this.#xs(one), at);
      const value = i < 0 ? NaN : one.means[i];
      const text = Number.isFinite(value) ? (this.percent ? percent(value) : this.unit === 's' ? duration(value) : decimal(value) + (this.unit ? ' ' + this.unit : '')) : '–';
      words += `; ${one.name}: ${text}${i >= 0 ? ` at step ${one.steps[i]}` : ''}`;
      parts.push(h('span', {class: 'key'}, h('i', {style: {background: `var(${one.color})`}}), one.name, h('b', {}, text), i >= 0 && h('span', {class: 'faint'}, `@ ${one.steps[i].toLocaleString('en')}`)));
    }
    this.canvas.setAttribute('aria-label', words);
    fill(this.read, parts);
  }
}

export const SERIES_COLORS = ['--s1', '--s2', '--s3', '--s4', '--s5', '--s6', '--s7', '--s8'];
