"""Where a training leaves its metrics, models and states: in memory, or in a run folder."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from torchcaps.data import Dataset
from torchcaps.data.files import identities
from torchcaps.distributed import current
from torchcaps.errors import TrainingError, printable
from torchcaps.settings import TrainConfig
from torchcaps.training.averaging import WeightAverage
from torchcaps.training.checkpoint import MODEL_FILE, checksum, save_tensors
from torchcaps.training.files import atomic
from torchcaps.training.initial import InitialWeights
from torchcaps.training.run import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    RESUME_OVERRIDES,
    Run,
    epoch_model_path,
)
from torchcaps.training.schedules import EXTENSION_LR_SCALE, part_ends
from torchcaps.training.state import TrainingState, load_state, recovery_hint, save_state

Row = dict[str, Any]


class MemoryLogger:
    """Keeps the rows of the metrics and the best model; there is nothing to continue from.

    Args:
        emit: is given each row of the metrics; after each step {"kind": "tick", "step", "steps",
            "loss"}; {"kind": "note", "step", "text"} when the training goes on from an older
            checkpoint than the newest, or starts again; {"kind": "message", "text"} for a sentence
            to be shown that is not kept, see `message`.
        initial: the weights of another training that this one begins with, if any.

    Attributes:
        rows: of the metrics.
        best_weights: a state_dict on the model's device; None before the first epoch.
    """

    def __init__(
        self,
        emit: Callable[[Row], None] | None = None,
        initial: InitialWeights | None = None,
    ) -> None:
        self.emit = emit or _ignore
        self.initial = initial
        self.rows: list[Row] = []
        self.best_weights: dict[str, Tensor] | None = None

    def restore(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        average: WeightAverage | None,
        total_steps: int,
    ) -> TrainingState:
        """Restore and return the newest state."""
        self._note_initial()
        return TrainingState()

    def log(self, row: Row) -> None:
        """Keep a row of the metrics."""
        self.rows.append(row)
        self.emit(row)

    def message(self, text: str) -> None:
        """Show a sentence, such as what is trained on what; it is not kept."""
        self.emit({"kind": "message", "text": printable(text)})

    def note(self, text: str, step: int = 0) -> None:
        """Show a sentence on an event of a step, and keep it; not if it is kept already."""
        self.rows.append({"kind": "note", "step": step, "text": text})
        self.message(text)

    def save_model(self, model: nn.Module, epoch: int, is_best: bool) -> None:
        """Keep the model of an epoch that has ended, counted from 1."""
        if is_best:
            self.best_weights = {
                name: tensor.detach().clone() for name, tensor in model.state_dict().items()
            }

    def save_state(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        average: WeightAverage | None,
        state: TrainingState,
    ) -> None:
        """Keep what `restore` needs."""

    def clear(self) -> None:
        """Forget the metrics: the training starts again."""
        self.rows.clear()
        self._note_initial()

    def _note_initial(self) -> None:
        """Say with which weights the training begins, where they are those of another one."""
        if self.initial is not None:
            self.note(self.initial.sentence)

    @property
    def recovery_hint(self) -> str:
        """State of a training that failed, and how to continue."""
        return "start again with a lower lr, or with clip"


class RunLogger(MemoryLogger):
    """A run folder: metrics, checkpoints to continue from, and the best model.

    Only the first process writes. The caller holds the folder (`folder.create`, `folder.resume`).

    Args:
        run: the folder.
        config: resolved configuration of the run.
        description: of the model (`checkpoint.describe_model`).
        train_images: to be the same when the run is resumed.
        val_images: to be the same when the run is resumed.
        emit: see `MemoryLogger`.
        initial: see `MemoryLogger`; a copy of these weights is kept in the folder.
    """

    def __init__(
        self,
        run: Run,
        config: TrainConfig,
        description: dict[str, Any],
        train_images: Dataset,
        val_images: Dataset,
        emit: Callable[[Row], None] | None = None,
        initial: InitialWeights | None = None,
    ) -> None:
        super().__init__(emit, initial)
        self.run = run
        self.config = config
        self.description = description
        self.is_main = current().is_main
        self.data = {
            "train": len(train_images),
            "held out": len(val_images),
            "classes": train_images.num_classes,
            "channels": train_images.in_chans,
        }
        tensors = {
            f"{split} {name}": tensor.contiguous()
            for split, images in (("train", train_images), ("held out", val_images))
            for name, tensor in identities(images).items()
        }
        self.data_checksum = checksum(tensors)

    def restore(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        average: WeightAverage | None,
        total_steps: int,
    ) -> TrainingState:
        state = TrainingState()
        if self.is_main:
            state, note = load_state(
                self.run.checkpoint_path,
                model,
                optimizer,
                average,
                self._fingerprint(),
                total_steps,
            )
            truncate_metrics(self.run, state.step)
            if note:
                self.emit({"kind": "note", "step": state.step, "text": note})
            if self.initial is not None:
                self.initial.save_copy()
            self._note_initial()
            self._note_end(state, total_steps)
        ranks = current()
        if ranks.world_size > 1:
            if len(set(ranks.gather(self.data_checksum))) > 1:
                raise TrainingError(
                    "data: expected the same images and labels in all processes, got different ones"
                )
            averages = {} if average is None else average.weights
            state, moments, weights, averages = ranks.broadcast(
                (state, optimizer.state_dict(), dict(model.state_dict()), averages)
            )
            model.load_state_dict(weights)
            optimizer.load_state_dict(moments)
            if average is not None:
                average.load(averages)
        return state

    def _note_end(self, state: TrainingState, total_steps: int) -> None:
        """Say that a training whose epochs were all done goes on, or how it may go on."""
        epochs = self.config.training.epochs
        if state.step == total_steps:
            self.message(
                f"{self.run.path}: all {epochs} epochs are done; resume it with more of them, "
                f"such as --epochs {2 * epochs}, to train it further"
            )
            return
        *_, begin, _ = (0, *part_ends(self.config, total_steps))
        if 0 < begin <= state.step:
            done = self.config.training.extended_at[-1]
            lr = (self.config.optimizer.lr or 0.0) * state.lr_scale * EXTENSION_LR_SCALE
            self.note(
                f"the finished training goes on after epoch {done} to epoch {epochs}; its learning "
                f"rate begins at {lr:g}, a tenth of the first one, and falls to zero along a cosine",
                begin,
            )

    def log(self, row: Row) -> None:
        if self.is_main:
            append_metrics(self.run, row)
        self.emit(row)

    def note(self, text: str, step: int = 0) -> None:
        if self.is_main and text not in self.run.notes:
            append_metrics(self.run, {"kind": "note", "step": step, "text": text})
            self.message(text)

    def save_model(self, model: nn.Module, epoch: int, is_best: bool) -> None:
        if is_best and self.is_main:
            save_tensors(self.run.model_path, model.state_dict(), self.description)
        if self.config.training.keep_epochs and self.is_main:
            path = epoch_model_path(self.run, epoch)
            save_tensors(path, model.state_dict(), self.description)

    def save_state(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        average: WeightAverage | None,
        state: TrainingState,
    ) -> None:
        if self.is_main:
            save_state(
                self.run.checkpoint_path, model, optimizer, average, state, self._fingerprint()
            )

    def clear(self) -> None:
        if self.is_main:
            truncate_metrics(self.run, -1)
            self._note_initial()

    @property
    def recovery_hint(self) -> str:
        return recovery_hint(self.run.checkpoint_path)

    def _fingerprint(self) -> dict[str, Any]:
        """Properties that must be the same when the run is resumed, by name."""
        settings = self.config.flat()
        for name in RESUME_OVERRIDES:
            del settings[name]
        return {
            **settings,
            "threads": self.run.environment.get("threads"),
            "size of the data": self.data,
            "checksum of images and labels": self.data_checksum,
        }


def append_metrics(run: Run, row: Row) -> None:
    """Add a row to the metrics in a single write; one that does not fit is taken back.

    Raises TrainingError when it cannot be written.
    """
    line = (json.dumps(row) + "\n").encode()
    try:
        with open(run.metrics_path, "ab", buffering=0) as file:
            size = file.tell()
            if file.write(line) != len(line):
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise TrainingError(f"{run.metrics_path}: cannot be written ({error.strerror})") from error


def truncate_metrics(run: Run, step: int) -> None:
    """Forget metrics after `step`, and what killed writes left: training continues from there.

    Raises RunError or TrainingError if the metrics cannot be read or written.
    """
    rows = [row for row in run.rows if row["step"] <= step]
    leftovers = list(run.checkpoint_path.parent.glob(".*.partial"))
    # Other files may be in the work of another process, as a report.
    for name in (CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, MODEL_FILE):
        leftovers += run.path.glob(f".{name}.*partial")
    for leftover in leftovers:
        with suppress(OSError):
            leftover.unlink()
    with atomic(run.metrics_path) as partial:
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _ignore(_row: Row) -> None:
    """Take a row, and do nothing."""
