"""Weights that come with the package: one file a model, as `torchcaps.load` reads it, with its own description."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from torchcaps.data import Preprocess
from torchcaps.data.pixels import size_pair
from torchcaps.errors import ArgumentError
from torchcaps.types import ModelMetadata, set_model_metadata

FOLDER = Path(__file__).parent / "weights"
SHOWN = "capsnet_small"  # what commands take that are given no run


def weights_file(name: str = SHOWN) -> Path:
    """The file of a model's weights, a path for `torchcaps.load` and every command; ValueError if there is none."""
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.safetensors"))) or "no model"
        raise ArgumentError(
            "pretrained",
            f"no weights of {name!r} come with the package, only of {known}; "
            f"train it with `torchcaps train {name}`",
        )
    return path


def weights_info(name: str) -> dict[str, Any]:
    """Where these weights come from: "data", "seed", "accuracy" on its test images, "command", "license", "torch".
    ValueError if none come with the package."""
    return dict(_described(weights_file(name))["weights"])


def pretrained_model(
    name: str, build: Callable[..., nn.Module], given: dict[str, Any], options: dict[str, Any]
) -> nn.Module:
    """A model with the weights of the package, and with `.preprocess`; for other classes their layers start anew.

    `given` are sizes that were asked for, or None; `options` take the place of those that the weights were trained
    with. ValueError: there are no weights, or sizes or options are none that they fit."""
    file = weights_file(name)
    about = _described(file)
    preprocess = Preprocess.from_dict(about["preprocess"])
    sizes = {
        "num_classes": len(about["classes"]),
        "in_chans": preprocess.in_chans,
        "img_size": preprocess.model_size,
    }
    wanted = {key: size for key, size in given.items() if size is not None}
    if "img_size" in wanted:
        wanted["img_size"] = size_pair(wanted["img_size"])
    for key in ("in_chans", "img_size"):
        if wanted.get(key, sizes[key]) != sizes[key]:
            raise ArgumentError(
                key, f"the weights of {name} are for {sizes[key]}, got {wanted[key]}"
            )
    options, weights = about["options"] | options, load_file(file)
    with torch.device("meta"):
        _fitting(name, build(**sizes, **options), weights, strict=True)
    model: Any = build(**sizes | wanted, **options)
    model.load_state_dict(_fitting(name, model, weights), strict=False)
    classes = tuple(about["classes"]) if model.num_classes == sizes["num_classes"] else ()
    metadata = ModelMetadata(
        classes, preprocess, about["task"], name=name, options=sizes | wanted | options
    )
    set_model_metadata(model, metadata)
    return model


def _fitting(
    name: str, model: nn.Module, weights: dict[str, Tensor], strict: bool = False
) -> dict[str, Tensor]:
    """The weights that a model has a place for; ValueError where it must find all of its own and does not."""
    found = {}
    for key, tensor in model.state_dict().items():
        if key in weights and weights[key].shape == tensor.shape:
            found[key] = weights[key]
        elif strict:
            raise ArgumentError(
                "pretrained", f"the weights of {name} do not fit these options, such as {key}"
            )
    return found


def _described(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()["torchcaps"]))
