"""Pictures of benchmarks: bars of variants, and curves over sizes; `--plot FILE` writes one."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Row

Rows = Sequence[Row]
SMALL = 7.5  # points


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add `--plot`."""
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture; needs matplotlib")


def save(path: Path | None, draw: Callable[[Rows], Any], rows: Rows) -> None:
    """Draw rows into a file; nothing without a path."""
    if path is not None:
        draw(rows).savefig(path, dpi=130)


def throughput_bars(rows: Rows) -> Any:
    """The training speed of each variant, a bar for each precision: rows of `step`."""
    series: dict[str, dict[str, float]] = {}
    for row in rows:
        series.setdefault(row["precision"], {})[row["variant"]] = row["img/s"]
    return _bars(series, "training, images per second (more is better)")


def layer_bars(rows: Rows) -> Any:
    """The time of the routed layer alone: rows of `layer` or `routers`."""
    series = {}
    for column in ("forward", "forward+backward"):
        series[column] = {row["variant"]: row[f"{column} ms"] for row in rows}
    return _bars(series, "routed layer, milliseconds (less is better)")


def scaling_curves(rows: Rows) -> Any:
    """The time of the routed layer against each of its sizes, both logarithmic: rows of `scaling`."""
    names = list(dict.fromkeys(row["against"] for row in rows))
    num_rows = -(-len(names) // 3)
    figure = _new_figure(10, 3 * num_rows)
    panels = [*figure.subplots(num_rows, 3, squeeze=False).flat]
    for axes, name in zip(panels, names, strict=False):
        group = [row for row in rows if row["against"] == name]
        for row in group:
            label = f"{row['impl']}: exponent {row['exponent']:.2f}"
            axes.plot(row["sizes"], row["ms"], marker="o", ms=4, label=label)
        _make_logarithmic(axes, group[0]["sizes"])
        axes.set_title(name, fontsize=SMALL, loc="left")
        axes.set_ylabel("ms", fontsize=SMALL)
        axes.legend(fontsize=SMALL, frameon=False)
    for axes in panels[len(names) :]:
        axes.remove()
    return figure


def latency_curves(rows: Rows) -> Any:
    """The time of an answer against the number of images at once: rows of `latency`."""
    figure = _new_figure(5.4, 3.4)
    axes = figure.subplots()
    for index, precision in enumerate(dict.fromkeys(row["precision"] for row in rows)):
        group = [row for row in rows if row["precision"] == precision]
        batches = [row["batch"] for row in group]
        for column, dashes, label in (("median ms", "-", precision), ("95 % ms", "--", None)):
            times = [row[column] for row in group]
            axes.plot(batches, times, dashes, color=f"C{index}", label=label)
    _make_logarithmic(axes, batches)
    title = "time of an answer, ms (dashed: 95th percentile)"
    axes.set_title(title, fontsize=SMALL, loc="left")
    axes.set_xlabel("images at once", fontsize=SMALL)
    axes.legend(fontsize=SMALL, frameon=False)
    return figure


def _new_figure(width: float, height: float) -> Any:
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _bars(series: Mapping[str, Mapping[str, float]], title: str) -> Any:
    """Horizontal bars with their numbers: a group for each name, in it a bar of each series."""
    names = list(dict.fromkeys(name for lengths in series.values() for name in lengths))
    figure = _new_figure(7, 0.9 + 0.3 * len(names) * len(series))
    axes = figure.subplots()
    thickness = 0.84 / len(series)
    for index, (label, lengths) in enumerate(series.items()):
        offset = (index - (len(series) - 1) / 2) * thickness
        places = [names.index(name) + offset for name in lengths]
        bars = axes.barh(places, list(lengths.values()), height=0.92 * thickness, label=label)
        axes.bar_label(bars, fmt="{:.4g}", padding=3, fontsize=SMALL)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(title, fontsize=SMALL, loc="left")
    axes.legend(fontsize=SMALL, frameon=False)
    return figure


def _make_logarithmic(axes: Any, ticks: Sequence[float]) -> None:
    """Make both axes logarithmic, in plain numbers, with ticks at the sizes that were measured."""
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.grid(True, alpha=0.3)
