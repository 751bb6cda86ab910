// Opens the networks of the page, and shows the first image.
"use strict";

/** The source of a network of the page, which is opened once. */
const openNetwork = (() => {
  const sources = new Map();
  return async (head) => {
    if (!sources.has(head)) {
      const packed = byId(`packed-${page.networks.indexOf(head)}`);
      sources.set(head, await openSource(head, packed.textContent));
    }
    return sources.get(head);
  };
})();

function describeNetwork({ name, parameters, accuracy }) {
  const parts = [name, `${parameters.toLocaleString("en")} parameters`];
  if (accuracy !== null) parts.push(`${(100 * accuracy).toFixed(2)} % of test images right`);
  const where = page.isLocal ? "The network is in this page; nothing leaves it." : "This machine answers; nothing leaves it.";
  return `${parts.join(" · ")}. ${where}`;
}

async function begin() {
  const content = JSON.parse(byId("content").textContent);
  page.networks = content.networks;
  page.isLocal = content.source === "local";
  const [head] = page.networks;
  if (head.examples) page.several = Math.max(...head.examples.labels.map((truth) => truth.length));
  page.source = await openNetwork(head);
  byId("about").textContent = describeNetwork(head);
  byId("drawn-figure").hidden = !(head.decoder && head.poses);
  makeLengths();
  setUpPen();
  setUpSeen();
  const state = new URLSearchParams(location.hash.slice(1));
  const index = Number(state.get("example") ?? 0);
  if (head.examples) await showExample(Math.min(index, head.examples.labels.length - 1));
  else {
    clearPaper();
    await see(new Float32Array(head.shape.reduce((product, side) => product * side, 1)));
  }
  chooseTab("votes");
  if (state.has("story")) goToStory(Number(state.get("story")) - 1);
  else showStory(0);
  if (state.has("tab")) chooseTab(state.get("tab"));
  performance.mark("first picture");
  document.documentElement.dataset.ready = "true";
}

begin().catch((error) => tell(error.message));
