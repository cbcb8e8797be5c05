// One job: where it is, how it does, and why.
import {h, fill, fillOnce, card, body, table, num, whole, count, decimal, percent, bytes, duration, clock, at, now, short, stateBadge, stateWord, tidy, ended, announce, known} from './ui.js';
import {call, all, stream, spec as specCall} from './api.js';
import {Chart, Group, SERIES_COLORS} from './chart.js';
import {Curves, PLOTS, isOf, wordsOf} from './curves.js';
import {stepRoad, timeRoad, roadLegend} from './road.js';
import {actionButtons, fork, pin} from './job_actions.js';
import {etaOf, goodput, stepsOf, stepTime} from './job_facts.js';
import {logsTab} from './logs.js';

const TABS = [['', 'Overview'], ['logs', 'Logs'], ['checkpoints', 'Checkpoints'], ['spec', 'Spec']];

export function chartTools(group) {
  const toggle = (text, pressed, run) => { const el = h('button', {type: 'button', 'aria-pressed': String(pressed()), onclick: () => { run(); for (const one of el.parentNode.children) one.refresh?.(); group.draw(); }}, text); el.refresh = () => el.setAttribute('aria-pressed', String(pressed())); return el; };
  return h('div', {class: 'row'},
    h('div', {class: 'segmented', role: 'group', 'aria-label': 'Axis'}, toggle('Step', () => group.axis === 'step', () => { group.axis = 'step'; group.range = null; group.at = null; }), toggle('Time', () => group.axis === 'time', () => { group.axis = 'time'; group.range = null; group.at = null; })),
    h('div', {class: 'segmented', role: 'group', 'aria-label': 'Scale'}, toggle('Linear', () => !group.log, () => { group.log = false; }), toggle('Log', () => group.log, () => { group.log = true; })),
    h('button', {type: 'button', class: 'quiet', onclick: () => group.zoom(null)}, 'All of it'));
}

function curvesCard(life, curves) {
  const group = new Group();
  const grid = h('div', {class: 'grid'});
  const charts = new Map();
  life.add(() => { for (const one of charts.values()) one.chart.end(); });
  const note = h('p', {class: 'faint small'});
  const el = h('section', {class: 'card', 'aria-label': 'Curves'}, h('div', {class: 'title'}, h('h2', {}, 'Curves'), h('span', {class: 'push'}, chartTools(group))), body(grid, note));
  const draw = () => {
    let order = 0;
    for (const plot of PLOTS) {
      const names = [...curves.byName.keys()].filter((name) => isOf(plot, name));
      if (!names.length) continue;
      names.sort((a, b) => plot.curves.indexOf(a.split('/')[0]) - plot.curves.indexOf(b.split('/')[0]) || a.localeCompare(b));
      if (!charts.has(plot.title)) {
        const chart = new Chart(group, plot);
        const box = h('div', {}, h('h3', {}, plot.title, plot.unit && h('span', {class: 'faint'}, `  ${plot.unit}`)), chart.el);
        charts.set(plot.title, {chart, box});
      }
      const {chart, box} = charts.get(plot.title);
      if (grid.children[order] !== box) grid.insertBefore(box, grid.children[order] || null);
      ++order;
      chart.start = Math.min(...names.map((name) => curves.byName.get(name).seconds[0] ?? Infinity));
      chart.set(names.map((name, i) => ({name: wordsOf(name), color: SERIES_COLORS[i % SERIES_COLORS.length], ...curves.byName.get(name)})));
    }
    const nothing = order === 0 ? 'No step has been reported yet.' : curves.kept ? '' : 'From when this page was opened on: this coordinator keeps no curves.';
    if (note.textContent !== nothing) note.textContent = nothing;
    note.hidden = nothing === '';
  };
  return {el, draw};
}

function kpis(job) {
  const progress = job.progress || {};
  const one = (name, value, more) => h('div', {class: 'kpi'}, h('dt', {}, name), h('dd', {}, value, more && h('div', {class: 'more'}, more)));
  const validation = num(progress.validationStep) > 0 && known(progress.validationLoss);
  const left = etaOf(job);
  return h('dl', {class: 'kpis'}, one('Step', whole(progress.step), `of ${whole(stepsOf(job))}`), one('Training loss', decimal(progress.trainLoss), num(progress.skippedSteps) ? `${whole(progress.skippedSteps)} steps skipped` : ''),
    one('Validation loss', validation ? decimal(progress.validationLoss) : '–', validation ? `at step ${whole(progress.validationStep)}` : ''), one('Throughput', progress.tokensPerSecond ? count(progress.tokensPerSecond) : '–', 'tokens/s'),
    one('MFU', percent(progress.mfu), progress.modelFlopsPerSecond ? `${count(progress.modelFlopsPerSecond).replace(/(\D)$/, ' $1')}FLOP/s a rank` : ''), one('Goodput', percent(goodput(job)), job.attempts > 1 && `${job.attempts} attempts`),
    ended(job.state) ? one('Took', duration(at(job.endTime) - at(job.createTime)), clock(job.endTime)) : one('Time left', left ?? '–', left && Number.isFinite(stepTime(job)) ? `${duration(stepTime(job))} a step` : ''));
}

