"""Accuracy against anything: the strength of an attack, an angle, the number of labels."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import ArgumentError, check_range
from torchcaps.viz.canvas import BELOW, GRAY, STYLES, TEXT, Figure, line, panels, plain
from torchcaps.viz.names import short, short_names

MAX_MODELS = len(STYLES)
MAX_TRANSFORMATIONS = 8

Curve = tuple[ArrayLike, ArrayLike]
"""Amounts, and accuracies in [0, 1]."""


def accuracy_curves(
    curves: Mapping[str, Curve],
    *,
    xlabel: str,
    chance: float | None = None,
    title: str = "",
) -> Figure:
    """Draw accuracy in percent against what was changed, a line a model.

    Args:
        curves: amounts and accuracies by the name of the model, 1 to 6; the amounts in any order.
        xlabel: what was changed.
        chance: accuracy of a guess, drawn as a dashed line.
        title: title of the panel.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for no curve or too many, or lists that do not fit.
    """
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
    """Draw accuracy in percent, a panel a transformation and a line a model.

    Args:
        models: model -> transformation -> amounts and accuracies; 1 to 6 models and 1 to 8
            transformations.
        units: unit of the amounts of each transformation that has one.
        chance: accuracy of a guess, drawn as a dashed line.

    Returns:
        A matplotlib figure.

    Raises:
        ArgumentError: for no model or too many, or lists that do not fit.
    """
    check_range("number of models", len(models), low=1, high=MAX_MODELS)
    kinds = list(dict.fromkeys(kind for curves in models.values() for kind in curves))
    check_range("number of transformations", len(kinds), low=1, high=MAX_TRANSFORMATIONS)
    num_columns = min(len(kinds), 4)
    width = 3.3 if num_columns > 1 else 4.6
    legend_height = 0.2 + 0.2 * (len(models) // num_columns)
    figure, grid = panels(len(kinds), num_columns, width, 3.0, legend_height)

    entries: dict[str, Any] = {}
    for axes, kind in zip(grid, kinds, strict=True):
        for (name, curves), style in zip(models.items(), STYLES, strict=False):
            if kind in curves:
                line(axes, *_ascending(name, curves[kind]), style, name)
        if chance is not None:
            axes.axhline(100 * chance, color=GRAY, ls="--", lw=1.2, zorder=0, label="chance")
        unit = f" ({units[kind]})" if kind in units else ""
        plain(axes, xlabel=kind + unit, ylabel="accuracy (%)", grid=True)
        axes.set_ylim(-2, 102)
        entries |= {str(curve.get_label()): curve for curve in axes.lines}
    names = short_names(list(entries), 40)
    figure.legend(entries.values(), names, ncols=num_columns, **BELOW)
    return figure


def _ascending(name: str, curve: Curve) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ascending amounts, and their accuracies in percent."""
    amounts = np.asarray(curve[0], dtype=np.float64)
    accuracies = np.asarray(curve[1], dtype=np.float64)
    if amounts.ndim != 1 or amounts.shape != accuracies.shape or not amounts.size:
        shapes = f"{amounts.shape} and {accuracies.shape}"
        raise ArgumentError(
            "curves", f"expected as many amounts as accuracies for {name!r}, got {shapes}"
        )
    order = np.argsort(amounts, kind="stable")
    return amounts[order], 100 * accuracies[order]
