"""A finished run with its model, its test images and what was measured on them.

And which of two methods is better, by their right and wrong answers on the same images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from torchcaps.data import Dataset, load_dataset, multi_hot
from torchcaps.data.files import identities
from torchcaps.errors import ArgumentError, RunError, check_range
from torchcaps.evaluation import Diagnosis, Evaluation, compare_answers, compare_runs, diagnose
from torchcaps.evaluation.base import EvaluationResult, Progress, proportion
from torchcaps.evaluation.comparison.compare import BaseComparison
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.reporting.api import open_task
from torchcaps.tasks import Task, eval_outputs, evaluate_task, evenly
from torchcaps.tasks.classify import is_correct
from torchcaps.training import Run, TrainConfig
from torchcaps.training.run import EVALUATION_FILE
from torchcaps.training.sampling import cropped, read_images
from torchcaps.types import Json, StrPath

MAX_IMAGES = 10_000
NUM_DIAGNOSED = 64
Method = Any
"""Evaluations or runs (or their folders), one or several; or booleans `[n]` or `[runs, n]`."""


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
    epochs: list[Json]
    num_images: int
    recorded: Json | None = None
    num_diagnosed: int = NUM_DIAGNOSED

    @property
    def model(self) -> nn.Module:
        """The best model by validation."""
        return self.task.model

    @property
    def figures(self) -> Json:
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
        return read_images(self.config)[2]


@lru_cache(maxsize=1)
def diagnosis_of(run: EvaluatedRun) -> Diagnosis | str | None:
    """What routing does, with and without it on all images; or why that is not known.

    None where it is not asked for, or the model has no class capsules with poses.
    """
    if not (run.num_diagnosed and run.has_classes and run.task.spec.pose):
        return None
    if run.is_multilabel:
        return "its measures need one class an image"
    try:
        diagnosis = diagnose(run.model, run.images, count=run.num_diagnosed)
    except ValueError as error:
        return str(error)
    if diagnosis.ablation is None:
        return diagnosis
    with swapped_routers(run.model, methodcaller("uniform")):
        uniform = eval_outputs(run.task, run.images)["activation"]
    ablation = replace(
        diagnosis.ablation,
        comparison=compare_answers(run.is_correct, is_correct(uniform, run.images.labels.cpu())),
        changed=proportion(uniform.argmax(dim=1) != run.activations.argmax(dim=1)),
    )
    return replace(diagnosis, ablation=ablation)


def evaluate_run(
    path: Run | StrPath,
    *,
    root: str | None = None,
    device: str = "auto",
    max_images: int | None = None,
    num_diagnosed: int = NUM_DIAGNOSED,
    progress: Progress | None = None,
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
        figures = evaluation.to_dict()
        problem = ""
        if not figures.keys() <= recorded.keys():
            problem = "does not hold the figures of an evaluation"
        elif recorded.get("classes") != figures.get("classes"):
            problem = "its classes are not those of the model"
        if problem:
            raise RunError(
                f"{run.path / EVALUATION_FILE}: {problem}; "
                f"write it anew with: torchcaps evaluate {run.path}"
            )
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


def compare(
    first: Method,
    second: Method,
    groups: Any = None,
    adjust: Sequence[float] | None = None,
    margin: str | float = "10%",
    *,
    paired: bool = False,
    root: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> BaseComparison:
    """Compare a method with a baseline, on the same images in the same order.

    One model of each method is a comparison of two models, over images alone (McNemar's test).
    Two or more of each, with different seeds, is a comparison of two methods, over seeds and
    images.

    Args:
        first: the method in question: one evaluation of a classifier, or several; one finished run
            or its folder, or several, whose models are run over all of their test images; or
            booleans that say whether a model is right on each image, `[n]` or `[runs, n]`.
        second: the baseline, in the same forms.
        groups: a label for each image, integer or text, equal for images that depend on each other,
            as those of one toy, patient, digit or video. Then these are counted, not images. None
            takes the groups of the test images of run folders, and of evaluations that know them.
        adjust: p-values of the other comparisons that are read together with this one; the
            p-value and the outcome are those after Holm's correction.
        margin: smallest difference that matters, in accuracy, in (0, 1); or, as text such as "10%",
            a share of the errors of the baseline, of which there is at least one. Choose it before
            you look at the answers.
        paired: whether runs with the same seed (without seeds: in the same place) belong together,
            because split and order come from the seed. Only differences within pairs count then.
        root: for run folders: where a named data set is looked for first.
        device: for run folders: "auto", "cpu", "cuda", ...
        progress: for run folders: called with the images that are done and the images in all.

    Returns:
        `.outcome` ("first", "second", "equivalent" or "undecided"), `.difference` in accuracy with
        its `.interval`, `.p_value`, and `.verdict` in words.

    Raises:
        RunError: for a folder without a finished, intact run; runs of different tasks, or of a task
            without right answers; runs that were not tested on the same images; two runs of one
            method with the same seed; or, if paired, other seeds for the second method.
        DataError: if the test images cannot be read.
        ArgumentError: for a method of another type, evaluations of other images, one run against
            several, or a margin out of range.

    Example:
        >>> routed = ["runs/routed-0", "runs/routed-1"]
        >>> tc.compare(routed, ["runs/uniform-0", "runs/uniform-1"]).outcome
        "undecided"
    """
    evaluated: list[Evaluation | EvaluatedRun] = []
    options: Json = {"root": root, "device": device, "progress": progress}
    first_answers = _read_answers("first", first, evaluated, options)
    second_answers = _read_answers("second", second, evaluated, options)
    if paired and first_answers.keys() != second_answers.keys():
        raise RunError(
            "paired: expected runs of the same seeds of both methods, got "
            f"{sorted(first_answers)} and {sorted(second_answers)}"
        )
    first_rows, second_rows = (
        torch.stack([answers[seed] for seed in sorted(answers)])
        for answers in (first_answers, second_answers)
    )
    for source in evaluated:
        if groups is None:
            groups = source.groups if isinstance(source, Evaluation) else source.images.groups
    difference, is_share = read_margin(margin)
    if is_share:
        one_image = 1 / second_rows.shape[1]
        difference *= max(1 - float(second_rows.double().mean()), one_image)
    options = {"groups": groups, "adjust": adjust or (), "margin": difference}
    if len(first_rows) == len(second_rows) == 1:
        return compare_answers(first_rows[0], second_rows[0], **options)
    return compare_runs(first_rows, second_rows, paired=paired, **options)


def read_margin(margin: str | float) -> tuple[float, bool]:
    """A margin as a number, and whether it is a share of the errors of the baseline.

    Raises ArgumentError for another text, or a number that is not in (0, 1).
    """
    text = str(margin)
    is_share = text.endswith("%")
    try:
        number = float(text.removesuffix("%")) / (100 if is_share else 1)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        expected = "expected a share such as 10%, or a difference in accuracy such as 0.01"
        raise ArgumentError("margin", f"{expected}, got {text}")
    return number, is_share


def _read_answers(
    argument: str,
    method: Method,
    evaluated: list[Evaluation | EvaluatedRun],
    options: Json,
) -> dict[int, Tensor]:
    """Whether each model of a method is right on each image.

    Args:
        argument: name of the method.
        method: see `compare`.
        evaluated: what was read before; it grows. The images must be those of its first.
        options: of `evaluate_run`.

    Returns:
        Answers `[n]` of each model, by seed, or by place where there is none.
    """
    if isinstance(method, np.ndarray):
        method = torch.from_numpy(method)
    if isinstance(method, Tensor):
        if method.dtype != torch.bool or method.dim() not in (1, 2):
            shape = f"{method.dtype} {list(method.shape)}"
            raise ArgumentError(argument, f"expected booleans [runs, n], got {shape}")
        return dict(enumerate(torch.atleast_2d(method.cpu())))
    if isinstance(method, Evaluation | Run | StrPath):
        method = [method]
    answers: dict[int, Tensor] = {}
    for place, source in enumerate(method):
        if isinstance(source, Run | StrPath):
            source = evaluate_run(source, **options)
        if not isinstance(source, Evaluation | EvaluatedRun):
            kind = type(source).__name__
            raise ArgumentError(argument, f"expected evaluations or runs, got {kind}")
        reference: Any = next((one for one in evaluated if type(one) is type(source)), source)
        evaluated.append(source)
        if isinstance(source, EvaluatedRun):
            check_same_task([reference, source])
            path = source.run.path
            if not source.has_classes:
                raise RunError(
                    f"{path}: the task {source.task.name} gives no right and wrong answers to compare"
                )
            if not have_same_images(source, reference):
                raise RunError(f"{path}: was not tested on the same images as {reference.run.path}")
            seed = source.config.training.seed
            if seed in answers:
                raise RunError(
                    f"{path}: expected another seed for each run of a method, got {seed} twice"
                )
            answers[seed] = source.is_correct
        elif torch.equal(source.labels, reference.labels):
            answers[place] = source.predictions == source.labels
        else:
            raise ArgumentError(
                argument,
                f"expected the labels of first, image for image, got {len(source.labels)} "
                f"labels that are not those {len(reference.labels)}",
            )
    return answers


def check_same_task(runs: Sequence[EvaluatedRun]) -> None:
    """Raise RunError unless all runs were trained for the same task."""
    first = runs[0]
    for run in runs[1:]:
        if run.task.name != first.task.name:
            raise RunError(
                f"{run.run.path}: was trained for the task {run.task.name}, and {first.run.path} "
                f"for {first.task.name}; only runs of the same task are compared"
            )


def have_same_images(run: EvaluatedRun, reference: EvaluatedRun) -> bool:
    """Whether both runs were tested on the same images, in the same order.

    Images of different sizes count as the same where they come from the same data set.
    """
    images = run.images
    expected = reference.images
    if images.classes != expected.classes or not torch.equal(run.labels, reference.labels):
        return False
    have_same_storage = type(images.images) is type(expected.images)
    if have_same_storage and images.images.shape == expected.images.shape:
        return torch.equal(identities(images)["inputs"], identities(expected)["inputs"])
    return run.config.data.name == reference.config.data.name and images.name == expected.name
