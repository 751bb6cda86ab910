"""Where on an image the votes for a class come from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, named_shape
from torchcaps.viz.canvas import (
    BLUE,
    ORANGE,
    RED,
    SMALL,
    TEXT,
    Axes,
    Figure,
    class_indices,
    new_figure,
    short_names,
)
from torchcaps.viz.images import GAP, Box, board, pictures, place, tile_size

COLUMNS, MOST_IMAGES = 10, 40
LINE = 0.15  # inches of a line of names
SHADE, HEAT = 0.6, 0.9  # how much of the image and of the map is seen


def coupling_map(
    images: ArrayLike,
    maps: ArrayLike,
    labels: ArrayLike,
    *,
    shown: ArrayLike,
    lengths: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Images over the same with a map on them: orange where votes support the class shown, blue where they oppose it.

    Each map has its own scale, from nothing to its largest value either way. Below stand the class shown and its
    length, in red where it is not the true one.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 40.
        maps: `[n, height, width]`, such as `evaluation.coupling_maps(...).maps`; any finite numbers.
        labels: `[n]` indices of the true classes.
        shown: `[n]` indices of the classes whose maps these are.
        lengths: `[n]` of their capsules, in [0, 1].
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, more than 40 images, an index that is no class, or a map that is not
            finite.
    """
    inputs, values = pictures("images", images), np.asarray(maps, dtype=np.float64)
    count = len(inputs)
    check_range("number of images", count, high=MOST_IMAGES)
    if values.shape != inputs.shape[:3] or not np.isfinite(values).all():
        axes_names = ("n", "height", "width")
        want, came = named_shape(axes_names, inputs.shape[:3]), named_shape(axes_names, values.shape)
        raise ValueError(f"maps: expected finite numbers {want}, got {came}")
    true, taken = (class_indices(n, v, count, len(classes)) for n, v in (("labels", labels), ("shown", shown)))
    long = np.asarray(lengths, dtype=np.float64)
    if long.shape != (count,):
        raise ValueError(f"lengths: expected [n={count}], got {named_shape(('n',), long.shape)}")
    height, width = tile_size(inputs.shape[1:3], 1.0)
    across, down = max(width, 0.98) + GAP, 2 * height + GAP + 3 * LINE + 0.1
    columns, rows = min(COLUMNS, count), -(-count // COLUMNS)
    figure = new_figure(max(columns * across, 5.2) + 0.2, rows * down + 0.4)
    axes, names = board(figure.subplots(), columns * across, rows * down), short_names(classes, 13)
    for i in range(count):
        left, top = i % COLUMNS * across + (across - width) / 2, i // COLUMNS * down + LINE + 0.06
        above = Box(left, top, width, height)
        place(axes, inputs[i], above)
        place(axes, overlaid(inputs[i], values[i]), above._replace(top=top + height + GAP))
        right = true[i] == taken[i]
        _write(axes, above, names[true[i]], f"{names[taken[i]]}\n{long[i]:.2f}", "black" if right else RED)
    figure.suptitle("orange: votes for the class below; blue: against it", x=0.01, ha="left", fontsize=TEXT)
    return figure


def overlaid(image: NDArray[np.uint8], values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """`[height, width, 3]`: the image in dark grey, with the map in its colours over it."""
    largest = np.abs(values).max()
    alpha = np.abs(values)[..., None] / largest if largest > 0 else np.zeros((*values.shape, 1))
    colour = np.where(values[..., None] >= 0, to_rgb(ORANGE), to_rgb(BLUE)) * 255
    grey = SHADE * image.mean(axis=-1, keepdims=True)
    return (grey * (1 - HEAT * alpha) + HEAT * alpha * colour + 0.5).clip(0, 255).astype(np.uint8)


def _write(axes: Axes, above: Box, title: str, result: str, colour: str) -> None:
    centre, bottom = above.left + above.width / 2, above.top + 2 * above.height + GAP
    axes.text(centre, above.top - 0.04, title, ha="center", va="bottom", fontsize=SMALL)
    axes.text(centre, bottom + 0.04, result, ha="center", va="top", fontsize=SMALL, color=colour)
