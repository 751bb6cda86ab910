"""Class by class: which are taken for which, and how many are recognised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from numpy.typing import ArrayLike, NDArray

from torchcaps.viz.canvas import BLUE, RED, SMALL, TEXT, Axes, Figure, check_length, new_figure, plain, short_names

# The most class names on an axis, and the most bars.
MOST = 60


def confusion_matrix(matrix: ArrayLike, classes: Sequence[str]) -> Figure:
    """Counts of true classes (rows) against predicted ones (columns), coloured by the share of the row.

    The colours follow the square root of the share, so that rare confusions show beside a strong diagonal. Counts stand
    in the cells where they can be read; beyond 60 classes only every n-th is named.

    Args:
        matrix: `[classes, classes]` counts.
        classes: their names; long ones are shortened in the middle.

    Raises:
        ValueError: for a matrix that is not square, is empty, holds no integers, or has another number of classes.
    """
    counts = np.asarray(matrix)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.size == 0:
        raise ValueError(f"matrix: expected [classes, classes], got {list(counts.shape)}")
    if not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"matrix: expected integer counts, got {counts.dtype}")
    check_length("classes", classes, len(counts))
    names = short_names(classes, 22)
    cells = float(np.clip(0.42 * len(counts), 2.4, 11.0))
    room = 0.06 * max(map(len, names))
    figure = new_figure(cells + room + 1.5, cells + room + 0.9)
    axes = figure.subplots()
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    norm = PowerNorm(0.5, 0, 100)
    # The figure's size makes the cells square; a fixed aspect would move axes after the layout has placed their labels.
    image = axes.imshow(100 * shares, cmap="Blues", norm=norm, interpolation="nearest", aspect="auto")
    _name_cells(axes, names)
    _write_cells(axes, counts, shares, cells / len(counts))
    bar = figure.colorbar(image, ax=axes, aspect=30, pad=0.02, ticks=[0, 1, 5, 20, 50, 100])
    bar.set_label("% of the true class", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    right, total = np.trace(counts), counts.sum()
    axes.set_title(f"{right:,} of {total:,} right ({100 * right / max(total, 1):.2f} %)", fontsize=TEXT, loc="left")
    return figure


def per_class_bars(accuracies: Sequence[float | None], classes: Sequence[str], counts: Sequence[int]) -> Figure:
    """Accuracy of each class as a bar, with its number of samples, and the accuracy over all samples as a line.

    Beyond 60 classes only the 60 least accurate are drawn, and the title says so.

    Args:
        accuracies: in [0, 1]; None for a class without samples, which has no bar.
        classes: names, in the same order; long ones are shortened in the middle.
        counts: samples of each class.

    Raises:
        ValueError: for no classes, or sequences of different lengths.
    """
    if not len(accuracies):
        raise ValueError("accuracies: expected at least one class, got none")
    check_length("classes", classes, len(accuracies))
    check_length("counts", counts, len(accuracies))
    percent = np.array([np.nan if share is None else 100 * share for share in accuracies])
    shown = np.sort(np.argsort(percent, kind="stable")[:MOST])  # NaN sorts last
    figure = new_figure(7.5, 1.1 + 0.21 * len(shown))
    axes = figure.subplots()
    axes.barh(range(len(shown)), np.nan_to_num(percent[shown]), height=0.72, color=BLUE)
    for row, index in enumerate(shown):
        text = "no samples" if np.isnan(percent[index]) else f"{percent[index]:.1f} % of {counts[index]:,}"
        axes.text(101.5, row, text, va="center", fontsize=SMALL)
    names = short_names(classes, 26)
    title = "accuracy by class" if len(shown) == len(percent) else f"the {MOST} lowest of {len(percent)} classes"
    _dress_bars(axes, [names[index] for index in shown], title, _overall(percent, np.asarray(counts)))
    return figure


def _overall(percent: NDArray[np.float64], counts: NDArray[np.int64]) -> float | None:
    """Accuracy over all samples, in percent; None without samples."""
    known = ~np.isnan(percent)
    total = counts[known].sum()
    return float((percent[known] * counts[known]).sum() / total) if total else None


def _dress_bars(axes: Axes, names: list[str], title: str, overall: float | None) -> None:
    if overall is not None:
        axes.axvline(overall, color=RED, lw=1.2, ls="--")
        title += f"; over all samples {overall:.2f} % (dashed)"
    plain(axes, title, xlabel="accuracy (%)")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 100)


def _name_cells(axes: Axes, names: list[str]) -> None:
    """Class names along both axes; below, slanting or upright where they would touch."""
    step = -(-len(names) // MOST)
    named, places = names[::step], range(0, len(names), step)
    axes.set_yticks(places, named, fontsize=SMALL)
    if max(map(len, named)) <= 3 and len(named) <= 30:
        axes.set_xticks(places, named, fontsize=SMALL)
    elif len(named) <= 15:
        axes.set_xticks(places, named, fontsize=SMALL, rotation=45, ha="right", rotation_mode="anchor")
    else:
        axes.set_xticks(places, named, fontsize=SMALL, rotation=90)
    axes.set_xlabel("predicted class", fontsize=TEXT)
    axes.set_ylabel("true class", fontsize=TEXT)


def _write_cells(axes: Axes, counts: NDArray[np.int64], shares: NDArray[np.float64], cell: float) -> None:
    """Counts in the cells that have any, if they can be read at the size of a cell, in inches."""
    digits = len(str(int(counts.max())))
    # A digit is about 0.62 of its size wide, and an inch has 72 points.
    size = min(TEXT, 0.85 * 72 * cell / (0.62 * max(digits, 2)))
    if size < 5:
        return
    for row, column in zip(*np.nonzero(counts), strict=True):
        colour = "white" if shares[row, column] > 0.3 else "black"
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=size, color=colour)
