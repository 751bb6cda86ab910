// The input turned, resized and moved: how the lengths follow.
"use strict";

const MOTIONS = {
  turn: { title: "Turn", unit: "°", low: -90, high: 90, steps: 13 },
  size: { title: "Resize", unit: "%", low: 50, high: 150, steps: 11, rest: 100 },
  right: { title: "Move right", unit: " px", low: -8, high: 8, steps: 9 },
  down: { title: "Move down", unit: " px", low: -8, high: 8, steps: 9 },
};
const WIDTH = 520;
const HEIGHT = 220;
const LEFT = 34 / WIDTH; // of the plot, before its first amount
const SPAN = (100 * (WIDTH - 74)) / WIDTH; // from the first amount to the last, in percent

/** An image turned, resized or moved about its middle. */
function moveImage(pixels, shape, kind, amount) {
  const [channels, height, width] = shape;
  const result = new Float32Array(pixels.length);
  const angle = kind === "turn" ? (-amount * Math.PI) / 180 : 0;
  const scale = kind === "size" ? 100 / amount : 1;
  const right = kind === "right" ? amount : 0;
  const down = kind === "down" ? amount : 0;
  const [middleX, middleY] = [(width - 1) / 2, (height - 1) / 2];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const dx = (x - middleX - right) * scale;
      const dy = (y - middleY - down) * scale;
      const fromX = middleX + dx * Math.cos(angle) - dy * Math.sin(angle);
      const fromY = middleY + dx * Math.sin(angle) + dy * Math.cos(angle);
      const left = Math.floor(fromX);
      const top = Math.floor(fromY);
      for (let channel = 0; channel < channels; channel++) {
        let value = 0;
        for (const [a, b] of [[0, 0], [0, 1], [1, 0], [1, 1]]) {
          const [row, column] = [top + a, left + b];
          if (row < 0 || row >= height || column < 0 || column >= width) continue;
          const share = (1 - Math.abs(fromY - row)) * (1 - Math.abs(fromX - column));
          value += share * pixels[(channel * height + row) * width + column];
        }
        result[(channel * height + y) * width + x] = value;
      }
    }
  }
  return result;
}

