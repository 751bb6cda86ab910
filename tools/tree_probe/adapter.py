"""The one place that knows what a redesign renames: adapting to a rename is one line here.

Cases use standard names. This module finds what the tree that is imported calls the same things.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import product
from typing import Any

import torch
from torch import nn

import torchcaps as tc

# Standard name -> names that a tree may have for the same thing. Of two standard names with the
# same other name, the first one is that of a key.
RENAMED: dict[str, tuple[str, ...]] = {
    # tasks, settings and their values
    "aspect": ("squish",),
    "color_jitter": ("relight",),
    "morphology": ("thicken",),
    "multilabel": ("several",),
    "optimizer": ("optimiser",),
    "unsupervised": ("discover",),
    "warmup_cosine": ("short",),
    # options of models and routers
    "normalized": ("normalised",),
    "batch_norm": ("normalised",),
    "centers": ("centres",),
    "standardized": ("standardised",),
    # keys of losses and figures, and implementations
    "blocked": ("cpu",),
    "localization": ("localisation",),
    # functions, methods and attributes
    "is_dense": ("pixels",),
    "model_info": ("model_passport",),
    "augment": ("sample_batch", "batch"),
    "training_step": ("forward",),
    "with_iterations": ("stopped",),
}

# Renamed parts of the names of weights: pattern -> what stands in its place.
RENAMED_WEIGHTS: dict[str, str] = {
    r"\bcentres\b": "centers",
    r"(^|\.)names$": r"\1cluster_classes",
    r"\brecognise\b": "recognize",
    r"\bpart_capsules\.see\.": "part_capsules.encoder.",
    r"\bpart_capsules\.tell\.": "part_capsules.head.",
    r"\bpart_capsules\.colour\.": "part_capsules.color.",
    r"\bpart_capsules\.ground\b": "part_capsules.background",
    r"\bpart_capsules\.ground_share\b": "part_capsules.background_logit",
    r"\bpart_capsules\.place\b": "part_capsules.position_bias",
    r"\bobject_capsules\.rest\b": "object_capsules.output_bias",
    r"(\bobject_capsules\.blocks\.\d+)\.each\.": r"\1.mlp.",
    r"(\bobject_capsules\.blocks\.\d+)\.first\.": r"\1.norm1.",
    r"(\bobject_capsules\.blocks\.\d+)\.second\.": r"\1.norm2.",
    r"(\bobject_capsules\.blocks\.\d+)\.mix\.": r"\1.qkv.",
}


def spellings(name: Any) -> tuple[Any, ...]:
    """A name and the others that a tree may have for it; anything but text is itself alone."""
    return (name, *RENAMED.get(name, ())) if isinstance(name, str) else (name,)


def standard_name(name: str) -> str:
    """The name by which both trees know a thing."""
    for standard, synonyms in RENAMED.items():
        if name in synonyms:
            return standard
    return name


def standard_key(key: str) -> str:
    """The key of a loss or figure, also with the part of the data before it."""
    for prefix in ("train_", "val_"):
        if key.startswith(prefix):
            return prefix + standard_name(key.removeprefix(prefix))
    return standard_name(key)


def own_name_of(owner: Any, *names: str) -> str:
    """The first of these names, in any spelling, that `owner` has as an attribute."""
    for name in names:
        for spelling in spellings(name):
            if hasattr(owner, spelling):
                return spelling
    raise LookupError(f"{owner!r} has none of: {', '.join(names)}")


def first_of(owner: Any, *names: str) -> Any:
    """The attribute of `owner` by the first of these names that it has in any spelling."""
    return getattr(owner, own_name_of(owner, *names))


def tree_spelling(name: str, names: Iterable[str]) -> str:
    """The spelling of a name that is among these."""
    tree_names = list(names)
    for spelling in spellings(name):
        if spelling in tree_names:
            return spelling
    raise LookupError(f"{name} is none of: {', '.join(tree_names)}")


def config_class() -> Any:
    return first_of(tc.training, "TrainConfig")


def spell_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names and words that this tree knows."""
    spelled = {}
    for name, setting in settings.items():
        if name == "task":
            setting = tree_spelling(setting, tc.tasks.list_tasks())
        elif name == "loss":
            setting = tree_spelling(setting, own_loss_names(settings["task"]))
        elif name == "optimizer":
            setting = tree_spelling(setting, own_optimizer_names())
        spelled |= spell_setting(name, setting)
    return spelled


def spell_setting(name: str, setting: Any) -> dict[str, Any]:
    for tree_name in spellings(name):
        for tree_setting in spellings(setting):
            with suppress(ValueError, TypeError):
                config_class().of(**{tree_name: tree_setting})
                return {tree_name: tree_setting}
    raise LookupError(f"no spelling of {name}={setting!r} is a setting")


