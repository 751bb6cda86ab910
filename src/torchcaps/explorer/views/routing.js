// Routing step by step: parents and couplings after each iteration, and where the votes for a class came from.

import { latest } from "./api.js";
import { picture, pictureText } from "./input.js";
import { imageData, largest, make, miniBars } from "./pictures.js";
import { change, model, state, word } from "./state.js";

const MAPS = {
  amount: ["Amount", "How much of the class comes from each place: coupling × length of the votes."],
  agreement: ["Agreement", "How well the votes from there agree with the pose of the class: cosine, orange for it and blue against."],
  share: ["Coupling", "Coupling of the capsules there with the class: orange above and blue below an even share."],
};
let parts = {}, asked = "", rows = [];

const send = latest("routing", draw);

export function setUp(panel) {
  parts = { title: make("h2", {}), status: make("p", { role: "status" }), steps: make("div", { className: "steps" }) };
  parts.map = make("select", { id: "map", onchange: () => change({ map: parts.map.value }) },
    ...Object.entries(MAPS).map(([name, text]) => make("option", { value: name }, text[0])));
  parts.row = make("div", { className: "row" }, make("label", {}, "Map of ", parts.map));
  parts.help = make("p", { className: "hint" });
  panel.append(parts.title, parts.status, parts.row, parts.help, parts.steps);
}

export function update(look, label, uniform) {
  parts.title.textContent = `Routing to the class capsules; votes for ${model().classes[label]}`;
  parts.map.value = state.map;
  const body = { model: state.model, image: pictureText(), label, uniform };
  const key = JSON.stringify([body, state.map]);
  if (key === asked) return;
  asked = key;
  send(body, { uniform, label });
}

function draw({ children, steps, fields }, { uniform, label }) {
  const { classes } = model(), even = 1 / classes.length;
  const spread = steps[steps.length - 1].spread;
  parts.status.textContent = uniform
    ? `Uniform coupling: each of ${children.toLocaleString("en")} capsules gives every class the same ${even.toFixed(3)} of its votes.`
    : `${children.toLocaleString("en")} capsules vote. After ${count(steps.length)} their couplings spread by ±${spread.toFixed(4)} about ${even.toFixed(3)}, which is an even share.`;
  const last = steps[steps.length - 1].activation, only = largest(last, label);
  const some = only.length < classes.length ? ` Listed are ${only.length} of ${classes.length} classes.` : "";
  parts.help.textContent = `${MAPS[state.map][1]}${fields && same() ? ` A square stands at the center of the ${fields[0].size} × ${fields[1].size} pixels that its capsules see.` : ""}${some}`;
  parts.steps.dataset.map = state.map;
  while (rows.length < steps.length) rows.push(step());
  parts.steps.replaceChildren(...rows.slice(0, steps.length).map((row) => row.element));
  steps.forEach((found, k) => {
    const row = rows[k];
    row.title.textContent = steps.length === 1 ? "One pass, no iterations" : `After ${count(k + 1)}`;
    row.element.dataset.spread = found.spread;
    row.length.textContent = word() === "length" ? "Parents' lengths" : "Parents' activations";
    miniBars(row.parents, classes, found.activation, { only });
    row.spread.textContent = `Mean coupling (±${found.spread.toFixed(4)})`;
    miniBars(row.couplings, classes, found.coupling, { only, strong: [label], full: Math.max(3 * even, ...found.coupling), places: 4 });
    map(row.canvas, found[state.map], fields, even);
    row.canvas.setAttribute("aria-label", `Map of ${MAPS[state.map][0].toLowerCase()} for ${classes[label]}, ${row.title.textContent}`);
  });
}

const count = (k) => `${k} iteration${k > 1 ? "s" : ""}`;

function step() {
  const row = {
    title: make("h3", {}), canvas: make("canvas", { role: "img" }), parents: make("ol", { className: "bars" }), couplings: make("ol", { className: "bars" }),
    length: make("h3", {}), spread: make("h3", {}),
  };
  row.element = make("div", {}, row.title, make("figure", {}, row.canvas), row.length, row.parents, row.spread, row.couplings);
  return row;
}

// Places as squares over the picture, one for each position of the children's map.
function map(canvas, values, fields, even) {
  const { width, height } = picture.size, zoom = Math.max(4, Math.floor(224 / Math.max(width, height)));
  canvas.width = width * zoom;
  canvas.height = height * zoom;
  const pencil = canvas.getContext("2d"), small = document.createElement("canvas");
  small.width = width;
  small.height = height;
  small.getContext("2d").putImageData(imageData(picture.bytes, picture.size), 0, 0);
  pencil.imageSmoothingEnabled = false;
  pencil.drawImage(small, 0, 0, canvas.width, canvas.height);
  pencil.fillStyle = "rgba(0,0,0,.35)";
  pencil.fillRect(0, 0, canvas.width, canvas.height);
  const across = values[0].length, flat = values.flat(), most = Math.max(...flat.map(Math.abs), 1e-9);
  const [below, right] = fields && same() ? fields : [];
  const far = Math.max(...flat.map((value) => Math.abs(value - even)), 1e-6);
  values.forEach((line, r) => line.forEach((value, c) => {
    const stepX = right?.step ?? width / across, stepY = below?.step ?? height / values.length;
    const x = right ? right.first + c * stepX + 0.5 - stepX / 2 : c * stepX;
    const y = below ? below.first + r * stepY + 0.5 - stepY / 2 : r * stepY;
    const amount = state.map === "share" ? (value - even) / far : state.map === "agreement" ? value : value / most;
    pencil.fillStyle = amount >= 0 ? `rgba(255,140,20,${0.85 * amount})` : `rgba(40,150,255,${-0.85 * amount})`;
    pencil.fillRect(x * zoom, y * zoom, stepX * zoom - 1, stepY * zoom - 1);
  }));
}

// Receptive fields are in pixels of the model's picture, which is this page's unless two models differ.
const same = () => model().width === picture.size.width && model().height === picture.size.height;
