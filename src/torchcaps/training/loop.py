"""The training loop: plain steps, reproducible from any of them.

Every random choice of a step comes from (seed, step) alone, so a checkpoint needs no state of random generators, and a
run that was killed continues bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.data import Preprocess, load_dataset
from torchcaps.errors import TrainingError
from torchcaps.training.checkpoint import build_model, describe_model, save_tensors
from torchcaps.training.config import TrainConfig
from torchcaps.training.objective import create_objective
from torchcaps.training.optim import learning_rate, resolve_device, resolve_precision
from torchcaps.training.run_folder import RunFolder
from torchcaps.training.sampling import draw, order, split
from torchcaps.training.state import Progress, check_finite, diverged, load_state, save_state
from torchcaps.training.validation import right, validate

Listener = Callable[[dict[str, Any]], None]
LOG_EVERY = 20  # steps between rows of kind "step" in the metrics


class Interrupted(Exception):
    """Training was asked to stop: no error, its state is saved and `resume` continues it."""


def train(
    config: TrainConfig,
    output: str | Path,
    *,
    resume: bool = False,
    listener: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunFolder:
    """Train a model and leave a run folder.

    The model of the epoch with the best validation accuracy (then loss) becomes `model.safetensors`.

    Args:
        config: what to run; with `resume`, the folder's own configuration, and of this one only a device other than
            "auto" and a root.
        output: the run folder; must not hold a run, unless `resume`.
        resume: continue the run in `output`, bit for bit on the same machine with the same number of threads.
        listener: is called with each row of the metrics, and after each step with {"kind": "tick", "step", "steps",
            "loss"}.
        should_stop: asked after each step; True saves the state and raises Interrupted.

    Raises:
        DataError, RunError, ValueError: for data, folders or settings that cannot be used; no folder is made then.
        TrainingError: when the loss becomes non-finite or a file cannot be written; the last good checkpoint stays, and
            a folder in which there is none yet is removed.
        Interrupted: when `should_stop` says so.
    """
    if resume:
        run = RunFolder.open(output)
        device = None if config.device == "auto" else config.device
        return Trainer(run.config().updated(device=device, root=config.root), run, listener).run(should_stop)
    run = RunFolder.fresh(output)
    trainer = Trainer(config, run, listener)  # reads the data and builds the model, before a folder is made
    try:
        run.start(config)
        return trainer.run(should_stop)
    except Exception:
        run.discard_empty()
        raise


class Trainer:
    """State of one training run; `train` is the way in."""

    def __init__(self, config: TrainConfig, run: RunFolder, listener: Listener | None = None) -> None:
        self.config, self.run_folder, self.listener = config, run, listener
        self.device = resolve_device(config.device)
        self.bf16 = resolve_precision(config.precision, self.device) == "bf16"
        images = load_dataset(config.data, "train", config.root, img_size=config.img_size, max_bytes=config.max_bytes)
        self.train_set, self.val_set = split(images, config, self.device)
        self.epoch_size = config.epoch_size or len(self.train_set)
        self.steps_per_epoch = math.ceil(self.epoch_size / config.batch_size)
        self.total_steps = config.epochs * self.steps_per_epoch
        preprocess = Preprocess(img_size=images.img_size, in_chans=images.in_chans, crop=config.crop)
        self.about = describe_model(config.model, config.model_options, images.classes, preprocess)
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
            torch.manual_seed(config.seed)
            self.model = build_model(self.about).to(self.device)
        for module in self.model.modules():
            if isinstance(module, torch.nn.Conv2d):  # not .to() on the whole: capsule weights have four axes too
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.objective = create_objective(self.model, config.loss, config.reconstruction)
        fused = self.device.type in ("cpu", "cuda")
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config.lr, fused=fused)
        self.progress = Progress()

    def run(self, should_stop: Callable[[], bool] | None = None) -> RunFolder:
        """Train from where the folder's newest checkpoint stands to the end."""
        self._restore()
        while self.progress.step < self.total_steps and not self._reached():
            self._epoch(self.progress.step // self.steps_per_epoch, should_stop)
        return self.run_folder

    def _reached(self) -> bool:
        """Whether an epoch ended with the accuracy to stop at."""
        return self.config.stop_at is not None and self.progress.best_accuracy >= self.config.stop_at

    def _epoch(self, epoch: int, should_stop: Callable[[], bool] | None) -> None:
        """What is left of an epoch, counted from 0."""
        batches = order(self.config, epoch, len(self.train_set)).to(self.device).split(self.config.batch_size)
        started, since = time.perf_counter(), self.progress.step
        while self.progress.step < (epoch + 1) * self.steps_per_epoch:
            self._step(batches[self.progress.step % self.steps_per_epoch])
            if self.progress.step % self.steps_per_epoch == 0:
                steps_per_second = (self.progress.step - since) / (time.perf_counter() - started)
                self._finish_epoch(epoch + 1, steps_per_second)
            elif self.progress.step % self.config.checkpoint_every == 0:
                self._save()
            if should_stop is not None and should_stop():
                self._save()
                raise Interrupted(f"stopped after step {self.progress.step} of {self.total_steps}; the state is saved")

    def _step(self, batch: Tensor) -> None:
        config, step = self.config, self.progress.step
        drawn = draw(self.train_set, batch, config, step)
        rate = learning_rate(config, step, self.total_steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.objective.train()
        self.objective.progress = step / self.total_steps
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            losses = self.objective(*drawn)
        losses.total.backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self._count(losses.total, losses.margin, losses.activation, drawn.labels, rate)
        self.optimiser.step()

    def _count(self, loss: Tensor, margin: Tensor, activation: Tensor, labels: Tensor, rate: float) -> None:
        """Add a step to the sums of its epoch; stop at a non-finite loss, before the weights take it in."""
        value, count = loss.item(), len(labels)
        self._check_loss(value, "loss")
        correct = right(activation, labels).sum().item()
        new = {"loss": value * count, "margin": margin.item() * count, "correct": correct, "count": count}
        self.progress.sums = {key: self.progress.sums.get(key, 0.0) + added for key, added in new.items()}
        self.progress.step += 1
        self._tell({"kind": "tick", "step": self.progress.step, "steps": self.total_steps, "loss": value})
        if self.progress.step % LOG_EVERY == 0:
            self._log({
                "kind": "step", "step": self.progress.step, "loss": value, "accuracy": correct / count, "lr": rate,
            })  # fmt: skip

    def _check_loss(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            left = diverged(self.run_folder.last)
            raise TrainingError(f"the {what} became {value} after step {self.progress.step}; {left}")

    def _finish_epoch(self, epoch: int, steps_per_second: float) -> None:
        sums, self.progress.sums = self.progress.sums, {}
        check_finite(self.model, self.run_folder.last)
        accuracy, loss, warnings = validate(self.model, self.val_set, self.bf16)
        self._check_loss(loss, "validation loss")
        better = (accuracy, -loss) > (self.progress.best_accuracy, -self.progress.best_loss)
        if better:
            self.progress.best_accuracy, self.progress.best_loss, self.progress.best_epoch = accuracy, loss, epoch
            save_tensors(self.run_folder.model, self.model.state_dict(), self.about)
        if self.config.keep_epochs:
            save_tensors(self.run_folder.epoch_model(epoch), self.model.state_dict(), self.about)
        self._log({
            "kind": "epoch", "step": self.progress.step, "epoch": epoch, "epochs": self.config.epochs,
            "train_loss": sums["loss"] / sums["count"], "train_margin": sums["margin"] / sums["count"],
            "train_accuracy": sums["correct"] / sums["count"], "val_loss": loss, "val_accuracy": accuracy,
            "best": better, "warnings": warnings, "images": sums["count"],
            "images_per_second": round(steps_per_second * self.epoch_size / self.steps_per_epoch, 1),
        })  # fmt: skip
        self._save()

    def _log(self, row: dict[str, Any]) -> None:
        self.run_folder.append(row)
        self._tell(row)

    def _tell(self, row: dict[str, Any]) -> None:
        if self.listener is not None:
            self.listener(row)

    def _save(self) -> None:
        save_state(self.run_folder.last, self.model, self.optimiser, self.progress, {"data": self._data()})

    def _restore(self) -> None:
        """Take up the newest checkpoint, if there is one."""
        if self.run_folder.last.exists():
            self.progress = load_state(self.run_folder.last, self.model, self.optimiser, {"data": self._data()})
        self.run_folder.rewind(self.progress.step)

    def _data(self) -> dict[str, Any]:
        """What must not change between a stop and the continuation."""
        train, held = self.train_set, self.val_set
        return {"train": len(train), "held out": len(held), "classes": train.num_classes, "channels": train.in_chans}
