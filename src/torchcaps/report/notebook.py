"""A run as a notebook shows it: what was trained, how it goes or went, and what came out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from torch import nn

from torchcaps.errors import RunError, read_text
from torchcaps.models.notebook import card, facts, plain
from torchcaps.report.run import EVALUATION, training_seconds
from torchcaps.report.words import counted, duration, percent
from torchcaps.training import RunFolder, load

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 480, 130, 46, 12, 24  # of the curve, in pixels


class Run:
    """A trained run, or one that still trains: a notebook shows it as a card, `print` as one line.

    The folder is read anew whenever it is asked for anything, so that the same object follows a training.

    Args:
        path: the run folder, of a classifier or of a transforming auto-encoder.

    Attributes:
        folder: its files.
        config: what it was started with.

    Raises:
        RunError: if there is no run, or its configuration is damaged.

    Example:
        >>> run = Run("runs/capsnet-digits")
        >>> run
        Run('runs/capsnet-digits': capsnet on digits, 98.50 % of 1,000 test images right, best epoch 8 of 8, 14 s)
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder.open(path)
        self.config = self.folder.config()

    @property
    def name(self) -> str:
        """That of the folder."""
        return self.folder.path.resolve().name

    @property
    def about(self) -> str:
        """`capsnet on digits`."""
        return f"{self.config.model.name} on {self.config.data.name}"

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The metrics of the epochs done so far.

        Raises:
            RunError: if they are damaged.
        """
        return [row for row in self.folder.rows() if row["kind"] == "epoch"]

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the accuracy that ends the training was reached."""
        rows, stop_at = self.epochs, getattr(self.config, "stop_at", None)
        reached = stop_at is not None and any(row["val_accuracy"] >= stop_at for row in rows)
        return bool(rows) and (reached or rows[-1]["epoch"] >= self.config.run.epochs)

    @property
    def best_epoch(self) -> int | None:
        """Whose model is kept, counted from 1: the best by validation, or without one the last; None before the first.

        A transforming auto-encoder has no validation.
        """
        rows = self.epochs
        best = [row for row in rows if row.get("best")] or rows
        return int(best[-1]["epoch"]) if best else None

    @property
    def seconds(self) -> float | None:
        """Time in training steps; None where that was not recorded."""
        return training_seconds(self.epochs, self.config.run.batch_size)

    @property
    def figures(self) -> dict[str, Any] | None:
        """What evaluation.json says of the test images; None before they were looked at.

        Raises:
            RunError: if it is damaged.
        """
        file = self.folder.path / EVALUATION
        if not file.exists():
            return None
        try:
            found = json.loads(read_text(file))
        except (OSError, ValueError) as error:
            raise RunError(f"{file}: is no readable evaluation ({error})") from error
        if not isinstance(found, dict):
            raise RunError(f"{file}: is no evaluation, which is a JSON object")
        return found

    def load(self, device: str = "cpu") -> nn.Module:
        """Its model, in evaluation mode.

        Raises:
            RunError: if there is none yet, or it is damaged.
        """
        if isinstance(self.config, TrainConfig):
            return load(self.folder.path, device=device)
        return load(self.folder.path, device=device)

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}: {', '.join((self.about, *self._state()))})"

    def _repr_html_(self) -> str:
        lines = {"folder": str(self.folder.path), "test images": self._result(), "training": self._progress()}
        rows = self.epochs
        key, what = ("val_accuracy", "validation accuracy (%)") if isinstance(self.config, TrainConfig) else (
            "train_loss", "training loss")  # fmt: skip
        if any(key in row for row in rows):
            values = [float(row[key]) for row in rows if key in row]
            lines[what.removesuffix(" (%)")] = self._span(values, key)
        known = [(name, value) for name, value in lines.items() if value]
        return card(self.name, self.about, facts(known), curve(rows, key, what, best=self.best_epoch))

    def _state(self) -> list[str]:
        parts = [self._result() or "not evaluated yet"]
        if self.best_epoch is None:
            return [*parts, f"no epoch of {self.config.run.epochs} done"]
        if not self.finished:
            parts.append(f"epoch {self.epochs[-1]['epoch']} of {self.config.run.epochs} done")
        parts.append(f"best epoch {self.best_epoch} of {self.config.run.epochs}" if self._validated() else "")
        return [part for part in (*parts, "" if self.seconds is None else duration(self.seconds)) if part]

    def _validated(self) -> bool:
        return any("val_accuracy" in row for row in self.epochs)

    def _result(self) -> str:
        """`98.50 % of 1,000 test images right`; empty before they were looked at."""
        found = self.figures
        if found is None:
            return ""
        of = f"of {found.get('num_samples', 0):,} test images"
        if "correlation" in found:
            pairs = ", ".join(f"{name} {value:.3f}" for name, value in found["correlation"].items())
            return f"correlation of predicted and true {pairs}"
        if "exact" in found:
            return f"{percent(found['exact'])} {of} with all their classes found"
        return f"{percent(found.get('accuracy'))} {of} right"

    def _progress(self) -> str:
        rows, total = self.epochs, self.config.run.epochs
        if not rows:
            return f"no epoch of {total} done"
        took = "" if self.seconds is None else f", {duration(self.seconds)} in training steps"
        done = f"{counted(total, 'epoch')}" if rows[-1]["epoch"] == total else f"{rows[-1]['epoch']} of {total} epochs"
        return f"{done}{took}" + ("" if self.finished else "; not finished")

    def _span(self, values: Sequence[float], key: str) -> str:
        if key == "val_accuracy":
            return f"{percent(max(values))} at the best epoch, {self.best_epoch}; {percent(values[-1])} after the last"
        return f"{values[0]:.4g} after the first epoch, {values[-1]:.4g} after the last"


