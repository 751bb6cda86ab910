"""The values of a request, each checked when it is asked for; numbers and pictures as JSON has them.

Pictures are base64 of their bytes, row by row, the channels of a pixel together.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import ArgumentError
from torchcaps.explorer.pictures import Motion, Picture, move

if TYPE_CHECKING:
    from torchcaps.explorer.session import Session


class Request:
    """A request about one model. Every method raises ValueError for a value that does not fit.

    Args:
        body: a JSON object; "model" says which session it is about, by default the first.
        sessions: of the page. Its pictures have the shape of the first one's.
    """

    def __init__(self, body: bytes, sessions: Sequence[Session]) -> None:
        self.values = parse_object(body)
        self.session = sessions[self.integer("model", 0, len(sessions) - 1, 0)]
        self._shape = sessions[0].shape

    def integer(
        self, name: str, low: int = 0, high: int = 2**31, default: int | None = None
    ) -> int:
        """A whole number."""
        return _integer(name, self.values.get(name, default), low, high)

    def number(self, name: str, low: float, high: float, default: float = 0.0) -> float:
        """A number, by default `default`."""
        return _number(name, self.values.get(name, default), low, high)

    def numbers(self, name: str, least: int, most: int, largest: float) -> list[float]:
        """So many numbers, of this size or smaller."""
        items = _items(name, self.values.get(name, []), least, most, "numbers")
        return [_number(name, item, -largest, largest) for item in items]

    def numbers_of_rows(
        self, name: str, least: int, most: int, length: int, largest: float
    ) -> list[list[float]]:
        """So many lists of numbers, all of one length."""
        rows = []
        for row in _items(name, self.values.get(name, []), least, most, name):
            items = _items(name, row, length, length, "numbers")
            rows.append([_number(name, item, -largest, largest) for item in items])
        return rows

    def label(self) -> int:
        """A capsule of the model, as "label"."""
        return self.integer("label", 0, len(self.session.names) - 1)

    def classes(self) -> list[int]:
        """Capsules to decode, as "classes"; by default none."""
        values = self.values.get("classes", [])
        items = _items("classes", values, 0, self.session.MAX_DECODED, "classes")
        return [_integer("classes", item, 0, 2**31) for item in items]

    def uniform(self) -> bool:
        """Whether every class gets the same share of every child, as "uniform"."""
        value = self.values.get("uniform", False)
        if not isinstance(value, bool):
            raise ArgumentError("uniform", "expected true or false")
        return value

    def motion(self) -> Motion:
        """A motion, as "motion"; by default none."""
        values = self.values.get("motion", {})
        if not isinstance(values, dict):
            raise ArgumentError("motion", "expected an object")
        changing = values.get("changing", Motion.changing)
        if changing not in list(Motion.LIMITS):  # a list: not every value has a hash
            raise ArgumentError("changing", f"expected one of {', '.join(Motion.LIMITS)}")
        amounts = {
            name: _number(name, values.get(name, getattr(Motion, name)), *limits)
            for name, limits in Motion.LIMITS.items()
        }
        return Motion(**amounts, changing=changing)

    def image(self, name: str = "image") -> Picture:
        """A picture of the page, as the model takes it."""
        channels, height, width = self._shape
        try:
            pixels = base64.b64decode(self.values[name], validate=True)
        except (KeyError, TypeError, ValueError):
            raise ArgumentError(name, "expected base64") from None
        size = channels * height * width
        if len(pixels) != size:
            raise ArgumentError(name, f"expected {size} bytes, got {len(pixels)}")
        array = np.frombuffer(pixels, dtype=np.uint8).reshape(height, width, channels)
        return self.session.fit(torch.from_numpy(array.transpose(2, 0, 1).copy()))

    def moved_image(self) -> Picture:
        """The picture after the motion."""
        image = self.image()
        return move(image, self.motion()) if "motion" in self.values else image


def parse_object(body: bytes) -> Mapping[str, Any]:
    """A JSON object without NaN or infinity. Raises ValueError for anything else."""

    def refuse(name: str) -> float:
        raise json.JSONDecodeError(f"{name} is no number of it", "", 0)

    try:
        values = json.loads(body.decode(), parse_constant=refuse)
    except json.JSONDecodeError as error:
        place = f", at character {error.pos}" if error.doc else ""
        raise ValueError(f"the body is no JSON ({error.msg[:60]}{place})") from None
    except (ValueError, RecursionError):
        needed = "UTF-8, numbers of some digits, lists not too deep"
        raise ValueError(f"the body is no JSON that can be read: {needed}") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object, got {type(values).__name__}")
    return values


def as_base64(image: Tensor) -> str:
    """A picture for an answer; floats in [0, 1] are rounded to bytes."""
    if image.dtype != torch.uint8:
        image = _check_finite(image).mul(255).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(image.permute(1, 2, 0).contiguous().numpy().tobytes()).decode()


def as_lists(values: Tensor | None) -> Any:
    """Nested lists of numbers with five digits; None for None."""
    if values is None:
        return None
    return np.round(_check_finite(values).double().cpu().numpy(), 5).tolist()


def _check_finite(values: Tensor) -> Tensor:
    if not torch.isfinite(values).all():
        raise ValueError("this model gives values that are not finite; its training failed")
    return values


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentError(name, f"expected a whole number from {low} to {high}")
    return value


def _number(name: str, value: Any, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentError(name, f"expected a number from {low:g} to {high:g}")
    return float(value)


def _items(name: str, value: Any, least: int, most: int, kind: str) -> list[Any]:
    if isinstance(value, list) and least <= len(value) <= most:
        return value
    count = f"{least} to {most}" if least else f"at most {most}"
    raise ArgumentError(name, f"expected a list of {most if least == most else count} {kind}")
