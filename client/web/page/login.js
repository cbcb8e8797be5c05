// Asks for a token.
import {h, fill} from './ui.js';
import {login} from './api.js';

export function loginRoom(root, {why, done}) {
  const error = h('p', {class: 'error', role: 'alert', hidden: true});
  const input = h('input', {type: 'password', name: 'token', autocomplete: 'current-password', required: true, spellcheck: 'false'});
  const go = h('button', {class: 'main', type: 'submit'}, 'Log in');
  const form = h('form', {class: 'stack', onsubmit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    error.hidden = true;
    try {
      await login(input.value);
      input.value = '';
      done();
    } catch (problem) {
      error.textContent = problem.status === 401 ? 'The coordinator does not know this token, or it has expired or been revoked.' : problem.message;
      error.hidden = false;
      input.select();
    }
    go.disabled = false;
  }}, h('label', {class: 'field'}, 'Token', input), error, go);
  fill(root, h('div', {class: 'login'}, h('div', {class: 'card'}, h('div', {class: 'body'},
    h('h1', {}, 'Log in'), why && h('p', {class: 'muted'}, why),
    h('p', {class: 'muted small'}, 'With the token that an admin made for you: milepost auth token create. It stays on the server; this browser gets a cookie that ends with the session.'), form))));
  input.focus();
}
