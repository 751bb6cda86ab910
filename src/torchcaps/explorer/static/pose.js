// The pose: what the decoder draws along the axes on which the poses of a class vary.
"use strict";

const REACH = 2.5; // standard deviations on either side
const RAW_REACH = 0.5;
const NAMES_OF_AXES = { across: "position →", down: "position ↓" };

addView("pose", "Pose", (panel) => {
  const drawing = make("canvas", { id: "pose-drawing", role: "img" });
  const difference = make("canvas", { role: "img", "aria-label": "Difference of two drawings: blue is added, orange removed" });
  const changes = make("span");
  const note = make("p", { class: "quiet" });
  const sliders = make("div", { class: "sliders" });
  const raw = make("div", { class: "sliders" });
  const details = make("details", {}, make("summary", {}, "raw: each number by itself"), raw);
  const reset = make("button", { onclick: () => start() }, "Back to the image");
  const wide = make("div", { class: "wide" }, note, sliders, make("div", { class: "row" }, reset), details);
  const figure = (canvas, words) => make("figure", {}, canvas, make("figcaption", {}, words));
  const layout = make("div", { class: "pose" });
  layout.append(figure(drawing, "drawn: drag it"), figure(difference, changes), wide);
  let base = null; // the pose of the image
  let pose = null;
  let label = 0;
  let shown = null; // the look whose pose this is
  let touched = 0; // the axis whose change is shown until the pose is moved

  /** Numbers along the axes, in standard deviations from the mean pose of the class. */
  function amountsOf({ mean, axes, deviations }) {
    return axes.map((axis, k) => axis.reduce((sum, value, d) => sum + value * (pose[d] - mean[d]), 0) / deviations[k]);
  }

  async function redraw() {
    const { source } = page;
    const axes = source.head.axes[label];
    const amounts = axes ? amountsOf(axes) : [];
    const [before, after] = [await source.draw(base, label), await source.draw(pose, label)];
    paint(drawing, after, source.head.shape);
    let changed = after;
    changes.textContent = "your change: blue is added, orange removed";
    if (axes && pose.every((value, d) => value === base[d])) {
      const step = amounts[touched] > 0 ? -2 : 2;
      changed = await source.draw(moved(touched, step), label);
      changes.textContent = `“${nameOf(axes, touched)}” 2 ${step > 0 ? "higher" : "lower"} adds blue, removes orange`;
    }
    paintDifference(difference, changed.map((value, n) => value - before[n]), source.head.shape);
    drawing.setAttribute("aria-label", `Drawing of ${source.head.classes[label]}, length ${two(Math.hypot(...pose))}`);
    if (axes) setValues(sliders, amounts, 1);
    setValues(raw, Array.from(pose), 2);
  }

  function setValues(list, values, digits) {
    list.querySelectorAll("input").forEach((input, k) => {
      if (document.activeElement !== input) input.value = values[k];
    });
    list.querySelectorAll("output").forEach((output, k) => (output.textContent = values[k].toFixed(digits)));
  }

  function addSlider(list, name, reach, change) {
    const input = make("input", { type: "range", min: -reach, max: reach, step: reach / 50, "aria-label": name });
    input.addEventListener("input", () => change(Number(input.value)));
    list.append(make("span", {}, name), input, make("output", { class: "number" }));
  }

  const nameOf = ({ names }, k) => NAMES_OF_AXES[names[k]] ?? (names[k] || `axis ${k + 1}`);

  /** The pose moved along an axis by standard deviations. */
  function moved(k, amount) {
    const { axes, deviations } = page.source.head.axes[label];
    return pose.map((value, d) => value + amount * deviations[k] * axes[k][d]);
  }

  function move(k, amount) {
    pose = moved(k, amount);
    touched = k;
  }

  function start() {
    const { head } = page.source;
    label = chosenOf(page.look);
    base = poseOf(shownOf(page.look), label);
    pose = Float32Array.from(base);
    sliders.replaceChildren();
    raw.replaceChildren();
    const axes = head.axes[label];
    if (axes) {
      touched = Math.min(touched, axes.names.length - 1);
      axes.names.forEach((_, k) => {
        addSlider(sliders, nameOf(axes, k), REACH, (value) => {
          move(k, value - amountsOf(axes)[k]);
          redraw();
        });
      });
      note.textContent =
        `The poses of ${head.classes[label]} vary along few axes: these ${axes.axes.length} hold ` +
        `${Math.round(100 * axes.share)} % of the variance. A slider counts standard deviations from the mean pose.` +
        (axes.names.every(Boolean) ? "" : " An axis with a number changes the drawing in no single way that has a name.");
    } else {
      note.textContent = `No axes of the poses of ${head.classes[label]} were measured.`;
    }
    pose.forEach((_, d) => {
      addSlider(raw, `${d + 1}`, RAW_REACH, (value) => {
        pose[d] = value;
        redraw();
      });
    });
    return redraw();
  }

  let grip = null;
  drawing.addEventListener("pointerdown", (event) => {
    drawing.setPointerCapture(event.pointerId);
    grip = [event.clientX, event.clientY];
  });
  drawing.addEventListener("pointerup", () => (grip = null));
  drawing.addEventListener("pointermove", (event) => {
    const axes = page.source.head.axes[label];
    if (!grip || !axes) return;
    const pixels = 50; // of a drag, for one standard deviation
    for (const [k, change] of [event.clientX - grip[0], event.clientY - grip[1]].entries()) {
      if (k >= axes.axes.length) continue;
      const amount = amountsOf(axes)[k];
      move(k, Math.max(-REACH, Math.min(REACH, amount + change / pixels)) - amount);
    }
    grip = [event.clientX, event.clientY];
    redraw();
  });

  return () => {
    const { head } = page.source;
    if (!head.poses || !head.decoder) {
      const why = head.poses ? "This model has no decoder: its poses are not drawn." : "This model has no poses.";
      panel.replaceChildren(make("p", {}, why));
      return undefined;
    }
    if (!layout.isConnected) panel.replaceChildren(layout);
    const current = shownOf(page.look);
    if (shown === current && label === chosenOf(page.look)) return undefined;
    shown = current;
    return start();
  };
});
