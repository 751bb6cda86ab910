// The pose of one class capsule: sliders, what each dimension does, and a walk to another picture's pose.

import { latest, problem, toBytes, toText } from "./api.js";
import { fetchExample, picture, randomExample, shows } from "./input.js";
import { figure, make, show, slider } from "./pictures.js";
import { called, change, examples, hasDecoder, model, offsets, offsetText, state, word } from "./state.js";

const SPAN = 0.25, FRAMES = 21, STRIP = 11;
let parts = {}, sliders = [], look = null, label = 0, made = "", playing = 0, walkTo = null, asked = "";

const moved = latest("pose", ({ drawn }) => { if (state.d) show(parts.changed.canvas, toBytes(drawn[0]), model()); });
const frames = latest("pose", ({ drawn }, dim) => animate(drawn, `dimension ${dim + 1} from −${SPAN} to +${SPAN}`, parts.changed.canvas, (images) => images[(images.length - 1) / 2]));
const walked = latest("pose", ({ drawn }) => state.walk && show(parts.walk.canvas, toBytes(drawn[0]), model()));
const walkFrames = latest("pose", ({ drawn }) => animate(drawn, "the walk from the input's pose to the second picture's", parts.walk.canvas, (images) => images[Math.round(state.walk * (images.length - 1))]));
const other = latest("infer", (found, index) => { walkTo = { ...found, index }; walk(); });

export function setUp(panel) {
  parts = {
    title: make("h2", {}), note: make("p", { className: "note", hidden: true }, "This model was built without a decoder: here are the numbers of the pose, but nothing can draw them."),
    input: figure("input"), drawn: figure("reconstruction"), changed: figure("with the sliders"),
    sliders: make("div", { className: "sliders" }), strip: make("div", { className: "strip" }), status: make("p", { className: "hint", role: "status" }),
    matrix: make("pre", { hidden: true }), walk: figure("on the way"), second: figure("second picture"),
  };
  parts.reset = make("button", { type: "button", id: "reset", onclick: () => change({ d: "" }) }, "Reset sliders");
  parts.changed.canvas.id = "changed";
  parts.walk.canvas.id = "walk";
  parts.drawn.canvas.id = "reconstruction";
  parts.pictures = make("div", { className: "pictures" }, parts.input.element, parts.drawn.element, parts.changed.element);
  parts.walkSlider = slider("walk", { low: 0, high: 1, step: 0.01, value: 0, wide: true, change: (value) => change({ walk: value }) });
  parts.ex2 = make("input", { type: "number", min: 0, step: 1, onchange: () => choose(Math.round(Number(parts.ex2.value))) });
  parts.ex2.setAttribute("aria-label", "Second test image");
  parts.walkArea = make("div", {}, make("h3", {}, "Walk to another picture's pose"),
    make("div", { className: "row" }, make("span", {}, "Second test image"), parts.ex2,
      make("button", { type: "button", onclick: () => choose(randomExample()) }, "Random"),
      make("button", { type: "button", onclick: playWalk }, "▶ Walk")),
    parts.walkSlider.row, make("div", { className: "pictures" }, parts.second.element, parts.walk.element));
  parts.decoding = make("div", {}, parts.pictures, make("div", { className: "row" }, parts.reset,
    make("span", { className: "hint" }, `▶ moves one dimension from −${SPAN} to +${SPAN}.`)), parts.sliders, parts.status, parts.strip, parts.walkArea);
  panel.append(parts.title, parts.note, parts.decoding, parts.matrix);
}

const clampExample = (index) => Math.min(examples() - 1, Math.max(0, index || 0));
const choose = (index) => change({ ex2: clampExample(index) });

export function update(found, chosen, uniform) {
  look = found;
  label = chosen;
  const drawn = hasDecoder();
  parts.title.textContent = `Pose of ${called(label)}, ${word()} ${found.activation[label].toFixed(3)}`;
  parts.note.hidden = parts.matrix.hidden = drawn;
  parts.decoding.hidden = !drawn;
  if (!drawn) { parts.matrix.textContent = rows(found.pose[label]); return; }
  show(parts.input.canvas, picture.bytes, picture.size);
  show(parts.drawn.canvas, toBytes(found.drawn[0]), model());
  parts.drawn.text.textContent = `reconstruction from ${called(label)} alone`;
  build(found.pose[label]);
  const by = offsets(found.pose[label].length);
  sliders.forEach((one, k) => one.set(found.pose[label][k] + by[k]));
  // Nothing is asked for that is here already: the pen needs the server for itself.
  if (state.d) moved(drawing([found.pose[label].map((value, k) => value + by[k])]));
  else show(parts.changed.canvas, toBytes(found.drawn[0]), model());
  parts.walkArea.hidden = !examples();
  if (examples()) second(uniform);
}

