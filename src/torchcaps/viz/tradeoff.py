"""Test error of systems against the time of their training."""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import mean

from matplotlib.ticker import LogLocator, NullLocator

from torchcaps.viz.canvas import SMALL, STYLES, Figure, new_figure, plain

MIN_TIME_RATIO = 4  # of the time axis, so that equal times look equal
MIN_ERROR = 0.01  # percent; smaller errors are drawn here


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
