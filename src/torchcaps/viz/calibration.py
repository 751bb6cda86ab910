"""Reliability diagrams: confidence against accuracy."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from torchcaps.errors import ArgumentError
from torchcaps.viz.canvas import BELOW, GRAY, RED, SKY, TEXT, Figure, new_figure, plain

NAMES = {"normalized": "activations divided by their sum", "length": "longest capsule"}


def calibration(reliability: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A reliability diagram for each table: accuracy by confidence above, the number of samples below.

    Source: arXiv 1706.04599, figure 1. On the diagonal, confidence and accuracy agree. The tables, one to three by
    name, are those in the JSON of an evaluation under `calibration`: each has `error`, `edges` (ascending, 0 to 1), and
    for each bin `count`, `confidence` and `accuracy` (None where the bin is empty). Raises ValueError for other numbers
    of tables."""
    if not 1 <= len(reliability) <= 3:
        raise ArgumentError("reliability", f"expected one to three tables, got {len(reliability)}")
    figure = new_figure(max(4.3 * len(reliability), 5.2), 4.9)
    grid = figure.subplots(2, len(reliability), sharex=True, squeeze=False, height_ratios=[3, 1])
    for column, (name, table) in enumerate(reliability.items()):
        upper = plain(grid[0, column], ylabel="accuracy")
        lower = plain(grid[1, column], xlabel="confidence", ylabel="samples")
        edges, counts = np.asarray(table["edges"], dtype=float), np.asarray(table["count"])
        sure, right = (
            np.array(table[key], dtype=float) for key in ("confidence", "accuracy")
        )  # None becomes NaN
        filled = ~np.isnan(right)
        look: dict[str, Any] = {"align": "edge", "edgecolor": "white", "lw": 0.5}
        upper.bar(
            edges[:-1][filled],
            right[filled],
            np.diff(edges)[filled],
            color=SKY,
            label="accuracy",
            **look,
        )
        upper.plot([0, 1], [0, 1], color="black", lw=0.8, ls="--", label="confidence = accuracy")
        mean = "accuracy at the mean confidence"
        upper.plot(sure[filled], right[filled], color=RED, marker="o", ms=3.5, ls="", label=mean)
        upper.set_xlim(0, 1)
        upper.set_ylim(0, 1.02)
        upper.set_title(
            f"{NAMES.get(name, name)}\ncalibration error {100 * table['error']:.2f} %",
            fontsize=TEXT,
        )
        lower.bar(edges[:-1], counts, np.diff(edges), color=GRAY, **look)
        # From a full last bin to single samples: only a logarithmic axis shows both.
        lower.set_yscale("symlog", linthresh=1)
        lower.set_ylim(bottom=0)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), ncols=3, **BELOW)
    return figure
