"""Overlapping digits, and the two drawings that explain them, as in figure 5 of arXiv 1710.09829."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, named_shape
from torchcaps.viz.canvas import SMALL, TEXT, Axes, Figure, new_figure, short_names
from torchcaps.viz.images import GAP, Box, board, pictures, place, tile_size

COLUMNS, MOST_IMAGES = 8, 40
FIRST, SECOND = "#B000B0", "#007A00"  # of text; the drawings: magenta, green, to suit colour-blind readers
SHADE = 0.3  # of the input, under the drawings
LINE = 0.15


def overlaps(
    images: ArrayLike,
    drawn: ArrayLike,
    labels: ArrayLike,
    *,
    shown: ArrayLike,
    lengths: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Inputs above the two drawings of each, the first in magenta, the second in green, white where both are.

    The labels stand above each pair; below it the decoded classes and the lengths of their capsules, with a star where
    the class is no label.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 40.
        drawn: `[n, 2, channels, height, width]`, the same range; the first channel is shown.
        labels: `[n, 2]` indices of the true classes.
        shown: `[n, 2]` indices of the decoded classes.
        lengths: `[n, 2]` of the decoded capsules, in [0, 1].
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, more than 40 images, or an index that is no class.
    """
    inputs, values = pictures("images", images), np.asarray(drawn)
    count = len(inputs)
    check_range("number of images", count, high=MOST_IMAGES)
    _check_drawn(values, inputs)
    layers = pictures("drawn", values.reshape(-1, *values.shape[2:]))[..., 0].reshape(count, 2, *inputs.shape[1:3])
    true, taken = (_classes_of(name, v, count, classes) for name, v in (("labels", labels), ("shown", shown)))
    long = np.asarray(lengths, dtype=np.float64)
    if long.shape != (count, 2):
        want, came = named_shape(("n", "k"), (count, 2)), named_shape(("n", "k"), long.shape)
        raise ValueError(f"lengths: expected {want}, got {came}")
    height, width = tile_size(inputs.shape[1:3], 1.15)
    across, down = max(width, 1.15) + 2 * GAP, 2 * height + GAP + 3 * LINE + 0.22
    columns, rows = min(COLUMNS, count), -(-count // COLUMNS)
    figure = new_figure(max(columns * across, 4.6) + 0.2, rows * down + 0.5)
    axes, names = board(figure.subplots(), columns * across, rows * down), short_names(classes, 10)
    for i in range(count):
        left, top = i % COLUMNS * across + (across - width) / 2, i // COLUMNS * down + LINE + 0.06
        above = Box(left, top, width, height)
        place(axes, inputs[i], above)
        place(axes, coloured(inputs[i], layers[i]), above._replace(top=top + height + GAP))
        _write(axes, above, f"{names[true[i, 0]]} + {names[true[i, 1]]}", _results(true[i], taken[i], long[i], names))
    figure.suptitle("above: input; below: decoded alone, magenta and green; *: no label", fontsize=TEXT)
    return figure


def coloured(image: NDArray[np.uint8], layers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two drawings `[2, height, width]` in magenta and green over a dark `[height, width, 3]` input."""
    ground = (image * SHADE).astype(np.uint8)
    for channel, layer in enumerate((0, 1, 0)):
        ground[..., channel] = np.maximum(ground[..., channel], layers[layer])
    return ground


def _results(
    true: NDArray[np.int64], taken: NDArray[np.int64], lengths: NDArray[np.float64], names: Sequence[str]
) -> list[str]:
    return [
        f"{'' if index in true else '*'}{names[index]}  {length:.2f}"
        for index, length in zip(taken, lengths, strict=True)
    ]


def _write(axes: Axes, above: Box, title: str, results: Sequence[str]) -> None:
    centre, bottom = above.left + above.width / 2, above.top + 2 * above.height + GAP
    axes.text(centre, above.top - 0.04, title, ha="center", va="bottom", fontsize=SMALL)
    for row, (text, colour) in enumerate(zip(results, (FIRST, SECOND), strict=True)):
        axes.text(centre, bottom + 0.04 + row * LINE, text, ha="center", va="top", fontsize=SMALL, color=colour)


def _classes_of(argument: str, values: ArrayLike, count: int, classes: Sequence[str]) -> NDArray[np.int64]:
    indices = np.asarray(values)
    if indices.shape != (count, 2):
        want, came = named_shape(("n", "k"), (count, 2)), named_shape(("n", "k"), indices.shape)
        raise ValueError(f"{argument}: expected {want}, got {came}")
    outside = indices[(indices < 0) | (indices >= len(classes))]
    if len(outside):
        raise ValueError(f"{argument}: expected class indices from 0 to {len(classes) - 1}, got {outside[0]}")
    return indices


def _check_drawn(values: NDArray[np.float64], inputs: NDArray[np.uint8]) -> None:
    axes = ("n", "k", "channels", "height", "width")
    good = values.ndim == 5 and (*values.shape[:2], *values.shape[3:]) == (len(inputs), 2, *inputs.shape[1:3])
    if not good:
        height, width = inputs.shape[1:3]
        came = named_shape(axes, values.shape)
        raise ValueError(
            f"drawn: expected [n={len(inputs)}, k=2, channels, height={height}, width={width}], got {came}"
        )
