// The list of jobs. Rows have one height; those in sight are elements, the others are room.
import {h, fill, num, whole, count, decimal, at, now, roughly, short, stateBadge, stateWord, ended, jobLink, meter, stateTone, empty} from './ui.js';
import {call, all} from './api.js';
import {etaOf, stepsOf} from './job_facts.js';

const PAGE = 500;
const ROW = 57;
const FIELDS = ['name', 'spec.name', 'spec.train.steps', 'spec.resources.ranks', 'spec.scheduling.queue', 'spec.scheduling.priority', 'state', 'reason', 'reasonDetail',
  'createTime', 'startTime', 'endTime', 'progress.step', 'progress.trainLoss', 'progress.tokensPerSecond', 'progress.time', 'progress.firstStepTime', 'progress.startStep', 'progress.totalSteps', 'progress.remainingSeconds',
  'queuePosition', 'project', 'labels', 'array.name', 'failures', 'stragglers.rank', 'latestCheckpoint'].map((one) => `jobs.${one}`).join(',') + ',nextPageToken';
const SHOWS = [
  ['all', 'All', []],
  ['active', 'Active', ['STARTING', 'RUNNING', 'RECOVERING', 'RESIZING', 'SUSPENDING', 'PREEMPTING', 'CANCELLING']],
  ['waiting', 'Waiting', ['QUEUED', 'SUSPENDED']],
  ['ended', 'Ended', ['SUCCEEDED', 'FAILED', 'CANCELLED']],
  ['failed', 'Failed', ['FAILED']],
];

// "team=vision,!draft,owner" as the API has it.
export function labelRequirements(text) {
  return text.split(',').map((one) => one.trim()).filter(Boolean).map((one) => {
    const [, key, operator, value] = /^!?([^!=]+?)\s*(!=|==?)?\s*([^!=]*)$/.exec(one) || [null, one];
    if (operator === '!=') return {key, operator: 'OPERATOR_NOT_EQUALS', value};
    if (operator) return {key, operator: 'OPERATOR_EQUALS', value};
    return {key, operator: one.startsWith('!') ? 'OPERATOR_ABSENT' : 'OPERATOR_EXISTS'};
  });
}

let versions = 0;

// Known jobs, the newest first. A page that is read again replaces what it covers.
class JobList {
  jobs = new Map();
  sorted = [];
  next = '';
  more = true;
  constructor(request) { this.request = request; }
  async read(token) {
    const page = await call('JobService/ListJobs', {...this.request, pageSize: PAGE, pageToken: token}, {fields: FIELDS});
    const jobs = page.jobs || [];
    const ids = jobs.map((job) => Number(short(job.name)));
    const high = token === '' ? Infinity : Math.max(...ids, -Infinity);
    const low = page.nextPageToken ? Math.min(...ids, Infinity) : token === '' || ids.length ? -Infinity : Infinity;
    for (const id of this.jobs.keys()) if (id >= low && id <= high) this.jobs.delete(id);
    jobs.forEach((job, i) => this.jobs.set(ids[i], job));
    ++versions;
    this.version = versions;
    this.sorted = [...this.jobs.keys()].sort((a, b) => b - a).map((id) => this.jobs.get(id));
    return page.nextPageToken || '';
  }
  async refresh() {
    const next = await this.read('');
    if (this.next === '' && this.more) { this.next = next; this.more = next !== ''; }
  }
  async readMore() {
    if (!this.more || this.next === '') return;
    this.next = await this.read(this.next);
    this.more = this.next !== '';
  }
}

function nameCell(job) {
  const labels = Object.entries(job.labels || {});
  const waits = !ended(job.state) && job.reasonDetail;
  const failed = job.state === 'JOB_STATE_FAILED' && job.reasonDetail;
  const second = waits || failed ? h('span', {class: failed ? 'small bad' : 'small wait', title: job.reasonDetail}, job.reasonDetail)
    : h('span', {class: 'small muted'}, [job.project && job.project !== 'default' ? job.project : '', ...labels.map(([key, value]) => `${key}=${value}`)].filter(Boolean).join('  ·  ') || `${whole(job.spec?.resources?.ranks)} rank${num(job.spec?.resources?.ranks) === 1 ? '' : 's'}`);
  return h('div', {class: 'two name'}, h('span', {}, h('a', {href: jobLink(job.name)}, job.spec?.name || job.name), h('span', {class: 'faint small'}, `  ${job.name}`)), second);
}