function reasonWords(job) {
  const reason = tidy(job.reason);
  if (reason.startsWith('waiting')) return reason[0].toUpperCase() + reason.slice(1);
  return reason ? `${stateWord(job.state)}, ${reason}` : stateWord(job.state);
}

function whyBox(job) {
  const failure = job.firstFailure;
  const lines = failure?.lastLines || [];
  const failed = job.state === 'JOB_STATE_FAILED';
  return [
    job.reasonDetail && h('div', {class: failed ? 'why bad' : 'why'}, h('strong', {}, failed ? 'Failed: ' : `${reasonWords(job)}: `), h('span', {class: 'break'}, job.reasonDetail),
      num(job.queuePosition) > 0 && h('div', {class: 'small'}, `Place ${whole(job.queuePosition)} among those that wait for such slots.`), job.nextAttemptTime && h('div', {class: 'small'}, `Next attempt at ${clock(job.nextAttemptTime)}.`)),
    failure && h('details', {class: failed ? 'why bad' : 'why past'}, h('summary', {}, `Latest failure: rank ${num(failure.rank)} on ${short(failure.worker) || '?'}, ${tidy(failure.class) || 'unknown'}, at ${clock(failure.time)}`),
      h('p', {class: 'break', style: {'margin-top': '8px'}}, failure.message), lines.length > 0 && h('pre', {}, lines.join('\n'))),
    job.progress?.checkpointProblem && h('div', {class: 'why'}, h('strong', {}, 'The newest checkpoint is not saved: '), h('span', {class: 'break'}, job.progress.checkpointProblem)),
    job.progress?.data?.damagedSamples && h('div', {class: 'why'}, `${whole(job.progress.data.damagedSamples)} damaged samples: ${job.progress.data.firstDamage}`)];
}

function parts(list, total) {
  return [h('div', {class: 'stackbar', 'aria-hidden': 'true'}, list.map(([, value, ink]) => h('i', {style: {flex: `${value / total} 1 0`, background: `var(${ink})`}}))),
    h('div', {class: 'legend'}, list.map(([name, value, ink, text]) => h('div', {}, h('i', {style: {background: `var(${ink})`}}), h('span', {}, name), h('span', {}, text))))];
}

function stepSplit(job) {
  const p = job.progress || {};
  const total = num(p.stepSeconds);
  if (!total) return h('p', {class: 'muted'}, 'No step yet.');
  const list = [['Waiting for data', num(p.dataWaitSeconds), '--s5'], ['Forward', num(p.forwardSeconds), '--s1'], ['Backward', num(p.backwardSeconds), '--s3'], ['Waiting for other ranks', num(p.communicationWaitSeconds), '--s2'], ['Update', num(p.updateSeconds), '--s4']].filter(([, value]) => value > 0);
  const rest = total - list.reduce((sum, [, value]) => sum + value, 0);
  if (rest > 0) list.push(['Else', rest, '--s6']);
  const hidden = num(p.communicationSeconds) - num(p.communicationWaitSeconds);
  return [parts(list.map(([name, value, ink]) => [name, value, ink, `${duration(value)} · ${percent(value / total)}`]), total),
    h('p', {class: 'muted small', style: {'margin-top': '10px'}}, `The last step took ${duration(total)}. `, num(p.communicationSeconds) > 0 && `Ranks talked for ${duration(p.communicationSeconds)}, ${duration(Math.max(0, hidden))} of it while they computed.`)];
}

