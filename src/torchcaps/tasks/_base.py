"""The base of tasks, which a model is trained for, and their registry.

A task is a module around a model. It names the targets that it needs, changes a batch at random,
gives the loss of a batch by named parts, and measures.
Everything else (the loop, run folders, the command line, the report, the explorer) knows tasks,
never a model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Generator, Tensor, nn

from torchcaps import plugins
from torchcaps.data import Batch, Dataset, Transforms, label_tree, refuse_augmentations
from torchcaps.data.dataset import select_targets
from torchcaps.distributed import Ranks, current
from torchcaps.errors import ArgumentError
from torchcaps.functional import reconstruction_loss
from torchcaps.functional.images import shrink
from torchcaps.registry import Registry
from torchcaps.settings import TrainConfig
from torchcaps.tasks._config import complete_config
from torchcaps.transfer import autocast, device_of, evaluating
from torchcaps.types import Capsules, ModelSpec, declares, model_metadata, spec_of
from torchcaps.words import join_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchcaps.evaluation.base import EvaluationResult, Progress

BATCH = 256
Outputs = dict[str, Tensor]
Predictions = list[dict[str, Any]]
T = TypeVar("T", bound="type[Task]")
TASKS: Registry[type[Task]] = Registry("task", "torchcaps.tasks")


class ReportItem(NamedTuple):
    """Something to show of a trained model: a file of its plots, and a section of its report.

    Attributes:
        key: letters and hyphens: its name as a file, and its address within a report.
        title: of the section.
        about: what is seen, in plain sentences.
        figure: None for a table alone.
        alt: what the figure shows, for those who do not see it.
        heads: of a table's columns; empty without a table.
        rows: of the table.
    """

    key: str
    title: str
    about: str
    figure: Figure | None = None
    alt: str = ""
    heads: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()


class Task(nn.Module):
    """Base of tasks.

    A subclass writes `targets`, `training_step` and `eval_step`, and what else differs. What it
    needs of its settings and images it takes in `_setup`.

    Args:
        model: any module. It is never written to.
        config: of the run; its task is this one or "auto". None for prediction alone, which reads
            no settings.
        images: what it is for; None if there are none yet.

    Raises:
        ArgumentError: the task does not take the model, the images, or an augmentation.
        UnknownNameError: a loss or a metric that is not known.

    Attributes:
        spec: what the model declares, or `default_spec`.
        config: with task, loss and what depends on them filled; see `complete_config`.
        loss: name of the loss.
        classes: their names.
    """

    name: ClassVar[str]  # set when it is registered
    targets: tuple[str, ...] = ()  # names of the targets of a set that it needs
    # Metric on held-out images by which the epoch is chosen; more is better.
    score: str = "accuracy"
    # Facts about the targets of the training images that predictions need, such as units, plain
    # values by name; they are kept with the model (`ModelMetadata.targets`).
    target_facts: Mapping[str, Any] = MappingProxyType({})
    # Why this task has another score than its class, a sentence.
    score_reason: str = ""
    # Names that the setting `loss` may have; the first one is taken where neither run nor model
    # says.
    losses: ClassVar[Collection[str]] = ("loss",)
    # What a model is taken for that declares nothing.
    default_spec: ClassVar[ModelSpec] = ModelSpec()
    # Tasks of models for which "auto" means this one; by default its own name alone. A subclass
    # does not inherit them: "auto" never takes a plug-in's task that does not ask for it.
    model_tasks: ClassVar[Collection[str]] = ()
    # What may be asked of it: "classes", "decode", "routing", "sweep".
    capabilities: ClassVar[frozenset[str]] = frozenset()
    labeled: ClassVar[bool] = True  # whether labels have a part in it
    augments: ClassVar[bool] = True  # whether `transforms` change what it trains with
    is_dense: ClassVar[bool] = False  # whether its models say something of each pixel
    eval_batch_size: int = BATCH  # images in a pass of the model that are not trained with
    # Largest norm of the gradient where the run leaves it open; 0 is any.
    clip: ClassVar[float] = 1.0
    # Shares of a training at which the learning rate starts anew.
    lr_restarts: tuple[float, ...] = (0.0,)
    # In words: the models that the task takes, where not every model will do.
    requires: ClassVar[str] = ""
    # In words: the data that it trains with.
    data: ClassVar[str] = "images"

    def __init__(
        self, model: Any, config: TrainConfig | None = None, images: Dataset | None = None
    ) -> None:
        super().__init__()
        self.model: Any = model  # of any class: what it can do, it declares
        self.spec = spec_of(model) if declares(model) else self.default_spec
        is_of_another = self.requires and self.spec.task != self.name
        if is_of_another or self.spec.is_dense != self.is_dense:
            unit = "pixels" if self.is_dense else "images"
            takes = self.requires or f"a model whose outputs are of {unit}"
            raise ArgumentError("task", f"{self.name} takes {takes}, got {type(model).__name__}")
        if images is not None and not self.supports(images):
            missing = [name for name in self.targets if name not in images.targets]
            way = "; give {0!r} by name, as labels={{{0!r}: ...}} or {1}s in an .npz"
            advice = [way.format(name, name.rstrip("s")) for name in missing]
            raise ArgumentError(
                "task",
                f"{self.name} takes {self.data}, got {images!r} with the targets "
                f"{join_names(list(images.targets)) or 'none'}{''.join(advice)}",
            )
        if images is not None and "size" in images.targets and not self.spec.any_size:
            raise ArgumentError(
                "images",
                f"expected one size, as {type(model).__name__} takes no other, got several; resize "
                "them, or take a network of any size, such as segcaps or capsule_head",
            )
        self.classes = model_metadata(model).classes if images is None else images.classes
        if config is None:
            return
        self.config = complete_config(config, type(self), model, images, trains=False)
        self.loss = self.config.task.loss
        if self.augments:
            self.transforms = Transforms(
                self.config.augmentation,
                self.config.data.crop,
                mask_classes=len(self.classes) if self.is_dense else None,
            )
        else:
            refuse_augmentations(
                config.augmentation, f"the task {self.name}, which changes no images"
            )
        self._setup(images)

    def _setup(self, images: Dataset | None) -> None:
        """Take what a training or an evaluation needs of the settings and the images."""

    @classmethod
    def default_settings(cls, model: Any, spec: ModelSpec, loss: str) -> dict[str, Any]:
        """Defaults of settings that differ from those of classification.

        Reconstruction, label smoothing and class weights have an effect only if they are returned
        here, or if the loss declares to read them; else a run that gives one is refused.
        """
        return {}

    @classmethod
    def supports(cls, images: Dataset) -> bool:
        """Whether these images have the targets that this task needs."""
        return images.targets.keys() >= set(cls.targets)

    def eval_targets(self, images: Dataset) -> dict[str, Tensor]:
        """Targets `[n, ...]` of a set for batches of an evaluation."""
        return select_targets(images, self.targets)

    def augment(self, batch: Batch, generator: Generator) -> Batch:
        """A batch to train with: in training mode its inputs are changed at random.

        Targets that belong to places in the inputs, such as masks, are moved with them.
        """
        return self.transforms(batch, generator) if self.training else batch

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        """Losses of a batch: "loss", and its parts by name, means over the batch without axes.

        Args:
            batch: from `augment`.
            fraction_trained: of the training, in [0, 1].

        Returns:
            Losses by name. A tensor with axes, `[batch, ...]`, is for `detect_collapse` alone.
        """
        raise NotImplementedError

    def eval_step(self, batch: Batch) -> Outputs:
        """Outputs of a batch that is not trained with, by name: `[batch, ...]`, for each image."""
        raise NotImplementedError

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Metrics of all images by their outputs; by default their means.

        Args:
            outputs: of `eval_step` for all images, on the CPU.

        Returns:
            Numbers by name, "loss" and the score among them.
        """
        return {name: values.double().mean().item() for name, values in outputs.items()}

    def warnings(self, outputs: Outputs, fraction_trained: float) -> list[str]:
        """Faults of the model, a sentence each.

        Args:
            outputs: of `eval_step` for all held-out images.
            fraction_trained: of the training, in [0, 1].
        """
        return []

    def detect_collapse(self, losses: Outputs) -> str | None:
        """What is wrong with a network that does not learn, by what an early `training_step` gave.

        Such as "every class capsule was dead"; None where nothing is. The training starts again,
        unless the first step gave the same.
        """
        return None

    def evaluation(self, outputs: Outputs, images: Dataset) -> EvaluationResult:
        """What `evaluate_task` returns, by the outputs for the images."""
        from torchcaps.evaluation.base import MetricResult

        return MetricResult(self.compute_metrics(outputs), len(images), self.score)

    def report_items(self, evaluation: EvaluationResult, images: Dataset) -> list[ReportItem]:
        """What to show of the model beside its metrics; needs matplotlib.

        Args:
            evaluation: what `evaluation` returned for these images.
            images: of the test set.
        """
        return []

    def predict(self, images: Tensor) -> Predictions:
        """What the model says of single pictures, a dictionary each, ready for JSON.

        A dense task has `predict_pixels` in its place, which gives the probabilities of every class
        but the background, `[n, classes - 1, height, width]`.

        Args:
            images: `[n, channels, height, width]` in [0, 1].

        Raises:
            ArgumentError: the task says nothing of single pictures.
        """
        raise ArgumentError("predict", f"the task {self.name} says nothing of single pictures")


