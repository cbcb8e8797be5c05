// A job's curves: what the coordinator keeps, and after that what its progress says as it comes.
import {num} from './ui.js';
import {call, ApiError} from './api.js';

// What is drawn, and of which curves: NAME, NAME/HEAD, and of further validation sets NAME@SET and NAME@SET/HEAD.
export const PLOTS = [
  {title: 'Loss', unit: 'nats', curves: ['train_loss', 'validation_loss']},
  {title: 'Validation accuracy', curves: ['validation_accuracy'], linear: true, percent: true},
  {title: 'Learning rate', curves: ['lr'], linear: true},
  {title: 'Gradient norm', curves: ['grad_norm']},
  {title: 'Throughput', unit: 'tokens/s', curves: ['tokens_per_second'], linear: true},
  {title: 'Model FLOPs utilisation', curves: ['mfu'], linear: true, percent: true},
  {title: 'Time of a step', unit: 's', curves: ['step_seconds']},
  {title: 'Loss scale', curves: ['loss_scale']},
];
const POINTS = 2000;
const MOST_LIVE = 20000;

const WORDS = {train_loss: 'training', validation_loss: 'validation', validation_accuracy: 'accuracy', lr: 'learning rate', grad_norm: 'before clipping',
  tokens_per_second: 'all ranks', mfu: 'of one rank', step_seconds: 'last step', loss_scale: 'scale'};
export const wordsOf = (name) => {
  const [whole, head] = name.split('/');
  const [kind, set] = whole.split('@');
  return [WORDS[kind] || kind, set, head].filter(Boolean).join(', ');
};
export const isOf = (plot, name) => plot.curves.includes(name.split(/[@/]/)[0]);

const list = (values) => (values || []).map((x) => Number(x));

export class Curves {
  byName = new Map();
  kept = true;  // the coordinator keeps them
  #stored = 0;  // the last step that came from there
  #lastStep = -1;

  constructor(name) { this.name = name; }

  async fetch() {
    if (!this.kept) return;
    let answer;
    try {
      answer = await call('JobService/GetJobCurves', {name: this.name, maxPoints: POINTS});
    } catch (error) {
      if (error instanceof ApiError && (error.code === 12 || (error.code === 5 && !error.reason))) this.kept = false;
      else throw error;
      return;
    }
    const live = this.byName;
    this.byName = new Map();
    const names = (answer.curves || []).map((curve) => curve.name);
    for (const curve of answer.curves || []) {
      // Of one head alone it is the same as the whole loss.
      const [kind, head] = curve.name.split('/');
      if (head && names.includes(kind) && names.filter((name) => name.startsWith(`${kind}/`)).length === 1) continue;
      const one = {steps: list(curve.steps), means: list(curve.means), mins: list(curve.mins), maxs: list(curve.maxs), seconds: list(curve.seconds)};
      this.byName.set(curve.name, one);
      this.#stored = Math.max(this.#stored, one.steps.at(-1) ?? 0);
    }
    // What has been heard since.
    for (const [name, old] of live) {
      const last = this.byName.get(name)?.steps.at(-1) ?? -1;
      for (let i = 0; i < old.steps.length; ++i) if (old.steps[i] > last && old.steps[i] > this.#stored) this.#push(name, old.steps[i], old.means[i], old.seconds[i]);
    }
  }

  #push(name, step, value, seconds) {
    if (!Number.isFinite(value)) return;
    let one = this.byName.get(name);
    if (!one) this.byName.set(name, one = {steps: [], means: [], mins: [], maxs: [], seconds: []});
    // An attempt goes on from a checkpoint: what was after it is not any more.
    while (one.steps.length && one.steps.at(-1) >= step) for (const each of Object.values(one)) each.pop();
    one.steps.push(step); one.means.push(value); one.mins.push(value); one.maxs.push(value); one.seconds.push(seconds);
    if (one.steps.length > MOST_LIVE) for (const each of Object.values(one)) each.splice(0, MOST_LIVE / 4);
  }

  #hearValidation(set, loss, heads, step, seconds) {
    this.#push(`validation_loss${set}`, step, loss, seconds);
    for (const head of heads) {
      if (heads.length > 1) this.#push(`validation_loss${set}/${head.name}`, step, head.loss ?? NaN, seconds);
      this.#push(`validation_accuracy${set}/${head.name}`, step, head.accuracy ?? NaN, seconds);
    }
  }

  // True: something is new.
  hear(progress) {
    const step = num(progress?.step);
    if (!progress || step <= 0 || step === this.#lastStep || !progress.time) return false;
    this.#lastStep = step;
    const seconds = Date.parse(progress.time) / 1000;
    const put = (name, value) => { if (value !== undefined) this.#push(name, step, Number(value), seconds); };
    put('train_loss', progress.trainLoss);
    put('lr', progress.lr);
    put('grad_norm', progress.gradNorm);
    put('tokens_per_second', progress.tokensPerSecond);
    put('mfu', progress.mfu);
    put('step_seconds', progress.stepSeconds);
    put('loss_scale', progress.lossScale);
    for (const head of progress.trainHeads || []) put(`train_loss/${head.name}`, head.loss);
    const validated = num(progress.validationStep);
    if (validated > 0 && this.byName.get('validation_loss')?.steps.at(-1) !== validated) {
      this.#hearValidation('', Number(progress.validationLoss), progress.validationHeads || [], validated, seconds);
      for (const set of progress.validationSets || []) this.#hearValidation(`@${set.name}`, Number(set.loss ?? NaN), set.heads || [], validated, seconds);
    }
    return true;
  }
}
