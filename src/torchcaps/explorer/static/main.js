// The page: what the model makes of the picture, always; and one view into it at a time.

import { ask, latest, problem } from "./api.js";
import { picture, pictureText, restore, setUp } from "./input.js";
import { make, namesWide } from "./pictures.js";
import { about, change, longest, model, offered, onChange, readAddress, state, tabs, titles, word, words, Words } from "./state.js";
import * as compare from "./compare.js";

const $ = (id) => document.getElementById(id);
const TABS = {}; // by name: the script of a view
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;
let look = null, spoken = 0, seen = -1;

const send = latest("infer", (found, { moment }) => {
  look = found;
  bars();
  if (moment) measure(moment);
  view();
});

function refresh(moment = 0) {
  if (!picture.bytes) return;
  send({ model: state.model, image: pictureText(), classes: state.cls === null ? [] : [state.cls], uniform: uniform() }, { moment });
}

const uniform = () => Boolean(state.uni) && model().routed;

// From the movement of the pen to the bars on the screen, for whoever wants to know.
function measure(moment) {
  requestAnimationFrame(() => {
    if (performance.getEntriesByName("stroke-to-bars").length > 500) performance.clearMeasures("stroke-to-bars");
    performance.measure("stroke-to-bars", { start: moment });
  });
}

function bars() {
  const { classes, several, labeled } = model(), list = $("bars");
  if (!classes.length) { $("prediction").textContent = "This model tells no classes and has no capsules to look into."; return list.replaceChildren(); }
  namesWide(list, classes);
  const found = look.activation.map((_, k) => k).sort((a, b) => look.activation[b] - look.activation[a]).slice(0, several), [top] = found;
  while (list.children.length > classes.length) list.lastChild.remove();
  while (list.children.length < classes.length) list.append(bar(list.children.length));
  classes.forEach((name, k) => {
    const button = list.children[k].firstChild, [label, track, value] = button.children;
    label.textContent = label.title = name;
    track.firstChild.style.width = `${100 * Math.min(1, look.activation[k])}%`;
    value.textContent = look.activation[k].toFixed(3);
    button.setAttribute("aria-pressed", String(state.cls === k));
    button.setAttribute("aria-label", `${name}: ${look.activation[k].toFixed(3)}${k === top ? `, the ${longest()}` : ""}`);
    button.classList.toggle("longest", found.includes(k));
  });
  if (seen !== top) reveal(list, list.children[top]);
  seen = top;
  const what = several > 1 ? words() : word();
  clearTimeout(spoken); // a screen reader hears it when the pen rests
  spoken = setTimeout(() => { $("prediction").textContent = `${labeled ? "Prediction" : "Largest"}: ${both(found.map((k) => classes[k]))}, ${what} ${both(found.map((k) => look.activation[k].toFixed(2)))}`; }, 150);
}

const both = (texts) => texts.join(" and ");

// Of many classes, the longest is moved into the list's view; the page stays where it is.
function reveal(list, row) {
  if (list.scrollHeight <= list.clientHeight) return;
  const from = row.offsetTop - list.offsetTop;
  if (from < list.scrollTop || from + row.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = from - list.clientHeight / 2;
}

function bar(k) {
  const button = make("button", { type: "button", onclick: () => change({ cls: state.cls === k ? null : k, d: "" }) },
    make("span", { className: "name" }), make("span", { className: "track" }, make("span", { className: "fill" })), make("span", { className: "value" }));
  button.querySelector(".fill").style.display = "block";
  return make("li", {}, button);
}

function view() {
  for (const name of Object.keys(TABS)) {
    const selected = name === state.tab && offered(name);
    $(name).hidden = !selected;
    $(`tab-${name}`).setAttribute("aria-selected", String(selected));
    $(`tab-${name}`).tabIndex = selected ? 0 : -1;
  }
  if (look && offered(state.tab)) TABS[state.tab].update(look, state.cls ?? look.shown[0], uniform());
}

// A tab for every view that has a title; its script bears its name.
async function setUpTabs() {
  const names = new Map(about.models.flatMap(titles));
  for (const name of names.keys()) TABS[name] = await import(`./${name}.js`);
  if (about.models.length > 1) { TABS.compare = compare; names.set("compare", "Compare"); }
  for (const [name, title] of names) {
    const button = make("button", { role: "tab", id: `tab-${name}`, type: "button", onclick: () => change({ tab: name }) }, title);
    const panel = make("div", { role: "tabpanel", id: name, hidden: true });
    button.setAttribute("aria-controls", name);
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    $("tabs").append(button);
    $("explore").append(panel);
    TABS[name].setUp(panel);
  }
  $("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const names = tabs(), to = names[(names.indexOf(state.tab) + step + names.length) % names.length];
    change({ tab: to });
    $(`tab-${to}`).focus();
  });
}

function describe() {
  const { name, title, parameters, classes, data, labeled, routed, views } = model(), capsules = views.pose;
  const parts = [`${name}: ${title}`, `${parameters.toLocaleString("en")} parameters`];
  if (!classes.length) parts.push("no classes");
  else if (capsules) parts.push(`${capsules.dim} pose dimensions`, capsules.decoder ? "with decoder" : "no decoder");
  else parts.push("no capsules");
  if (data) parts.push(`test images of ${data}`);
  $("about").textContent = parts.join(" · ");
  $("lengths-title").textContent = `${capsules ? "Capsule" : "Class"} ${words()}`;
  $("bars-help").textContent = capsules
    ? `${Words()} are in [0, 1]${labeled ? " and are no probabilities. Choose a class to look into its capsule" : ". Choose a capsule to look into it"}; choose it again to follow the ${longest()}.`
    : "This model has no capsules: there are no poses and no routing to look into.";
  $("uniform-row").hidden = !routed;
  for (const tab of Object.keys(TABS)) $(`tab-${tab}`).hidden = !offered(tab);
}

function controls() {
  $("model").value = state.model;
  $("uniform").checked = Boolean(state.uni);
  if (!offered(state.tab)) state.tab = tabs()[0] ?? "pose";
  describe();
}

async function start() {
  about.models = (await ask("describe")).models;
  // Names that run from right to left leave the sentence around them as it is.
  for (const one of about.models) one.classes = one.classes.map((name) => (RIGHT_TO_LEFT.test(name) ? `\u2068${name}\u2069` : name));
  Object.assign(state, readAddress());
  about.models.forEach((one, k) => $("model").append(make("option", { value: k }, one.name)));
  $("model-row").hidden = about.models.length < 2;
  $("model").addEventListener("change", () => change({ model: Number($("model").value), cls: null, c1: null, c2: null, d: "" }));
  $("uniform").addEventListener("change", () => change({ uni: $("uniform").checked ? 1 : 0 }));
  await setUpTabs();
  controls();
  onChange((before) => {
    if (before.model !== state.model || before.uni !== state.uni) controls();
    if (["model", "cls", "uni"].some((name) => before[name] !== state[name])) refresh();
    else if (before.px === state.px && before.ex === state.ex && before.inv === state.inv) view();
  });
  await setUp(refresh);
  window.addEventListener("hashchange", async () => {
    Object.assign(state, readAddress());
    controls();
    await restore();
  });
  view();
}

start().catch((error) => problem(error.message));
