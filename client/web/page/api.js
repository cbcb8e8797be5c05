// The coordinator's methods, through this server's JSON API.

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.message || `the server answers ${status}`);
    this.status = status;
    this.code = body?.code ?? 2;
    this.reason = (body?.details || []).find((one) => one.reason)?.reason || '';
  }
}

// Told of: 'lost' and 'back' (with the coordinator), 'login' (one is needed).
export const link = new EventTarget();
let lost = '';
export const isLost = () => lost !== '';

function setLost(why) {
  if (why === lost) return;
  const was = lost;
  lost = why;
  if (why) link.dispatchEvent(new CustomEvent('lost', {detail: why}));
  else if (was) link.dispatchEvent(new Event('back'));
}

async function fetchJson(path, options, signal) {
  let response;
  try {
    response = await fetch(path, {...options, signal, credentials: 'same-origin', cache: 'no-store'});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    setLost('This page’s server does not answer.');
    throw new ApiError(0, {code: 14, message: 'This page’s server does not answer.'});
  }
  const text = await response.text();
  let body = null;
  try { body = JSON.parse(text); } catch { /* not JSON: the status says it */ }
  if (response.ok) { setLost(''); return body ?? {}; }
  const error = new ApiError(response.status, body);
  if (error.code === 14) setLost(error.message);
  else setLost('');
  if (error.status === 401) link.dispatchEvent(new CustomEvent('login', {detail: error}));
  throw error;
}

const post = (path, body, signal) => fetchJson(path, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)}, signal);

// call('JobService/GetJob', {name: 'jobs/7'}); `fields`: those of the answer that are needed.
export function call(method, request = {}, {fields = '', signal} = {}) {
  const query = fields ? `?$fields=${encodeURIComponent(fields)}` : '';
  return post(`/api/v1/${method}${query}`, request, signal);
}
export const session = () => fetchJson('/api/v1/session', {});
export const login = (token) => post('/login', {token});
export const logout = () => post('/logout', {});
export const spec = (what, request, signal) => post(`/api/v1/spec:${what}`, request, signal);

// All pages of a list.
export async function all(method, request, items, options) {
  const found = [];
  let pageToken = '';
  do {
    const page = await call(method, {...request, pageSize: 1000, pageToken}, options);
    found.push(...(page[items] || []));
    pageToken = page.nextPageToken || '';
  } while (pageToken && found.length < 20000);
  return found;
}

// Server-sent events, asked for again whenever they break, and not while nobody looks.
// stop = stream('JobService/WatchJob', {name}, {fields, onMessage, onEnd})
export function stream(method, request, {fields = '', onOpen, onMessage, onEnd}) {
  const query = new URLSearchParams(request);
  if (fields) query.set('$fields', fields);
  let source = null;
  let timer = 0;
  let over = false;
  const close = () => { clearTimeout(timer); source?.close(); source = null; };
  const again = (after) => { close(); if (!over && !document.hidden) timer = setTimeout(open, after); };
  function open() {
    close();
    source = new EventSource(`/api/v1/${method}?${query}`);
    source.onopen = () => onOpen?.();
    source.onmessage = (event) => { setLost(''); onMessage(JSON.parse(event.data)); };
    source.addEventListener('end', (event) => {
      const status = JSON.parse(event.data);
      if (status.code === 14 || status.code === 1) { setLost('The coordinator is away.'); return again(1000); }
      close();
      if (status.code === 16) link.dispatchEvent(new CustomEvent('login', {detail: new ApiError(401, status)}));
      over = true;
      onEnd?.(status);
    });
    source.onerror = () => again(1500);
  }
  const seen = () => { if (document.hidden) close(); else if (!over && !source) open(); };
  document.addEventListener('visibilitychange', seen);
  open();
  return () => { over = true; close(); document.removeEventListener('visibilitychange', seen); };
}

// How long a view is there: what it starts ends with it.
export class Life {
  #ends = [];
  over = false;
  end() { this.over = true; for (const one of this.#ends.splice(0)) one(); }
  add(stop) { if (this.over) stop(); else this.#ends.push(stop); }
  on(target, name, listener, options) { target.addEventListener(name, listener, options); this.add(() => target.removeEventListener(name, listener, options)); }
  // Calls `task` now and then again so many ms after it has ended, while somebody looks.
  poll(ms, task) {
    let timer = 0;
    let busy = false;
    const run = async () => {
      clearTimeout(timer);
      if (busy || this.over || document.hidden) return;
      busy = true;
      try { await task(); } catch (error) { if (!(error instanceof ApiError)) console.error(error); }
      busy = false;
      if (!this.over) timer = setTimeout(run, isLost() ? 1500 : ms);
    };
    this.on(document, 'visibilitychange', run);
    this.on(link, 'back', run);
    this.add(() => clearTimeout(timer));
    run();
    return run;
  }
}
