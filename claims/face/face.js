// The page: a picture whose parts are moved and turned, and two networks that look at it.
"use strict";

const byId = (id) => document.getElementById(id);
const TURN = 15; // degrees of a key

/** An element with attributes and children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const page = {
  drawing: null, // what the set draws with
  answers: [], // a network each, with the elements of its answer
  object: "face",
  kind: "whole", // the arrangement; null after a part was moved
  parts: [], // glyph, row, column and angle of each
  chosen: 0, // the part that is turned
  seed: 1, // of the noise
  pixels: null,
};

/** Shows whether an answer accepts the object, and its number for each class. */
function renderAnswer({ head, unit, verdict, words, rows, whole }, scores) {
  const label = head.classes.indexOf(page.object);
  const limit = head.limits[label];
  const isAccepted = scores[label] > limit;
  const text = `${isAccepted ? "Accepts" : "Rejects"} the ${page.object}`;
  if (verdict.textContent !== text) verdict.textContent = text; // a screen reader says changes
  verdict.classList.toggle("rejected", !isAccepted);
  const numbers = [whole.scores[label], limit].map(unit.write);
  words.textContent = `whole ${numbers[0]}, limit ${numbers[1]}`;
  rows.forEach(({ row, bar, mark, number }, n) => {
    row.classList.toggle("longest", n === label);
    bar.style.width = `${100 * scores[n]}%`;
    mark.hidden = n !== label;
    mark.style.left = `${100 * limit}%`;
    number.textContent = unit.write(scores[n]);
  });
}

/** What a network makes of the whole object in the same noise, which is kept. */
async function lookAtWhole(answer) {
  const { object, seed, drawing } = page;
  if (answer.whole?.object === object && answer.whole.seed === seed) return;
  const pixels = drawParts(drawing, arranged("whole", object), seed);
  answer.whole = { object, seed, scores: await lookCalmly(answer.network, pixels) };
}

let isBusy = false;

/** Lets both networks look at the newest picture, one after another. */
async function look() {
  if (isBusy) return;
  isBusy = true;
  document.documentElement.dataset.busy = "true";
  let seen = null;
  while (seen !== page.pixels) {
    seen = page.pixels;
    for (const answer of page.answers) {
      await lookAtWhole(answer);
      renderAnswer(answer, await lookCalmly(answer.network, seen));
    }
  }
  isBusy = false;
  delete document.documentElement.dataset.busy;
}

/** Names of the parts; equal ones are numbered. */
function nameParts() {
  const glyphs = page.parts.map((part) => part.glyph);
  return glyphs.map((glyph, n) => {
    if (glyphs.filter((other) => other === glyph).length === 1) return glyph;
    return `${glyph} ${glyphs.slice(0, n + 1).filter((other) => other === glyph).length}`;
  });
}

/** Puts the round handle above a part, or below it where it would be outside of the picture. */
function placeKnob({ row, column, angle }) {
  const { side, part } = page.drawing;
  const turn = (angle * Math.PI) / 180;
  const placeAt = (sign) => {
    const x = column + part / 2 - sign * part * Math.sin(turn);
    const y = row + part / 2 - sign * part * Math.cos(turn);
    return { sign, x, y, room: Math.min(x, y, side - x, side - y) };
  };
  const above = placeAt(1);
  const below = placeAt(-1);
  const { sign, x, y } = above.room >= Math.min(2, below.room) ? above : below;
  const knob = byId("knob");
  knob.dataset.above = sign;
  knob.style.left = shareOf(x);
  knob.style.top = shareOf(y);
}

/** Pixels of the picture as a share of its side. */
const shareOf = (pixels) => `${(100 * pixels) / page.drawing.side}%`;