def eval_outputs(
    task: Task,
    images: Dataset,
    *,
    precision: str = "fp32",
    progress: Progress | None = None,
    alone: bool = False,
) -> Outputs:
    """The outputs of `Task.eval_step` for all images in their order.

    Args:
        task: its mode is restored afterwards.
        images: on any device.
        precision: "fp32" or "bf16".
        progress: is told how many images are done, and of how many.
        alone: whether this process computes it by itself; else all processes do so together.
    """
    count = len(images)
    # A few images are looked at by every process.
    ranks = Ranks() if alone or count < current().world_size else current()
    shard = torch.arange(count)[ranks.shard(count)]
    device = device_of(task.model)
    parts = []
    rows = []
    with evaluating(task), autocast(device, precision):
        for batch in images.batches(shard.split(task.eval_batch_size), task.eval_targets(images)):
            for group in batch.to(device).by_size():
                parts.append(task.eval_step(task.augment(group, Generator())))
                rows.append(group.indices)
            if progress is not None:
                progress(int(batch.indices[-1]) + 1, count)
    outputs = join_outputs(parts)
    if "size" in images.targets:  # groups of equal sizes are not in the order of the set
        order = torch.cat(rows).cpu().argsort()
        outputs = {name: values[order] for name, values in outputs.items()}
    return {name: ranks.cat(values) for name, values in outputs.items()}


