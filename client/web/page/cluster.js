// Hosts, their slots, and what runs where.
import {h, fill, fillOnce, num, whole, bytes, short, stateBadge, stateWord, jobLink, clock, at, now, percent, ask, toast, empty} from './ui.js';
import {all, call} from './api.js';

function slotBox(worker, slot) {
  const index = num(slot.index);
  const facts = (worker.devices || []).find((one) => num(one.slot) === index);
  const rank = (worker.assignments || []).find((one) => num(one.slot) === index);
  const what = slot.model || (slot.device === 'DEVICE_KIND_CUDA' ? 'GPU' : `${num(slot.cores)} core${num(slot.cores) === 1 ? '' : 's'}`);
  if (facts?.problem) return h('span', {class: 'slot out', title: `Slot ${index}, ${what}: ${facts.problem}`}, `${index} out of use`);
  if (!rank) return h('span', {class: 'slot', title: `Slot ${index}, ${what}: free`}, `${index} free`);
  return h('a', {class: 'slot', href: jobLink(rank.job), title: `Slot ${index}, ${what}: rank ${num(rank.rank)} of ${rank.job}`}, `${index} · job ${short(rank.job)} r${num(rank.rank)}`);
}

function gpuLines(worker) {
  return (worker.devices || []).map((one) => {
    const slot = (worker.slots || []).find((each) => num(each.index) === num(one.slot));
    const parts = [one.utilizationPercent !== undefined && `${one.utilizationPercent}% busy`, one.memoryUsedBytes !== undefined && `${bytes(one.memoryUsedBytes)}${num(slot?.memoryBytes) ? ` of ${bytes(slot.memoryBytes)}` : ''}`,
      one.temperatureCelsius !== undefined && `${one.temperatureCelsius} °C`, one.powerWatts !== undefined && `${Math.round(one.powerWatts)} W`,
      (one.throttling || []).length && `slowed by ${one.throttling.join(', ')}`, one.lastXid && `Xid ${one.lastXid}`].filter(Boolean);
    return h('div', {class: 'small break'}, h('strong', {}, `${num(one.slot)} `), slot?.model || 'GPU', ' ', h('span', {class: 'muted'}, parts.join(', ')), one.problem && h('div', {class: 'bad'}, one.problem));
  });
}

function notes(worker) {
  const {drain, exclusion} = worker;
  return [
    drain && h('p', {class: 'why small break'}, `Drained${drain.spot ? ' because the host goes away' : ''}: ${drain.reason || ''}. Since ${clock(drain.requestTime)}${at(drain.deadline) > now() ? `; jobs may go on until ${clock(drain.deadline)}` : ''}.`),
    exclusion && h('p', {class: 'why bad small break'}, `Gets no ranks: ${exclusion.reason || ''}. Next check ${clock(exclusion.nextCheckTime)}${exclusion.problem ? `; the last one found: ${exclusion.problem}` : ''}.`),
    worker.deviceNote && h('p', {class: 'muted small break'}, worker.deviceNote)];
}

function drain(worker, again) {
  ask({title: `Drain ${worker.name}`, text: 'It gets no new ranks. Its jobs save a checkpoint and go on elsewhere, at no cost to their budgets.', action: 'Drain', danger: true,
    fields: [{name: 'reason', label: 'Reason', required: true, help: 'Shown wherever the worker is'}, {name: 'minutes', label: 'Jobs may go on for (minutes)', type: 'number', value: '0'}],
    run: async ({reason, minutes}) => {
      const deadline = Number(minutes) > 0 ? {deadline: new Date(Date.now() + 60000 * Number(minutes)).toISOString()} : {};
      await call('WorkerService/DrainWorker', {name: worker.name, reason, ...deadline});
      toast(`${worker.name} is being drained.`);
      again();
    }});
}

function resume(worker, again) {
  ask({title: `Resume ${worker.name}`, text: 'Ends its drain and exclusion, and forgets failures of the host.', action: 'Resume',
    run: async () => { await call('WorkerService/ResumeWorker', {name: worker.name}); toast(`${worker.name} takes ranks again.`); again(); }});
}

function remove(worker, again) {
  ask({title: `Delete ${worker.name}`, text: 'Forgets the host, with its drain, its exclusion and its failures. Should it connect again it is a new one.', action: 'Delete', danger: true,
    run: async () => { await call('WorkerService/DeleteWorker', {name: worker.name}); toast(`${worker.name} is deleted.`); again(); }});
}

function hostCard(worker, again) {
  const slots = worker.slots || [];
  const used = new Set((worker.assignments || []).map((one) => num(one.slot))).size;
  const held = worker.drain || worker.exclusion;
  const labels = Object.entries(worker.labels || {});
  return h('section', {class: 'card', 'aria-label': worker.name},
    h('div', {class: 'title'}, h('h2', {class: 'break'}, short(worker.name)), stateBadge(worker.state), h('span', {class: 'push muted small'}, `${used} of ${slots.length} slots`)),
    h('div', {class: 'body stack', style: {gap: '10px'}},
      h('div', {class: 'slots'}, slots.map((slot) => slotBox(worker, slot))), gpuLines(worker), notes(worker),
      h('div', {class: 'row small muted'}, h('span', {class: 'break'}, [worker.host, worker.version && `version ${worker.version}`, worker.driver && `driver ${worker.driver}`].filter(Boolean).join(' · ')),
        labels.map(([key, value]) => h('span', {class: 'tag'}, `${key}=${value}`)),
        worker.state === 'WORKER_STATE_DOWN' ? h('button', {class: 'quiet push', type: 'button', onclick: () => remove(worker, again)}, 'Delete…') : null,
        held ? h('button', {class: 'push', type: 'button', onclick: () => resume(worker, again)}, 'Resume…') : h('button', {class: 'quiet push', type: 'button', onclick: () => drain(worker, again)}, 'Drain…'))));
}

export function clusterRoom(root, {life}) {
  const summary = h('p', {class: 'sub'});
  const hosts = h('div', {});
  fill(root, h('div', {class: 'head'}, h('h1', {}, 'Cluster'), summary), hosts);
  const again = life.poll(3000, async () => {
    const workers = await all('WorkerService/ListWorkers', {}, 'workers');
    const slots = workers.flatMap((one) => one.slots || []).length;
    const used = workers.reduce((sum, one) => sum + (one.assignments || []).length, 0);
    const states = new Map();
    for (const one of workers) states.set(one.state, (states.get(one.state) || 0) + 1);
    summary.textContent = `${workers.length} host${workers.length === 1 ? '' : 's'} (${[...states].map(([state, n]) => `${n} ${stateWord(state).toLowerCase()}`).join(', ') || 'none'}), ${whole(used)} of ${whole(slots)} slots in use${slots ? ` (${percent(used / slots)})` : ''}`;
    const key = JSON.stringify(workers, (name, value) => (name === 'leaseExpireTime' || (name === 'time') ? undefined : value));
    fillOnce(hosts, key, () => (workers.length === 0 ? h('section', {class: 'card'}, empty('No worker has connected yet: start milepost-worker.')) : h('div', {class: 'hosts'}, workers.map((one) => hostCard(one, again)))));
  });
}
