// A source that asks the server of this machine, for every model that a page cannot carry.
"use strict";

async function ask(path, request) {
  const response = await fetch(path, { method: "POST", body: JSON.stringify(request) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** Numbers as the server takes them: float32, in base64. */
function encodeFloats(numbers) {
  let letters = "";
  for (const byte of new Uint8Array(Float32Array.from(numbers).buffer)) {
    letters += String.fromCharCode(byte);
  }
  return btoa(letters);
}

const decodeFloats = (text) => new Float32Array(decodeBytes(text).buffer);

function readStep({ couplings, weights, lengths, poses }) {
  return {
    couplings: decodeFloats(couplings),
    weights: decodeFloats(weights),
    lengths: decodeFloats(lengths),
    poses: decodeFloats(poses),
  };
}

async function openSource(head, packed) {
  const arrays = await unpackArrays(head.arrays, packed);
  const { model } = head;
  return {
    head,
    arrays,
    async look(image) {
      const answer = await ask("look", { model, image: encodeFloats(image) });
      const look = { lengths: decodeFloats(answer.lengths), steps: [], router: answer.router };
      if (answer.poses) look.poses = decodeFloats(answer.poses);
      if (answer.seen) look.seen = decodeFloats(answer.seen);
      if (answer.votes) {
        look.votes = { ...answer.sizes, data: decodeFloats(answer.votes) };
        look.steps = answer.steps.map(readStep);
        look.off = readStep(answer.off);
      }
      return look;
    },
    async draw(pose, label) {
      return decodeFloats((await ask("draw", { model, label, pose: encodeFloats(pose) })).drawing);
    },
  };
}