/** Draws the picture and its handles, and asks the networks. */
function render() {
  const { drawing, parts, chosen } = page;
  const { side } = drawing;
  page.pixels = drawParts(drawing, parts, page.seed);
  const canvas = byId("paper");
  canvas.width = side;
  canvas.height = side;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(side, side);
  page.pixels.forEach((value, n) => picture.data.set([255 * value, 255 * value, 255 * value, 255], 4 * n));
  context.putImageData(picture, 0, 0);

  const names = nameParts();
  [...byId("parts").children].forEach((handle, n) => {
    const { row, column, angle } = parts[n];
    handle.style.left = shareOf(column);
    handle.style.top = shareOf(row);
    handle.style.rotate = `${-angle}deg`;
    handle.setAttribute("aria-pressed", n === chosen);
    handle.setAttribute("aria-label", `${names[n]}, row ${row}, column ${column}, turned ${angle}°`);
  });
  placeKnob(parts[chosen]);
  const { angle } = parts[chosen];
  byId("turn").value = angle;
  byId("turn").setAttribute("aria-valuetext", `${angle}°`);
  byId("turn-name").textContent = `Turn ${names[chosen]}`;
  for (const button of byId("kinds").children) {
    button.setAttribute("aria-pressed", button.dataset.kind === page.kind);
  }
  look();
}

/** Changes the chosen part; it stays in the picture. */
function change(changes) {
  const last = page.drawing.side - page.drawing.part;
  const part = Object.assign(page.parts[page.chosen], changes);
  part.row = Math.max(0, Math.min(last, Math.round(part.row)));
  part.column = Math.max(0, Math.min(last, Math.round(part.column)));
  part.angle = ((((part.angle + 180) % 360) + 360) % 360) - 180 || 0;
  page.kind = null;
  render();
}

/** The parts of an object in an arrangement. */
function arranged(kind, object) {
  return page.drawing.arrangements[kind][object].map(({ turns, ...part }) => {
    return { ...part, angle: turns > 2 ? -90 : 90 * turns };
  });
}

function arrange(kind) {
  page.kind = kind;
  page.parts = arranged(kind, page.object);
  page.chosen = 0;
  render();
}

/** Calls back with each movement of a pointer that is held down on an element. */
function onDrag(element, start) {
  element.addEventListener("pointerdown", (down) => {
    const move = start(down);
    element.setPointerCapture(down.pointerId);
    const follow = (event) => move(event);
    element.addEventListener("pointermove", follow);
    const end = () => element.removeEventListener("pointermove", follow);
    for (const kind of ["pointerup", "pointercancel"]) element.addEventListener(kind, end, { once: true });
  });
}

const KEYS = {
  ArrowUp: ({ row }) => ({ row: row - 1 }),
  ArrowDown: ({ row }) => ({ row: row + 1 }),
  ArrowLeft: ({ column }) => ({ column: column - 1 }),
  ArrowRight: ({ column }) => ({ column: column + 1 }),
  "+": ({ angle }) => ({ angle: angle + TURN }),
  "-": ({ angle }) => ({ angle: angle - TURN }),
};

/** The handle of a part: a button over it. */
function makeHandle(n) {
  const choose = () => {
    if (page.chosen === n) return;
    page.chosen = n;
    render();
  };
  const handle = make("button", { class: "part", onfocus: choose, onclick: choose });
  handle.style.width = `${(100 * page.drawing.part) / page.drawing.side}%`;
  onDrag(handle, (down) => {
    choose();
    const { row, column } = page.parts[n];
    const scale = page.drawing.side / byId("paper").getBoundingClientRect().width;
    return (event) =>
      change({
        row: row + scale * (event.clientY - down.clientY),
        column: column + scale * (event.clientX - down.clientX),
      });
  });
  handle.addEventListener("keydown", (event) => {
    const changes = KEYS[event.key];
    if (!changes) return;
    event.preventDefault();
    change(changes(page.parts[n]));
    byId("place").textContent = handle.getAttribute("aria-label");
  });
  return handle;
}

function setUpInput() {
  const { drawing } = page;
  byId("parts").append(...drawing.arrangements.whole.face.map((_, n) => makeHandle(n)));
  onDrag(byId("knob"), () => {
    const above = Number(byId("knob").dataset.above);
    return (event) => {
      const box = byId("paper").getBoundingClientRect();
      const { row, column } = page.parts[page.chosen];
      const pixels = box.width / drawing.side;
      const right = event.clientX - box.left - (column + drawing.part / 2) * pixels;
      const down = event.clientY - box.top - (row + drawing.part / 2) * pixels;
      const angle = (Math.atan2(-above * right, -above * down) * 180) / Math.PI;
      change({ angle: TURN * Math.round(angle / TURN) });
    };
  });
  byId("turn").addEventListener("input", () => change({ angle: Number(byId("turn").value) }));
  for (const kind of Object.keys(drawing.arrangements)) {
    const button = make("button", { "data-kind": kind, onclick: () => arrange(kind) }, kind);
    byId("kinds").append(button);
  }
  byId("object").append(...drawing.objects.map((name) => make("option", {}, name)));
  byId("object").addEventListener("change", () => {
    page.object = byId("object").value;
    arrange(page.kind ?? "whole");
  });
  byId("noise").addEventListener("click", () => {
    page.seed += 1;
    render();
  });
}

