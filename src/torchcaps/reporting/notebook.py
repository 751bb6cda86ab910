"""A run as a notebook shows it: what was trained, how it goes or went, and what came out."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from torchcaps.models.notebook import card, facts, plain
from torchcaps.reporting.epochs import (
    best_epoch,
    epochs_of,
    is_finished,
    score_of,
    training_seconds,
)
from torchcaps.reporting.run import read_figures
from torchcaps.reporting.words import duration, figure, numbers, percent
from torchcaps.training import RunFolder, load

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = (
    480,
    130,
    46,
    12,
    12,
    24,
)  # of the curve and its margins, in pixels
MOST_DOTS, MOST_FIGURES = 40, 3


class Run:
    """A trained run of any task, or one that still trains: a notebook shows it as a card, `print` as one line.

    The folder, given by its path, is read anew whenever it is asked for anything, so that the same object follows a
    training. Raises RunError if there is no run, or its configuration is damaged.

    Example:
        >>> run = Run("runs/capsnet-digits")
        >>> run
        Run('runs/capsnet-digits': capsnet on digits, 98.50 % of 1,000 test images right, best epoch 8 of 8, 14 s)
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder.open(path)
        self.config = self.folder.config()

    @property
    def about(self) -> str:
        """`capsnet on digits`."""
        return f"{self.config.model.name} on {self.config.data.name}"

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The metrics of the epochs done so far; RunError if they are damaged."""
        return epochs_of(self.folder)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the score that ends the training was reached."""
        return is_finished(self.config, self.epochs)

    @property
    def best_epoch(self) -> int | None:
        """Whose model is kept, counted from 1: the best by validation, or the last; None before the first."""
        return best_epoch(self.epochs)

    @property
    def seconds(self) -> float | None:
        """Time in training steps; None where that was not recorded."""
        return training_seconds(self.epochs, self.config.run.batch_size)

    @property
    def figures(self) -> dict[str, Any] | None:
        """What evaluation.json says of the test images; None before they were looked at, RunError if it is damaged."""
        return read_figures(self.folder.path)

    def load(self, device: str = "cpu") -> nn.Module:
        """Its model, in evaluation mode; RunError if there is none yet, or it is damaged."""
        return load(self.folder.path, device=device)

    def __repr__(self) -> str:
        state = (self.about, self._result() or "not evaluated yet", *self._progress())
        return f"Run({str(self.folder.path)!r}: {', '.join(state)})"

    def _repr_html_(self) -> str:
        training = ", ".join(self._progress())
        lines = {
            "folder": str(self.folder.path),
            "test images": self._result(),
            "training": training,
        }
        rows, best = self.epochs, self.best_epoch
        key, what = f"val_{score_of(rows)}", f"validation {score_of(rows).replace('_', ' ')}"
        values = [float(row[key]) for row in rows if key in row]
        if values:
            top, last = figure(key, max(values)), figure(key, values[-1])
            lines[what] = f"{top} at the best epoch, {best}; {last} after the last"
        else:  # a run of an early version without validation
            key, what = "train_loss", "training loss"
        known = [(name, value) for name, value in lines.items() if value]
        return card(
            self.folder.path.resolve().name,
            self.about,
            facts(known),
            curve(rows, key, what, best=best),
        )

    def _result(self) -> str:
        """`98.50 % of 1,000 test images right`; empty before they were looked at."""
        found = self.figures
        if found is None:
            return ""
        of = f"of {found.get('num_samples', 0):,} test images"
        if "exact" in found:
            return f"{percent(found['exact'])} {of} with all their classes found"
        if "accuracy" in found:
            return f"{percent(found['accuracy'])} {of} right"
        named = [f"{name} {figure(name, value)}" for name, value in numbers(found).items()]
        return f"{', '.join(named[:MOST_FIGURES])} {of}"

    def _progress(self) -> list[str]:
        """`epoch 5 of 8 done`, `best epoch 4 of 8`, `14 s`: what of it is known."""
        rows, total = self.epochs, self.config.run.epochs
        reached = f"epoch {rows[-1]['epoch']}" if rows else "no epoch"
        state = [] if self.finished else [f"{reached} of {total} done"]
        if any(row.get("best") for row in rows):
            state.append(f"best epoch {best_epoch(rows)} of {total}")
        return state if self.seconds is None else [*state, duration(self.seconds)]


def curve(
    rows: Sequence[Mapping[str, Any]], key: str, what: str, *, best: int | None = None
) -> str:
    """A line over epochs as an inline SVG in the colors of the page it stands on; empty without a finite value.
    Accuracies are drawn in percent, `what` names the figure in plain text, and the best epoch is marked."""
    percents = key.endswith("accuracy")
    points = {
        int(row["epoch"]): float(row[key]) * (100 if percents else 1) for row in rows if key in row
    }
    points = {epoch: value for epoch, value in points.items() if isfinite(value)}
    if not points:
        return ""
    epochs, values = [*points], [*points.values()]
    across, up = _places(epochs, LEFT, WIDTH - RIGHT), _places(values, HEIGHT - BOTTOM, TOP)
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="{4 if epoch == best else 2}" fill="currentColor"/>'
        for epoch, x, y in zip(epochs, across, up, strict=True)
        if len(values) <= MOST_DOTS or epoch == best
    )
    what = plain(f"{what} (%)" if percents else what)
    marks = [
        (LEFT - 6.0, up[values.index(value)], "end", f"{value:.4g}")
        for value in {min(values), max(values)}
    ]
    marks += [
        (across[epochs.index(k)], HEIGHT - 10.0, "middle", str(k)) for k in {epochs[0], epochs[-1]}
    ]
    marks += [((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 9.0, "middle", f"{what} by epoch")]
    texts = "".join(
        f'<text x="{x}" y="{y + 4}" text-anchor="{anchor}">{word}</text>'
        for x, y, anchor, word in marks
    )
    line = " ".join(f"{x},{y}" for x, y in zip(across, up, strict=True))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{what} by epoch, from {values[0]:.4g} to {values[-1]:.4g}" '
        'style="display:block;max-width:100%;height:auto;margin:0.4em 0;font:11px sans-serif">'
        f'<g fill="currentColor" opacity="0.75">{texts}</g>'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>{dots}</svg>'
    )


def _places(values: Sequence[float], start: float, end: float) -> list[float]:
    """Where on the page values stand, the smallest at `start` and the largest at `end`; equal ones in the middle."""
    room = 0 if min(values) < max(values) else 1
    found: list[float] = (
        np.interp(values, (min(values) - room, max(values) + room), (start, end)).round(1).tolist()
    )
    return found
