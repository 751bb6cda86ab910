"""A training run on disk, as it is read: configuration, metrics, figures."""

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.errors import ArgumentError, RunError, read_text
from torchcaps.settings import TrainConfig
from torchcaps.templates import picture, render
from torchcaps.training.callbacks import early_end
from torchcaps.training.files import (
    CONFIG_FILE as CONFIG_FILE,
    FORMAT,
    LAST_FILE,
    MODEL_FILE as MODEL_FILE,
    PREVIOUS_FILE,
    read_json,
    reading,
)
from torchcaps.types import Json, StrPath
from torchcaps.words import duration, format_metric, in_words, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.jsonl"
EVALUATION_FILE = "evaluation.json"
INITIAL_FILE = "initial.safetensors"
MAX_METRICS = 3  # in the line on the test images
# Settings that may be given anew when a run is resumed.
RESUME_OVERRIDES = ("device", "graph", "root", "max_bytes", "workers", "log")


class Run:
    """The folder of a training run. Nothing is read or made before it is asked for.

    Args:
        path: the folder.

    Attributes:
        model_path: the model of the best epoch by validation, ready for `torchcaps.load`.
        checkpoint_path: newest state of the training.
        previous_checkpoint_path: the state before it, for when the newest is damaged.
        initial_path: the weights of another training that this one began with, where it did.
        metrics_path: one JSON object a line.

    Example:
        >>> run = Run("runs/capsnet-digits")
        >>> run.config.training.epochs, run.is_finished
        (10, True)
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        self.model_path = self.path / MODEL_FILE
        self.checkpoint_path = self.path / "checkpoints" / LAST_FILE
        self.previous_checkpoint_path = self.checkpoint_path.with_name(PREVIOUS_FILE)
        self.initial_path = self.checkpoint_path.with_name(INITIAL_FILE)
        self.metrics_path = self.path / METRICS_FILE

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def open(cls, path: StrPath) -> "Run":
        """An existing run.

        Args:
            path: of its folder.

        Returns:
            The run.

        Raises:
            RunError: if there is none.
        """
        if not is_run(path):
            raise RunError(f"{path}: no run folder, or none with a {CONFIG_FILE}")
        return cls(path)

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration. Raises RunError if it is damaged or of another format."""
        file = self.path / CONFIG_FILE
        with reading(file, "configuration"):
            return TrainConfig.from_dict(read_json(file, FORMAT))

    @property
    def environment(self) -> Json:
        """Versions and hardware of the machine that started the run; empty if they are lost."""
        with suppress(OSError, ValueError, RecursionError):
            return read_json(self.path / ENVIRONMENT_FILE)
        return {}

    @property
    def rows(self) -> list[Json]:
        """All whole rows of the metrics, by "kind" and "step".

        A last line that a crash cut short is left out. Raises RunError if another is damaged.
        """
        if not self.metrics_path.exists():
            return []
        with reading(self.metrics_path, "list of one JSON object a line"):
            rows = list(map(json.loads, read_text(self.metrics_path).split("\n")[:-1]))
            for row in rows:
                if not (isinstance(row, dict) and "kind" in row and type(row.get("step")) is int):
                    raise ValueError("a row without kind, or without a whole number as step")
        return rows

    @property
    def epochs(self) -> list[Json]:
        """The metrics of the epochs done so far. Errors as `rows`."""
        return [row for row in self.rows if row["kind"] == "epoch"]

    @property
    def notes(self) -> list[str]:
        """Events beside the epochs, such as a second start, one sentence each."""
        return [str(row.get("text")) for row in self.rows if row["kind"] == "note"]

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done, or `stop_at` or `patience` has ended the training."""
        epochs = self.epochs
        if not epochs:
            return False
        best_score = max(row[f"val_{row['score']}"] for row in epochs)
        training = self.config.training
        reason = early_end(training, epochs[-1]["epoch"], self.best_epoch or 0, best_score)
        return bool(reason) or is_complete(self)

    @property
    def score(self) -> str:
        """Name of the metric that the epoch is chosen by; empty before the first epoch."""
        epochs = self.epochs
        return str(epochs[-1]["score"]) if epochs else ""

    @property
    def best_epoch(self) -> int | None:
        """Whose model is kept, counted from 1; None before the first epoch."""
        return next((row["epoch"] for row in reversed(self.epochs) if row["best"]), None)

    @property
    def seconds(self) -> float | None:
        """Time in training steps; None before the first epoch, or where it was not measured."""
        epochs = self.epochs
        if not epochs or not all(row["images_per_second"] for row in epochs):
            return None
        return sum(row["images"] / row["images_per_second"] for row in epochs)

    @property
    def figures(self) -> Json | None:
        """Figures of the test images in evaluation.json; None before they were evaluated.

        Raises RunError if it is damaged.
        """
        file = self.path / EVALUATION_FILE
        if not file.exists():
            return None
        with reading(file, "evaluation", f"; write it anew with: torchcaps evaluate {self.path}"):
            return read_json(file)

    def curves(self) -> "Figure":
        """Loss and score over epochs; needs matplotlib.

        Parts of the loss that validation does not measure are left out.

        Returns:
            A matplotlib figure of two panels.
        """
        from torchcaps import viz

        loss = self.config.task.loss
        rows = [
            {**row, "train_loss": row.get(f"train_{loss}", row["train_loss"])}
            for row in self.epochs
        ]
        return viz.curves(rows, loss=loss, score=self.score)

    def __repr__(self) -> str:
        facts = _facts(self).values() if is_run(self.path) else ["no run"]
        return f"Run({str(self.path)!r}: {', '.join(facts)})"

    def _repr_html_(self) -> str:
        facts = {"folder": str(self.path), **_facts(self)}
        drawing = None
        if self.epochs and find_spec("matplotlib"):
            alt = f"Curves of loss and {in_words(self.score)} over {len(self.epochs)} epochs."
            drawing = picture(self.curves(), alt)
        return render(
            "torchcaps.models",
            "card.html",
            title=self.path.resolve().name,
            facts=facts.items(),
            picture=drawing,
        )


def is_run(path: StrPath) -> bool:
    """Whether a folder holds a run, and not an exported model, whose config.json is another."""
    file = Path(path) / CONFIG_FILE
    with suppress(OSError, ValueError, RecursionError):
        return "checked" not in read_json(file)
    return file.exists()


def is_complete(run: Run) -> bool:
    """Whether all epochs of a run are done."""
    epochs = run.epochs
    return bool(epochs) and epochs[-1]["epoch"] >= run.config.training.epochs


def epoch_model_path(run: Run, epoch: int) -> Path:
    """The model of an epoch, counted from 1, where the run keeps them (`keep_epochs`)."""
    return run.checkpoint_path.with_name(f"epoch-{epoch:04d}.safetensors")


def resumed_config(
    saved: TrainConfig, settings: Mapping[str, Any], can_extend: bool = False
) -> TrainConfig:
    """The configuration with which a run goes on; a complete one may get further epochs.

    Args:
        saved: the configuration of the run.
        settings: by name; None is not looked at, nor are those of `RESUME_OVERRIDES`.
        can_extend: whether all epochs of the run are done, so that `epochs` may be larger.

    Raises:
        ArgumentError: the first setting that is not the one that the run was started with.
    """
    before = saved.flat()
    changed = saved.updated(**settings).flat()
    epochs = changed["epochs"]
    for name, setting in changed.items():
        if name in RESUME_OVERRIDES or setting == before[name]:
            continue
        expected = f"expected {before[name]}, as the run was started"
        if name == "epochs" and can_extend:
            expected = f"expected at least {before[name]}, the epochs that are done"
            if epochs > before[name]:
                continue
        elif name == "epochs":
            setting = f"{setting}; only a run whose epochs are all done can be trained further"
        raise ArgumentError(name, f"{expected}, got {setting}")
    if epochs == before["epochs"]:
        return saved
    return saved.updated(epochs=epochs, extended_at=(*before["extended_at"], before["epochs"]))


def _facts(run: Run) -> dict[str, str]:
    """Model, progress and figures of the run, in words."""
    config = run.config
    epochs = run.epochs
    facts = {
        "model": f"{config.model.name} on {config.data.name}",
        "training": f"no epoch of {config.training.epochs}",
    }
    if epochs:
        progress = f"epoch {epochs[-1]['epoch']} of {config.training.epochs}"
        if run.is_finished:
            progress = f"finished after {progress}"
        if run.seconds:
            progress = f"{progress} in {duration(run.seconds)}"
        key = f"val_{run.score}"
        best = format_metric(key, max(row[key] for row in epochs))
        facts["training"] = progress
        facts["validation"] = f"{in_words(run.score)} {best} at epoch {run.best_epoch}"
    if figures := run.figures:
        summary = ", ".join(
            f"{name} {format_metric(name, value)}"
            for name, value in list(numbers(figures).items())[:MAX_METRICS]
        )
        facts["test"] = f"{summary} of {figures.get('num_samples', 0):,} test images"
    return facts
