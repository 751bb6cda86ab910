"""Known transformations: what was drawn for them, what was told of them, and what units draw with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from torchcaps.errors import check_range, named_shape
from torchcaps.viz.canvas import BLUE, GREY, SMALL, TEXT, Axes, Figure, new_figure, plain
from torchcaps.viz.images import GAP, Box, board, pictures, place, tile_size
from torchcaps.viz.names import check_length, short

MOST_COLUMNS, MOST_UNITS = 20, 400
ROWS = ("input", "output", "target")


def transformed(source: ArrayLike, drawn: ArrayLike, target: ArrayLike) -> Figure:
    """Inputs above what was drawn for them, above what ought to be drawn; a column an image.

    Args:
        source: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 20.
        drawn: the same shape; values outside [0, 1] are clipped.
        target: the same shape and range.

    Raises:
        ValueError: for shapes that do not fit, or more than 20 images.
    """
    rows = [pictures(name, images) for name, images in (("source", source), ("drawn", drawn), ("target", target))]
    for name, images in zip(("drawn", "target"), rows[1:], strict=True):
        if images.shape != rows[0].shape:
            axes = ("n", "height", "width", "colours")
            want, came = named_shape(axes, rows[0].shape), named_shape(axes, images.shape)
            raise ValueError(f"{name}: expected the shape of source, {want}, got {came}")
    count = len(rows[0])
    check_range("number of images", count, high=MOST_COLUMNS)
    height, width = tile_size(rows[0].shape[1:3], 0.75)
    across, down = width + GAP, height + GAP
    figure = new_figure(count * across + 0.9, len(rows) * down + 0.3)
    area = board(figure.subplots(), count * across, len(rows) * down)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            place(area, image, Box(column * across + GAP / 2, row * down + GAP / 2, width, height))
    area.set_yticks([(row + 0.5) * down for row in range(len(rows))], ROWS)
    area.tick_params(labelleft=True, labelsize=TEXT)
    return figure


def predicted_transformations(true: ArrayLike, predicted: ArrayLike, *, names: Sequence[str], unit: str = "") -> Figure:
    """True against predicted numbers of transformations, a panel a number; on the grey line both are equal.

    Args:
        true: `[n, m]`, n at least 1, m from 1 to 12.
        predicted: `[n, m]`.
        names: m names of the numbers, such as dx and dy.
        unit: is added to the labels of the axes, such as "pixels".

    Raises:
        ValueError: for shapes that do not fit.
    """
    x, y = np.asarray(true, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise ValueError(f"true: expected [n, m] with at least one row, got {named_shape(('n', 'm'), x.shape)}")
    if x.shape != y.shape:
        want, came = (named_shape(("n", "m"), values.shape) for values in (x, y))
        raise ValueError(f"predicted: expected {want}, got {came}")
    check_length("names", names, x.shape[1])
    check_range("number of names", len(names), high=12)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(3.1 * columns, 3.1 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for index, axes in enumerate(panels):
        if index < len(names):
            _scatter(axes, x[:, index], y[:, index], name=short(names[index], 16), unit=unit)
        else:
            axes.set_axis_off()
    return figure


def generation_weights(weights: ArrayLike, *, title: str = "") -> Figure:
    """Outgoing weights of generation units as pictures: grey is 0, white adds ink, black takes it away.

    Args:
        weights: `[capsules, units, height, width]`, any numbers; a row a capsule, at most 400 units in all. All share
            one scale.
        title: a line above.

    Raises:
        ValueError: for an array of other axes, or too many units.
    """
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim != 4 or values.size == 0:
        came = named_shape(("capsules", "units", "height", "width"), values.shape)
        raise ValueError(f"weights: expected [capsules, units, height, width], got {came}")
    rows, columns = values.shape[:2]
    check_range("number of units", rows * columns, high=MOST_UNITS)
    # One outlier must not turn all others grey.
    scale = max(float(np.quantile(np.abs(values), 0.999)), 1e-12)
    tiles = pictures("weights", (0.5 + 0.5 * values / scale).reshape(-1, 1, *values.shape[2:]))
    height, width = tile_size(values.shape[2:], min(0.6, 14.0 / columns, 17.0 / rows))
    across, down = width + GAP, height + GAP
    figure = new_figure(max(columns * across, 3.0) + 0.9, rows * down + 0.4)
    area = board(figure.subplots(), columns * across, rows * down)
    for index, tile in enumerate(tiles):
        place(area, tile, Box(index % columns * across, index // columns * down, width, height))
    area.set_yticks([(row + 0.5) * down for row in range(rows)], [str(row + 1) for row in range(rows)])
    area.tick_params(labelleft=True, labelsize=SMALL)
    area.set_ylabel("capsule", fontsize=TEXT)
    area.set_title(short(title, 90), fontsize=TEXT)
    return figure


def _scatter(axes: Axes, x: np.ndarray, y: np.ndarray, *, name: str, unit: str) -> None:
    low, high = float(x.min()), float(x.max())
    room = 0.15 * (high - low) or 1.0
    limits = (low - room, high + room)
    plain(axes).plot(limits, limits, color=GREY, lw=1.2, zorder=1)
    axes.plot(x, y, linestyle="", marker=".", ms=3, alpha=0.4, color=BLUE, zorder=2)
    varies = x.std() > 0 and y.std() > 0
    tail = f": correlation {np.corrcoef(x, y)[0, 1]:.3f}" if varies else ""
    axes.set_title(name + tail, fontsize=TEXT, loc="left")
    suffix = f" ({unit})" if unit else ""
    axes.set_xlabel("true" + suffix, fontsize=SMALL)
    axes.set_ylabel("predicted" + suffix, fontsize=SMALL)
    axes.set_xlim(*limits)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
