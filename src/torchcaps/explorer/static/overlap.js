// Two digits in one image: a small network that was trained on pairs, and its two longest capsules.
"use strict";

function addOverlap(head) {
  addView("overlap", "Overlap", (panel) => {
    let source = null;
    let index = 0;
    const row = make("div", { class: "row", role: "group", "aria-label": "Pairs" });
    const pictures = make("div", { class: "pair" });
    const answer = make("p", { role: "status" });
    const note = make("p", { class: "quiet" });
    let rosette = null;

    async function show(next) {
      index = next;
      const { head: about } = source;
      const { pixels, truth } = exampleOf(source, index);
      const look = await source.look(pixels);
      const found = rankClasses(look.lengths).slice(0, 2);
      for (const button of row.children) button.setAttribute("aria-pressed", Number(button.dataset.index) === index);
      const seen = make("canvas", { role: "img", "aria-label": `A pair: ${truth.map((k) => about.classes[k]).join(" and ")}` });
      paint(seen, pixels, about.shape);
      const figures = [make("figure", {}, seen, make("figcaption", {}, `both, labeled ${truth.map((k) => about.classes[k]).join(" and ")}`))];
      for (const k of found) {
        const drawn = make("canvas", { role: "img", "aria-label": `Drawn by capsule ${about.classes[k]}` });
        paint(drawn, await source.draw(poseOf(look, k), k), about.shape);
        figures.push(make("figure", {}, drawn, make("figcaption", {}, `capsule ${about.classes[k]}, ${two(look.lengths[k])}`)));
      }
      pictures.replaceChildren(...figures);
      answer.textContent = found.map((k) => `${about.classes[k]} ${truth.includes(k) ? "✓" : "✗"}`).join("  ");
      rosette.draw(look, look.steps.at(-1), found[1]);
    }

    return async () => {
      if (source) return;
      source = await openNetwork(head);
      rosette = makeRosette(head.classes);
      head.examples.labels.forEach((truth, k) => {
        const title = !head.examples.right[k] ? "one that it reads wrong" : truth.map((label) => head.classes[label]).join(" + ");
        row.append(make("button", { "data-index": k, onclick: () => show(k) }, title));
      });
      const share = head.accuracy === null ? "" : ` It reads both digits of ${(100 * head.accuracy).toFixed(0)} % of its test pairs.`;
      note.textContent = `A smaller network, trained on pairs of digits; the network on the left has seen none.${share}`;
      panel.replaceChildren(row, answer, pictures, rosette.svg, note);
      await show(0);
    };
  });
}
