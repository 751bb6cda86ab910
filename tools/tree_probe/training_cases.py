"""Trainings: every task with every loss, optimizers, schedules, augmentations, other settings.

Models compute in float64. Images and their augmentation stay float32, as in every training: a batch
is cast where the task hands it over.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from adapter import (
    build_model,
    comparable_trainings,
    config_class,
    own_augmentation_names,
    own_loss_names,
    own_name_of,
    own_optimizer_names,
    own_schedule_names,
    parts_of_batch,
    spell_settings,
    standard_name,
)
from image_cases import IMAGES, digits
from model_cases import (
    CAPSNET,
    CNN,
    DEEPCAPS,
    HVC,
    INVERTED,
    MATRIX,
    POINTS,
    SCAE,
    SEGCAPS,
    SELF_ROUTING,
    SIZES,
    SMALL_STEM,
    TRANSFORMING,
    TREE,
    UNET,
    VB,
)
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import torchcaps as tc
from records import Record, in_float64, map_tensors, to_float64


class PixelNetwork(nn.Module):
    """A network of a user's own, which declares nothing: logits of each pixel."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh())
        self.last = nn.Conv2d(4, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.layers(images))


class ImageNetwork(PixelNetwork):
    """The same of each image."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).mean(dim=(2, 3))


@dataclasses.dataclass(frozen=True)
class Setup:
    """A model, the images that it is trained with, and the settings of the run."""

    model: str  # a name of the registry, or "own pixels" and "own images"
    options: Mapping[str, Any]
    images: str  # a name of IMAGES
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def with_settings(self, **settings: Any) -> Setup:
        return dataclasses.replace(self, settings={**self.settings, **settings})

    def with_options(self, **options: Any) -> Setup:
        return dataclasses.replace(self, options={**self.options, **options})

    def with_images(self, images: str) -> Setup:
        return dataclasses.replace(self, images=images)

    def build(self) -> Any:
        torch.manual_seed(0)
        if self.model == "own pixels":
            return in_float64(PixelNetwork(**self.options))
        if self.model == "own images":
            return in_float64(ImageNetwork(**self.options))
        return in_float64(build_model(self.model, **self.options))


MOVES = {"shift": 2, "degrees": 15.0, "zoom": 0.1, "shear": 0.1}
CHANGES = {
    **MOVES,
    "flip": True,
    "aspect": 0.2,
    "morphology": 0.4,
    "erase": 3,
    "color_jitter": True,
}
VIEWS = {"shift": 2, "flip": True, "erase": 3, "color_jitter": True}
MASK_CHANGES = {name: change for name, change in CHANGES.items() if name != "morphology"}

# A power of two: products with it are exact, in whatever order a schedule takes them.
LEARNING_RATE = 2.0**-10

# Weights that vanish in a few steps, so that a training starts again.
DECAY = {
    "optimizer": "sgd",
    "momentum": 0.0,
    "lr": 2.0**-7,
    "weight_decay": 40.0,
    "schedule": "cosine",
}

CLASSIFIER = Setup("capsnet", CAPSNET | {"num_classes": 10}, "digits", CHANGES)
PLAIN = Setup("cnn_baseline", CNN | {"num_classes": 10}, "digits", CHANGES)
MATRICES = Setup("matrix_caps", MATRIX | {"num_classes": 10}, "digits", CHANGES)
PAIRS = Setup("capsnet", CAPSNET | {"num_classes": 10, "img_size": 24}, "digit pairs", CHANGES)
PLAIN_PAIRS = Setup(
    "cnn_baseline",
    CNN | {"num_classes": 10, "img_size": 24, "multilabel": True},
    "digit pairs",
    CHANGES,
)
PARTS = Setup("scae", SCAE | {"strides": (2, 2, 1)}, "digits", CHANGES)
VALUES = Setup("capsnet", CAPSNET | {"num_classes": 2, "img_size": 20}, "digit values", MOVES)
MASKS = Setup("segcaps", SEGCAPS, "shapes", MASK_CHANGES)
PLAIN_MASKS = Setup("unet", UNET | {"img_size": 16}, "shapes", MASK_CHANGES)
POINT_SETS = Setup(
    "canonical_capsules_small",
    POINTS | {"in_chans": 2, "img_size": (32, 1)},
    "planes",
)
PAIRED_VIEWS = Setup(
    "transforming_autoencoder",
    TRANSFORMING | {"img_size": 20},
    "digits",
    VIEWS,
)
LEVELS = Setup(
    "tree_capsnet",
    TREE | {"num_classes": 10, "img_size": 20, "classes": "of the images"},
    "tree digits",
    CHANGES,
)

# Task -> what its losses are trained with, unless the next table says otherwise.
TASKS: dict[str, Setup] = {
    "align": POINT_SETS,
    "classify": CLASSIFIER,
    "multilabel": PAIRS,
    "regress": VALUES,
    "segment": MASKS,
    "transform": PAIRED_VIEWS,
    "tree": LEVELS,
    "unsupervised": PARTS,
}
LOSSES: dict[tuple[str, str], Setup] = {
    ("classify", "cross_entropy"): PLAIN,
    ("classify", "spread"): MATRICES,
    ("multilabel", "cross_entropy"): PLAIN_PAIRS,
    ("tree", "cross_entropy"): PLAIN.with_images("tree digits"),
}
# Losses that a task names and refuses.
REFUSED = {("multilabel", "likelihood"), ("multilabel", "spread")}

# Other systems, data and options, by the task that they belong to.
SYSTEMS: dict[str, Setup] = {
    "align/without canonical pose": POINT_SETS.with_options(canonical=False),
    "classify/affcaps": Setup("affcaps", CAPSNET | {"num_classes": 10}, "digits", MOVES),
    "classify/color": CLASSIFIER.with_options(in_chans=3).with_images("color digits"),
    "classify/deepcaps": Setup("deepcaps", DEEPCAPS | {"img_size": 20}, "three digits", MOVES),
    "classify/efficient_capsnet": Setup(
        "efficient_capsnet",
        SIZES | {"stem": SMALL_STEM},
        "three digits",
        MOVES,
    ),
    "classify/heinsen": Setup(
        "heinsen",
        SIZES | {"channels": 8, "hidden": (4, 4)},
        "three digits",
        MOVES,
    ),
    "classify/hvc": Setup("hvc", HVC | {"img_size": 20}, "three digits", MOVES),
    "classify/inverted_attention": Setup(
        "inverted_attention",
        INVERTED | {"img_size": 20},
        "three digits",
        MOVES,
    ),
    "classify/multilabel network": PLAIN.with_options(multilabel=True),
    "classify/own network": Setup("own images", {"num_classes": 10}, "digits", MOVES),
    "classify/placed digits": CLASSIFIER.with_options(img_size=22).with_images("placed digits"),
    "classify/sr_capsnet": Setup(
        "sr_capsnet",
        SELF_ROUTING | {"img_size": 20, "backbone": "convnet"},
        "three digits",
        MOVES,
    ),
    "classify/starts again": CLASSIFIER.with_settings(**DECAY),
    "classify/vb_caps": Setup("vb_caps", VB | {"types": (2, 3)}, "three digits", MOVES),
    "multilabel/own network": Setup("own images", {"num_classes": 10}, "digit pairs", MOVES),
    "segment/own network": Setup("own pixels", {"num_classes": 3}, "shapes", MASK_CHANGES),
    "segment/unet, dice": PLAIN_MASKS.with_settings(loss="dice"),
    "segment/unet, cross_entropy": PLAIN_MASKS,
    "transform/affine": Setup(
        "transforming_autoencoder",
        TRANSFORMING | {"img_size": 20, "pose": "affine", "bounded": True},
        "digits",
        {**VIEWS, **MOVES},
    ),
    "transform/constrained": Setup(
        "transforming_autoencoder",
        TRANSFORMING | {"img_size": 20, "pose": "affine", "constrained": True},
        "digits",
        VIEWS,
    ),
    "tree/flat": LEVELS.with_options(tree="flat"),
    "tree/shuffled": LEVELS.with_options(tree="shuffled"),
    "unsupervised/views": PARTS.with_options(weights={"views": 5.0}),
}

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"weight_decay": 0.01},
    "adamw": {"weight_decay": 0.1},
    "sgd": {"lr": 2.0**-4, "momentum": 0.8, "nesterov": True},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "steps": {"milestones": (1, 3), "decay": 0.3},
    "exponential": {"decay": 0.5},
}
AUGMENTATIONS: dict[str, Any] = {**CHANGES}
SETTINGS: dict[str, dict[str, Any]] = {
    "accumulate": {"accumulate": 2},
    "balance": {"balance": True},
    "batch of default size": {"batch_size": None},
    "class weights": {"class_weights": "auto"},
    "clip": {"clip": 0.05},
    "crop": {"crop": 18},
    "default learning rate": {"lr": None},
    "ema": {"ema": 0.9},
    "freeze": {"freeze": ("decoder.*",)},
    "holdout count": {"holdout": 30},
    "label smoothing": {"loss": "likelihood", "label_smoothing": 0.2},
    "learning rates by group": {"lr_scale": {"decoder.*": 0.5}},
    "no reconstruction": {"reconstruction": 0.0},
    "per class": {"per_class": 5},
    "reconstruction": {"reconstruction": 0.01},
    "seed": {"seed": 12345},
    "stop early": {"stop_at": 0.01},
    "whole epochs": {"epoch_size": None},
}


def task_cases(steps: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    for tree_name in tc.tasks.list_tasks():
        task = standard_name(tree_name)
        for own_loss_name in own_loss_names(task):
            loss = standard_name(own_loss_name)
            setup = LOSSES.get((task, loss), TASKS.get(task))
            yield f"task/{task}/{loss}", partial(probe_loss, task, loss, setup, steps)
    for name, setup in SYSTEMS.items():
        task = name.split("/")[0]
        yield f"task/{name}", partial(probe_training, setup.with_settings(task=task), steps)


def setting_cases(steps: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    still = dataclasses.replace(CLASSIFIER, settings={"task": "classify", "shift": 0})
    for name in with_rows(OPTIMIZERS, own_optimizer_names()):
        setup = still.with_settings(optimizer=name, **OPTIMIZERS.get(name, {}))
        yield f"optimizer/{name}", partial(probe_training, setup, steps)
    for name in with_rows(SCHEDULES, own_schedule_names()):
        setup = still.with_settings(schedule=name, **SCHEDULES.get(name, {}))
        yield f"schedule/{name}", partial(probe_training, setup, steps)
    for name in with_rows(AUGMENTATIONS, own_augmentation_names()):
        yield f"augmentation/{name}", partial(probe_augmentation, still, name, steps)
    for name, settings in SETTINGS.items():
        small = still.with_settings(shift=1)
        if name == "crop":
            small = small.with_options(img_size=18)
        setup = small.with_settings(**settings)
        yield f"setting/{name}", partial(probe_training, setup, steps)
    yield "run/capsnet", partial(probe_run, steps)


def with_rows(table: Mapping[str, Any], tree_names: Iterable[str]) -> list[str]:
    """Names of a table, and those of this tree that it lacks."""
    return list(dict.fromkeys([*table, *map(standard_name, tree_names)]))


def probe_loss(task: str, loss: str, setup: Setup | None, steps: int) -> Record:
    if setup is None:
        raise LookupError(f"the task {task} has no row in TASKS")
    setup = setup.with_settings(task=task, loss=loss)
    if (task, loss) not in REFUSED:
        return probe_training(setup, steps)
    record = Record()
    with suppress(ValueError):
        return probe_training(setup, steps)
    record.add("refused", True)
    return record


def probe_augmentation(setup: Setup, name: str, steps: int) -> Record:
    if name not in AUGMENTATIONS:
        raise LookupError(f"the augmentation {name} has no row in AUGMENTATIONS")
    return probe_training(setup.with_settings(**{name: AUGMENTATIONS[name]}), steps)


class TrainingLog:
    """Follows a training: batches, losses and learning rates of every step, and the weights.

    Batches and losses come from the task's own methods, the rest from hooks of torch's optimizers.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.batches: dict[str, list[Tensor]] = {}
        self.losses: dict[str, list[Tensor]] = {}
        self.learning_rates: list[float] = []
        self.gradient_norms: list[Tensor] = []
        self.weights: dict[str, Tensor] = {}

    def record_batch(self, task: nn.Module, batch: Any) -> Any:
        """Keep the batch of a step, and hand it on in float64."""
        if task.training:
            for name, tensor in parts_of_batch(batch).items():
                self.batches.setdefault(name, []).append(tensor.detach().clone())
        return map_tensors(batch, to_float64)

    def record_step(self, task: nn.Module, outputs: Any) -> Any:
        """Keep the losses of a step."""
        if task.training and isinstance(outputs, Mapping):
            for name, tensor in outputs.items():
                if tensor.dim() == 0:
                    self.losses.setdefault(name, []).append(tensor.detach().double())
        return outputs

    def is_of_model(self, optimizer: Any) -> bool:
        """Whether an optimizer is that of the training: evaluations may have their own."""
        first = next(self.model.parameters())
        return any(parameter is first for parameter in parameters_of(optimizer))

    def before_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self.is_of_model(optimizer):
            return
        parameters = parameters_of(optimizer)
        norms = [p.grad.norm().double() for p in parameters if p.grad is not None]
        self.gradient_norms.append(torch.stack(norms).norm())
        self.learning_rates.append(optimizer.param_groups[0]["lr"])

    def after_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self.is_of_model(optimizer):
            state = self.model.state_dict()
            self.weights = {name: tensor.detach().clone() for name, tensor in state.items()}

    def add_to(self, record: Record) -> None:
        for name, tensors in self.batches.items():
            record.add(f"batches.{name}", torch.cat(tensors))
        record.add("losses", {name: torch.stack(steps) for name, steps in self.losses.items()})
        record.add("learning rates", torch.tensor(self.learning_rates, dtype=torch.float64))
        record.add("gradient norms", torch.stack(self.gradient_norms))
        record.add_group("weights after the last step", self.weights.items())


