"""What a request holds, each value checked by its name; and answers as JSON.

Pictures are base64 of their bytes, row by row, the channels of a pixel together.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.pixels import fit_images
from torchcaps.errors import ArgumentError
from torchcaps.explorer.pictures import Motion, Picture
from torchcaps.explorer.session import Session

MAX_INTEGER = 2**31
MAX_AMOUNT = max(high for _, high in Motion.LIMITS.values())
MAX_POSE = 1e4  # of a number in a pose
PICTURES = ("image", "drawn")  # in an answer


def read_numbers(
    name: str, content: Any, num_axes: int, limit: float = MAX_INTEGER, *, kinds: str = "i"
) -> Any:
    """A number, or nested lists of numbers.

    Args:
        name: of the value.
        content: what the request has.
        num_axes: how deep the lists are nested, 0 to 2.
        limit: the largest absolute value.
        kinds: of numbers: "i" for whole ones, "if" for all.

    Raises:
        ArgumentError: for anything else.
    """
    try:
        numbers = np.array(content)
    except ValueError:  # lists of different lengths
        numbers = np.array(None)
    is_numeric = numbers.size == 0 or numbers.dtype.kind in kinds
    if not is_numeric or numbers.ndim != num_axes or (np.abs(numbers.astype(float)) > limit).any():
        noun = "whole number" if kinds == "i" else "number"
        nouns = f"a {noun}", f"a list of {noun}s", f"a list of equally long lists of {noun}s"
        raise ArgumentError(name, f"expected {nouns[num_axes]}, at most ±{limit:g}")
    return numbers.tolist()


def _read_tensor(name: str, content: Any, num_axes: int) -> Tensor:
    return torch.tensor(read_numbers(name, content, num_axes, MAX_POSE, kinds="if")).float()


def _read_bool(name: str, content: Any) -> bool:
    if not isinstance(content, bool):
        raise ArgumentError(name, "expected true or false")
    return content


def _read_motion(name: str, content: Any) -> Motion:
    try:
        return Motion(**content)
    except TypeError:
        names = ", ".join(Motion.LIMITS)
        raise ArgumentError(name, f"expected an object of numbers for {names}") from None


read_integer = partial(read_numbers, num_axes=0)
read_amount = partial(read_numbers, num_axes=0, limit=MAX_AMOUNT, kinds="if")
READERS: dict[str, Callable[[str, Any], Any]] = {
    "label": read_integer,
    "index": read_integer,
    "count": read_integer,
    "start": read_integer,
    "classes": partial(read_numbers, num_axes=1),
    "values": partial(read_amount, num_axes=1),
    "right": read_amount,
    "down": read_amount,
    "poses": partial(_read_tensor, num_axes=2),
    "activations": partial(_read_tensor, num_axes=1),
    "uniform": _read_bool,
    "motion": _read_motion,
}
"""Name of a value -> a function of its name and of what the request has."""


def read_arguments(
    values: Mapping[str, Any], function: Callable[..., Any], session: Session, shape: Any
) -> dict[str, Any]:
    """What a view takes of a request, by name.

    Args:
        values: of the request.
        function: of the view, whose parameters say what it takes.
        session: the model.
        shape: (channels, height, width) of the page's pictures.

    Raises:
        ArgumentError: for a value that does not fit, or is missing.
    """
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in values and (name == "session" or parameter.default is not parameter.empty):
            continue
        content = values.get(name)
        if name in ("image", "second"):
            arguments[name] = _read_picture(name, content, session, shape)
        else:
            arguments[name] = READERS[name](name, content) if name in READERS else content
    return arguments


def _read_picture(name: str, content: Any, session: Session, shape: Any) -> Picture:
    """A picture of the page, as the model takes it."""
    channels, height, width = shape
    try:
        pixels = np.frombuffer(base64.b64decode(content, validate=True), np.uint8)
        array = pixels.reshape(height, width, channels).transpose(2, 0, 1)
    except (TypeError, ValueError):
        size = channels * height * width
        raise ArgumentError(name, f"expected {size} bytes in base64") from None
    images = torch.from_numpy(array.copy()).unsqueeze(0)
    return fit_images(images, session.preprocess.model_size, session.shape[0])[0]


def parse_object(body: bytes) -> Mapping[str, Any]:
    """A JSON object without NaN or infinity. Raises ValueError for anything else."""

    def refuse(name: str) -> float:
        raise ValueError(name)

    try:
        values = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ValueError("expected a JSON object in UTF-8, with finite numbers")
    return values


def as_base64(image: Tensor) -> str:
    """A picture for an answer; floats in [0, 1] are rounded to bytes."""
    if image.dtype != torch.uint8:
        image = image.mul(255).round().clamp(0, 255).to(torch.uint8)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    return base64.b64encode(pixels.tobytes()).decode()


def as_json(content: Any, name: str = "") -> Any:
    """An answer ready for JSON, with numbers of five digits and pictures as base64.

    Raises ValueError where a number is NaN or infinite.
    """
    if isinstance(content, dict):
        return {key: as_json(inner, key) for key, inner in content.items()}
    if isinstance(content, list):
        return [as_json(inner, name) for inner in content]
    if not isinstance(content, Tensor):
        return content
    if not torch.isfinite(content).all():
        raise ValueError("this model gives values that are not finite; its training failed")
    if name in PICTURES:
        return as_base64(content) if content.dim() == 3 else list(map(as_base64, content))
    return np.round(content.cpu().double().numpy(), 5).tolist()
