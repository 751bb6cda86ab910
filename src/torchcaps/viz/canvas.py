"""What all figures share: size limits, colours, names that fit."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from unicodedata import bidirectional

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    from matplotlib import font_manager
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
except ImportError as error:
    raise ImportError("plots need matplotlib; install it with: pip install 'torchcaps[plots]'") from error

# Okabe and Ito's palette, told apart with every common colour blindness.
BLUE, SKY, ORANGE, RED, GREY = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#D0D0D0"
# Points.
TEXT, SMALL = 9.0, 7.5
# Inches: no number of classes or examples makes a figure larger.
MAX_WIDTH, MAX_HEIGHT = 16.0, 20.0


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of these inches, at most 16 by 20, which lays itself out."""
    size = (min(width, MAX_WIDTH), min(height, MAX_HEIGHT))
    return Figure(figsize=size, dpi=130, layout="constrained", facecolor="white")


def plain(axes: Axes) -> Axes:
    """Small tick labels, and no frame above and to the right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)
    return axes


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
        raise ValueError(f"{argument}: expected {expected} entries, got {len(values)}")


def class_indices(argument: str, values: ArrayLike, count: int, classes: int) -> NDArray[np.int64]:
    """`values` as an array of `count` indices of `classes` classes.

    Raises:
        ValueError: for another number of them, or an index that is no class.
    """
    indices = np.asarray(values)
    check_length(argument, indices, count)
    outside = indices[(indices < 0) | (indices >= classes)]
    if len(outside):
        raise ValueError(f"{argument}: expected class indices from 0 to {classes - 1}, got {outside[0]}")
    return indices


def drawable(classes: Sequence[str]) -> list[str]:
    """The names as pictures can show them: by number where the font lacks a letter, or the script runs to the left."""
    letters = font_manager.get_font(font_manager.findfont(font_manager.FontProperties())).get_charmap()
    return [
        label
        if all(ord(c) in letters and bidirectional(c) not in ("R", "AL") for c in " ".join(label.split()))
        else f"class {index}"
        for index, label in enumerate(classes)
    ]
