// Seven steps below the live figure.
"use strict";

const STORY = [
  {
    title: "A capsule is a vector",
    text: "Each class has a capsule: a list of numbers, an arrow. Its length says whether the class is there, from 0 to 1. Its direction says how it looks: slanted, wide, thick. Draw, and watch one bar grow: in the figure the class's dot moves toward its name on the rim, which is length 1.",
    equation: "‖v<sub>j</sub>‖ ≈ how sure, v<sub>j</sub> / ‖v<sub>j</sub>‖ = how it looks",
    link: "Section 2",
    tab: "votes",
  },
  {
    title: "Children vote",
    text: "Many small capsules, the children, each see a part of the image. A child multiplies its own arrow by a learned matrix for each class: one vote for each class, a guess of the whole from its part. Point at the picture “seen” to meet a child, its place and its vote.",
    equation: "û<sub>j|i</sub> = W<sub>ij</sub> u<sub>i</sub>",
    link: "Equation 2",
    tab: "votes",
    child: true,
  },
  {
    title: "Votes add up or cancel",
    text: "The figure lays all votes for a class tip to tail, from the middle to the class's place on the rim. Votes that agree make a straight line; votes that contradict each other make a knot in the middle, and the capsule stays short. Straightness is the reach of the line divided by the length of its parts.",
    equation: "s<sub>j</sub> = Σ<sub>i</sub> c<sub>ij</sub> û<sub>j|i</sub>,  straightness = ‖s<sub>j</sub>‖ / Σ<sub>i</sub> ‖c<sub>ij</sub> û<sub>j|i</sub>‖",
    link: "Equation 2",
    tab: "votes",
    step: "off",
  },
  {
    title: "Routing listens to those who agree",
    text: "At first each child's share is split equally among the classes. Then a class whose capsule points where the child's vote points gets more: its share, the coupling c, grows, and the others shrink. Press Play: the winner's line straightens, fewer children make it, its length grows. Which class wins often stays the same.",
    equation: "b<sub>ij</sub> ← b<sub>ij</sub> + û<sub>j|i</sub> · v<sub>j</sub>,  c<sub>ij</sub> = e<sup>b<sub>ij</sub></sup> / Σ<sub>k</sub> e<sup>b<sub>ik</sub></sup>",
    link: "Procedure 1",
    tab: "votes",
    step: "off",
    isPlayed: true,
  },
  {
    title: "Squash",
    text: "A sum of votes can have any length. Squash keeps its direction and maps its length into 0 to 1: short sums nearly vanish, long ones come close to 1. The dot in the figure is the capsule after squash; its line is the sum before squash, scaled to end there.",
    equation: "v = ‖s‖² / (1 + ‖s‖²) · s / ‖s‖",
    link: "Equation 1",
    tab: "votes",
  },
  {
    title: "What a direction holds",
    text: "Change the arrow and decode it: the drawing changes its style and stays the same digit. A single number does little. The poses of a class vary along a few axes together. An axis has a name where the drawing changes steadily in one way. Move a slider, or drag the drawing.",
    equation: "pose = mean + Σ<sub>k</sub> t<sub>k</sub> σ<sub>k</sub> a<sub>k</sub> <small>(t: slider, σ: standard deviation, a: axis)</small>",
    link: "Section 5.1",
    tab: "pose",
  },
  {
    title: "Two digits, and the limits",
    text: "Two digits in one image can be two long capsules, if the network has learned pairs{pairs}. A scribble may get an answer too. And routing often sharpens more than it decides: stopped after one iteration, a trained network gives nearly the same answers, with shorter capsules. Compare the figures, and the accuracies.",
    link: "Section 6",
    tab: "compare",
  },
];

const TRANSFORM = {
  title: "What a small change does",
  text: "The same image turned, resized or moved, and the length of each capsule along the way. A network knows the changes that its training images had; beyond them another class may win, or none.",
};

let place = 0;

function showStory(next) {
  place = Math.max(0, Math.min(STORY.length - 1, next));
  writeStory(STORY[place]);
}

function writeStory({ title, text, equation, link }) {
  const { examples } = page.source.head;
  const pairs = !examples ? "" : page.several > 1 ? ", as this one has" : ", which this one has not";
  byId("story-title").textContent = title;
  byId("story-text").textContent = text.replace("{pairs}", pairs);
  byId("story-equation").innerHTML = equation ?? (link ? measuredLine() : "");
  byId("story-link").hidden = !link;
  byId("story-link").textContent = `${link}, Sabour, Frosst and Hinton (2017)`;
  byId("story-place").textContent = link ? `${place + 1} of ${STORY.length}` : "";
  byId("story-back").disabled = place === 0;
  byId("story-next").disabled = place === STORY.length - 1;
}

/** Accuracy after each iteration, as it was measured when the page was made. */
function measuredLine() {
  const { stopped } = page.source.head;
  if (!stopped) return "";
  const shares = stopped.accuracy.map((share) => (100 * share).toFixed(1)).join(", ");
  const iterations = stopped.accuracy.map((_, n) => n + 1).join(", ");
  return `accuracy after ${iterations} iterations: ${shares} % (${stopped.images} test images)`;
}

/** Shows the step that speaks of a tab. */
function followTab(name) {
  if (name === "transform") writeStory(TRANSFORM);
  else showStory(STORY[place].tab === name ? place : STORY.findIndex(({ tab }) => tab === name));
}

/** Sets the figure to what a step speaks of. */
function goToStory(next) {
  showStory(next);
  const { tab, step = "last", isPlayed = false, child = false } = STORY[place];
  if (child) {
    const shown = stepOf(page.look);
    if (shown) [page.child] = rankChildren(page.look.votes, shown.weights, chosenOf(page.look));
  }
  page.run += 1;
  page.moving = null;
  page.step = step;
  chooseTab(tab);
  if (isPlayed && page.look.steps.length) page.play();
}

byId("story-back").addEventListener("click", () => goToStory(place - 1));
byId("story-next").addEventListener("click", () => goToStory(place + 1));
