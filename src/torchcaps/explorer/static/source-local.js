// A source that computes: the network is in the page.
"use strict";

async function openSource(head, packed) {
  const arrays = await unpackArrays(head.arrays, packed);
  const network = new Network(head, arrays);
  return {
    head,
    arrays,
    look: async (image) => network.look(image),
    draw: async (pose, label) => network.draw(pose, label),
  };
}
