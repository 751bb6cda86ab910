"""Figures of models that learn from known transformations of images, such as shifts.

A transforming auto-encoder (Hinton, Krizhevsky, Wang, 2011) sees an image and a shift, and draws the
shifted image. In each of its capsules some *generation units* draw: the outgoing weights of such a
unit are an image, which the capsule's output adds times the unit's activation.

Functions take arrays (numpy or torch) and return a matplotlib figure. `pictures` converts images to
bytes of three colors, `tile_grid` draws them in rows with names on the left, `panels` makes a figure
of equal axes, `plain` gives axes a title and labels, `short` cuts a name to a number of characters.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from torchcaps.errors import check_range, check_shape
from torchcaps.viz.canvas import BLUE, GRAY, TEXT, Figure, panels, plain
from torchcaps.viz.images import pictures, tile_grid
from torchcaps.viz.names import short, sized_array

# Share of the weights within the scale of gray: one outlier must not turn all others gray.
SCALE_QUANTILE = 0.999


def transformed(source: ArrayLike, output: ArrayLike, target: ArrayLike) -> Figure:
    """Draw a row of inputs, a row of outputs and a row of targets; a column is an image.

    Args:
        source: `[n, channels, height, width]` inputs in [0, 1].
        output: images that the model made of them, of the same shape; what lies outside [0, 1] is
            clipped.
        target: the transformed inputs, which the model ought to make, of the same shape.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    inputs = pictures("source", source)
    outputs = pictures("output", output, inputs)
    targets = pictures("target", target, inputs)
    tiles = np.concatenate([inputs, outputs, targets])
    # The longer side of an image is 0.8 inches.
    return tile_grid(tiles, ("input", "output", "target"), longest=0.8)


def predicted_transformations(
    true: ArrayLike,
    predicted: ArrayLike,
    *,
    names: Sequence[str],
    unit: str = "",
) -> Figure:
    """Draw predicted against true parameters of transformations, a panel for each parameter.

    On the gray line both are equal.

    Args:
        true: `[n, m]` true parameters, such as the shift of each image.
        predicted: `[n, m]` predicted parameters.
        names: names of the m parameters, such as dx and dy; m is 1 to 12.
        unit: unit of the parameters.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    targets = np.asarray(true, dtype=np.float64)
    check_shape("true", targets, ("n", "m"))
    check_range("true: number of values", targets.size, low=1)
    count, num_names = targets.shape
    estimates = sized_array("predicted", predicted, n=count, m=num_names).astype(np.float64)
    sized_array("names", names, m=num_names)
    check_range("number of names", num_names, high=12)

    # At most three panels in a row, of 3.1 x 3.1 inches.
    figure, grid = panels(num_names, 3, 3.1, 3.1)
    suffix = f" ({unit})" if unit else ""
    for axes, name, x, y in zip(grid, names, targets.T, estimates.T, strict=True):
        title = short(name, 16)
        if x.std() > 0 and y.std() > 0:
            title += f": correlation {np.corrcoef(x, y)[0, 1]:.3f}"
        plain(axes, title, xlabel="true" + suffix, ylabel="predicted" + suffix)

        # The scale is that of the true parameters; a point may lie outside.
        margin = 0.15 * np.ptp(x) or 1.0
        limits = (x.min() - margin, x.max() + margin)
        axes.plot(limits, limits, color=GRAY, lw=1.2, zorder=1)
        axes.plot(x, y, linestyle="", marker=".", ms=3, alpha=0.4, color=BLUE, zorder=2)
        axes.set_xlim(*limits)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    return figure


def generation_weights(weights: ArrayLike, *, title: str = "") -> Figure:
    """Draw the outgoing weights of generation units, a row for each capsule.

    Gray is 0; a white weight makes the pixel brighter, a black one darker.

    Args:
        weights: `[capsules, units, height, width]`, any numbers, all drawn at one scale; at most
            1024 units in all.
        title: title of the figure.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for an array of other axes, or too many units.
    """
    array = np.asarray(weights, dtype=np.float64)
    check_shape("weights", array, ("capsules", "units", "height", "width"))
    check_range("weights: number of values", array.size, low=1)
    scale = max(float(np.quantile(np.abs(array), SCALE_QUANTILE)), 1e-12)
    # From -scale..scale to 0..1; `pictures` clips the outliers.
    gray = 0.5 + 0.5 * array / scale
    tiles = pictures("weights", gray.reshape(-1, 1, *array.shape[2:]))
    names = [str(capsule + 1) for capsule in range(len(array))]
    figure = tile_grid(tiles, names, title)
    figure.axes[0].set_ylabel("capsule", fontsize=TEXT)
    return figure
