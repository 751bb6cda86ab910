"""Accuracy against anything: the strength of an attack, an angle, the number of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from torchcaps.errors import check_range
from torchcaps.viz.canvas import GREY, SMALL, STYLES, Axes, Figure, line, new_figure, plain
from torchcaps.viz.names import short

Curve = tuple[ArrayLike, ArrayLike]
LEGEND = 2.9  # inches that a name takes below the panels


def accuracy_curves(
    curves: Mapping[str, Curve], *, xlabel: str, chance: float | None = None, log: bool = False, title: str = ""
) -> Figure:
    """One line a name, such as a model: accuracy in percent against what was changed.

    Args:
        curves: name -> (amounts, accuracies in [0, 1]), from 1 to 6 names; lines are drawn in ascending order of
            amounts.
        xlabel: what the amounts are, with their unit.
        chance: accuracy in [0, 1] of a guess, drawn as a dashed line.
        log: whether the amounts stand on a logarithmic axis, such as numbers of labels.
        title: a line above.

    Raises:
        ValueError: for no curve or too many, or amounts and accuracies that do not go together.
    """
    check_range("number of curves", len(curves), low=1, high=len(STYLES))
    figure = new_figure(5.6, 3.6)
    axes = figure.subplots()
    _panel(axes, curves, xlabel, chance, title=short(title, 70))
    if log:
        axes.set_xscale("log")
    axes.legend(fontsize=SMALL, frameon=False)
    return figure


def affine_curves(
    models: Mapping[str, Mapping[str, Curve]], *, units: Mapping[str, str], chance: float | None = None
) -> Figure:
    """A panel a transformation, a line a model.

    Args:
        models: name -> transformation -> (amounts, accuracies in [0, 1]); 1 to 6 models, 1 to 8 transformations in all.
        units: transformation -> unit of its amounts.
        chance: accuracy in [0, 1] of a guess, drawn as a dashed line.

    Raises:
        ValueError: for no model or too many, or curves that do not fit.
    """
    check_range("number of models", len(models), low=1, high=len(STYLES))
    kinds = list(dict.fromkeys(kind for curves in models.values() for kind in curves))
    check_range("number of transformations", len(kinds), low=1, high=8)
    columns = min(len(kinds), 4)
    rows = -(-len(kinds) // columns)
    width = max(3.3 * columns, 4.4)
    entries = len(models) + (chance is not None)
    across = min(entries, 4, int(width / LEGEND))
    figure = new_figure(width, 3.0 * rows + 0.2 + 0.2 * -(-entries // across))
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for panel, kind in zip(panels, kinds, strict=False):
        some = {name: curves[kind] for name, curves in models.items() if kind in curves}
        unit = f" ({units[kind]})" if kind in units else ""
        _panel(panel, some, kind + unit, chance, order=list(models))
    for panel in panels[len(kinds) :]:
        panel.set_axis_off()
    named = (*models, "chance")
    handles = {one.get_label(): one for panel in panels for one in panel.lines if one.get_label() in named}
    figure.legend(
        list(handles.values()), [short(str(name), 40) for name in handles], loc="outside lower center",
        ncols=across, fontsize=SMALL, frameon=False,
    )  # fmt: skip
    return figure


def _panel(
    axes: Axes, curves: Mapping[str, Curve], xlabel: str, chance: float | None, order: Sequence[str] | None = None,
    title: str = "",
) -> None:  # fmt: skip
    names = list(order or curves)
    for name, (amounts, accuracy) in curves.items():
        x, y = np.asarray(amounts, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
        if x.ndim != 1 or x.shape != y.shape or not len(x):
            raise ValueError(
                f"curves: expected as many amounts as accuracies for {name!r}, got {x.shape} and {y.shape}"
            )
        ascending = np.argsort(x, kind="stable")
        label = name if order is not None else short(name, 40)
        line(axes, x[ascending], 100 * y[ascending], STYLES[names.index(name)], label)
    if chance is not None:
        axes.axhline(100 * chance, color=GREY, ls="--", lw=1.2, zorder=0, label="chance")
    plain(axes, title, xlabel=xlabel, ylabel="accuracy (%)", grid=True)
    axes.set_ylim(-2, 102)
