"""What a network's routing does, at a glance: couplings, activations, idle capsules, accuracy without routing."""

from collections.abc import Sequence
from math import isnan, nan

import numpy as np
from matplotlib.ticker import MaxNLocator

from torchcaps.evaluation import CapsuleActivity, Diagnosis
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

SLANTED = 4  # sets of capsules from which on their names are written aslant


def diagnosis(found: Diagnosis) -> Figure:
    """Four panels: coupling entropy, activations over layers, capsules out of use, accuracy without routing. Capsules
    out of use are never active, or the same for every image, or get next to no gradient; the last is known for children
    only, and so not for the class capsules."""
    figure, drawn = panels(4, 2, 5.0, 3.2)
    for axes, draw in zip(drawn, (_entropy, _activations, _idle, _accuracy), strict=True):
        draw(axes, found)
    return figure


def _entropy(axes: Axes, found: Diagnosis) -> None:
    for place, (name, values) in enumerate(found.iterations.entropy.items()):
        line(axes, range(1, len(values) + 1), values, STYLES[place % len(STYLES)], short(name, 18))
    axes.axhline(1, color=GRAY, ls="--", lw=1.2, zorder=0)
    _dress(axes, "coupling entropy; 1: uniform, 0: a tree")
    axes.set_xlabel("routing iterations", fontsize=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if found.iterations.entropy:
        axes.legend(fontsize=SMALL, frameon=False, ncols=2)


def _activations(axes: Axes, found: Diagnosis) -> None:
    names = [short(name, 18) for name in found.decay.layers]
    line(axes, range(len(names)), found.decay.strongest, (BLUE, "o"), "largest of an image, mean")
    line(axes, range(len(names)), found.decay.median, (ORANGE, "s"), "median")
    _dress(axes, "activation, from input to output", names)
    axes.legend(fontsize=SMALL, frameon=False)


def _idle(axes: Axes, found: Diagnosis) -> None:
    names = ["children", *(short(layer.name, 18) for layer in found.layers)]
    sets: list[CapsuleActivity | None] = [
        found.children,
        *(layer.parents for layer in found.layers),
    ]
    dead, constant = (
        [nan if one is None else getattr(one, what) for one in sets]
        for what in ("dead", "constant")
    )
    starved = [layer.starvation.starved for layer in found.layers]
    kinds = (
        ("never active", BLUE, dead),
        ("constant", SKY, constant),
        ("starved of gradient", ORANGE, starved),
    )
    for step, (label, color, heights) in enumerate(kinds):
        bars = axes.bar(
            np.arange(len(heights)) + 0.27 * (step - 1),
            heights,
            width=0.25,
            color=color,
            label=label,
        )
        if len(sets) <= SLANTED:
            texts = ["" if isnan(height) else f"{100 * height:.0f} %" for height in heights]
            axes.bar_label(bars, texts, fontsize=SMALL, padding=1)
    _dress(axes, "share of capsules out of use", names)
    axes.legend(fontsize=SMALL, frameon=False)


def _accuracy(axes: Axes, found: Diagnosis) -> None:
    known = {"as trained": found.accuracy}
    if found.ablation is not None:
        known |= {"uniform": found.ablation.uniform, "random": found.ablation.random}
    if found.baseline is not None:
        known["baseline"] = found.baseline.second
    colors = [{"as trained": BLUE, "baseline": ORANGE}.get(name, SKY) for name in known]
    drawn = axes.bar(range(len(known)), list(known.values()), width=0.5, color=colors)
    axes.bar_label(
        drawn, [f"{100 * value:.1f} %" for value in known.values()], fontsize=SMALL, padding=1
    )
    _dress(axes, f"accuracy with these couplings, {found.num_samples} images", list(known))


def _dress(axes: Axes, title: str, names: Sequence[str] = ()) -> None:
    """A panel of shares, with these names along it."""
    plain(axes, title, grid=True).grid(False, axis="x")
    axes.set_ylim(-0.03, 1.1)
    axes.set_axisbelow(True)
    if names:
        axes.set_xticks(range(len(names)), names, rotation=30 if len(names) > SLANTED else 0)
        axes.set_xlim(-0.6, max(len(names), 3) - 0.4)