def curve(rows: Sequence[Mapping[str, Any]], key: str, what: str, *, best: int | None = None) -> str:
    """A line over epochs as an inline SVG in the colours of the page it stands on; empty without a finite value.

    Args:
        rows: metrics of epochs, with `epoch` and perhaps `key`.
        key: what is drawn; of accuracies the percentage.
        what: its name, plain text.
        best: an epoch to mark.
    """
    scale = 100.0 if key.endswith("accuracy") else 1.0
    points = [(int(row["epoch"]), scale * float(row[key])) for row in rows if isfinite(row.get(key, float("nan")))]
    if not points:
        return ""
    (first, last), values = (points[0][0], points[-1][0]), [value for _, value in points]
    low, high = min(values), max(values)

    def place(epoch: int, value: float) -> tuple[float, float]:
        across = (epoch - first) / (last - first) if last > first else 0.5
        up = (value - low) / (high - low) if high > low else 0.5
        return round(LEFT + across * (WIDTH - LEFT - 12), 1), round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1)

    places = {epoch: place(epoch, value) for epoch, value in points}
    line = " ".join(f"{x},{y}" for x, y in places.values())
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="{4 if epoch == best else 2}" fill="currentColor"/>'
        for epoch, (x, y) in places.items() if len(places) <= 40 or epoch == best
    )  # fmt: skip
    marks = [(LEFT - 6, places_y, "end", f"{value:.4g}") for value, places_y in {low: place(first, low)[1],
             high: place(first, high)[1]}.items()]  # fmt: skip
    ends = [(places[epoch][0], HEIGHT - BOTTOM + 14, "middle", str(epoch)) for epoch in dict.fromkeys((first, last))]
    texts = "".join(
        f'<text x="{x}" y="{y + 4}" text-anchor="{anchor}">{plain(text)}</text>' for x, y, anchor, text in marks + ends
    )
    middle = (LEFT + WIDTH - 12) / 2
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{plain(what)} by epoch, from {values[0]:.4g} to {values[-1]:.4g}" '
        'style="display:block;max-width:100%;height:auto;margin:0.4em 0;font:11px sans-serif">'
        f'<g fill="currentColor" opacity="0.75">{texts}'
        f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{plain(what)} by epoch</text></g>'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>{dots}</svg>'
    )