def parameters_of(optimizer: Any) -> list[Tensor]:
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    return parameters


@contextmanager
def followed(task_type: type, log: TrainingLog) -> Iterator[None]:
    """While the block runs, tasks of this type report to the log."""
    hooks = [
        register_optimizer_step_pre_hook(log.before_update),
        register_optimizer_step_post_hook(log.after_update),
    ]
    with (
        patched(task_type, "augment", log.record_batch),
        patched(task_type, "training_step", log.record_step),
    ):
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def patched(owner: Any, name: str, change: Callable[[Any, Any], Any]) -> Iterator[None]:
    """While the block runs, what this method gives goes through `change(self, outcome)`."""
    tree_name = own_name_of(owner, name)
    method = getattr(owner, tree_name)
    owner_defines_it = tree_name in vars(owner)

    @wraps(method)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return change(self, method(self, *args, **kwargs))

    setattr(owner, tree_name, changed)
    try:
        yield
    finally:
        if owner_defines_it:
            setattr(owner, tree_name, method)
        else:
            delattr(owner, tree_name)


def step_settings(steps: int, batch_size: int = 8) -> dict[str, Any]:
    """Settings of a run of so many steps, in four epochs where that is possible."""
    epochs = next(count for count in (4, 2, 1) if steps % count == 0)
    return {
        "epochs": epochs,
        "batch_size": batch_size,
        "epoch_size": batch_size * steps // epochs,
        "holdout": 0.15,
        "lr": LEARNING_RATE,
        "precision": "fp32",
        "seed": 7,
    }


