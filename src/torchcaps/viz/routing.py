"""The routing of a network at a glance: couplings, activations, idle capsules, ablations."""

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from torchcaps.evaluation import Diagnosis
from torchcaps.viz.canvas import (
    BLUE,
    GRAY,
    ORANGE,
    SKY,
    SMALL,
    STYLES,
    Axes,
    Figure,
    line,
    panels,
    plain,
)
from torchcaps.viz.names import short

MAX_LEVEL_NAMES = 4  # more names along an axis are written aslant
BAR_STEP = 0.27
BAR_TEXT: dict[str, Any] = {"fontsize": SMALL, "padding": 1}
COLORS = {"as trained": BLUE, "baseline": ORANGE}


def diagnosis(figures: Diagnosis) -> Figure:
    """Draw coupling entropy, activations over layers, idle capsules, and accuracy without routing.

    Idle capsules are never active, or the same for every image, or get next to no gradient. The
    gradient is known for children only, and so not for the class capsules.

    Args:
        figures: the figures that `evaluation.diagnose` returns.

    Returns:
        A matplotlib figure.
    """
    figure, (entropy, activations, idle, accuracy) = panels(4, 2, 5.0, 3.2)
    _draw_entropy(entropy, figures)
    _draw_activations(activations, figures)
    _draw_idle(idle, figures)
    _draw_accuracy(accuracy, figures)
    return figure


def _draw_entropy(axes: Axes, figures: Diagnosis) -> None:
    entropies = figures.iterations.entropy
    for index, (name, course) in enumerate(entropies.items()):
        style = STYLES[index % len(STYLES)]
        line(axes, range(1, len(course) + 1), course, style, short(name, 18))
    axes.axhline(1, color=GRAY, ls="--", lw=1.2, zorder=0)
    _style_shares(axes, "coupling entropy; 1: uniform, 0: a tree")
    axes.set_xlabel("routing iterations", fontsize=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if entropies:
        axes.legend(fontsize=SMALL, frameon=False, ncols=2)


def _draw_activations(axes: Axes, figures: Diagnosis) -> None:
    names = [short(name, 18) for name in figures.decay.layers]
    places = range(len(names))
    line(axes, places, figures.decay.strongest, (BLUE, "o"), "largest of an image, mean")
    line(axes, places, figures.decay.median, (ORANGE, "s"), "median")
    _style_shares(axes, "activation, from input to output", names)
    axes.legend(fontsize=SMALL, frameon=False)


def _draw_idle(axes: Axes, figures: Diagnosis) -> None:
    capsules = [figures.children, *(layer.parents for layer in figures.layers)]
    names = ["children", *(short(layer.name, 18) for layer in figures.layers)]
    kinds = (
        ("never active", BLUE, [group.dead if group else nan for group in capsules]),
        ("constant", SKY, [group.constant if group else nan for group in capsules]),
        ("starved of gradient", ORANGE, [layer.starvation.starved for layer in figures.layers]),
    )
    for index, (label, color, heights) in enumerate(kinds):
        places = np.arange(len(heights)) + BAR_STEP * (index - 1)
        bars = axes.bar(places, heights, width=0.25, color=color, label=label)
        if len(names) <= MAX_LEVEL_NAMES:
            axes.bar_label(bars, fmt=lambda share: f"{100 * share:.0f} %", **BAR_TEXT)
    _style_shares(axes, "share of capsules out of use", names)
    axes.legend(fontsize=SMALL, frameon=False)


def _draw_accuracy(axes: Axes, figures: Diagnosis) -> None:
    accuracies = {"as trained": figures.accuracy}
    if figures.ablation is not None:
        accuracies["uniform"] = figures.ablation.uniform
        accuracies["random"] = figures.ablation.random
    if figures.baseline is not None:
        accuracies["baseline"] = figures.baseline.second
    colors = [COLORS.get(name, SKY) for name in accuracies]
    bars = axes.bar(range(len(colors)), list(accuracies.values()), width=0.5, color=colors)
    axes.bar_label(bars, fmt=lambda share: f"{100 * share:.1f} %", **BAR_TEXT)
    title = f"accuracy with these couplings, {figures.num_samples} images"
    _style_shares(axes, title, list(accuracies))


def _style_shares(axes: Axes, title: str, names: Sequence[str] = ()) -> None:
    """Style a panel of shares, with names along it."""
    plain(axes, title, grid=True)
    axes.grid(False, axis="x")
    axes.set_ylim(-0.03, 1.1)
    axes.set_axisbelow(True)
    if names:
        rotation = 30 if len(names) > MAX_LEVEL_NAMES else 0
        axes.set_xticks(range(len(names)), names, rotation=rotation)
        axes.set_xlim(-0.6, max(len(names), 3) - 0.4)