const UNITS = {
  C: { title: "Capsule network", name: "lengths", write: (value) => value.toFixed(3) },
  N: { title: "CNN", name: "probabilities", write: (value) => `${(100 * value).toFixed(2)} %` },
};

/** The answer of a network: a sentence, and a bar for each class. */
function makeAnswer(head, network) {
  const unit = UNITS[head.arm];
  const verdict = make("p", { class: "verdict", role: "status" });
  const words = make("p", { class: "quiet" });
  const rows = head.classes.map((name) => {
    const bar = make("i");
    const mark = make("b", { title: "95 % of whole ones are above" });
    const number = make("span", { class: "number" });
    const track = make("span", { class: "track" }, bar, mark);
    return { row: make("li", {}, make("span", { class: "name" }, name), track, number), bar, mark, number };
  });
  const list = make("ul", { class: "bars" }, ...rows.map(({ row }) => row));
  const title = make("h2", {}, `${unit.title}: `, make("span", { class: "quiet" }, unit.name));
  const section = make("section", { "aria-label": unit.title, id: `answer-${head.arm}` }, title, verdict, words, list);
  byId("answers").append(section);
  return { head, network, unit, verdict, words, rows };
}

const share = (part) => `${Math.round(100 * part)} %`;

/** What was measured of the stored networks on images that they were not trained on. */
function makeMeasured(kinds) {
  const count = page.answers[0].head.measured.toLocaleString("en");
  const caption = make("caption", {}, `Still accepted, of ${count} held-out images a kind`);
  const head = make("tr", {}, make("th", { scope: "col" }, "parts"));
  head.append(...page.answers.map(({ unit }) => make("th", { scope: "col" }, unit.title)));
  const rows = kinds.map((kind) => {
    const cells = page.answers.map(({ head: { figures } }) => {
      const accepted = kind === "whole" ? 0.95 : figures[`accepted_95_${kind}`];
      return make("td", {}, share(accepted));
    });
    return make("tr", {}, make("th", { scope: "row" }, kind), ...cells);
  });
  const areas = page.answers.map(({ head: { figures } }) => make("td", {}, share(figures.auroc_misplaced)));
  const name = "area under the ROC curve, whole against the four above";
  rows.splice(5, 0, make("tr", { class: "mean" }, make("th", { scope: "row" }, name), ...areas));
  return make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...rows));
}

/** What the networks are, and how much they learned. */
function describeNetworks(heads) {
  const texts = heads.map(({ arm, parameters, row, epochs, images, accuracy }) => {
    const learned = `${epochs} ${epochs === 1 ? "epoch" : "epochs"} of ${images.toLocaleString("en")} images`;
    const size = `${parameters.toLocaleString("en")} parameters`;
    const right = `${(100 * accuracy).toFixed(1)} % of held-out whole objects right`;
    return `${UNITS[arm].title}: ${row}, ${size}, ${learned}, ${right}.`;
  });
  return `${texts.join(" ")} The protocol of the claim has 3 epochs, 10 seeds and nine networks.`;
}

async function begin() {
  const { networks } = JSON.parse(byId("content").textContent);
  byId("networks").textContent = describeNetworks(networks);
  page.drawing = networks[0].drawing;
  for (const [n, head] of networks.entries()) {
    const network = await openNetwork(head, byId(`packed-${n}`).textContent);
    page.answers.push(makeAnswer(head, network));
  }
  setUpInput();
  byId("measured").append(makeMeasured(Object.keys(page.drawing.arrangements)));
  const state = new URLSearchParams(location.hash.slice(1)); // such as #kind=swapped&object=house
  if (page.drawing.objects.includes(state.get("object"))) page.object = state.get("object");
  byId("object").value = page.object;
  arrange(state.get("kind") in page.drawing.arrangements ? state.get("kind") : "whole");
  document.documentElement.dataset.ready = "true";
}

begin().catch((error) => {
  byId("problem").textContent = error.message;
  byId("problem").hidden = false;
});
