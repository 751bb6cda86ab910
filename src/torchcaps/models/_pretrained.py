"""Weights that come with the package.

There is one file a model, as `torchcaps.load` reads it, with its own description.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from torchcaps.data import Preprocess
from torchcaps.data.pixels import size_pair
from torchcaps.errors import ArgumentError
from torchcaps.nn.generator import on_meta
from torchcaps.types import ModelMetadata, set_model_metadata

Options = Mapping[str, Any]  # arguments of a function, by name
Arguments = dict[str, Any]
Weights = Mapping[str, Tensor]

FOLDER = Path(__file__).parent / "weights"
DEFAULT_MODEL = "capsnet_small"  # of commands without a run


def weights_file(name: str = DEFAULT_MODEL) -> Path:
    """The file of a model's weights, a path for `torchcaps.load` and every command.

    Args:
        name: of the model.

    Returns:
        Path of the `.safetensors` file.

    Raises:
        ArgumentError: if none come with the package.

    Example:
        >>> model = torchcaps.load(weights_file("efficient_capsnet"))
    """
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        names = sorted(file.stem for file in FOLDER.glob("*.safetensors"))
        raise ArgumentError(
            "pretrained",
            f"no weights of {name!r} come with the package, only of "
            f"{', '.join(names) or 'no model'}; train it with `torchcaps train {name}`",
        )
    return path


def weights_info(name: str) -> Arguments:
    """The origin of a model's weights.

    Args:
        name: of the model.

    Returns:
        "data", "seed", "accuracy" on its test images, "command", "license", "torch" and more.

    Raises:
        ValueError: if none come with the package.
    """
    return dict(read_description(weights_file(name))["weights"])


def pretrained_model(
    name: str,
    build: Callable[..., nn.Module],
    sizes: Options,
    options: Options,
) -> nn.Module:
    """A model with the weights of the package, and with `.preprocess`.

    For other classes, the layers that depend on their number start anew.

    Args:
        name: of the model.
        build: its class or function.
        sizes: of the model by name; None for those of the weights.
        options: in place of those that the weights were trained with.

    Raises:
        ValueError: if there are no weights, or they do not fit these sizes or options.
    """
    file = weights_file(name)
    description = read_description(file)
    trained = described_sizes(description)
    all_sizes = trained | {key: size for key, size in sizes.items() if size is not None}
    all_sizes["img_size"] = size_pair(all_sizes["img_size"])
    for key in ("in_chans", "img_size"):
        if all_sizes[key] != trained[key]:
            raise ArgumentError(
                key, f"the weights of {name} are for {trained[key]}, got {all_sizes[key]}"
            )

    all_options = description["options"] | dict(options)
    weights = load_file(file)
    with on_meta():
        state = build(**trained, **all_options).state_dict()
    fitting = fitting_weights(state, weights)
    misfits = [key for key in state if key not in fitting]
    if misfits:
        raise ArgumentError(
            "pretrained", f"the weights of {name} do not fit these options, such as {misfits[0]}"
        )

    model = build(**all_sizes, **all_options)
    take_weights(model, weights)
    has_same_classes = all_sizes["num_classes"] == trained["num_classes"]
    set_model_metadata(
        model,
        ModelMetadata(
            tuple(description["classes"]) if has_same_classes else (),
            Preprocess.from_dict(description["preprocess"]),
            description["task"],
            name=name,
            options=all_sizes | all_options,
            calibration=description.get("calibration") if has_same_classes else None,
        ),
    )
    return model


def fitting_weights(state: Weights, weights: Weights) -> dict[str, Tensor]:
    """The weights that a model's state has a place for."""
    return {
        key: tensor
        for key, tensor in weights.items()
        if key in state and state[key].shape == tensor.shape
    }


def take_weights(model: nn.Module, weights: Weights) -> list[str]:
    """Load the weights whose names and shapes are those of a model; its others stay as they are.

    Args:
        model: which is changed.
        weights: by name, such as those of a model with other classes.

    Returns:
        Names of the weights that were loaded.
    """
    fitting = fitting_weights(model.state_dict(), weights)
    model.load_state_dict(fitting, strict=False)
    return list(fitting)


def described_sizes(description: Options) -> Arguments:
    """Sizes of the model of a description, as arguments of `create_model`."""
    preprocess = Preprocess.from_dict(description["preprocess"])
    return {
        "num_classes": len(description["classes"]),
        "in_chans": preprocess.in_chans,
        "img_size": preprocess.model_size,
    }


def read_description(path: Path) -> Arguments:
    """The description in a model file."""
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()["torchcaps"]))
