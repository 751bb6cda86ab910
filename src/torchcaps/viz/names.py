"""Names that fit, and checks of the arguments that go with them."""

from collections.abc import Sequence, Sized
from typing import Any
from unicodedata import bidirectional

import numpy as np
from matplotlib import font_manager
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import ArgumentError, check_shape

RIGHT_TO_LEFT = ("R", "AL")


def short(name: str, width: int) -> str:
    """Fit a name into one line; the middle of a long one is left out.

    Args:
        name: the name. A `$` in it does not start a formula.
        width: largest number of characters.
    """
    text = " ".join(name.split())
    if len(text) > width:
        num_last = (width - 1) // 2
        num_first = width - 1 - num_last
        text = f"{text[:num_first]}…{text[len(text) - num_last :]}"
    return text.replace("$", r"\$")


def short_names(classes: Sequence[str], width: int) -> list[str]:
    """Shorten all names; where that makes two of them equal, each begins with its index.

    Args:
        classes: the names.
        width: largest number of characters of each.
    """
    names = [short(str(name), width) for name in classes]
    if len(set(names)) < len(set(classes)):
        names = [short(f"{index}: {name}", width) for index, name in enumerate(classes)]
    return names


def check_length(argument: str, entries: Sized, expected: int) -> None:
    """Check a number of entries.

    Raises:
        ArgumentError: if there are more or fewer entries than expected.
    """
    if len(entries) != expected:
        raise ArgumentError(argument, f"expected {expected} entries, got {len(entries)}")


def sized_array(argument: str, entries: ArrayLike, **sizes: int) -> NDArray[Any]:
    """Convert an argument to an array of a known shape.

    Args:
        argument: its name, for the error.
        entries: its value.
        **sizes: size of each axis, by name.

    Raises:
        ArgumentError: if the array has another shape.
    """
    array = np.asarray(entries)
    check_shape(argument, array, tuple(sizes), **sizes)
    return array


def class_indices(
    argument: str,
    indices: ArrayLike,
    num_classes: int,
    **sizes: int,
) -> NDArray[np.int64]:
    """Convert an argument to an array of class indices.

    Args:
        argument: its name, for the error.
        indices: its value.
        num_classes: number of classes.
        **sizes: size of each axis, by name.

    Raises:
        ArgumentError: if the array has another shape, or holds an index that is no class.
    """
    array = sized_array(argument, indices, **sizes)
    outside = array[(array < 0) | (array >= num_classes)]
    if len(outside):
        raise ArgumentError(
            argument, f"expected class indices from 0 to {num_classes - 1}, got {outside[0]}"
        )
    return array


def drawable(classes: Sequence[str]) -> list[str]:
    """Replace the names that a figure cannot show by numbers.

    These are names with a letter that the font lacks, or in a script from right to left.
    """
    properties = font_manager.FontProperties()
    font = font_manager.get_font(font_manager.findfont(properties))
    letters = font.get_charmap()

    def is_drawable(name: str) -> bool:
        return all(
            ord(letter) in letters and bidirectional(letter) not in RIGHT_TO_LEFT
            for letter in " ".join(name.split())
        )

    return [name if is_drawable(name) else f"class {index}" for index, name in enumerate(classes)]