def probe_training(setup: Setup, steps: int) -> Record:
    """A training by `fit`, and figures of held-out images after it."""
    record = Record()
    images = IMAGES[setup.images]("train")
    if setup.options.get("classes") == "of the images":
        setup = setup.with_options(classes=images.classes)
    settings = {**step_settings(steps), **setup.settings}
    settings = {name: setting for name, setting in settings.items() if setting is not None}
    settings = spell_settings(settings)
    config = config_class().of(**settings)

    # The type of the task, of a model that is not used any further: a task may change its model.
    task_type = type(tc.tasks.create_task(setup.build(), config, images))
    model = setup.build()
    log = TrainingLog(model)
    with comparable_trainings(), followed(task_type, log):
        fitted, history = tc.fit(model, images, **settings)
        log.add_to(record)
        record.add_group("returned weights", fitted.state_dict().items())
        record.add("history", history_figures(history))

        test_images = IMAGES[setup.images]("test")
        if "crop" in settings:
            test_images = test_images.cropped(settings["crop"])
        task = tc.tasks.create_task(fitted, config, test_images)
        if hasattr(tc.tasks, "evaluate_task"):
            evaluation = tc.tasks.evaluate_task(task, test_images)
        else:  # an older tree
            evaluation = task.evaluate(test_images)
        record.add("evaluation", evaluation.to_dict())
    return record


