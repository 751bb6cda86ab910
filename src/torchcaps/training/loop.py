"""The training loop: plain steps of any task, by one or several processes.

Every random choice of a step comes from (seed, step) or (seed, epoch) alone, so a checkpoint needs no
state of random generators, and a run that was killed continues bit for bit. Each process draws the whole
batch and computes its rows of it.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils import clip_grad_norm_, convert_conv2d_weight_memory_format
from torch.utils._pytree import tree_map_only

from torchcaps.data import ImageSet
from torchcaps.distributed import (
    Ranks,
    current,
    data_parallel,
    exclude_padding_rows,
    sync_batch_norms,
)
from torchcaps.errors import TrainingError
from torchcaps.nn import use_generator
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, eval_outputs
from torchcaps.tasks.metrics import extra_metrics
from torchcaps.training.callbacks import CALLBACKS, Callback
from torchcaps.training.device import resolve_precision
from torchcaps.training.loggers import MemoryLogger
from torchcaps.training.optimizers import create_optimizer
from torchcaps.training.sampling import DROPOUT, epoch_permutation, split_batches, step_seed
from torchcaps.training.schedules import learning_rate_factor, set_learning_rate
from torchcaps.training.state import TrainingState, check_finite

LOG_INTERVAL = 20  # steps between rows of kind "step" in the metrics
PROBE_STEP = 100  # when a network that does not learn starts again
RESTART_LR_SCALE = 0.1


class Interrupted(Exception):
    """Training was asked to stop: no error, its state is saved and `resume` continues it."""


class TrainingStep(nn.Module):
    """A task's training step as a forward pass, which processes can share."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def forward(self, batch: Any, fraction_trained: float) -> dict[str, Tensor]:
        """See `Task.training_step`."""
        return self.task.training_step(batch, fraction_trained)


