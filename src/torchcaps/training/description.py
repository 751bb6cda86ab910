"""What a model file says of its model, held against the tensors in it before memory is taken for either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from torchcaps.errors import RunError, check_regular, one_line
from torchcaps.nn.routed import names_now

KEY = "torchcaps"  # of the JSON in the header
COSTS = (".beta_u", ".beta_a")  # of EM routing: one pair for all parents in files of earlier versions
MOST_HEADER = 16 << 20  # bytes: names of a hundred thousand classes take a fifth of it

Shapes = dict[str, tuple[list[int], str]]  # name of a tensor -> sizes, and type in the file's words


def read_header(path: Path) -> tuple[Shapes, dict[str, Any]]:
    """Names, sizes and types of a file's tensors, and its description; no tensor is read.

    RunError for what is no safetensors file of this library, or has a header of more than 16 MiB.
    """
    try:
        check_regular(path)
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
        if size > MOST_HEADER:
            raise ValueError(f"expected a header of at most {MOST_HEADER} bytes, got {size}")
        with safe_open(path, framework="pt") as tensors:
            text = (tensors.metadata() or {}).get(KEY, "null")
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (no mapping)
            shapes = {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
        about = json.loads(text)
    except RecursionError as error:
        raise RunError(f"{path}: is no readable checkpoint (its description is nested too deep)") from error
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(f"{path}: is no readable checkpoint ({one_line(str(error))})") from error
    if not isinstance(about, dict):
        raise RunError(f"{path}: was not written by torchcaps (its header says nothing of a model)")
    return shapes, about


def check_description(about: dict[str, Any]) -> None:
    """Raise ValueError unless a description has values of the kinds that `describe_model` writes."""
    model, options, classes = about["model"], about["options"], about["classes"]
    if not isinstance(model, str):
        raise ValueError(f"model: expected a name, got {one_line(repr(model))}")
    if not isinstance(options, dict):
        raise ValueError(f"options: expected values by name, got {one_line(repr(options))}")
    try:
        json.dumps(options, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"options: expected finite numbers ({error})") from None
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f"classes: expected a list of names, got {one_line(repr(classes))}")


def check_fit(shapes: Shapes, model: nn.Module) -> None:
    """Raise ValueError unless a file's tensors are those of the model's state, in name, sizes and kind of number."""
    state, now = model.state_dict(), names_now(shapes, model)
    shapes = {now[name]: found for name, found in shapes.items()}
    for what, names in (("missing", state.keys() - shapes.keys()), ("unexpected", shapes.keys() - state.keys())):
        if names:
            raise ValueError(f"{what} weights: {', '.join(sorted(names)[:3])}")
    for name, tensor in state.items():
        sizes, kind = shapes[name]
        shared = sizes == [1] and name.endswith(COSTS)
        if sizes != list(tensor.shape) and not shared:
            raise ValueError(f"size mismatch for {name}: {sizes} in the file, {list(tensor.shape)} by its description")
        if kind.startswith(("F", "BF")) != tensor.is_floating_point():
            raise ValueError(f"{name}: expected {tensor.dtype}, got {kind}")


def check_numbers(state: dict[str, Tensor]) -> None:
    """Raise ValueError unless every number of a model's state is finite."""
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds infinite numbers or NaN")
