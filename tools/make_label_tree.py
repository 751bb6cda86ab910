"""Make docs/images/label_tree.png: what a trained network says of two images, on every level of the tree.

    python tools/make_label_tree.py RUN ROOT

RUN is a run folder of `torchcaps train tree_capsnet --data fashion-mnist-tree`, ROOT the folder of the data.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import torchcaps as tc
from torchcaps.viz.canvas import BLUE, GRAY, ORANGE

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "label_tree.png"


def draw(
    ax: Axes,
    tree: tc.data.LabelTree,
    lengths: list[torch.Tensor],
    image: torch.Tensor,
    truth: list[int],
) -> None:
    """The tree from left to right; a disc is as large as a capsule is long, orange where it is the longest."""
    leaves = sorted(range(tree.sizes[-1]), key=tree.ancestors.__getitem__)
    heights = [{k: 1 - place / (len(leaves) - 1) for place, k in enumerate(leaves)}]
    for parents in reversed(tree.parents):
        below = heights[0]
        groups = {p: [below[k] for k, parent in enumerate(parents) if parent == p] for p in parents}
        heights.insert(0, {p: sum(places) / len(places) for p, places in groups.items()})
    for level, names in enumerate(tree.levels):
        longest = int(lengths[level].argmax())
        for k, name in enumerate(names):
            x, y = 0.9 + level, heights[level][k]
            if level:
                ax.plot(
                    [x - 1, x],
                    [heights[level - 1][tree.parents[level - 1][k]], y],
                    color=GRAY,
                    lw=0.7,
                    zorder=0,
                )
            size = 330 * float(lengths[level][k]) ** 2
            ax.scatter(x, y, s=size, color=ORANGE if k == longest else BLUE, zorder=2)
            weight = "bold" if truth[level] == k else "normal"
            offset: dict[str, Any] = (
                {"xytext": (10, 0), "va": "center"}
                if level == 2
                else {"xytext": (0, 10), "ha": "center"}
            )
            ax.annotate(
                name.rpartition("/")[2],
                (x, y),
                textcoords="offset points",
                size=8,
                weight=weight,
                **offset,
            )
    inner = ax.inset_axes((0.0, 0.36, 0.17, 0.28))
    inner.imshow(image[0], cmap="gray_r")
    inner.axis("off")
    ax.set(xlim=(0.1, 3.6), ylim=(-0.08, 1.12))
    ax.axis("off")


def main(run: str, root: str) -> None:
    """The first image that is right on every level, and the first whose levels contradict each other."""
    model: Any = tc.load(run)
    images = tc.data.load_dataset("fashion-mnist-tree", "test", root=root)
    batch = images.float_images(torch.arange(500))
    with torch.no_grad():
        lengths = [capsules.activation for capsules in model.levels(batch)]
    predictions = torch.stack([one.argmax(dim=1) for one in lengths], dim=1)
    paths = torch.tensor(model.tree.ancestors)
    right = (predictions == paths[images.labels[:500]]).all(dim=1)
    torn = (predictions[:, :-1] != paths[predictions[:, -1]][:, :-1]).any(dim=1)
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    for ax, index in zip(
        figure.subplots(1, 2), (int(right.nonzero()[0]), int(torn.nonzero()[0])), strict=True
    ):
        draw(
            ax,
            model.tree,
            [one[index] for one in lengths],
            batch[index],
            paths[images.labels[index]].tolist(),
        )
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    print(PICTURE)


if __name__ == "__main__":
    main(*sys.argv[1:])
