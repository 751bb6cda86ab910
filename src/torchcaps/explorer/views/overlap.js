// Two digits in one picture, and each drawn by its own capsule (arXiv 1710.09829, section 6).

import { latest, problem, toBytes, toText } from "./api.js";
import { fetchExample, named, picture, pictureText, randomExample } from "./input.js";
import { figure, largest, make, miniBars, show, showBoth, slider } from "./pictures.js";
import { about, change, examples, hasDecoder, longest, model, state, Words } from "./state.js";

const COLORS = [[255, 140, 20], [40, 150, 255]];
let parts = {}, second = null, loading = null, kept = null;

const send = latest("overlap", draw);

export function setUp(panel) {
  parts = {
    note: make("p", { className: "note", hidden: true }), status: make("p", { role: "status", id: "overlap-status" }), bars: make("ol", { className: "bars" }),
    title: make("h3", {}),
    both: figure("what the model sees"), mixed: figure("both reconstructions"), one: figure("first capsule"), two: figure("second capsule"),
  };
  parts.both.canvas.id = "overlap-seen";
  [parts.one, parts.two].forEach((one, k) => { one.canvas.id = `capsule-${k + 1}`; one.text.className = k ? "second" : "first"; });
  parts.ex2 = make("input", { type: "number", min: 0, step: 1, placeholder: "none", onchange: () => choose(parts.ex2.value === "" ? null : Math.round(Number(parts.ex2.value))) });
  parts.ex2.setAttribute("aria-label", "Second test image");
  parts.keep = make("button", { type: "button", onclick: keep }, "Take the input as second");
  parts.random = make("button", { type: "button", onclick: () => choose(randomExample()) }, "Random");
  parts.sources = make("span", { className: "row" }, make("span", {}, "Second test image"), parts.ex2, parts.random);
  parts.right = slider("right", { low: -14, high: 14, step: 1, value: 0, wide: true, unit: " px", change: (right) => change({ right }) });
  parts.down = slider("down", { low: -14, high: 14, step: 1, value: 0, wide: true, unit: " px", change: (down) => change({ down }) });
  parts.choices = [0, 1].map((k) => {
    const choice = make("select", { onchange: () => change({ [`c${k + 1}`]: choice.value === "" ? null : Number(choice.value) }) });
    return choice;
  });
  parts.hint = make("p", { className: "hint" });
  parts.capsules = make("div", { className: "row" },
    make("label", { className: "first" }, "First capsule ", parts.choices[0]), make("label", { className: "second" }, "Second capsule ", parts.choices[1]));
  parts.bars.setAttribute("aria-label", "Classes, for both pictures together");
  parts.body = make("div", {}, parts.hint, make("div", { className: "row" }, parts.sources, parts.keep), parts.right.row, parts.down.row, parts.capsules, parts.status,
    make("div", { className: "versus" }, make("div", { className: "pictures four" }, parts.both.element, parts.mixed.element, parts.one.element, parts.two.element),
      make("div", {}, parts.title, parts.bars)));
  panel.append(make("h2", {}, "Two pictures in one"), parts.note, parts.body);
}

const choose = (index) => { kept = null; change({ ex2: index === null ? null : Math.min(examples() - 1, Math.max(0, index || 0)) }); };

function keep() {
  kept = picture.bytes;
  second = { bytes: kept, name: "the input and the kept picture" };
  change({});
}

