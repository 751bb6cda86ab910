"""Speed and memory: bars of variants, and curves over sizes.

The rows are those of `torchcaps bench`, of the benchmark that each docstring names.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, cycle
from statistics import mean
from typing import Any

from matplotlib.ticker import LogLocator, NullLocator

from torchcaps.errors import check_range
from torchcaps.viz.canvas import (
    BELOW,
    GRID_COLOR,
    SMALL,
    STYLES,
    Axes,
    Figure,
    Style,
    line,
    new_figure,
    panels,
    plain,
)
from torchcaps.viz.names import short

Rows = Sequence[Mapping[str, Any]]

MIN_TIME_RATIO = 4  # of the time axis, so that equal times look equal
MIN_ERROR = 0.01  # percent; smaller errors are drawn here


def throughput_bars(rows: Rows) -> Figure:
    """Draw the training speed of each variant, a bar for each precision.

    Args:
        rows: `variant`, `precision`, `img/s` of `bench step`, at least one.

    Returns:
        A matplotlib figure.
    """
    series: dict[str, dict[str, float]] = {}
    for row in rows:
        speeds = series.setdefault(str(row["precision"]), {})
        speeds[str(row["variant"])] = row["img/s"]
    return _bars(series, "training, images per second (more is better)")


def layer_bars(rows: Rows) -> Figure:
    """Draw the time of the routed layer alone.

    Args:
        rows: `variant`, `forward ms` and `forward+backward ms` of `bench layer`, at least one.

    Returns:
        A matplotlib figure.
    """
    series: dict[str, dict[str, float]] = {}
    for column in ("forward", "forward+backward"):
        series[column] = {str(row["variant"]): row[f"{column} ms"] for row in rows}
    return _bars(series, "routed layer, milliseconds (less is better)")


def scaling_curves(rows: Rows) -> Figure:
    """Draw the time of the routed layer against each of its sizes, both logarithmic.

    Args:
        rows: `against`, `impl`, `exponent` (the fitted one), `sizes` and `ms` of `bench scaling`,
            at least one.

    Returns:
        A matplotlib figure.
    """
    groups = _grouped(rows, "against")
    num_lines = max(len(group) for group in groups.values())
    figure, grid = panels(len(groups), 3, 3.3, 2.5 + 0.17 * num_lines, 0.4)
    for axes, (name, group) in zip(grid, groups.items(), strict=True):
        for row, style in zip(group, cycle(STYLES), strict=False):
            label = f"{short(str(row['impl']), 18)}: exponent {row['exponent']:.2f}"
            line(axes, row["sizes"], row["ms"], style, label)
        _make_logarithmic(axes, sorted(set().union(*_column(group, "sizes"))))
        plain(axes, name, ylabel="ms")
        # Below the panel the legend hides no line.
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.1), fontsize=SMALL, frameon=False)
    return figure


def latency_curves(rows: Rows) -> Figure:
    """Draw the time of an answer against the number of images at once.

    Args:
        rows: `batch`, `precision`, `median ms` and `95 % ms` (drawn dashed) of `bench latency`,
            at least one.

    Returns:
        A matplotlib figure.
    """
    groups = _grouped(rows, "precision")
    figure, [axes] = panels(1, 1, 5.4, 3.4)
    for (name, group), (color, marker) in zip(groups.items(), cycle(STYLES), strict=False):
        batches = _column(group, "batch")
        line(axes, batches, _column(group, "median ms"), (color, marker), name)
        line(axes, batches, _column(group, "95 % ms"), (color, ""), lw=1.0, ls="--")
    _make_logarithmic(axes, sorted(set(_column(rows, "batch"))))
    plain(axes, "time of an answer, ms (dashed: 95th percentile)", xlabel="images at once")
    figure.legend(ncols=len(groups), **BELOW)
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
    check_range("number of panels", len(panels), low=1)
    names = list(dict.fromkeys(chain.from_iterable(panels.values())))
    figure = new_figure(3.0 + 3.4 * len(panels), max(3.4, 0.6 + 0.2 * len(names)))
    grid = figure.subplots(1, len(panels), squeeze=False)
    entries = {}
    for axes, (dataset, systems) in zip(grid.flat, panels.items(), strict=True):
        for name, (minutes, accuracies) in systems.items():
            color, marker = _style(names.index(name))
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
        plain(axes, dataset, xlabel="minutes of training", ylabel="test error, %")
        _make_logarithmic(axes)
        low, high = axes.get_xlim()
        middle = (low * high) ** 0.5
        half = MIN_TIME_RATIO**0.5
        axes.set_xlim(min(low, middle / half), max(high, middle * half))
        axes.invert_yaxis()
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside right upper",
        fontsize=SMALL,
        frameon=False,
    )
    return figure


def _grouped(rows: Rows, key: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows by the text under a key.

    Raises:
        ArgumentError: for no rows.
    """
    check_range("number of rows", len(rows), low=1)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[key]), []).append(row)
    return groups


def _column(rows: Rows, key: str) -> list[Any]:
    return [row[key] for row in rows]


def _style(index: int) -> Style:
    """Return the style of a system: all colors with one marker, then with the next."""
    color, _ = STYLES[index % len(STYLES)]
    _, marker = STYLES[index // len(STYLES) % len(STYLES)]
    return color, marker


def _bars(series: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Draw horizontal bars with their numbers: a group for each name, in it a bar of each series.

    Raises:
        ArgumentError: for no name.
    """
    names = list(dict.fromkeys(chain.from_iterable(series.values())))
    check_range("number of rows", len(names), low=1)
    figure = new_figure(7.0, 0.9 + 0.22 * len(names) * len(series) + 0.1 * len(names))
    axes = plain(figure.subplots(), title)
    thickness = 0.84 / len(series)
    longest = 0.0
    for index, (label, lengths) in enumerate(series.items()):
        offset = (index - (len(series) - 1) / 2) * thickness
        bars = axes.barh(
            [names.index(name) + offset for name in lengths],
            list(lengths.values()),
            height=0.92 * thickness,
            color=STYLES[index % len(STYLES)][0],
            label=label,
        )
        axes.bar_label(bars, fmt=_three_digits, padding=3, fontsize=SMALL)
        longest = max(longest, *lengths.values())
    axes.set_yticks(range(len(names)), [short(name, 26) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xlim(0, 1.12 * longest)
    figure.legend(ncols=len(series), **BELOW)
    return figure


def _three_digits(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def _make_logarithmic(axes: Axes, ticks: Sequence[float] = ()) -> None:
    """Make both axes logarithmic, in plain numbers, with ticks at the sizes that were measured."""
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    if ticks:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.grid(True, color=GRID_COLOR, lw=0.6)
