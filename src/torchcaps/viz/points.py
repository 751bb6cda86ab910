"""Sets of points, colored by part."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError
from torchcaps.viz.canvas import GRID_COLOR, SMALL, STYLES, Figure, new_figure

MAX_COLUMNS = 24


def point_sets(rows: Mapping[str, Sequence[tuple[ArrayLike, ArrayLike]]]) -> Figure:
    """Draw rows of sets of points, all at one scale; the third coordinate is left out.

    Args:
        rows: name of a row -> its sets, of which at most 24 are drawn. A set has points
            `[points, 2 or 3]`, and the part of each, `[points]` integers from 0, which chooses
            the color.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for no set, or rows of unequal length.
    """
    num_columns = min(len(next(iter(rows.values()), ())), MAX_COLUMNS)
    if not num_columns or len(set(map(len, rows.values()))) > 1:
        raise ArgumentError("rows", "expected equally many sets of points in each, at least one")
    sets = [each for row in rows.values() for each in row[:num_columns]]
    limit = 1.05 * max(np.abs(np.asarray(points)[:, :2]).max() for points, _ in sets)

    figure = new_figure(1.25 * num_columns + 0.4, 1.3 * len(rows))
    table = figure.subplots(len(rows), num_columns, squeeze=False)
    for axes, (points, parts) in zip(table.flat, sets, strict=True):
        x, y, *_ = np.asarray(points).T
        colors = [STYLES[part % len(STYLES)][0] for part in np.asarray(parts)]
        axes.scatter(x, y, c=colors, s=2, linewidths=0)
        limits = (-limit, limit)
        axes.set(xlim=limits, ylim=limits, xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set_color(GRID_COLOR)
    for axes, name in zip(table[:, 0], rows, strict=True):
        axes.set_ylabel(name, fontsize=SMALL)
    return figure
