"""How a training went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan

from matplotlib.ticker import MaxNLocator

from torchcaps.viz.canvas import BLUE, RED, SMALL, TEXT, Axes, Figure, new_figure, plain

Metrics = Sequence[Mapping[str, float | None]]

# Key, name in the legend, colour, marker; the markers tell the lines apart in grey print too.
SERIES = (("train", "training", BLUE, "o"), ("val", "validation", RED, "s"))


def curves(metrics: Metrics) -> Figure:
    """Loss and accuracy over epochs, training beside validation, with the best epoch of each in the legend.

    A loss that spans a factor of 20 or more is drawn on a logarithmic axis.

    Args:
        metrics: one row an epoch, with any of `train_loss`, `val_loss`, `train_accuracy`, `val_accuracy` (accuracies in
            [0, 1]) and `epoch`; rows without `epoch` count from 1. Absent and None values are passed over; NaN and
            infinity leave a gap. Other keys are ignored.

    Returns:
        A figure of two panels, loss and accuracy.

    Raises:
        ValueError: for no rows.
    """
    if not metrics:
        raise ValueError("metrics: expected at least one row, got none")
    figure = new_figure(9.0, 3.6)
    loss, accuracy = figure.subplots(1, 2)
    drawn = _panel(loss, metrics, "loss", scale=1.0)
    _panel(accuracy, metrics, "accuracy", scale=100.0)
    if drawn and 0 < 20 * min(drawn) <= max(drawn):
        loss.set_yscale("log")
    return figure


def _panel(axes: Axes, metrics: Metrics, measure: str, *, scale: float) -> list[float]:
    """Draw one measure of training and validation; returns the finite values drawn."""
    drawn: list[float] = []
    for prefix, name, colour, marker in SERIES:
        epochs, values = _series(metrics, f"{prefix}_{measure}", scale)
        finite = [value for value in values if isfinite(value)]
        if finite:
            best = min(finite) if measure == "loss" else max(finite)
            label = f"{name}: {_best(measure, best)} at epoch {epochs[values.index(best)]:g}"
            # A line of one point shows only by its marker.
            axes.plot(
                epochs, values, color=colour, marker=marker if len(values) <= 40 else "", ms=4, lw=1.5, label=label
            )
        drawn += finite
    _dress(axes, measure, epochs=[_epoch(row, i) for i, row in enumerate(metrics)])
    return drawn


def _dress(axes: Axes, measure: str, *, epochs: list[float]) -> None:
    unit = " (%)" if measure == "accuracy" else ""
    plain(axes).set_title(measure + unit, fontsize=TEXT, loc="left")
    axes.set_xlabel("epoch", fontsize=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    margin = max(0.03 * (max(epochs) - min(epochs)), 0.3)
    axes.set_xlim(min(epochs) - margin, max(epochs) + margin)
    axes.grid(True, color="#E5E5E5", lw=0.6)
    if axes.lines:
        axes.legend(fontsize=SMALL, frameon=False)
    else:
        axes.text(0.5, 0.5, "not recorded", ha="center", va="center", fontsize=TEXT, transform=axes.transAxes)
        axes.set_yticks([])


def _series(metrics: Metrics, key: str, scale: float) -> tuple[list[float], list[float]]:
    """Epochs and values of one key; values that are not finite become NaN, which a line leaves out."""
    rows = [(_epoch(row, i), row[key]) for i, row in enumerate(metrics) if row.get(key) is not None]
    values = [float(value) * scale for _, value in rows if value is not None]
    return [epoch for epoch, _ in rows], [value if isfinite(value) else nan for value in values]


def _epoch(row: Mapping[str, float | None], index: int) -> float:
    epoch = row.get("epoch")
    return float(index + 1 if epoch is None else epoch)


def _best(measure: str, value: float) -> str:
    return f"lowest {value:.3g}" if measure == "loss" else f"highest {value:.2f} %"
