"""Class by class: confusions, accuracies, lengths of class capsules; and their reliability."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError, check_range
from torchcaps.viz.canvas import (
    BELOW,
    BLUE,
    GRAY,
    ORANGE,
    RED,
    SKY,
    SMALL,
    TEXT,
    Axes,
    Figure,
    Floats,
    Names,
    class_indices,
    new_figure,
    pictures,
    plain,
    short_names,
    sized_array,
    tile_size,
)

MAX_NAMES = 60  # class names on an axis, or bars

# Examples with bars.
EXAMPLES_PER_ROW = 5
MAX_EXAMPLES = 20
MAX_BARS = 10  # up to this number of classes, each has a bar
NUM_LONGEST = 5  # bars where there are more classes
BAR_HEIGHT = 0.17  # inches

# Reliability diagrams.
READINGS = {"normalized": "activations divided by their sum", "length": "longest capsule"}
BAR_STYLE: dict[str, Any] = {"align": "edge", "edgecolor": "white", "lw": 0.5}


def confusion_matrix(matrix: ArrayLike, classes: Names) -> Figure:
    """Draw counts of true against predicted classes, colored by the share of the true class.

    The colors follow the square root of the share, so that rare confusions show beside a strong
    diagonal. Counts stand in the cells where they can be read; beyond 60 classes only every n-th
    class is named.

    Args:
        matrix: `[classes, classes]` integer counts; rows are true classes.
        classes: names of the classes, at least one.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for a matrix of another size, or that holds no integers.
    """
    num_classes = len(classes)
    counts = sized_array("matrix", matrix, true=num_classes, predicted=num_classes)
    if not np.issubdtype(counts.dtype, np.integer):
        raise ArgumentError("matrix", f"expected integer counts, got {counts.dtype}")
    names = short_names(classes, 22)
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)

    size = float(np.clip(0.42 * num_classes, 2.4, 11.0))
    names_width = 0.06 * max(map(len, names))
    figure = new_figure(size + names_width + 1.5, size + names_width + 0.9)
    axes = figure.subplots()
    # The size of the figure makes the cells square. A fixed aspect would move the axes after the
    # layout has placed their labels.
    image = axes.imshow(
        100 * shares,
        cmap="Blues",
        norm=PowerNorm(0.5, 0, 100),
        interpolation="nearest",
        aspect="auto",
    )
    # A digit is about 0.62 of its size wide, and an inch has 72 points.
    num_digits = max(len(str(counts.max())), 2)
    font = min(TEXT, 0.85 * 72 * (size / num_classes) / (0.62 * num_digits))
    for row, column in np.argwhere(counts) if font >= 5 else ():
        color = "white" if shares[row, column] > 0.3 else "black"
        text = counts[row, column]
        axes.text(column, row, text, ha="center", va="center", fontsize=font, color=color)

    # Names below stand upright where they would touch.
    step = -(-num_classes // MAX_NAMES)
    labels = names[::step]
    is_level = max(map(len, labels)) <= 3 and len(labels) <= 30
    places = range(0, num_classes, step)
    axes.set_yticks(places, labels, fontsize=SMALL)
    axes.set_xticks(places, labels, fontsize=SMALL, rotation=0 if is_level else 90)
    axes.set_xlabel("predicted class", fontsize=TEXT)
    axes.set_ylabel("true class", fontsize=TEXT)

    bar = figure.colorbar(image, ax=axes, aspect=30, pad=0.02, ticks=[0, 1, 5, 20, 50, 100])
    bar.set_label("% of the true class", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    num_correct = np.trace(counts)
    total = counts.sum()
    percent = 100 * num_correct / max(total, 1)
    title = f"{num_correct:,} of {total:,} right ({percent:.2f} %)"
    axes.set_title(title, fontsize=TEXT, loc="left")
    return figure


def per_class_bars(
    accuracies: Sequence[float | None],
    classes: Names,
    counts: Sequence[int],
) -> Figure:
    """Draw the accuracy of each class as a bar, and the accuracy over all samples as a line.

    Beyond 60 classes only the 60 least accurate are drawn, and the title says so.

    Args:
        accuracies: accuracy of each class, in [0, 1]; None for a class without samples, which has
            no bar.
        classes: names of the classes.
        counts: number of samples of each class.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for sequences of different lengths.
    """
    num_classes = len(classes)
    samples = sized_array("counts", counts, classes=num_classes)
    percent = 100 * np.array(accuracies, dtype=float)  # None becomes NaN
    sized_array("accuracies", percent, classes=num_classes)
    has_samples = ~np.isnan(percent)
    # NaN sorts last.
    lowest = np.sort(np.argsort(percent, kind="stable")[:MAX_NAMES])
    num_bars = len(lowest)

    figure = new_figure(7.5, 1.1 + 0.21 * num_bars)
    axes = figure.subplots()
    axes.barh(range(num_bars), np.nan_to_num(percent[lowest]), height=0.72, color=BLUE)
    for row, index in enumerate(lowest):
        text = "no samples"
        if has_samples[index]:
            text = f"{percent[index]:.1f} % of {samples[index]:,}"
        axes.text(101.5, row, text, va="center", fontsize=SMALL)

    title = "accuracy by class"
    if num_bars < num_classes:
        title = f"the {MAX_NAMES} lowest of {num_classes} classes"
    if samples[has_samples].any():
        overall = np.average(percent[has_samples], weights=samples[has_samples])
        axes.axvline(overall, color=RED, lw=1.2, ls="--")
        title += f"; over all samples {overall:.2f} % (dashed)"
    plain(axes, title, xlabel="accuracy (%)")
    names = short_names(classes, 26)
    axes.set_yticks(range(num_bars), [names[index] for index in lowest])
    axes.set_ylim(num_bars - 0.4, -0.6)
    axes.set_xlim(0, 100)
    return figure


def activation_bars(
    images: ArrayLike,
    activations: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Names,
) -> Figure:
    """Draw example images with the lengths of their class capsules as bars under each.

    The bar of the true class is blue, that of a wrong prediction orange. Up to ten classes all
    have a bar, in their order; of more, the five longest, the longest first, and the true class in
    place of the fifth where it is not among them.

    Args:
        images: `[n, channels, height, width]` in [0, 1], 1 to 20.
        activations: `[n, classes]` lengths in [0, 1].
        labels: `[n]` true classes, or `[n, k]` for images of several classes; one that is there
            twice counts once.
        classes: names of the classes.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for shapes that do not fit, or more images.
    """
    examples = pictures("images", images)
    count = len(examples)
    check_range("number of images", count, high=MAX_EXAMPLES)
    lengths = sized_array("activations", activations, n=count, classes=len(classes))
    rows = np.atleast_2d(np.asarray(labels).T).T  # [n, k]
    true = class_indices("labels", rows, classes, n=count, k=rows.shape[-1]).tolist()
    names = short_names(classes, 22)

    num_bars = len(classes) if len(classes) <= MAX_BARS else NUM_LONGEST
    image_height, _ = tile_size(examples.shape[1:3], 1.1)
    bars_height = BAR_HEIGHT * num_bars
    num_columns = min(EXAMPLES_PER_ROW, count)
    num_rows = -(-count // EXAMPLES_PER_ROW)
    height = num_rows * (image_height + bars_height + 0.55) + 0.4
    figure = new_figure(max(2.1 * num_columns, 3.6), height)
    heights = [image_height + 0.2, bars_height + 0.2] * num_rows
    grid = figure.add_gridspec(2 * num_rows, num_columns, height_ratios=heights)
    for index, image in enumerate(examples):
        row, column = divmod(index, EXAMPLES_PER_ROW)
        above = figure.add_subplot(grid[2 * row, column])
        below = figure.add_subplot(grid[2 * row + 1, column])
        above.imshow(image, interpolation="antialiased")
        above.set_axis_off()
        image_labels = list(dict.fromkeys(true[index]))
        title = " + ".join(names[label] for label in image_labels)
        above.set_title(title, fontsize=SMALL)
        _draw_bars(below, lengths[index], image_labels, names)
    figure.suptitle("activations; blue: true class, orange: wrong answer", fontsize=TEXT)
    return figure


def _draw_bars(
    axes: Axes,
    lengths: Floats,
    labels: list[int],
    names: list[str],
) -> None:
    by_length = np.argsort(-lengths, kind="stable").tolist()
    predicted = by_length[: len(labels)]
    bars = list(range(len(lengths)))
    if len(lengths) > MAX_BARS:
        missing = [label for label in labels if label not in by_length[:NUM_LONGEST]]
        bars = by_length[: NUM_LONGEST - len(missing)] + missing
    colors = dict.fromkeys(bars, GRAY)
    colors |= dict.fromkeys(predicted, ORANGE)
    colors |= dict.fromkeys(labels, SKY)

    plain(axes)
    axes.barh(range(len(bars)), lengths[bars], height=0.86, color=[colors[bar] for bar in bars])
    for row, label in enumerate(bars):
        axes.text(0.02, row, names[label], va="center", fontsize=SMALL)
        axes.text(1.03, row, f"{lengths[label]:.2f}", va="center", fontsize=SMALL)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])


def calibration(reliability: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw a reliability diagram for each table.

    Above is the accuracy by confidence, as in figure 1 of arXiv 1706.04599; on the diagonal both
    agree. Below is the number of samples.

    Args:
        reliability: one to three tables by name, as in the JSON of an evaluation under
            `calibration`. Each has `error`, `edges` (ascending, 0 to 1), and for each bin `count`,
            `confidence` and `accuracy` (None where the bin is empty).

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for another number of tables.
    """
    num_tables = len(reliability)
    check_range("number of tables", num_tables, low=1, high=3)
    figure = new_figure(max(4.3 * num_tables, 5.2), 4.9)
    grid = figure.subplots(2, num_tables, sharex=True, squeeze=False, height_ratios=[3, 1])
    for (upper, lower), (name, table) in zip(grid.T, reliability.items(), strict=True):
        title = f"{READINGS.get(name, name)}\ncalibration error {100 * table['error']:.2f} %"
        plain(upper, ylabel="accuracy").set_title(title, fontsize=TEXT)
        plain(lower, xlabel="confidence", ylabel="samples")
        edges = np.asarray(table["edges"])
        confidence = np.array(table["confidence"], dtype=float)  # None becomes NaN
        accuracy = np.array(table["accuracy"], dtype=float)
        starts = edges[:-1]
        widths = np.diff(edges)
        filled = ~np.isnan(accuracy)
        upper.bar(
            starts[filled],
            accuracy[filled],
            widths[filled],
            color=SKY,
            label="accuracy",
            **BAR_STYLE,
        )
        ends = [0, 1]
        upper.plot(ends, ends, color="black", lw=0.8, ls="--", label="confidence = accuracy")
        label = "accuracy at the mean confidence"
        upper.plot(confidence, accuracy, color=RED, marker="o", ms=3.5, ls="", label=label)
        upper.set(xlim=(0, 1), ylim=(0, 1.02))

        lower.bar(starts, table["count"], widths, color=GRAY, **BAR_STYLE)
        # From a full last bin to single samples: only a logarithmic axis shows both.
        lower.set_yscale("symlog", linthresh=1)
        lower.set_ylim(bottom=0)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), ncols=3, **BELOW)
    return figure
