// Pictures of parts as the set `faces` draws them, and the layers of a CNN.
"use strict";

/** A glyph as rows of brightness from 0 to 1. */
const bitmapOf = (glyph) => glyph.split(" ").map((row) => Array.from(row, (digit) => digit / 9));

/** Numbers of mean 0 and deviation 1, the same for the same seed. */
function drawNormal(count, seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0; // mulberry32
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
  return Float64Array.from({ length: count }, () => {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform())); // Box and Muller
    return radius * Math.cos(2 * Math.PI * uniform());
  });
}

/** Adds a part to pixels; it is turned counterclockwise about its middle, by bilinear sampling. */
function addPart(pixels, { side, part, brightness }, bitmap, { row, column, angle }) {
  const middle = (part - 1) / 2;
  const reach = Math.ceil(part / Math.SQRT2 - middle); // pixels beyond the part that its corners reach
  const cosine = Math.cos((angle * Math.PI) / 180);
  const sine = Math.sin((angle * Math.PI) / 180);
  const at = (y, x) => bitmap[y]?.[x] ?? 0;
  for (let y = -reach; y < part + reach; y++) {
    for (let x = -reach; x < part + reach; x++) {
      if (row + y < 0 || row + y >= side || column + x < 0 || column + x >= side) continue;
      const right = middle + (x - middle) * cosine - (y - middle) * sine;
      const down = middle + (x - middle) * sine + (y - middle) * cosine;
      const left = Math.floor(right);
      const top = Math.floor(down);
      const across = right - left;
      const along = down - top;
      const upper = (1 - across) * at(top, left) + across * at(top, left + 1);
      const lower = (1 - across) * at(top + 1, left) + across * at(top + 1, left + 1);
      pixels[(row + y) * side + column + x] += brightness * ((1 - along) * upper + along * lower);
    }
  }
}

/** Pixels in [0, 1] of 256 steps; without a seed there is no noise. */
function drawParts(drawing, parts, seed = null) {
  const { side, background, noise } = drawing;
  const pixels = new Float64Array(side * side).fill(background);
  for (const part of parts) addPart(pixels, drawing, bitmapOf(drawing.glyphs[part.glyph]), part);
  const noises = seed === null ? null : drawNormal(pixels.length, seed);
  return Float32Array.from(pixels, (value, n) => {
    const noisy = noises ? value + noise * noises[n] : value;
    return Math.max(0, Math.min(255, Math.round(255 * noisy))) / 255;
  });
}

/** The largest number of each window of a map, or of the whole map of each channel. */
OPERATIONS.pool = (map, { size }) => {
  const [channels, height, width] = map.shape;
  const [down, across] = size === null ? [height, width] : [size, size];
  const rows = Math.floor(height / down);
  const columns = Math.floor(width / across);
  const result = new Float32Array(channels * rows * columns).fill(-Infinity);
  for (let channel = 0; channel < channels; channel++) {
    for (let y = 0; y < rows * down; y++) {
      for (let x = 0; x < columns * across; x++) {
        const to = (channel * rows + Math.floor(y / down)) * columns + Math.floor(x / across);
        const value = map.data[(channel * height + y) * width + x];
        if (value > result[to]) result[to] = value;
      }
    }
  }
  return { data: result, shape: [channels, rows, columns] };
};

/** Probabilities of the classes, as what a network gives. */
OPERATIONS.softmax = ({ data }) => {
  const top = Math.max(...data);
  const powers = Float64Array.from(data, (logit) => Math.exp(logit - top));
  const sum = powers.reduce((total, power) => total + power, 0);
  return { lengths: powers.map((power) => power / sum), poses: null };
};

/** A network of the page: its large weights are whole numbers, with a scale for each row. */
async function openNetwork(head, packed) {
  const arrays = await unpackArrays(head.arrays, packed);
  for (const [place, scale] of Object.entries(head.scales)) {
    const { shape, data } = arrays[place];
    const row = data.length / shape[0];
    const steps = Int8Array.from(data);
    const weights = Float32Array.from(steps, (step, n) => step * arrays[scale].data[Math.floor(n / row)]);
    arrays[place] = { shape, data: weights };
  }
  return new Network(head, arrays);
}

const BAND = 4; // rows of a map that are computed together
const STEP = 12; // milliseconds without a pause

/** Lets the page draw, if it has waited for long enough. */
const breathe = (() => {
  let last = 0;
  return async () => {
    if (performance.now() - last < STEP) return;
    await new Promise((resolve) => setTimeout(resolve));
    last = performance.now();
  };
})();

/** A convolution, band after band, so that a part follows the pointer while it is computed. */
async function convolveBands(map, layer, parts) {
  const [channels, height, width] = map.shape;
  const [above, left] = layer.padding;
  const padded = new Float32Array(channels * (height + 2 * above) * width);
  const plane = (height + 2 * above) * width;
  for (let channel = 0; channel < channels; channel++) {
    const rows = map.data.subarray(channel * height * width, (channel + 1) * height * width);
    padded.set(rows, channel * plane + above * width);
  }
  const [outputs, , kernel] = parts.weight.shape;
  const [step] = layer.stride;
  const count = Math.floor((height + 2 * above - kernel) / step) + 1;
  const bands = [];
  for (let first = 0; first < count; first += BAND) {
    const rows = (Math.min(BAND, count - first) - 1) * step + kernel;
    const data = new Float32Array(channels * rows * width);
    for (let channel = 0; channel < channels; channel++) {
      const start = channel * plane + first * step * width;
      data.set(padded.subarray(start, start + rows * width), channel * rows * width);
    }
    const band = { data, shape: [channels, rows, width] };
    bands.push(OPERATIONS.convolve(band, { ...layer, padding: [0, left] }, parts));
    await breathe();
  }
  const columns = bands[0].shape[2];
  const result = new Float32Array(outputs * count * columns);
  bands.forEach(({ data, shape: [, rows] }, n) => {
    for (let output = 0; output < outputs; output++) {
      const from = data.subarray(output * rows * columns, (output + 1) * rows * columns);
      result.set(from, (output * count + n * BAND) * columns);
    }
  });
  return { data: result, shape: [outputs, count, columns] };
}

/** The lengths of the capsules of an image, or the probabilities of a CNN; see `Network.look`. */
async function lookCalmly(network, image) {
  let state = { data: image, shape: network.shape };
  for (const [layer, parts] of network.layers) {
    if (layer.op === "convolve") state = await convolveBands(state, layer, parts);
    else if (layer.op !== "route") state = OPERATIONS[layer.op](state, layer, parts);
    else state = routeVotes(castVotes(state, parts), layer, parts).steps.at(-1);
  }
  return state.lengths;
}
