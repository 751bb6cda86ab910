"""Overlapping digits, and the two drawings that explain them, as in figure 5 of arXiv 1710.09829."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, check_shape
from torchcaps.viz.canvas import Figure, class_indices, short_names
from torchcaps.viz.images import draw_pairs, pictures

COLUMNS, MOST_IMAGES = 8, 40
COLOURS = ("#B000B0", "#007A00")  # of text; the drawings: magenta, green, to suit colour-blind readers
SHADE = 0.3  # of the input, under the drawings


def overlaps(
    images: ArrayLike, drawn: ArrayLike, labels: ArrayLike, *,
    shown: ArrayLike, lengths: ArrayLike, classes: Sequence[str],
) -> Figure:  # fmt: skip
    """Inputs above the two drawings of each, the first in magenta, the second in green, white where both are.

    The labels stand above each pair; below it the decoded classes and the lengths of their capsules, with a star where
    the class is no label.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 40.
        drawn: `[n, 2, channels, height, width]`, the same range; the first channel is shown.
        labels: `[n, 2]` indices of the true classes.
        shown: `[n, 2]` indices of the decoded classes.
        lengths: `[n, 2]` of the decoded capsules, in [0, 1].
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, more than 40 images, or an index that is no class.
    """
    inputs, values = pictures("images", images), np.asarray(drawn)
    count = len(inputs)
    check_range("number of images", count, high=MOST_IMAGES)
    height, width = inputs.shape[1:3]
    check_shape("drawn", values, ("n", "k", "channels", "height", "width"), n=count, k=2, height=height, width=width)
    layers = pictures("drawn", values.reshape(-1, *values.shape[2:]))[..., 0].reshape(count, 2, height, width)
    true, taken = (
        class_indices(name, v, len(classes), n=count, k=2) for name, v in (("labels", labels), ("shown", shown))
    )
    long, names = np.asarray(lengths, dtype=np.float64), short_names(classes, 10)
    check_shape("lengths", long, ("n", "k"), n=count, k=2)
    below = [
        [(f"{'' if taken[i, j] in true[i] else '*'}{names[taken[i, j]]}  {long[i, j]:.2f}", COLOURS[j]) for j in (0, 1)]
        for i in range(count)
    ]
    return draw_pairs(
        inputs, np.stack([coloured(image, layer) for image, layer in zip(inputs, layers, strict=True)]),
        [" + ".join(names[k] for k in both) for both in true], below=below, columns=COLUMNS, longest=1.15,
        title="above: input; below: decoded alone, magenta and green; *: no label",
    )  # fmt: skip


def coloured(image: NDArray[np.uint8], layers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two drawings `[2, height, width]` in magenta and green over a dark `[height, width, 3]` input."""
    ground = (image * SHADE).astype(np.uint8)
    for channel, layer in enumerate((0, 1, 0)):
        ground[..., channel] = np.maximum(ground[..., channel], layers[layer])
    return ground
