"""What the decoder draws: reconstructions under their originals, and what each pose dimension stands for.

Positions inside these figures are in inches, from the upper left corner.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range, named_shape
from torchcaps.viz.canvas import BLUE, RED, SMALL, TEXT, Axes, Figure, new_figure, short
from torchcaps.viz.images import GAP, Box, pictures, place, tile_size
from torchcaps.viz.canvas import check_length

COLUMNS = 10
MOST_PAIRS = 80
MOST_TILES = 1024


def reconstructions(
    images: ArrayLike,
    reconstructions: ArrayLike,
    labels: ArrayLike,
    *,
    predictions: ArrayLike,
    classes: Sequence[str],
) -> Figure:
    """Originals over their reconstructions, ten pairs a row; a wrong prediction is named and framed in red.

    Args:
        images: `[n, channels, height, width]` in [0, 1] (integers: 0-255), n from 1 to 80.
        reconstructions: the same shape and range.
        labels: `[n]` indices of the true classes.
        predictions: `[n]` indices of the predicted classes.
        classes: names; long ones are shortened in the middle.

    Raises:
        ValueError: for shapes that do not fit, or more than 80 images.
    """
    originals, rebuilt = pictures("images", images), pictures("reconstructions", reconstructions)
    if rebuilt.shape != originals.shape:
        raise ValueError(f"reconstructions: expected the images' shape, got {list(np.shape(reconstructions))}")
    count = check_range("number of images", len(originals), high=MOST_PAIRS) or len(originals)
"""x"""
