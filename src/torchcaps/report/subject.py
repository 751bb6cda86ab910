"""A finished run with all that a report says of it: read, and measured on its test images."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.data import ImageSet
from torchcaps.errors import RunError, check_range, read_text
from torchcaps.evaluation import Evaluation, MultiLabel, score, score_multilabel, top_labels
from torchcaps.evaluation.forward import class_activations, device_of, evaluating
from torchcaps.report.run import EVALUATION, open_run, training_seconds
from torchcaps.tasks.exhibits import evenly
from torchcaps.training import RunFolder, TrainConfig, load

BATCH = 256


@dataclass(frozen=True, eq=False)
class Subject:
    """One run.

    Attributes:
        path: its folder.
        config: its configuration.
        environment: versions and hardware; empty if that was not recorded.
        epochs: the metrics of its epochs, at least one.
        notes: what happened beside them, such as a second start, one sentence each.
        model: as trained.
        images: the test images that were looked at, on the CPU.
        total: how many test images there are.
        activations: `[n, classes]` of these images, in [0, 1].
        measured: the figures of these images.
        figures: those of evaluation.json, else of all test images.
        recorded: whether the figures are those of evaluation.json.
    """

    path: Path
    config: TrainConfig
    environment: dict[str, Any]
    epochs: list[dict[str, Any]]
    notes: list[str]
    model: nn.Module
    images: ImageSet
    total: int
    activations: Float[Tensor, "n classes"]
    measured: Evaluation | MultiLabel
    figures: dict[str, Any]
    recorded: bool

    @property
    def name(self) -> str:
        """That of the folder."""
        return self.path.resolve().name

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return self.images.classes

    @property
    def several(self) -> bool:
        """Whether an image shows several classes."""
        return self.images.labels.dim() == 2

    @property
    def labels(self) -> Int64[Tensor, "n k"]:
        """The classes of each image, as a table also where there is one."""
        return self.images.labels.cpu().view(len(self.images), -1)

    @property
    def right(self) -> Bool[Tensor, " n"]:
        """Whether the k longest capsules are those of an image's k classes."""
        taken = top_labels(self.activations, self.labels.shape[1]).sort(dim=1).values
        return (taken == self.labels.sort(dim=1).values).all(dim=1)

    @property
    def accuracy(self) -> float:
        """Share of images that are right in all of their classes."""
        return float(self.figures["exact" if self.several else "accuracy"])

    @property
    def parameters(self) -> int:
        """Numbers that training can change."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def has_capsules(self) -> bool:
        """Not so for the convolutional baselines."""
        return bool(getattr(self.model, "has_capsules", True))

    @cached_property
    def has_lengths(self) -> bool:
        """Whether the activation of a class capsule is the length of its pose, as it is not for matrix capsules."""
        if not self.has_capsules:
            return False
        with evaluating(self.model):
            found = self.model.capsules(self.images.float_images([0]).to(device_of(self.model)))  # type: ignore[operator]
        return bool(torch.allclose(found.pose.norm(dim=-1), found.activation, atol=1e-3))

    @property
    def has_decoder(self) -> bool:
        """Whether anything can be drawn from its capsules."""
        return getattr(self.model, "decoder", None) is not None

    @property
    def best_epoch(self) -> int:
        """Whose model was kept, counted from 1."""
        return int([row for row in self.epochs if row.get("best")][-1]["epoch"])

    @property
    def seconds(self) -> float | None:
        """Time in training steps, from the images per second of each epoch; None where that was not recorded."""
        return training_seconds(self.epochs, self.config.run.batch_size)


def open_subject(
    path: str | Path,
    *,
    root: str | None = None,
    device: str = "auto",
    most_images: int = 10_000,
    progress: Callable[[int, int], None] | None = None,
) -> Subject:
    """Read a finished run and run its model over its test images.

    Args:
        path: the run folder.
        root: where a named data set is looked for first; by default as for the run.
        device: where to compute; see `TrainConfig`.
        most_images: of more test images, so many evenly spread ones are looked at. Without an evaluation.json all are.
        progress: called with (images done, images in all).

    Raises:
        RunError: for no run, one that is not finished, or one whose files are damaged.
        DataError: if the test images cannot be had.
        ValueError: for less than one image.
    """
    check_range("images", most_images, low=1)
    run = RunFolder.open(path)
    load(run.path)  # says of other kinds of runs what they are
    config, rows = run.config(), run.rows()
    epochs = [row for row in rows if row["kind"] == "epoch"]
    notes = [str(row.get("text")) for row in rows if row["kind"] == "note"]
    _check_finished(run, config, epochs)
    task, images = open_run(run.path, root=root, device=device)
    model = task.model
    file, total = run.path / EVALUATION, len(images)
    if file.exists() and total > most_images:
        images = images.subset(evenly(torch.arange(total), most_images))
    activations = class_activations(model, images, BATCH, device=device_of(model), precision="fp32", progress=progress)
    measured = _measured(activations, images)
    return Subject(
        path=run.path, config=config, environment=run.environment(), epochs=epochs, notes=notes, model=model,
        images=images, total=total, activations=activations, measured=measured, recorded=file.exists(),
        figures=_recorded(file, measured) if file.exists() else measured.to_dict(),
    )  # fmt: skip


def _check_finished(run: RunFolder, config: TrainConfig, epochs: list[dict[str, Any]]) -> None:
    done = int(epochs[-1]["epoch"]) if epochs else 0
    reached = config.run.stop_at is not None and any(row["val_accuracy"] >= config.run.stop_at for row in epochs)
    if not epochs or (done < config.run.epochs and not reached):
        raise RunError(
            f"{run.path}: this run is not finished, it has done {done} of {config.run.epochs} epochs; "
            f"continue it with: torchcaps train {config.model.name} --output {run.path} --resume"
        )


def _measured(activations: Tensor, images: ImageSet) -> Evaluation | MultiLabel:
    labels = images.labels.cpu()
    if labels.dim() == 1:
        return score(activations, labels, images.classes)
    return score_multilabel(activations, labels, groups=images.draws)


def _recorded(file: Path, measured: Evaluation | MultiLabel) -> dict[str, Any]:
    """What evaluation.json says, if it speaks of this model."""
    again = f"write it anew with: torchcaps evaluate {file.parent}"
    try:
        found = json.loads(read_text(file))
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: is no readable evaluation ({error}); {again}") from error
    expected = measured.to_dict()
    if not isinstance(found, dict) or not expected.keys() <= found.keys():
        raise RunError(f"{file}: does not hold the figures of an evaluation; {again}")
    if found.get("classes") != expected.get("classes"):
        raise RunError(f"{file}: its classes are not those of the model; {again}")
    return found
