"""Fields of a request, checked value by value, and of an answer: pictures as base64, numbers as JSON."""

import base64
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


def parsed(body: bytes) -> Body:
    """A JSON object without NaN or infinity. This function and those below raise ValueError, in one sentence."""

    def constant(name: str) -> float:
        raise json.JSONDecodeError(f"{name} is no number of it", "", 0)

    try:
        found = json.loads(body.decode(), parse_constant=constant)
    except json.JSONDecodeError as error:
        place = f", at character {error.pos}" if error.doc else ""
        raise ValueError(f"the body is no JSON ({error.msg[:60]}{place})") from None
    except (ValueError, RecursionError):
        needed = "UTF-8, numbers of some digits, lists not too deep"
        raise ValueError(f"the body is no JSON that can be read: {needed}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {type(found).__name__}")
    return found


def integer(body: Body, name: str, low: int = 0, high: int = 2**31, default: int | None = None) -> int:
    """A whole number within its bounds."""
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name}: expected a whole number from {low} to {high}")
    return value


def number(body: Body, name: str, low: float, high: float, default: float = 0.0) -> float:
    """A finite number within its bounds."""
    value = body.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name}: expected a number from {low:g} to {high:g}")
    return float(value)


def listed(body: Body, name: str, least: int, most: int, what: str) -> list[Any]:
    """A list of so many values; it may be left out where it may be empty."""
    value = body.get(name, [])
    if not isinstance(value, list) or not least <= len(value) <= most:
        count = f"at most {most}" if least == 0 else f"{least} to {most}" if least < most else most
        raise ValueError(f"{name}: expected a list of {count} {what}")
    return value


def numbers(body: Body, name: str, least: int, most: int, largest: float) -> list[float]:
    """A list of finite numbers."""
    return [number({name: item}, name, -largest, largest) for item in listed(body, name, least, most, "numbers")]


def capsules(body: Body) -> list[int]:
    """Which capsules to draw, perhaps none; the session knows which ones there are."""
    return [integer({"classes": item}, "classes") for item in listed(body, "classes", 0, MOST_DECODED, "classes")]


def poses(body: Body, dim: int) -> Tensor:
    """Poses `[n, dim]`."""
    rows = listed(body, "poses", 1, MOST_DECODED, "poses")
    return torch.tensor([numbers({"poses": row}, "poses", dim, dim, LARGEST) for row in rows])


def routing(body: Body) -> Routing:
    """Whether the couplings are those of the model."""
    value = body.get("uniform", False)
    if not isinstance(value, bool):
        raise ValueError("uniform: expected true or false")
    return "uniform" if value else "trained"


def motion(body: Body) -> Motion:
    """How far a picture is turned, resized and moved."""
    value = body.get("motion", {})
    if not isinstance(value, dict):
        raise ValueError("motion: expected an object")
    changing = value.get("changing", Motion.changing)
    if changing not in [*LIMITS]:  # a list: not every value has a hash
        raise ValueError(f"changing: expected one of {', '.join(LIMITS)}")
    amounts = {name: number(value, name, *bounds, getattr(Motion, name)) for name, bounds in LIMITS.items()}
    return Motion(**amounts, changing=changing)


def pixels(body: Body, name: str, shape: tuple[int, int, int]) -> Tensor:
    """A picture: base64 of its bytes, row by row, the channels of a pixel together."""
    channels, height, width = shape
    try:
        raw = base64.b64decode(body[name], validate=True)
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{name}: expected base64") from None
    if len(raw) != channels * height * width:
        raise ValueError(f"{name}: expected {channels * height * width} bytes, got {len(raw)}")
    array = np.frombuffer(raw, dtype=np.uint8).reshape(height, width, channels)
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


def encoded(image: Tensor) -> str:
    """A picture as base64, row by row; floats in [0, 1] are rounded to bytes."""
    if image.dtype != torch.uint8:
        image = finite(image).mul(255).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(image.permute(1, 2, 0).contiguous().numpy().tobytes()).decode()


def plain(values: Tensor | None) -> Any:
    """Nested lists of numbers with five digits, as JSON can hold them."""
    return None if values is None else np.round(finite(values).double().cpu().numpy(), 5).tolist()


def finite(values: Tensor) -> Tensor:
    """The same values, if all are finite."""
    if not torch.isfinite(values).all():
        raise ValueError("this model gives values that are not finite; its training failed")
    return values
