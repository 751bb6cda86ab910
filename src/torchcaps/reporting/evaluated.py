"""A finished run with its model, its test images and what was measured on them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.data import ImageSet, load_dataset
from torchcaps.errors import RunError, check_range
from torchcaps.evaluation import Calibration, Evaluation, Reliability
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.models.notebook import parameter_count
from torchcaps.reporting.subject import open_task
from torchcaps.tasks import Task
from torchcaps.tasks.classify import is_correct
from torchcaps.tasks.report_items import evenly
from torchcaps.training import Run, TrainConfig
from torchcaps.training.run import EVALUATION_FILE
from torchcaps.training.sampling import cropped, split

MAX_IMAGES = 10_000
NUM_DIAGNOSED = 64


@dataclass(frozen=True, eq=False)
class EvaluatedRun:
    """A finished run, its best model by validation within its task, and its test images."""

    run: Run
    config: TrainConfig  # of the run
    task: Task
    images: ImageSet  # the test images that were looked at
    evaluation: EvaluationResult  # of these images
    num_images: int  # how many test images there are
    recorded: dict[str, Any] | None = None  # figures of all test images by evaluation.json
    num_diagnosed: int = NUM_DIAGNOSED  # images that routing is measured on; 0 is none

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The metrics of its epochs."""
        return self.run.epochs

    @property
    def model(self) -> nn.Module:
        """The best by validation."""
        return self.task.model

    @property
    def figures(self) -> dict[str, Any]:
        """By name, of all test images: those of evaluation.json where there is one."""
        return self.recorded or self.evaluation.to_dict()

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return self.images.classes

    @property
    def has_classes(self) -> bool:
        """Whether its task is to tell which classes an image shows."""
        return "classes" in self.task.capabilities

    @property
    def is_multilabel(self) -> bool:
        """Whether an image shows several classes."""
        return self.images.labels.dim() == 2

    @property
    def has_one_class(self) -> bool:
        """Whether it tells which one class an image shows, as most measures need."""
        return self.has_classes and not self.is_multilabel

    @property
    def has_routing(self) -> bool:
        """Whether there are couplings to look at besides."""
        return self.has_one_class and self.task.spec.pose

    @property
    def labels(self) -> Int64[Tensor, "n k"]:
        """The classes of each image, as a table also where there is one."""
        return self.images.labels.cpu().view(len(self.images), -1)

    @cached_property
    def activations(self) -> Float[Tensor, "n classes"]:
        """What the model says of the classes of each image, in [0, 1]."""
        if isinstance(self.evaluation, Evaluation):
            return self.evaluation.activations
        return self.task.eval_outputs(self.images)["activation"]

    @property
    def is_correct(self) -> Bool[Tensor, " n"]:
        """Whether the k most active classes are those that the image shows."""
        return is_correct(self.activations, self.images.labels.cpu())

    @property
    def whole_evaluation(self) -> EvaluationResult:
        """The figures of all test images, with the activations of those that were looked at."""
        if self.recorded is None or not isinstance(self.evaluation, Evaluation):
            return self.evaluation
        names = ("accuracy", "error", "loss", "num_samples", "per_class")
        figures = {name: self.recorded[name] for name in names}
        tables = {
            name: Reliability(**table) for name, table in self.recorded["calibration"].items()
        }
        return replace(
            self.evaluation,
            confusion=torch.tensor(self.recorded["confusion_matrix"]),
            calibration=Calibration(**tables),
            **figures,
        )

    @property
    def accuracy(self) -> float | None:
        """Share of images that are right in all of their classes; None where nothing is told apart."""
        if not self.has_classes:
            return None
        return float(self.figures["exact" if self.is_multilabel else "accuracy"])

    @property
    def parameters(self) -> int:
        """Numbers that training can change."""
        return parameter_count(self.task.model)

    def subset(self, count: int) -> ImageSet:
        """Random test images, always the same ones."""
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(0))
        return self.images.subset(order[:count])

    def load_images(self, data: str) -> ImageSet:
        """Test images of another named set, as the model takes them."""
        settings = self.config.data
        channels = self.images.in_chans
        images = load_dataset(
            data, "test", settings.root, img_size=settings.img_size, in_chans=channels
        )
        return cropped(images, settings.crop)

    def held_out_images(self) -> ImageSet:
        """The training images that the model was chosen with."""
        settings = self.config.data
        images = load_dataset(
            settings.name,
            "train",
            settings.root,
            img_size=settings.img_size,
            max_bytes=settings.max_bytes,
        )
        return split(images, self.config, torch.device("cpu"))[1]

    def error(self, images: ImageSet) -> float:
        """Share of these images that are wrong."""
        return float(self.task.evaluate(images).to_dict()["error"])


def evaluate_run(
    path: Run | str | Path,
    *,
    root: str | None = None,
    device: str = "auto",
    max_images: int | None = None,
    num_diagnosed: int = NUM_DIAGNOSED,
    progress: Callable[[int, int], None] | None = None,
) -> EvaluatedRun:
    """Read a finished run and run its model over its test images.

    Args:
        max_images: where evaluation.json has the figures of all test images, so many evenly spread
            ones are looked at; None is all. A task that tells no classes apart looks at all.
        root, device, num_diagnosed, progress: see `report`.

    Raises:
        RunError: for no run, one that is not finished or damaged, or an evaluation.json that is not
            of its model.
        DataError: if the test images cannot be had.
    """
    if max_images is not None:
        check_range("images", max_images, low=1)
    run = path if isinstance(path, Run) else Run.open(path)
    task, images = open_task(run, root=root, device=device)
    config = run.config
    if not run.is_finished:
        epochs = f"{len(run.epochs)} of {config.training.epochs}"
        raise RunError(
            f"{run.path}: this run is not finished, it has done {epochs} epochs; continue it with: "
            f"torchcaps train {config.model.name} --output {run.path} --resume"
        )
    num_images = len(images)
    recorded = run.figures if "classes" in task.capabilities else None
    if recorded is not None and max_images is not None and num_images > max_images:
        images = images.subset(evenly(torch.arange(num_images), max_images))
    evaluation = task.evaluate(images, progress=progress)
    if recorded is not None:
        _check_recorded(run, recorded, evaluation.to_dict())
    return EvaluatedRun(run, config, task, images, evaluation, num_images, recorded, num_diagnosed)


def _check_recorded(run: Run, recorded: dict[str, Any], figures: dict[str, Any]) -> None:
    file = run.path / EVALUATION_FILE
    advice = f"write it anew with: torchcaps evaluate {run.path}"
    if not figures.keys() <= recorded.keys():
        raise RunError(f"{file}: does not hold the figures of an evaluation; {advice}")
    if recorded.get("classes") != figures.get("classes"):
        raise RunError(f"{file}: its classes are not those of the model; {advice}")
