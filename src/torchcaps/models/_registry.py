"""The registry of models: names, passports, construction."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from typing import Any

import torch
from torch import nn

from torchcaps import plugins
from torchcaps.models._pretrained import FOLDER, pretrained_model
from torchcaps.nn import use_generator

Builder = Callable[..., nn.Module]


@dataclass(frozen=True)
class ModelInfo:
    """Where a model comes from, the sizes it was published for, and what was published of it."""

    title: str  # of the paper
    year: int
    arxiv: str  # identifier, or empty
    img_size: tuple[int, int]  # (height, width)
    in_chans: int
    num_classes: int  # 0 where labels have no part in it, and it is not told of classes
    parameters: int  # at those sizes
    published: str  # the paper's own figure, in words
    named: bool = (
        False  # its builder takes the names of the classes, as `classes`, for their label tree
    )


_MODELS: dict[str, tuple[Builder, ModelInfo]] = {}


def register_model(passport: ModelInfo) -> Callable[[Builder], Builder]:
    """Decorator for a builder function: its name is the model's name."""

    def register(builder: Builder) -> Builder:
        enlist(builder.__name__, builder, passport)
        return builder

    return register


def enlist(name: str, builder: Builder, passport: ModelInfo, **options: Any) -> None:
    """Make a model known that is built with these options unless others are given."""
    _MODELS[name] = (partial(builder, **options), passport)


def variant(name: str, of: str, **changes: Any) -> None:
    """Make a model known that differs from another by what its passport says, and by options of its builder."""
    builder, passport = _MODELS[of]
    facts = {key: changes.pop(key) for key in vars(passport) if key in changes}
    enlist(name, builder, replace(passport, **facts), **changes)


def list_models(filter: str = "*", pretrained: bool = False) -> list[str]:
    """Names of the models that match a wildcard such as "caps*"; with `pretrained`, of those whose weights come with
    the package."""
    names = [name for name in plugins.names(_MODELS) if fnmatch(name, filter)]
    return (
        [name for name in names if (FOLDER / f"{name}.safetensors").is_file()]
        if pretrained
        else names
    )


def model_info(name: str) -> ModelInfo:
    """The passport of a model; ValueError for an unknown name."""
    return plugins.find("model", name, _MODELS)[1]


def create_model(
    name: str,
    pretrained: bool = False,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> nn.Module:
    """Build a model by name (see `list_models()`). Sizes not given are those it was published for.

    Args:
        pretrained: take the weights that come with the package, and the options that they were trained with; see
            `weights_info`. With another `num_classes`, the layers that depend on it start anew.
        num_classes, in_chans: at least 1.
        img_size: height and width in pixels, or one number for both.
        generator: draws the weights, the same for equal seeds whatever other threads draw; None is torch's own.
        options: the model's own; see its class.

    Raises:
        ValueError: for an unknown name, a size that the model cannot take, or weights that are not there or do not fit.
        TypeError: for an option that the model does not take.

    Example:
        >>> model = create_model("capsnet", num_classes=3, in_chans=3, img_size=(40, 28))
    """
    builder, passport = plugins.find("model", name, _MODELS)
    given = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size}
    sizes = {
        key: getattr(passport, key) if value is None else value for key, value in given.items()
    }
    if not passport.num_classes:
        del sizes["num_classes"]
    with nullcontext() if generator is None else use_generator(generator):
        return (
            pretrained_model(name, builder, given, options)
            if pretrained
            else builder(**sizes, **options)
        )
