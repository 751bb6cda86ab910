// The drawing area: strokes, examples and image files become what the network sees.
"use strict";

const SIDE = 280; // of the drawing area in its own pixels
const BOX = 20 / 28; // of an image that a drawn digit fills, as those of MNIST do
const PEN = 22; // width of a stroke
const KEY_STEP = 10;

const pen = { x: SIDE / 2, y: SIDE / 2, isDown: false, isFresh: true };

function inkOf() {
  const { shape } = page.source.head;
  return shape[0] >= 3 ? byId("ink").value : "#ffffff";
}

function clearPaper() {
  const context = byId("paper").getContext("2d");
  context.fillStyle = "#000";
  context.fillRect(0, 0, SIDE, SIDE);
  pen.isFresh = false;
}

function strokeTo(x, y) {
  const context = byId("paper").getContext("2d");
  context.lineCap = context.lineJoin = "round";
  context.lineWidth = PEN;
  context.strokeStyle = inkOf();
  context.beginPath();
  context.moveTo(pen.x, pen.y);
  context.lineTo(x, y);
  context.stroke();
  pen.x = x;
  pen.y = y;
}

/** Pixels of a canvas as the network takes them: [channels, height, width] in [0, 1]. */
function pixelsOf(context, [channels, height, width]) {
  const { data } = context.getImageData(0, 0, width, height);
  const plane = height * width;
  const pixels = new Float32Array(channels * plane);
  for (let n = 0; n < plane; n++) {
    const gray = 0.299 * data[4 * n] + 0.587 * data[4 * n + 1] + 0.114 * data[4 * n + 2];
    for (let channel = 0; channel < channels; channel++) {
      const isColor = channels === 3;
      pixels[channel * plane + n] = (isColor ? data[4 * n + channel] : gray) / 255;
    }
  }
  return pixels;
}

/** A canvas of the size of the images, black. */
function blankCanvas([, height, width]) {
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillRect(0, 0, width, height);
  return context;
}

/** The box of the ink: left, top, right, bottom; null without ink. */
function inkBox(context) {
  const { data } = context.getImageData(0, 0, SIDE, SIDE);
  let [left, top, right, bottom] = [SIDE, SIDE, -1, -1];
  for (let y = 0; y < SIDE; y += 2) {
    for (let x = 0; x < SIDE; x += 2) {
      const n = 4 * (y * SIDE + x);
      if (Math.max(data[n], data[n + 1], data[n + 2]) < 20) continue;
      left = Math.min(left, x);
      right = Math.max(right, x);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y);
    }
  }
  return right < 0 ? null : [left, top, right, bottom];
}

/** What is on the paper, for the network: gray drawings are sized and centered as MNIST's are. */
function readPaper() {
  const { shape } = page.source.head;
  const paper = byId("paper");
  const [channels, height, width] = shape;
  const whole = blankCanvas(shape);
  if (channels !== 1 || height !== width) {
    whole.drawImage(paper, 0, 0, width, height);
    return pixelsOf(whole, shape);
  }
  const box = inkBox(paper.getContext("2d"));
  if (!box) return new Float32Array(height * width);
  const [left, top, right, bottom] = box;
  const side = Math.max(right - left, bottom - top, SIDE / 7);
  const scale = (BOX * width) / side;
  const place = (dx, dy) => {
    const context = blankCanvas(shape);
    const x = width / 2 - (scale * (left + right)) / 2 + dx;
    const y = height / 2 - (scale * (top + bottom)) / 2 + dy;
    context.drawImage(paper, x, y, SIDE * scale, SIDE * scale);
    return pixelsOf(context, shape);
  };
  const [across, down] = inkCenter(place(0, 0), shape);
  return place(Math.round((width - 1) / 2 - across), Math.round((height - 1) / 2 - down));
}

/** The center of mass of the ink of a gray image. */
function inkCenter(pixels, [, height, width]) {
  let total = 1e-9;
  let across = 0;
  let down = 0;
  for (let n = 0; n < height * width; n++) {
    total += pixels[n];
    across += pixels[n] * (n % width);
    down += pixels[n] * Math.floor(n / width);
  }
  return [across / total, down / total];
}

/** Puts an image [channels, height, width] on the paper. */
function showOnPaper(pixels, shape) {
  clearPaper();
  const canvas = make("canvas");
  paint(canvas, pixels, shape);
  const context = byId("paper").getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, SIDE, SIDE);
  pen.isFresh = true; // the first stroke begins on black
}

