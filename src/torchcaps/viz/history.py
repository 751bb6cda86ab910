"""How a training went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan

from matplotlib.ticker import MaxNLocator

from torchcaps.viz.canvas import BLUE, RED, SMALL, TEXT, Axes, Figure, new_figure, plain

Metrics = Sequence[Mapping[str, float | None]]

# Key, name in the legend, colour, marker; the markers tell the lines apart in grey print too.
SERIES = (("train", "training", BLUE, "o"), ("val", "validation", RED, "s"))


def curves(metrics: Metrics, *, loss: str = "", score: str = "accuracy") -> Figure:
    """Loss and score over epochs, training beside validation, with the best epoch of each in the legend.

    A loss that spans a factor of 20 or more is drawn on a logarithmic axis.

    Args:
        metrics: one row an epoch, with any of `train_loss`, `val_loss`, `train_<score>`, `val_<score>` and `epoch`;
            rows without `epoch` count from 1. Absent and None values are passed over; NaN and infinity leave a gap.
            Other keys are ignored.
        loss: its name, such as "margin"; by default it is called "loss".
        score: the name of a figure of which more is better. One that ends in "accuracy" is in [0, 1] and shown in
            percent.

    Returns:
        A figure of two panels, loss and score.

    Raises:
        ValueError: for no rows.
    """
    if not metrics:
        raise ValueError("metrics: expected at least one row, got none")
    figure = new_figure(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    drawn = _panel(left, metrics, "loss", best=min)
    left.set_title(f"{loss.replace('_', ' ')} loss".strip(), fontsize=TEXT, loc="left")
    _panel(right, metrics, score, best=max)
    right.set_title(f"{score.replace('_', ' ')}{unit_of(score)}", fontsize=TEXT, loc="left")
    if drawn and 0 < 20 * min(drawn) <= max(drawn):
        left.set_yscale("log")
    return figure


def unit_of(measure: str) -> str:
    """Of an axis: accuracies are shown in percent."""
    return " (%)" if measure.endswith("accuracy") else ""


def _panel(axes: Axes, metrics: Metrics, measure: str, *, best: Callable[[list[float]], float]) -> list[float]:
    """Draw one measure of training and validation; returns the finite values drawn."""
    drawn: list[float] = []
    for prefix, name, colour, marker in SERIES:
        epochs, values = _series(metrics, f"{prefix}_{measure}", 100.0 if unit_of(measure) else 1.0)
        finite = [value for value in values if isfinite(value)]
        if finite:
            value = best(finite)
            told = f"{value:.2f} %" if unit_of(measure) else f"{value:.3g}"
            kind = "lowest" if best is min else "highest"
            label = f"{name}: {kind} {told} at epoch {epochs[values.index(value)]:g}"
            # A line of one point shows only by its marker.
            axes.plot(
                epochs, values, color=colour, marker=marker if len(values) <= 40 else "", ms=4, lw=1.5, label=label
            )
        drawn += finite
    _dress(axes, epochs=[_epoch(row, i) for i, row in enumerate(metrics)])
    return drawn


def _dress(axes: Axes, *, epochs: list[float]) -> None:
    plain(axes).set_xlabel("epoch", fontsize=SMALL)
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
