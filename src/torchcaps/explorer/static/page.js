// The state of the page and what all of its views use.
"use strict";

const page = {
  networks: [], // descriptions
  source: null, // of the first network
  image: null, // what the network sees: [channels, height, width] in [0, 1]
  truth: null, // the classes of an example, as a list of indices
  look: null, // what the network makes of it
  several: 1, // classes that an image shows
  step: "last", // an index of look.steps, "last" or "off"
  moving: null, // between two steps of a look: what is shown until the second one is reached
  run: 0, // the playback that may go on
  pinned: null, // the class that somebody chose
  child: null, // the child that somebody points at
  tab: "votes",
  views: [],
};

const byId = (id) => document.getElementById(id);

/** An element with attributes and children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** An element of SVG with attributes. */
function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A value of two digits, as a length is written. */
const two = (number) => number.toFixed(2);

/** Rank of the classes, the longest first. */
function rankClasses(lengths) {
  return Array.from(lengths.keys()).sort((a, b) => lengths[b] - lengths[a]);
}

/** The step that is shown; null for a model without votes. */
function stepOf(look, step = page.step) {
  if (!look.steps.length) return null;
  if (page.moving?.look === look && step === page.step) return page.moving.step;
  if (step === "off") return look.off;
  return step === "last" ? look.steps.at(-1) : look.steps[Math.min(step, look.steps.length - 1)];
}

/** Places and names of the steps; a first iteration that is the same as routing off is named once. */
function nameSteps({ steps, off, router }) {
  if (!steps.length) return [["last", "This model"]];
  const names = steps.map((_, n) => [n, n ? `${n + 1} iterations` : "1 iteration"]);
  if (router === "attention") names[0][1] = "Attention";
  const isOff = steps[0].couplings.every((value, n) => Math.abs(value - off.couplings[n]) < 1e-6);
  if (isOff) names[0] = ["off", "1 iteration (routing off)"];
  else names.unshift(["off", "Routing off"]);
  return names;
}

/** Lengths and poses as they are shown. */
const shownOf = (look, step = page.step) => stepOf(look, step) ?? look;

/** The class that is looked into: the chosen one, or the longest. */
const chosenOf = (look) => page.pinned ?? rankClasses(shownOf(look).lengths)[0];

/** The pose of a class. */
function poseOf(shown, label) {
  const dim = shown.poses.length / shown.lengths.length;
  return shown.poses.slice(label * dim, (label + 1) * dim);
}

/** Draws pixels [channels, height, width] in [0, 1]; one channel is gray, two show the first. */
function paint(canvas, pixels, [channels, height, width]) {
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  const plane = height * width;
  for (let n = 0; n < plane; n++) {
    for (let color = 0; color < 3; color++) {
      const channel = channels >= 3 ? color : 0;
      picture.data[4 * n + color] = 255 * pixels[channel * plane + n];
    }
    picture.data[4 * n + 3] = 255;
  }
  context.putImageData(picture, 0, 0);
  return context;
}

/** Draws a difference of pixels in [-1, 1]: less is orange, more is blue. */
function paintDifference(canvas, pixels, shape) {
  const [channels, height, width] = shape;
  const colors = new Float32Array(3 * height * width);
  const plane = height * width;
  for (let n = 0; n < plane; n++) {
    let value = 0;
    for (let channel = 0; channel < channels; channel++) value += pixels[channel * plane + n] / channels;
    colors[n] = value < 0 ? -value : 0.2 * value;
    colors[plane + n] = 0.6 * Math.abs(value);
    colors[2 * plane + n] = value > 0 ? value : 0;
  }
  paint(canvas, colors, [3, height, width]);
}

/** Distance of two pictures: the root of the sum of squared differences. */
function distanceOf(first, second) {
  let sum = 0;
  for (let n = 0; n < first.length; n++) sum += (first[n] - second[n]) ** 2;
  return Math.sqrt(sum);
}

function tell(problem) {
  byId("problem").textContent = problem;
  byId("problem").hidden = !problem;
}

/** What the answer is in words: a class, or that there is none. */
function judge(head, look, error, isWhole) {
  const { lengths } = look;
  if (!lengths.length) return { kind: "no classes", why: "This model names nothing." };
  const ranked = rankClasses(lengths);
  const labels = ranked.slice(0, page.several);
  const [first, second] = ranked.slice(page.several - 1);
  const limits = isWhole && head.limits[page.truth ? "unchanged" : "changed"];
  const { length, margin, error: largest } = limits || {};
  const between = `${head.classes[first]} or ${head.classes[second]}`;
  if (Math.max(...page.image) < 0.1) return { kind: "empty", why: "Nothing is drawn yet." };
  if (margin !== undefined && lengths[first] - lengths[second] < margin) {
    return { kind: "unknown", why: `${between}: two capsules are nearly as long.` };
  }
  if (length !== undefined && lengths[first] < length) {
    return { kind: "unknown", why: `The longest capsule, ${head.classes[first]}, has only ${two(lengths[first])}.` };
  }
  if (largest !== undefined && error !== null && page.pinned === null && error > largest) {
    return { kind: "unknown", why: "What the capsule draws does not resemble the image." };
  }
  return { kind: "known", labels, why: "" };
}

