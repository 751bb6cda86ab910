// The rosette: for each class all votes, each times its coupling, tip to tail.
"use strict";

const RIM = 1.13; // where the names of the classes stand
const MORPH = 700; // milliseconds from one iteration to the next
const PAUSE = 900; // at each one of a playback

/** Directions of the classes, the first one upwards, clockwise. */
const angleOf = (label, classes) => -Math.PI / 2 + (2 * Math.PI * label) / classes;

/** A picture of vote paths that is renewed by `draw`. */
function makeRosette(names, scale = 1) {
  const svg = makeSvg("svg", { class: "rosette", viewBox: "-1.25 -1.25 2.5 2.5", role: "img" });
  for (const r of [0.5, 1]) svg.append(makeSvg("circle", { class: "rim", r }));
  const size = scale * (names.length > 12 ? 0.07 : 0.11);
  const parts = names.map((name, label) => {
    const angle = angleOf(label, names.length);
    const [x, y] = [Math.cos(angle), Math.sin(angle)];
    svg.append(makeSvg("line", { class: "rim", x2: x, y2: y }));
    const text = makeSvg("text", { "font-size": size, "text-anchor": "middle", x: x * RIM, y: y * RIM + size / 3 });
    text.textContent = name.length > 9 ? `${name.slice(0, 8)}…` : name;
    const path = makeSvg("path", { class: "path" });
    const end = makeSvg("circle", { class: "end", r: 0.012 });
    return { angle, text, path, end, across: null };
  });
  for (const { path } of parts) svg.append(path);
  for (const { end, text } of parts) svg.append(end, text);
  const vote = makeSvg("path", { class: "vote" });
  svg.append(vote);
  const state = { paths: [], orders: [], look: null };

  /** Draws a step; `order` of the children stays the same over the steps of a look. */
  function draw(look, { weights, lengths }, chosen = null, child = null) {
    const { votes } = look;
    const isNew = state.look !== look;
    state.look = look;
    const top = rankClasses(lengths).slice(0, page.several);
    const [longest] = top;
    state.paths = parts.map((part, label) => {
      if (isNew) state.orders[label] = rankChildren(votes, look.steps.at(-1).weights, label);
      part.across ??= Float32Array.from({ length: votes.dim }, (_, d) => Math.sin(7 * label + 3 * d + 1));
      const { across } = part;
      const order = state.orders[label];
      const path = votePath(votes, weights, label, order, lengths[label], across);
      const [cos, sin] = [Math.cos(part.angle), Math.sin(part.angle)];
      path.points = path.points.map(([x, y]) => [x * cos - y * sin, x * sin + y * cos]);
      const [x, y] = path.points.at(-1);
      part.path.setAttribute("d", lineThrough(path.points));
      part.end.setAttribute("cx", x);
      part.end.setAttribute("cy", y);
      const isTop = top.includes(label);
      part.end.setAttribute("r", isTop || label === chosen ? 0.026 : 0.012);
      for (const element of [part.path, part.end, part.text]) {
        element.classList.toggle("longest", isTop);
        element.classList.toggle("chosen", label === chosen && !isTop);
      }
      return path;
    });
    const label = chosen ?? longest;
    const place = child === null ? -1 : state.orders[label].indexOf(child);
    const { points } = state.paths[label];
    const k = Math.min(place, points.length - 2);
    vote.setAttribute("d", place < 0 ? "" : lineThrough(points.slice(k, k + 2)));
    const words = `class ${names[longest]} reaches ${two(lengths[longest])} of the way to the rim`;
    svg.setAttribute("aria-label", `Votes for ${names.length} classes, tip to tail: ${words}`);
    return { longest, paths: state.paths, orders: state.orders };
  }

  /** The child whose vote is drawn nearest to a place in the window; null if none is near. */
  function childAt(clientX, clientY, label) {
    const point = new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse());
    let nearest = null;
    let least = 0.12;
    const points = state.paths[label]?.points ?? [];
    for (let k = 0; k + 1 < Math.min(points.length, MOST_VOTES); k++) {
      const x = (points[k][0] + points[k + 1][0]) / 2;
      const y = (points[k][1] + points[k + 1][1]) / 2;
      const distance = Math.hypot(point.x - x, point.y - y);
      if (distance < least) {
        least = distance;
        nearest = state.orders[label][k];
      }
    }
    return nearest;
  }
  return { svg, draw, childAt };
}

