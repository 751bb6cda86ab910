// Side by side: routing off and each iteration, or two networks on the same image.
"use strict";

addView("compare", "Compare", (panel) => {
  const grid = make("div", { class: "compared" });
  const note = make("p", { class: "quiet" });
  let cells = null;
  let other = null; // the source of the second network

  function addCell(title, head) {
    const rosette = makeRosette(head.classes, 1.4);
    const words = make("p");
    grid.append(make("div", {}, make("p", { class: "title" }, title), rosette.svg, words));
    return { rosette, words, head };
  }

  function fill({ rosette, words, head }, look, step) {
    const shown = step ?? look;
    const [first, second] = rankClasses(shown.lengths);
    rosette.svg.style.display = step ? "" : "none";
    if (step) rosette.draw(look, step);
    words.textContent =
      `${head.classes[first]} ${two(shown.lengths[first])}` +
      (second === undefined ? "" : `, then ${head.classes[second]} ${two(shown.lengths[second])}`);
  }

  async function setUp() {
    const { head } = page.source;
    const second = page.networks.find((network) => network.role === "other");
    if (second) {
      other = await openNetwork(second);
      cells = [addCell(head.name, head), addCell(second.name, second)];
      note.textContent = "The same image, read by two networks.";
    } else {
      cells = nameSteps(page.look).map(([, title]) => addCell(title, head));
      const command = make("code", {}, "torchcaps explore RUN OTHER");
      note.replaceChildren("The same image and weights, by iterations of routing. To compare two networks: ", command);
    }
    panel.replaceChildren(note, grid);
  }

  return async () => {
    if (!cells) await setUp();
    const { look, image } = page;
    if (!other) {
      nameSteps(look).forEach(([step], n) => fill(cells[n], look, stepOf(look, step)));
      return;
    }
    fill(cells[0], look, stepOf(look));
    if (other.head.shape.join() !== page.source.head.shape.join()) {
      cells[1].words.textContent = "takes images of another size";
      return;
    }
    const second = await other.look(image);
    if (page.image === image) fill(cells[1], second, stepOf(second));
  };
});
