"""Sets of points, colored by part."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError
from torchcaps.viz.canvas import SMALL, STYLES, Figure, new_figure

MOST_COLUMNS = 24


def point_sets(rows: Mapping[str, Sequence[tuple[ArrayLike, ArrayLike]]]) -> Figure:
    """Rows by name of sets of points, all at one scale; the third coordinate is left out. A set has points `[points, 2
    or 3]`, and the part of each, `[points]` integers from 0, that chooses the color; at most 24 of a row are drawn.
    Raises ValueError for no set, or rows of unequal length."""
    columns = min(len(next(iter(rows.values()), ())), MOST_COLUMNS)
    if not columns or len({len(sets) for sets in rows.values()}) > 1:
        raise ArgumentError("rows", "expected equally many sets of points in each, at least one")
    reach = 1.05 * max(
        np.abs(np.asarray(p)[:, :2]).max() for sets in rows.values() for p, _ in sets[:columns]
    )
    figure = new_figure(1.25 * columns + 0.4, 1.3 * len(rows))
    table = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, sets) in zip(table, rows.items(), strict=True):
        for axes, (points, parts) in zip(line, sets[:columns], strict=True):
            colors = [STYLES[part % len(STYLES)][0] for part in np.asarray(parts).tolist()]
            axes.scatter(*np.asarray(points)[:, :2].T, c=colors, s=2, linewidths=0)
            axes.set(
                xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal"
            )
            axes.spines[:].set_color("#E5E5E5")
        line[0].set_ylabel(name, fontsize=SMALL)
    return figure
