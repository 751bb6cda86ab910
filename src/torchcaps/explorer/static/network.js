// A capsule network without any runtime: a list of layers in words, and their weights.
"use strict";

const BYTES = { half: 2, float: 4, byte: 1 };
const EPSILON = 1e-8; // added to a squared norm

/** All float16 numbers as floats, by their bits. */
const halfTable = (() => {
  let table = null;
  return () => {
    if (table) return table;
    table = new Float32Array(65536);
    for (let bits = 0; bits < 65536; bits++) {
      const sign = bits & 0x8000 ? -1 : 1;
      const exponent = (bits >> 10) & 31;
      const fraction = (bits & 1023) / 1024;
      if (exponent === 0) table[bits] = sign * fraction * 2 ** -14;
      else if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
      else table[bits] = sign * (1 + fraction) * 2 ** (exponent - 15);
    }
    return table;
  };
})();

/** The bytes of a text in base64. */
function decodeBytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let n = 0; n < bytes.length; n++) bytes[n] = letters.charCodeAt(n);
  return bytes;
}

/** The arrays of a network: of each, all first bytes stand before all second ones, and so on. */
async function unpackArrays(table, text) {
  const stream = new Blob([decodeBytes(text)]).stream();
  const inflated = stream.pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(inflated).arrayBuffer());
  return table.map(({ kind, shape, at }) => {
    const count = shape.reduce((product, side) => product * side, 1);
    return { shape, data: READERS[kind](bytes.subarray(at, at + count * BYTES[kind]), count) };
  });
}

const READERS = {
  byte: (planes) => planes,
  half(planes, count) {
    const table = halfTable();
    const data = new Float32Array(count);
    for (let n = 0; n < count; n++) data[n] = table[planes[n] | (planes[count + n] << 8)];
    return data;
  },
  float(planes, count) {
    const numbers = new Uint8Array(4 * count);
    for (let plane = 0; plane < 4; plane++) {
      for (let n = 0; n < count; n++) numbers[4 * n + plane] = planes[plane * count + n];
    }
    return new Float32Array(numbers.buffer);
  },
};

/** Shrinks vectors in place; returns their lengths. "steep" is the squash of Efficient-CapsNet. */
function squashVectors(vectors, dim, kind = "squash") {
  const lengths = new Float32Array(vectors.length / dim);
  for (let n = 0; n < lengths.length; n++) {
    let square = EPSILON;
    for (let d = 0; d < dim; d++) square += vectors[n * dim + d] ** 2;
    const norm = Math.sqrt(square);
    const length = kind === "steep" ? -Math.expm1(-norm) : square / (1 + square);
    for (let d = 0; d < dim; d++) vectors[n * dim + d] *= length / norm;
    lengths[n] = length;
  }
  return lengths;
}

/** A convolution of a map [channels, height, width]; most of its numbers are zero. */
function convolve(map, layer, { weight, bias }) {
  const [outputs, channels, kernelHeight, kernelWidth] = weight.shape;
  const [, height, width] = map.shape;
  const [downStep, rightStep] = layer.stride;
  const [above, left] = layer.padding;
  const rows = Math.floor((height + 2 * above - kernelHeight) / downStep) + 1;
  const columns = Math.floor((width + 2 * left - kernelWidth) / rightStep) + 1;
  const size = channels * kernelHeight * kernelWidth;
  const patch = new Float32Array(size); // its numbers that are not zero
  const places = new Int32Array(size); // and where they are
  const result = new Float32Array(outputs * rows * columns);
  const w = weight.data;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      let count = 0;
      for (let channel = 0, k = 0; channel < channels; channel++) {
        for (let a = 0; a < kernelHeight; a++) {
          const y = row * downStep + a - above;
          const start = (channel * height + y) * width;
          for (let b = 0; b < kernelWidth; b++, k++) {
            const x = column * rightStep + b - left;
            if (y < 0 || y >= height || x < 0 || x >= width) continue;
            const value = map.data[start + x];
            if (value === 0) continue;
            patch[count] = value;
            places[count++] = k;
          }
        }
      }
      const to = row * columns + column;
      const plane = rows * columns;
      for (let o = 0; o < outputs; o += 4) {
        dotFour(w, o, outputs - 1, size, patch, places, count);
        for (let n = 0; n < 4 && o + n < outputs; n++) {
          result[(o + n) * plane + to] = SUMS[n] + (bias ? bias.data[o + n] : 0);
        }
      }
    }
  }
  return { data: result, shape: [outputs, rows, columns] };
}

const SUMS = new Float64Array(4); // of `dotFour`

/** Products of the numbers of a patch with four rows of a matrix; beyond the last it repeats. */
function dotFour(w, row, last, size, patch, places, count) {
  const first = row * size;
  const second = Math.min(row + 1, last) * size;
  const third = Math.min(row + 2, last) * size;
  const fourth = Math.min(row + 3, last) * size;
  let s0 = 0;
  let s1 = 0;
  let s2 = 0;
  let s3 = 0;
  for (let n = 0; n < count; n++) {
    const v = patch[n];
    const k = places[n];
    s0 += w[first + k] * v;
    s1 += w[second + k] * v;
    s2 += w[third + k] * v;
    s3 += w[fourth + k] * v;
  }
  SUMS[0] = s0;
  SUMS[1] = s1;
  SUMS[2] = s2;
  SUMS[3] = s3;
}

