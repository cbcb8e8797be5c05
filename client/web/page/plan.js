// What a spec needs, on which device, and whether the cluster would take it.
import {h, fill, card, body, table, num, bytes, count, percent, duration, short, toast, ask, whole} from './ui.js';
import {spec as specCall, call} from './api.js';
import {memoryClasses} from './job.js';

const DEVICES = [['', 'This server’s CPU'], ['a100', 'A100 80 GB'], ['b200', 'B200'], ['h100', 'H100'], ['h200', 'H200'], ['rtx4090', 'RTX 4090']];
const EXAMPLE = `name: my-job
model:
  gpt2: {layers: 12, width: 768, heads: 12, context: 1024, vocabulary: 50257}
data:
  train: /data/train.npy
train:
  steps: 10000
  precision: bf16
  batch: {global: 64, micro: auto}
  zero: {stage: auto}
resources:
  ranks: 8
checkpoint:
  every: 500
`;

export function planRoom(root, {life, me}) {
  const text = h('textarea', {rows: 22, spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', 'aria-label': 'Job spec as YAML', value: sessionStorage.getItem('plan') || EXAMPLE});
  const go = h('button', {class: 'main', type: 'button', onclick: run}, 'See what it needs');
  const result = h('div', {class: 'stack', 'aria-live': 'polite'});
  fill(root, h('div', {class: 'head'}, h('h1', {}, 'Plan'), h('p', {class: 'sub'}, 'Paste a job spec. Nothing runs until you submit it.')),
    h('div', {class: 'grid'}, h('section', {class: 'card', 'aria-label': 'Spec'}, h('div', {class: 'title'}, h('h2', {}, 'Spec'), h('span', {class: 'push muted small'}, 'Ctrl+Enter plans')), body(text, h('div', {class: 'row', style: {'margin-top': '12px'}}, go))), result));
  text.addEventListener('keydown', (event) => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) run(); });
  text.addEventListener('input', () => sessionStorage.setItem('plan', text.value));

  async function submit(spec) {
    ask({title: `Submit ${spec.name || 'the job'}`, text: 'It is queued, and starts when its turn has come and enough slots are free.', action: 'Submit', fields: [{name: 'project', label: 'Project', placeholder: 'default'}],
      run: async ({project}) => {
        const job = await call('JobService/SubmitJob', {spec, project});
        toast(`${job.name} is queued.`);
        location.hash = `#/jobs/${short(job.name)}`;
      }});
  }

  async function run() {
    go.disabled = true;
    const yaml = text.value;
    try {
      const {spec} = await specCall('parse', {yaml});
      const [cluster, ...plans] = await Promise.all([
        call('JobService/SubmitJob', {spec, validateOnly: true}).then((job) => ({job}), (problem) => ({problem})),
        ...(me.plans ? DEVICES.map(([device]) => specCall('plan', {yaml, device}).then((plan) => ({plan}), (problem) => ({problem}))) : [])]);
      if (life.over) return;
      fill(result, clusterCard(cluster, spec), devicesCard(plans), plans.find((one) => one.plan) && memoryCard(plans));
    } catch (problem) {
      if (!life.over) fill(result, h('section', {class: 'card'}, body(h('h2', {style: {margin: '6px 0 10px'}}, 'The spec is wrong'), h('p', {class: 'error', role: 'alert'}, problem.message))));
    }
    go.disabled = false;
  }

  function clusterCard({job, problem}, spec) {
    if (problem) return card('This cluster', body(h('p', {class: 'bad'}, h('strong', {}, '✕ Would be refused')), h('p', {class: 'error', role: 'alert', style: {'margin-top': '8px'}}, problem.message)));
    const choices = job.choices || [];
    return card('This cluster', body(h('div', {class: 'row'}, h('strong', {class: 'good'}, '✓ Would be accepted'), h('button', {class: 'push main', type: 'button', onclick: () => submit(spec)}, 'Submit…')),
      choices.length > 0 && h('div', {style: {margin: '10px -16px -16px'}}, table(['Chosen for you', 'Value', 'Why'], choices.map((one) => [h('code', {}, one.field), h('code', {}, one.value), h('span', {class: 'muted break'}, one.reason)])))));
  }

  function devicesCard(plans) {
    if (!plans.length) return null;
    return card('On a device', table(['Device', 'Fits', {text: 'Memory', num: true}, {text: 'Step', num: true}, {text: 'Tokens/s', num: true}, {text: 'MFU', num: true}], plans.map(({plan, problem}, i) => {
      const name = DEVICES[i][1];
      if (!plan) return [name, h('details', {class: 'small'}, h('summary', {class: 'bad'}, '✕ No'), h('span', {class: 'break', style: {'white-space': 'pre-wrap'}}, problem.message)), '–', '–', '–', '–'];
      const expected = plan.expected || {};
      return [name, plan.problem ? h('details', {class: 'small'}, h('summary', {class: 'bad'}, '✕ No'), h('span', {class: 'break', style: {'white-space': 'pre-wrap'}}, plan.problem)) : h('strong', {class: 'good'}, '✓ Yes'),
        bytes(plan.required_bytes), expected.seconds ? duration(expected.seconds) : '–', expected.tokens_per_second ? count(expected.tokens_per_second) : '–', percent(expected.mfu)];
    })), body(h('p', {class: 'muted small'}, 'Times are what the device’s profile lets expect, for all ranks of the spec together.')));
  }

  function memoryCard(plans) {
    const at = plans.findIndex((one) => one.plan && !one.plan.problem);
    const i = at >= 0 ? at : plans.findIndex((one) => one.plan);
    const {plan} = plans[i];
    return card(`Memory of a rank: ${DEVICES[i][1]}`, body(memoryClasses(plan.per_rank), h('p', {class: 'muted small', style: {'margin-top': '10px'}}, `${bytes(plan.required_bytes)} in all, with ${bytes(num(plan.beside_bytes))} beside the arena. ${whole(plan.parameters)} parameters, ZeRO stage ${plan.zero_stage}, micro-batch ${plan.micro_batch}, ${plan.precision}.`)));
  }
}
