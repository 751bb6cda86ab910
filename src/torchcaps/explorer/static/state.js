// What the page shows. It lives in the address: a copy of it shows the same again.

const START = {
  tab: "pose", model: 0, ex: null, px: "", inv: 0, cls: null, uni: 0, d: "", ex2: null, walk: 0,
  map: "amount", right: 0, down: 0, c1: null, c2: null, deg: 0, size: 1, mx: 0, my: 0, sweep: "degrees",
};
const listeners = [];
let timer = 0;

export const state = { ...START };
export const about = { models: [] };

// What an activation is: the probability of a class, or of a capsule its length or a number of its own.
const WORDS = { probability: "probabilities", length: "lengths", activation: "activations" };
export const word = () => model().activation;
export const words = () => WORDS[word()];
export const Words = () => words()[0].toUpperCase() + words().slice(1);

export const longest = () => (word() === "length" ? "longest" : "largest");

// Names of capsules that stand for classes need a word before them; others have it in them.
export const called = (k) => `${model().labeled ? "class " : ""}${model().classes[k]}`;

export const model = () => about.models[state.model];

export const hasDecoder = () => Boolean(model().views.pose?.decoder);
export const examples = () => about.models[0].views.examples?.count ?? 0;

// Views of a model that have a tab; and, of two models, their comparison.
export const titles = (one) => Object.entries(one.views).filter(([, view]) => view.title).map(([name, view]) => [name, view.title]);
export function tabs() {
  const names = titles(model()).map(([name]) => name);
  return about.models.length > 1 && model().classes.length ? [...names, "compare"] : names;
}
export const offered = (tab) => tabs().includes(tab);

export function change(values) {
  const before = { ...state };
  Object.assign(state, values);
  clearTimeout(timer);
  timer = setTimeout(write, 200);
  for (const listener of listeners) listener(before);
}

export function onChange(listener) { listeners.push(listener); }

function write() {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) if (value !== START[name] && value !== null) parts.set(name, value);
  history.replaceState(null, "", `${location.pathname}${location.search}#${parts}`);
}

// Only what has the right form is taken from an address.
export function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const found = { ...START };
  for (const [name, start] of Object.entries(START)) {
    if (!parts.has(name)) continue;
    const text = parts.get(name);
    if (typeof start === "string") found[name] = text;
    else if (Number.isFinite(Number(text)) && text !== "") found[name] = Number(text);
  }
  found.model = about.models[found.model] ? found.model : 0;
  const classes = about.models[found.model].classes.length;
  for (const name of ["cls", "c1", "c2"]) if (!(Number.isInteger(found[name]) && found[name] >= 0 && found[name] < classes)) found[name] = null;
  for (const name of ["ex", "ex2"]) if (!(Number.isInteger(found[name]) && found[name] >= 0 && found[name] < examples())) found[name] = null;
  if (!["amount", "agreement", "share"].includes(found.map)) found.map = "amount";
  if (!["degrees", "scale", "right", "down"].includes(found.sweep)) found.sweep = "degrees";
  const between = (value, low, high) => Math.min(high, Math.max(low, value));
  const half = Math.floor(Math.max(about.models[0].width, about.models[0].height) / 2);
  for (const name of ["right", "down", "mx", "my"]) found[name] = between(found[name], -half, half);
  found.deg = between(found.deg, -180, 180);
  found.size = between(found.size, 0.25, 4);
  found.walk = between(found.walk, 0, 1);
  return found;
}

// "3:0.12 7:-0.05": how far each dimension is moved from where the input puts it.
export function offsets(dim) {
  const found = new Array(dim).fill(0);
  for (const part of state.d.split(" ")) {
    const [k, value] = part.split(":").map(Number);
    if (Number.isInteger(k) && k >= 0 && k < dim && Number.isFinite(value)) found[k] = Math.max(-2, Math.min(2, value));
  }
  return found;
}

export function offsetText(values) {
  return values.map((value, k) => [k, value]).filter(([, value]) => value !== 0).map(([k, value]) => `${k}:${+value.toFixed(3)}`).join(" ");
}

export const toAddress = (base64) => base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
export const fromAddress = (text) => text.replaceAll("-", "+").replaceAll("_", "/") + "=".repeat((4 - (text.length % 4)) % 4);
