"""Reliability diagrams: confidence against accuracy."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from torchcaps.errors import check_range
from torchcaps.viz.canvas import BELOW, GRAY, RED, SKY, TEXT, Axes, Figure, new_figure, plain

NAMES = {"normalized": "activations divided by their sum", "length": "longest capsule"}
BAR_STYLE: dict[str, Any] = {"align": "edge", "edgecolor": "white", "lw": 0.5}


def calibration(reliability: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw a reliability diagram for each table.

    Above is the accuracy by confidence, as in figure 1 of arXiv 1706.04599; on the diagonal both
    agree. Below is the number of samples.

    Args:
        reliability: one to three tables by name, as in the JSON of an evaluation under
            `calibration`. Each has `error`, `edges` (ascending, 0 to 1), and for each bin `count`,
            `confidence` and `accuracy` (None where the bin is empty).

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for another number of tables.
    """
    num_tables = len(reliability)
    check_range("number of tables", num_tables, low=1, high=3)
    figure = new_figure(max(4.3 * num_tables, 5.2), 4.9)
    grid = figure.subplots(2, num_tables, sharex=True, squeeze=False, height_ratios=[3, 1])
    for column, (name, table) in enumerate(reliability.items()):
        title = f"{NAMES.get(name, name)}\ncalibration error {100 * table['error']:.2f} %"
        _draw_accuracy(plain(grid[0, column], ylabel="accuracy"), table)
        grid[0, column].set_title(title, fontsize=TEXT)
        _draw_counts(plain(grid[1, column], xlabel="confidence", ylabel="samples"), table)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), ncols=3, **BELOW)
    return figure


def _draw_accuracy(axes: Axes, table: Mapping[str, Any]) -> None:
    edges = np.asarray(table["edges"], dtype=float)
    confidence = np.array(table["confidence"], dtype=float)  # None becomes NaN
    accuracy = np.array(table["accuracy"], dtype=float)
    filled = ~np.isnan(accuracy)
    widths = np.diff(edges)[filled]
    left_edges = edges[:-1][filled]
    axes.bar(
        left_edges,
        accuracy[filled],
        widths,
        color=SKY,
        label="accuracy",
        **BAR_STYLE,
    )
    diagonal = [0, 1]
    axes.plot(diagonal, diagonal, color="black", lw=0.8, ls="--", label="confidence = accuracy")
    axes.plot(
        confidence[filled],
        accuracy[filled],
        color=RED,
        marker="o",
        ms=3.5,
        ls="",
        label="accuracy at the mean confidence",
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)


def _draw_counts(axes: Axes, table: Mapping[str, Any]) -> None:
    edges = np.asarray(table["edges"], dtype=float)
    axes.bar(edges[:-1], table["count"], np.diff(edges), color=GRAY, **BAR_STYLE)
    # From a full last bin to single samples: only a logarithmic axis shows both.
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
