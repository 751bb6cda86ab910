"""Known transformations: drawings, estimates, and the weights of generation units."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError, check_range, named_shape
from torchcaps.viz.canvas import BLUE, GRAY, TEXT, Figure, panels, plain
from torchcaps.viz.images import pictures, pictures_like, tile_grid
from torchcaps.viz.names import check_length, short, sized_array

# One outlier must not turn all other weights gray: the scale leaves out the largest.
SCALE_QUANTILE = 0.999


def transformed(source: ArrayLike, output: ArrayLike, target: ArrayLike) -> Figure:
    """Draw inputs above their drawings, above the targets; a column is an image.

    Args:
        source: `[n, channels, height, width]` inputs in [0, 1].
        output: drawings of the same shape; what lies outside [0, 1] is clipped.
        target: what ought to be drawn, of the same shape.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    inputs = pictures("source", source)
    outputs = pictures_like("output", output, inputs)
    targets = pictures_like("target", target, inputs)
    tiles = np.concatenate([inputs, outputs, targets])
    return tile_grid(tiles, ("input", "output", "target"), longest=0.8)


def predicted_transformations(
    true: ArrayLike,
    predicted: ArrayLike,
    *,
    names: Sequence[str],
    unit: str = "",
) -> Figure:
    """Draw true against predicted numbers of transformations, a panel a number.

    On the gray line both are equal.

    Args:
        true: `[n, m]` true numbers.
        predicted: `[n, m]` predicted numbers.
        names: names of the m numbers, such as dx and dy, 1 to 12.
        unit: unit of the numbers.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    x = np.asarray(true, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        shape = named_shape(("n", "m"), x.shape)
        raise ArgumentError("true", f"expected [n, m] with at least one row, got {shape}")
    count, num_numbers = x.shape
    y = sized_array("predicted", predicted, n=count, m=num_numbers).astype(np.float64)
    check_length("names", names, num_numbers)
    check_range("number of names", num_numbers, high=12)

    figure, grid = panels(num_numbers, 3, 3.1, 3.1)
    suffix = f" ({unit})" if unit else ""
    for axes, name, truth, estimate in zip(grid, names, x.T, y.T, strict=True):
        title = short(name, 16)
        if truth.std() > 0 and estimate.std() > 0:
            title += f": correlation {np.corrcoef(truth, estimate)[0, 1]:.3f}"
        plain(axes, title, xlabel="true" + suffix, ylabel="predicted" + suffix)
        margin = 0.15 * np.ptp(truth) or 1.0
        limits = (truth.min() - margin, truth.max() + margin)
        axes.plot(limits, limits, color=GRAY, lw=1.2, zorder=1)
        axes.plot(truth, estimate, linestyle="", marker=".", ms=3, alpha=0.4, color=BLUE, zorder=2)
        axes.set_xlim(*limits)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    return figure


def generation_weights(weights: ArrayLike, *, title: str = "") -> Figure:
    """Draw the outgoing weights of generation units, a row a capsule.

    Gray is 0, white adds ink, black removes it.

    Args:
        weights: `[capsules, units, height, width]`, any numbers at one scale; at most 1024 units.
        title: title of the figure.

    Raises:
        ArgumentError: for an array of other axes, or too many units.
    """
    strokes = np.asarray(weights, dtype=np.float64)
    if strokes.ndim != 4 or strokes.size == 0:
        axes = ("capsules", "units", "height", "width")
        shape = named_shape(axes, strokes.shape)
        raise ArgumentError("weights", f"expected [capsules, units, height, width], got {shape}")
    scale = max(float(np.quantile(np.abs(strokes), SCALE_QUANTILE)), 1e-12)
    gray = 0.5 + 0.5 * strokes / scale
    tiles = pictures("weights", gray.reshape(-1, 1, *strokes.shape[2:]))
    names = [str(capsule + 1) for capsule in range(len(strokes))]
    figure = tile_grid(tiles, names, title)
    figure.axes[0].set_ylabel("capsule", fontsize=TEXT)
    return figure
