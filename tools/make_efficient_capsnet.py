"""Make docs/images/efficient_capsnet.png: the network, and the couplings of a trained one for a digit.

    python tools/make_efficient_capsnet.py RUN

RUN is a run folder of `torchcaps train efficient_capsnet --data digits`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import torchcaps as tc
from torchcaps.viz.canvas import BLUE, GRAY, ORANGE

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "efficient_capsnet.png"
DIGIT, THICK = 4, 6.0  # of the test images; points of a coupling of 1
FIRST, SECOND = 0.72, 0.92  # where capsules stand, in widths of the figure


def draw_maps(ax: Axes, model: Any, image: torch.Tensor) -> None:
    """The digit and the maps after each convolution, as large as they are."""
    ax.imshow(image[0, 0], cmap="gray_r", extent=(0.01, 0.13, 0.36, 0.64), aspect="auto")
    ax.text(0.07, 0.33, "28 × 28", ha="center", va="top", fontsize=8)
    x, offset = image, 0.17
    for block in range(4):
        x = model.stem[3 * block : 3 * block + 3](x)
        _, channels, height, width = x.shape
        wide, high = 0.12 * width / 28, 0.28 * height / 28
        for k in (2, 1, 0):
            corner = (offset + 0.008 * k, 0.5 - high / 2 + 0.018 * k)
            ax.add_patch(Rectangle(corner, wide, high, facecolor="white", edgecolor=GRAY))
        ax.text(
            offset + wide / 2,
            0.47 - high / 2,
            f"{channels}\n{height} × {width}",
            ha="center",
            va="top",
            fontsize=8,
        )
        offset += wide + 0.035


def draw_capsules(ax: Axes, model: Any, image: torch.Tensor) -> None:
    """Primary and class capsules, the former's couplings, and the latter's lengths."""
    with tc.record_routing(model) as record:
        lengths = model(image)[0].tolist()
    coupling = record["class_capsules"][0].coupling[0].numpy()
    below, above = np.linspace(0.06, 0.9, len(coupling)), np.linspace(0.06, 0.9, len(lengths))
    for child, row in zip(below, coupling, strict=True):
        ax.plot([0.66, FIRST - 0.012], [0.5, child], color=GRAY, linewidth=0.4)
        for parent, share in enumerate(row):
            color = ORANGE if parent == int(np.argmax(lengths)) else BLUE
            ax.plot(
                [FIRST, SECOND],
                [child, above[parent]],
                color=color,
                linewidth=THICK * share,
                alpha=0.45,
            )
        ax.plot(FIRST - 0.006, child, "s", color=GRAY, markersize=5)
    for parent, (y, length) in enumerate(zip(above, lengths, strict=True)):
        ax.add_patch(Rectangle((SECOND + 0.005, y - 0.02), 0.05 * length, 0.04, color=BLUE))
        ax.text(SECOND + 0.062, y, str(parent), va="center", fontsize=8)
    ax.text(FIRST, 0.96, "16 capsules of 8", ha="center", fontsize=8)
    ax.text(SECOND, 0.96, "10 capsules of 16", ha="center", fontsize=8)
    ax.text(
        0.6, 0.2, "each channel's whole map\nbecomes one number", ha="center", va="top", fontsize=8
    )


def main(run: str) -> None:
    """Draw and write the picture."""
    model, images = tc.load(run), tc.data.load_dataset("digits", split="test")
    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    ax = figure.subplots()
    with torch.no_grad():
        image = images.float_images(torch.tensor([DIGIT]))
        draw_maps(ax, model, image)
        draw_capsules(ax, model, image)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.axis("off")
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    print(PICTURE)


if __name__ == "__main__":
    main(sys.argv[1])
