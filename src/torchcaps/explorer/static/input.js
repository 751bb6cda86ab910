// The picture that the model sees: drawn, opened, dropped, or one of the test images.

import { ask, problem, toBytes, toText } from "./api.js";
import { make, show, imageData } from "./pictures.js";
import { about, change, examples, fromAddress, state, toAddress } from "./state.js";

const $ = (id) => document.getElementById(id);
const MOST_IN_ADDRESS = 4096; // bytes of a picture
const SHARE = 20 / 28; // of the side that a digit of MNIST fills

export const picture = { bytes: null, size: null, labels: null };
let announce = () => {}, drawn = false, pen = null, last = null, down = false, moment = 0, turn = 0;
const strokes = document.createElement("canvas");
const pencilOf = (canvas) => canvas.getContext("2d", { willReadFrequently: true });

export function pictureText() { return toText(picture.bytes); }

export async function setUp(changed) {
  announce = changed;
  const { width, height, channels } = about.models[0];
  picture.size = { width, height, channels };
  const paper = $("paper"), scale = Math.max(1, Math.round(280 / Math.max(width, height)));
  paper.width = strokes.width = width * scale;
  paper.height = strokes.height = height * scale;
  paper.style.aspectRatio = `${width} / ${height}`;
  pen = { x: paper.width / 2, y: paper.height / 2 };
  $("ink-row").hidden = channels !== 3;
  $("fit").checked = channels !== 3;
  listenToPaper(paper);
  $("clear").addEventListener("click", clear);
  $("open").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => { if ($("file").files[0]) open($("file").files[0]); $("file").value = ""; });
  $("invert").addEventListener("change", () => { if (picture.bytes) take(picture.bytes.map((value) => 255 - value), { inv: $("invert").checked ? 1 : 0 }); });
  $("fit").addEventListener("change", () => { if (drawn) sample(); });
  setUpExamples();
  await restore();
}

// --- drawing ---

function listenToPaper(paper) {
  const place = (event) => {
    const box = paper.getBoundingClientRect();
    return { x: ((event.clientX - box.left) * paper.width) / box.width, y: ((event.clientY - box.top) * paper.height) / box.height };
  };
  paper.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    paper.setPointerCapture(event.pointerId);
    begin();
    last = place(event);
    line(last, last, event.timeStamp);
  });
  paper.addEventListener("pointermove", (event) => {
    if (!last) return;
    for (const one of event.getCoalescedEvents?.() ?? [event]) { const to = place(one); stroke(last, to); last = to; }
    line(last, last, event.timeStamp);
  });
  for (const name of ["pointerup", "pointercancel"]) paper.addEventListener(name, () => { last = null; });
  paper.addEventListener("keydown", keys);
  paper.addEventListener("blur", () => { down = false; render(); });
  paper.addEventListener("focus", render);
  for (const name of ["dragover", "dragenter"]) document.addEventListener(name, (event) => { event.preventDefault(); paper.classList.add("over"); });
  document.addEventListener("dragleave", () => paper.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    paper.classList.remove("over");
    if (event.dataTransfer.files[0]) open(event.dataTransfer.files[0]);
  });
}

function keys(event) {
  const paper = $("paper"), step = paper.width / (event.shiftKey ? 56 : 20);
  const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
  if (event.key === " ") { down = !down; if (down) { begin(); line(pen, pen, event.timeStamp); } }
  else if (event.key === "Delete" || event.key === "Backspace") clear();
  else if (moves[event.key]) {
    const [dx, dy] = moves[event.key];
    const to = { x: Math.min(paper.width, Math.max(0, pen.x + dx)), y: Math.min(paper.height, Math.max(0, pen.y + dy)) };
    if (down) line(pen, to, event.timeStamp);
    pen = to;
  } else return;
  event.preventDefault();
  render();
}

function begin() {
  turn++; // a picture that was asked for before comes too late
  if (drawn) return;
  pencilOf(strokes).clearRect(0, 0, strokes.width, strokes.height);
  drawn = true;
  picture.labels = null;
  $("invert").checked = false;
}

function stroke(from, to) {
  const pencil = pencilOf(strokes);
  pencil.strokeStyle = $("ink-row").hidden ? "#fff" : $("ink").value;
  pencil.lineCap = pencil.lineJoin = "round";
  pencil.lineWidth = Math.max(strokes.width, strokes.height) / 12;
  pencil.beginPath();
  pencil.moveTo(from.x, from.y);
  pencil.lineTo(to.x + 0.01, to.y);
  pencil.stroke();
}

