"""Known transformations: what was drawn for them, what was told of them, and what units draw with."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError, check_range, named_shape
from torchcaps.viz.canvas import BLUE, GRAY, TEXT, Figure, panels, plain
from torchcaps.viz.images import check_alike, pictures, tile_grid
from torchcaps.viz.names import check_length, short

MOST_COLUMNS, MOST_UNITS = 20, 400
ROWS = ("input", "output", "target")


def transformed(source: ArrayLike, drawn: ArrayLike, target: ArrayLike) -> Figure:
    """Up to 20 inputs above what was drawn for them, above what ought to be drawn; a column an image. Drawn values
    outside [0, 1] are clipped. Raises ValueError for shapes that do not fit, or more images."""
    rows = [
        pictures(name, images)
        for name, images in (("source", source), ("drawn", drawn), ("target", target))
    ]
    for name, images in zip(("drawn", "target"), rows[1:], strict=True):
        check_alike(name, images, "source", rows[0])
    check_range("number of images", len(rows[0]), high=MOST_COLUMNS)
    return tile_grid(np.concatenate(rows), ROWS, longest=0.8)


def predicted_transformations(
    true: ArrayLike, predicted: ArrayLike, *, names: Sequence[str], unit: str = ""
) -> Figure:
    """True against predicted numbers `[n, m]` of transformations, a panel a number; on the gray line both are equal.
    The names of the numbers, such as dx and dy, are 1 to 12; the labels of the axes have their unit. Raises ValueError
    for shapes that do not fit."""
    x, y = np.asarray(true, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise ArgumentError(
            "true", f"expected [n, m] with at least one row, got {named_shape(('n', 'm'), x.shape)}"
        )
    if x.shape != y.shape:
        want, came = (named_shape(("n", "m"), values.shape) for values in (x, y))
        raise ArgumentError("predicted", f"expected {want}, got {came}")
    check_length("names", names, x.shape[1])
    check_range("number of names", len(names), high=12)
    figure, drawn = panels(len(names), 3, 3.1, 3.1)
    suffix = f" ({unit})" if unit else ""
    for axes, name, told, found in zip(drawn, names, x.T, y.T, strict=True):
        varies = told.std() > 0 and found.std() > 0
        tail = f": correlation {np.corrcoef(told, found)[0, 1]:.3f}" if varies else ""
        plain(axes, short(name, 16) + tail, xlabel="true" + suffix, ylabel="predicted" + suffix)
        room = 0.15 * np.ptp(told) or 1.0
        limits = (told.min() - room, told.max() + room)
        axes.plot(limits, limits, color=GRAY, lw=1.2, zorder=1)
        axes.plot(told, found, linestyle="", marker=".", ms=3, alpha=0.4, color=BLUE, zorder=2)
        axes.set_xlim(*limits)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    return figure


def generation_weights(weights: ArrayLike, *, title: str = "") -> Figure:
    """Outgoing weights of generation units as pictures: gray is 0, white adds ink, black takes it away. They are
    `[capsules, units, height, width]`, any numbers at one scale; a row a capsule, at most 400 units in all. Raises
    ValueError for an array of other axes, or too many units."""
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim != 4 or values.size == 0:
        came = named_shape(("capsules", "units", "height", "width"), values.shape)
        raise ArgumentError("weights", f"expected [capsules, units, height, width], got {came}")
    rows, columns = values.shape[:2]
    check_range("number of units", rows * columns, high=MOST_UNITS)
    # One outlier must not turn all others gray.
    scale = max(float(np.quantile(np.abs(values), 0.999)), 1e-12)
    tiles = pictures("weights", (0.5 + 0.5 * values / scale).reshape(-1, 1, *values.shape[2:]))
    figure = tile_grid(tiles, [str(row + 1) for row in range(rows)], title)
    figure.axes[0].set_ylabel("capsule", fontsize=TEXT)
    return figure