def evaluate_task(
    task: Task, images: Dataset, *, progress: Progress | None = None
) -> EvaluationResult:
    """The metrics of a task on test images, which were not used in training."""
    from torchcaps.tasks.metrics import extra_metrics

    outputs = eval_outputs(task, images, progress=progress)
    evaluation = task.evaluation(outputs, images)
    return evaluation.with_extra(extra_metrics(task.config.task.metrics, outputs))


def join_outputs(parts: Sequence[Outputs]) -> Outputs:
    """The outputs of several batches as those of one, on the CPU."""
    return {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}


def register_task(name: str, *, replace: bool = False) -> Callable[[T], T]:
    """Class decorator that registers a task; ValueError for a taken name, unless `replace`."""

    def register(task: T) -> T:
        TASKS.add(name, task, replace=replace)
        task.name = name
        return task

    return register


def register_loss(
    name: str | None = None, *, task: str = "classify", **options: Any
) -> Callable[[Any], Any]:
    """Decorator: makes a function known as a loss of a task, which the setting `loss` may name.

    Its arguments are those of the losses of that task, such as `torchcaps.tasks.classify.Loss`.
    The options are those of `Registry.register`: `reads` names those of the settings
    `label_smoothing` and `class_weights` that it reads by itself; a run that gives another one of
    them is refused. Raises ValueError for a name that is taken, unless `replace`, and for a task of
    one loss.
    """
    losses = TASKS[task].losses
    if not isinstance(losses, Registry):
        raise ArgumentError("task", f"{task} takes no further losses")
    return losses.register(name, **options)