function progressCell(job) {
  const total = stepsOf(job);
  const step = num(job.progress?.step);
  const tone = {good: 'good', bad: 'bad', idle: 'idle', pause: 'idle', wait: 'idle'}[stateTone(job.state)] || '';
  return h('div', {class: 'two', style: {gap: '5px'}}, meter(total ? step / total : 0, tone, `step ${step} of ${total}`), h('span', {class: 'small muted'}, `${whole(step)} of ${whole(total)}`));
}

function queueCell(job) {
  const place = num(job.queuePosition);
  return h('div', {class: 'two'}, h('span', {}, job.spec?.scheduling?.queue || 'default'), h('span', {class: 'small muted'}, place ? `place ${whole(place)} in line` : num(job.spec?.scheduling?.priority) ? `priority ${job.spec.scheduling.priority}` : ''));
}

function stateCell(job) {
  const failures = num(job.failures);
  const note = (job.stragglers || []).length ? 'a rank is slow' : failures && !ended(job.state) ? `${failures} failure${failures === 1 ? '' : 's'}` : '';
  return h('div', {class: 'two'}, stateBadge(job.state), h('span', {class: 'small muted'}, note));
}

export function jobsRoom(root, {life, query}) {
  const filter = {show: query.get('show') || 'all', name: query.get('name') || '', queue: query.get('queue') || '', project: query.get('project') || '', labels: query.get('labels') || ''};
  const picked = new Set();
  let list = null;
  let drawn = 0;  // version of the list
  let busy = false;

  const shows = h('div', {class: 'segmented', role: 'group', 'aria-label': 'Which jobs'}, SHOWS.map(([key, text]) => h('button', {type: 'button', 'data-show': key, onclick: () => change({show: key})}, text)));
  const input = (key, label, placeholder) => {
    const el = h('input', {type: 'search', placeholder, 'aria-label': label, value: filter[key], spellcheck: 'false', autocomplete: 'off'});
    let timer;
    el.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(() => change({[key]: el.value.trim()}), 300); });
    return el;
  };
  const queues = h('select', {'aria-label': 'Queue', onchange: () => change({queue: queues.value})}, h('option', {value: ''}, 'Any queue'));
  all('QueueService/ListQueues', {}, 'queues').then((found) => {
    for (const one of found) queues.append(h('option', {value: short(one.name)}, short(one.name)));
    queues.value = filter.queue;
  }).catch(() => {});
  const compare = h('a', {class: 'button', href: '#/compare', hidden: true}, 'Compare');
  const total = h('p', {class: 'sub', role: 'status'});
  const columns = [['c-pick', h('span', {class: 'unseen'}, 'Pick')], ['c-state', 'State'], ['c-name', 'Job'], ['c-progress', 'Progress'], ['c-loss num x-wide', 'Loss'], ['c-rate num x-wide', 'Tokens/s'], ['c-eta num x-narrow', 'Time left'], ['c-queue x-narrow', 'Queue'], ['c-age num x-narrow', 'Age']];
  const above = h('tr', {class: 'spacer', 'aria-hidden': 'true'}, h('td', {}));
  const below = h('tr', {class: 'spacer', 'aria-hidden': 'true'}, h('td', {}));
  const rows = h('tbody', {}, above, below);
  const nothing = empty('');
  nothing.hidden = true;
  const error = h('p', {class: 'error', role: 'alert', hidden: true});
  const tableEl = h('table', {class: 'jobs', 'aria-label': 'Jobs'}, h('thead', {}, h('tr', {}, columns.map(([name, text]) => h('th', {scope: 'col', class: name}, text)))), rows);
  fill(root, h('div', {class: 'head'}, h('h1', {}, 'Jobs'), total, h('span', {class: 'push'}, compare)),
    h('section', {class: 'card', 'aria-label': 'Jobs'}, h('div', {class: 'filters', role: 'search'}, shows, input('name', 'Name begins with', 'Name begins with'), input('labels', 'Labels', 'team=vision,!draft'), input('project', 'Project', 'Project'), queues), error, tableEl, nothing));

  function change(what) {
    Object.assign(filter, what);
    const kept = new URLSearchParams(Object.entries(filter).filter(([key, value]) => value && !(key === 'show' && value === 'all')));
    history.replaceState(null, '', `#/jobs${kept.size ? '?' + kept : ''}`);
    start();
  }

  function start() {
    for (const button of shows.children) button.setAttribute('aria-pressed', String(button.dataset.show === filter.show));
    const states = SHOWS.find(([key]) => key === filter.show)?.[2] || [];
    list = new JobList({states: states.map((one) => `JOB_STATE_${one}`), namePrefix: filter.name, queue: filter.queue, project: filter.project, labelRequirements: labelRequirements(filter.labels)});
    again();
  }

  function rowOf(job, index) {
    const checkbox = h('input', {type: 'checkbox', 'aria-label': `Pick ${job.name} to compare`, checked: picked.has(job.name), onchange: () => { if (checkbox.checked) picked.add(job.name); else picked.delete(job.name); showPicked(); }});
    const cells = [checkbox, stateCell(job), nameCell(job), progressCell(job), job.progress?.trainLoss === undefined ? '–' : decimal(job.progress.trainLoss),
      job.state === 'JOB_STATE_RUNNING' && job.progress?.tokensPerSecond ? count(job.progress.tokensPerSecond) : '–', etaOf(job) ?? '–', queueCell(job), roughly(now() - at(job.createTime))];
    return h('tr', {'aria-rowindex': index + 2, 'data-job': job.name}, cells.map((cell, i) => h('td', {class: columns[i][0]}, cell)));
  }

  function showPicked() {
    compare.hidden = picked.size < 2;
    compare.textContent = `Compare ${picked.size} jobs`;
    compare.href = `#/compare?jobs=${[...picked].map((one) => short(one)).join(',')}`;
  }

  // Rows that are the same are left alone, so that focus and selection stay.
  function draw() {
    if (!list) return;
    const jobs = list.sorted;
    const top = rows.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / ROW) - 8);
    const last = Math.min(jobs.length, first + Math.ceil(window.innerHeight / ROW) + 16);
    above.firstChild.style.height = `${first * ROW}px`;
    above.hidden = first === 0;
    below.firstChild.style.height = `${(jobs.length - last) * ROW}px`;
    below.hidden = last >= jobs.length;
    const old = new Map([...rows.children].filter((row) => row.dataset.job).map((row) => [row.dataset.job, row]));
    let place = above;
    for (let i = first; i < last; ++i) {
      const job = jobs[i];
      const key = JSON.stringify(job) + (ended(job.state) ? '' : Math.floor(now() / 5));
      let row = old.get(job.name);
      old.delete(job.name);
      if (!row || row.key !== key) {
        const fresh = rowOf(job, i);
        fresh.key = key;
        if (row?.contains(document.activeElement)) {
          const selector = document.activeElement.tagName;
          row.replaceWith(fresh);
          fresh.querySelector(selector === 'A' ? 'a' : 'input')?.focus({preventScroll: true});
        } else row?.remove();
        row = fresh;
      }
      if (place.nextSibling !== row) place.after(row);
      place = row;
    }
    for (const row of old.values()) row.remove();
    if (list.version !== drawn) { drawn = list.version; summarise(jobs); }
    if (list.more && last > jobs.length - 60 && !busy) more();
  }

  function summarise(jobs) {
    tableEl.setAttribute('aria-rowcount', list.more ? -1 : jobs.length + 1);
    nothing.hidden = jobs.length > 0 || list.more;
    nothing.textContent = filter.show === 'all' && !filter.name && !filter.labels && !filter.queue && !filter.project ? 'There are no jobs yet: milepost job submit SPEC, or the room Plan.' : 'No job is like that.';
    const states = new Map();
    for (const job of jobs) states.set(stateWord(job.state), (states.get(stateWord(job.state)) || 0) + 1);
    total.textContent = jobs.length ? `${list.more ? `The newest ${whole(jobs.length)}` : `${whole(jobs.length)} job${jobs.length === 1 ? '' : 's'}`}: ${[...states].map(([word, n]) => `${whole(n)} ${word.toLowerCase()}`).join(', ')}` : '';
  }

  async function more() {
    busy = true;
    const mine = list;
    await mine.readMore().catch(() => {});
    busy = false;
    if (mine === list && !life.over) draw();
  }

  let asked = false;
  const drawSoon = () => { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; draw(); }); } };
  life.on(window, 'scroll', drawSoon, {passive: true});
  life.on(window, 'resize', drawSoon);
  const again = life.poll(2500, async () => {
    const mine = list;
    if (!mine) return;
    try { await mine.refresh(); error.hidden = true; } catch (problem) { error.textContent = problem.message; error.hidden = problem.code === 14 || problem.status === 401; }
    if (mine === list && !life.over) draw();
    else if (!life.over) setTimeout(again, 0);
  });
  start();
}
