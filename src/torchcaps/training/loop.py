"""The training loop: plain steps of any task, reproducible from any of them, by one process or by several.

Every random choice of a step comes from (seed, step) alone, so a checkpoint needs no state of random generators, and a
run that was killed continues bit for bit. Each process draws the whole batch and computes its share of it.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils import convert_conv2d_weight_memory_format

from torchcaps.data import ImageSet
from torchcaps.distributed import current, data_parallel, exclude_padding_rows, sync_batch_norms
from torchcaps.errors import ArgumentError, TrainingError
from torchcaps.nn import use_generator
from torchcaps.tasks import Task, mapped
from torchcaps.training.optim import batch_size, create_optimizer, learning_rate, resolve_precision
from torchcaps.training.sampling import chance, order
from torchcaps.training.sinks import MemoryLogger
from torchcaps.training.state import Progress, check_finite

Listener = Callable[[dict[str, Any]], None]
LOG_EVERY = 20  # steps between rows of kind "step" in the metrics
PROBED_STEP, RESTART_RATE = (
    100,
    0.1,
)  # when a network that does not learn starts again, and with which share of lr


class Interrupted(Exception):
    """Training was asked to stop: no error, its state is saved and `resume` continues it."""


@dataclass(frozen=True)
class Callbacks:
    """Who is told what."""

    # Each row of the metrics; after each step {"kind": "tick", "step", "steps", "loss"}; {"kind": "note", "step",
    # "text"} when it goes on from an older checkpoint than the newest, or starts again.
    listener: Listener | None = None
    # Losses by name, and "step", the number of steps done, after each; gradients are still there.
    on_step: Callable[[nn.Module, dict[str, float]], None] | None = None
    on_epoch: Callable[[nn.Module, dict[str, Any]], None] | None = (
        None  # a row of the metrics after each epoch
    )
    should_stop: Callable[[], bool] | None = (
        None  # asked after each step; True saves the state, raises Interrupted
    )


class Trainer:
    """One training: a task on its model's device, images to train on, and images `held` to choose the epoch by.

    Metrics, states and the best model go to the `sink`. `fresh` gives the weights that the training began with, for a
    second start. `config` has all that the task and the number of images decide; `total` is the number of steps."""

    def __init__(
        self,
        task: Task,
        images: ImageSet,
        held: ImageSet,
        sink: MemoryLogger,
        callbacks: Callbacks,
        fresh: Callable[[], dict[str, Tensor]],
    ) -> None:
        self.ranks = current()
        self.task, self.images, self.held, self.sink, self.callbacks = (
            task,
            images,
            held,
            sink,
            callbacks,
        )
        self.fresh, self.device = fresh, images.images.device
        run = task.config.run
        self.epoch_size = task.config.data.epoch_size or len(images)
        size = run.batch_size or batch_size(run.epochs * self.epoch_size)
        if size < self.ranks.world_size:
            raise ArgumentError(
                "batch_size",
                f"expected an image for each of {self.ranks.world_size} processes, got {size}",
            )
        clip = task.clip if task.config.optimizer.clip == "auto" else task.config.optimizer.clip
        self.config = task.config.updated(batch_size=size, clip=float(clip))
        self.per_epoch = math.ceil(self.epoch_size / size)
        self.total = run.epochs * self.per_epoch
        self.bf16 = resolve_precision(run.precision, self.device) == "bf16"
        self.drops = any(isinstance(module, _DropoutNd) for module in task.modules())
        convert_conv2d_weight_memory_format(
            task, torch.channels_last
        )  # not .to(): capsule weights have four axes too
        sync_batch_norms(task.model, self.ranks)
        self.stepped = data_parallel(task, self.ranks)
        self.optimizer, self.progress = create_optimizer(task.parameters(), self.config), Progress()
        self.last: dict[str, float] = {}  # what the newest step gave

    def run(self) -> None:
        """Train from where the sink's newest state stands to the end."""
        self.progress, stop_at = self.sink.restore(self), self.config.run.stop_at
        while self.progress.step < self.total and (
            stop_at is None or self.progress.best_score < stop_at
        ):
            self._epoch(self.progress.step // self.per_epoch)

    def tell(self, row: dict[str, Any]) -> None:
        """Give a row to the listener."""
        if self.callbacks.listener is not None:
            self.callbacks.listener(row)

    def _epoch(self, epoch: int) -> None:
        """What is left of an epoch, counted from 0."""
        size = self.config.run.batch_size or 1
        batches = order(self.config, epoch, len(self.images)).to(self.device).split(size)
        started, since, mine = time.perf_counter(), self.progress.step, 0
        while self.progress.step < (epoch + 1) * self.per_epoch:
            indices = batches[self.progress.step % self.per_epoch]
            losses, stop = self._step(indices)
            mine += len(range(len(indices))[self.ranks.shard(len(indices))])
            again = self._failed_to_start(losses)
            if again:
                self.sink.save(self)
            elif self.progress.step % self.per_epoch == 0:
                self._finish_epoch(
                    epoch + 1, self.progress.step - since, time.perf_counter() - started, mine
                )
            elif self.progress.step % self.config.run.checkpoint_every == 0:
                self.sink.save(self)
            if stop:
                self.sink.save(self)
                raise Interrupted(
                    f"stopped after step {self.progress.step} of {self.total}; the state is saved"
                )
            if again:
                return

    def _step(self, indices: Tensor) -> tuple[dict[str, Tensor], bool]:
        """One step: what the task gave for this process's share, and whether to stop after it."""
        config, step = self.config, self.progress.step
        generator = torch.Generator().manual_seed(chance(config, step))
        self.task.train()
        batch = self.task.sample_batch(self.images, indices, generator)
        rows = self.ranks.shard(len(indices))
        count = len(range(len(indices))[rows])
        rate = self.progress.rate * learning_rate(config, step, self.total, self.task.lr_restarts)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        # Casts are not kept from one use of a weight to the next: torch keeps them for all threads together.
        autocast = torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False
        )
        with self._dropping(), autocast, exclude_padding_rows(count):
            mine = (
                rows if count else slice(0, 1)
            )  # an image that does not count, where there are too few
            losses = self.stepped(mapped(batch, lambda x: x[mine]), step / self.total)
        loss = losses["loss"]
        if (
            self.ranks.world_size > 1
        ):  # gradients of processes are averaged: by the number of their images
            loss = loss * (self.ranks.world_size * count / len(indices))
        loss.backward()
        stop = self._count(losses, count, rate)
        if self.config.optimizer.clip:
            torch.nn.utils.clip_grad_norm_(
                self.task.parameters(), float(self.config.optimizer.clip)
            )
        self.optimizer.step()
        self._stepped()
        return losses, stop

    def _dropping(self) -> AbstractContextManager[None]:
        """What a model drops out in this step comes from a generator of its own, other ones in other processes."""
        if not self.drops:
            return nullcontext()
        stream = f"2.{self.ranks.rank}" if self.ranks.rank else "2"
        seed = chance(self.config, self.progress.step, stream)
        return use_generator(torch.Generator(self.device).manual_seed(seed))

    def _count(self, losses: dict[str, Tensor], count: int, rate: float) -> bool:
        """Add a step to the sums of its epoch; whether a process was asked to stop. Raises TrainingError for a loss
        that is not finite, before the weights take it in."""
        names = [name for name, value in losses.items() if value.dim() == 0]
        values = torch.stack([losses[name].detach().double() for name in names]).cpu()
        stop = self.callbacks.should_stop is not None and self.callbacks.should_stop()
        values = torch.cat([values * count, torch.tensor([count, stop], dtype=torch.float64)])
        *sums, total, stops = self.ranks.sum(values).tolist()
        self.last = {name: value / total for name, value in zip(names, sums, strict=True)}
        self._check_loss(self.last["loss"], "loss")
        for name, added in zip([*names, "count"], [*sums, total], strict=True):
            self.progress.sums[name] = self.progress.sums.get(name, 0.0) + added
        self.last["lr"] = rate
        return stops > 0

    def _stepped(self) -> None:
        """Tell of a step that is done."""
        self.progress.step += 1
        step, figures = self.progress.step, self.last
        if self.callbacks.on_step is not None:
            self.callbacks.on_step(self.task.model, {"step": step, **figures})
        self.tell({"kind": "tick", "step": step, "steps": self.total, "loss": figures["loss"]})
        if step % LOG_EVERY == 0:
            self._log({"kind": "step", "step": step, **figures})

    def _failed_to_start(self, losses: dict[str, Tensor]) -> bool:
        """Whether the network does not learn at step 100 (in the middle of a shorter run) and starts again, once.

        Not where it began so: that is not the learning rate's doing."""
        if (
            self.progress.step not in (1, min(PROBED_STEP, self.total // 2))
            or self.progress.rate < 1
        ):
            return False
        state = self.task.detect_collapse(
            {n: self.ranks.cat(v.detach()) for n, v in losses.items() if v.dim()}
        )
        if self.progress.step == 1:  # computed before the weights changed
            self.progress.began = state or ""
        if state in (None, self.progress.began):
            return False
        rate = self.config.optimizer.lr or 0.0
        how = f"once, with a tenth of the learning rate ({rate * RESTART_RATE:g})"
        text = f"{state} after step {self.progress.step}; the training starts again, {how}"
        self.progress = Progress(rate=RESTART_RATE)
        self.task.model.load_state_dict(self.fresh())
        self.optimizer = create_optimizer(self.task.parameters(), self.config)
        self.sink.clear()
        self._log({"kind": "note", "step": 0, "text": text})
        return True

    def _check_loss(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"the {what} became {value} after step {self.progress.step}; {self.sink.left()}"
            )

    def _finish_epoch(self, epoch: int, steps: int, seconds: float, mine: int) -> None:
        sums, self.progress.sums = self.progress.sums, {}
        count = sums.pop("count")
        check_finite(self.task.model, self.sink.left())
        outputs = self.task.eval_outputs(self.held, precision="bf16" if self.bf16 else "fp32")
        figures = self.task.all_metrics(outputs)
        for name, value in figures.items():
            self._check_loss(value, f"validation {name}")
        rank = (figures[self.task.score], -figures["loss"])
        best = rank > (self.progress.best_score, -self.progress.best_loss)
        if best:
            progress = self.progress
            progress.best_score, progress.best_loss, progress.best_epoch = (
                rank[0],
                figures["loss"],
                epoch,
            )
        self.sink.keep(self.task.model, epoch, best)
        row = {
            "kind": "epoch",
            "step": self.progress.step,
            "epoch": epoch,
            "epochs": self.config.run.epochs,
            **{f"train_{name}": value / count for name, value in sums.items()},
            **{f"val_{name}": value for name, value in figures.items()},
            "score": self.task.score,
            "best": best,
            "warnings": self.task.warnings(outputs),
            "images": count,
            "images_per_second": round(steps / seconds * self.epoch_size / self.per_epoch, 1),
        }
        if self.ranks.world_size > 1:
            row["ranks"] = self.ranks.gather({"images": mine, "seconds": round(seconds, 2)})
        self._log(row)
        if self.callbacks.on_epoch is not None:
            self.callbacks.on_epoch(self.task.model, row)
        self.sink.save(self)

    def _log(self, row: dict[str, Any]) -> None:
        self.sink.log(row)
        self.tell(row)