def history_figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Figures of every epoch by name, without those that time decides."""
    figures: dict[str, list[float]] = {}
    for row in rows:
        for name, figure in row.items():
            if isinstance(figure, bool | int | float) and "second" not in name:
                figures.setdefault(name, []).append(float(figure))
    return {name: torch.tensor(column, dtype=torch.float64) for name, column in figures.items()}


def probe_run(steps: int) -> Record:
    """A run folder by names, in float32: its model, its metrics, and what loading it gives."""
    record = Record()
    options = {"channels": 8, "primary_types": 2, "class_dim": 4, "decoder": [8, 12]}
    settings = step_settings(steps) | {
        "model": "capsnet",
        "model_options": options,
        "data": "digits",
        "epoch_size": 8 * steps // 2,
        "epochs": 2,
        "device": "cpu",
        "img_size": 20,
        "holdout": 50,
        **CHANGES,
    }
    config = config_class().of(**spell_settings(settings))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        tc.training.train(config, run)
        for file in run.glob("*.jsonl"):
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            for kind in ("step", "epoch"):
                matching_rows = [row for row in rows if row.get("kind") == kind]
                record.add(f"metrics of each {kind}", history_figures(matching_rows))
        model = tc.load(run)
    record.add_group("weights", model.state_dict().items())
    with torch.no_grad():
        record.add("outputs", model(digits("test").float_images()))
    return record