// The sliders are made anew where another model or a longer pose needs it.
function build(pose) {
  const dim = pose.length;
  const reach = Math.max(0.6, Math.ceil(11 * Math.max(...pose.map(Math.abs))) / 10);
  const key = `${state.model} ${dim} ${reach}`;
  if (key === made) return;
  made = key;
  sliders = pose.map((value, k) => slider(`dim ${k + 1}`, {
    low: -reach, high: reach, step: 0.01, value,
    change: (to) => { const by = offsets(dim); by[k] = to - look.pose[label][k]; change({ d: offsetText(by) }); },
    play: () => frames(drawing(along(k)), k),
  }));
  parts.sliders.replaceChildren(...sliders.map((one) => one.row));
}

function along(k) {
  const by = offsets(look.pose[label].length), here = look.pose[label].map((value, j) => value + by[j]);
  return Array.from({ length: FRAMES }, (_, step) => here.map((value, j) => (j === k ? value + SPAN * ((2 * step) / (FRAMES - 1) - 1) : value)));
}

// There and back, twice; and a strip that stays. Who asked for less motion gets the strip alone.
function animate(drawn, what, canvas, last) {
  const images = drawn.map(toBytes), size = model();
  parts.status.textContent = `Shown: ${what}.`;
  parts.strip.replaceChildren(...Array.from({ length: STRIP }, (_, k) => {
    const still = make("canvas", { className: "pixels", role: "img" });
    still.setAttribute("aria-label", `step ${k + 1} of ${STRIP} of ${what}`);
    show(still, images[Math.round((k * (images.length - 1)) / (STRIP - 1))], size);
    return still;
  }));
  cancelAnimationFrame(playing);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const start = performance.now(), order = [...images, ...images.slice(1, -1).reverse()];
  const tick = (now) => {
    const k = Math.floor((now - start) / 45);
    if (k >= 2 * order.length) return show(canvas, last(images), size);
    show(canvas, order[Math.max(0, k) % order.length], size);
    playing = requestAnimationFrame(tick);
  };
  playing = requestAnimationFrame(tick);
}

async function second(uniform) {
  const index = state.ex2 ?? Math.min(1, examples() - 1);
  if (document.activeElement !== parts.ex2) parts.ex2.value = index;
  parts.walkSlider.set(state.walk);
  const key = `${state.model} ${index} ${uniform}`;
  if (key === asked) return walk();
  asked = key;
  try {
    const { bytes, labels } = await fetchExample(index);
    show(parts.second.canvas, bytes, picture.size);
    parts.second.text.textContent = [`test image ${index}`, shows(labels)].filter(Boolean).join(", ");
    other({ model: state.model, image: toText(bytes), uniform }, index);
  } catch (error) { problem(error.message); }
}

// Poses of the capsule, to be drawn as active as it is in the input; or on the way to the second picture.
const drawing = (poses, parts = poses.map(() => 0)) => ({
  model: state.model, label, poses, activations: parts.map((part) => look.activation[label] + (part && part * (walkTo.activation[label] - look.activation[label]))),
});
const between = (part) => look.pose[label].map((value, k) => (1 - part) * value + part * walkTo.pose[label][k]);

function walk() {
  if (!walkTo?.pose || !look?.pose) return;
  parts.walk.text.textContent = `${Math.round(100 * state.walk)} % of the way, ${called(label)}`;
  if (!state.walk) return show(parts.walk.canvas, toBytes(look.drawn[0]), model());
  walked(drawing([between(state.walk)], [state.walk]));
}

function playWalk() {
  const parts = Array.from({ length: FRAMES }, (_, k) => k / (FRAMES - 1));
  if (walkTo?.pose) walkFrames(drawing(parts.map(between), parts));
}

function rows(pose) {
  const side = Number.isInteger(Math.sqrt(pose.length)) ? Math.sqrt(pose.length) : 4;
  const texts = pose.map((value) => value.toFixed(3).padStart(8));
  return Array.from({ length: Math.ceil(pose.length / side) }, (_, k) => texts.slice(k * side, (k + 1) * side).join(" ")).join("\n");
}
