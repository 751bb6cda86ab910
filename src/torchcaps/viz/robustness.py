"""Accuracy against the amount of a change: an angle, the strength of an attack, a number of labels.

A transformation is here whatever changes by an amount. Affine transformations of images (rotation,
scale, shear, shift) are the usual ones, and `affine_curves` is named after them.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range
from torchcaps.viz.canvas import BELOW, GRAY, STYLES, TEXT, Figure, line, panels, plain
from torchcaps.viz.names import short, short_names, sized_array

MAX_MODELS = len(STYLES)
MAX_TRANSFORMATIONS = 8

Curve = tuple[ArrayLike, ArrayLike]
"""Amounts `[n]`, and accuracies `[n]` in [0, 1]."""


def accuracy_curves(
    curves: Mapping[str, Curve],
    *,
    xlabel: str,
    chance: float | None = None,
    title: str = "",
) -> Figure:
    """Draw accuracy in percent against the amount of one change, one line per model.

    Args:
        curves: amounts and accuracies by the name of the model, for 1 to 6 models; the amounts in
            any order.
        xlabel: what was changed.
        chance: accuracy of a guess, drawn as a dashed line.
        title: title of the panel.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for no curve or more than 6, or a curve that is not two lists of one length.
    """
    # The change is the only transformation, so that its name becomes the label of the axis.
    models = {name: {xlabel: curve} for name, curve in curves.items()}
    figure = affine_curves(models, units={}, chance=chance)
    figure.axes[0].set_title(short(title, 70), fontsize=TEXT, loc="left")
    return figure


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
    legend_height = 0.2 + 0.2 * (len(models) // num_columns)
    figure, all_axes = panels(len(transformations), num_columns, width, 3.0, legend_height)

    # Lines of the legend by label and line style: a model may be called "chance" too.
    entries: dict[tuple[str, Any], Any] = {}
    for axes, transformation in zip(all_axes, transformations, strict=True):
        for (name, curves), style in zip(models.items(), STYLES, strict=False):
            if transformation in curves:
                line(axes, *_ascending(name, curves[transformation]), style, name)
        if chance is not None:
            axes.axhline(100 * chance, color=GRAY, ls="--", lw=1.2, zorder=0, label="chance")
        unit = f" ({units[transformation]})" if transformation in units else ""
        plain(axes, xlabel=transformation + unit, ylabel="accuracy (%)", grid=True)
        axes.set_ylim(-2, 102)
        for plotted in axes.lines:
            entries[str(plotted.get_label()), plotted.get_linestyle()] = plotted
    names = short_names([label for label, _ in entries], 40)
    figure.legend(entries.values(), names, ncols=num_columns, **BELOW)
    return figure


def _ascending(name: str, curve: Curve) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ascending amounts, and their accuracies in percent."""
    amounts = np.asarray(curve[0])
    accuracies = sized_array(f"curve of {name!r}", curve[1], amounts=amounts.size)
    order = np.argsort(amounts, kind="stable")
    return amounts[order], 100 * accuracies[order]
