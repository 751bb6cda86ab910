"""How several trainings went, one beside the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan

from matplotlib.ticker import MaxNLocator

from torchcaps.errors import check_range
from torchcaps.viz.canvas import SMALL, TEXT, Axes, Figure, new_figure, plain, short_names
from torchcaps.viz.history import unit_of
from torchcaps.viz.robustness import STYLES

Metrics = Sequence[Mapping[str, float | None]]

DASHES = ("-", "--", ":", "-.")  # a second round of colours is told apart by these
MOST_RUNS = 4 * len(STYLES)


def overlaid_curves(runs: Mapping[str, Metrics], *, score: str = "accuracy") -> Figure:
    """Validation loss and score over epochs, a line a run.

    A loss that spans a factor of 20 or more is drawn on a logarithmic axis.

    Args:
        runs: name -> one row an epoch, with `epoch` and any of `val_loss`, `val_<score>`; absent values are passed
            over; NaN and infinity leave a gap.
        score: as for `curves`.

    Raises:
        ValueError: for no run, or more than can be told apart.
    """
    check_range("number of runs", len(runs), low=1, high=MOST_RUNS)
    figure = new_figure(9.0, 3.6 + 0.16 * len(runs))
    loss, right = figure.subplots(1, 2)
    drawn = _panel(loss, runs, "val_loss", 1.0)
    _panel(right, runs, f"val_{score}", 100.0 if unit_of(score) else 1.0)
    if drawn and 0 < 20 * min(drawn) <= max(drawn):
        loss.set_yscale("log")
    loss.set_title("validation loss", fontsize=TEXT, loc="left")
    right.set_title(f"validation {score.replace('_', ' ')}{unit_of(score)}", fontsize=TEXT, loc="left")
    lines, _ = loss.get_legend_handles_labels()
    names = short_names(list(runs), 70)
    figure.legend(lines, names, loc="outside lower center", fontsize=SMALL, frameon=False)
    return figure


def _panel(axes: Axes, runs: Mapping[str, Metrics], key: str, scale: float) -> list[float]:
    """Draw one measure of every run; returns the finite values drawn."""
    drawn: list[float] = []
    for place, (name, rows) in enumerate(runs.items()):
        colour, marker = STYLES[place % len(STYLES)]
        pairs = [(row["epoch"] or 0, value) for row in rows if (value := row.get(key)) is not None]
        values = [scale * value if isfinite(value) else nan for _, value in pairs]
        axes.plot(
            [epoch for epoch, _ in pairs], values, color=colour, marker=marker if len(values) <= 40 else "", ms=4,
            ls=DASHES[place // len(STYLES) % len(DASHES)], lw=1.5, label=name.lstrip("_") or "run",
        )  # fmt: skip
        drawn += [value for value in values if isfinite(value)]
    plain(axes).set_xlabel("epoch", fontsize=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.grid(True, color="#E5E5E5", lw=0.6)
    return drawn
