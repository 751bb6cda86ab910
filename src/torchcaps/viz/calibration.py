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
    for (upper, lower), (name, table) in zip(grid.T, reliability.items(), strict=True):
        title = f"{NAMES.get(name, name)}\ncalibration error {100 * table['error']:.2f} %"
        plain(upper, ylabel="accuracy").set_title(title, fontsize=TEXT)
        plain(lower, xlabel="confidence", ylabel="samples")
        _draw_table(upper, lower, table)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), ncols=3, **BELOW)
    return figure


def _draw_table(upper: Axes, lower: Axes, table: Mapping[str, Any]) -> None:
    edges = np.asarray(table["edges"])
    confidence = np.array(table["confidence"], dtype=float)  # None becomes NaN
    accuracy = np.array(table["accuracy"], dtype=float)
    left_edges = edges[:-1]
    widths = np.diff(edges)
    filled = ~np.isnan(accuracy)
    upper.bar(
        left_edges[filled],
        accuracy[filled],
        widths[filled],
        color=SKY,
        label="accuracy",
        **BAR_STYLE,
    )
    diagonal = [0, 1]
    upper.plot(diagonal, diagonal, color="black", lw=0.8, ls="--", label="confidence = accuracy")
    label = "accuracy at the mean confidence"
    upper.plot(confidence, accuracy, color=RED, marker="o", ms=3.5, ls="", label=label)
    upper.set(xlim=(0, 1), ylim=(0, 1.02))

    lower.bar(left_edges, table["count"], widths, color=GRAY, **BAR_STYLE)
    # From a full last bin to single samples: only a logarithmic axis shows both.
    lower.set_yscale("symlog", linthresh=1)
    lower.set_ylim(bottom=0)