const MEMORY = [['parameters', 'Parameters', '--s1'], ['gradients', 'Gradients', '--s3'], ['optimizer', 'Optimizer', '--s4'], ['activations', 'Activations', '--s2'], ['workspace', 'Workspace', '--s5'], ['communication', 'Communication', '--s7'], ['inputs', 'Inputs', '--s8'], ['slack', 'Slack', '--s6']];
export function memoryClasses(perRank) {
  const list = MEMORY.map(([key, name, ink]) => [name, num(perRank[key]), ink]).filter(([, value]) => value > 0);
  return parts(list.map(([name, value, ink]) => [name, value, ink, `${bytes(value)} · ${percent(value / num(perRank.total))}`]), num(perRank.total) || 1);
}

function memory(job, plan) {
  const p = job.progress || {};
  const rows = [];
  if (num(p.plannedBytes)) rows.push(['Arena of a rank', bytes(p.plannedBytes), num(p.allocatedBytes) ? bytes(p.allocatedBytes) : '–', num(p.allocatedBytes) ? (num(p.allocatedBytes) === num(p.plannedBytes) ? 'as planned' : 'differs') : '']);
  if (num(p.requiredBytes)) rows.push(['Whole process', bytes(p.requiredBytes), num(p.peakResidentBytes) ? bytes(p.peakResidentBytes) : '–', 'with libraries and code']);
  return [plan?.per_rank && memoryClasses(plan.per_rank), rows.length ? h('div', {style: {margin: '10px -16px 0'}}, table(['Each rank', {text: 'Planned', num: true}, {text: 'Used', num: true}, ''], rows)) : h('p', {class: 'muted'}, 'Nothing is allocated yet.')];
}

// Of thousands of ranks, the slow ones and the first.
const MOST_RANKS = 256;
function rankRows(job) {
  const slow = new Map((job.stragglers || []).map((one) => [num(one.rank), one]));
  const told = new Map((job.rankStats || []).map((one) => [num(one.rank), one]));
  const all = job.placements || [];
  const shown = all.length <= MOST_RANKS ? all : [...all.filter((one) => slow.has(num(one.rank))), ...all.filter((one) => !slow.has(num(one.rank)))].slice(0, MOST_RANKS);
  return shown.map((one) => {
    const stats = told.get(num(one.rank)) || {};
    const size = (value) => (num(value) ? bytes(value) : '–');
    return {placement: one, straggler: slow.get(num(one.rank)), planned: size(stats.plannedBytes), used: size(stats.allocatedBytes), process: size(stats.peakResidentBytes), required: size(stats.requiredBytes), own: num(stats.ownSeconds) ? duration(stats.ownSeconds) : '–'};
  });
}

function ranks(rows, total) {
  const columns = ['Rank', 'Host', 'Slot', {text: 'Arena planned', num: true}, {text: 'Arena used', num: true}, {text: 'Process planned', num: true}, {text: 'Process used', num: true}, {text: 'Own time a step', num: true}, 'Speed'];
  return [table(columns, rows.map(({placement, straggler, planned, used, process, required, own}) => [whole(placement.rank), h('a', {href: '#/cluster'}, short(placement.worker)), whole(placement.slot), planned, used, required, process, own,
    straggler ? h('span', {class: 'wait'}, h('strong', {}, `▲ Slow: ${num(straggler.ratio).toFixed(2)}× the median`), h('span', {class: 'muted'}, ` since ${clock(straggler.since)}`)) : h('span', {class: 'muted'}, 'as the others')]), 'It holds no slots now.'),
  total > rows.length && h('p', {class: 'muted small'}, `${whole(rows.length)} of ${whole(total)} ranks: the slow ones and the first. JobService/GetJob has all.`)];
}

function events(job) {
  const list = [...(job.events || [])].reverse();
  return [table(['Time', 'State', 'What happened', {text: 'Attempt', num: true}, {text: 'Ranks', num: true}], list.map((one) => [h('span', {class: 'nowrap'}, clock(one.time)), stateBadge(one.state), h('span', {class: 'break'}, one.detail || tidy(one.reason)), num(one.generation) || '', num(one.ranks) || ''])),
    num(job.eventsLeftOut) > 0 && h('p', {class: 'muted small', style: {padding: '8px 16px'}}, `${whole(job.eventsLeftOut)} events between the first and the newest ones are left out.`)];
}

