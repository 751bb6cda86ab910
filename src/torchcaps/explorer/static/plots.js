// Line plots as SVG.

import { minus } from "./pictures.js";

const NS = "http://www.w3.org/2000/svg";
const H = 240, LEFT = 44, RIGHT = 12, TOP = 10, BOTTOM = 28;

function node(tag, attributes, text) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// series: [{ name, values }], at most six in colors of their own; `here` is where the input stands now.
export function lines(place, label, x, series, { low, high, here = null }) {
  const W = Math.max(280, Math.min(900, place.clientWidth || 640)); // one unit is one pixel: the text stays readable
  const at = (value) => LEFT + ((W - LEFT - RIGHT) * (value - x[0])) / (x[x.length - 1] - x[0] || 1);
  const up = (value) => H - BOTTOM - ((H - TOP - BOTTOM) * (value - low)) / (high - low || 1);
  const svg = node("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  for (const value of [low, (low + high) / 2, high]) {
    svg.append(node("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: up(value), y2: up(value) }));
    svg.append(node("text", { x: LEFT - 6, y: up(value) + 4, "text-anchor": "end" }, minus(value.toFixed(2))));
  }
  for (const k of [0, (x.length - 1) / 2, x.length - 1]) {
    const value = x[Math.round(k)];
    const anchor = k === 0 ? "start" : k === x.length - 1 ? "end" : "middle";
    svg.append(node("text", { x: at(value), y: H - 8, "text-anchor": anchor }, minus(String(+value.toFixed(2)))));
  }
  if (here !== null) svg.append(node("line", { class: "here", x1: at(here), x2: at(here), y1: TOP, y2: H - BOTTOM }));
  series.forEach(({ values }, k) => {
    const points = values.map((value, j) => `${j ? "L" : "M"}${at(x[j]).toFixed(1)} ${up(value).toFixed(1)}`);
    svg.append(node("path", { class: `c${Math.min(k, 5)}`, d: points.join("") }));
  });
  const legend = document.createElement("ul");
  legend.className = "legend";
  series.forEach(({ name }, k) => {
    const item = document.createElement("li"), mark = document.createElement("i");
    mark.className = `c${Math.min(k, 5)}`;
    item.append(mark, name);
    legend.append(item);
  });
  place.replaceChildren(svg, legend);
}