list_tasks = TASKS.names
"""Names of tasks."""


def task_class(name: str, model: nn.Module, images: Dataset | None = None) -> type[Task]:
    """The task of a name. Raises UnknownNameError.

    "auto" is the task that the model is made for and the images suit.
    """
    if name != "auto":
        return TASKS[name]
    spec = spec_of(model)
    default = TASKS[spec.task]  # loads the plug-in that registers it
    if images is None:
        return default
    plugins.load_entry_points()
    if not default.supports(images) or label_tree(images.classes):
        TASKS.names()  # loads all tasks of the package
    # Of two that match, the one registered last is the more special one.
    for task in reversed(TASKS.registered()):
        model_tasks = vars(task).get("model_tasks") or (task.name,)
        if default.supports(images):
            # Of the targets of a set that the model's own task takes, no other one is chosen.
            is_choice = spec.task in model_tasks and set(task.targets) <= set(default.targets)
        else:
            is_choice = spec.task in model_tasks or (bool(task.targets) and not declares(model))
        if is_choice and task.supports(images):
            return task
    return default


def create_task(model: nn.Module, config: TrainConfig, images: Dataset | None = None) -> Task:
    """The task of a run around a model, for images if there are any yet.

    Raises:
        ValueError: an unknown task or loss, or a model or images that the task does not take.
    """
    return task_class(config.task.name, model, images)(model, config, images)


def check_task(task: Task, images: Dataset) -> Outputs:
    """Let one image through: a model that cannot take it is refused before a training.

    Returns its outputs.
    """
    with evaluating(task):
        return task.eval_step(first_batch(task, images, 1))


def drawing_error(
    task: Task, capsules: Capsules, images: Tensor, labels: Tensor | None = None
) -> Tensor:
    """Squared error of what the model draws, a sum over pixels and a mean over images.

    Args:
        task: around the model.
        capsules: that it draws.
        images: `[batch, channels, height, width]` that it should draw; compared at the size of the
            drawings.
        labels: of the capsules that draw; None for all of them.

    Raises:
        ArgumentError: the drawings have another size than the images, as those of a network behind
            a stage that resizes.
    """
    if task.spec.draw_size is None:
        drawings = task.model.reconstruct(capsules, labels)
    else:
        images = shrink(images, task.spec.draw_size)
        drawings = task.model.draw(capsules, labels)
    if drawings.shape != images.shape:
        raise ArgumentError(
            "reconstruction",
            f"the decoder draws {list(drawings.shape)}, and the images are {list(images.shape)}; "
            "bring the images to that size before, or train without it (reconstruction=0)",
        )
    return reconstruction_loss(drawings, images)


def first_batch(task: Task, images: Dataset, count: int) -> Batch:
    """The first images of a set as a batch, where the model is; call it in evaluation mode."""
    indices = torch.arange(len(images))[:count]
    batch = next(images.batches([indices], task.eval_targets(images)))
    return task.augment(batch.to(device_of(task.model)).by_size()[0], Generator())


def evenly(indices: Tensor, count: int) -> Tensor:
    """At most `count` of these, spread over all of them in their order."""
    return indices[torch.linspace(0, len(indices) - 1, min(count, len(indices))).round().long()]
