// The votes for a class, each times its coupling, tip to tail: the geometry of the rosette.
"use strict";

const MOST_VOTES = 240; // of a path that are drawn one by one; the others are one line at its end
const TURNS = 5; // of the power iteration

/** How much of the class comes from each child: length of its vote times its weight. */
function voteSizes({ data, children, classes, dim }, weights, label) {
  const sizes = new Float32Array(children);
  for (let child = 0; child < children; child++) {
    const n = child * classes + label;
    let square = 0;
    for (let d = 0; d < dim; d++) square += data[n * dim + d] ** 2;
    sizes[child] = Math.abs(weights[n]) * Math.sqrt(square);
  }
  return sizes;
}

/** Children by the size of their votes, the largest first. */
function rankChildren(votes, weights, label) {
  const sizes = voteSizes(votes, weights, label);
  return Array.from(sizes.keys()).sort((a, b) => sizes[b] - sizes[a]);
}

/**
 * The path of one class in two axes of its pose space: along the sum of its votes, and across it
 * where they spread most. Its end is `length` from the middle, along the first axis.
 *
 * `across` is the second axis of the path before, which keeps the picture from jumping; it is
 * changed. `straightness` is |sum c u| / sum |c u|.
 */
function votePath(votes, weights, label, order, length, across) {
  const { data, classes, dim } = votes;
  const total = new Float32Array(dim);
  const weighted = new Float32Array(order.length * dim);
  let sizes = 0;
  order.forEach((child, k) => {
    const n = child * classes + label;
    let square = 0;
    for (let d = 0; d < dim; d++) {
      const part = weights[n] * data[n * dim + d];
      weighted[k * dim + d] = part;
      total[d] += part;
      square += part * part;
    }
    sizes += Math.sqrt(square);
  });
  const sum = Math.hypot(...total) || 1e-9;
  const along = new Float32Array(order.length);
  for (let k = 0; k < order.length; k++) {
    for (let d = 0; d < dim; d++) along[k] += (weighted[k * dim + d] * total[d]) / sum;
    for (let d = 0; d < dim; d++) weighted[k * dim + d] -= (along[k] * total[d]) / sum;
  }
  turnAcross(weighted, across);
  const scale = length / sum;
  const points = [[0, 0]];
  let x = 0;
  let y = 0;
  for (let k = 0; k < order.length; k++) {
    x += along[k] * scale;
    for (let d = 0; d < dim; d++) y += weighted[k * dim + d] * across[d] * scale;
    const isShown = k < MOST_VOTES || k === order.length - 1;
    if (isShown) points.push([x, y]);
  }
  return { points, straightness: sizes ? sum / sizes : 0 };
}

/** Turns a unit vector towards the direction in which these vectors spread most. */
function turnAcross(vectors, across) {
  const dim = across.length;
  for (let turn = 0; turn < TURNS; turn++) {
    const next = new Float32Array(dim);
    for (let at = 0; at < vectors.length; at += dim) {
      let product = 0;
      for (let d = 0; d < dim; d++) product += vectors[at + d] * across[d];
      for (let d = 0; d < dim; d++) next[d] += product * vectors[at + d];
    }
    const norm = Math.hypot(...next);
    if (norm < 1e-12) return;
    for (let d = 0; d < dim; d++) across[d] = next[d] / norm;
  }
}

/** The logits of a child at a step, by the rule of its router; null where the page has no rule. */
function logitsOf(look, step, child) {
  const { votes, steps, router } = look;
  if (router === "attention") return step.logits ? step.logits.slice(child * votes.classes, (child + 1) * votes.classes) : null;
  if (router !== "dynamic" || (step !== look.off && !steps.includes(step))) return null;
  const logits = new Float32Array(votes.classes);
  for (const earlier of steps.slice(0, Math.max(0, steps.indexOf(step)))) {
    for (let j = 0; j < votes.classes; j++) {
      const at = (child * votes.classes + j) * votes.dim;
      for (let d = 0; d < votes.dim; d++) {
        logits[j] += votes.data[at + d] * earlier.poses[j * votes.dim + d];
      }
    }
  }
  return logits;
}