function line(from, to, when) {
  stroke(from, to);
  moment = when;
  sample();
}

// From strokes to pixels: as MNIST was made, the ink fits a box and its center of mass is the center.
function sample() {
  const { width, height } = picture.size;
  const small = document.createElement("canvas");
  small.width = width;
  small.height = height;
  const pencil = pencilOf(small);
  pencil.imageSmoothingQuality = "high";
  pencil.fillStyle = "#000";
  pencil.fillRect(0, 0, width, height);
  const [scale, x, y] = $("fit").checked ? fitting() : [width / strokes.width, 0, 0];
  // Halved until it is near its size: a single large step would skip pixels.
  let source = strokes, factor = scale;
  while (factor < 0.5) { source = halved(source); factor *= 2; }
  pencil.drawImage(source, x, y, source.width * factor, source.height * factor);
  take(channelsOf(pencil.getImageData(0, 0, width, height).data), { ex: null, inv: 0 });
}

function halved(source) {
  const small = document.createElement("canvas");
  small.width = Math.ceil(source.width / 2);
  small.height = Math.ceil(source.height / 2);
  const pencil = pencilOf(small);
  pencil.imageSmoothingQuality = "high";
  pencil.drawImage(source, 0, 0, source.width / 2, source.height / 2);
  return small;
}

function fitting() {
  // At a quarter of the size: as exact as pixels of the picture need.
  const { width, height } = picture.size, small = halved(halved(strokes)), W = small.width, H = small.height;
  const data = pencilOf(small).getImageData(0, 0, W, H).data, part = strokes.width / W;
  let left = W, right = -1, top = H, bottom = -1, mass = 0, sx = 0, sy = 0;
  for (let y = 0; y < H; y++) for (let x = 0; x < W; x++) {
    const ink = data[4 * (y * W + x) + 3];
    if (!ink) continue;
    if (x < left) left = x;
    if (x > right) right = x;
    if (y < top) top = y;
    bottom = y;
    mass += ink; sx += ink * x; sy += ink * y;
  }
  if (!mass) return [width / strokes.width, 0, 0];
  const scale = Math.min((SHARE * Math.min(width, height)) / Math.max(right - left + 1, bottom - top + 1), (3 * width) / W);
  // No ink leaves the picture on the way to the center.
  const within = (centered, first, last, side) => Math.min(side - last * scale, Math.max(-first * scale, centered));
  return [
    scale / part,
    within(width / 2 - (sx / mass + 0.5) * scale, left, right + 1, width),
    within(height / 2 - (sy / mass + 0.5) * scale, top, bottom + 1, height),
  ];
}

function channelsOf(data) {
  const { width, height, channels } = picture.size;
  const bytes = new Uint8Array(width * height * channels);
  for (let k = 0; k < width * height; k++) {
    const gray = Math.round(0.299 * data[4 * k] + 0.587 * data[4 * k + 1] + 0.114 * data[4 * k + 2]);
    for (let c = 0; c < channels; c++) bytes[channels * k + c] = channels === 3 ? data[4 * k + c] : gray;
  }
  return bytes;
}

function clear() {
  drawn = false;
  begin();
  moment = 0;
  sample();
}

// --- files and test images ---

async function open(chosen) {
  const mine = ++turn;
  try {
    if (chosen.size > 8e6) throw new Error("this file is larger than 8 MB; expected an image of less");
    const found = await ask("picture", chosen);
    if (mine !== turn) return;
    drawn = false;
    picture.labels = null;
    $("invert").checked = false;
    problem("");
    take(toBytes(found.image), { ex: null, inv: 0 });
  } catch (error) {
    problem(error.message);
  }
}

export async function fetchExample(index) {
  const found = (await ask("examples", { index })).examples[0];
  return { bytes: toBytes(found.image), labels: found.labels };
}

async function takeExample(index) {
  const mine = ++turn;
  try {
    const found = await fetchExample(index);
    if (mine !== turn) return;
    drawn = false;
    picture.labels = found.labels;
    const inverted = state.ex === index && state.inv;
    $("invert").checked = Boolean(inverted);
    take(inverted ? found.bytes.map((value) => 255 - value) : found.bytes, { ex: index });
  } catch (error) {
    problem(error.message);
  }
}

