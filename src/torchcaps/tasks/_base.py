"""What a system is trained for. A task is a module around a model: what the loop steps, and what processes share.

It says which data it takes, makes a batch, gives the loss of a batch by named parts, and measures. Everything else (the
loop, run folders, the command line, the report, the explorer) knows tasks, never a model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Generator, Tensor, nn

from torchcaps.data import ImageSet, Preprocess, Transforms, refuse_augmentations
from torchcaps.distributed import Ranks, current
from torchcaps.errors import ArgumentError, UnknownNameError, check_range
from torchcaps.evaluation.base import EvaluationResult, MetricResult
from torchcaps.evaluation.forward import Progress, autocast, device_of, evaluating
from torchcaps.registry import Registry
from torchcaps.settings import TrainConfig
from torchcaps.types import ModelSpec, declares, spec_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 256
DEFAULTS = {
    "lr": 1e-3,
    "schedule": "warmup_cosine",
    "degrees": 0.0,
    "zoom": 0.0,
    "shear": 0.0,
    "reconstruction": 0.0,
}
Outputs = dict[str, Tensor]
Batch = tuple[Tensor | None, ...]
B = TypeVar("B", bound=Batch)
T = TypeVar("T", bound="type[Task]")
TASKS: Registry[type[Task]] = Registry("task")


class ReportItem(NamedTuple):
    """Something to show of a trained model: a file of its plots, and a section of its report."""

    key: str  # letters and hyphens: its name as a file, and its address within a report
    title: str
    about: str  # what is seen, in plain sentences
    figure: Figure | None = None  # None for a table alone
    alt: str = ""  # what the figure shows, for those who do not see it
    heads: tuple[str, ...] = ()  # of a table's columns; empty without a table
    rows: tuple[tuple[str, ...], ...] = ()


class Task(nn.Module):
    """Base of tasks.

    A subclass writes `sample_batch`, `training_step` and `eval_step`, and what else differs from what stands here.

    Args:
        model: any module; what it declares is in `self.spec`.
        config: of the run; its task names this one or "auto".
        images: what it is for, to be refused here if they do not suit; None where there are none yet.
    """

    name: ClassVar[str]  # set when it is registered
    score: ClassVar[str] = (
        "accuracy"  # the figure on held-out images by which the epoch is chosen; more is better
    )
    # Names that the setting `loss` may have; the first one is taken where neither run nor model says. A task of one
    # loss needs none: it is then called "loss".
    losses: ClassVar[Collection[str]] = ()
    defaults: ClassVar[
        Mapping[str, Any]
    ] = {}  # of settings that a run leaves open, beside those of every task
    capabilities: ClassVar[frozenset[str]] = (
        frozenset()
    )  # to ask of it: "classes", "decode", "routing", "sweep"
    labeled: ClassVar[bool] = True  # whether labels have a part in it
    augments: ClassVar[bool] = True  # whether `transforms` change what it trains with
    is_dense: ClassVar[bool] = False  # whether its models say something of each pixel
    eval_batch_size: int = BATCH  # images in a pass of the model that are not trained with
    clip: float = 1.0  # largest norm of the gradient where the run leaves it open; 0 is any
    lr_restarts: tuple[float, ...] = (
        0.0,
    )  # shares of a training at which the learning rate starts anew
    requires: ClassVar[str] = (
        ""  # in words, the models it takes, if they are only those that declare it
    )

    def __init__(self, model: Any, config: TrainConfig, images: ImageSet | None = None) -> None:
        super().__init__()
        if self.requires and spec_of(model).task != self.name:
            raise ArgumentError(
                "task", f"{self.name} takes {self.requires}, got {type(model).__name__}"
            )
        self.model: Any = model  # of any class: what it can do, it declares
        self.spec = spec_of(model)
        if declares(model) and self.spec.is_dense != self.is_dense:
            what, kind = "pixels" if self.is_dense else "images", type(model).__name__
            raise ArgumentError(
                "task",
                f"{self.name} takes a model whose outputs are of {what}, which {kind} is not",
            )
        if not declares(model):
            model.spec = self.spec  # what it is taken for from here on
        known = self.losses or ("loss",)
        usual = self.spec.loss if self.spec.loss in known else next(iter(known))
        self.loss = usual if config.task.loss == "auto" else config.task.loss
        if self.loss not in known:
            raise UnknownNameError("loss", self.loss, known)
        filled = config.filled({**DEFAULTS, **self.defaults, **self.settings()})
        self.config = filled.updated(task=self.name, loss=self.loss)
        if self.augments:
            self.transforms = Transforms(
                self.config.augmentation, self.config.data.crop, masks=self.is_dense
            )
        else:
            refuse_augmentations(
                config.augmentation, f"the task {self.name}, which changes no images"
            )

    def settings(self) -> dict[str, Any]:
        """Defaults that depend on the model or the loss, of settings that the run leaves open."""
        return {}

    @classmethod
    def supports(cls, images: ImageSet) -> bool:
        """Whether the labels of images are of the kind that this task needs."""
        return True

    @classmethod
    def matches(cls, spec: ModelSpec, images: ImageSet) -> bool:
        """Whether "auto" means this task for a model that declares this and these images."""
        return spec.task == cls.name and cls.supports(images)

    def sample_batch(self, images: ImageSet, indices: Tensor, generator: Generator) -> Batch:
        """A batch of the images with these indices: tensors of equal length on the set's device. Changed at random, by
        the generator, in training mode, else as they are."""
        raise NotImplementedError

    def forward(self, batch: Any, progress: float) -> Outputs:
        """`training_step`, under the name that processes which train together call."""
        return self.training_step(batch, progress)

    def training_step(self, batch: Any, progress: float) -> Outputs:
        """Losses of a batch: "loss", means over the batch, and its parts by name (all without axes).

        What has an axis is not a loss: `[batch, ...]`, for `detect_collapse`. `progress` is the share of the training
        that is done, in [0, 1]."""
        raise NotImplementedError

    def eval_step(self, batch: Any) -> Outputs:
        """What a batch of images that are not trained with comes to: by name, `[batch, ...]` for each image."""
        raise NotImplementedError

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Figures of all images by their outputs, "loss" and the score among them; by default means."""
        return {name: values.double().mean().item() for name, values in outputs.items()}

    def warnings(self, outputs: Outputs) -> list[str]:
        """What is wrong with the model by its outputs on held-out images, a sentence each."""
        return []

    def detect_collapse(self, losses: Outputs) -> str | None:
        """What is wrong with a network that does not learn, by what `training_step` gave in an early step.

        Such as "every class capsule was dead"; None where nothing is. The training starts again, unless the first step
        gave the same."""
        return None

    def eval_outputs(
        self,
        images: ImageSet,
        *,
        precision: str = "fp32",
        progress: Progress | None = None,
        alone: bool = False,
    ) -> Outputs:
        """The outputs of all images in their order, computed by all processes together unless this one is `alone`."""
        total, parts = len(images), []
        ranks = (
            Ranks() if alone or total < current().world_size else current()
        )  # a few are looked at by every process
        rows = torch.arange(total)[ranks.shard(total)]
        place = device_of(self.model)
        with evaluating(self), autocast(place, precision):
            for indices in rows.split(self.eval_batch_size):
                generator = Generator().manual_seed(int(indices[0]))
                batch = self.sample_batch(images, indices.to(images.images.device), generator)
                parts.append(self.eval_step(mapped(batch, lambda x: x.to(place))))
                if progress is not None:
                    progress(int(indices[-1]) + 1, total)
        return {
            name: ranks.cat(torch.cat([part[name] for part in parts]).cpu()) for name in parts[0]
        }

    def first(self, images: ImageSet, most: int) -> Any:
        """The first images of a set as a batch, where the model is; call it in evaluation mode."""
        some = torch.arange(min(most, len(images)), device=images.images.device)
        return mapped(
            self.sample_batch(images, some, Generator()), lambda x: x.to(device_of(self.model))
        )

    def check(self, images: ImageSet) -> Outputs:
        """Let one image through, so that images that the model cannot take are refused before a training."""
        return self.eval_outputs(images.subset([0]))

    def evaluate(self, images: ImageSet, *, progress: Progress | None = None) -> EvaluationResult:
        """The figures on test images, which training had no part in."""
        outputs = self.eval_outputs(images, progress=progress)
        return MetricResult(self.compute_metrics(outputs), len(images), self.score)

    def report_items(self, evaluation: EvaluationResult, images: ImageSet) -> list[ReportItem]:
        """What to show of the model beside its figures, on these images; needs matplotlib."""
        return []

    def predict(self, images: Tensor) -> list[dict[str, Any]]:
        """What the model says of images `[n, channels, height, width]` in [0, 1], ready for JSON, one for each.
        ValueError: the task says nothing of single pictures."""
        raise ArgumentError("predict", f"the task {self.name} says nothing of single pictures")

    def overlays(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """For a page that shows pictures `[n, channels, height, width]` in [0, 1], by a task of pixels: the share of
        each class `[n, classes]`, and what was found drawn over them, `[n, 3, height, width]`."""
        raise NotImplementedError(f"the task {self.name} does not say what it makes of pixels")

    def predict_files(
        self,
        files: Sequence[Path],
        names: Sequence[str],
        preprocess: Preprocess,
        output: Path | None,
    ) -> list[dict[str, Any]]:
        """`predict` of image files; writes what there is to draw of each to `output`, under these names of their own.
        ValueError: there is nothing to draw, and `output` is no None."""
        if output is not None:
            raise ArgumentError("output", f"the task {self.name} draws nothing of single pictures")
        return self.predict(
            torch.stack([preprocess(file) for file in files]).to(device_of(self.model))
        )


def register_task(name: str, *, replace: bool = False) -> Callable[[T], T]:
    """Class decorator: makes a task known as `name`; ValueError if that is taken, unless `replace`."""

    def register(cls: T) -> T:
        TASKS.add(name, cls, replace=replace)
        cls.name = name
        return cls

    return register


def list_tasks() -> list[str]:
    """Names of tasks."""
    return TASKS.names()


def task_class(name: str, model: nn.Module, images: ImageSet | None = None) -> type[Task]:
    """The task of a name, or UnknownNameError; "auto" is the one that the model is made for and the images suit."""
    if name != "auto":
        return TASKS[name]
    spec = spec_of(model)
    _ = TASKS[spec.task]  # loads the plug-in that registers it
    kinds = reversed(
        list(TASKS.values())
    )  # of two that suit, the one registered last is the more special one
    suiting = (kind for kind in kinds if images is not None and kind.matches(spec, images))
    return next(suiting, TASKS[spec.task])


def create_task(model: nn.Module, config: TrainConfig, images: ImageSet | None = None) -> Task:
    """The task of a run around a model, for images if there are any yet.

    ValueError: for an unknown task or loss, or a model or images that the task does not take."""
    return task_class(config.task.name, model, images)(model, config, images)


def mapped(batch: B, change: Callable[[Tensor], Tensor]) -> B:
    """A batch in the same kind of tuple, with every tensor changed."""
    found = [None if tensor is None else change(tensor) for tensor in batch]
    kind: Any = type(batch)
    return cast(B, kind(found) if kind is tuple else kind(*found))


def predict(
    model: nn.Module,
    paths: Iterable[str | Path],
    *,
    batch_size: int = BATCH,
    output: str | Path | None = None,
) -> list[dict[str, Any]]:
    """What a trained model says of image files, and of all images in folders: a dictionary each, ready for JSON, of its
    "path" and what `Task.predict` gives. Several processes share the work.

    Args:
        model: as `torchcaps.load` or `torchcaps.fit` returns it, with `.preprocess` and, if it is not what the model
            declares, `.task`.
        paths: image files and folders, of which `batch_size` are read at a time.
        output: a folder, made where it is missing, for what the task draws of each image, such as masks.

    Raises:
        DataError: for a path that is absent, holds no image, or cannot be read as one.
        ValueError: for a model without `.preprocess`, a batch size below 1, or `output` where nothing is drawn.
    """
    check_range("batch_size", batch_size, low=1)
    preprocess = getattr(model, "preprocess", None)
    if not isinstance(preprocess, Preprocess):
        raise ArgumentError("model", "expected .preprocess, as torchcaps.load gives it, got none")
    task = create_task(model, TrainConfig.of(task=getattr(model, "task", "auto")))
    files, ranks, rows = preprocess.files(paths), current(), []
    mine = ranks.shard(len(files))
    names, files = unlike([file.stem for file in files])[mine], files[mine]
    folder = None if output is None else Path(output)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with evaluating(model):
        for start in range(0, len(files), batch_size):
            some = slice(start, start + batch_size)
            found = task.predict_files(files[some], names[some], preprocess, folder)
            rows += [
                {"path": str(file), **row} for file, row in zip(files[some], found, strict=True)
            ]
    return [row for part in ranks.gather(rows) for row in part]


def unlike(names: Iterable[str]) -> list[str]:
    """Names, with a number after one that was there before; some file systems do not tell capitals."""
    found: dict[str, str] = {}
    for name in names:
        number = next(
            n for n in count(1) if (name if n == 1 else f"{name}-{n}").lower() not in found
        )
        unique = name if number == 1 else f"{name}-{number}"
        found[unique.lower()] = unique
    return list(found.values())
