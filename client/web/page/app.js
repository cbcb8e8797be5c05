// The page's frame: rooms, login, and what is said about the connection.
import {h, fill, announce} from './ui.js';
import {link, session, logout, Life} from './api.js';
import {loginRoom} from './login.js';
import {jobsRoom} from './jobs.js';
import {jobRoom} from './job.js';
import {compareRoom} from './compare.js';
import {clusterRoom} from './cluster.js';
import {queuesRoom} from './queues.js';
import {planRoom} from './plan.js';

const ROOMS = [['jobs', 'Jobs'], ['cluster', 'Cluster'], ['queues', 'Queues'], ['plan', 'Plan']];
const ROUTES = [
  [/^\/jobs\/([^/]+)(?:\/(\w+))?$/, jobRoom, 'jobs'],
  [/^\/jobs$/, jobsRoom, 'jobs'],
  [/^\/compare$/, compareRoom, 'jobs'],
  [/^\/cluster$/, clusterRoom, 'cluster'],
  [/^\/queues$/, queuesRoom, 'queues'],
  [/^\/plan$/, planRoom, 'plan'],
];
const byId = (id) => document.getElementById(id);

let life = new Life();
let me = {};
let shownPath = '';

export const principal = () => me.principal;

function showRoom() {
  const [path, query = ''] = (location.hash.slice(1) || '/jobs').split('?');
  const found = ROUTES.map(([pattern, room, tab]) => ({match: pattern.exec(path), room, tab})).find((one) => one.match);
  if (!found) { location.replace('#/jobs'); return; }
  life.end();
  life = new Life();
  const main = byId('main');
  main.replaceChildren();
  fill(byId('rooms'), ROOMS.map(([name, text]) => h('a', {href: `#/${name}`, 'aria-current': name === found.tab ? 'page' : null}, text)));
  const context = {life, me, query: new URLSearchParams(query), args: found.match.slice(1).map((one) => one && decodeURIComponent(one)),
    title(text) { document.title = text ? `${text} · Milepost` : 'Milepost'; }};
  context.title(ROOMS.find(([name]) => name === found.tab)[1]);
  found.room(main, context);
  if (shownPath && shownPath !== path) { main.focus({preventScroll: true}); window.scrollTo(0, 0); announce(document.title); }
  shownPath = path;
}

function showLogin(why) {
  life.end();
  life = new Life();
  byId('rooms').replaceChildren();
  byId('logout').hidden = true;
  byId('who').textContent = '';
  document.title = 'Log in · Milepost';
  loginRoom(byId('main'), {why, done: begin});
}

async function begin() {
  try {
    me = await session();
  } catch {
    byId('main').replaceChildren();
    setTimeout(begin, 1500);
    return;
  }
  if (me.warning) showBanner(`The coordinator says: ${me.warning}`, false);
  if (!me.principal) return showLogin('');
  byId('who').textContent = me.principal.user || (me.principal.name === 'local' ? 'no login needed' : me.principal.name);
  byId('who').title = (me.principal.grants || []).map((one) => `${one.role.replace('ROLE_', '').toLowerCase()} of ${one.project}`).join(', ');
  byId('logout').hidden = !me.loginNeeded;
  showRoom();
}

function showBanner(text, bad = true) {
  const banner = byId('banner');
  banner.hidden = !text;
  banner.className = bad ? 'banner lost' : 'banner';
  banner.textContent = text;
}

function showLink(text, bad) {
  const state = byId('link-state');
  state.textContent = text;
  state.className = bad ? 'link-state lost' : 'link-state';
}

link.addEventListener('lost', (event) => {
  showBanner(`${event.detail} This page tries again by itself.`);
  showLink('Not connected', true);
});
link.addEventListener('back', () => { showBanner(me.warning ? `The coordinator says: ${me.warning}` : '', false); showLink('Live', false); announce('Connected again.'); });
link.addEventListener('login', () => { if (me.principal) { me = {}; showLogin('You are not logged in any more: the login ran out or was revoked.'); } });

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
  const dark = theme === 'dark' || (!theme && matchMedia('(prefers-color-scheme: dark)').matches);
  byId('theme').textContent = dark ? 'Light' : 'Dark';
  byId('theme').setAttribute('aria-label', dark ? 'Use light colours' : 'Use dark colours');
  byId('theme').dataset.next = dark ? 'light' : 'dark';
  window.dispatchEvent(new Event('resize'));
}
byId('theme').addEventListener('click', () => { const next = byId('theme').dataset.next; localStorage.setItem('theme', next); setTheme(next); showRoomAgain(); });
const showRoomAgain = () => { if (me.principal) showRoom(); };
byId('logout').addEventListener('click', async () => { await logout().catch(() => {}); me = {}; showLogin('You are logged out.'); });
window.addEventListener('hashchange', showRoomAgain);
setTheme(localStorage.getItem('theme') || '');
showLink('Live', false);
begin();