def call_spelled(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function by whatever its options are called in this tree; all draws have seed 0."""
    errors = []
    for names in product(*map(spellings, options)):
        torch.manual_seed(0)
        try:
            return function(*arguments, **dict(zip(names, options.values(), strict=True)))
        except TypeError as error:
            errors.append(error)
    raise errors[0]


def build_model(name: str, **options: Any) -> nn.Module:
    """A model with weights of seed 0."""
    return call_spelled(tc.create_model, tree_spelling(name, tc.list_models()), **options)


def model_sizes(name: str) -> dict[str, Any]:
    """Sizes that a model was published for, in the order in which they are tried."""
    info = first_of(tc.models, "model_info")(tree_spelling(name, tc.list_models()))
    return {"in_chans": info.in_chans, "img_size": info.img_size}


def own_loss_names(task: str) -> list[str]:
    """What the losses of a task are called in this tree; "auto" alone for a task of one loss."""
    task_name = tree_spelling(task, tc.tasks.list_tasks())
    task_type = tc.tasks.task_class(task_name, nn.Identity())
    return sorted(first_of(task_type, "losses")) or ["auto"]


def registered_names(*places: str) -> list[str] | None:
    """Names in the first of these registries that is there, each as `module.attribute`."""
    for place in places:
        module_name, _, attribute = place.rpartition(".")
        with suppress(ImportError, AttributeError):
            return list(getattr(import_module(f"torchcaps.{module_name}"), attribute))
    return None


def own_optimizer_names() -> list[str]:
    """What the registered optimizers are called in this tree."""
    names = registered_names("training.optimizers.OPTIMIZERS", "training.optim._OPTIMISERS")
    if names is None:
        raise LookupError("this tree has no known registry of optimizers")
    return names


def own_schedule_names() -> list[str]:
    """What schedules are called in this tree: registered, or words that the setting may have."""
    registered = registered_names("training.schedules.SCHEDULES")
    if registered is not None:
        return registered
    hints = typing.get_type_hints(type(config_class()().schedule))
    names = []
    for kind in typing.get_args(hints["name"]):
        names += typing.get_args(kind)
    return names


def own_augmentation_names() -> list[str]:
    """What the settings of the augmentation are called in this tree."""
    return [field.name for field in dataclasses.fields(config_class()().augmentation)]


# What the parts of a batch and of a set were called before they were inputs and targets.
PARTS = {"images": "inputs", "points": "inputs", "source": "inputs", "masks": "mask"}


def parts_of_batch(batch: Any) -> dict[str, torch.Tensor]:
    """The tensors of a batch of a training by their names of now, in one order."""
    fields = dict(batch._asdict())
    if "targets" in fields:
        fields = {"inputs": fields["inputs"], **fields["targets"]}
        fields.pop("labels", None)  # which say no more than "single_label"
    else:
        labels = fields.pop("labels", None)
        if labels is not None and fields.get("masks") is None:
            fields["label" if labels.dim() == 1 else "single_label"] = labels
        noise = fields.pop("noise", None)
        if noise is not None:
            fields |= {f"noise.{name}": part for name, part in noise._asdict().items()}
    parts = {PARTS.get(name, name): part for name, part in fields.items() if part is not None}
    return {name: parts[name] for name in sorted(parts) if name not in ("top", "left")}


def labels_of(images: Any) -> torch.Tensor:
    """The class of each image `[n]`, or the classes of its two parts `[n, 2]`."""
    targets = getattr(images, "targets", {})
    return targets.get("single_label", images.labels)


def masks_of(images: Any) -> torch.Tensor | None:
    """The class of each pixel, where a set has masks."""
    return getattr(images, "targets", {}).get("mask", getattr(images, "masks", None))


def with_parts(images: Any, /, **parts: Any) -> Any:
    """A set with other images, labels or classes."""
    if hasattr(images, "targets"):
        if "labels" in parts:
            parts["targets"] = {**images.targets, "label": parts.pop("labels")}
        if "images" in parts:
            parts["inputs"] = parts.pop("images")
    return dataclasses.replace(images, **parts)


@contextmanager
def comparable_trainings() -> Iterator[None]:
    """While the block runs, trees differ in nothing but what they compute.

    Sets that draw their items anew do so by a seed of each step, that of the step plus one. A
    forecast of memory, which would take steps of its own, is left out.
    """
    with ExitStack() as stack:
        fitting = import_module("torchcaps.training.fitting")
        if hasattr(fitting, "check_cost"):
            stack.callback(setattr, fitting, "check_cost", fitting.check_cost)
            fitting.check_cost = lambda *_args, **_kwargs: ""
        sampling = import_module("torchcaps.training.sampling")
        batches = sampling
        if not hasattr(sampling, "DatasetBatches"):
            batches = import_module("torchcaps.training.batches")
        seed_of = sampling.step_seed
        if hasattr(batches, "step_seed"):

            def own_seed(config: Any, step: int, stream: str = "0") -> int:
                if stream != sampling.ITEMS:
                    return seed_of(config, step, stream)
                return seed_of(config, step) + 1

            stack.callback(setattr, batches, "step_seed", batches.step_seed)
            batches.step_seed = own_seed
        else:
            for name in ("PairSet", "PlacedSet"):
                kind = getattr(tc.data, name)
                stack.callback(setattr, kind, "sample_batch", kind.sample_batch)
                kind.sample_batch = _seeded(kind.sample_batch)
        yield


def _seeded(method: Callable[..., Any]) -> Callable[..., Any]:
    def sample_batch(self: Any, indices: Any, *, generator: torch.Generator) -> Any:
        own = torch.Generator().manual_seed(generator.initial_seed() + 1)
        return method(self, indices, generator=own)

    return sample_batch
