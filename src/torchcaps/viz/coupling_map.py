"""Where on an image the votes for a class come from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, check_shape
from torchcaps.viz.canvas import BLUE, ORANGE, RED, Figure, class_indices, short_names
from torchcaps.viz.images import draw_pairs, pictures

COLUMNS, MOST_IMAGES = 10, 40
SHADE, HEAT = 0.6, 0.9  # how much of the image and of the map is seen


def coupling_map(
    images: ArrayLike, maps: ArrayLike, labels: ArrayLike, *,
    shown: ArrayLike, lengths: ArrayLike, classes: Sequence[str],
) -> Figure:  # fmt: skip
    """Images over the same with a map on them: orange where votes support the class shown, blue where they oppose it.

    Each map has its own scale, from nothing to its largest value either way. Below stand the class shown and its
    length, in red where it is not the true one.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 40.
        maps: `[n, height, width]`, such as `evaluation.coupling_maps(...).maps`; any finite numbers.
        labels: `[n]` indices of the true classes.
        shown: `[n]` indices of the classes whose maps these are.
        lengths: `[n]` of their capsules, in [0, 1].
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, more than 40 images, an index that is no class, or a map that is not
            finite.
    """
    inputs, values = pictures("images", images), np.asarray(maps, dtype=np.float64)
    count = len(inputs)
    check_range("number of images", count, high=MOST_IMAGES)
    check_shape("maps", values, ("n", "height", "width"), n=count, height=inputs.shape[1], width=inputs.shape[2])
    if not np.isfinite(values).all():
        raise ValueError("maps: expected finite numbers, got NaN or infinity")
    true, taken = (class_indices(name, v, len(classes), n=count) for name, v in (("labels", labels), ("shown", shown)))
    long = np.asarray(lengths, dtype=np.float64)
    check_shape("lengths", long, ("n",), n=count)
    names = short_names(classes, 13)
    below = [
        [(f"{names[index]}\n{length:.2f}", "black" if index == right else RED)]
        for index, length, right in zip(taken, long, true, strict=True)
    ]
    return draw_pairs(
        inputs, np.stack([overlaid(image, map_) for image, map_ in zip(inputs, values, strict=True)]),
        [names[index] for index in true], below=below, columns=COLUMNS,
        title="orange: votes for the class below; blue: against it",
    )  # fmt: skip


def overlaid(image: NDArray[np.uint8], values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """`[height, width, 3]`: the image in dark grey, with the map in its colours over it."""
    largest = np.abs(values).max()
    alpha = np.abs(values)[..., None] / largest if largest > 0 else np.zeros((*values.shape, 1))
    colour = np.where(values[..., None] >= 0, to_rgb(ORANGE), to_rgb(BLUE)) * 255
    grey = SHADE * image.mean(axis=-1, keepdims=True)
    return (grey * (1 - HEAT * alpha) + HEAT * alpha * colour + 0.5).clip(0, 255).astype(np.uint8)
