"""The routing of one model at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from torchcaps.errors import check_range
from torchcaps.viz.canvas import (
    BLUE,
    GREY,
    ORANGE,
    SKY,
    SMALL,
    TEXT,
    Axes,
    Figure,
    check_length,
    new_figure,
    plain,
    short,
)
from torchcaps.viz.robustness import STYLES

MOST_LAYERS = len(STYLES)


def diagnosis(
    layers: Sequence[str],
    *,
    entropy: ArrayLike,
    strongest: ArrayLike,
    median: ArrayLike,
    dead: ArrayLike,
    constant: ArrayLike,
    starved: ArrayLike,
    accuracy: Mapping[str, float | None],
) -> Figure:
    """Four panels: coupling entropy, activations over layers, capsules out of use, accuracy without routing.

    Args:
        layers: names of the L routed layers, from 1 to 6.
        entropy: `[L, iterations]` in [0, 1]; 1 is uniform coupling.
        strongest: `[L + 1]` in [0, 1], largest activation of the first children and of the parents of each layer.
        median: `[L + 1]`, median activation of the same.
        dead: `[L + 1]`, share of the same capsules that are never active.
        constant: `[L + 1]`, share whose activation does not change.
        starved: `[L]`, share of the children of each layer that get next to no gradient.
        accuracy: name, such as "as trained" or "uniform" -> accuracy in [0, 1], or None where it was not measured.

    Raises:
        ValueError: for lists that do not fit, or too many layers.
    """
    check_range("number of layers", len(layers), low=1, high=MOST_LAYERS)
    curves = np.asarray(entropy, dtype=np.float64)
    if curves.ndim != 2 or len(curves) != len(layers) or not curves.shape[1]:
        raise ValueError(f"entropy: expected [layers={len(layers)}, iterations], got {list(curves.shape)}")
    given = {"strongest": strongest, "median": median, "dead": dead, "constant": constant}
    levels = {name: _values(name, values, len(layers) + 1) for name, values in given.items()}
    # Starvation is that of children: the top capsules have none above them.
    levels["starved"] = np.append(_values("starved", starved, len(layers)), np.nan)
    names = [short(name, 18) for name in ("children", *layers)]
    figure = new_figure(10.0, 6.4)
    panels = figure.subplots(2, 2)
    _entropy(panels[0, 0], curves, names[1:])
    _activations(panels[0, 1], levels, names)
    _idle(panels[1, 0], levels, names)
    _accuracy(panels[1, 1], accuracy)
    return figure


def _values(argument: str, values: ArrayLike, count: int) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    check_length(argument, array, count)
    return array


def _entropy(axes: Axes, curves: NDArray[np.float64], names: Sequence[str]) -> None:
    for values, name, (colour, marker) in zip(curves, names, STYLES, strict=False):
        axes.plot(range(1, len(values) + 1), values, color=colour, marker=marker, ms=4, lw=1.5, label=name)
    axes.axhline(1, color=GREY, ls="--", lw=1.2, zorder=0)
    _dress(axes, "coupling entropy; 1: uniform, 0: a tree")
    axes.set_xlabel("routing iterations", fontsize=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(fontsize=SMALL, frameon=False)


def _activations(axes: Axes, levels: Mapping[str, NDArray[np.float64]], names: Sequence[str]) -> None:
    places = range(len(names))
    axes.plot(places, levels["strongest"], color=BLUE, marker="o", ms=4, lw=1.5, label="largest of an image, mean")
    axes.plot(places, levels["median"], color=ORANGE, marker="s", ms=4, lw=1.5, label="median")
    _dress(axes, "activation, from input to output")
    axes.set_xticks(places, names)
    axes.legend(fontsize=SMALL, frameon=False)


def _idle(axes: Axes, levels: Mapping[str, NDArray[np.float64]], names: Sequence[str]) -> None:
    kinds = (("dead", "never active", BLUE), ("constant", "constant", SKY), ("starved", "starved of gradient", ORANGE))
    for step, (key, label, colour) in enumerate(kinds):
        heights = np.nan_to_num(levels[key])
        axes.bar(np.arange(len(names)) + 0.27 * (step - 1), heights, width=0.25, color=colour, label=label)
    _dress(axes, "share of capsules out of use")
    axes.set_xticks(range(len(names)), names)
    axes.legend(fontsize=SMALL, frameon=False)


def _accuracy(axes: Axes, accuracy: Mapping[str, float | None]) -> None:
    known = {short(name, 18): value for name, value in accuracy.items() if value is not None}
    axes.bar(range(len(known)), list(known.values()), width=0.5, color=[BLUE, *[SKY] * (len(known) - 1)][: len(known)])
    for place, value in enumerate(known.values()):
        axes.text(place, value + 0.01, f"{100 * value:.1f} %", ha="center", va="bottom", fontsize=SMALL)
    _dress(axes, "accuracy with other couplings, at test time")
    axes.set_xticks(range(len(known)), list(known))


def _dress(axes: Axes, title: str) -> None:
    plain(axes).set_title(title, fontsize=TEXT, loc="left")
    axes.set_ylim(-0.03, 1.1)
    axes.grid(True, axis="y", color="#E5E5E5", lw=0.6)
    axes.set_axisbelow(True)
