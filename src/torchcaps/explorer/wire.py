"""What comes in, checked value by value, and what goes out: pictures as base64, numbers as JSON."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.explorer.session import MOST_DECODED, Routing
from torchcaps.explorer.transform import LIMITS, Motion

LARGEST = 1e4  # of a number in a pose

Body = Mapping[str, Any]


class Refused(Exception):
    """A request that is not answered: a status, and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def parsed(body: bytes) -> Body:
    """A JSON object without NaN or infinity."""

    def constant(name: str) -> float:
        raise Refused(400, f"the body is no JSON ({name} is no number of it)")

    try:
        found = json.loads(body.decode(), parse_constant=constant)
    except json.JSONDecodeError as error:
        raise Refused(400, f"the body is no JSON ({error.msg[:60]}, at character {error.pos})") from None
    except (ValueError, RecursionError):
        raise Refused(
            400, "the body is no JSON that can be read: UTF-8, numbers of some digits, lists not too deep"
        ) from None
    if not isinstance(found, dict):
        raise Refused(400, f"expected a JSON object, got {type(found).__name__}")
    return found


def integer(body: Body, name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number of a request, within its bounds."""
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Refused(400, f"{name}: expected a whole number from {low} to {high}")
    return value


def number(body: Body, name: str, low: float, high: float, default: float = 0.0) -> float:
    """A finite number of a request, within its bounds."""
    value = body.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise Refused(400, f"{name}: expected a number from {low:g} to {high:g}")
    return float(value)


def numbers(value: Any, name: str, most: int, largest: float) -> list[float]:
    """A list of finite numbers."""
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise Refused(400, f"{name}: expected a list of 1 to {most} numbers")
    return [number({name: item}, name, -largest, largest) for item in value]


def labels(body: Body, name: str) -> list[int]:
    """A list of classes, which may be empty; the session knows which classes there are."""
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > MOST_DECODED:
        raise Refused(400, f"{name}: expected a list of at most {MOST_DECODED} classes")
    return [integer({name: item}, name, 0, 2**31) for item in value]


def poses(body: Body, dim: int) -> Tensor:
    """Poses `[n, dim]` of a request."""
    value = body.get("poses")
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_DECODED:
        raise Refused(400, f"poses: expected a list of 1 to {MOST_DECODED} poses")
    rows = [numbers(row, "poses", max(dim, 1), LARGEST) for row in value]
    if any(len(row) != dim for row in rows):
        raise Refused(400, f"poses: expected {dim} numbers in each")
    return torch.tensor(rows)


def routing(body: Body) -> Routing:
    """Whether the couplings are those of the model."""
    value = body.get("uniform", False)
    if not isinstance(value, bool):
        raise Refused(400, "uniform: expected true or false")
    return "uniform" if value else "trained"


def motion(body: Body) -> Motion:
    """How far a picture is turned, resized and moved."""
    value = body.get("motion", {})
    if not isinstance(value, dict):
        raise Refused(400, "motion: expected an object")
    changing = value.get("changing", "degrees")
    if not isinstance(changing, str) or changing not in LIMITS:
        raise Refused(400, f"changing: expected one of {', '.join(LIMITS)}")
    whole = Motion()
    amounts = {name: number(value, name, *bounds, getattr(whole, name)) for name, bounds in LIMITS.items()}
    return Motion(**amounts, changing=changing)


def pixels(body: Body, name: str, shape: tuple[int, int, int]) -> Tensor:
    """A picture of a request: base64 of its bytes, row by row, the channels of a pixel together."""
    value = body.get(name)
    if not isinstance(value, str):
        raise Refused(400, f"{name}: expected base64")
    try:
        raw = base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise Refused(400, f"{name}: expected base64") from None
    channels, height, width = shape
    if len(raw) != channels * height * width:
        raise Refused(400, f"{name}: expected {channels * height * width} bytes, got {len(raw)}")
    array = np.frombuffer(raw, dtype=np.uint8).reshape(height, width, channels)
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


def text_of(image: Tensor) -> str:
    """A picture as base64, row by row; floats in [0, 1] are rounded to bytes."""
    if image.dtype != torch.uint8:
        image = finite(image).mul(255).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(image.permute(1, 2, 0).contiguous().numpy().tobytes()).decode()


def plain(values: Tensor) -> Any:
    """Nested lists of numbers with five digits, as JSON can hold them."""
    return np.round(finite(values).double().cpu().numpy(), 5).tolist()


def finite(values: Tensor) -> Tensor:
    """The same values, if all are finite."""
    if not torch.isfinite(values).all():
        raise ValueError("this model gives values that are not finite; its training failed")
    return values
