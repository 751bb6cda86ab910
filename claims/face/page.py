"""The page: both networks, the parts of the set `faces`, and what was measured, in one file."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from claims.face.networks import FaceNetwork, quantize, read_networks
from claims.sets.faces import (
    BACKGROUND,
    CLASSES,
    GLYPHS,
    KINDS,
    NOISE,
    OBJECTS,
    PART,
    SIDE,
)
from torchcaps.exporting.network import Network, describe_module, describe_network
from torchcaps.exporting.page import SMALL, Content, assemble
from torchcaps.models.notebook import parameter_count
from torchcaps.training.files import atomic
from torchcaps.types import spec_of

FRAME = Path(__file__).with_name("index.html")
BRIGHTNESS = 0.6  # of the parts above the background, that of the brighter images
ARRANGEMENTS = ("whole", "swapped", "turned", "foreign", "moved", "upside-down", "scrambled")
ARRANGED = 3  # seed of the arrangements that the page offers


def write_page(path: Path) -> None:
    """Write the page of the stored networks.

    Args:
        path: of the file.
    """
    with atomic(path) as partial:
        partial.write_text(face_page(read_networks()), encoding="utf-8")


def face_page(networks: list[FaceNetwork]) -> str:
    """The page as HTML, with everything in it.

    Args:
        networks: the capsule network, and the CNN.
    """
    contents = [carry_network(network) for network in networks]
    contents[0].head["drawing"] = describe_drawing()
    return assemble(contents, frame=FRAME)


def carry_network(network: FaceNetwork) -> Content:
    """A network with its weights, which the page runs.

    Args:
        network: one of the page.

    Returns:
        Its layers in words, and its weights as they are stored; `head["scales"]` has the place of
        the scales by the place of the whole numbers.
    """
    model = network.model
    layers = describe_cnn(model) if spec_of(model).logits else describe_network(model)
    facts: dict[str, Any] = {
        "parameters": parameter_count(model),
        "classes": CLASSES,
        "shape": (1, SIDE, SIDE),
    }
    facts |= network.facts
    facts["limits"] = facts["figures"]["limits"]
    if spec_of(model).logits:  # limits of log-probabilities
        facts["limits"] = [math.exp(limit) for limit in facts["limits"]]
    content = Content(facts, [])
    scales = {}
    places = []
    for tensor in layers.tensors:
        if tensor.numel() <= SMALL:
            places.append(content.keep(tensor))
            continue
        steps, scale = quantize(tensor)
        places.append(content.keep(steps))
        scales[places[-1]] = content.keep(scale)
    content.head["scales"] = scales
    described = {"layers": layers.layers, "decoder": [], "drawn": [], "tensors": places}
    content.head["network"] = described
    return content


def describe_cnn(model: Any) -> Network:
    """The layers of a CNN in words; those that `describe_network` lacks are in face.js.

    Args:
        model: a `CNN`.
    """
    network = Network()
    for module in (*model.convolutions, *model.hidden, model.classes_layer):
        if isinstance(module, nn.MaxPool2d | nn.AdaptiveMaxPool2d):
            size = getattr(module, "kernel_size", None)  # None: all places
            network.layers.append({"op": "pool", "size": size})
            continue
        if isinstance(module, nn.Linear):
            module = _as_convolution(module)
        network.layers += describe_module(network, module)
    network.layers.append({"op": "softmax"})
    return network


@torch.no_grad()
def _as_convolution(linear: nn.Linear) -> nn.Conv2d:
    """A convolution of a map of one place that computes the same."""
    convolution = nn.Conv2d(linear.in_features, linear.out_features, 1)
    convolution.weight.copy_(linear.weight[:, :, None, None])
    convolution.bias = linear.bias
    return convolution


def describe_drawing() -> dict[str, Any]:
    """What the page draws with, as the set `faces` does: parts, objects and arrangements."""
    arrangements: dict[str, dict[str, Any]] = {}
    for kind in ARRANGEMENTS:
        random = np.random.RandomState(ARRANGED)
        arrangements[kind] = {}
        for name in CLASSES:
            parts = [part._asdict() for part in KINDS[kind](name, random)]
            arrangements[kind][name] = _as_integers(parts)
    return {
        "side": SIDE,
        "part": PART,
        "background": BACKGROUND,
        "brightness": BRIGHTNESS,
        "noise": NOISE,
        "glyphs": GLYPHS,
        "objects": list(OBJECTS),
        "arrangements": arrangements,
    }


def _as_integers(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts ready for JSON, which knows no integers of NumPy."""
    return [part | {name: int(part[name]) for name in ("row", "column", "turns")} for part in parts]
