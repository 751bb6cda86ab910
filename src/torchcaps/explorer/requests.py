"""The values of a request, each checked when it is asked for.

Pictures are base64 of their bytes, row by row, the channels of a pixel together.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchcaps.data.pixels import fit_images
from torchcaps.errors import ArgumentError, check_range
from torchcaps.explorer.pictures import Motion, Picture, move
from torchcaps.explorer.session import Session

MAX_INTEGER = 2**31


class Request:
    """A request about one model. Every method raises ValueError for a value that does not fit.

    Args:
        body: a JSON object; "model" says which session it is about, by default the first.
        sessions: of the page. Its pictures have the shape of the first one's.

    Attributes:
        uniform: whether every class gets the same share of every child, as "uniform".
    """

    def __init__(self, body: bytes, sessions: Sequence[Session]) -> None:
        self.values = parse_object(body)
        self.session = sessions[self.integer("model", 0, len(sessions) - 1, default=0)]
        self.uniform = self.values.get("uniform", False)
        if not isinstance(self.uniform, bool):
            raise ArgumentError("uniform", "expected true or false")
        self._shape = sessions[0].shape

    def integer(
        self,
        name: str,
        low: int = 0,
        high: int = MAX_INTEGER,
        default: int | None = None,
    ) -> int:
        """A whole number.

        Args:
            name: of the value.
            low: the smallest that is allowed.
            high: the largest that is allowed.
            default: where there is no value.
        """
        number = int(self.numbers(name, 0, MAX_INTEGER, default, kinds="i"))
        check_range(name, number, low=low, high=high)
        return number

    def numbers(
        self,
        name: str,
        num_axes: int,
        limit: float,
        default: float | Sequence[float] | None = (),
        *,
        kinds: str = "if",
    ) -> NDArray[Any]:
        """A number, or nested lists of numbers, as an array.

        Args:
            name: of the value.
            num_axes: how deep the lists are nested, 0 to 2.
            limit: the largest absolute value.
            default: where there is no value.
            kinds: of numbers: "i" for whole ones, "if" for all.
        """
        try:
            numbers = np.array(self.values.get(name, default))
        except ValueError:  # lists of different lengths
            numbers = np.array(None)
        is_numeric = numbers.size == 0 or numbers.dtype.kind in kinds
        if (
            not is_numeric
            or numbers.ndim != num_axes
            or (np.abs(numbers.astype(float)) > limit).any()
        ):
            noun = "whole number" if kinds == "i" else "number"
            nouns = f"a {noun}", f"a list of {noun}s", f"a list of equally long lists of {noun}s"
            raise ArgumentError(name, f"expected {nouns[num_axes]}, at most ±{limit:g}")
        return numbers

    def classes(self) -> list[int]:
        """Capsules to decode, as "classes"; by default none."""
        labels: list[int] = self.numbers("classes", 1, MAX_INTEGER, kinds="i").tolist()
        return labels

    def motion(self) -> Motion:
        """A motion, as "motion"; by default none."""
        try:
            return Motion(**self.values.get("motion", {}))
        except TypeError:
            names = ", ".join(Motion.LIMITS)
            raise ArgumentError("motion", f"expected an object of numbers for {names}") from None

    def image(self, name: str = "image") -> Picture:
        """A picture of the page, as the model takes it."""
        channels, height, width = self._shape
        try:
            pixels = np.frombuffer(base64.b64decode(self.values[name], validate=True), np.uint8)
            array = pixels.reshape(height, width, channels).transpose(2, 0, 1)
        except (KeyError, TypeError, ValueError):
            size = channels * height * width
            raise ArgumentError(name, f"expected {size} bytes in base64") from None
        images = torch.from_numpy(array.copy()).unsqueeze(0)
        return fit_images(images, self.session.preprocess.model_size, self.session.shape[0])[0]

    def transformed_image(self) -> Picture:
        """The picture after the motion."""
        image = self.image()
        return move(image, self.motion()) if "motion" in self.values else image


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
        _check_finite(image)
        image = image.mul(255).round().clamp(0, 255).to(torch.uint8)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    return base64.b64encode(pixels.tobytes()).decode()


def as_lists(values: Tensor | None) -> Any:
    """Nested lists of numbers with five digits; None for None."""
    if values is None:
        return None
    _check_finite(values)
    return np.round(values.cpu().double().numpy(), 5).tolist()


def _check_finite(values: Tensor) -> None:
    """Raise ValueError where a value is NaN or infinite."""
    if not torch.isfinite(values).all():
        raise ValueError("this model gives values that are not finite; its training failed")
