// Turn, resize and move the input: how lengths and pose answer.

import { latest, toBytes } from "./api.js";
import { pictureText } from "./input.js";
import { figure, make, miniBars, show, slider } from "./pictures.js";
import { lines } from "./plots.js";
import { called, change, longest, model, state, Words } from "./state.js";

const KINDS = { degrees: "rotation in degrees", scale: "size as a factor", right: "shift right in pixels", down: "shift down in pixels" };
const FIELD = { degrees: "deg", scale: "size", right: "mx", down: "my" };
const STEPS = 21, LINES = 6;
let parts = {}, asked = "";

const sweep = latest("transform", draw);
const moved = latest("infer", (found) => {
  show(parts.moved.canvas, toBytes(found.image), model());
  if (found.drawn) show(parts.drawn.canvas, toBytes(found.drawn[0]), model());
  parts.drawn.text.textContent = model().dense ? "what the model finds" : `reconstruction from ${called(found.shown[0])}`;
  parts.drawn.element.hidden = !found.drawn;
  miniBars(parts.bars, model().classes, found.activation);
});

export function setUp(panel) {
  parts = { moved: figure("what the model sees"), drawn: figure("reconstruction"), bars: make("ol", { className: "bars" }), lengths: make("div", { id: "length-lines" }), poses: make("div", { id: "pose-lines" }), poseTitle: make("h3", {}) };
  parts.bars.setAttribute("aria-label", "Classes, for the transformed input");
  const one = (name, label, low, high, step, unit) => slider(label, { low, high, step, value: state[name], wide: true, unit, change: (value) => change({ [name]: value }) });
  parts.sliders = { deg: one("deg", "rotate", -180, 180, 1, "°"), size: one("size", "scale", 0.25, 2, 0.05, ""), mx: one("mx", "right", -14, 14, 0.5, " px"), my: one("my", "down", -14, 14, 0.5, " px") };
  parts.sweep = make("select", { id: "sweep", onchange: () => change({ sweep: parts.sweep.value }) }, ...Object.entries(KINDS).map(([name, text]) => make("option", { value: name }, text)));
  parts.lengthTitle = make("h3", {});
  panel.append(make("h2", {}, "Transform the input"),
    make("div", { className: "versus" },
      make("div", {}, ...Object.values(parts.sliders).map((it) => it.row), make("div", { className: "row" }, make("button", { type: "button", onclick: () => change({ deg: 0, size: 1, mx: 0, my: 0 }) }, "Reset")),
        make("div", { className: "pictures" }, parts.moved.element, parts.drawn.element)),
      parts.bars),
    make("div", { className: "row" }, make("label", {}, "Answers along ", parts.sweep)), parts.lengthTitle, parts.lengths, parts.poseTitle, parts.poses);
}

function range() {
  const half = Math.floor(Math.max(model().width, model().height) / 2);
  return { degrees: [-90, 90], scale: [0.5, 1.5], right: [-half, half], down: [-half, half] }[state.sweep];
}

export function update(look, label, uniform) {
  const half = Math.floor(Math.max(model().width, model().height) / 2);
  for (const name of ["mx", "my"]) { parts.sliders[name].input.min = -half; parts.sliders[name].input.max = half; }
  for (const [name, it] of Object.entries(parts.sliders)) it.set(state[name]);
  parts.sweep.value = state.sweep;
  const motion = { degrees: state.deg, scale: state.size, right: state.mx, down: state.my, changing: state.sweep };
  const body = { model: state.model, image: pictureText(), motion, uniform };
  const key = JSON.stringify([body, label]);
  if (key === asked) return;
  asked = key;
  moved({ ...body, classes: state.cls === null ? [] : [state.cls] });
  const [low, high] = range();
  const values = Array.from({ length: STEPS }, (_, k) => low + ((high - low) * k) / (STEPS - 1));
  sweep({ ...body, label, values }, { label, here: state[FIELD[state.sweep]], kind: KINDS[state.sweep] });
}

function draw({ values, activation, pose }, { label, here, kind }) {
  const { classes } = model();
  const best = (k) => Math.max(...activation.map((row) => row[k]));
  const order = classes.map((_, k) => k).sort((a, b) => best(b) - best(a)).slice(0, LINES);
  const mark = here >= values[0] && here <= values[values.length - 1] ? here : null;
  const what = Words();
  parts.lengthTitle.textContent = `${what} over ${kind}`;
  lines(parts.lengths, `${what} of the ${model().labeled ? "classes" : "capsules"} over ${kind}; ${tell(order[0], values, activation, classes)}`, values,
    order.map((k) => ({ name: classes[k], values: activation.map((row) => row[k]) })), { low: 0, high: 1, here: mark });
  parts.poseTitle.hidden = parts.poses.hidden = !pose;
  if (!pose) return;
  parts.poseTitle.textContent = `Pose of ${called(label)} over ${kind}: the ${Math.min(LINES, pose[0].length)} dimensions that move most`;
  const swing = (k) => Math.max(...pose.map((row) => row[k])) - Math.min(...pose.map((row) => row[k]));
  const dims = pose[0].map((_, k) => k).sort((a, b) => swing(b) - swing(a)).slice(0, LINES);
  const all = dims.flatMap((k) => pose.map((row) => row[k])), top = Math.max(0.05, ...all.map(Math.abs));
  lines(parts.poses, `Pose of ${called(label)} over ${kind}; dimension ${dims[0] + 1} moves most`, values,
    dims.map((k) => ({ name: `dim ${k + 1}`, values: pose.map((row) => row[k]) })), { low: -top, high: top, here: mark });
}

function tell(k, values, activation, classes) {
  const lengths = activation.map((row) => row[k]), top = lengths.indexOf(Math.max(...lengths));
  return `${classes[k]} is ${longest()} at ${+values[top].toFixed(2)} with ${lengths[top].toFixed(2)}`;
}
