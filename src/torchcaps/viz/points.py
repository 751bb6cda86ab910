"""Points: sets of them colored by part, predictions against truths, systems by their error."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.viz.canvas import (
    BLUE,
    GRAY,
    GRID_COLOR,
    SKY,
    SMALL,
    STYLES,
    Figure,
    new_figure,
    panels,
    plain,
)
from torchcaps.viz.names import short, sized_array

MAX_COLUMNS = 24
MIN_ERROR = 0.01  # percent; smaller errors are drawn here


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


def predicted_transformations(
    true: ArrayLike,
    predicted: ArrayLike,
    *,
    names: Sequence[str],
    unit: str = "",
) -> Figure:
    """Draw predicted against true parameters of transformations, a panel for each parameter.

    On the gray line both are equal.

    Args:
        true: `[n, m]` true parameters, such as the shift of each image.
        predicted: `[n, m]` predicted parameters.
        names: names of the m parameters, such as dx and dy; m is 1 to 12.
        unit: unit of the parameters.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    targets = np.asarray(true, dtype=np.float64)
    check_shape("true", targets, ("n", "m"))
    check_range("true: number of values", targets.size, low=1)
    count, num_names = targets.shape
    estimates = sized_array("predicted", predicted, n=count, m=num_names).astype(np.float64)
    sized_array("names", names, m=num_names)
    check_range("number of names", num_names, high=12)

    # At most three panels in a row, of 3.1 x 3.1 inches.
    figure, grid = panels(num_names, 3, 3.1, 3.1)
    suffix = f" ({unit})" if unit else ""
    for axes, name, x, y in zip(grid, names, targets.T, estimates.T, strict=True):
        title = short(name, 16)
        if x.std() > 0 and y.std() > 0:
            title += f": correlation {np.corrcoef(x, y)[0, 1]:.3f}"
        plain(axes, title, xlabel="true" + suffix, ylabel="predicted" + suffix)

        # The scale is that of the true parameters; a point may lie outside.
        margin = 0.15 * np.ptp(x) or 1.0
        limits = (x.min() - margin, x.max() + margin)
        axes.plot(limits, limits, color=GRAY, lw=1.2, zorder=1)
        axes.plot(x, y, linestyle="", marker=".", ms=3, alpha=0.4, color=BLUE, zorder=2)
        axes.set_xlim(*limits)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    return figure


def ranked_accuracies(
    panels: Mapping[str, Mapping[str, tuple[float, Sequence[float]]]],
) -> Figure:
    """Draw test errors as dots, the best system on top, with names at the dots.

    Where times of training differ by more than half, they stand behind the names.

    A bar is the standard deviation over runs, on either side of their mean. Errors are on a
    logarithmic axis; those below 0.01 % are drawn there.

    Args:
        panels: data set -> system -> (minutes of training, accuracies of its runs in [0, 1]); at
            least one data set.

    Returns:
        A matplotlib figure.
    """
    rows = max(map(len, panels.values()))
    figure = new_figure(4.6 * len(panels), 0.9 + 0.24 * rows)
    grid = figure.subplots(1, len(panels), squeeze=False)
    for axes, (dataset, systems) in zip(grid.flat, panels.items(), strict=True):
        ranked = sorted(systems.items(), key=lambda system: -mean(system[1][1]))
        errors = [max(MIN_ERROR, 100 * (1 - mean(runs))) for _, (_, runs) in ranked]
        middle = (errors[0] * errors[-1]) ** 0.5
        times = [minutes for minutes, _ in systems.values()]
        has_times = max(times) > 1.5 * min(times)
        for row, (name, (minutes, runs)) in enumerate(ranked):
            deviation = 100 * stdev(runs) if len(runs) > 1 else 0.0
            ends = [max(MIN_ERROR, errors[row] - deviation), errors[row] + deviation]
            axes.plot(ends, [row, row], color=SKY, lw=2)
            axes.plot(errors[row], row, color=BLUE, marker="o", ms=5)
            is_left = errors[row] <= middle
            axes.annotate(
                short(name, 36) + f", {minutes:.2g} min" * has_times,
                (ends[1 if is_left else 0], row),
                (7 if is_left else -7, 0),
                textcoords="offset points",
                ha="left" if is_left else "right",
                va="center",
                fontsize=SMALL,
            )
        title = dataset if has_times else f"{dataset}, {mean(times):.1f} min of training"
        plain(axes, title, xlabel="test error, %", grid=True)
        axes.grid(False, axis="y")
        # Room for the names on both sides.
        room = (errors[-1] / errors[0]) ** 0.2 * 1.05
        axes.set(xscale="log", xlim=(errors[0] / room, errors[-1] * room), yticks=[])
        axes.set_ylim(len(ranked) - 0.4, -0.6)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    return figure
