// What follows from a job's fields.
import {num, at, now, duration, ended} from './ui.js';

// Seconds of a step, over this attempt.
export function stepTime(job) {
  const progress = job.progress || {};
  const steps = num(progress.step) - num(progress.startStep) - 1;
  const seconds = at(progress.time) - at(progress.firstStepTime);
  if (steps > 0 && seconds > 0) return seconds / steps;
  return num(progress.stepSeconds) || NaN;
}

// How many steps there will be. A script says so itself, or not: then 0.
export const stepsOf = (job) => num(job.spec?.train?.steps) || num(job.progress?.totalSteps);

// Time left, as text; null: not known.
export function etaOf(job) {
  if (job.state !== 'JOB_STATE_RUNNING') return null;
  if (num(job.progress?.remainingSeconds) > 0) return duration(num(job.progress.remainingSeconds));
  const left = stepsOf(job) - num(job.progress?.step);
  const each = stepTime(job);
  return left >= 0 && Number.isFinite(each) ? duration(left * each) : null;
}

// The part of the time since the first step that went into steps that count.
export function goodput(job) {
  const from = at(job.firstStepTime);
  if (!Number.isFinite(from)) return NaN;
  const to = ended(job.state) ? at(job.endTime) : now();
  return Math.min(1, num(job.productiveSeconds) / Math.max(1e-9, to - from));
}

// [path, value] of every field of a spec: "train.optimizer.lr".
export function flat(value, path = '', found = []) {
  if (Array.isArray(value)) {
    value.forEach((one, i) => flat(one, `${path}[${i}]`, found));
  } else if (value !== null && typeof value === 'object') {
    for (const [key, one] of Object.entries(value)) flat(one, path ? `${path}.${snake(key)}` : snake(key), found);
  } else {
    found.push([path, specWord(value)]);
  }
  return found;
}
const snake = (key) => key.replace(/[A-Z]/g, (one) => '_' + one.toLowerCase());
// PRECISION_BF16 -> bf16
const PREFIXES = /^(PRECISION|TYPE|STATE_DTYPE|MASTER_DTYPE|GRAD_REDUCE|GRAD_DTYPE|ON_NONFINITE|OFFLOAD_TARGET|DETERMINISM|MEMORY_USE|RECOMPUTE|DEVICE_KIND|BASE_QUANTIZATION)_/;
const specWord = (value) => (typeof value === 'string' && /^[A-Z][A-Z0-9_]+$/.test(value) ? value.replace(PREFIXES, '').toLowerCase() : String(value));
