"""Names that fit, and checks of the arguments that go with them."""

from collections.abc import Sequence
from typing import Any
from unicodedata import bidirectional

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import ArgumentError, check_shape

RIGHT_TO_LEFT = {"R", "AL"}


def short(name: str, width: int) -> str:
    """Fit a name into one line; the middle of a long one is left out.

    Args:
        name: the name. A `$` in it does not start a formula.
        width: largest number of characters.
    """
    text = " ".join(name.split())
    if len(text) > width:
        text = f"{text[: width // 2]}…{text[len(text) - (width - 1) // 2 :]}"
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
    return array.astype(np.int64)  # masks may be boolean


def drawable(classes: Sequence[str]) -> list[str]:
    """Replace the names that a figure cannot show by numbers.

    These are names with a letter that the font lacks, or in a script from right to left.
    """
    from matplotlib import font_manager

    properties = font_manager.FontProperties()
    font = font_manager.get_font(font_manager.findfont(properties))
    codes = set(font.get_charmap())
    names = []
    for index, name in enumerate(classes):
        letters = set("".join(name.split()))
        has_glyphs = set(map(ord, letters)) <= codes
        is_reversed = RIGHT_TO_LEFT & set(map(bidirectional, letters))
        names.append(name if has_glyphs and not is_reversed else f"class {index}")
    return names
