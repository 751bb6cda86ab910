"""Lines and points: courses of trainings, accuracy against a change, sets of points, ranks.

A transformation is whatever changes by an amount: an angle, the strength of an attack, a number of
labels. Affine transformations of images (rotation, scale, shear, shift) are the usual ones, and
`affine_curves` is named after them.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import mean, stdev
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.viz.canvas import (
    BELOW,
    BLUE,
    GRAY,
    GRID_COLOR,
    RED,
    SKY,
    SMALL,
    STYLES,
    Axes,
    Figure,
    Floats,
    line,
    new_figure,
    panels,
    plain,
    short,
    short_names,
    sized_array,
)

Metrics = Sequence[Mapping[str, float | None]]
"""One row an epoch."""

# Beginning of the key, name in the legend, style.
SERIES = (("train", "training", (BLUE, "o")), ("val", "validation", (RED, "s")))

# Every round of colors has dashes of its own.
DASHES = ("-", "--", ":", "-.")
MAX_RUNS = len(DASHES) * len(STYLES)

LOG_RATIO = 20  # a loss that spans this factor has a logarithmic axis

MAX_MODELS = len(STYLES)
MAX_TRANSFORMATIONS = 8

MAX_COLUMNS = 24
MIN_ERROR = 0.01  # percent; smaller errors are drawn here

Curve = tuple[ArrayLike, ArrayLike]
"""Amounts `[n]`, and accuracies `[n]` in [0, 1]."""


def curves(metrics: Metrics, *, loss: str = "", score: str = "accuracy") -> Figure:
    """Draw loss and score over epochs, training beside validation.

    The legend has the best epoch of each. A loss that spans a factor of 20 or more is drawn on a
    logarithmic axis.

    Args:
        metrics: one row an epoch, with any of `train_loss`, `val_loss`, `train_<score>`,
            `val_<score>` and `epoch`; rows without `epoch` count from 1. Absent keys and None are
            passed over; NaN and infinity leave a gap.
        loss: name of the loss, such as "margin"; none by default.
        score: name of a figure of which more is better; one that ends in "accuracy" is in [0, 1],
            and drawn in percent.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for no rows.
    """
    check_range("number of rows", len(metrics), low=1)
    figure, (loss_axes, score_axes) = panels(2, 2, 4.5, 3.6)
    _draw_measure(loss_axes, metrics, "loss", f"{loss} loss".strip())
    _draw_measure(score_axes, metrics, score, score)
    _scale_loss(loss_axes)
    return figure


def _draw_measure(axes: Axes, metrics: Metrics, measure: str, title: str) -> None:
    """Draw one measure of training and validation, with a note where neither was recorded."""
    kind, sign = ("lowest", 1) if measure == "loss" else ("highest", -1)
    for prefix, name, style in SERIES:
        epochs, course = _series(metrics, f"{prefix}_{measure}")
        if np.isfinite(course).any():
            index = np.nanargmin(sign * course)
            best = course[index]
            text = f"{best:.2f} %" if measure.endswith("accuracy") else f"{best:.3g}"
            line(axes, epochs, course, style, f"{name}: {kind} {text} at epoch {epochs[index]:g}")
    _style_epochs(axes, title)
    epochs = np.array(list(map(_epoch, metrics, range(len(metrics)))))
    margin = max(0.03 * np.ptp(epochs), 0.3)
    axes.set_xlim(epochs.min() - margin, epochs.max() + margin)
    if axes.lines:
        axes.legend(fontsize=SMALL, frameon=False)
    else:
        axes.text(0.5, 0.5, "not recorded", ha="center", va="center", transform=axes.transAxes)
        axes.set_yticks([])


def overlaid_curves(runs: Mapping[str, Metrics], *, score: str = "accuracy") -> Figure:
    """Draw validation loss and score over epochs, a line a run.

    Args:
        runs: rows of each run by its name, as for `curves`; 1 to 24 runs.
        score: name of the score, as for `curves`.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for no run, or more than can be distinguished.
    """
    check_range("number of runs", len(runs), low=1, high=MAX_RUNS)
    figure, (loss_axes, score_axes) = panels(2, 2, 4.5, 3.6, below=0.16 * len(runs))
    for axes, measure in ((loss_axes, "loss"), (score_axes, score)):
        for index, metrics in enumerate(runs.values()):
            rounds, place = divmod(index, len(STYLES))
            line(axes, *_series(metrics, f"val_{measure}"), STYLES[place], ls=DASHES[rounds])
        _style_epochs(axes, f"validation {measure}")
    _scale_loss(loss_axes)
    figure.legend(loss_axes.lines, short_names(list(runs), 70, "run"), **BELOW)
    return figure


def _style_epochs(axes: Axes, measure: str) -> None:
    unit = " (%)" if measure.endswith("accuracy") else ""
    plain(axes, measure.replace("_", " ") + unit, xlabel="epoch", grid=True)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=10, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    )


def _scale_loss(axes: Axes) -> None:
    """Make the axis of a loss logarithmic that spans a large factor."""
    heights = np.concatenate([[], *(curve.get_ydata() for curve in axes.lines)])
    finite = heights[np.isfinite(heights)]
    if finite.size and 0 < LOG_RATIO * finite.min() <= finite.max():
        axes.set_yscale("log")


def _series(metrics: Metrics, key: str) -> tuple[Floats, Floats]:
    """Return the epochs and numbers of one key; a number that is not finite becomes NaN."""
    rows = [(_epoch(row, k), row[key]) for k, row in enumerate(metrics) if row.get(key) is not None]
    epochs, course = np.array(rows, dtype=float).reshape(-1, 2).T
    course[~np.isfinite(course)] = np.nan
    return epochs, 100 * course if key.endswith("accuracy") else course


def _epoch(row: Mapping[str, float | None], index: int) -> float:
    epoch = row.get("epoch")
    return index + 1 if epoch is None else epoch


def affine_curves(
    models: Mapping[str, Mapping[str, Curve]],
    *,
    units: Mapping[str, str],
    chance: float | None = None,
) -> Figure:
    """Draw accuracy in percent, one panel per transformation and one line per model.

    Args:
        models: model -> transformation -> amounts and accuracies; 1 to 6 models and 1 to 8
            transformations.
        units: unit of the amounts of each transformation that has one.
        chance: accuracy of a guess, drawn as a dashed line.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for no model or more than 6, no transformation or more than 8, or a curve
            that is not two lists of one length.
    """
    check_range("number of models", len(models), low=1, high=MAX_MODELS)
    transformations = list(dict.fromkeys(chain.from_iterable(models.values())))
    check_range("number of transformations", len(transformations), low=1, high=MAX_TRANSFORMATIONS)
    # Sizes in inches.
    num_columns = min(len(transformations), 4)
    width = 3.3 if num_columns > 1 else 4.6
    # ceil((models + 1) / columns) rows: the models and the line of chance, with or without it.
    below = 0.2 + 0.2 * (len(models) // num_columns)
    figure, all_axes = panels(len(transformations), num_columns, width, 3.0, below)

    # Lines of the legend by label and line style: a model may be called "chance" too.
    entries: dict[tuple[str, Any], Any] = {}
    for axes, transformation in zip(all_axes, transformations, strict=True):
        for (name, curves), style in zip(models.items(), STYLES, strict=False):
            if transformation in curves:
                amounts, accuracies = map(np.asarray, curves[transformation])
                sized_array(f"curve of {name!r}", accuracies, amounts=amounts.size)
                order = np.argsort(amounts, kind="stable")
                line(axes, amounts[order], 100 * accuracies[order], style, name)
        if chance is not None:
            axes.axhline(100 * chance, color=GRAY, ls="--", lw=1.2, zorder=0, label="chance")
        unit = f" ({units[transformation]})" if transformation in units else ""
        plain(axes, xlabel=transformation + unit, ylabel="accuracy (%)", grid=True)
        axes.set_ylim(-2, 102)
        for plotted in axes.lines:
            entries[str(plotted.get_label()), plotted.get_linestyle()] = plotted
    names = short_names([label for label, _ in entries], 40, "model")
    figure.legend(entries.values(), names, ncols=num_columns, **BELOW)
    return figure


def point_sets(rows: Mapping[str, Sequence[tuple[ArrayLike, ArrayLike]]]) -> Figure:
    """Draw rows of sets of points, all at one scale; the third coordinate is left out.

    Args:
        rows: name of a row -> its sets, of which at most 24 are drawn. A set has points
            `[points, 2 or 3]`, and the part of each, `[points]` integers from 0, which chooses
            the color.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for no set, or rows of unequal length.
    """
    num_columns = min(len(next(iter(rows.values()), ())), MAX_COLUMNS)
    if not num_columns or len(set(map(len, rows.values()))) > 1:
        raise ArgumentError("rows", "expected equally many sets of points in each, at least one")
    sets = [points for row in rows.values() for points in row[:num_columns]]
    limit = 1.05 * max(np.abs(np.asarray(points)[:, :2]).max() for points, _ in sets)

    figure = new_figure(1.25 * num_columns + 0.4, 1.3 * len(rows))
    table = figure.subplots(len(rows), num_columns, squeeze=False)
    for axes, (points, parts) in zip(table.flat, sets, strict=True):
        x, y, *_ = np.asarray(points).T
        colors = [STYLES[part % len(STYLES)][0] for part in np.asarray(parts)]
        axes.scatter(x, y, c=colors, s=2, linewidths=0)
        axes.axis((-limit, limit, -limit, limit))
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set_color(GRID_COLOR)
    for axes, name in zip(table[:, 0], rows, strict=True):
        axes.set_ylabel(name, fontsize=SMALL)
    return figure


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
    targets = np.asarray(true, dtype=float)
    check_shape("true", targets, ("n", "m"))
    check_range("true: number of values", targets.size, low=1)
    count, num_names = targets.shape
    estimates = sized_array("predicted", predicted, n=count, m=num_names).astype(float)
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
        axes.set_xlim(limits)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    return figure


def ranked_accuracies(
    panels: Mapping[str, Mapping[str, tuple[float, Sequence[float]]]],
) -> Figure:
    """Draw test errors as dots, the best system on top, with names at the dots.

    Where times of training differ by more than half, they stand behind the names.

    A bar is the standard deviation over runs, on either side of their mean. Errors are on a
    logarithmic axis; those below 0.01 % are drawn there.

    Args:
        panels: data set -> system -> (minutes of training, accuracies of its runs in [0, 1]); at
            least one data set.

    Returns:
        A matplotlib figure.
    """
    figure = new_figure(4.6 * len(panels), 0.9 + 0.24 * max(map(len, panels.values())))
    grid = figure.subplots(1, len(panels), squeeze=False)
    for axes, (dataset, systems) in zip(grid.flat, panels.items(), strict=True):
        ranked = sorted(systems.items(), key=lambda system: -mean(system[1][1]))
        errors = [max(MIN_ERROR, 100 * (1 - mean(runs))) for _, (_, runs) in ranked]
        middle = (errors[0] * errors[-1]) ** 0.5
        times = [minutes for minutes, _ in systems.values()]
        has_times = max(times) > 1.5 * min(times)
        for row, (name, (minutes, runs)) in enumerate(ranked):
            deviation = 100 * stdev(runs) if len(runs) > 1 else 0.0
            ends = [max(MIN_ERROR, errors[row] - deviation), errors[row] + deviation]
            axes.plot(ends, [row, row], color=SKY, lw=2)
            axes.plot(errors[row], row, color=BLUE, marker="o", ms=5)
            is_low = errors[row] <= middle
            axes.annotate(
                short(name, 36) + f", {minutes:.2g} min" * has_times,
                (ends[1 if is_low else 0], row),
                (7 if is_low else -7, 0),
                textcoords="offset points",
                ha="left" if is_low else "right",
                va="center",
                fontsize=SMALL,
            )
        title = dataset if has_times else f"{dataset}, {mean(times):.1f} min of training"
        plain(axes, title, xlabel="test error, %", grid=True)
        axes.grid(False, axis="y")
        # Room for the names on both sides.
        room = (errors[-1] / errors[0]) ** 0.2 * 1.05
        axes.set(xscale="log", xlim=(errors[0] / room, errors[-1] * room), yticks=[])
        axes.set_ylim(len(ranked) - 0.4, -0.6)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    return figure
