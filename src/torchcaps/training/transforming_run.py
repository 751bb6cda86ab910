"""A training run of a transforming auto-encoder: from the name of a data set to a folder that can be resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from torchcaps.data import load_dataset
from torchcaps.errors import RunError, UnknownNameError, check_range, read_text
from torchcaps.models import TransformingAutoencoder
from torchcaps.models.transforming_autoencoder import Pose
from torchcaps.nn import drawn_from
from torchcaps.training.checkpoint import restored, save_tensors
from torchcaps.training.description import read_header
from torchcaps.training.loop import Interrupted, Listener
from torchcaps.training.optim import resolve_device
from torchcaps.training.run_folder import CONFIG, RunFolder
from torchcaps.training.state import Progress, check_finite, digest, load_state, save_state
from torchcaps.training.transforming import TransformingSteps

VIEWS = ("shift", "degrees", "zoom", "shear")
MODEL = ("capsules", "recognition", "generation", "pose", "constrained", "bounded")
SUMS = ("loss", "count")  # of an epoch, over its images
KIND = "transforming_autoencoder"


@dataclass(frozen=True)
class TransformingConfig:
    """A training run of a transforming auto-encoder; sizes and ranges are as in the 2011 experiment where not told.

    Attributes:
        data: name of a data set, or a path; its labels are not looked at.
        root: folder in which a named set is looked for first.
        capsules: see `TransformingAutoencoder`, which also says what the next five are.
        recognition: 60 where the paper has 10: ten units are few to measure a position with.
        generation: sigmoid units that draw.
        pose: "translation" or "affine".
        constrained: of affine poses the last row is (0, 0, 1).
        bounded: a sigmoid of the drawing.
        epochs: passes over the training images, at least 1.
        batch_size: images per step, at least 1.
        lr: learning rate of Adam at the start, above 0; it falls to zero along a cosine.
        shift: see `transformed_pairs`, which also says what the next three are.
        degrees: for affine poses.
        zoom: for affine poses.
        shear: for affine poses.
        seed: of weights, order and pairs, at least 0.
        device: "auto", "cpu", "cuda", ...
        checkpoint_every: steps between checkpoints; there is also one after each epoch.
    """

    data: str = "digits"
    root: str | None = None
    capsules: int = 30
    recognition: int = 60
    generation: int = 20
    pose: Pose = "translation"
    constrained: bool = False
    bounded: bool = False
    epochs: int = 20
    batch_size: int = 64
    lr: float = 2e-3
    shift: int = 2
    degrees: float = 20.0
    zoom: float = 0.15
    shear: float = 0.1
    seed: int = 0
    device: str = "auto"
    checkpoint_every: int = 200

    def __post_init__(self) -> None:
        """Raise ValueError for a value out of range that nothing else would refuse."""
        check_range("seed", self.seed, low=0)
        check_range("checkpoint_every", self.checkpoint_every, low=1)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; "kind" tells it from the configuration of a classifier."""
        return {"kind": KIND} | asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TransformingConfig:
        """The inverse of `to_dict`.

        Raises:
            ValueError: for another kind of run, a key that is not a field, or a value out of range.
        """
        if not isinstance(values, dict) or values.get("kind") != KIND:
            raise ValueError("it does not belong to a transforming auto-encoder")
        known = {f.name for f in fields(cls)}
        given = {key: value for key, value in values.items() if key != "kind"}
        for key in given:
            if key not in known:
                raise UnknownNameError("setting", key, known)
        return cls(**given)

    def part(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Those of the values."""
        return {name: getattr(self, name) for name in names}


def run_transforming(
    config: TransformingConfig,
    output: str | Path,
    *,
    resume: bool = False,
    listener: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunFolder:
    """Train a transforming auto-encoder and leave a run folder; `report.finish_transforming` then measures it.

    Args:
        config: what to run; with `resume`, the folder's own configuration, and of this one only a device other than
            "auto" and a root.
        output: the run folder; must not hold a run, unless `resume`.
        resume: continue the run in `output`, bit for bit on the same machine with the same number of threads.
        listener: is called with each row of the metrics, and after each step with {"kind": "tick", "step", "steps",
            "loss"}; with {"kind": "note", "step", "text"} when it goes on from an older checkpoint than the newest.
        should_stop: asked after each step; True saves the state and raises Interrupted.

    Raises:
        DataError, RunError, ValueError: for data, folders or settings that cannot be used; no folder is made then.
        TrainingError: when the loss becomes non-finite or a file cannot be written; the last good checkpoint stays.
        Interrupted: when `should_stop` says so.
    """
    if resume:
        run = RunFolder.open(output)
        with run.continued():
            before = transforming_config(run)
            device = before.device if config.device == "auto" else config.device
            now = replace(before, device=device, root=config.root or before.root)
            return _Training(now, run, listener).run(should_stop)
    run = RunFolder.fresh(output)
    training = _Training(config, run, listener)  # reads the data and builds the model, before a folder is made
    with run.begun(config):
        return training.run(should_stop)


def transforming_config(run: RunFolder) -> TransformingConfig:
    """The configuration of a run of this kind.

    Raises:
        RunError: if it is absent, damaged, or of another kind of run.
    """
    file = run.path / CONFIG
    try:
        return TransformingConfig.from_dict(json.loads(read_text(file)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RunError(f"{file}: is no readable configuration of this kind ({error})") from error


def load_transforming(run: str | Path, *, device: str | torch.device = "cpu") -> TransformingAutoencoder:
    """The trained model of a run folder, in evaluation mode.

    Raises:
        RunError: for a folder or file that is absent, damaged, or holds another kind of model.
    """
    path = Path(run)
    file = path / RunFolder(path).model.name if path.is_dir() else path
    shapes, about = read_header(file)
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise RunError(f"{path}: its weights cannot be used (it is no transforming auto-encoder)")

    def build() -> TransformingAutoencoder:
        return TransformingAutoencoder(about["in_chans"], tuple(about["img_size"]), **about["options"])

    model = restored(file, shapes, build).to(device).eval()
    assert isinstance(model, TransformingAutoencoder)
    return model


class _Training:
    """State of one run; `run_transforming` is the way in."""

    def __init__(self, config: TransformingConfig, run: RunFolder, listener: Listener | None) -> None:
        self.config, self.folder, self.listener = config, run, listener
        device = resolve_device(config.device)
        images = load_dataset(config.data, "train", config.root).float_images().to(device)
        channels, height, width = images.shape[1:]
        self.about = {
            "kind": KIND, "in_chans": channels, "img_size": [height, width], "options": config.part(MODEL)
        }  # fmt: skip
        with drawn_from(torch.Generator().manual_seed(config.seed)):
            model = TransformingAutoencoder(channels, (height, width), **config.part(MODEL))
        self.model = model.to(device)
        self.steps = TransformingSteps(
            self.model, images, epochs=config.epochs, batch_size=config.batch_size, lr=config.lr,
            views=config.part(VIEWS), seed=config.seed,
        )  # fmt: skip
        self.progress = Progress()

    def run(self, should_stop: Callable[[], bool] | None) -> RunFolder:
        """Train from where the folder's newest checkpoint stands to the end."""
        self.progress, text = load_state(
            self.folder.last, self.model, self.steps.optimiser, self._unchanging, steps=self.steps.total, sums=SUMS
        )
        self.folder.rewind(self.progress.step)
        if text:
            self._tell({"kind": "note", "step": self.progress.step, "text": text})
        for epoch in range(self.progress.step // self.steps.per_epoch, self.config.epochs):
            self._epoch(epoch, should_stop)
        return self.folder

    def _epoch(self, epoch: int, should_stop: Callable[[], bool] | None) -> None:
        """What is left of an epoch, counted from 0."""
        started, since = time.perf_counter(), self.progress.step
        for step in range(since, self.steps.of_epoch(epoch).stop):
            self._step(step)
            if self.progress.step % self.steps.per_epoch == 0:
                self._finish_epoch(epoch + 1, (self.progress.step - since) / (time.perf_counter() - started))
            elif self.progress.step % self.config.checkpoint_every == 0:
                self._save()
            if should_stop is not None and should_stop():
                self._save()
                raise Interrupted(f"stopped after step {self.progress.step} of {self.steps.total}; the state is saved")

    def _step(self, step: int) -> None:
        loss, count = self.steps.run(step)
        new = zip(SUMS, (loss * count, count), strict=True)
        self.progress.sums = {key: self.progress.sums.get(key, 0) + added for key, added in new}
        self.progress.step = step + 1
        self._tell({"kind": "tick", "step": self.progress.step, "steps": self.steps.total, "loss": loss})

    def _finish_epoch(self, epoch: int, steps_per_second: float) -> None:
        sums, self.progress.sums = self.progress.sums, {}
        check_finite(self.model, self.folder.last)
        save_tensors(self.folder.model, self.model.state_dict(), self.about)
        row = {
            "kind": "epoch", "step": self.progress.step, "epoch": epoch, "epochs": self.config.epochs,
            "train_loss": sums["loss"] / sums["count"], "images": sums["count"],
            "images_per_second": round(steps_per_second * sums["count"] / self.steps.per_epoch, 1),
        }  # fmt: skip
        self.folder.append(row)
        self._tell(row)
        self._save()

    def _tell(self, row: dict[str, Any]) -> None:
        if self.listener is not None:
            self.listener(row)

    def _save(self) -> None:
        save_state(self.folder.last, self.model, self.steps.optimiser, self.progress, self._unchanging)

    @cached_property
    def _unchanging(self) -> dict[str, Any]:
        """What must not change between a stop and the continuation."""
        images = self.steps.images
        return self.folder.unchanging(self.config) | {"images": len(images), "digest": digest(images)}