let isBusy = false;
let waiting = null;

/** Shows an image; while one is computed, the newest waits. */
async function see(image, { truth = null, since = performance.now() } = {}) {
  if (isBusy) {
    waiting = [image, { truth, since }];
    return;
  }
  isBusy = true;
  try {
    page.image = image;
    page.truth = truth;
    page.look = await page.source.look(image);
    tell("");
    await render();
    performance.measure("stroke to picture", { start: since, end: performance.now() });
  } catch (error) {
    tell(error.message);
  }
  isBusy = false;
  if (waiting) {
    const next = waiting;
    waiting = null;
    await see(...next);
  }
}

/** Renews everything that is visible. */
async function render() {
  if (!page.look) return;
  const { head } = page.source;
  const shown = shownOf(page.look);
  const label = chosenOf(page.look);
  const seen = byId("seen");
  paint(seen, page.look.seen ?? page.image, page.look.seen ? [3, ...head.shape.slice(1)] : head.shape);
  let error = null;
  if (head.decoder && head.poses) {
    const drawing = await page.source.draw(poseOf(shown, label), label);
    paint(byId("drawn"), drawing, head.shape);
    error = distanceOf(drawing, page.image);
    const dim = poseOf(shown, label).length;
    byId("drawn-caption").textContent = `${head.classes[label]} drawn back from its ${dim} numbers`;
  }
  renderLengths(head, shown, label, error);
  for (const view of page.views) if (view.name === page.tab) view.render();
}

function renderLengths(head, shown, label, error) {
  const isWhole = shown === (page.look.steps.at(-1) ?? page.look); // as the limits were measured
  const verdict = judge(head, shown, error, isWhole);
  const unit = head.activation === "length" ? "length" : head.activation;
  const strong = make("b");
  const words = make("span");
  if (verdict.kind === "known") {
    const { labels } = verdict;
    strong.textContent = labels.map((k) => head.classes[k]).join(" and ");
    words.textContent = `${unit} ${labels.map((k) => two(shown.lengths[k])).join(" and ")}`;
    if (page.truth !== null) {
      const isRight = page.truth.every((k) => labels.includes(k));
      const names = page.truth.map((k) => head.classes[k]).join(" and ");
      words.append(isRight ? " ✓" : ` ✗ it is labeled ${names}`);
    }
  } else {
    strong.textContent = verdict.kind;
    words.textContent = verdict.why;
  }
  byId("answer").classList.toggle("doubt", verdict.kind !== "known");
  byId("verdict").replaceChildren(strong, " ", words);
  const top = rankClasses(shown.lengths).slice(0, page.several);
  const buttons = byId("lengths").querySelectorAll("button");
  buttons.forEach((button) => {
    const k = Number(button.dataset.label);
    button.classList.toggle("longest", top.includes(k));
    button.setAttribute("aria-pressed", page.pinned === k);
    button.querySelector("i").style.width = `${100 * Math.min(1, shown.lengths[k])}%`;
    button.querySelector(".number").textContent = two(shown.lengths[k]);
  });
}

/** The list of classes, once. */
function makeLengths() {
  const list = byId("lengths");
  const names = page.source.head.classes;
  list.replaceChildren();
  names.forEach((name, label) => {
    const bar = make("span", { class: "track" }, make("i"));
    const pin = () => {
      page.pinned = page.pinned === label ? null : label;
      page.child = null;
      render();
    };
    const button = make("button", { "data-label": label, "aria-pressed": false, onclick: pin });
    button.append(make("span", { class: "name" }, name), bar, make("span", { class: "number" }));
    list.append(make("li", {}, button));
  });
}

/** Adds a view: its tab, its panel, and how it is renewed. */
function addView(name, title, setUp) {
  const panel = make("div", { id: `panel-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: true });
  const select = () => chooseTab(name);
  const tab = make("button", { id: `tab-${name}`, role: "tab", "aria-controls": panel.id, onclick: select });
  tab.textContent = title;
  byId("tabs").append(tab);
  byId("panels").append(panel);
  page.views.push({ name, panel, tab, render: setUp(panel) });
}

function chooseTab(name) {
  if (!page.views.some((view) => view.name === name)) return;
  page.tab = name;
  for (const view of page.views) {
    const isChosen = view.name === name;
    view.panel.hidden = !isChosen;
    view.tab.setAttribute("aria-selected", isChosen);
    view.tab.tabIndex = isChosen ? 0 : -1;
  }
  followTab(name);
  render();
}

/** Arrow keys move between tabs. */
byId("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const place = page.views.findIndex((view) => view.name === page.tab);
  const next = page.views[(place + step + page.views.length) % page.views.length];
  chooseTab(next.name);
  next.tab.focus();
});