function lineThrough(points) {
  return `M${points.map(([x, y]) => `${x.toFixed(4)} ${y.toFixed(4)}`).join("L")}`;
}

/** Between two steps: all numbers a share of the way. */
function blend(first, second, share) {
  const mix = (name) => first[name].map((value, n) => value + share * (second[name][n] - value));
  return Object.fromEntries(["couplings", "weights", "lengths", "poses"].map((name) => [name, mix(name)]));
}

/** The fewest children whose votes make half of the line: their sizes, the largest first. */
function countVoters(votes, weights, label) {
  const sizes = voteSizes(votes, weights, label).sort().reverse();
  let rest = sizes.reduce((sum, size) => sum + size, 0) / 2;
  let count = 0;
  while (rest > 0) rest -= sizes[count++];
  return count;
}

addView("votes", "Votes", (panel) => {
  let rosette = null;
  const row = make("div", { class: "row", role: "group", "aria-label": "Routing iterations" });
  const legend = make("p", { class: "quiet" });
  const caption = make("p", { class: "quiet", id: "straightness" });
  const slider = make("input", { type: "range", min: 0, value: 0, "aria-label": "A child, the largest votes first" });
  const words = make("div");
  const child = make("div", { id: "child" }, slider, words);
  slider.addEventListener("input", () => {
    page.child = rosette.last.orders[chosenOf(page.look)][Number(slider.value)];
    render();
  });

  /** Goes to a step, or plays from it on; all that is shown moves together from step to step. */
  async function goTo(step, isPlayed = false) {
    const { look } = page;
    const own = ++page.run;
    const isOver = () => own !== page.run || page.look !== look;
    const before = stepOf(look);
    page.moving = null;
    page.step = step;
    const after = stepOf(look);
    const isCalm = before === after || matchMedia("(prefers-reduced-motion: reduce)").matches;
    const began = performance.now();
    for (let share = 0; share < 1 && !isCalm; share = (performance.now() - began) / MORPH) {
      page.moving = { look, step: blend(before, after, share) };
      await render();
      await new Promise(requestAnimationFrame);
      if (isOver()) return;
    }
    page.moving = null;
    await render();
    const names = nameSteps(look);
    const next = names[names.findIndex(([place]) => place === step) + 1];
    if (isPlayed && next) setTimeout(() => isOver() || goTo(next[0], true), PAUSE);
  }

  /** Plays the iterations. */
  page.play = () => {
    page.moving = null;
    page.step = "off";
    goTo("off", true);
  };

  function makeSteps() {
    row.replaceChildren();
    for (const [step, title] of nameSteps(page.look)) {
      row.append(make("button", { "data-step": step, onclick: () => goTo(step) }, title.replace(" iterations", "")));
    }
    if (row.children.length > 1) row.append(make("button", { onclick: page.play }, "▶ Play"));
  }

  /** Marks the step that is shown; none on the way between two, which it tells. */
  function markSteps() {
    const names = nameSteps(page.look);
    const current = page.step === "last" ? names.at(-1)[0] : page.step;
    const isMoving = page.moving?.look === page.look;
    for (const button of row.querySelectorAll("[data-step]")) {
      button.setAttribute("aria-pressed", !isMoving && button.dataset.step === String(current));
    }
    return isMoving;
  }

  function point(event) {
    const found = rosette.childAt(event.clientX, event.clientY, chosenOf(page.look));
    if (found === null || found === page.child) return;
    page.child = found;
    render();
  }

  return () => {
    const { look } = page;
    const step = stepOf(look);
    if (!step) {
      panel.replaceChildren(make("p", {}, "This model has no votes for its classes that can be laid out."));
      return;
    }
    if (!rosette) {
      rosette = makeRosette(page.source.head.classes);
      rosette.svg.addEventListener("pointermove", point);
      rosette.svg.addEventListener("pointerdown", point);
      panel.replaceChildren(rosette.svg, legend, row, caption, child);
      makeSteps();
    }
    const isMoving = markSteps();
    const label = chosenOf(look);
    rosette.last = rosette.draw(look, step, page.pinned, page.child);
    const others = rosette.last.paths.filter((_, k) => k !== label);
    const mean = others.reduce((sum, path) => sum + path.straightness, 0) / Math.max(1, others.length);
    const voters = countVoters(look.votes, step.weights, label);
    const name = page.source.head.classes[label];
    legend.textContent =
      "All votes for a class, tip to tail, lead toward its place on the rim. The dot is the capsule (rim: length 1); " +
      `the line is scaled to end there, and may touch the rim. Its bends show 2 axes of a vote's ${look.votes.dim} numbers.`;
    caption.textContent =
      `Straightness of ${name}: ${two(rosette.last.paths[label].straightness)}, of the others ${two(mean)}. ` +
      (isMoving ? "Between two iterations." : `Half of its votes' total length comes from ${voters} of ${look.votes.children} children.`);
    describeChild(words, slider, rosette.last.orders[label], step, label);
  };
});

