"""A finished run with its model, its test images and what was measured on them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from torchcaps.data import Dataset, load_dataset, multi_hot
from torchcaps.errors import RunError, check_range
from torchcaps.evaluation import Evaluation
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.reporting.api import open_task
from torchcaps.tasks import Task, eval_outputs, evaluate_task, evenly
from torchcaps.tasks.classify import is_correct
from torchcaps.training import Run, TrainConfig
from torchcaps.training.run import EVALUATION_FILE
from torchcaps.training.sampling import cropped, load_images, load_official_val, split

MAX_IMAGES = 10_000
NUM_DIAGNOSED = 64


@dataclass(frozen=True, eq=False)
class EvaluatedRun:
    """A finished run, its best model by validation within its task, and its test images.

    Attributes:
        run: the run folder.
        config: of the run.
        task: around the model.
        images: the test images that the model was run over.
        evaluation: of these images.
        epochs: metrics of each epoch.
        num_images: number of all test images.
        recorded: figures of all test images in evaluation.json, where there is one.
        num_diagnosed: number of images that routing is measured on; 0 for none.
    """

    run: Run
    config: TrainConfig
    task: Task
    images: Dataset
    evaluation: EvaluationResult
    epochs: list[dict[str, Any]]
    num_images: int
    recorded: dict[str, Any] | None = None
    num_diagnosed: int = NUM_DIAGNOSED

    @property
    def model(self) -> nn.Module:
        """The best model by validation."""
        return self.task.model

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of all test images, by name: those of evaluation.json where there is one."""
        return self.recorded or self.evaluation.to_dict()

    @property
    def has_classes(self) -> bool:
        """Whether the task is to recognize the classes that an image shows."""
        return "classes" in self.task.capabilities

    @property
    def is_multilabel(self) -> bool:
        """Whether an image shows several classes."""
        return self.images.labels.dim() == 2

    @property
    def has_one_class(self) -> bool:
        """Whether the task is to recognize the one class that an image shows; most measures need it."""
        return self.has_classes and not self.is_multilabel

    @property
    def labels(self) -> Shaped[Tensor, "n classes"]:
        """1 for each class that an image shows, and 0 for the others."""
        return multi_hot(self.images.labels.cpu(), self.activations.shape[1])

    @cached_property
    def activations(self) -> Float[Tensor, "n classes"]:
        """Activation of each class for each image, in [0, 1]."""
        if isinstance(self.evaluation, Evaluation):
            return self.evaluation.activations
        return eval_outputs(self.task, self.images)["activation"]

    @property
    def is_correct(self) -> Bool[Tensor, " n"]:
        """Whether the k most active classes are those that the image shows."""
        return is_correct(self.activations, self.images.labels.cpu())

    @property
    def accuracy(self) -> float | None:
        """Share of images whose classes are all right; None for a task without classes."""
        if not self.has_classes:
            return None
        name = "exact" if self.is_multilabel else "accuracy"
        return float(self.figures[name])

    def subset(self, count: int) -> Dataset:
        """Random test images, the same ones in each call.

        Args:
            count: number of images; all where there are fewer.

        Returns:
            A set of these images.
        """
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(0))
        return self.images.subset(order[:count])

    def load_images(self, data: str) -> Dataset:
        """Test images of another named set, as the model takes them.

        Args:
            data: name of the set.

        Returns:
            Its test images.
        """
        settings = self.config.data
        images = load_dataset(
            data,
            "test",
            settings.root,
            img_size=settings.img_size,
            in_chans=self.images.in_chans,
        )
        return cropped(images, settings.crop)

    def held_out_images(self) -> Dataset:
        """The training images that the model was chosen with."""
        official_val = load_official_val(self.config)
        images = load_images(self.config, "train")
        return split(images, self.config, official_val)[1]


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
        path: the run, or its folder.
        root: where a named data set is looked for first.
        device: "auto", "cpu", "cuda", ...
        max_images: number of evenly spread test images that the model is run over, where
            evaluation.json has the figures of all of them; None for all. A task without classes
            takes all in any case.
        num_diagnosed: number of test images by which routing is measured; 0 for none.
        progress: called with the images that are done and the images in all.

    Returns:
        The run with its model, test images and figures.

    Raises:
        RunError: for no run, one that is not finished or damaged, or an evaluation.json that is not
            of its model.
        DataError: if the test images cannot be read.
    """
    if max_images is not None:
        check_range("images", max_images, low=1)
    run = path if isinstance(path, Run) else Run.open(path)
    task, images = open_task(run, root=root, device=device)
    config = run.config
    epochs = run.epochs
    if not run.is_finished:
        raise RunError(
            f"{run.path}: this run is not finished, it has done {len(epochs)} of "
            f"{config.training.epochs} epochs; continue it with: "
            f"torchcaps train {config.model.name} --output {run.path} --resume"
        )

    num_images = len(images)
    recorded = run.figures if "classes" in task.capabilities else None
    if recorded is not None and max_images is not None and num_images > max_images:
        images = images.subset(evenly(torch.arange(num_images), max_images))
    evaluation = evaluate_task(task, images, progress=progress)
    if recorded is not None:
        _check_recorded(run, recorded, evaluation.to_dict())
    return EvaluatedRun(
        run,
        config,
        task,
        images,
        evaluation,
        epochs,
        num_images,
        recorded,
        num_diagnosed,
    )


def _check_recorded(run: Run, recorded: dict[str, Any], figures: dict[str, Any]) -> None:
    """Raise RunError unless evaluation.json holds the same figures, of the same classes."""
    if not figures.keys() <= recorded.keys():
        problem = "does not hold the figures of an evaluation"
    elif recorded.get("classes") != figures.get("classes"):
        problem = "its classes are not those of the model"
    else:
        return
    raise RunError(
        f"{run.path / EVALUATION_FILE}: {problem}; "
        f"write it anew with: torchcaps evaluate {run.path}"
    )
