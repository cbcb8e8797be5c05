// What can be done to a job, with the visitor's own rights. Each asks first, and shows what the
// coordinator says.
import {h, ask, toast, ended, num, short} from './ui.js';
import {call} from './api.js';

const done = async (text, promise, again) => { const job = await promise; toast(text(job)); again(); };

function cancel(job, again) {
  ask({title: `Cancel ${job.name}`, text: `${job.spec?.name}: its ranks end now. Checkpoints stay, and it can be resumed from the newest.`, action: 'Cancel the job', danger: true,
    run: () => done(() => `${job.name} is being cancelled.`, call('JobService/CancelJob', {name: job.name}), again)});
}

function suspend(job, again) {
  ask({title: `Suspend ${job.name}`, text: 'Its ranks save a checkpoint and leave. It waits until it is resumed.', action: 'Suspend',
    run: () => done(() => `${job.name} is being suspended.`, call('JobService/SuspendJob', {name: job.name}), again)});
}

function resume(job, again) {
  const over = ended(job.state);
  ask({title: `Resume ${job.name}`, text: over ? 'It is queued again from its newest checkpoint, with a fresh budget of failures.' : 'It is queued again as it is.', action: 'Resume',
    fields: over ? [{name: 'steps', label: 'Steps in all', type: 'number', value: job.spec?.train?.steps, help: 'More than it has done; a job that has succeeded needs more'}] : [],
    run: ({steps}) => done(() => `${job.name} is queued.`, call('JobService/ResumeJob', {name: job.name, ...(steps && num(steps) !== num(job.spec?.train?.steps) ? {newSteps: steps} : {})}), again)});
}

const labelText = (labels) => Object.entries(labels || {}).map(([key, value]) => `${key}=${value}`).join('\n');
const parseLabels = (text) => Object.fromEntries(text.split('\n').map((one) => one.trim()).filter(Boolean).map((one) => { const [key, ...value] = one.split('='); return [key.trim(), value.join('=').trim()]; }));

function update(job, again) {
  const scheduling = job.spec?.scheduling || {};
  ask({title: `Change ${job.name}`, text: 'What is changed counts from the next scheduling decision on.', action: 'Change',
    fields: [{name: 'priority', label: 'Priority', type: 'number', value: num(scheduling.priority)}, {name: 'queue', label: 'Queue', value: scheduling.queue || 'default', required: true},
      {name: 'labels', label: 'Labels, one KEY=VALUE a line', lines: 3, value: labelText(job.labels)}],
    run: (values) => {
      const paths = [];
      const spec = {scheduling: {}};
      const changed = {name: job.name, etag: job.etag, spec};
      if (num(values.priority) !== num(scheduling.priority)) { paths.push('spec.scheduling.priority'); spec.scheduling.priority = num(values.priority); }
      if (values.queue !== (scheduling.queue || 'default')) { paths.push('spec.scheduling.queue'); spec.scheduling.queue = values.queue; }
      if (values.labels.trim() !== labelText(job.labels)) { paths.push('labels'); changed.labels = parseLabels(values.labels); }
      if (!paths.length) throw new Error('Nothing is changed.');
      return done(() => `${job.name} is changed.`, call('JobService/UpdateJob', {job: changed, updateMask: paths.join(',')}), again);
    }});
}

export function fork(job, checkpoint) {
  ask({title: `Fork ${job.name}`, text: `A new job that begins with ${checkpoint || 'its newest checkpoint'}.`, action: 'Fork',
    fields: [{name: 'name', label: 'Name', value: `${job.spec?.name || 'job'}-fork`}, {name: 'overrides', label: 'Fields to change, one a line', lines: 4, placeholder: 'train.optimizer.lr=1e-4\ntrain.steps=20000'}],
    run: async ({name, overrides}) => {
      const list = overrides.split('\n').map((one) => one.trim()).filter(Boolean).map((one) => { const [path, ...value] = one.split('='); return {path: path.trim(), value: value.join('=').trim()}; });
      if (name) list.push({path: 'name', value: name});
      const made = await call('JobService/ForkJob', {source: checkpoint || job.name, overrides: list});
      toast(`${made.name} is queued.`);
      location.hash = `#/jobs/${short(made.name)}`;
    }});
}

export function pin(checkpoint, again) {
  const to = !checkpoint.pinned;
  ask({title: `${to ? 'Pin' : 'Unpin'} ${checkpoint.name}`, text: to ? 'It is kept until it is unpinned, whatever retention says.' : 'Retention may delete it again.', action: to ? 'Pin' : 'Unpin',
    run: () => done(() => `${checkpoint.name} is ${to ? 'pinned' : 'not pinned any more'}.`, call('CheckpointService/PinCheckpoint', {name: checkpoint.name, pinned: to}), again)});
}

export function actionButtons(job, again) {
  const over = ended(job.state);
  const suspended = ['JOB_STATE_SUSPENDED', 'JOB_STATE_SUSPENDING'].includes(job.state);
  const button = (text, run, quiet) => h('button', {type: 'button', class: quiet ? 'quiet' : '', onclick: () => run(job, again)}, text);
  return [(over || suspended) && button('Resume…', resume), !over && !suspended && button('Suspend…', suspend), !over && button('Change…', update),
    h('button', {type: 'button', onclick: () => fork(job)}, 'Fork…'), h('a', {class: 'button', href: `#/compare?jobs=${short(job.name)}`}, 'Compare'), !over && button('Cancel…', cancel)];
}
