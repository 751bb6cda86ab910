"""How fast, how large: bars of variants, and curves over sizes.

The rows are those of `torchcaps bench`, of the benchmark that each docstring names; ValueError for none.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import mean
from typing import Any

from matplotlib.ticker import LogLocator, NullLocator

from torchcaps.errors import ArgumentError, check_range
from torchcaps.viz.canvas import BELOW, SMALL, STYLES, Axes, Figure, line, new_figure, panels, plain
from torchcaps.viz.names import short

Rows = Sequence[Mapping[str, Any]]


def throughput_bars(rows: Rows) -> Figure:
    """Training speed of each variant, one bar for each precision: `variant`, `precision`, `img/s` of `bench step`."""
    precisions = list(dict.fromkeys(str(row["precision"]) for row in _some(rows)))
    series = {
        p: {str(r["variant"]): r["img/s"] for r in rows if r["precision"] == p} for p in precisions
    }
    return _bars(series, "training, images per second (more is better)")


def layer_bars(rows: Rows) -> Figure:
    """Time of the routed layer alone: `variant`, `forward ms` and `forward+backward ms` of `bench layer`."""
    heads = ("forward", "forward+backward")
    series = {head: {str(r["variant"]): r[f"{head} ms"] for r in _some(rows)} for head in heads}
    return _bars(series, "routed layer, milliseconds (less is better)")


def memory_bars(rows: Rows) -> Figure:
    """Peak memory by `batch` and `precision`: `predicted MiB` and `measured MiB` of `bench memory`."""
    names = [f"batch {row['batch']}, {row['precision']}" for row in _some(rows)]
    heads = ("predicted", "measured")
    series = {
        head: {name: r[f"{head} MiB"] for name, r in zip(names, rows, strict=True)}
        for head in heads
    }
    return _bars(series, "peak memory of a training step, MiB")


def scaling_curves(rows: Rows) -> Figure:
    """Time of the routed layer against each of its sizes, both logarithmic, with the fitted exponents: `against`,
    `impl`, `exponent`, `sizes` and `ms` of `bench scaling`."""
    names = list(dict.fromkeys(str(row["against"]) for row in _some(rows)))
    most = max(sum(row["against"] == name for row in rows) for name in names)
    figure, drawn = panels(len(names), 3, 3.3, 2.5 + 0.17 * most, 0.4)
    for axes, name in zip(drawn, names, strict=True):
        lines = [row for row in rows if row["against"] == name]
        for row, style in zip(lines, cycle(STYLES), strict=False):
            label = f"{short(str(row['impl']), 18)}: exponent {row['exponent']:.2f}"
            line(axes, row["sizes"], row["ms"], style, label)
        _logarithmic(axes, sorted({size for row in lines for size in row["sizes"]}))
        plain(axes, name, ylabel="ms")
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.1), fontsize=SMALL, frameon=False
        )  # below: hides no line
    return figure


def latency_curves(rows: Rows) -> Figure:
    """Time of an answer against the images asked about at once: `batch`, `precision`, `median ms`, and dashed the
    `95 % ms` of `bench latency`."""
    figure, [axes] = panels(1, 1, 5.4, 3.4)
    names = dict.fromkeys(str(row["precision"]) for row in _some(rows))
    for name, style in zip(names, cycle(STYLES), strict=False):
        lines = [row for row in rows if row["precision"] == name]
        batches = [row["batch"] for row in lines]
        line(axes, batches, [r["median ms"] for r in lines], style, name)
        line(axes, batches, [r["95 % ms"] for r in lines], (style[0], ""), "", lw=1.0, ls="--")
    _logarithmic(axes, sorted({row["batch"] for row in rows}))
    plain(axes, "time of an answer, ms (dashed: 95th percentile)", xlabel="images at once")
    figure.legend(ncols=len(names), **BELOW)
    return figure


def accuracy_against_time(
    panels: Mapping[str, Mapping[str, tuple[float, Sequence[float]]]],
) -> Figure:
    """A panel a data set, a point a system: test error against minutes of training, with a bar from worst to best run.

    Both axes are logarithmic, and the better systems are above. Errors below 0.01 % are drawn there. The time axis
    spans a factor of four at least, so that equal times look equal. The panels are data set -> system -> (minutes,
    accuracies of its runs in [0, 1]); ValueError for none.
    """
    check_range("number of panels", len(panels), low=1)
    names = list(dict.fromkeys(name for points in panels.values() for name in points))
    looks = [(color, marker) for _, marker in STYLES for color, _ in STYLES]
    figure = new_figure(3.0 + 3.4 * len(panels), max(3.4, 0.6 + 0.2 * len(names)))
    for axes, (data, points) in zip(
        figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True
    ):
        for name, (minutes, runs) in points.items():
            color, marker = looks[names.index(name) % len(looks)]
            errors = [max(0.01, 100 * (1 - run)) for run in runs]
            axes.plot([minutes, minutes], [min(errors), max(errors)], color=color, lw=1)
            axes.plot(minutes, mean(errors), color=color, marker=marker, ms=6, ls="", label=name)
        plain(axes, data, xlabel="minutes of training", ylabel="test error, %")
        _logarithmic(axes)
        low, high = axes.get_xlim()
        middle = (low * high) ** 0.5
        axes.set_xlim(min(low, middle / 2), max(high, middle * 2))
        axes.invert_yaxis()
    found = {
        name: mark
        for axes in figure.axes
        for mark, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        found.values(), found.keys(), loc="outside right upper", fontsize=SMALL, frameon=False
    )
    return figure


def _some(rows: Rows) -> Rows:
    if not rows:
        raise ArgumentError("rows", "expected at least one, got none")
    return rows


def _bars(series: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Horizontal bars with their values: a group for each name, and in it a bar for each series."""
    names = list(dict.fromkeys(name for values in series.values() for name in values))
    figure = new_figure(7.0, 0.9 + 0.22 * len(names) * len(series) + 0.1 * len(names))
    axes = plain(figure.subplots(), title)
    thick = 0.84 / len(series)
    for n, (label, values) in enumerate(series.items()):
        places = [names.index(name) + (n - (len(series) - 1) / 2) * thick for name in values]
        color = STYLES[n % len(STYLES)][0]
        bars = axes.barh(
            places, list(values.values()), height=0.92 * thick, color=color, label=label
        )
        axes.bar_label(
            bars, fmt=lambda x: f"{x:.3g}" if x < 1000 else f"{x:.0f}", padding=3, fontsize=SMALL
        )
    axes.set_yticks(range(len(names)), [short(name, 26) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xlim(0, 1.12 * max(value for values in series.values() for value in values.values()))
    figure.legend(ncols=len(series), **BELOW)
    return figure


def _logarithmic(axes: Axes, ticks: Sequence[float] = ()) -> None:
    """Both axes logarithmic and written in plain numbers, with ticks at the sizes that were measured."""
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    if ticks:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.grid(True, color="#E5E5E5", lw=0.6)
