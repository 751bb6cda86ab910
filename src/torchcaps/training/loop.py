"""The training loop: plain steps, reproducible from any of them.

Every random choice of a step comes from (seed, step) alone, so a checkpoint needs no state of random generators, and a run
that was killed continues bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.data import ImageSet, Preprocess, affine, flip, holdout, load_dataset, shift
from torchcaps.errors import DataError, TrainingError
from torchcaps.functional import margin_loss
from torchcaps.training.checkpoint import build_model, describe_model, load_tensors, save_tensors
from torchcaps.training.collapse import diagnose
from torchcaps.training.config import TrainConfig
from torchcaps.training.objective import MarginObjective
from torchcaps.training.optim import learning_rate, resolve_device, resolve_precision
from torchcaps.training.run_folder import RunFolder

Listener = Callable[[dict[str, Any]], None]
LOG_EVERY = 20  # steps between rows of kind "step" in the metrics, and between looks at the loss


class Interrupted(Exception):  # noqa: N818 (no error: the state is saved)
    """Training was asked to stop; its state is saved and `resume` continues it."""


@dataclass
class Progress:
    """Where a training stands: everything beside tensors that a checkpoint holds."""

    step: int = 0
    best_accuracy: float = -1.0
    best_loss: float = math.inf
    best_epoch: int = 0
    sums: dict[str, float] = field(default_factory=dict)


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
        config: what to run; with `resume`, the folder's own configuration is used and this one is ignored.
        output: the run folder; must not hold a run, unless `resume`.
        resume: continue the run in `output`, bit for bit on the same machine with the same number of threads.
        listener: is called with each row of the metrics, and with {"kind": "tick", "step", "steps", "loss"} after each step.
        should_stop: asked after each step; True saves the state and raises Interrupted.

    Raises:
        DataError, RunError, ValueError: for data, folders or settings that cannot be used.
        TrainingError: when the loss becomes non-finite or a file cannot be written; the last good checkpoint stays.
        Interrupted: when `should_stop` says so.
    """
    if resume:
        run = RunFolder.open(output)
        return Trainer(run.config(), run, listener).run(should_stop)
    images = load_dataset(config.data, "train", config.root, img_size=config.img_size)  # before a folder is made
    return Trainer(config, RunFolder.create(output, config), listener, images).run(should_stop)