@dataclass
class Trainer:
    """One training of a task, on the device of its images.

    Attributes:
        task: around the model.
        config: with all that the task and the number of images decide.
        train_images: to train on.
        val_images: to choose the epoch by.
        logger: takes the metrics, states and the best model.
        initial_weights: gives the weights that the training began with, for a second start.
        callbacks: beside those that the configuration names.
    """

    task: Task
    config: TrainConfig
    train_images: ImageSet
    val_images: ImageSet
    logger: MemoryLogger
    initial_weights: Callable[[], dict[str, Tensor]]
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        settings = self.config.training
        self.ranks = current()
        self.device = self.train_images.images.device
        self.precision = resolve_precision(settings.precision, self.device)
        self.has_dropout = any(isinstance(layer, _DropoutNd) for layer in self.task.modules())
        self.steps_per_epoch = len(self._epoch_batches(0))
        self.total_steps = settings.epochs * self.steps_per_epoch
        named_callbacks = [CALLBACKS[name]() for name in settings.callbacks]
        self.callbacks = [*self.callbacks, *named_callbacks]
        # Not .to(): capsule weights have four axes too.
        convert_conv2d_weight_memory_format(self.task, torch.channels_last)
        sync_batch_norms(self.task.model, self.ranks)
        self.training_step = data_parallel(TrainingStep(self.task), self.ranks)
        self.optimizer = create_optimizer(self.task, self.config.optimizer)

    def run(self) -> None:
        """Train from the newest state of the logger to the end."""
        settings = self.config.training
        target_score = math.inf if settings.stop_at is None else settings.stop_at
        state = self.logger.restore(self.task.model, self.optimizer, self.total_steps)

        while state.step < self.total_steps and state.best_score < target_score:
            epoch, first_step = divmod(state.step, self.steps_per_epoch)
            timer = EpochTimer()
            for indices in self._epoch_batches(epoch)[first_step:]:
                # Forward and backward pass of this process's rows.
                lr = self._set_learning_rate(state)
                losses = self._forward_backward(indices, state.step)

                # Sums over all processes, and whether one of them was asked to stop.
                should_stop = any(callback.should_stop() for callback in self.callbacks)
                num_rows = self.ranks.shard_size(len(indices))
                sums, should_stop = sum_losses(losses, num_rows, should_stop, self.ranks)
                state.add_losses(sums)
                count = sums.pop("count")
                means = {name: total / count for name, total in sums.items()}
                check_number(means["loss"], "loss", state.step, self.logger)

                # The update.
                if self.config.optimizer.clip:
                    clip_grad_norm_(self.task.parameters(), float(self.config.optimizer.clip))
                self.optimizer.step()
                state.step += 1
                timer.add_step(num_rows)
                self._report_step(state.step, means | {"lr": lr})

                # The end of the step: a second start, or the end of the epoch; a checkpoint.
                collapse = detect_collapse(self.task, losses, state, self.total_steps)
                if collapse:
                    state = self._restart(state.step, collapse)
                elif state.step % self.steps_per_epoch == 0:
                    self._finish_epoch(state, timer)
                is_epoch_end = state.step % self.steps_per_epoch == 0
                if is_epoch_end or should_stop or state.step % settings.checkpoint_every == 0:
                    self.logger.save_state(self.task.model, self.optimizer, state)
                if should_stop:
                    raise Interrupted(
                        f"stopped after step {state.step} of {self.total_steps}; the state is saved"
                    )
                if collapse:
                    break

    def _epoch_batches(self, epoch: int) -> list[Tensor]:
        """Indices of the images of each step of an epoch, counted from 0."""
        order = epoch_permutation(self.config, epoch, len(self.train_images)).to(self.device)
        size = self.config.training.batch_size or 1
        return split_batches(order, size, self.task.spec.smallest_batch)

    def _set_learning_rate(self, state: TrainingState) -> float:
        """Set and return the learning rate of the next step."""
        factor = learning_rate_factor(
            self.config, state.step, self.total_steps, self.task.lr_restarts
        )
        return set_learning_rate(self.optimizer, factor, state.lr_scale)

    def _forward_backward(self, indices: Tensor, step: int) -> dict[str, Tensor]:
        """Losses of this process's rows of a batch; their gradients are left in the weights."""
        self.task.train()
        generator = torch.Generator().manual_seed(step_seed(self.config, step))
        batch = self.task.sample_batch(self.train_images, indices, generator)
        num_rows = self.ranks.shard_size(len(indices))
        # Where there are fewer rows than processes, some compute a row that does not count.
        rows = self.ranks.shard(len(indices)) if num_rows else slice(0, 1)
        shard = tree_map_only(Tensor, lambda x: x[rows], batch)

        self.optimizer.zero_grad(set_to_none=True)
        # Casts are not cached: torch keeps them for all threads together.
        autocast = torch.autocast(
            self.device.type, torch.bfloat16, self.precision == "bf16", cache_enabled=False
        )
        with self._seeded_dropout(step), autocast, exclude_padding_rows(num_rows):
            losses = self.training_step(shard, step / self.total_steps)
        loss = losses["loss"]
        if self.ranks.world_size > 1:  # gradients are averaged: weigh them by numbers of rows
            loss = loss * (self.ranks.world_size * num_rows / len(indices))
        loss.backward()
        return losses

    def _seeded_dropout(self, step: int) -> AbstractContextManager[Any]:
        """While open, dropout draws from a generator of this step, another one in each process."""
        if not self.has_dropout:
            return nullcontext()
        rank = self.ranks.rank
        seed = step_seed(self.config, step, f"{DROPOUT}.{rank}" if rank else DROPOUT)
        return use_generator(torch.Generator(self.device).manual_seed(seed))

    def _report_step(self, step: int, losses: dict[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_step(self.task.model, {"step": step, **losses})
        loss = losses["loss"]
        self.logger.emit({"kind": "tick", "step": step, "steps": self.total_steps, "loss": loss})
        if step % LOG_INTERVAL == 0:
            self.logger.log({"kind": "step", "step": step, **losses})

    def _restart(self, step: int, collapse: str) -> TrainingState:
        """Put weights, optimizer and metrics back to the start, and lower the learning rate."""
        lr = (self.config.optimizer.lr or 0.0) * RESTART_LR_SCALE
        reason = (
            f"{collapse} after step {step}; the training starts again, once, "
            f"with a tenth of the learning rate ({lr:g})"
        )
        self.task.model.load_state_dict(self.initial_weights())
        self.optimizer = create_optimizer(self.task, self.config.optimizer)
        self.logger.clear()
        self.logger.log({"kind": "note", "step": 0, "text": reason})
        return TrainingState(lr_scale=RESTART_LR_SCALE, restart=reason)

    def _finish_epoch(self, state: TrainingState, timer: "EpochTimer") -> None:
        """Validate, keep the best model, and log the epoch; the sums of the state are used up."""
        model = self.task.model
        check_finite(model, self.logger.recovery_hint)
        outputs = eval_outputs(self.task, self.val_images, precision=self.precision)
        metrics = self.task.compute_metrics(outputs)
        metrics |= extra_metrics(self.config.task.metrics, outputs)
        for name, metric in metrics.items():
            check_number(metric, f"validation {name}", state.step, self.logger)

        epoch = state.step // self.steps_per_epoch
        score = metrics[self.task.score]
        loss = metrics["loss"]
        is_best = (score, -loss) > (state.best_score, -state.best_loss)
        if is_best:
            state.best_score = score
            state.best_loss = loss
            state.best_epoch = epoch
        self.logger.save_model(model, epoch, is_best)

        count = state.sums.pop("count")
        epoch_size = self.config.data.epoch_size or len(self.train_images)
        row = {
            "kind": "epoch",
            "step": state.step,
            "epoch": epoch,
            "epochs": self.config.training.epochs,
            **{f"train_{name}": total / count for name, total in state.sums.items()},
            **{f"val_{name}": metric for name, metric in metrics.items()},
            "score": self.task.score,
            "best": is_best,
            "warnings": self.task.warnings(outputs),
            "images": count,
            **timer.measure(epoch_size / self.steps_per_epoch, self.ranks),
        }
        if state.restart:
            row["restart"] = state.restart
        state.sums = {}
        self.logger.log(row)
        for callback in self.callbacks:
            callback.on_epoch(model, row)


class EpochTimer:
    """The time of the steps of an epoch, or of those since it was taken up."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.num_steps = 0
        self.num_rows = 0

    def add_step(self, num_rows: int) -> None:
        """Count a step, and its rows in this process."""
        self.num_steps += 1
        self.num_rows += num_rows

    def measure(self, images_per_step: float, ranks: Ranks) -> dict[str, Any]:
        """Images per second; and of several processes, the rows and seconds of each."""
        seconds = time.perf_counter() - self.start
        speed = {"images_per_second": round(self.num_steps / seconds * images_per_step, 1)}
        if ranks.world_size == 1:
            return speed
        work = {"images": self.num_rows, "seconds": round(seconds, 2)}
        return {**speed, "ranks": ranks.gather(work)}


def sum_losses(
    losses: dict[str, Tensor], num_rows: int, should_stop: bool, ranks: Ranks
) -> tuple[dict[str, float], bool]:
    """Losses of all processes, summed over rows, with their "count"; whether one is to stop."""
    scalars = {name: loss.detach().double() for name, loss in losses.items() if loss.dim() == 0}
    means = torch.stack([*scalars.values()]).cpu()
    counts = torch.tensor([num_rows, should_stop], dtype=torch.float64)
    *sums, num_stops = ranks.sum(torch.cat([means * num_rows, counts])).tolist()
    return dict(zip([*scalars, "count"], sums, strict=True)), num_stops > 0


def detect_collapse(
    task: Task, losses: dict[str, Tensor], state: TrainingState, total_steps: int
) -> str:
    """What is wrong with a network that does not learn at step 100 (or half-way), or "".

    Nothing where it began so: that is not the learning rate's doing. It starts again once.
    """
    probe_step = min(PROBE_STEP, total_steps // 2)
    if state.lr_scale < 1 or state.step not in (1, probe_step):
        return ""
    arrays = {name: current().cat(x.detach()) for name, x in losses.items() if x.dim()}
    collapse = task.detect_collapse(arrays) or ""
    if state.step == 1:  # computed before the weights changed
        state.initial_collapse = collapse
    return "" if collapse == state.initial_collapse else collapse


def check_number(number: float, name: str, step: int, logger: MemoryLogger) -> None:
    """Raise TrainingError, which says what to do, unless the number is finite."""
    if not math.isfinite(number):
        raise TrainingError(f"the {name} became {number} after step {step}; {logger.recovery_hint}")
