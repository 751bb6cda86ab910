"""A finished run with all that a report says of it: read, and measured on its test images."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchcaps.data import ImageSet
from torchcaps.errors import RunError, check_range
from torchcaps.evaluation import Calibration, Evaluation, Reliability
from torchcaps.models.cnn import parameter_count
from torchcaps.reporting.epochs import epochs_of, is_finished, training_seconds
from torchcaps.reporting.run import EVALUATION, open_run, read_figures
from torchcaps.tasks import EvaluationResult, Task
from torchcaps.tasks.classify import is_correct
from torchcaps.tasks.report_items import evenly
from torchcaps.training import Run, TrainConfig


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """One run."""

    path: Path  # its folder
    config: TrainConfig
    environment: dict[str, Any]  # versions and hardware; empty if that was not recorded
    epochs: list[dict[str, Any]]  # their metrics; at least one
    notes: list[str]  # what happened beside them, such as a second start, one sentence each
    task: Task  # around the trained model
    images: ImageSet  # the test images that were looked at
    total: int  # how many test images there are
    measured: EvaluationResult  # the figures of the images that were looked at
    figures: dict[
        str, Any
    ]  # by name, of all test images: those of evaluation.json where there is one
    recorded: bool  # whether the figures are those of evaluation.json
    diagnosed: int = 64  # images that routing is measured on; 0 is none

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return self.images.classes

    @property
    def tells_classes(self) -> bool:
        """Whether its task is to tell which classes an image shows."""
        return "classes" in self.task.capabilities

    @property
    def several(self) -> bool:
        """Whether an image shows several classes."""
        return self.images.labels.dim() == 2

    @property
    def labels(self) -> Int64[Tensor, "n k"]:
        """The classes of each image, as a table also where there is one."""
        return self.images.labels.cpu().view(len(self.images), -1)

    @cached_property
    def activations(self) -> Float[Tensor, "n classes"]:
        """What the model says of the classes of each image, in [0, 1]."""
        known = self.measured.activations if isinstance(self.measured, Evaluation) else None
        return self.task.eval_outputs(self.images)["activation"] if known is None else known

    @property
    def right(self) -> Bool[Tensor, " n"]:
        """Whether the k most active classes are those that the image shows."""
        return is_correct(self.activations, self.images.labels.cpu())

    @property
    def found(self) -> EvaluationResult:
        """The figures of all test images, with the activations of those that were looked at."""
        if not (self.recorded and isinstance(self.measured, Evaluation)):
            return self.measured
        known = {
            name: self.figures[name]
            for name in ("accuracy", "error", "loss", "num_samples", "per_class")
        }
        tables = {name: Reliability(**table) for name, table in self.figures["calibration"].items()}
        return replace(
            self.measured,
            confusion=torch.tensor(self.figures["confusion_matrix"]),
            calibration=Calibration(**tables),
            **known,
        )

    @property
    def accuracy(self) -> float | None:
        """Share of images that are right in all of their classes; None where nothing is told apart."""
        return (
            float(self.figures["exact" if self.several else "accuracy"])
            if self.tells_classes
            else None
        )

    @property
    def parameters(self) -> int:
        """Numbers that training can change."""
        return parameter_count(self.task.model)

    @property
    def seconds(self) -> float | None:
        """Time in training steps, from the images per second of each epoch; None where that was not recorded."""
        return training_seconds(self.epochs)


def open_finished(
    path: str | Path,
    *,
    root: str | None = None,
    device: str = "auto",
    most_images: int = 10_000,
    diagnosed: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> FinishedRun:
    """Read a finished run and run its model over its test images; arguments and errors are those of `write_report`. Of
    more test images than `most_images` some are looked at only where evaluation.json has the figures of all, and never
    by a task that tells no classes apart."""
    check_range("images", most_images, low=1)
    run = Run.open(path)
    task, images = open_run(run.path, root=root, device=device)
    config, epochs = run.config, epochs_of(run)
    if not is_finished(config, epochs):
        raise RunError(
            f"{run.path}: this run is not finished, it has done {len(epochs)} of {config.training.epochs} epochs; "
            f"continue it with: torchcaps train {config.model.name} --output {run.path} --resume"
        )
    total, recorded = (
        len(images),
        read_figures(run.path) if "classes" in task.capabilities else None,
    )
    if recorded is not None and total > most_images:
        images = images.subset(evenly(torch.arange(total), most_images))
    measured = task.evaluate(images, progress=progress)
    figures = measured.to_dict()
    if recorded is not None:
        file, again = run.path / EVALUATION, f"write it anew with: torchcaps evaluate {run.path}"
        if not figures.keys() <= recorded.keys():
            raise RunError(f"{file}: does not hold the figures of an evaluation; {again}")
        if recorded.get("classes") != figures.get("classes"):
            raise RunError(f"{file}: its classes are not those of the model; {again}")
    return FinishedRun(
        path=run.path,
        config=config,
        environment=run.environment,
        epochs=epochs,
        task=task,
        images=images,
        notes=[str(row.get("text")) for row in run.rows if row["kind"] == "note"],
        total=total,
        measured=measured,
        recorded=recorded is not None,
        figures=recorded or figures,
        diagnosed=diagnosed,
    )