const next = (index) => takeExample(((index % examples()) + examples()) % examples());

function setUpExamples() {
  const { classes, note } = about.models[0], count = examples();
  $("example-row").hidden = !count;
  $("gallery").hidden = !count || !about.models[0].labeled;
  $("no-examples").hidden = Boolean(count);
  $("no-examples").textContent = note;
  if (!count) return;
  $("example").max = count - 1;
  $("example").addEventListener("change", () => { if ($("example").value !== "") next(Math.round(Number($("example").value))); });
  $("previous").addEventListener("click", () => next((state.ex ?? 0) - 1));
  $("next").addEventListener("click", () => next((state.ex ?? -1) + 1));
  $("random").addEventListener("click", () => takeExample(randomExample()));
  classes.forEach((name, k) => $("gallery-class").append(make("option", { value: k }, name)));
  let start = 0;
  const fill = async () => {
    try {
      const found = await ask("examples", { label: Number($("gallery-class").value), start, count: 21 });
      if (!found.examples.length && start) { start = 0; return fill(); }
      $("thumbs").replaceChildren(...found.examples.map(thumb));
    } catch (error) { problem(error.message); }
  };
  $("gallery").addEventListener("toggle", () => { if ($("gallery").open) fill(); });
  $("gallery-class").addEventListener("change", () => { start = 0; fill(); });
  $("gallery-more").addEventListener("click", () => { start += 21; fill(); });
}

export const randomExample = () => Math.floor(Math.random() * examples());

function thumb({ index, labels, image }) {
  const canvas = make("canvas", { className: "pixels" });
  show(canvas, toBytes(image), picture.size);
  const button = make("button", { type: "button", onclick: () => takeExample(index) }, canvas);
  button.setAttribute("aria-label", `Test image ${index}: ${named(labels)}`);
  return button;
}

export const named = (labels) => labels.map((label) => about.models[0].classes[label]).join(" and ");
export const shows = (labels) => (labels?.length ? `shows ${named(labels)}` : "");

// --- what is shown ---

function take(bytes, values) {
  picture.bytes = bytes;
  const ex = "ex" in values ? values.ex : state.ex;
  const px = ex === null && bytes.length <= MOST_IN_ADDRESS ? toAddress(toText(bytes)) : "";
  change({ ...values, px, d: restoring ? state.d : "" });
  render();
  announce(moment);
  moment = 0;
}

function render() {
  const paper = $("paper"), pencil = paper.getContext("2d");
  if (!picture.bytes) return;
  pencil.imageSmoothingEnabled = false;
  pencil.fillStyle = "#000";
  pencil.fillRect(0, 0, paper.width, paper.height);
  if (drawn) pencil.drawImage(strokes, 0, 0);
  else {
    const small = document.createElement("canvas");
    small.width = picture.size.width;
    small.height = picture.size.height;
    small.getContext("2d").putImageData(imageData(picture.bytes, picture.size), 0, 0);
    pencil.drawImage(small, 0, 0, paper.width, paper.height);
  }
  if (document.activeElement === paper && paper.matches(":focus-visible")) {
    pencil.strokeStyle = down ? "#ff9a3c" : "#6cb2ff";
    pencil.lineWidth = 3;
    pencil.strokeRect(pen.x - 6, pen.y - 6, 12, 12);
  }
  show($("seen"), picture.bytes, picture.size);
  if (document.activeElement !== $("example")) $("example").value = state.ex ?? "";
  $("truth").textContent = shows(picture.labels);
  const what = state.ex !== null ? `test image ${state.ex}` : drawn ? "your drawing" : "your image";
  paper.setAttribute("aria-label", `Drawing area, showing ${what}`);
}

// What the address says; else the first test image, else an empty page.
let restoring = false;
export async function restore() {
  restoring = true;
  drawn = false;
  picture.labels = null;
  const { width, height, channels } = picture.size;
  let bytes = null;
  try { bytes = state.px ? toBytes(fromAddress(state.px)) : null; } catch { /* not what this page wrote */ }
  if (state.ex !== null) await takeExample(state.ex);
  else if (bytes && bytes.length === width * height * channels) {
    $("invert").checked = Boolean(state.inv);
    take(bytes, { ex: null });
  } else if (examples()) await takeExample(0);
  else clear();
  restoring = false;
}
