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
    trained: dict[str, Any] = {
        "num_classes": len(about["classes"]),
        "in_chans": preprocess.in_chans,
        "img_size": preprocess.model_size,
    }
    sizes = trained | {key: size for key, size in given.items() if size is not None}
    sizes["img_size"] = size_pair(sizes["img_size"])
    for key in ("in_chans", "img_size"):
        if sizes[key] != trained[key]:
            raise ArgumentError(
                key, f"the weights of {name} are for {trained[key]}, got {sizes[key]}"
            )
    options = about["options"] | options
    weights = load_file(file)
    with torch.device("meta"):
        state = build(**trained, **options).state_dict()
    for key in state.keys() - _fitting(state, weights).keys():
        raise ArgumentError(
            "pretrained", f"the weights of {name} do not fit these options, such as {key}"
        )
    model = build(**sizes, **options)
    model.load_state_dict(_fitting(model.state_dict(), weights), strict=False)
    classes = tuple(about["classes"]) if sizes["num_classes"] == trained["num_classes"] else ()
    metadata = ModelMetadata(classes, preprocess, about["task"], name=name, options=sizes | options)
    set_model_metadata(model, metadata)
    return model


def _fitting(state: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights that a model's state has a place for."""
    return {
        key: tensor
        for key, tensor in weights.items()
        if key in state and state[key].shape == tensor.shape
    }


def _described(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()["torchcaps"]))
