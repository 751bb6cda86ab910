"""Make docs/images/torchcaps.png, the picture at the head of README.md.

    python tools/make_picture.py [RUN] [PAIRS]

RUN is a run folder of a CapsNet with decoder for 28x28 digits, PAIRS one for overlapping digits. By default they are
those of `torchcaps train capsnet-mnist --output runs/capsnet-mnist` and of the gallery.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from PIL import Image
from torch import Tensor

import torchcaps as tc
from torchcaps import evaluation
from torchcaps.viz.canvas import BLUE, GRAY, ORANGE, pictures
from torchcaps.viz.tiles import overlay_reconstructions, overlay_support

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "torchcaps.png"
WIDTH, HEIGHT, DPI = 8.5, 4.27, 200  # inches; a README shows it 850 pixels wide
TILE, SMALL_TILE, PAIR, STEPS, SPAN = 1.12, 0.53, 0.82, 7, 0.25
TEXT, NOTE, INK, PALE = 10.0, 8.5, "#1b1f24", "#5b6570"
DIGIT, COMPOSITE = 16, 0  # of two examples of each class, and of the test composites


class Contents(NamedTuple):
    """All that the picture shows: bytes `[height, width, 3]` unless said otherwise.

    Attributes:
        image: the digit.
        lengths: `[classes]` of the capsules.
        pose: `[dims]` of the longest one.
        reconstruction: decoded from that pose.
        votes: the digit with the map of votes on it.
        sweeps: name and number of a dimension (from 1), and its reconstructions, `[steps, height, width, 3]`.
        composite: two digits in one.
        segments: both as decoded, in magenta and green.
        labels: of the two.
    """

    image: np.ndarray
    lengths: np.ndarray
    pose: np.ndarray
    reconstruction: np.ndarray
    votes: np.ndarray
    sweeps: dict[str, tuple[int, np.ndarray]]
    composite: np.ndarray
    segments: np.ndarray
    labels: tuple[int, int]


def look(run: str, pairs: str) -> Contents:
    """Ask the networks."""
    model: Any = tc.load(run)
    digits = tc.data.load_dataset("digits", "test")
    indices = evaluation.example_indices(digits.labels, 2, seed=0)[DIGIT : DIGIT + 1]
    image = digits.float_images(indices)
    with torch.no_grad():
        capsules = model.capsules(image)
        reconstruction = model.reconstruct(capsules)
    winner = int(capsules.activation.argmax())
    maps = evaluation.coupling_maps(model, image)
    swept = evaluation.perturb(model, image, span=SPAN, steps=STEPS).reconstructions[0]
    task, composites = tc.reporting.open_task(pairs, data="multi-digits", device="cpu")
    composite, labels = (
        composites.float_images([COMPOSITE]),
        composites.labels[COMPOSITE : COMPOSITE + 1],
    )
    matches = evaluation.match_segments(evaluation.segment(task, composite), labels)
    layers = pictures("drawn", matches.images[0])[..., 0]
    composite_image = pictures("composite", composite)[0]
    return Contents(
        image=pictures("image", image)[0],
        lengths=capsules.activation[0].numpy(),
        pose=capsules.pose[0, winner].numpy(),
        reconstruction=pictures("drawn", reconstruction)[0],
        votes=overlay_support(pictures("image", image)[0], maps.maps[0].numpy()),
        sweeps={
            name: (d + 1, pictures("moved", swept[d]))
            for name, d in telling(swept[:, :, 0]).items()
        },
        composite=composite_image,
        segments=overlay_reconstructions(composite_image, layers),
        labels=(int(labels[0, 0]), int(labels[0, 1])),
    )


def telling(swept: Tensor) -> dict[str, int]:
    """The dimension that changes the breadth of a drawing most, and of the others the one that slants it most.

    A slant counts less where ink gets lost: what falls apart has no slant to speak of.

    Args:
        swept: `[dims, steps, height, width]` in [0, 1].
    """
    total = swept.sum(dim=(-1, -2))
    ink = swept / total[..., None, None]
    height, width = swept.shape[2:]
    x, y = (
        torch.arange(width) - (width - 1) / 2,
        torch.arange(height).unsqueeze(1) - (height - 1) / 2,
    )

    def mean(values: Tensor) -> Tensor:
        return (ink * values).sum(dim=(-1, -2))

    across, down = mean(x), mean(y)
    breadth = (mean(x**2) - across**2).sqrt()
    slant = (mean(x * y) - across * down) / (mean(y**2) - down**2)
    first = int((breadth[:, -1] - breadth[:, 0]).abs().argmax())
    change = (slant[:, -1] - slant[:, 0]).abs() * total.amin(dim=1) / total.amax(dim=1)
    change[first] = 0
    return {"breadth": first, "slant": int(change.argmax())}


def draw(contents: Contents) -> Figure:
    """Above: from digit to drawing. Below: a moved pose, votes, and two digits taken apart."""
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white")
    sheet = figure.add_axes((0, 0, 1, 1))
    sheet.set_xlim(0, WIDTH)
    sheet.set_ylim(HEIGHT, 0)
    sheet.set_axis_off()
    sheet.add_patch(
        Rectangle((0.02, 0.02), WIDTH - 0.04, HEIGHT - 0.04, fill=False, edgecolor="#d0d7de", lw=1)
    )
    top, low = 0.56, 2.54
    _say(sheet, 0.3, "a test digit")
    _tile(sheet, contents.image, 0.3, top, TILE)
    _arrow(sheet, 1.52, top)
    _say(sheet, 1.92, "ten capsules: the length says whether")
    _lengths(sheet, contents.lengths, 1.95, top, 2.45)
    _arrow(sheet, 4.5, top)
    _say(sheet, 4.9, "the pose says how")
    _pose(sheet, contents.pose, 4.93, top, 1.62)
    _arrow(sheet, 6.66, top)
    _say(sheet, 7.08, "drawn from it")
    _tile(sheet, contents.reconstruction, 7.08, top, TILE)
    sheet.plot([0.3, WIDTH - 0.3], [2.06, 2.06], color="#d0d7de", lw=0.8)
    _say(sheet, 0.3, "one number of the pose moved", low - 0.1)
    for row, (name, (dimension, steps)) in enumerate(contents.sweeps.items()):
        beneath = low + row * (SMALL_TILE + 0.3)
        for column, step in enumerate(steps):
            _tile(sheet, step, 0.3 + column * (SMALL_TILE + 0.04), beneath, SMALL_TILE)
        _note(
            sheet, 0.3, beneath + SMALL_TILE, f"number {dimension} of {len(contents.pose)}: {name}"
        )
    _say(sheet, 4.62, "where votes come from", low - 0.1)
    _tile(sheet, contents.votes, 4.62, low, TILE)
    _note(sheet, 4.62, low + TILE, f"orange: for the {int(contents.lengths.argmax())}")
    first, second = contents.labels
    _say(sheet, 6.5, "two digits taken apart", low - 0.1)
    for column, (image, note) in enumerate(
        ((contents.composite, "one input"), (contents.segments, f"a {first} and a {second}"))
    ):
        x0 = 6.5 + column * (PAIR + 0.06)
        _tile(sheet, image, x0, low, PAIR)
        _note(sheet, x0, low + PAIR, note)
    return figure


def _say(sheet: Any, x0: float, words: str, bottom: float = 0.46) -> None:
    sheet.text(x0, bottom, words, va="bottom", fontsize=TEXT, color=INK)


def _note(sheet: Any, x0: float, top: float, words: str) -> None:
    sheet.text(x0, top + 0.04, words, va="top", fontsize=NOTE, color=PALE)


def _tile(sheet: Any, image: np.ndarray, x0: float, top: float, side: float) -> None:
    sheet.imshow(image, extent=(x0, x0 + side, top + side, top), interpolation="lanczos", zorder=2)
    sheet.set_xlim(0, WIDTH)
    sheet.set_ylim(HEIGHT, 0)
    sheet.set_aspect("auto")


def _arrow(sheet: Any, x0: float, top: float) -> None:
    middle = top + TILE / 2
    sheet.add_patch(
        FancyArrowPatch(
            (x0, middle), (x0 + 0.32, middle), arrowstyle="-|>", mutation_scale=12, color=PALE
        )
    )


def _lengths(sheet: Any, lengths: np.ndarray, x0: float, top: float, width: float) -> None:
    """Upright bars from 0 to 1 with the classes below, the longest in blue with its length."""
    bar_width, winner, floor = width / len(lengths), int(lengths.argmax()), top + TILE
    for index, length in enumerate(lengths):
        box = (
            (x0 + index * bar_width + 0.03, floor - TILE * length),
            bar_width - 0.06,
            TILE * length,
        )
        sheet.add_patch(Rectangle(*box, facecolor=BLUE if index == winner else GRAY))
        sheet.text(
            x0 + (index + 0.5) * bar_width,
            floor + 0.04,
            str(index),
            ha="center",
            va="top",
            fontsize=NOTE,
            color=INK,
        )
    sheet.plot([x0, x0 + width], [floor, floor], color=PALE, lw=0.8)
    sheet.text(
        x0 + winner * bar_width,
        floor - TILE * lengths[winner] + 0.02,
        f"{lengths[winner]:.2f} ",
        ha="right",
        va="top",
        fontsize=NOTE,
        color=BLUE,
    )


def _pose(sheet: Any, pose: np.ndarray, x0: float, top: float, width: float) -> None:
    """Upright bars on both sides of zero."""
    bar_width, middle, scale = width / len(pose), top + TILE / 2, TILE / 2 / np.abs(pose).max()
    for index, value in enumerate(pose):
        low, high = sorted((middle, middle - scale * value))
        color = ORANGE if value < 0 else BLUE
        sheet.add_patch(
            Rectangle(
                (x0 + index * bar_width + 0.015, low), bar_width - 0.03, high - low, facecolor=color
            )
        )
    sheet.plot([x0, x0 + width], [middle, middle], color=PALE, lw=0.8)
    sheet.text(
        x0 + width / 2,
        top + TILE + 0.04,
        f"{len(pose)} numbers",
        ha="center",
        va="top",
        fontsize=NOTE,
        color=INK,
    )


def main() -> int:
    """Look, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", default="runs/capsnet-mnist")
    parser.add_argument("pairs", nargs="?", default="runs/capsnet-pairs")
    options = parser.parse_args()
    stream = io.BytesIO()
    draw(look(options.run, options.pairs)).savefig(stream, format="png", dpi=DPI)
    with Image.open(stream) as image:
        image.convert("RGB").save(
            PICTURE, optimize=True
        )  # a palette would leave rings in the colors
    print(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
