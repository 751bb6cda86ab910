"""What the decoder draws: reconstructions under their originals, and what each pose dimension stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, named_shape
from torchcaps.viz.canvas import (
    BLUE,
    RED,
    SMALL,
    TEXT,
    Axes,
    Figure,
    check_length,
    class_indices,
    new_figure,
    short,
    short_names,
)
from torchcaps.viz.images import GAP, Box, board, pictures, place, tile_size

COLUMNS = 10
MOST_PAIRS = 80
MOST_TILES = 1024
# Inches of a line of names.
LINE = 0.15


def reconstructions(
    images: ArrayLike,
    reconstructions: ArrayLike,
    labels: ArrayLike,
    *,
    predictions: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Originals over their reconstructions, ten pairs a row; a wrong prediction is named and framed in red.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 80.
        reconstructions: the same shape and range.
        labels: `[n]` indices of the true classes.
        predictions: `[n]` indices of the predicted classes.
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, or more than 80 images.
    """
    pairs = np.stack(_alike(pictures("images", images), pictures("reconstructions", reconstructions)), axis=1)
    check_range("number of images", len(pairs), high=MOST_PAIRS)
    true = class_indices("labels", labels, len(pairs), len(classes))
    taken = class_indices("predictions", predictions, len(pairs), len(classes))
    wrong = true != taken
    height, width = tile_size(pairs.shape[2:4], 1.0)
    # Narrow images stand apart, so that the names above them do not touch.
    across, strip = max(width, 0.96) + GAP, LINE * (2 if wrong.any() else 1) + 0.06
    down = strip + 2 * height + GAP + 0.04
    columns, rows = min(COLUMNS, len(pairs)), -(-len(pairs) // COLUMNS)
    figure = new_figure(max(columns * across, 5.0) + 0.2, rows * down + 0.5)
    axes, names = board(figure.subplots(), columns * across, rows * down), short_names(classes, 13)
    for i, pair in enumerate(pairs):
        box = Box(i % COLUMNS * across + (across - width) / 2, i // COLUMNS * down + strip, width, height)
        text = f"{names[true[i]]}\n→ {names[taken[i]]}" if wrong[i] else names[true[i]]
        _draw_pair(axes, pair, box, text=text, wrong=bool(wrong[i]))
    mistakes = f"; {wrong.sum()} of {len(pairs)} taken for another class (red)" if wrong.any() else ""
    figure.suptitle(f"originals above, reconstructions below{mistakes}", x=0.01, ha="left", fontsize=TEXT)
    return figure


def perturbations(reconstructions: ArrayLike, offsets: ArrayLike, *, title: str = "") -> Figure:
    """What the decoder draws as one pose dimension after the other is moved: a row a dimension, a column a step.

    Args:
        reconstructions: `[dims, steps, channels, height, width]` in [0, 1] (integers: 0-255), of one image.
        offsets: `[steps]`, what was added to the dimension; the column of offset 0, the capsule as it is, is framed.
        title: a line above the grid.

    Raises:
        ValueError: for shapes that do not fit, or more than 1024 reconstructions.
    """
    values, moves = np.asarray(reconstructions), np.asarray(offsets)
    if values.ndim != 5:
        came = named_shape(("dims", "steps", "channels", "height", "width"), values.shape)
        raise ValueError(f"reconstructions: expected [dims, steps, channels, height, width], got {came}")
    dims, steps = values.shape[:2]
    check_length("offsets", moves, steps)
    check_range("number of reconstructions", dims * steps, high=MOST_TILES)
    longest = min(0.62, 17.0 / dims, 14.0 / steps)
    height, width = tile_size(values.shape[3:], longest)
    across, down = width + GAP, height + GAP
    figure = new_figure(max(steps * across, 3.0) + 0.8, dims * down + 1.0)
    axes = board(figure.subplots(), steps * across, dims * down)
    for i, image in enumerate(pictures("reconstructions", values.reshape(-1, *values.shape[2:]))):
        place(axes, image, Box(i % steps * across + GAP / 2, i // steps * down + GAP / 2, width, height))
    _label_grid(axes, moves, (across, down), dims)
    for column in np.flatnonzero(np.isclose(moves, 0, atol=1e-6)):
        axes.add_patch(_frame(Box(column * across, 0, across, dims * down), BLUE))
    axes.set_title(short(title, 90), fontsize=TEXT)
    return figure


def _alike(images: NDArray[np.uint8], rebuilt: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if images.shape != rebuilt.shape:
        axes = ("n", "height", "width", "colours")
        want, came = named_shape(axes, images.shape), named_shape(axes, rebuilt.shape)
        raise ValueError(f"reconstructions: expected the shape of the images, {want}, got {came}")
    return images, rebuilt


def _draw_pair(axes: Axes, pair: NDArray[np.uint8], box: Box, *, text: str, wrong: bool) -> None:
    """An original over its reconstruction, with `text` above them; both red where the prediction is wrong."""
    lower = box._replace(top=box.top + box.height + GAP)
    place(axes, pair[0], box)
    place(axes, pair[1], lower)
    centre = box.left + box.width / 2
    axes.text(centre, box.top - 0.04, text, ha="center", va="bottom", fontsize=SMALL, color=RED if wrong else "black")
    if wrong:
        axes.add_patch(_frame(lower, RED))


def _frame(box: Box, colour: str) -> Rectangle:
    corner = (box.left, box.top)
    return Rectangle(corner, box.width, box.height, fill=False, edgecolor=colour, linewidth=2, clip_on=False)


def _label_grid(axes: Axes, offsets: NDArray[np.float64], cell: tuple[float, float], dims: int) -> None:
    """Offsets under the columns and the numbers of the dimensions, from 1, beside the rows."""
    across, down = cell
    texts = ["0" if abs(move) < 1e-6 else f"{move:+.3g}".replace("-", "−") for move in offsets]
    axes.set_xticks([(i + 0.5) * across for i in range(len(texts))], texts)
    axes.set_yticks([(i + 0.5) * down for i in range(dims)], [str(i + 1) for i in range(dims)])
    axes.tick_params(labelbottom=True, labelleft=True, labelsize=SMALL)
    if across < 0.45:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel("added to the dimension", fontsize=TEXT)
    axes.set_ylabel("pose dimension", fontsize=TEXT)
