// The road of a job: over its time, with states as the surface, checkpoints as milestones beside it
// and failures across it; and over its steps.
import {stepsOf} from './job_facts.js';
import {s, h, fill, at, now, num, whole, roughly, duration, stateWord, stateTone, clock} from './ui.js';

const TONES = {run: 'f-run', good: 'f-good', wait: 'f-wait', bad: 'f-bad', pause: 'f-pause', idle: 'f-idle'};

function stone(x, y, label, title, pinned) {
  return s('g', {role: 'img', 'aria-label': title}, s('title', {}, title),
    s('path', {class: 'f-stone' + (pinned ? ' pinned' : ''), d: `M${x - 5} ${y}v-9a5 5 0 0 1 10 0v9z`}),
    label && s('text', {x, y: y - 19, 'text-anchor': 'middle'}, label));
}

// Labels that would lie over each other are left out.
function spaced(items, room) {
  let last = -Infinity;
  return items.map((one) => { const shown = one.x - last >= room; if (shown) last = one.x; return {...one, shown}; });
}

function surface(x, y, width, height, parts, length) {
  return [s('rect', {class: 'f-road', x, y, width, height, rx: height / 2}), parts,
    s('line', {class: 'l-dash', x1: x + 6, x2: x + Math.max(6, length), y1: y + height / 2, y2: y + height / 2})];
}

export function stepRoad(job, checkpoints) {
  const el = h('div', {class: 'road'});
  const width = Math.max(260, el.clientWidth || 900);
  const draw = (wide) => {
    const total = Math.max(1, stepsOf(job));
    const step = Math.min(total, num(job.progress?.step));
    const px = (value) => 8 + (value / total) * (wide - 16);
    const tone = TONES[stateTone(job.state)] || 'f-run';
    const stones = spaced(checkpoints.map((one) => ({one, x: px(num(one.step))})).sort((a, b) => b.x - a.x), -Infinity).sort((a, b) => a.x - b.x);
    const labelled = spaced(stones, 64);
    const svg = s('svg', {viewBox: `0 0 ${wide} 62`, height: 62, role: 'group', 'aria-label': `Step ${whole(step)} of ${whole(total)}`},
      surface(8, 32, wide - 16, 10, s('rect', {class: tone, x: 8, y: 32, width: Math.max(step ? 10 : 0, px(step) - 8), height: 10, rx: 5}), px(step) - 12),
      labelled.map(({one, x, shown}) => stone(x, 31, shown ? whole(one.step) : '', `${one.name}, step ${whole(one.step)}${one.pinned ? ', pinned' : ''}`, one.pinned)),
      s('text', {x: 8, y: 58}, '0'),
      s('text', {x: wide - 8, y: 58, 'text-anchor': 'end'}, whole(total)),
      step > 0 && step < total && s('text', {class: 'strong', x: Math.max(60, Math.min(wide - 80, px(step))), y: 58, 'text-anchor': 'middle'}, whole(step)));
    fill(el, svg);
  };
  draw(width);
  new ResizeObserver(() => { if (el.clientWidth && Math.abs(el.clientWidth - (el.wide || 0)) > 1) { el.wide = el.clientWidth; draw(Math.max(240, el.wide)); } }).observe(el);
  return el;
}

// Failures: RECOVERING events and a last FAILED one.
export function failuresOf(job) {
  return (job.events || []).filter((event) => event.reason && /RANK_FAILED|WORKER_LOST|BUDGET_EXHAUSTED/.test(event.reason) && /RECOVERING|FAILED/.test(event.state));
}

export function timeRoad(job, checkpoints) {
  const el = h('div', {class: 'road'});
  const events = job.events || [];
  const begin = at(job.createTime);
  const end = Math.max(begin + 1, at(job.endTime) || now());
  const draw = (wide) => {
    const px = (time) => 8 + ((Math.min(end, Math.max(begin, time)) - begin) / (end - begin)) * (wide - 16);
    const parts = events.map((event, i) => {
      const from = px(at(event.time));
      const to = i + 1 < events.length ? px(at(events[i + 1].time)) : px(end);
      const title = `${stateWord(event.state)} from ${clock(event.time)} for ${duration((i + 1 < events.length ? at(events[i + 1].time) : end) - at(event.time))}`;
      return s('g', {role: 'img', 'aria-label': title}, s('title', {}, title),
        s('rect', {class: TONES[stateTone(event.state)], x: from, y: 44, width: Math.max(1.5, to - from), height: 12}));
    });
    const stones = spaced(checkpoints.map((one) => ({one, x: px(at(one.createTime))})).sort((a, b) => a.x - b.x), 64);
    const failures = failuresOf(job).map((event) => {
      const x = px(at(event.time));
      const title = `Failure at ${clock(event.time)}: ${event.detail || ''}`;
      return s('g', {role: 'img', 'aria-label': title}, s('title', {}, title), s('path', {class: 'l-bad', d: `M${x - 5} 61l10 10m0-10l-10 10`}));
    });
    const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => {
      const x = 8 + part * (wide - 16);
      return [s('line', {class: 'l-tick', x1: x, x2: x, y1: 76, y2: 81}),
        s('text', {x, y: 94, 'text-anchor': part === 0 ? 'start' : part === 1 ? 'end' : 'middle'}, part === 0 ? clock(job.createTime) : part === 1 ? (job.endTime ? clock(job.endTime) : 'now') : '+' + roughly(part * (end - begin)))];
    });
    fill(el, s('svg', {viewBox: `0 0 ${wide} 100`, height: 100, role: 'group', 'aria-label': 'Time line: attempts, failures and checkpoints'},
      surface(8, 44, wide - 16, 12, parts, wide - 22), stones.map(({one, x, shown}) => stone(x, 43, shown ? whole(one.step) : '', `${one.name}, step ${whole(one.step)}, saved ${clock(one.createTime)}`, one.pinned)), failures, marks));
  };
  draw(900);
  new ResizeObserver(() => { if (el.clientWidth && Math.abs(el.clientWidth - (el.wide || 0)) > 1) { el.wide = el.clientWidth; draw(Math.max(240, el.wide)); } }).observe(el);
  return el;
}

// What the colours and signs of the time line say.
export function roadLegend(job) {
  const seen = [...new Set((job.events || []).map((event) => event.state))];
  return h('div', {class: 'row small muted'}, seen.map((state) => h('span', {class: 'key'}, s('svg', {width: 12, height: 10, 'aria-hidden': 'true'}, s('rect', {class: TONES[stateTone(state)], width: 12, height: 10, rx: 3})), stateWord(state))),
    h('span', {class: 'key'}, s('svg', {width: 12, height: 16, 'aria-hidden': 'true'}, s('path', {class: 'f-stone', d: 'M1 15v-9a5 5 0 0 1 10 0v9z'})), 'checkpoint that is kept'),
    failuresOf(job).length > 0 && h('span', {class: 'key'}, s('svg', {width: 12, height: 12, 'aria-hidden': 'true'}, s('path', {class: 'l-bad', d: 'M1 1l10 10m0-10l-10 10'})), 'failure'));
}