/** An example of the page, and its class. */
function exampleOf(source, index) {
  const { examples, shape } = source.head;
  const size = shape.reduce((product, side) => product * side, 1);
  const bytes = source.arrays[examples.images].data;
  const pixels = Float32Array.from(bytes.subarray(index * size, (index + 1) * size), (byte) => byte / 255);
  return { pixels, truth: examples.labels[index] };
}

let exampleIndex = 0;

function showExample(index) {
  exampleIndex = index;
  const { pixels, truth } = exampleOf(page.source, index);
  showOnPaper(pixels, page.source.head.shape);
  page.pinned = null;
  page.child = null;
  const names = truth.map((k) => page.source.head.classes[k]).join(" and ");
  byId("labels").textContent = `A test image, labeled ${names}. Draw over it.`;
  return see(pixels, { truth });
}

let isDue = false;

/** Asks the network in the next frame, once for all movements until then. */
function readSoon(since) {
  byId("labels").textContent = "";
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    see(readPaper(), { since });
  });
}

function setUpPen() {
  const paper = byId("paper");
  const placeOf = (event) => {
    const box = paper.getBoundingClientRect();
    const x = ((event.clientX - box.left) * SIDE) / box.width;
    const y = ((event.clientY - box.top) * SIDE) / box.height;
    return [x, y];
  };
  const begin = () => {
    page.pinned = null;
    page.child = null;
    if (pen.isFresh) clearPaper();
  };
  paper.addEventListener("pointerdown", (event) => {
    paper.setPointerCapture(event.pointerId);
    begin();
    [pen.x, pen.y] = placeOf(event);
    pen.isDown = true;
    strokeTo(pen.x, pen.y);
    readSoon(event.timeStamp);
  });
  paper.addEventListener("pointermove", (event) => {
    if (!pen.isDown || !event.buttons) return;
    strokeTo(...placeOf(event));
    readSoon(event.timeStamp);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    paper.addEventListener(kind, () => (pen.isDown = false));
  }
  paper.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (event.key === "Delete" || event.key === "Backspace") wipe();
    else if (event.key === " ") {
      pen.isDown = !pen.isDown;
      if (pen.isDown) begin();
      paper.setAttribute("aria-description", pen.isDown ? "The pen is down" : "The pen is up");
    } else if (!move) return;
    event.preventDefault();
    if (!move) return;
    const to = [pen.x + KEY_STEP * move[0], pen.y + KEY_STEP * move[1]].map((place) =>
      Math.max(0, Math.min(SIDE, place)),
    );
    if (pen.isDown) {
      strokeTo(...to);
      readSoon(event.timeStamp);
    } else [pen.x, pen.y] = to;
  });
  const wipe = () => {
    clearPaper();
    readSoon(performance.now());
  };
  byId("clear").addEventListener("click", wipe);
  byId("file").addEventListener("change", (event) => openFile(event.target.files[0]));
  document.body.addEventListener("dragover", (event) => event.preventDefault());
  document.body.addEventListener("drop", (event) => {
    event.preventDefault();
    openFile(event.dataTransfer.files[0]);
  });
  setUpExamples();
}

function setUpExamples() {
  const { examples, shape } = page.source.head;
  byId("ink-row").hidden = shape[0] < 3;
  const buttons = ["well", "doubted", "next"].map(byId);
  for (const button of buttons) button.hidden = !examples;
  if (!examples) return;
  const [well, doubted, next] = buttons;
  for (const [index, button] of [well, doubted].entries()) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    paint(canvas, exampleOf(page.source, index).pixels, shape);
    button.prepend(canvas);
  }
  well.addEventListener("click", () => showExample(0));
  doubted.addEventListener("click", () => showExample(1));
  next.addEventListener("click", () => showExample((exampleIndex + 1) % examples.labels.length));
}

/** Shows an image file, fitted to the size of the images. */
async function openFile(file) {
  if (!file) return;
  const { shape } = page.source.head;
  try {
    const bitmap = await createImageBitmap(file);
    const context = blankCanvas(shape);
    context.drawImage(bitmap, 0, 0, shape[2], shape[1]);
    const pixels = pixelsOf(context, shape);
    showOnPaper(pixels, shape);
    byId("labels").textContent = file.name;
    await see(pixels);
  } catch {
    tell(`${file.name}: is not an image that this browser reads`);
  }
}
