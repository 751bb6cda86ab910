// Two models on the same picture.

import { latest, toBytes } from "./api.js";
import { pictureText } from "./input.js";
import { figure, make, miniBars, show } from "./pictures.js";
import { about } from "./state.js";

let columns = [], parts = {};

export function setUp(panel) {
  parts.status = make("p", { role: "status" });
  columns = about.models.map((one, k) => {
    const column = { bars: make("ol", { className: "bars" }), drawn: figure("reconstruction from its longest capsule"), note: make("p", { className: "hint" }) };
    column.send = latest("infer", (found) => draw(k, found));
    column.element = make("div", {}, make("h3", {}, `${one.name} (${one.title}, ${one.parameters.toLocaleString("en")} parameters)`), column.bars, column.drawn.element, column.note);
    return column;
  });
  panel.append(make("h2", {}, "Two models, one picture"), parts.status, make("div", { className: "versus" }, ...columns.map((column) => column.element)));
}

export function update(look, label, uniform) {
  columns.forEach((column, k) => column.send({ model: k, image: pictureText(), uniform: uniform && about.models[k].routed }));
}

function draw(k, found) {
  const one = about.models[k], column = columns[k];
  if (found.shown.length) miniBars(column.bars, one.classes, found.activation);
  column.drawn.element.hidden = !found.drawn;
  if (found.drawn) show(column.drawn.canvas, toBytes(found.drawn[0]), one);
  column.note.textContent = !found.shown.length ? "No classes and no capsules." : !one.views.pose ? "No capsules: these are probabilities, not lengths." : found.drawn ? "" : "No decoder.";
  column.answer = found.shown.length && `${one.name} says ${one.classes[found.shown[0]]} (${found.activation[found.shown[0]].toFixed(2)})`;
  parts.status.textContent = columns.map((it) => it.answer).filter(Boolean).join("; ");
}
