"""The training loop: plain steps of any task, reproducible from any of them, by one or several processes.

Every random choice of a step comes from (seed, step) alone, so a checkpoint needs no state of random
generators, and a run that was killed continues bit for bit. Each process draws the whole batch and
computes its rows of it.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils import clip_grad_norm_, convert_conv2d_weight_memory_format

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
from torchcaps.tasks import Task, mapped
from torchcaps.training.callbacks import CALLBACKS, Callback
from torchcaps.training.device import resolve_precision
from torchcaps.training.loggers import MemoryLogger
from torchcaps.training.optimizers import create_optimizer
from torchcaps.training.sampling import DROPOUT, epoch_permutation, split_batches, step_seed
from torchcaps.training.schedules import learning_rate_factor, set_learning_rate
from torchcaps.training.state import TrainingState, check_finite

LOG_EVERY = 20  # steps between rows of kind "step" in the metrics
PROBE_STEP = 100  # when a network that does not learn starts again
RESTART_LR_SCALE = 0.1


class Interrupted(Exception):
    """Training was asked to stop: no error, its state is saved and `resume` continues it."""


class Trainer:
    """One training of a task, on the device of its images.

    Args:
        task: around the model.
        train_images, val_images: to train on, and to choose the epoch by.
        logger: takes the metrics, states and the best model.
        initial_weights: gives the weights that the training began with, for a second start.
        callbacks: beside those that the configuration names.
        emit: is given each row of the metrics; after each step {"kind": "tick", "step", "steps",
            "loss"}; {"kind": "note", "step", "text"} when the training goes on from an older
            checkpoint than the newest, or starts again.

    Attributes:
        config: with all that the task and the number of images decide.
        total_steps: of the whole training.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        train_images: ImageSet,
        val_images: ImageSet,
        logger: MemoryLogger,
        *,
        initial_weights: Callable[[], dict[str, Tensor]],
        callbacks: Sequence[Callback] = (),
        emit: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.task = task
        self.config = config
        self.train_images = train_images
        self.val_images = val_images
        self.logger = logger
        self.initial_weights = initial_weights
        self.callbacks = [*callbacks, *(CALLBACKS[name]() for name in config.training.callbacks)]
        self.emit = emit or _ignore
        self.ranks = current()
        self.device = train_images.images.device
        self.precision = resolve_precision(config.training.precision, self.device)
        self.has_dropout = any(isinstance(module, _DropoutNd) for module in task.modules())
        self.epoch_size = config.data.epoch_size or len(train_images)
        self.steps_per_epoch = len(self._epoch_batches(0))
        self.total_steps = config.training.epochs * self.steps_per_epoch
        # Not .to(): capsule weights have four axes too.
        convert_conv2d_weight_memory_format(task, torch.channels_last)
        sync_batch_norms(task.model, self.ranks)
        self.parallel_task = data_parallel(task, self.ranks)
        self.optimizer = create_optimizer(self.task, self.config.optimizer)

    def run(self) -> None:
        """Train from the newest state of the logger to the end."""
        model, settings = self.task.model, self.config.training
        state, note = self.logger.restore(model, self.optimizer, self.total_steps)
        if note:
            self.emit({"kind": "note", "step": state.step, "text": note})

        target = math.inf if settings.stop_at is None else settings.stop_at
        while state.step < self.total_steps and state.best_score < target:
            first_step, start_time, num_rows = state.step, time.perf_counter(), 0
            batches = self._epoch_batches(state.step // self.steps_per_epoch)
            for indices in batches[state.step % self.steps_per_epoch :]:
                # Forward and backward pass of this process's rows.
                factor = learning_rate_factor(
                    self.config, state.step, self.total_steps, self.task.lr_restarts
                )
                lr = set_learning_rate(self.optimizer, factor, state.lr_scale)
                losses = self._forward_backward(indices, state.step)

                # Sums over all processes, and whether one of them was asked to stop.
                stop = any(callback.should_stop() for callback in self.callbacks)
                size = self.ranks.shard_size(len(indices))
                sums, count, stop = sum_losses(losses, size, stop, self.ranks)
                means = {name: total / count for name, total in sums.items()}
                check_number(means["loss"], "loss", state.step, self.logger.recovery_hint)
                state.add_losses(sums, count)

                # The update.
                if self.config.optimizer.clip:
                    clip_grad_norm_(self.task.parameters(), float(self.config.optimizer.clip))
                self.optimizer.step()
                state.step += 1
                num_rows += size
                self._report_step(state.step, means | {"lr": lr})

                # The end of the step: a second start, the end of the epoch, or a checkpoint.
                collapse = self._detect_collapse(state, losses)
                if collapse:
                    state = self._start_again(state.step, collapse)
                elif state.step % self.steps_per_epoch == 0:
                    speed = (state.step - first_step, time.perf_counter() - start_time, num_rows)
                    self._finish_epoch(state, *speed)
                elif state.step % settings.checkpoint_every == 0:
                    self.logger.save_state(model, self.optimizer, state)
                if stop:
                    self.logger.save_state(model, self.optimizer, state)
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

    def _forward_backward(self, indices: Tensor, step: int) -> dict[str, Tensor]:
        """Losses of this process's rows of a batch; their gradients are left in the weights."""
        self.task.train()
        generator = torch.Generator().manual_seed(step_seed(self.config, step))
        batch = self.task.sample_batch(self.train_images, indices, generator)
        num_rows = self.ranks.shard_size(len(indices))
        # Where there are fewer rows than processes, some compute a row that does not count.
        rows = self.ranks.shard(len(indices)) if num_rows else slice(0, 1)
        self.optimizer.zero_grad(set_to_none=True)
        # Casts are not cached: torch keeps them for all threads together.
        autocast = torch.autocast(
            self.device.type, torch.bfloat16, self.precision == "bf16", cache_enabled=False
        )
        dropout: AbstractContextManager[None] = nullcontext()
        if self.has_dropout:
            dropout = seeded_dropout(self.config, step, self.device, self.ranks.rank)
        with dropout, autocast, exclude_padding_rows(num_rows):
            losses = self.parallel_task(mapped(batch, lambda x: x[rows]), step / self.total_steps)
        loss = losses["loss"]
        if self.ranks.world_size > 1:  # gradients are averaged: weigh them by numbers of rows
            loss = loss * (self.ranks.world_size * num_rows / len(indices))
        loss.backward()
        return losses

    def _report_step(self, step: int, losses: dict[str, float]) -> None:
        for callback in self.callbacks:
            callback.on_step(self.task.model, {"step": step, **losses})
        tick = {"kind": "tick", "step": step, "steps": self.total_steps, "loss": losses["loss"]}
        self.emit(tick)
        if step % LOG_EVERY == 0:
            self._log({"kind": "step", "step": step, **losses})

    def _detect_collapse(self, state: TrainingState, losses: dict[str, Tensor]) -> str:
        """What is wrong with a network that does not learn at step 100 (or half-way), or "".

        Nothing where it began so: that is not the learning rate's doing. It starts again once.
        """
        probe_step = min(PROBE_STEP, self.total_steps // 2)
        if state.lr_scale < 1 or state.step not in (1, probe_step):
            return ""
        arrays = {n: self.ranks.cat(x.detach()) for n, x in losses.items() if x.dim()}
        collapse = self.task.detect_collapse(arrays) or ""
        if state.step == 1:  # computed before the weights changed
            state.initial_collapse = collapse
        return "" if collapse == state.initial_collapse else collapse

    def _start_again(self, step: int, collapse: str) -> TrainingState:
        """Put weights, optimizer and metrics back to the start, and lower the learning rate."""
        lr = (self.config.optimizer.lr or 0.0) * RESTART_LR_SCALE
        reason = (
            f"{collapse} after step {step}; the training starts again, once, "
            f"with a tenth of the learning rate ({lr:g})"
        )
        state = TrainingState(lr_scale=RESTART_LR_SCALE, restart=reason)
        self.task.model.load_state_dict(self.initial_weights())
        self.optimizer = create_optimizer(self.task, self.config.optimizer)
        self.logger.clear()
        self._log({"kind": "note", "step": 0, "text": reason})
        self.logger.save_state(self.task.model, self.optimizer, state)
        return state

    def _finish_epoch(
        self, state: TrainingState, num_steps: int, seconds: float, num_rows: int
    ) -> None:
        """Validate, keep the best model, log the epoch, and save the state.

        Args:
            state: its sums are used up.
            num_steps, seconds, num_rows: of this process, since it began or took up the epoch.
        """
        model, epoch = self.task.model, state.step // self.steps_per_epoch
        sums, state.sums = state.sums, {}
        count = sums.pop("count")
        check_finite(model, self.logger.recovery_hint)
        outputs = self.task.eval_outputs(self.val_images, precision=self.precision)
        metrics = self.task.all_metrics(outputs)
        for name, value in metrics.items():
            check_number(value, f"validation {name}", state.step, self.logger.recovery_hint)
        score, loss = metrics[self.task.score], metrics["loss"]
        is_best = (score, -loss) > (state.best_score, -state.best_loss)
        if is_best:
            state.best_score, state.best_loss, state.best_epoch = score, loss, epoch
        self.logger.save_model(model, epoch, is_best)
        images_per_step = self.epoch_size / self.steps_per_epoch
        row = {
            "kind": "epoch",
            "step": state.step,
            "epoch": epoch,
            "epochs": self.config.training.epochs,
            **{f"train_{name}": total / count for name, total in sums.items()},
            **{f"val_{name}": value for name, value in metrics.items()},
            "score": self.task.score,
            "best": is_best,
            "warnings": self.task.warnings(outputs),
            "images": count,
            "images_per_second": round(num_steps / seconds * images_per_step, 1),
        }
        if state.restart:
            row["restart"] = state.restart
        if self.ranks.world_size > 1:
            row["ranks"] = self.ranks.gather({"images": num_rows, "seconds": round(seconds, 2)})
        self._log(row)
        for callback in self.callbacks:
            callback.on_epoch(model, row)
        self.logger.save_state(model, self.optimizer, state)

    def _log(self, row: dict[str, Any]) -> None:
        self.logger.log(row)
        self.emit(row)


def seeded_dropout(
    config: TrainConfig, step: int, device: torch.device, rank: int
) -> AbstractContextManager[None]:
    """While open, dropout draws from a generator of this step, another one in each process."""
    stream = f"{DROPOUT}.{rank}" if rank else DROPOUT
    seed = step_seed(config, step, stream)
    return use_generator(torch.Generator(device).manual_seed(seed))


def sum_losses(
    losses: dict[str, Tensor], num_rows: int, stop: bool, ranks: Ranks
) -> tuple[dict[str, float], float, bool]:
    """Mean losses times rows, and rows, summed over all processes; whether one of them is to stop."""
    names = [name for name, loss in losses.items() if loss.dim() == 0]
    values = torch.stack([losses[name].detach().double() for name in names]).cpu()
    counts = torch.tensor([num_rows, stop], dtype=torch.float64)
    *sums, count, stops = ranks.sum(torch.cat([values * num_rows, counts])).tolist()
    return dict(zip(names, sums, strict=True)), count, stops > 0


def check_number(value: float, name: str, step: int, hint: str) -> None:
    """Raise TrainingError, which ends with the hint, unless the value is finite."""
    if not math.isfinite(value):
        raise TrainingError(f"the {name} became {value} after step {step}; {hint}")


def _ignore(_row: dict[str, Any]) -> None:
    """Take a row of the metrics, and do nothing."""