function rectify(map, { slope }) {
  return { shape: map.shape, data: map.data.map((value) => (value < 0 ? slope * value : value)) };
}

/** A factor and a shift for each channel. */
function scaleChannels(map, _, { factor, shift }) {
  const plane = map.data.length / map.shape[0];
  const scaled = map.data.map((value, n) => {
    const channel = Math.floor(n / plane);
    return value * factor.data[channel] + shift.data[channel];
  });
  return { shape: map.shape, data: scaled };
}

/** Mean 0 and deviation 1 for each channel of the image, then a factor and a shift. */
function normalizeChannels(map, { eps }, parts) {
  const plane = map.data.length / map.shape[0];
  const normal = new Float32Array(map.data.length);
  for (let channel = 0; channel < map.shape[0]; channel++) {
    const values = map.data.subarray(channel * plane, (channel + 1) * plane);
    const mean = values.reduce((sum, value) => sum + value, 0) / plane;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / plane;
    const scale = 1 / Math.sqrt(variance + eps);
    normal.set(values.map((value) => (value - mean) * scale), channel * plane);
  }
  return scaleChannels({ shape: map.shape, data: normal }, null, parts);
}

/** One number for each channel: its map times a kernel of its size. */
function weighMaps(map, _, { weight, bias }) {
  const [channels, rows, columns] = weight.shape;
  const [, height, width] = map.shape;
  const sums = new Float32Array(channels);
  for (let channel = 0; channel < channels; channel++) {
    let sum = bias ? bias.data[channel] : 0;
    for (let y = 0; y < rows; y++) {
      for (let x = 0; x < columns; x++) {
        const value = map.data[(channel * height + y) * width + x];
        sum += value * weight.data[(channel * rows + y) * columns + x];
      }
    }
    sums[channel] = sum;
  }
  return { data: sums, shape: [channels, 1, 1] };
}

/** Channels to capsules: [children, dim], position after position unless "flat". */
function groupCapsules(map, { dim, by, squash }) {
  const [channels, rows, columns] = map.shape;
  const plane = rows * columns;
  let poses = Float32Array.from(map.data);
  if (by === "position") {
    for (let channel = 0; channel < channels; channel++) {
      for (let n = 0; n < plane; n++) poses[n * channels + channel] = map.data[channel * plane + n];
    }
  }
  const lengths = squashVectors(poses, dim, squash);
  return { poses, lengths, dim };
}

/** A vote of each child for each class: its matrix times its pose. */
function castVotes({ poses }, { weight }) {
  const [children, classes, dim, inner] = weight.shape;
  const votes = new Float32Array(children * classes * dim);
  const w = weight.data;
  for (let child = 0; child < children; child++) {
    for (let n = child * classes * dim; n < (child + 1) * classes * dim; n++) {
      let sum = 0;
      for (let k = 0; k < inner; k++) sum += w[n * inner + k] * poses[child * inner + k];
      votes[n] = sum;
    }
  }
  return { data: votes, children, classes, dim };
}

/** Softmax of logits over the classes of a child, or, by mistake of old code, over children. */
function coupleVotes(logits, { children, classes }, { leaky = false, over = "parents" } = {}) {
  const [groups, members] = over === "parents" ? [children, classes] : [classes, children];
  const [groupStep, memberStep] = over === "parents" ? [classes, 1] : [1, classes];
  const couplings = new Float32Array(logits.length);
  for (let group = 0; group < groups; group++) {
    let top = leaky ? 0 : -Infinity;
    for (let m = 0; m < members; m++) {
      top = Math.max(top, logits[group * groupStep + m * memberStep]);
    }
    let sum = leaky ? Math.exp(-top) : 0;
    for (let m = 0; m < members; m++) {
      const n = group * groupStep + m * memberStep;
      couplings[n] = Math.exp(logits[n] - top);
      sum += couplings[n];
    }
    for (let m = 0; m < members; m++) couplings[group * groupStep + m * memberStep] /= sum;
  }
  return couplings;
}

/** Class capsules of weighted votes. */
function addVotes(votes, weights, bias, squash) {
  const { children, classes, dim } = votes;
  const poses = new Float32Array(classes * dim);
  for (let child = 0; child < children; child++) {
    for (let j = 0; j < classes; j++) {
      const weight = weights[child * classes + j];
      const at = (child * classes + j) * dim;
      for (let d = 0; d < dim; d++) poses[j * dim + d] += weight * votes.data[at + d];
    }
  }
  if (bias) bias.data.forEach((value, n) => (poses[n] += value));
  const lengths = squashVectors(poses, dim, squash);
  return { poses, lengths };
}

