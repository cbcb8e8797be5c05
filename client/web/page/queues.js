// Queues: who may have how much, and who has it.
import {h, fill, fillOnce, card, num, whole, short, table, tidy, empty} from './ui.js';
import {all} from './api.js';

const WORDS = {DEVICE_KIND_CPU: 'CPU', DEVICE_KIND_CUDA: 'GPU'};

function shareBar(used, guaranteed, limit, most) {
  const part = (x) => `${Math.min(100, (100 * x) / most).toFixed(2)}%`;
  const borrowed = Math.max(0, used - guaranteed);
  const words = `${used} slots used, ${guaranteed} guaranteed, ${limit === undefined ? 'no limit' : `limit ${limit}`}`;
  return h('div', {class: 'share', role: 'img', 'aria-label': words, title: words},
    guaranteed > 0 && borrowed > 0 && h('i', {class: 'borrowed', style: {width: part(used)}}), h('i', {style: {width: part(guaranteed > 0 ? Math.min(used, guaranteed) : used)}}),
    guaranteed > 0 && h('b', {style: {left: part(guaranteed)}}));
}

function rowsOf(queue, most) {
  const kinds = [...new Set([...(queue.quotas || []), ...(queue.usage || [])].map((one) => one.device))];
  return (kinds.length ? kinds : ['DEVICE_KIND_CPU']).map((kind, i) => {
    const quota = (queue.quotas || []).find((one) => one.device === kind) || {};
    const usage = (queue.usage || []).find((one) => one.device === kind) || {};
    const [used, guaranteed] = [num(usage.usedSlots), num(quota.guaranteed)];
    return [i === 0 ? h('span', {}, h('strong', {}, short(queue.name)), queue.description && h('div', {class: 'muted small break'}, queue.description)) : '',
      WORDS[kind] || tidy(kind), h('div', {style: {'min-width': '160px'}}, shareBar(used, guaranteed, quota.limit, most)),
      whole(used), guaranteed ? whole(guaranteed) : '–', guaranteed ? whole(Math.max(0, used - guaranteed)) : '–', quota.limit === undefined ? 'none' : whole(quota.limit),
      whole(usage.runningJobs), num(usage.waitingJobs) ? h('a', {href: `#/jobs?queue=${encodeURIComponent(short(queue.name))}&show=waiting`}, whole(usage.waitingJobs)) : '0', num(queue.weight ?? 1)];
  });
}

export function queuesRoom(root, {life}) {
  const list = h('div', {});
  fill(root, h('div', {class: 'head'}, h('h1', {}, 'Queues'), h('p', {class: 'sub'}, 'Shares of the cluster. What a queue uses beyond its guarantee is borrowed: the owner can have it back.')), list);
  life.poll(3000, async () => {
    const queues = await all('QueueService/ListQueues', {}, 'queues');
    const most = Math.max(1, ...queues.flatMap((queue) => [...(queue.usage || []).map((one) => num(one.usedSlots)), ...(queue.quotas || []).flatMap((one) => [num(one.guaranteed), num(one.limit)])]));
    fillOnce(list, JSON.stringify(queues), () => h('section', {class: 'card'}, queues.length === 0 ? empty('There are no queues that you may see.') : table(
      ['Queue', 'Kind', 'Use', {text: 'Used', num: true}, {text: 'Guaranteed', num: true}, {text: 'Borrowed', num: true}, {text: 'Limit', num: true}, {text: 'Running', num: true}, {text: 'Waiting', num: true}, {text: 'Weight', num: true}],
      queues.flatMap((queue) => rowsOf(queue, most)))));
  });
}