function facts(job) {
  const spec = job.spec || {};
  const family = Object.keys(spec.model || {}).find((key) => key !== 'heads' && key !== 'headWeight') || '';
  const line = (name, value) => value && [h('dt', {}, name), h('dd', {}, value)];
  const link = (name) => h('a', {href: `#/jobs/${short(name)}`}, name);
  return h('dl', {class: 'facts'}, line('Model', family), line('Ranks', `${whole(spec.resources?.ranks)} on ${tidy(spec.resources?.device).toUpperCase()}${spec.resources?.minRanks ? `, elastic from ${spec.resources.minRanks}` : ''}`), line('Precision', tidy(String(spec.train?.precision || '').replace('PRECISION_', ''))),
    line('ZeRO stage', String(num(spec.train?.zero?.stage))), line('Batch', spec.train?.batch && `${whole(spec.train.batch.global)} (${whole(spec.train.batch.micro)} a micro-step)`), line('Queue', spec.scheduling?.queue), line('Priority', String(num(spec.scheduling?.priority))), line('Project', job.project),
    line('Created', clock(job.createTime)), line('Forked from', job.forkedFrom && h('span', {}, link(job.forkedFrom.job), ` at step ${whole(job.forkedFrom.step)}`)), line('Array', job.array && `${job.array.name}, ${num(job.array.index) + 1} of ${job.array.size}`),
    line('Chosen', (job.choices || []).length > 0 && h('div', {}, job.choices.map((one) => h('div', {class: 'small'}, h('code', {}, `${one.field}: ${one.value}`), one.reason && h('span', {class: 'muted'}, ` ${one.reason}`))))));
}

export function jobRoom(root, context) {
  const {life, args: [id, tab = ''], me} = context;
  const name = `jobs/${id}`;
  const head = h('div', {});
  const content = h('div', {class: 'stack'});
  fill(root, head, h('nav', {class: 'tabs', 'aria-label': 'Parts of the job'}, TABS.map(([key, text]) => h('a', {href: `#/jobs/${id}${key ? '/' + key : ''}`, 'aria-current': key === tab ? 'page' : null}, text))), content);
  let job = null;
  let checkpoints = [];
  let state = '';
  const hooks = [];

  function showHead() {
    context.title(`${job.spec?.name} (${stateWord(job.state).toLowerCase()})`);
    if (state && state !== job.state) announce(`${job.name} is ${stateWord(job.state).toLowerCase()}`);
    state = job.state;
    const labels = Object.entries(job.labels || {});
    fillOnce(head, JSON.stringify([job.state, job.labels, job.etag, job.spec?.name]), () => [h('div', {class: 'head'}, h('div', {}, h('h1', {class: 'break'}, job.spec?.name), h('div', {class: 'row small'}, h('span', {class: 'muted'}, job.name), labels.length > 0 && h('span', {class: 'tags'}, labels.map(([key, value]) => h('span', {class: 'tag'}, value ? `${key}=${value}` : key))))),
      stateBadge(job.state, 'large'), h('div', {class: 'row push'}, actionButtons(job, refresh)))]);
  }
  const draw = () => { if (!job || life.over) return; showHead(); for (const hook of hooks) hook(job, checkpoints); };
  async function refresh() {
    try {
      job = await call('JobService/GetJob', {name});
    } catch (problem) {
      if (!job && problem.code !== 14) fill(content, h('p', {class: 'error', role: 'alert'}, problem.message));
      throw problem;
    }
    draw();
  }
  const readCheckpoints = async () => { checkpoints = await all('CheckpointService/ListCheckpoints', {job: name}, 'checkpoints'); draw(); };

  if (tab === 'logs') logsTab(content, {life, name, hooks});
  else if (tab === 'spec') specTab(content, hooks);
  else if (tab === 'checkpoints') checkpointsTab(content, hooks, () => readCheckpoints());
  else overview(content, {life, name, me, hooks, draw, seen: (progress, heard) => { if (job) { Object.assign(job, heard, {progress}); draw(); } }});
  life.poll(4000, refresh);
  life.poll(6000, readCheckpoints);
}

// Fields that a stream's message leaves out are those that have gone: an empty list, a default.
const HEARD = ['state', 'reason', 'reasonDetail', 'generation', 'failures', 'attempts', 'firstFailure', 'latestCheckpoint', 'nextAttemptTime', 'placements', 'productiveSeconds', 'queuePosition', 'stragglers', 'endTime', 'firstStepTime'];

