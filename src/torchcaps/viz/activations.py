"""How long the class capsules are, under the images they were found in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, check_shape
from torchcaps.viz.canvas import (
    GREY,
    ORANGE,
    SKY,
    SMALL,
    TEXT,
    Axes,
    Figure,
    class_indices,
    new_figure,
    plain,
    short_names,
)
from torchcaps.viz.images import pictures, tile_size

COLUMNS = 5
MOST_IMAGES = 20
# Up to so many classes, all have a bar; of more, the longest FEW.
MOST_BARS, FEW = 10, 5


def activation_bars(images: ArrayLike, activations: ArrayLike, labels: ArrayLike, *, classes: Sequence[str]) -> Figure:
    """Example images with the lengths of their class capsules as bars under each.

    Up to ten classes all are shown, in their order; of more, the five longest, the longest first, and the true class
    in place of the fifth where it is not among them. The bar of the true class is blue, that of a wrong prediction
    orange.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 20.
        activations: `[n, classes]` lengths in [0, 1].
        labels: `[n]` indices of the true classes.
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, or more than 20 images.
    """
    shown = pictures("images", images)
    lengths = np.asarray(activations)
    check_range("number of images", len(shown), high=MOST_IMAGES)
    check_shape("activations", lengths, ("n", "classes"), n=len(shown), classes=len(classes))
    true = class_indices("labels", labels, len(classes), n=len(shown))
    bars = len(classes) if len(classes) <= MOST_BARS else FEW
    height, _ = tile_size(shown.shape[1:3], 1.1)
    rows, columns = -(-len(shown) // COLUMNS), min(COLUMNS, len(shown))
    figure = new_figure(max(2.1 * columns, 3.6), rows * (height + 0.17 * bars + 0.55) + 0.4)
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[height + 0.2, 0.17 * bars + 0.2] * rows)
    names = short_names(classes, 22)
    for i, image in enumerate(shown):
        row, column = 2 * (i // COLUMNS), i % COLUMNS
        above, below = figure.add_subplot(grid[row, column]), figure.add_subplot(grid[row + 1, column])
        above.imshow(image, interpolation="antialiased")
        above.set_axis_off()
        above.set_title(names[true[i]], fontsize=SMALL)
        _draw_bars(below, lengths[i], int(true[i]), names)
    figure.suptitle("lengths; blue: true class, orange: wrong answer", fontsize=TEXT)
    return figure


def _chosen(lengths: NDArray[np.float64], true: int) -> list[int]:
    """Which classes have a bar, from top to bottom."""
    if len(lengths) <= MOST_BARS:
        return list(range(len(lengths)))
    longest = [int(i) for i in np.argsort(-lengths, kind="stable")[:FEW]]
    return longest if true in longest else [*longest[:-1], true]


def _draw_bars(axes: Axes, lengths: NDArray[np.float64], true: int, names: list[str]) -> None:
    chosen, predicted = _chosen(lengths, true), int(np.argmax(lengths))
    colours = [SKY if i == true else ORANGE if i == predicted else GREY for i in chosen]
    plain(axes).barh(range(len(chosen)), [lengths[i] for i in chosen], height=0.86, color=colours)
    for row, index in enumerate(chosen):
        axes.text(0.02, row, names[index], va="center", fontsize=SMALL)
        axes.text(1.03, row, f"{lengths[index]:.2f}", va="center", fontsize=SMALL)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(chosen) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