/** What a child says and how much it is believed, with the numbers in the paper's formula. */
function describeChild(words, slider, order, step, label) {
  const { look } = page;
  const { votes } = look;
  const { head } = page.source;
  slider.max = order.length - 1;
  if (page.child === null) {
    slider.value = 0;
    words.textContent = "Point at a line, at the picture “seen”, or move this slider: one child and its vote.";
    return;
  }
  slider.value = order.indexOf(page.child);
  const n = page.child * votes.classes + label;
  const coupling = step.couplings[n];
  const size = voteSizes(votes, new Float32Array(step.weights.length).fill(1), label)[page.child];
  const name = head.classes[label];
  const place = placeOf(head, votes.children, page.child);
  const where = place ? `at row ${place.row + 1}, column ${place.column + 1}` : "";
  words.replaceChildren(
    make("b", {}, `Child ${page.child + 1} of ${votes.children} ${where}`),
    ` votes for ${name} with length ${two(size)} (before squash). Its coupling is ${two(coupling)}, an equal share ${two(1 / votes.classes)}. ` +
      "Orange in the line: coupling times vote, on the line's scale.",
    formulaOf(look, step, label, coupling),
  );
  if (place) markField(head, place);
}

function formulaOf(look, step, label, coupling) {
  const formula = make("p", { class: "equation" });
  const logits = logitsOf(look, step, page.child);
  if (!logits) return formula;
  const sum = logits.reduce((total, logit) => total + Math.exp(logit), 0);
  const own = logits[label];
  formula.innerHTML =
    `c<sub>ij</sub> = e<sup>b<sub>ij</sub></sup> / Σ<sub>k</sub> e<sup>b<sub>ik</sub></sup> = ` +
    `e<sup>${two(own)}</sup> / ${sum.toPrecision(3)} = ${two(Math.exp(own) / sum)}`;
  return formula;
}

/** The row and column of a child, where children have places. */
function placeOf({ places }, children, child) {
  if (!places) return null;
  const types = children / (places.rows * places.columns);
  if (!Number.isInteger(types)) return null;
  const at = Math.floor(child / types);
  return { row: Math.floor(at / places.columns), column: at % places.columns, type: child % types, types };
}

/** Outlines on the picture what a child sees. */
function markField({ places, shape }, { row, column }) {
  const [down, across] = places.fields;
  const canvas = byId("seen");
  const context = canvas.getContext("2d");
  const x = across.first + across.step * column - (across.size - 1) / 2;
  const y = down.first + down.step * row - (down.size - 1) / 2;
  context.fillStyle = "rgba(255, 140, 40, 0.4)";
  context.fillRect(x, y, Math.min(across.size, shape[2] - x), Math.min(down.size, shape[1] - y));
}

/** A place of the picture names the child there that gives most to the class. */
function setUpSeen() {
  const canvas = byId("seen");
  const find = (event) => {
    const { look, source } = page;
    const { places, shape } = source.head;
    const step = look && stepOf(look);
    if (!step || !places || page.tab !== "votes") return;
    const box = canvas.getBoundingClientRect();
    const [down, across] = places.fields;
    const nearest = (part, field, count) =>
      Math.max(0, Math.min(count - 1, Math.round((part - field.first) / field.step)));
    const x = ((event.clientX - box.left) / box.width) * shape[2] - 0.5;
    const y = ((event.clientY - box.top) / box.height) * shape[1] - 0.5;
    const at = nearest(y, down, places.rows) * places.columns + nearest(x, across, places.columns);
    const types = look.votes.children / (places.rows * places.columns);
    const sizes = voteSizes(look.votes, step.weights, chosenOf(look));
    let child = at * types;
    for (let n = at * types; n < (at + 1) * types; n++) if (sizes[n] > sizes[child]) child = n;
    if (child !== page.child) {
      page.child = child;
      render();
    }
  };
  canvas.addEventListener("pointermove", find);
  canvas.addEventListener("pointerdown", find);
}
