"""Class by class: which are taken for which, how many are recognized, and how long the capsules are."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.viz.canvas import (
    BLUE,
    GRAY,
    ORANGE,
    RED,
    SKY,
    SMALL,
    TEXT,
    Axes,
    Figure,
    new_figure,
    plain,
)
from torchcaps.viz.images import pictures, tile_size
from torchcaps.viz.names import check_length, class_indices, short_names

MOST = 60  # class names on an axis, or bars
COLUMNS, MOST_IMAGES = 5, 20
MOST_BARS, FEW = 10, 5  # up to so many classes, all have a bar; of more, the longest few


def confusion_matrix(matrix: ArrayLike, classes: Sequence[str]) -> Figure:
    """Counts `[classes, classes]` of true classes (rows) against predicted ones (columns), colored by the share of the
    row.

    The colors follow the square root of the share, so that rare confusions show beside a strong diagonal. Counts stand
    in the cells where they can be read; beyond 60 classes only every n-th is named. Raises ValueError for a matrix that
    is not square, is empty, holds no integers, or has another number of classes."""
    counts = np.asarray(matrix)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.size == 0:
        raise ArgumentError("matrix", f"expected [classes, classes], got {list(counts.shape)}")
    if not np.issubdtype(counts.dtype, np.integer):
        raise ArgumentError("matrix", f"expected integer counts, got {counts.dtype}")
    check_length("classes", classes, len(counts))
    names = short_names(classes, 22)
    cells = float(np.clip(0.42 * len(counts), 2.4, 11.0))
    room = 0.06 * max(map(len, names))
    figure = new_figure(cells + room + 1.5, cells + room + 0.9)
    axes = figure.subplots()
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    norm = PowerNorm(0.5, 0, 100)
    # The figure's size makes the cells square; a fixed aspect would move axes after the layout has placed their labels.
    image = axes.imshow(
        100 * shares, cmap="Blues", norm=norm, interpolation="nearest", aspect="auto"
    )
    _name_cells(axes, names)
    _write_cells(axes, counts, shares, cells / len(counts))
    bar = figure.colorbar(image, ax=axes, aspect=30, pad=0.02, ticks=[0, 1, 5, 20, 50, 100])
    bar.set_label("% of the true class", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    right, total = np.trace(counts), counts.sum()
    axes.set_title(
        f"{right:,} of {total:,} right ({100 * right / max(total, 1):.2f} %)",
        fontsize=TEXT,
        loc="left",
    )
    return figure


def per_class_bars(
    accuracies: Sequence[float | None], classes: Sequence[str], counts: Sequence[int]
) -> Figure:
    """Accuracy of each class as a bar, with its number of samples, and the accuracy over all samples as a line.

    Accuracies are in [0, 1], or None for a class without samples, which has no bar. Beyond 60 classes only the 60 least
    accurate are drawn, and the title says so. Raises ValueError for no classes, or sequences of different lengths."""
    if not len(accuracies):
        raise ArgumentError("accuracies", "expected at least one class, got none")
    check_length("classes", classes, len(accuracies))
    check_length("counts", counts, len(accuracies))
    percent = np.array([np.nan if share is None else 100 * share for share in accuracies])
    shown = np.sort(np.argsort(percent, kind="stable")[:MOST])  # NaN sorts last
    figure = new_figure(7.5, 1.1 + 0.21 * len(shown))
    axes = figure.subplots()
    axes.barh(range(len(shown)), np.nan_to_num(percent[shown]), height=0.72, color=BLUE)
    for row, index in enumerate(shown):
        text = (
            "no samples"
            if np.isnan(percent[index])
            else f"{percent[index]:.1f} % of {counts[index]:,}"
        )
        axes.text(101.5, row, text, va="center", fontsize=SMALL)
    names = short_names(classes, 26)
    title = (
        "accuracy by class"
        if len(shown) == len(percent)
        else f"the {MOST} lowest of {len(percent)} classes"
    )
    known = ~np.isnan(percent)
    if total := np.asarray(counts)[known].sum():
        overall = float((percent * counts)[known].sum() / total)
        axes.axvline(overall, color=RED, lw=1.2, ls="--")
        title += f"; over all samples {overall:.2f} % (dashed)"
    plain(axes, title, xlabel="accuracy (%)")
    axes.set_yticks(range(len(shown)), [names[index] for index in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    return figure


def activation_bars(
    images: ArrayLike, activations: ArrayLike, labels: ArrayLike, *, classes: Sequence[str]
) -> Figure:
    """Up to 20 example images with the lengths `[n, classes]` of their class capsules as bars under each.

    Up to ten classes all are shown, in their order; of more, the five longest, the longest first, and the true class in
    place of the fifth where it is not among them. The bar of the true class is blue, that of a wrong prediction orange;
    images may show several classes each, with labels `[n, k]`. Raises ValueError for shapes that do not fit, or more
    images."""
    shown = pictures("images", images)
    lengths = np.asarray(activations)
    check_range("number of images", len(shown), high=MOST_IMAGES)
    check_shape("activations", lengths, ("n", "classes"), n=len(shown), classes=len(classes))
    given = np.asarray(labels)
    axes = {"n": len(shown)} | ({} if given.ndim == 1 else {"k": given.shape[-1]})
    true = class_indices("labels", given, len(classes), **axes).reshape(len(shown), -1).tolist()
    bars = len(classes) if len(classes) <= MOST_BARS else FEW
    height, _ = tile_size(shown.shape[1:3], 1.1)
    rows, columns = -(-len(shown) // COLUMNS), min(COLUMNS, len(shown))
    figure = new_figure(max(2.1 * columns, 3.6), rows * (height + 0.17 * bars + 0.55) + 0.4)
    grid = figure.add_gridspec(
        2 * rows, columns, height_ratios=[height + 0.2, 0.17 * bars + 0.2] * rows
    )
    names = short_names(classes, 22)
    for i, image in enumerate(shown):
        row, column = 2 * (i // COLUMNS), i % COLUMNS
        above, below = (
            figure.add_subplot(grid[row, column]),
            figure.add_subplot(grid[row + 1, column]),
        )
        above.imshow(image, interpolation="antialiased")
        above.set_axis_off()
        above.set_title(" + ".join(names[k] for k in true[i]), fontsize=SMALL)
        _draw_bars(below, lengths[i], true[i], names)
    figure.suptitle("activations; blue: true class, orange: wrong answer", fontsize=TEXT)
    return figure


def _draw_bars(axes: Axes, lengths: NDArray[np.float64], true: list[int], names: list[str]) -> None:
    longest = np.argsort(-lengths, kind="stable").tolist()
    missing = [k for k in true if k not in longest[:FEW]]
    chosen = (
        [*longest[: FEW - len(missing)], *missing]
        if len(lengths) > MOST_BARS
        else range(len(lengths))
    )
    colors = [SKY if i in true else ORANGE if i in longest[: len(true)] else GRAY for i in chosen]
    plain(axes).barh(range(len(chosen)), [lengths[i] for i in chosen], height=0.86, color=colors)
    for row, index in enumerate(chosen):
        axes.text(0.02, row, names[index], va="center", fontsize=SMALL)
        axes.text(1.03, row, f"{lengths[index]:.2f}", va="center", fontsize=SMALL)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(chosen) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])


def _name_cells(axes: Axes, names: list[str]) -> None:
    """Class names along both axes; below, upright where they would touch."""
    step = -(-len(names) // MOST)
    named, places = names[::step], range(0, len(names), step)
    axes.set_yticks(places, named, fontsize=SMALL)
    level = max(map(len, named)) <= 3 and len(named) <= 30
    axes.set_xticks(places, named, fontsize=SMALL, rotation=0 if level else 90)
    axes.set_xlabel("predicted class", fontsize=TEXT)
    axes.set_ylabel("true class", fontsize=TEXT)


def _write_cells(
    axes: Axes, counts: NDArray[np.int64], shares: NDArray[np.float64], cell: float
) -> None:
    """Counts in the cells that have any, if they can be read at the size of a cell, in inches."""
    digits = len(str(int(counts.max())))
    # A digit is about 0.62 of its size wide, and an inch has 72 points.
    size = min(TEXT, 0.85 * 72 * cell / (0.62 * max(digits, 2)))
    if size < 5:
        return
    for row, column in zip(*np.nonzero(counts), strict=True):
        color = "white" if shares[row, column] > 0.3 else "black"
        axes.text(
            column,
            row,
            str(counts[row, column]),
            ha="center",
            va="center",
            fontsize=size,
            color=color,
        )