class Trainer:
    """State of one training run; `train` is the way in."""

    def __init__(
        self, config: TrainConfig, run: RunFolder, listener: Listener | None = None, images: ImageSet | None = None
    ) -> None:
        self.config, self.run_folder, self.listener = config, run, listener
        self.device = resolve_device(config.device)
        self.bf16 = resolve_precision(config.precision, self.device) == "bf16"
        if images is None:
            images = load_dataset(config.data, "train", config.root, img_size=config.img_size)
        count = int(config.holdout) if config.holdout >= 1 else config.holdout
        kept, held = holdout(images.labels, count, config.seed)
        self.train_set, self.val_set = _on_device(images.subset(kept), self.device), _on_device(images.subset(held), self.device)
        self.steps_per_epoch = math.ceil(len(self.train_set) / config.batch_size)
        self.total_steps = config.epochs * self.steps_per_epoch
        preprocess = Preprocess(img_size=images.img_size, in_chans=images.in_chans)
        self.about = describe_model(config.model, config.model_options, images.classes, preprocess)
        torch.manual_seed(config.seed)
        self.model = build_model(self.about).to(self.device)
        for module in self.model.modules():
            if isinstance(module, torch.nn.Conv2d):  # not .to() on the whole: capsule weights have four axes too
                module.to(memory_format=torch.channels_last)
        self.objective = MarginObjective(self.model, config.reconstruction)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config.lr, fused=self.device.type in ("cpu", "cuda"))
        self.progress = Progress()

    def run(self, should_stop: Callable[[], bool] | None = None) -> RunFolder:
        """Train from where the folder's newest checkpoint stands to the end."""
        self._restore()
        started, since = time.perf_counter(), self.progress.step
        while self.progress.step < self.total_steps:
            epoch, index = divmod(self.progress.step, self.steps_per_epoch)
            order = self._order(epoch) if index == 0 or self.progress.step == since else order
            self._step(order[index * self.config.batch_size : (index + 1) * self.config.batch_size])
            if index + 1 == self.steps_per_epoch:
                seconds = time.perf_counter() - started
                self._finish_epoch(epoch + 1, (self.progress.step - since) / seconds)
                started, since = time.perf_counter(), self.progress.step
            elif self.progress.step % self.config.checkpoint_every == 0:
                self._save()
            if should_stop is not None and should_stop():
                self._save()
                raise Interrupted(f"stopped after step {self.progress.step} of {self.total_steps}; the state is saved")
        return self.run_folder

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed(epoch, stream=1))
        return torch.randperm(len(self.train_set), generator=generator).to(self.device)

    def _seed(self, index: int, stream: int) -> int:
        """A seed for one step or epoch; streams do not overlap below 2^31 steps."""
        return ((self.config.seed * 2 + stream) << 31) + index

    def _step(self, batch: Tensor) -> None:
        config, step = self.config, self.progress.step
        images = self._augment(self.train_set.float_images(batch), step)
        labels = self.train_set.labels[batch]
        rate = learning_rate(config, step, self.total_steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.objective.train()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            losses = self.objective(images, labels)
        losses.total.backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self._count(losses.total, losses.margin, losses.activation, labels, rate)
        self.optimiser.step()

    def _augment(self, images: Tensor, step: int) -> Tensor:
        config = self.config
        generator = torch.Generator().manual_seed(self._seed(step, stream=0))
        if config.shift:
            images = shift(images, config.shift, generator=generator)
        if config.flip:
            images = flip(images, generator=generator)
        if config.degrees or config.zoom:
            scale = (1 - config.zoom, 1 + config.zoom)
            images = affine(images, degrees=config.degrees, scale=scale, generator=generator)
        return images.contiguous(memory_format=torch.channels_last)

    def _count(self, loss: Tensor, margin: Tensor, activation: Tensor, labels: Tensor, rate: float) -> None:
        """Add a step to the sums of its epoch; stop at a non-finite loss, before the weights take it in."""
        value, count = loss.item(), len(labels)
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss became {value} at step {self.progress.step + 1}; the last good state is kept in "
                f"{self.run_folder.last}: lower the learning rate, or set clip"
            )
        correct = (activation.argmax(dim=1) == labels).sum().item()
        new = {"loss": value * count, "margin": margin.item() * count, "correct": correct, "count": count}
        self.progress.sums = {key: self.progress.sums.get(key, 0.0) + added for key, added in new.items()}
        self.progress.step += 1
        self._tell({"kind": "tick", "step": self.progress.step, "steps": self.total_steps, "loss": value})
        if self.progress.step % LOG_EVERY == 0:
            self._log({"kind": "step", "step": self.progress.step, "loss": value, "accuracy": correct / count, "lr": rate})

    def _finish_epoch(self, epoch: int, steps_per_second: float) -> None:
        sums, self.progress.sums = self.progress.sums, {}
        accuracy, loss, warnings = self._validate()
        better = (accuracy, -loss) > (self.progress.best_accuracy, -self.progress.best_loss)
        if better:
            self.progress.best_accuracy, self.progress.best_loss, self.progress.best_epoch = accuracy, loss, epoch
            save_tensors(self.run_folder.model, self.model.state_dict(), self.about)
        self._log({
            "kind": "epoch", "step": self.progress.step, "epoch": epoch, "epochs": self.config.epochs,
            "train_loss": sums["loss"] / sums["count"], "train_margin": sums["margin"] / sums["count"],
            "train_accuracy": sums["correct"] / sums["count"], "val_loss": loss, "val_accuracy": accuracy,
            "best": better, "images_per_second": round(steps_per_second * len(self.train_set) / self.steps_per_epoch, 1),
            "warnings": warnings,
        })  # fmt: skip
        self._save()

    @torch.inference_mode()
    def _validate(self) -> tuple[float, float, list[str]]:
        """Accuracy, mean margin loss and warnings on the held-out images."""
        self.model.eval()
        outcomes = []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            for batch in torch.arange(len(self.val_set), device=self.device).split(256):
                outcomes.append(self.model(self.val_set.float_images(batch)).float())
        activation, labels = torch.cat(outcomes), self.val_set.labels
        loss = margin_loss(activation, labels).item()
        accuracy = (activation.argmax(dim=1) == labels).double().mean().item()
        return accuracy, loss, diagnose(activation, labels, loss)

    def _log(self, row: dict[str, Any]) -> None:
        self.run_folder.append(row)
        self._tell(row)

    def _tell(self, row: dict[str, Any]) -> None:
        if self.listener is not None:
            self.listener(row)

    def _save(self) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in state.items()}
        save_tensors(self.run_folder.last, tensors, {"progress": asdict(self.progress), "config": self.config.to_dict()})

    def _restore(self) -> None:
        """Take up the newest checkpoint, if there is one."""
        if not self.run_folder.last.exists():
            self.run_folder.rewind(0)
            return
        tensors, about = load_tensors(self.run_folder.last)
        self.progress = Progress(**about["progress"])
        self.model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
        parameters = list(self.model.parameters())
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser."):
                _, index, key = name.split(".")
                # The fused optimiser walks memory: its state must lie as its parameter does (channels last).
                like = parameters[int(index)]
                laid = torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor
                state.setdefault(int(index), {})[key] = laid
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        self.run_folder.rewind(self.progress.step)


def _on_device(images: ImageSet, device: torch.device) -> ImageSet:
    """The whole set as tensors on the device.

    Raises:
        DataError: if it does not fit.
    """
    try:
        return ImageSet(images.images.to(device), images.labels.to(device), images.classes, images.name)
    except torch.OutOfMemoryError as error:
        raise DataError(f"{images.name}: its {images.images.nbytes / 2**20:.0f} MB do not fit on {device}") from error
