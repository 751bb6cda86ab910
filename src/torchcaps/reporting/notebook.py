"""A run as a notebook shows it: what was trained, how it goes or went, and what came out."""

from pathlib import Path
from typing import Any

from torch import nn

from torchcaps import training
from torchcaps.models.notebook import card
from torchcaps.reporting.epochs import (
    best_epoch,
    epochs_of,
    is_finished,
    score_of,
    training_seconds,
)
from torchcaps.reporting.markup import picture
from torchcaps.reporting.run import can_plot, read_figures, training_figure
from torchcaps.reporting.words import duration, figure, in_words, numbers, percent

MAX_FIGURES = 3


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
        self.folder = training.Run.open(path)
        self.config = self.folder.config

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
        return training_seconds(self.epochs)

    @property
    def figures(self) -> dict[str, Any] | None:
        """What evaluation.json says of the test images; None before they were looked at, RunError if it is damaged."""
        return read_figures(self.folder.path)

    def load(self, device: str = "cpu") -> nn.Module:
        """Its model, in evaluation mode; RunError if there is none yet, or it is damaged."""
        return training.load(self.folder.path, device=device)

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
        rows = self.epochs
        drawing = None
        if rows:
            key = f"val_{score_of(rows)}"
            top, last = figure(key, max(row[key] for row in rows)), figure(key, rows[-1][key])
            lines[f"validation {in_words(score_of(rows))}"] = (
                f"{top} at the best epoch, {self.best_epoch}; {last} after the last"
            )
        if rows and can_plot():
            alt = f"Curves of loss and {in_words(score_of(rows))} over {len(rows)} epochs."
            drawing = picture(training_figure(rows, self.config.task.loss), alt)
        facts = [(name, value) for name, value in lines.items() if value]
        return card(self.folder.path.resolve().name, self.about, facts, picture=drawing)

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
        return f"{', '.join(named[:MAX_FIGURES])} {of}"

    def _progress(self) -> list[str]:
        """`epoch 5 of 8 done`, `best epoch 4 of 8`, `14 s`: what of it is known."""
        rows, total = self.epochs, self.config.training.epochs
        reached = f"epoch {rows[-1]['epoch']}" if rows else "no epoch"
        state = [] if self.finished else [f"{reached} of {total} done"]
        if self.best_epoch is not None:
            state.append(f"best epoch {self.best_epoch} of {total}")
        return state if self.seconds is None else [*state, duration(self.seconds)]
