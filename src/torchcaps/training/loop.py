"""The training loop: plain steps of any task, by one or several processes.

`Trainer.run` takes a model within its task to the end of its training. It returns nothing: metrics,
checkpoints and the best model go to the logger.

Words:
    task: a model with its loss (`training_step`), its metrics (`compute_metrics`) and its batches
        (`augment`). `Task.score` names the validation metric by which the best epoch is chosen;
        more is better. `Task.spec` is what the model declares, such as its smallest batch.
    rank: number of this process among the `world_size` processes of the run, which `torchrun`
        starts. Each draws the whole batch, and computes the losses of its *shard*: a part of the
        samples, which may be empty. Then gradients are averaged and losses summed over all ranks.
        `Ranks` has both numbers and these exchanges; `current()` is that of this process.
    state: what a checkpoint holds beside weights and optimizer: steps done, the best epoch, and
        "sums", the losses of the epoch so far, summed over samples, with their "count".
    row: a dictionary of metrics that the logger stores (`log`), of a "kind": "step", "epoch" or
        "note". A "tick" after each step is passed on to whoever watches (`emit`), and not stored.
    collapse: a sentence on a network that does not learn, such as "every class capsule was dead".
        The training then starts again, once, with a lower learning rate: the *second start*.
    recovery hint: a sentence for errors on what is left of the training, and what to do.

Every random choice of a step comes from (seed, step) or (seed, epoch) alone (`step_seed`), so a
checkpoint needs no state of random generators, and a run that was killed continues bit for bit.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import convert_conv2d_weight_memory_format

from torchcaps.data import Batch, Dataset
from torchcaps.distributed import Ranks, current, sync_batch_norms
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, eval_outputs
from torchcaps.tasks.metrics import extra_metrics
from torchcaps.training.batches import BatchSource
from torchcaps.training.callbacks import CALLBACKS, Callback
from torchcaps.training.device import arithmetic, memory_errors
from torchcaps.training.loggers import MemoryLogger
from torchcaps.training.schedules import learning_rate_factor, part_ends, set_learning_rate
from torchcaps.training.state import TrainingState, check_finite, early_end, mean_losses
from torchcaps.training.step_losses import LOG_INTERVAL, StepLosses, check_number
from torchcaps.training.update import Updater

PROBE_STEP = 100  # number of steps done when a network that does not learn starts again
RESTART_LR_SCALE = 0.1  # factor of the learning rate of the second start
SECOND_START = "the training starts again, once, with a tenth of the learning rate"


class Interrupted(Exception):
    """Training was asked to stop: no error, its state is saved and `resume` continues it."""


@dataclass
class Trainer:
    """One training of a task, on the device of its model.

    Attributes:
        task: the model with its losses and metrics.
        config: complete: the task and the number of images have filled the settings left open.
        batches: the images of each step.
        val_images: images to choose the best epoch by.
        logger: stores rows of metrics, the state, and the best model.
        initial_weights: returns the weights that the training began with, for the second start.
        callbacks: objects that are called at steps and epochs, and may stop the training. Those
            that the configuration names are added.
        messages: sentences on the training, shown before its first step.
    """

    task: Task
    config: TrainConfig
    batches: BatchSource
    val_images: Dataset
    logger: MemoryLogger
    initial_weights: Callable[[], dict[str, Tensor]]
    callbacks: Sequence[Callback] = ()
    messages: Sequence[str] = ()

    def __post_init__(self) -> None:
        settings = self.config.training
        self.ranks = current()
        self.steps_per_epoch = self.batches.steps(0)
        self.total_steps = settings.epochs * self.steps_per_epoch
        # Steps after which the training is as it was planned: an extension only adds to it.
        self.planned_steps = part_ends(self.config, self.total_steps)[0]
        named_callbacks = [CALLBACKS[name]() for name in settings.callbacks]
        self.callbacks = [*self.callbacks, *named_callbacks]
        # Not .to(memory_format=...), which would change capsule weights of four axes too.
        convert_conv2d_weight_memory_format(self.task, torch.channels_last)
        sync_batch_norms(self.task.model, self.ranks)  # statistics over the samples of all ranks
        self.updater = Updater(self.task, self.config, self.ranks)
        self.losses = StepLosses(
            self.ranks,
            self.callbacks,
            self.logger,
            self.total_steps,
            self.updater.device,
        )

    def run(self) -> None:
        """Train from the newest state of the logger to the last step.

        It ends before with the score `stop_at`, or after `patience` epochs without a better one.

        Raises:
            Interrupted: a callback asked to stop.
            TrainingError: a loss, a validation metric or a weight is not finite.
        """
        settings = self.config.training
        try:
            state = self.logger.restore(
                self.task.model, self.updater.optimizer, self.updater.average, self.total_steps
            )
            self.updater.restore_scale(state.loss_scale)
            if state.step < self.total_steps:
                for sentence in filter(None, [*self.messages, self.task.score_reason]):
                    self.logger.message(sentence)
            with (
                memory_errors(settings.batch_size or 1),
                arithmetic(self.updater.device, self.updater.precision, settings.deterministic),
            ):
                while state.step < self.total_steps and not self._ends_early(state):
                    state = self._run_epoch(state)
        finally:
            self.updater.release()

    def _ends_early(self, state: TrainingState) -> bool:
        """Whether the training ends before its last epoch; a message says why."""
        epoch = state.step // self.steps_per_epoch
        settings = self.config.training
        reason = early_end(settings, epoch, state.best_epoch, state.best_score)
        if reason:
            self.logger.message(reason)
        return bool(reason)

    def _run_epoch(self, state: TrainingState) -> TrainingState:
        """Take the steps of an epoch that are not done yet, and return the state after them.

        A second start ends the epoch; its state is a new one.
        """
        epoch, num_steps_done = divmod(state.step, self.steps_per_epoch)
        timer = EpochTimer()
        for batch in self.batches.epoch(epoch, num_steps_done):
            losses, should_stop = self.step(state, batch)
            timer.add_step(self.ranks.shard_size(len(batch.indices)))

            # The end of the step: a second start, or the end of the epoch; a checkpoint.
            is_epoch_end = state.step % self.steps_per_epoch == 0
            is_due = state.step % self.config.training.checkpoint_every == 0
            collapse = detect_collapse(self.task, losses, state, self.planned_steps)
            saves_state = bool(collapse) or is_epoch_end or should_stop or is_due
            if saves_state or state.step % LOG_INTERVAL == 0:
                self.losses.read(state)
                self.losses.report(self.task.model)
            if collapse:
                state = self._restart(state.step, collapse)
            elif is_epoch_end:
                with self.updater.averaged():
                    self._finish_epoch(state, timer)
            if saves_state:
                state.loss_scale = self.updater.scale()
                self.logger.save_state(
                    self.task.model, self.updater.optimizer, self.updater.average, state
                )
            if should_stop:
                raise Interrupted(
                    f"stopped after step {state.step} of {self.total_steps}; the state is saved"
                )
            if collapse:
                break
        return state

    def step(self, state: TrainingState, batch: Batch) -> tuple[dict[str, Tensor], bool]:
        """Take a step, after which the state is that of the next one.

        Args:
            state: of the training.
            batch: of all ranks together.

        Returns:
            What `Task.training_step` gave for this rank's samples; whether a rank is asked to stop.
        """
        # By the schedule, which may restart at shares of the training (`lr_restarts`).
        factor = learning_rate_factor(
            self.config, state.step, self.total_steps, self.task.lr_restarts
        )
        lr = set_learning_rate(self.updater.optimizer, factor, state.lr_scale)

        # Forward and backward pass of this rank's samples.
        fraction_trained = min(1.0, state.step / self.planned_steps)
        losses = self.updater.compute_gradients(batch, state.step, fraction_trained)

        should_stop = any(callback.should_stop() for callback in self.callbacks)
        self.losses.add(state.step, lr, self.ranks.shard_size(len(batch.indices)), losses)
        if self.losses.is_read_each_step:  # before an update, which an infinite loss would spoil
            should_stop = self.losses.read(state, should_stop)
        state.step += 1
        self.updater.update(state.step)
        self.losses.report(self.task.model)
        return losses, should_stop

    def _restart(self, step: int, collapse: str) -> TrainingState:
        """Put weights, optimizer and metrics back to the start; the new state has a lower rate."""
        lr = (self.config.optimizer.lr or 0.0) * RESTART_LR_SCALE
        reason = f"{collapse} after step {step}; {SECOND_START} ({lr:g})"
        self.task.model.load_state_dict(self.initial_weights())
        self.updater.reset()
        self.logger.clear()
        self.logger.log({"kind": "note", "step": 0, "text": reason})
        return TrainingState(lr_scale=RESTART_LR_SCALE, restart=reason)

    def _finish_epoch(self, state: TrainingState, timer: "EpochTimer") -> None:
        """Validate, store the best model, and log the row of the epoch.

        The model has the averaged weights here, where there is an average.

        The sums of the state, of which the row has the means, begin anew.
        """
        model = self.task.model
        speed = timer.measure(state.sums["count"] / self.steps_per_epoch, self.ranks)
        check_finite(model, self.logger.recovery_hint)
        # What `eval_step` gives for every validation image, by name `[images, ...]`.
        outputs = eval_outputs(self.task, self.val_images, precision=self.updater.precision)
        metrics = self.task.compute_metrics(outputs)
        # Metrics that the configuration names.
        metrics |= extra_metrics(self.config.task.metrics, outputs)
        for name, metric in metrics.items():
            check_number(metric, f"validation {name}", state.step, self.logger)

        epoch = state.step // self.steps_per_epoch
        is_best = state.update_best(metrics[self.task.score], metrics["loss"], epoch)
        self.logger.save_model(model, epoch, is_best)
        row = {
            "kind": "epoch",
            "step": state.step,
            "epoch": epoch,
            "epochs": self.config.training.epochs,
            **add_prefix("train_", mean_losses(state.sums)),
            **add_prefix("val_", metrics),
            "score": self.task.score,
            "best": is_best,
            "warnings": epoch_warnings(self.task, outputs, state.step, self.total_steps),
            "images": state.sums["count"],
            **speed,
        }
        if state.restart:
            row["restart"] = state.restart
        state.sums = {}
        self.logger.log(row)
        for callback in self.callbacks:
            callback.on_epoch(model, row)


def add_prefix(prefix: str, figures: Mapping[str, float]) -> dict[str, float]:
    """The same figures under longer names."""
    return {prefix + name: figure for name, figure in figures.items()}


class EpochTimer:
    """The time of the steps of an epoch, with the checkpoints between them.

    Of an epoch that a resumed run continues, the time since it was resumed.
    """

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.num_steps = 0
        self.num_samples = 0

    def add_step(self, num_samples: int) -> None:
        """Count a step, and its samples in this process."""
        self.num_steps += 1
        self.num_samples += num_samples

    def measure(self, images_per_step: float, ranks: Ranks) -> dict[str, Any]:
        """Images per second; and of several processes, the samples and seconds of each.

        Args:
            images_per_step: mean over the epoch, of all processes together.
            ranks: the processes.
        """
        seconds = time.perf_counter() - self.start
        speed = {"images_per_second": round(self.num_steps / seconds * images_per_step, 1)}
        if ranks.world_size == 1:
            return speed
        work = {"images": self.num_samples, "seconds": round(seconds, 2)}
        return {**speed, "ranks": ranks.gather(work)}


def epoch_warnings(
    task: Task, outputs: dict[str, Tensor], step: int, total_steps: int
) -> list[str]:
    """What `Task.warnings` says of the outputs for held-out images.

    Nothing before 100 steps, or half of all: fewer do not tell how a training will end.
    """
    if step < min(PROBE_STEP, total_steps // 2):
        return []
    return task.warnings(outputs, step / total_steps)


def detect_collapse(
    task: Task, losses: dict[str, Tensor], state: TrainingState, total_steps: int
) -> str:
    """What is wrong with a network that does not learn after 100 steps, or half of all; else "".

    A network that was like this before its first update is not reported, because a lower learning
    rate would not help. A training starts again only once.

    Args:
        task: judges what its `training_step` returned.
        losses: of this rank, of which those with axes `[samples, ...]` are looked at.
        state: after the step; it remembers what was wrong at first.
        total_steps: of the training before any extension.
    """
    probe_step = min(PROBE_STEP, total_steps // 2)
    if state.lr_scale < 1 or state.step not in (1, probe_step):
        return ""
    # `cat` joins the samples of all ranks.
    arrays = {name: current().cat(x.detach()) for name, x in losses.items() if x.dim()}
    collapse = task.detect_collapse(arrays) or ""
    if state.step == 1:  # computed before the weights changed
        state.initial_collapse = collapse
    return "" if collapse == state.initial_collapse else collapse
