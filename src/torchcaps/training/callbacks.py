"""Callbacks: what is told of a training while it runs.

All are told in one order, at the end too: `SecondStart`, the objects that a caller of `fit` passes,
`BestWeights`, `EarlyEnd`, `ProgressBar`, and those that the settings `callbacks` and `log` name. So
at the end an object that is passed finds the newest weights, and one that is named the best ones.
Saving (`RunFolder`), the second start, the early end and the lines on stderr are callbacks too. Add
one here, or with `register_callback`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from torchcaps.errors import printable
from torchcaps.registry import Registry
from torchcaps.settings import TrainingSettings
from torchcaps.types import Json, Tensors

if TYPE_CHECKING:
    from torchcaps.training.loop import Trainer

RESTART_LR_SCALE = 0.1  # factor of the learning rate of the second start
Losses = dict[str, float]


Row = Json  # of the metrics


class Callback:
    """Base of callbacks. Every process of a run has callbacks of its own.

    A registered subclass is built without arguments for each training that names it in the setting
    `callbacks`. `trainer.stop()` ends a training after the step.
    """

    is_late: ClassVar[bool] = False
    """Whether `on_step` may come up to 20 steps late on a GPU, which then never waits for it."""
    threads: int | None = None
    """Processor threads that the training must have; None leaves them open."""

    def on_start(self, trainer: "Trainer") -> None:
        """Called once before the first step.

        Args:
            trainer: has `model`, `task`, `config`, `state` and more; see `Trainer`.
        """

    def on_step(self, trainer: "Trainer", losses: Losses) -> None:
        """Called after each step.

        Args:
            trainer: its model is in training mode; gradients are still there.
            losses: means over the batch by name, "lr", and "step", the number of steps done.
        """

    def on_epoch(self, trainer: "Trainer", row: Row) -> None:
        """Called after each epoch with its row of the metrics.

        Args:
            trainer: its model is in training mode, with the averaged weights where there are any.
            row: the metrics of the epoch by name, such as "epoch", "train_loss" and "val_accuracy".
        """

    def on_end(self, trainer: "Trainer") -> None:
        """Called once at the end, also after an error.

        Args:
            trainer: has the error, if there was one, as `error`.
        """


CALLBACKS: Registry[Callable[[], Callback]] = Registry("callback")
register_callback = CALLBACKS.register


class StopWhen(Callback):
    """Ends a training after a step.

    Args:
        condition: asked after each step, on a GPU after some; True ends the training.
    """

    is_late = True

    def __init__(self, condition: Callable[[], bool]) -> None:
        self.condition = condition

    def on_step(self, trainer: "Trainer", losses: Losses) -> None:
        if self.condition():
            trainer.stop()


class BestWeights(Callback):
    """Keeps the weights of the best epoch in memory, and loads them at the end.

    Attributes:
        epoch: number of the best epoch, counted from 1; 0 before the first one.
    """

    is_late = True
    epoch = 0
    weights: Tensors | None = None

    def on_epoch(self, trainer: "Trainer", row: Row) -> None:
        if row["best"]:
            self.epoch = row["epoch"]
            self.weights = copy_state(trainer.model)

    def on_end(self, trainer: "Trainer") -> None:
        if isinstance(trainer.error, Exception):
            return
        # A training that started again has no best epoch until the next one ends.
        is_best = 0 < self.epoch == trainer.state.best_epoch
        if self.weights and is_best:
            trainer.model.load_state_dict(self.weights)
        is_stopped = trainer.is_stopped or isinstance(trainer.error, KeyboardInterrupt)
        if is_stopped and trainer.checkpoint is None:
            weights = f"those of epoch {self.epoch}" if is_best else "those of this step"
            trainer.messages.append(
                f"stopped after step {trainer.state.step} of {trainer.total_steps}; the weights "
                f"are {weights}"
            )


class SecondStart(Callback):
    """Starts a training again, once, if its network does not learn after 100 steps, or half of all.

    A network that was like this before its first update is left alone, because a lower learning
    rate would not help.
    """

    is_late = True

    def on_start(self, trainer: "Trainer") -> None:
        self.weights = copy_state(trainer.model)

    def on_step(self, trainer: "Trainer", losses: Losses) -> None:
        state = trainer.state
        if state.lr_scale < 1 or state.step > trainer.probe_step:
            self.weights = {}
        is_newest = losses["step"] == state.step
        if not (self.weights and is_newest and state.step in (1, trainer.probe_step)):
            return
        # `cat` joins the samples of all ranks.
        cat = trainer.ranks.cat
        samples = {name: cat(x) for name, x in trainer.losses.items() if x.dim()}
        collapse = trainer.task.detect_collapse(samples) or ""
        if state.step == 1:  # computed before the weights changed
            state.initial_collapse = collapse
        elif collapse not in ("", state.initial_collapse):
            lr = (trainer.config.optimizer.lr or 0.0) * RESTART_LR_SCALE
            reason = (
                f"{collapse} after step {state.step}; the training starts again, once, with a "
                f"tenth of the learning rate ({lr:g})"
            )
            trainer.restart(self.weights, RESTART_LR_SCALE, reason)


class EarlyEnd(Callback):
    """Ends a training before its last epoch, by the settings `stop_at` and `patience`."""

    is_late = True

    def on_start(self, trainer: "Trainer") -> None:
        state = trainer.state
        epoch = state.step // trainer.steps_per_epoch
        reason = early_end(trainer.config.training, epoch, state.best_epoch, state.best_score)
        if reason and state.step < trainer.total_steps:
            trainer.messages.append(reason)
            trainer.is_finished = True

    def on_epoch(self, trainer: "Trainer", row: Row) -> None:
        self.on_start(trainer)


class ProgressBar(Callback):
    """A bar and a line for each epoch on stderr; sentences on the training between them.

    Args:
        title: of the bar.
        started: called when the training starts.
    """

    is_late = True

    def __init__(self, title: str = "training", started: Callable[[], None] = lambda: None) -> None:
        self.title = title
        self.started = started

    def on_start(self, trainer: "Trainer") -> None:
        self.started()
        self.num_messages = 0
        self.bar = progress_bar(self.title)
        self.bar.start()
        self.task = self.bar.add_task("", total=trainer.total_steps)
        self._print_messages(trainer)

    def on_step(self, trainer: "Trainer", losses: Losses) -> None:
        self._print_messages(trainer)
        self.bar.update(
            self.task, completed=losses["step"], description=f"loss {losses['loss']:.4f}"
        )

    def on_epoch(self, trainer: "Trainer", row: Row) -> None:
        parts = [f"epoch {row['epoch']}/{row['epochs']}"]
        for title, prefix in (("training", "train_"), ("validation", "val_")):
            metrics = []
            for name, metric in row.items():
                if name.startswith(prefix):
                    number = f"{metric:.2%}" if name.endswith("accuracy") else f"{metric:.4f}"
                    metrics.append(f"{name.removeprefix(prefix).replace('_', ' ')} {number}")
            parts.append(f"{title}: {', '.join(metrics)}")
        parts.append(f"{row['images_per_second']:.0f} images/s")
        for text in row["warnings"]:
            parts[-1] += f"\nwarning: {text}"
        self._print("  ".join(parts))

    def on_end(self, trainer: "Trainer") -> None:
        self._print_messages(trainer)
        self.bar.stop()

    def _print_messages(self, trainer: "Trainer") -> None:
        for sentence in trainer.messages[self.num_messages :]:
            self._print(printable(sentence))
        self.num_messages = len(trainer.messages)

    def _print(self, line: str) -> None:
        """Print a line above the bar."""
        self.bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


def progress_bar(title: str) -> Progress:
    """A bar on stderr that vanishes when done; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def copy_state(model: torch.nn.Module) -> Tensors:
    """A copy of the state of a model, on its device."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def early_end(settings: TrainingSettings, epoch: int, best_epoch: int, best_score: float) -> str:
    """Why a training ends before its last epoch, a sentence; empty where it goes on.

    Args:
        settings: `stop_at`, a score that is enough; `patience`, a number of epochs, which are
            counted anew where the training was extended.
        epoch: number of epochs that are done.
        best_epoch: number of the best one, counted from 1.
        best_score: its score on held-out images.
    """
    if settings.stop_at is not None and best_score >= settings.stop_at:
        return f"epoch {best_epoch} has reached stop_at: the training ends"
    num_epochs = epoch - max((best_epoch, *settings.extended_at))
    if settings.patience and num_epochs >= settings.patience:
        return (
            f"none of the last {num_epochs} epochs was better than epoch {best_epoch}: the "
            "training ends (patience)"
        )
    return ""
