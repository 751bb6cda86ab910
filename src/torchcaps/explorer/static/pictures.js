// Pictures of bytes on canvases, and small makers of elements.

const MOST = 12; // classes in a small list

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Bytes row by row, channels of a pixel together; of two channels the first is shown.
export function imageData(bytes, { width, height }, tint = null) {
  const data = new ImageData(width, height), channels = bytes.length / (width * height); // overlays are in color
  for (let k = 0; k < width * height; k++) {
    for (let c = 0; c < 3; c++) {
      const value = channels === 3 ? bytes[3 * k + c] : bytes[channels * k];
      data.data[4 * k + c] = tint ? (value * tint[c]) / 255 : value;
    }
    data.data[4 * k + 3] = 255;
  }
  return data;
}

export function show(canvas, bytes, size, tint = null) {
  canvas.width = size.width;
  canvas.height = size.height;
  canvas.getContext("2d").putImageData(imageData(bytes, size, tint), 0, 0);
}

// Two pictures in two colors, added like light.
export function showBoth(canvas, first, second, size, colors) {
  const data = imageData(first, size, colors[0]), other = imageData(second, size, colors[1]);
  for (let k = 0; k < data.data.length; k++) data.data[k] = Math.min(255, data.data[k] + other.data[k]);
  canvas.width = size.width;
  canvas.height = size.height;
  canvas.getContext("2d").putImageData(data, 0, 0);
}

export function figure(caption, label = caption) {
  const canvas = make("canvas", { className: "pixels", role: "img" });
  canvas.setAttribute("aria-label", label);
  const text = make("figcaption", {}, caption);
  return { canvas, text, element: make("figure", {}, canvas, text) };
}

export function slider(label, { low, high, step, value, wide = false, change, play = null, unit = "" }) {
  const input = make("input", { type: "range", min: low, max: high, step });
  input.setAttribute("aria-label", label);
  input.value = value;
  const output = make("output", {});
  const places = step < 0.1 ? 2 : step < 1 ? 1 : 0;
  const tell = () => {
    output.textContent = minus(`${Number(input.value).toFixed(places)}${unit}`);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { tell(); change(Number(input.value)); });
  const row = make("div", { className: wide ? "slider wide" : "slider" }, make("span", { ariaHidden: "true" }, label), input, output);
  if (play) {
    const button = make("button", { type: "button", title: `What does ${label} do?`, onclick: play }, "▶");
    button.setAttribute("aria-label", `What does ${label} do? Animate it`);
    row.append(button);
  }
  tell();
  return { row, input, set(value) { input.value = value; tell(); } };
}

// Of many classes the largest in some list of values, and one that is looked into, in their own order.
export function largest(values, label = null) {
  const order = values.map((_, k) => k).sort((a, b) => values[b] - values[a]).slice(0, values.length > MOST ? MOST - 2 : MOST);
  if (label !== null && !order.includes(label)) order[order.length - 1] = label;
  return order.sort((a, b) => a - b);
}

// A real minus sign, as long as the plus.
export const minus = (text) => text.replace("-", "−");

// All bars of a list begin at one place, beside the longest name that there is room for.
export function namesWide(list, names) {
  list.style.setProperty("--names", `${Math.min(9, Math.max(2, 0.62 * Math.max(...names.map((name) => name.length)) + 0.5))}em`);
}

// Bars of some classes in a list; rows are made once, then only moved. `strong` are the classes in another color.
export function miniBars(list, names, values, { only = largest(values), strong = [values.indexOf(Math.max(...values))], full = 1, places = 3 } = {}) {
  while (list.children.length > only.length) list.lastChild.remove();
  while (list.children.length < only.length) {
    list.append(make("li", {}, make("span", { className: "name" }), make("span", { className: "track" }, make("span", { className: "fill" })), make("span", { className: "value" })));
  }
  namesWide(list, only.map((k) => names[k]));
  only.forEach((k, row) => {
    const [name, track, text] = list.children[row].children;
    name.textContent = name.title = names[k];
    track.firstChild.style.display = "block";
    track.firstChild.style.width = `${Math.min(100, (100 * values[k]) / full)}%`;
    text.textContent = values[k].toFixed(places);
    list.children[row].classList.toggle("longest", strong.includes(k));
  });
}
