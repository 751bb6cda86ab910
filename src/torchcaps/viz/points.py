"""Points: sets of them colored by part, predictions against truths, error against time."""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import mean

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.viz.canvas import (
    BLUE,
    GRAY,
    GRID_COLOR,
    SMALL,
    STYLES,
    Figure,
    new_figure,
    panels,
    plain,
)
from torchcaps.viz.names import short, sized_array

MAX_COLUMNS = 24
MIN_TIME_RATIO = 4  # of the time axis, so that equal times look equal
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


def accuracy_against_time(
    panels: Mapping[str, Mapping[str, tuple[float, Sequence[float]]]],
) -> Figure:
    """Draw test error against minutes of training, a panel a data set and a point a system.

    A bar goes from the worst to the best run. Both axes are logarithmic, and the better systems
    are above. Errors below 0.01 % are drawn there. The time axis spans a factor of four at least,
    so that equal times look equal.

    Args:
        panels: data set -> system -> (minutes, accuracies of its runs in [0, 1]); at least one
            data set.

    Returns:
        A matplotlib figure.
    """
    names = list(dict.fromkeys(chain.from_iterable(panels.values())))
    figure = new_figure(3.0 + 3.4 * len(panels), max(3.4, 0.6 + 0.2 * len(names)))
    grid = figure.subplots(1, len(panels), squeeze=False)
    entries = {}
    for axes, (dataset, systems) in zip(grid.flat, panels.items(), strict=True):
        for name, (minutes, accuracies) in systems.items():
            # All colors with one marker, then with the next.
            marker_index, color_index = divmod(names.index(name), len(STYLES))
            color, _ = STYLES[color_index]
            _, marker = STYLES[marker_index % len(STYLES)]
            errors = [max(MIN_ERROR, 100 * (1 - accuracy)) for accuracy in accuracies]
            axes.plot([minutes, minutes], [min(errors), max(errors)], color=color, lw=1)
            [entries[name]] = axes.plot(
                minutes,
                mean(errors),
                color=color,
                marker=marker,
                ms=6,
                ls="",
                label=name,
            )
        plain(axes, dataset, xlabel="minutes of training", ylabel="test error, %", grid=True)
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(NullLocator())
        low, high = axes.get_xlim()
        middle = (low * high) ** 0.5
        half = MIN_TIME_RATIO**0.5
        axes.set_xlim(min(low, middle / half), max(high, middle * half))
        axes.invert_yaxis()
    handles = list(entries.values())
    figure.legend(handles=handles, loc="outside right upper", fontsize=SMALL, frameon=False)
    return figure
