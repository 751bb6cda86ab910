"""Accuracy against anything: the strength of an attack, an angle, the number of labels."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from torchcaps.errors import ArgumentError, check_range
from torchcaps.viz.canvas import BELOW, GRAY, STYLES, TEXT, Figure, line, panels, plain
from torchcaps.viz.names import short, short_names

Curve = tuple[ArrayLike, ArrayLike]


def accuracy_curves(
    curves: Mapping[str, Curve], *, xlabel: str, chance: float | None = None, title: str = ""
) -> Figure:
    """One line a name, such as a model: accuracy in percent against what was changed.

    The curves, from 1 to 6, are (amounts, accuracies in [0, 1]), drawn in ascending order of amounts; `chance`, the
    accuracy of a guess, is a dashed line. Raises ValueError for no curve or too many, or lists that do not go together.
    """
    check_range("number of curves", len(curves), low=1, high=len(STYLES))
    figure = affine_curves(
        {name: {xlabel: curve} for name, curve in curves.items()}, units={}, chance=chance
    )
    figure.axes[0].set_title(short(title, 70), fontsize=TEXT, loc="left")
    return figure


def affine_curves(
    models: Mapping[str, Mapping[str, Curve]],
    *,
    units: Mapping[str, str],
    chance: float | None = None,
) -> Figure:
    """A panel a transformation, 1 to 8 in all, a line a model, 1 to 6; see `accuracy_curves`. Units of the amounts are
    by transformation. Raises ValueError for no model or too many, or curves that do not fit."""
    check_range("number of models", len(models), low=1, high=len(STYLES))
    kinds = list(dict.fromkeys(kind for curves in models.values() for kind in curves))
    check_range("number of transformations", len(kinds), low=1, high=8)
    columns = min(len(kinds), 4)
    figure, drawn = panels(
        len(kinds), columns, 3.3 if columns > 1 else 4.6, 3.0, 0.2 + 0.2 * (len(models) // columns)
    )
    for axes, kind in zip(drawn, kinds, strict=True):
        for (name, curves), style in zip(models.items(), STYLES, strict=False):
            if kind in curves:
                line(axes, *_ascending(name, curves[kind]), style, name)
        if chance is not None:
            axes.axhline(100 * chance, color=GRAY, ls="--", lw=1.2, zorder=0, label="chance")
        unit = f" ({units[kind]})" if kind in units else ""
        plain(axes, xlabel=kind + unit, ylabel="accuracy (%)", grid=True)
        axes.set_ylim(-2, 102)
    named = {str(one.get_label()): one for axes in drawn for one in axes.lines}
    figure.legend(named.values(), short_names(list(named), 40), ncols=columns, **BELOW)
    return figure


def _ascending(name: str, curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Amounts in their order, and accuracies in percent."""
    x, y = (np.asarray(values, dtype=np.float64) for values in curve)
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise ArgumentError(
            "curves",
            f"expected as many amounts as accuracies for {name!r}, got {x.shape} and {y.shape}",
        )
    order = np.argsort(x, kind="stable")
    return x[order], 100 * y[order]
