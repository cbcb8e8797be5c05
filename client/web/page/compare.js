// Several jobs in one plot, and what differs in their specs.
import {h, fill, card, body, table, whole, decimal, short, stateBadge, jobLink, num, empty, percent} from './ui.js';
import {call} from './api.js';
import {Chart, Group, SERIES_COLORS} from './chart.js';
import {Curves, PLOTS} from './curves.js';
import {chartTools} from './job.js';
import {flat, etaOf, goodput} from './job_facts.js';

const MOST = 8;

function differences(jobs) {
  const specs = jobs.map((job) => new Map(flat(job.spec)));
  const paths = [...new Set(specs.flatMap((one) => [...one.keys()]))].sort();
  return paths.filter((path) => path !== 'name' && new Set(specs.map((one) => one.get(path))).size > 1).map((path) => [h('code', {}, path), ...specs.map((one) => one.get(path) ?? '–')]);
}

export function compareRoom(root, {life, query}) {
  const names = (query.get('jobs') || '').split(',').filter((one) => /^\d+$/.test(one)).slice(0, MOST);
  const input = h('input', {'aria-label': 'Job to add', placeholder: 'Job number', inputmode: 'numeric', pattern: '(jobs/)?[0-9]+', required: true});
  const go = (list) => { location.hash = `#/compare?jobs=${list.join(',')}`; };
  const add = h('form', {class: 'row push', onsubmit: (event) => { event.preventDefault(); go([...new Set([...names, short(input.value.trim())])]); }}, input, h('button', {type: 'submit'}, 'Add'));
  const content = h('div', {class: 'stack'});
  fill(root, h('div', {class: 'head'}, h('h1', {}, 'Compare'), h('p', {class: 'sub'}, `Up to ${MOST} jobs. Pick them here or in the list of jobs.`), add), content);
  if (!names.length) { fill(content, h('section', {class: 'card'}, empty('Add a job by its number.'))); return; }

  const group = new Group();
  const curves = names.map((one) => new Curves(`jobs/${one}`));
  const jobs = new Map();
  const charts = PLOTS.filter((plot) => plot.title !== 'Loss').map((plot) => ({plot, kind: plot.curves[0]}));
  charts.unshift({plot: {...PLOTS[0], title: 'Training loss'}, kind: 'train_loss'}, {plot: {...PLOTS[0], title: 'Validation loss'}, kind: 'validation_loss'});
  const grid = h('div', {class: 'grid'});
  for (const one of charts) {
    one.chart = new Chart(group, one.plot);
    one.box = h('div', {hidden: true}, h('h3', {}, one.plot.title), one.chart.el);
    grid.append(one.box);
    life.add(() => one.chart.end());
  }
  const facts = h('div', {});
  const differs = h('div', {});
  fill(content, card('Jobs', facts), h('section', {class: 'card', 'aria-label': 'Curves'}, h('div', {class: 'title'}, h('h2', {}, 'Curves'), h('span', {class: 'push'}, chartTools(group))), body(grid)), card('What differs in their specs', differs));

  function draw() {
    const shown = names.map((one) => jobs.get(one)).filter(Boolean);
    for (const one of charts) {
      const series = curves.map((each, i) => ({each, i})).filter(({each}) => each.byName.has(one.kind)).map(({each, i}) => ({name: `${jobs.get(names[i])?.spec?.name || ''} ${names[i]}`, color: SERIES_COLORS[i], ...each.byName.get(one.kind)}));
      one.box.hidden = series.length === 0;
      one.chart.start = Math.min(...series.map((each) => each.seconds[0] ?? Infinity));
      one.chart.set(series);
    }
    fill(facts, table(['', 'Job', 'State', {text: 'Step', num: true}, {text: 'Training loss', num: true}, {text: 'Validation loss', num: true}, {text: 'Goodput', num: true}, {text: 'Time left', num: true}, ''], shown.map((job) => {
      const i = names.indexOf(short(job.name));
      return [h('span', {class: 'key', 'aria-hidden': 'true'}, h('i', {style: {background: `var(${SERIES_COLORS[i]})`}})), h('a', {href: jobLink(job.name)}, `${job.spec?.name} (${job.name})`), stateBadge(job.state), whole(job.progress?.step), decimal(job.progress?.trainLoss),
        num(job.progress?.validationStep) ? decimal(job.progress.validationLoss) : '–', percent(goodput(job)), etaOf(job) ?? '–', h('button', {class: 'quiet', type: 'button', 'aria-label': `Leave out ${job.name}`, onclick: () => go(names.filter((one) => one !== names[i]))}, 'Leave out')];
    })));
    const rows = differences(shown);
    fill(differs, shown.length < 2 ? empty('Add a second job.') : table(['Field', ...shown.map((job) => `${job.spec?.name} (${short(job.name)})`)], rows, 'Nothing but their names.'));
  }

  life.poll(4000, async () => {
    await Promise.all(names.map(async (one, i) => {
      const job = await call('JobService/GetJob', {name: `jobs/${one}`}).catch((problem) => { if (problem.code === 14) throw problem; return null; });
      if (!job) return;
      jobs.set(one, job);
      const over = /SUCCEEDED|FAILED|CANCELLED/.test(job.state);
      if (!curves[i].done) { await curves[i].fetch(); curves[i].done = over; }
      curves[i].hear(job.progress);
    }));
    draw();
  });
}
