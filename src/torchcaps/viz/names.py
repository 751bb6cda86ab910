"""Names that fit, and which class is meant."""

from collections.abc import Sequence, Sized
from unicodedata import bidirectional

import numpy as np
from matplotlib import font_manager
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import ArgumentError, check_shape


def short(name: str, width: int) -> str:
    """`name` on one line of at most `width` characters, its middle left out where needed; `$` starts no formula."""
    text = " ".join(name.split())
    if len(text) > width:
        tail = (width - 1) // 2
        text = f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
    return text.replace("$", r"\$")


def short_names(classes: Sequence[str], width: int) -> list[str]:
    """All names shortened; where that makes two of them alike, every name is led by its index."""
    names = [short(str(name), width) for name in classes]
    if len(set(names)) < len(set(classes)):
        names = [short(f"{index}: {name}", width) for index, name in enumerate(classes)]
    return names


def check_length(argument: str, values: Sized, expected: int) -> None:
    """Raise ValueError unless `values` holds `expected` entries."""
    if len(values) != expected:
        raise ArgumentError(argument, f"expected {expected} entries, got {len(values)}")


def class_indices(
    argument: str, values: ArrayLike, classes: int, **sizes: int
) -> NDArray[np.int64]:
    """`values` as an array of indices of `classes` classes, with axes of these names and sizes. Raises ValueError for
    another shape, or an index that is no class."""
    indices = np.asarray(values)
    check_shape(argument, indices, tuple(sizes), **sizes)
    outside = indices[(indices < 0) | (indices >= classes)]
    if len(outside):
        raise ArgumentError(
            argument, f"expected class indices from 0 to {classes - 1}, got {outside[0]}"
        )
    return indices


def drawable(classes: Sequence[str]) -> list[str]:
    """The names as pictures can show them: by number where the font lacks a letter, or the script runs to the left."""
    letters = font_manager.get_font(
        font_manager.findfont(font_manager.FontProperties())
    ).get_charmap()
    return [
        label
        if all(
            ord(c) in letters and bidirectional(c) not in ("R", "AL")
            for c in " ".join(label.split())
        )
        else f"class {index}"
        for index, label in enumerate(classes)
    ]