addView("transform", "Transform", (panel) => {
  const row = make("div", { class: "row", role: "group", "aria-label": "What is changed" });
  const plot = makeSvg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const slider = make("input", { type: "range", "aria-label": "Amount of the change" });
  const words = make("p", { class: "quiet" });
  const strip = make("div", { class: "strip", tabindex: 0, role: "group", "aria-label": "The changed images, and what is drawn back" });
  let kind = "turn";
  let sweep = null; // of an image: amounts, images and looks
  for (const [name, { title }] of Object.entries(MOTIONS)) {
    row.append(make("button", { "data-kind": name, onclick: () => choose(name) }, title));
  }
  slider.addEventListener("input", () => showPlot());

  async function choose(name) {
    kind = name;
    sweep = null;
    const { low, high, rest = 0 } = MOTIONS[name];
    Object.assign(slider, { min: low, max: high, step: (high - low) / 100, value: rest });
    await measure();
  }

  async function measure() {
    const { image, source } = page;
    const { low, high, steps } = MOTIONS[kind];
    for (const button of row.children) button.setAttribute("aria-pressed", button.dataset.kind === kind);
    const amounts = Array.from({ length: steps }, (_, n) => low + (n * (high - low)) / (steps - 1));
    const looks = [];
    const images = amounts.map((amount) => moveImage(image, source.head.shape, kind, amount));
    for (const one of images) looks.push(shownOf(await source.look(one)));
    if (page.image !== image || page.tab !== "transform") return;
    sweep = { image, kind, amounts, images, looks, step: page.step };
    showPlot();
    await showStrip();
  }

  function showPlot() {
    if (!sweep) return;
    const { head } = page.source;
    const { amounts, looks } = sweep;
    const { low, high, unit } = MOTIONS[sweep.kind];
    const peaks = head.classes.map((_, k) => Math.max(...looks.map(({ lengths }) => lengths[k])));
    const chosen = chosenOf(page.look);
    const ranked = rankClasses(Float32Array.from(peaks));
    const rival = ranked.find((k) => k !== chosen);
    const winners = looks.map(({ lengths }) => rankClasses(lengths)[0]);
    const top = [...new Set([chosen, ...ranked.slice(0, 3), ...winners])];
    const x = (amount) => 34 + ((amount - low) / (high - low)) * (WIDTH - 74);
    const y = (length) => HEIGHT - 24 - length * (HEIGHT - 40);
    plot.replaceChildren();
    for (const length of [0, 0.5, 1]) {
      plot.append(makeSvg("line", { class: "axis", x1: 34, x2: WIDTH - 40, y1: y(length), y2: y(length) }));
      const number = makeSvg("text", { x: 28, y: y(length) + 4, "text-anchor": "end" });
      number.textContent = length;
      plot.append(number);
    }
    for (const amount of [low, (low + high) / 2, high]) {
      const number = makeSvg("text", { x: x(amount), y: HEIGHT - 6, "text-anchor": "middle" });
      number.textContent = `${amount}${unit}`;
      plot.append(number);
    }
    const at = Number(slider.value);
    plot.append(makeSvg("line", { class: "marker", x1: x(at), x2: x(at), y1: y(1), y2: y(0) }));
    const ends = top.map((k) => ({ k, y: y(looks.at(-1).lengths[k]) })).sort((a, b) => b.y - a.y);
    let free = y(0); // the lowest place at which a name may stand
    for (const { k, y: end } of ends) {
      const kindOf = k === chosen ? "curve longest" : k === rival ? "curve chosen" : "curve";
      const points = amounts.map((amount, n) => [x(amount), y(looks[n].lengths[k])]);
      plot.append(makeSvg("path", { class: kindOf, d: lineThrough(points) }));
      const at = Math.min(end, free);
      free = at - 14;
      const name = makeSvg("text", { class: kindOf.replace("curve", ""), x: WIDTH - 36, y: at + 4 });
      name.textContent = head.classes[k].slice(0, 6);
      plot.append(name);
    }
    const nearest = amounts.reduce((best, amount, n) => (Math.abs(amount - at) < Math.abs(amounts[best] - at) ? n : best), 0);
    const { lengths } = looks[nearest];
    const longest = winners[nearest];
    const name = head.classes[chosen];
    words.textContent =
      `At ${Math.round(amounts[nearest])}${unit} the longest capsule is ${head.classes[longest]}, ${two(lengths[longest])}` +
      (longest === chosen ? ". " : `; ${name} has ${two(lengths[chosen])}. `) +
      `Blue: ${name}, the class looked into; dashed: ${head.classes[rival]}, its strongest rival; gray: others.`;
    plot.setAttribute("aria-label", `Lengths while the image changes. ${words.textContent}`);
  }

  async function showStrip() {
    const { source } = page;
    const { images, looks, amounts } = sweep;
    const column = SPAN / (amounts.length - 1); // so that each image stands below its amount
    strip.style.marginLeft = `${100 * LEFT - column / 2}%`;
    strip.style.width = `${SPAN + column}%`;
    strip.replaceChildren();
    for (const [n, image] of images.entries()) {
      const label = rankClasses(looks[n].lengths)[0];
      const seen = make("canvas", { role: "img", "aria-label": `${Math.round(amounts[n])}: seen` });
      paint(seen, image, source.head.shape);
      const parts = [seen];
      if (source.head.decoder && source.head.poses) {
        const drawn = make("canvas", { role: "img", "aria-label": "drawn back" });
        paint(drawn, await source.draw(poseOf(looks[n], label), label), source.head.shape);
        parts.push(drawn);
      }
      strip.append(make("figure", {}, ...parts, make("figcaption", {}, source.head.classes[label])));
    }
  }

  return () => {
    if (!plot.isConnected) {
      panel.replaceChildren(row, plot, slider, words, strip);
      return choose(kind);
    }
    if (sweep?.image === page.image && sweep.step === page.step) return showPlot();
    return measure();
  };
});
