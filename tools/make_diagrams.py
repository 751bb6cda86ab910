"""Draw networks stage by stage, sizes as measured, into docs/images/NAME.png: `make_diagrams.py [NAME ...]`."""

from __future__ import annotations

import re
import sys
from math import log2
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import torchcaps as tc
from make_gallery import PICTURES, save
from torchcaps.models.notebook import list_stages
from torchcaps.viz.canvas import BLUE, GRAY, ORANGE, new_figure

NAMES = (
    "vb_caps",
    "deepcaps",
    "inverted_attention",
    "heinsen",
    "sr_capsnet",
    "capsnet",
    "matrix_caps",
    "resnet20",
    "capsule_head",
    "transforming_autoencoder",
    "canonical_capsules",
)
# Names of the layers in the papers, where they have some.
PAPER = {
    ("deepcaps", "stem"): "Conv",
    ("deepcaps", "cells"): "ConvCaps cell",
    ("deepcaps", "cells.3"): "ConvCaps cell\nwith 3D routing",
    ("deepcaps", "class_capsules"): "DigitCaps",
    ("deepcaps", "decoder"): "class-independent\ndecoder",
    ("vb_caps", "stem"): "Conv1",
    ("vb_caps", "primary"): "PrimaryCaps",
    ("vb_caps", "conv_capsules.0"): "ConvCaps1",
    ("vb_caps", "conv_capsules.1"): "ConvCaps2",
    ("vb_caps", "class_capsules"): "ClassCaps",
    ("sr_capsnet", "primary"): "PrimaryCaps",
    ("sr_capsnet", "class_capsules"): "ClassCaps",
    ("inverted_attention", "primary"): "PrimaryCaps",
    ("inverted_attention", "capsule_layers"): "ConvCaps, FC Caps",
    ("inverted_attention", "classes_layer"): "shared classifier",
    ("capsnet", "conv"): "ReLU Conv1",
    ("capsnet", "class_capsules"): "DigitCaps",
    ("matrix_caps", "conv"): "ReLU Conv1",
    ("matrix_caps", "conv_capsules.0"): "ConvCaps1",
    ("matrix_caps", "conv_capsules.1"): "ConvCaps2",
}
# Stages of networks that are not one row of modules.
WRITTEN = {
    "transforming_autoencoder": (
        ("image", "1 × 28 × 28"),
        ("recognition units,\n30 capsules alone", "30 × 60"),
        ("presence and place\nof each capsule", "30 capsules of 2 dims"),
        ("the shift is added\nto each place", "30 capsules of 2 dims"),
        ("generation units,\n30 capsules alone", "30 × 20"),
        ("drawing: sum by\npresence", "1 × 28 × 28"),
    ),
    "canonical_capsules": (
        ("points in any pose", "1024 × 3"),
        ("point encoder", "1024 × 128"),
        ("attention: each point\namong 10 capsules", "10 capsules of 3 + 128 dims"),
        ("rigid motion to the\ncanonical pose", "1024 × 3"),
        ("second encoder,\nsame attention", "10 capsules of 128 dims"),
        ("decoder of each\ncapsule", "1020 × 3"),
    ),
}
QUIET = re.compile(r"BatchNorm|LayerNorm|ShiftNorm|SiLU|ReLU")  # stages that change no size
WORDS = {
    "ResidualBlock": "residual block",
    "Conv2d": "convolution",
    "RoutingHead": "routing head",
    "RoutedStack": "three routed layers",
    "CapsuleCell": "cell",
    "RoutedLayer, ": "",
    "ConvCaps": "capsules",
    "ClassCaps": "class capsules",
    "CapsuleLinear": "class capsules",
    "NormalizedPrimaryCaps": "primary capsules",
    "BranchedPrimaryCaps": "primary capsules",
    "ClassIndependentDecoder": "decoder",
    "Linear": "linear",
    "MatrixPrimaryCaps": "primary capsules",
    "PrimaryCaps": "primary capsules",
    "FullyConnectedDecoder": "decoder",
    "FeatureExtractor": "backbone",
    "CapsuleHead": "LayerNorm, primary capsules, class capsules",
}
Stage = tuple[str, str, int, float, float]


def size_of(output: str) -> tuple[float, float]:
    """Height and width of a stage's box, from what the stage gives."""
    numbers = [int(n) for n in re.findall(r"\d+", output)]
    capsules = "capsule" in output
    rows = numbers[0] if capsules and len(numbers) > 2 else 1 if len(numbers) < 3 else numbers[1]
    wide = numbers[-1] if len(numbers) == 1 else numbers[-1] * numbers[-2]
    if not capsules:
        wide = numbers[0]
    return 0.35 + log2(rows + 1) / 2.4, 0.25 + log2(wide + 1) / 12


def blocks(name: str) -> list[Stage]:
    """What each stage is, what it gives, how many follow alike, and the height and width of its box."""
    if name in WRITTEN:
        return [(kind, output, 1, *size_of(output)) for kind, output in WRITTEN[name]]
    model: Any = tc.create_model(name)
    stages: list[Stage] = []
    for stage in list_stages(model):
        if QUIET.match(stage.kind):
            continue
        kind = stage.kind
        for long, short in WORDS.items():
            kind = kind.replace(long, short)
        names = (PAPER.get((name, key)) for key in (stage.name, stage.name.partition(".")[0]))
        paper = next(filter(None, names), "")
        kind = (
            paper or kind if kind in ("cell", "decoder", "linear") else f"{paper}\n{kind}".strip()
        )
        if stages and stages[-1][:2] == (kind, stage.output):
            stages[-1] = (*stages[-1][:2], stages[-1][2] + 1, *stages[-1][3:])
        else:
            stages.append((kind, stage.output, 1, *size_of(stage.output)))
    return stages


def draw(name: str) -> Figure:
    """The stages of a network from left to right: the higher a box the larger its map, the wider the more channels."""
    stages = blocks(name)
    figure = new_figure(1.0 + 1.55 * len(stages), 3.6)
    axes = figure.subplots()
    for place, (kind, output, times, height, width) in enumerate(stages):
        color = (
            ORANGE
            if "capsule" in output or "rout" in kind
            else BLUE
            if "decoder" not in kind
            else GRAY
        )
        for copy in range(min(times, 4) - 1, -1, -1):
            corner = (1.55 * place - width / 2 + 0.07 * copy, -height / 2 + 0.07 * copy)
            axes.add_patch(
                Rectangle(
                    corner, width, height, facecolor=color, edgecolor="white", alpha=0.85, lw=1.2
                )
            )
        if place:
            ends = (
                (1.55 * place - width / 2 - 0.06, 0),
                (1.55 * (place - 1) + stages[place - 1][4] / 2 + 0.2, 0),
            )
            axes.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": "#555555"})
        prefix = f"{times} × " if times > 1 else ""
        axes.text(
            1.55 * place,
            1.95,
            f"{prefix}{kind}".replace(", ", "\n"),
            ha="center",
            va="bottom",
            fontsize=7.5,
        )
        axes.text(
            1.55 * place,
            -1.85,
            output.replace(" capsules", "\ncapsules"),
            ha="center",
            va="top",
            fontsize=7.5,
        )
    axes.set_xlim(-0.9, 1.55 * (len(stages) - 1) + 0.9)
    axes.set_ylim(-2.4, 3.0)
    axes.set_axis_off()
    return figure


def main(names: list[str]) -> int:
    for name in names or NAMES:
        size = save(draw(name), PICTURES.parent / f"{name}.png", 110, 64)
        print(f"{name}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