function overview(content, {life, name, me, hooks, seen}) {
  const part = (title) => { const el = h('div', {class: 'body'}); return {el, box: h('section', {class: 'card', 'aria-label': title}, h('div', {class: 'title'}, h('h2', {}, title)), el)}; };
  const curves = new Curves(name);
  const chart = curvesCard(life, curves);
  const why = h('div', {class: 'stack', style: {gap: '10px'}});
  const top = h('div', {});
  const road = h('div', {});
  const [line, split, used, about] = ['Time line', 'Where a step’s time goes', 'Memory', 'About'].map(part);
  const rankBox = h('div', {});
  const eventBox = h('div', {});
  let plan = null;
  fill(content, why, h('section', {class: 'card', 'aria-label': 'Progress'}, h('div', {class: 'body', style: {'padding-top': '16px'}}, top, road)), chart.el, line.box, h('div', {class: 'grid'}, split.box, used.box), h('div', {class: 'grid'}, card('Ranks', rankBox), about.box), card('Events', eventBox));
  hooks.push((job, checkpoints) => {
    if (curves.hear(job.progress)) chart.draw();
    fillOnce(why, JSON.stringify([job.state, job.reasonDetail, job.queuePosition, job.firstFailure, job.progress?.checkpointProblem]), () => whyBox(job));
    fill(top, kpis(job));
    fillOnce(road, JSON.stringify([job.state, Math.floor((600 * num(job.progress?.step)) / Math.max(1, stepsOf(job))), stepsOf(job), checkpoints]), () => stepRoad(job, checkpoints));
    fillOnce(line.el, JSON.stringify([job.events, checkpoints, ended(job.state) ? 0 : Math.floor(now() / 5)]), () => [timeRoad(job, checkpoints), roadLegend(job)]);
    fill(split.el, stepSplit(job));
    fillOnce(used.el, JSON.stringify([job.progress?.plannedBytes, job.progress?.allocatedBytes, job.progress?.peakResidentBytes, plan?.per_rank]), () => memory(job, plan));
    const rows = rankRows(job);
    fillOnce(rankBox, JSON.stringify(rows), () => ranks(rows, (job.placements || []).length));
    fillOnce(eventBox, JSON.stringify(job.events), () => events(job));
    fillOnce(about.el, JSON.stringify([job.spec, job.choices]), () => facts(job));
    if (plan === null && me.plans) { plan = {}; planOf(job).then((found) => { plan = found; }).catch(() => {}); }
    over = ended(job.state);
  });
  let over = false;
  chart.draw();
  life.poll(10000, async () => { if (over && curves.done) return; const last = over; await curves.fetch(); curves.done = last; chart.draw(); });
  life.add(stream('JobService/WatchJob', {name}, {
    fields: `name,progress,${HEARD.join(',')}`,
    onMessage: (heard) => { const {progress, ...rest} = heard; seen(progress, {...Object.fromEntries(HEARD.map((key) => [key, undefined])), ...rest}); },
    onEnd: () => {},
  }));
}

async function planOf(job) {
  const {yaml} = await specCall('render', {spec: job.spec});
  return specCall('plan', {yaml});
}

function specTab(content, hooks) {
  const text = h('pre', {class: 'yaml', tabindex: 0});
  const submitted = h('pre', {class: 'yaml', tabindex: 0});
  const second = card('As it was submitted', submitted);
  second.hidden = true;
  fill(content, h('section', {class: 'card', 'aria-label': 'Spec'}, h('div', {class: 'title'}, h('h2', {}, 'Spec, with every default'), h('button', {class: 'push', type: 'button', onclick: () => navigator.clipboard?.writeText(text.textContent)}, 'Copy')), h('div', {style: {'margin-top': '8px'}}, text)), second);
  let shown = '';
  hooks.push(async (job) => {
    const key = JSON.stringify([job.spec, job.submittedSpec]);
    if (shown === key) return;
    shown = key;
    text.textContent = (await specCall('render', {spec: job.spec})).yaml;
    second.hidden = !job.submittedSpec;
    if (job.submittedSpec) submitted.textContent = (await specCall('render', {spec: job.submittedSpec})).yaml;
  });
}

function checkpointsTab(content, hooks, again) {
  const list = h('div', {});
  fill(content, card('Checkpoints', list));
  hooks.push((job, checkpoints) => fillOnce(list, JSON.stringify(checkpoints), () => table(['Name', {text: 'Step', num: true}, {text: 'Size', num: true}, 'Saved', 'Kept', ''],
    checkpoints.map((one) => [one.name, whole(one.step), bytes(one.bytes), clock(one.createTime), [one.pinned ? h('strong', {}, 'pinned') : 'by retention', one.damaged && h('span', {class: 'bad'}, ' ▲ damaged')],
      h('span', {class: 'row'}, h('button', {type: 'button', onclick: () => pin(one, again)}, one.pinned ? 'Unpin…' : 'Pin…'), h('button', {type: 'button', onclick: () => fork(job, one.name)}, 'Fork…'))]), 'None is kept yet.')));
}
