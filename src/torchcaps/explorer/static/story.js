// Seven steps beside the live figure.
"use strict";

const PAPER = "https://arxiv.org/abs/1710.09829";
const STORY = [
  {
    title: "A capsule is a vector",
    text: "Each class has a capsule: a list of numbers, an arrow. Its length says whether the class is there, from 0 to 1. Its direction says how it looks: slanted, wide, thick. Draw, and watch one bar grow while the line in the figure reaches for the rim.",
    equation: "‖v<sub>j</sub>‖ ≈ how sure, v<sub>j</sub> / ‖v<sub>j</sub>‖ = how it looks",
    link: [PAPER, "Section 2 of the 2017 paper"],
    tab: "votes",
  },
  {
    title: "Children vote",
    text: "Below are many small capsules; each sees a part of the image. A child multiplies its own arrow by a learned matrix for each class: its vote, a guess of the whole from its part. Point at the picture “seen” to meet a child, its place and its vote.",
    equation: "û<sub>j|i</sub> = W<sub>ij</sub> u<sub>i</sub>",
    link: [PAPER, "Equation 2"],
    tab: "votes",
    child: true,
  },
  {
    title: "Votes add up or cancel",
    text: "The figure lays all votes for a class tip to tail. Where they agree they make a straight line; where they contradict each other they make a knot in the middle and the capsule stays short. Straightness is the reach of the line divided by the length of its parts.",
    equation: "s<sub>j</sub> = Σ<sub>i</sub> c<sub>ij</sub> û<sub>j|i</sub>,  straightness = ‖s<sub>j</sub>‖ / Σ<sub>i</sub> ‖c<sub>ij</sub> û<sub>j|i</sub>‖",
    link: [PAPER, "Equation 2"],
    tab: "votes",
    step: "off",
  },
  {
    title: "Routing listens to those who agree",
    text: "At first every class gets an equal share of every child. Then a child whose vote points where the class points gets a larger share there, and a smaller one elsewhere. Press Play: the winner's line straightens, few children carry it, and its length grows. Which class wins often stays the same.",
    equation: "b<sub>ij</sub> ← b<sub>ij</sub> + û<sub>j|i</sub> · v<sub>j</sub>,  c<sub>ij</sub> = e<sup>b<sub>ij</sub></sup> / Σ<sub>k</sub> e<sup>b<sub>ik</sub></sup>",
    link: [PAPER, "Procedure 1"],
    tab: "votes",
    step: 0,
    isPlayed: true,
  },
  {
    title: "Squash",
    text: "A sum of votes can have any length. Squash keeps its direction and maps its length into 0 to 1: short sums nearly vanish, long ones come close to 1. The rim of the figure is length 1, which no capsule ever reaches.",
    equation: "v = ‖s‖² / (1 + ‖s‖²) · s / ‖s‖",
    link: [PAPER, "Equation 1"],
    tab: "votes",
  },
  {
    title: "What a direction holds",
    text: "Change the arrow and decode it: the drawing changes its style and stays the same digit. A single number does little. Poses of a class vary along a few directions together; these have names where the drawing changes steadily. Move a slider, or drag the drawing.",
    equation: "pose = mean + Σ<sub>k</sub> t<sub>k</sub> σ<sub>k</sub> a<sub>k</sub>",
    link: [PAPER, "Section 5.1"],
    tab: "pose",
  },
  {
    title: "Two digits, and the limits",
    text: "Two digits in one image can be two long capsules, if the network has learned pairs. A scribble may get an answer too. And routing often sharpens more than it decides: stopped after one iteration, a trained network gives nearly the same answers, with shorter capsules. Compare the four figures, and the measured line.",
    equation: "",
    link: [PAPER, "Section 6"],
    tab: "compare",
  },
];

let place = 0;

function showStory(next) {
  place = Math.max(0, Math.min(STORY.length - 1, next));
  const { title, text, equation, link } = STORY[place];
  byId("story-title").textContent = title;
  byId("story-text").textContent = text;
  byId("story-equation").innerHTML = equation || measuredLine();
  [byId("story-link").href, byId("story-link").textContent] = link;
  byId("story-place").textContent = `${place + 1} of ${STORY.length}`;
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

/** Sets the figure to what a step speaks of. */
function goToStory(next) {
  showStory(next);
  const { tab, step = "last", isPlayed = false, child = false } = STORY[place];
  if (child) {
    const shown = stepOf(page.look);
    if (shown) [page.child] = rankChildren(page.look.votes, shown.weights, chosenOf(page.look));
  }
  page.step = isPlayed ? "off" : step;
  chooseTab(tab);
  if (isPlayed && page.look.steps.length) page.goTo(0, true);
}

byId("story-back").addEventListener("click", () => goToStory(place - 1));
byId("story-next").addEventListener("click", () => goToStory(place + 1));
