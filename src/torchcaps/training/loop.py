"""The training loop: plain steps, reproducible from any of them.

Every random choice of a step comes from (seed, step) alone, so a checkpoint needs no state of random generators, and a
run that was killed continues bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from torchcaps.data import Preprocess, load_dataset
from torchcaps.errors import TrainingError
from torchcaps.nn import drawn_from
from torchcaps.training import defaults
from torchcaps.training.checkpoint import build_model, describe_model, save_tensors
from torchcaps.training.collapse import stuck
from torchcaps.training.config import TrainConfig
from torchcaps.training.objective import create_objective
from torchcaps.training.optim import learning_rate, resolve_device, resolve_precision
from torchcaps.training.run_folder import RunFolder
from torchcaps.training.sampling import chance, draw, order, split
from torchcaps.training.state import Progress, check_finite, digest, diverged, load_state, save_state
from torchcaps.training.validation import right, validate

Listener = Callable[[dict[str, Any]], None]
LOG_EVERY = 20  # steps between rows of kind "step" in the metrics
PROBED_STEP, RESTART_RATE = 100, 0.1  # when a network that does not learn starts again, and with which share of lr
SUMS = ("loss", "margin", "correct", "count")  # of an epoch, over its images


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
            "auto", a root and max_bytes.
        output: the run folder; must not hold a run, unless `resume`.
        resume: continue the run in `output`, bit for bit on the same machine with the same number of threads.
        listener: is called with each row of the metrics, and after each step with {"kind": "tick", "step", "steps",
            "loss"}; with {"kind": "note", "step", "text"} when it goes on from an older checkpoint than the newest, or
            starts again because no class capsule learns.
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
        with run.continued():
            kept = run.config().updated(device=device, root=config.root, max_bytes=config.max_bytes)
            return Trainer(kept, run, listener).run(should_stop)
    run = RunFolder.fresh(output)
    trainer = Trainer(config, run, listener)  # reads the data and builds the model, before a folder is made
    with run.begun(trainer.config):
        return trainer.run(should_stop)


class Trainer:
    """State of one training run; `train` is the way in."""

    def __init__(self, config: TrainConfig, run: RunFolder, listener: Listener | None = None) -> None:
        self.run_folder, self.listener = run, listener
        self.device = resolve_device(config.device)
        self.bf16 = resolve_precision(config.precision, self.device) == "bf16"
        images = load_dataset(config.data, "train", config.root, img_size=config.img_size, max_bytes=config.max_bytes)
        self.train_set, self.val_set = split(images, config, self.device)
        self.epoch_size = config.epoch_size or len(self.train_set)
        preprocess = Preprocess(img_size=images.img_size, in_chans=images.in_chans, crop=config.crop)
        self.about = describe_model(config.model, config.model_options, images.classes, preprocess)
        self.model = self._fresh_model(config.seed)
        self.drops = any(isinstance(module, _DropoutNd) for module in self.model.modules())
        self.objective = create_objective(self.model, config.loss, config.reconstruction)
        self.batch_size = config.batch_size or defaults.batch_size(config.epochs * self.epoch_size)
        self.clip = defaults.clip(self.objective.loss) if config.clip == "auto" else config.clip
        self.config = replace(config, batch_size=self.batch_size, clip=self.clip)
        self.steps_per_epoch = math.ceil(self.epoch_size / self.batch_size)
        self.total_steps = config.epochs * self.steps_per_epoch
        self.optimiser, self.progress = self._fresh_optimiser(), Progress()

    def _fresh_model(self, seed: int) -> nn.Module:
        """The model as it starts, on the device."""
        model = build_model(self.about, generator=torch.Generator().manual_seed(seed)).to(self.device)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):  # not .to() on the whole: capsule weights have four axes too
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def _fresh_optimiser(self) -> torch.optim.Optimizer:
        fused = self.device.type in ("cpu", "cuda")
        return torch.optim.Adam(self.model.parameters(), lr=self.config.lr, fused=fused)

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
        batches = order(self.config, epoch, len(self.train_set)).to(self.device).split(self.batch_size)
        started, since = time.perf_counter(), self.progress.step
        while self.progress.step < (epoch + 1) * self.steps_per_epoch:
            activation = self._step(batches[self.progress.step % self.steps_per_epoch])
            if self._failed_to_start(activation):
                return
            if self.progress.step % self.steps_per_epoch == 0:
                steps_per_second = (self.progress.step - since) / (time.perf_counter() - started)
                self._finish_epoch(epoch + 1, steps_per_second)
            elif self.progress.step % self.config.checkpoint_every == 0:
                self._save()
            if should_stop is not None and should_stop():
                self._save()
                raise Interrupted(f"stopped after step {self.progress.step} of {self.total_steps}; the state is saved")

    def _step(self, batch: Tensor) -> Tensor:
        """One step; returns the activations `[batch, classes]` that its loss was made from."""
        config, step = self.config, self.progress.step
        drawn = draw(self.train_set, batch, config, step)
        rate = self.progress.rate * learning_rate(config, step, self.total_steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.objective.train()
        self.objective.progress = step / self.total_steps
        self.optimiser.zero_grad(set_to_none=True)
        # Casts are not kept from one use of a weight to the next: torch keeps them for all threads together.
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False)
        with drawn_from(chance(config, step, self.device)) if self.drops else nullcontext(), autocast:
            losses = self.objective(*drawn)
        losses.total.backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self._count(losses.total, losses.margin, losses.activation, drawn.labels, rate)
        self.optimiser.step()
        return losses.activation

    def _failed_to_start(self, activation: Tensor) -> bool:
        """Whether the network was dead or saturated at step 100 (in the middle of a shorter run) and starts again."""
        at = min(PROBED_STEP, self.total_steps // 2)
        if self.progress.step != at or self.progress.rate < 1 or self.objective.loss == "cross_entropy":
            return False
        state = stuck(activation)
        if state is not None:
            self._start_again(state)
        return state is not None

    def _start_again(self, state: str) -> None:
        """The training from its first step, at a tenth of the rate."""
        text = (
            f"every class capsule was {state} after step {self.progress.step}; the training starts again, once, with a "
            f"tenth of the learning rate ({self.config.lr * RESTART_RATE:g})"
        )
        self.progress = Progress(rate=RESTART_RATE)
        self.model.load_state_dict(self._fresh_model(self.config.seed).state_dict())
        self.optimiser = self._fresh_optimiser()
        self.run_folder.rewind(-1)
        self._log({"kind": "note", "step": 0, "text": text})
        self._save()

    def _count(self, loss: Tensor, margin: Tensor, activation: Tensor, labels: Tensor, rate: float) -> None:
        """Add a step to the sums of its epoch; stop at a non-finite loss, before the weights take it in."""
        value, count = loss.item(), len(labels)
        self._check_loss(value, "loss")
        correct = right(activation, labels).sum().item()
        new = zip(SUMS, (value * count, margin.item() * count, correct, count), strict=True)
        self.progress.sums = {key: self.progress.sums.get(key, 0.0) + added for key, added in new}
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
        save_state(self.run_folder.last, self.model, self.optimiser, self.progress, self._unchanging)

    def _restore(self) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        self.progress, text = load_state(
            self.run_folder.last, self.model, self.optimiser, self._unchanging, steps=self.total_steps, sums=SUMS
        )
        self.run_folder.rewind(self.progress.step)
        if text:
            self._tell({"kind": "note", "step": self.progress.step, "text": text})

    @cached_property
    def _unchanging(self) -> dict[str, Any]:
        """What must not change between a stop and the continuation."""
        train, held = self.train_set, self.val_set
        return self.run_folder.unchanging(self.config) | {
            "data": {
                "train": len(train),
                "held out": len(held),
                "classes": train.num_classes,
                "channels": train.in_chans,
            },
            "digest": digest(train.images, train.labels, held.images, held.labels),
        }
