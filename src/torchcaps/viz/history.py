"""How trainings went: one, or several beside each other."""

from collections.abc import Mapping, Sequence
from math import isfinite, nan

import numpy as np
from matplotlib.ticker import MaxNLocator

from torchcaps.errors import ArgumentError, check_range
from torchcaps.viz.canvas import (
    BELOW,
    BLUE,
    RED,
    SMALL,
    STYLES,
    TEXT,
    Axes,
    Figure,
    line,
    panels,
    plain,
)
from torchcaps.viz.names import short_names

Metrics = Sequence[Mapping[str, float | None]]

# Key, name in the legend, style.
SERIES = (("train", "training", (BLUE, "o")), ("val", "validation", (RED, "s")))
DASHES = ("-", "--", ":", "-.")  # a second round of colors is told apart by these
MOST_RUNS = 4 * len(STYLES)


def curves(metrics: Metrics, *, loss: str = "", score: str = "accuracy") -> Figure:
    """Loss and score over epochs, training beside validation, with the best epoch of each in the legend.

    A loss that spans a factor of 20 or more is drawn on a logarithmic axis. Raises ValueError for no rows.

    Args:
        metrics: one row an epoch, with any of `train_loss`, `val_loss`, `train_<score>`, `val_<score>` and `epoch`;
            rows without `epoch` count from 1. Absent and None values are passed over; NaN and infinity leave a gap.
        loss: its name, such as "margin"; by default it is called "loss".
        score: the name of a figure of which more is better; one that ends in "accuracy", in [0, 1], is shown in
            percent.
    """
    if not metrics:
        raise ArgumentError("metrics", "expected at least one row, got none")
    figure, drawn = panels(2, 2, 4.5, 3.6)
    known = [_epoch(row, i) for i, row in enumerate(metrics)]
    margin = max(0.03 * (max(known) - min(known)), 0.3)
    for axes, measure, title in zip(
        drawn, ("loss", score), (f"{loss} loss".strip(), score), strict=True
    ):
        for prefix, name, style in SERIES:
            epochs, values = _series(metrics, f"{prefix}_{measure}")
            finite = [value for value in values if isfinite(value)]
            if finite:
                kind, best = (
                    ("lowest", min(finite)) if measure == "loss" else ("highest", max(finite))
                )
                shown = f"{best:.2f} %" if measure.endswith("accuracy") else f"{best:.3g}"
                line(
                    axes,
                    epochs,
                    values,
                    style,
                    f"{name}: {kind} {shown} at epoch {epochs[values.index(best)]:g}",
                )
        _dress(axes, title)
        axes.set_xlim(min(known) - margin, max(known) + margin)
        if axes.lines:
            axes.legend(fontsize=SMALL, frameon=False)
        else:
            axes.text(
                0.5,
                0.5,
                "not recorded",
                ha="center",
                va="center",
                fontsize=TEXT,
                transform=axes.transAxes,
            )
            axes.set_yticks([])
    _scale_loss(drawn[0])
    return figure


def overlaid_curves(runs: Mapping[str, Metrics], *, score: str = "accuracy") -> Figure:
    """Validation loss and score over epochs, a line a run, by name; rows and score are those of `curves`. Raises
    ValueError for no run, or more than can be told apart."""
    check_range("number of runs", len(runs), low=1, high=MOST_RUNS)
    figure, drawn = panels(2, 2, 4.5, 3.6, below=0.16 * len(runs))
    for axes, measure in zip(drawn, ("loss", score), strict=True):
        for index, rows in enumerate(runs.values()):
            dashes, style = DASHES[index // len(STYLES)], STYLES[index % len(STYLES)]
            line(axes, *_series(rows, f"val_{measure}"), style, "", ls=dashes)
        _dress(axes, f"validation {measure}")
    _scale_loss(drawn[0])
    figure.legend(drawn[0].lines, short_names(list(runs), 70), **BELOW)
    return figure


def _dress(axes: Axes, measure: str) -> None:
    unit = " (%)" if measure.endswith("accuracy") else ""
    plain(axes, measure.replace("_", " ") + unit, xlabel="epoch", grid=True)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=10, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    )


def _scale_loss(axes: Axes) -> None:
    """A logarithmic axis for a loss that spans a factor of 20 or more."""
    drawn = np.concatenate([[], *(np.asarray(one.get_ydata(), float) for one in axes.lines)])
    finite = drawn[np.isfinite(drawn)]
    if finite.size and 0 < 20 * finite.min() <= finite.max():
        axes.set_yscale("log")


def _series(metrics: Metrics, key: str) -> tuple[list[float], list[float]]:
    """Epochs and values of one key; values that are not finite become NaN, which a line leaves out."""
    scale = 100.0 if key.endswith("accuracy") else 1.0
    rows = [
        (_epoch(row, i), value)
        for i, row in enumerate(metrics)
        if (value := row.get(key)) is not None
    ]
    return [epoch for epoch, _ in rows], [
        scale * value if isfinite(value) else nan for _, value in rows
    ]


def _epoch(row: Mapping[str, float | None], index: int) -> float:
    epoch = row.get("epoch")
    return float(index + 1 if epoch is None else epoch)