/** Products of every vote with a vector of its class. */
function agreeVotes(votes, vectors) {
  const { children, classes, dim } = votes;
  const products = new Float32Array(children * classes);
  for (let n = 0; n < products.length; n++) {
    let sum = 0;
    const at = (n % classes) * dim;
    for (let d = 0; d < dim; d++) sum += votes.data[n * dim + d] * vectors[at + d];
    products[n] = sum;
  }
  return products;
}

/** Routing by agreement (arXiv 1710.09829, procedure 1), or by self-attention (arXiv 2101.12491). */
function routeVotes(votes, layer, { bias, prior }) {
  const none = new Float32Array(votes.children * votes.classes);
  const steps = [];
  const addPrior = (c) => (prior ? c.map((value, n) => value + prior.data[n]) : c);
  const squash = layer.router === "attention" ? "steep" : "squash";
  const couple = (logits) => {
    const couplings = coupleVotes(logits, votes, layer);
    const weights = addPrior(couplings);
    return { couplings, weights, logits, ...addVotes(votes, weights, bias, squash) };
  };
  const off = couple(none);
  if (layer.router === "attention") {
    const sums = new Float32Array(votes.classes * votes.dim);
    votes.data.forEach((value, n) => (sums[n % sums.length] += value));
    steps.push(couple(agreeVotes(votes, sums).map((product) => product / layer.scale)));
  } else {
    let logits = none;
    for (let step = 0; step < layer.iterations; step++) {
      steps.push(couple(logits));
      const products = agreeVotes(votes, steps[step].poses);
      logits = logits.map((value, n) => value + products[n]);
    }
  }
  return { votes, steps, off };
}

/** A linear layer. */
function multiply(x, weight, bias) {
  const [rows, columns] = weight.shape;
  const result = Float32Array.from(bias.data);
  for (let row = 0; row < rows; row++) {
    let sum = 0;
    for (let k = 0; k < columns; k++) sum += weight.data[row * columns + k] * x[k];
    result[row] += sum;
  }
  return result;
}

const OPERATIONS = {
  convolve,
  rectify,
  scale: scaleChannels,
  normalize: normalizeChannels,
  weigh: weighMaps,
  group: groupCapsules,
};
const TENSORS = ["weight", "bias", "factor", "shift", "prior"];

/** A network of the page. */
class Network {
  constructor({ network, shape }, arrays) {
    this.shape = shape;
    this.drawn = network.drawn;
    this.tensors = network.tensors.map((place) => arrays[place]);
    this.layers = network.layers.map((layer) => [layer, this.partsOf(layer)]);
    this.decoder = network.decoder.map((layer) => this.partsOf(layer));
  }

  partsOf(layer) {
    const parts = {};
    for (const key of TENSORS) {
      if (layer[key] !== undefined && layer[key] !== null) parts[key] = this.tensors[layer[key]];
    }
    return parts;
  }

  /** What the network makes of an image [channels, height, width] in [0, 1]. */
  look(image) {
    let state = { data: image, shape: this.shape };
    let routed = null;
    for (const [layer, parts] of this.layers) {
      if (layer.op !== "route") {
        state = OPERATIONS[layer.op](state, layer, parts);
        continue;
      }
      const presence = state.lengths;
      routed = { presence, router: layer.router, ...routeVotes(castVotes(state, parts), layer, parts) };
      const { poses, lengths } = routed.steps.at(-1);
      state = { poses, lengths };
    }
    return { ...routed, lengths: state.lengths, poses: state.poses };
  }

  /** What the decoder draws of the pose of one class, at the size of the images. */
  draw(pose, label) {
    const [first] = this.decoder;
    let x = new Float32Array(first.weight.shape[1]);
    x.set(pose, label * pose.length);
    this.decoder.forEach(({ weight, bias }, n) => {
      x = multiply(x, weight, bias);
      const isLast = n === this.decoder.length - 1;
      x = x.map((value) => (isLast ? 1 / (1 + Math.exp(-value)) : Math.max(0, value)));
    });
    return enlarge(x, this.drawn, this.shape);
  }
}

/** Pixels at another size, by bilinear interpolation. */
function enlarge(pixels, [channels, rows, columns], [, height, width]) {
  if (rows === height && columns === width) return pixels;
  const result = new Float32Array(channels * height * width);
  const place = (n, from, to) => Math.max(0, Math.min(from - 1, ((n + 0.5) * from) / to - 0.5));
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const down = place(y, rows, height);
      const right = place(x, columns, width);
      const top = Math.floor(down);
      const left = Math.floor(right);
      const bottom = Math.min(top + 1, rows - 1);
      const end = Math.min(left + 1, columns - 1);
      for (let channel = 0; channel < channels; channel++) {
        const at = (row, column) => pixels[(channel * rows + row) * columns + column];
        const upper = at(top, left) + (right - left) * (at(top, end) - at(top, left));
        const lower = at(bottom, left) + (right - left) * (at(bottom, end) - at(bottom, left));
        result[(channel * height + y) * width + x] = upper + (down - top) * (lower - upper);
      }
    }
  }
  return result;
}