export async function update(look, label, uniform) {
  const { classes, views, width, height } = model(), drawn = hasDecoder(), several = about.models[0].several > 1;
  parts.note.hidden = drawn;
  parts.note.textContent = `This model has no ${views.pose ? "decoder to draw its capsules with" : "capsules to draw"}: only its ${Words().toLowerCase()} for both pictures are shown.`;
  parts.hint.textContent = "The second picture is laid over the input: their light adds up."
    + (drawn ? " The two longest capsules are decoded one at a time; choose others to see what a capsule draws that nothing woke." : "")
    + (several ? " This network's test images hold two classes already, so there is no second picture unless you name one." : " A network trained on single digits was never shown this; one trained on multi-mnist was.");
  for (const part of [parts.mixed.element, parts.one.element, parts.two.element, parts.capsules]) part.hidden = !drawn;
  parts.sources.hidden = !examples();
  const half = Math.floor(Math.max(width, height) / 2);
  for (const name of ["right", "down"]) { parts[name].input.min = -half; parts[name].input.max = half; parts[name].set(state[name]); }
  parts.choices.forEach((choice, k) => {
    if (choice.options.length !== classes.length + 1) choice.replaceChildren(make("option", { value: "" }, k ? "second longest" : "longest"), ...classes.map((name, j) => make("option", { value: j }, name)));
    choice.value = state[`c${k + 1}`] ?? "";
  });
  if (!kept && !(await load())) return;
  const chosen = [state.c1, state.c2];
  const body = { model: state.model, image: pictureText(), second: toText(second.bytes), right: state.right, down: state.down, uniform };
  send(chosen.every((k) => k !== null) ? { ...body, classes: chosen } : body, chosen);
}

// Another test image than the input, unless the address names one; none where the input may hold two classes by itself.
async function load() {
  const { several } = about.models[0], count = examples();
  const index = !count || (several > 1 && state.ex2 === null) ? null : state.ex2 ?? Math.min(1, count - 1);
  if (document.activeElement !== parts.ex2) parts.ex2.value = index ?? "";
  if (index === null) { loading = null; second = { bytes: new Uint8Array(picture.bytes.length), name: "the input alone" }; return true; }
  if (second?.index === index) return true;
  loading = index;
  try {
    const found = await fetchExample(index);
    if (loading !== index) return false;
    second = { ...found, index, name: `the input and test image ${index}, which shows ${named(found.labels)}` };
    return true;
  } catch (error) { problem(error.message); return false; }
}

function draw(found, chosen) {
  const { classes } = model();
  // One chosen and one not: the longest of the others takes the free place.
  const order = found.activation.map((_, k) => k).sort((a, b) => found.activation[b] - found.activation[a]);
  let shown = found.shown;
  if (chosen.filter((k) => k === null).length === 1) {
    shown = chosen.map((k) => k ?? order.find((j) => !chosen.includes(j)));
    if (String(shown) !== String(found.shown)) { send({ model: state.model, image: pictureText(), second: toText(second.bytes), right: state.right, down: state.down, uniform: Boolean(state.uni) && model().routed, classes: shown }, shown); return; }
  }
  show(parts.both.canvas, toBytes(found.image), model());
  parts.both.text.textContent = `what the model sees: ${second.name}`;
  const names = shown.map((k) => `${classes[k]} (${found.activation[k].toFixed(3)})`);
  parts.status.textContent = `${longest() === "longest" ? "Longest" : "Largest"}: ${order.slice(0, 2).map((k) => `${classes[k]} (${found.activation[k].toFixed(3)})`).join(" and ")}.`;
  const only = largest(found.activation);
  parts.title.textContent = `${Words()} for this picture${only.length < classes.length ? `, ${only.length} of ${classes.length} classes` : ""}`;
  miniBars(parts.bars, classes, found.activation, { only, strong: order.slice(0, 2) });
  if (!found.drawn) return;
  const drawn = found.drawn.map(toBytes);
  [parts.one, parts.two].forEach((one, k) => {
    show(one.canvas, drawn[k], model(), model().channels === 3 ? null : COLORS[k]);
    one.text.textContent = `capsule ${names[k]}`;
    one.canvas.setAttribute("aria-label", `Reconstruction from capsule ${names[k]}`);
  });
  showBoth(parts.mixed.canvas, drawn[0], drawn[1], model(), model().channels === 3 ? [null, null] : COLORS);
}
