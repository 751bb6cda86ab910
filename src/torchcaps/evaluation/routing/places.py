"""Where capsules stand: maps of capsules that a forward pass makes, and how they see the image."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from torchcaps.functional.fields import ConvField, Field
from torchcaps.functional.geometry import Slide
from torchcaps.nn.routed import RoutedLayer
from torchcaps.types import Capsules

Slides = tuple[Slide, ...] | None
"""Those of the layers from the image on; None where they are no chain of plain convolutions."""


class CapsuleMap(NamedTuple):
    """Capsules with places."""

    capsules: Capsules  # pose `[batch, height, width, types, dim]`, activation likewise
    slides: Slides  # of the layers below


@dataclass
class Places:
    """The maps that a forward pass has made so far."""

    maps: list[CapsuleMap] = field(default_factory=list)  # in the order of the pass
    slides: Slides = ()
    _size: Sequence[int] | None = None

    def add(self, slide: Slide | None, before: Sequence[int], after: Sequence[int]) -> None:
        """Record a layer that has slid over a map of one size and made one of another size."""
        is_chained = self._size in (None, before)
        if slide and self.slides is not None and is_chained:
            self.slides = (*self.slides, slide)
        else:
            self.slides = None
        self._size = after

    def map_of(self, children: Capsules) -> CapsuleMap | None:
        """Return the newest map that holds capsules, with their places or in a row."""
        for candidate in reversed(self.maps):
            pose = candidate.capsules.pose
            if torch.equal(pose, children.pose) or torch.equal(pose.flatten(1, 3), children.pose):
                return candidate
        return None


@contextmanager
def places_of(model: nn.Module) -> Iterator[Places]:
    """Record the maps of the forward passes of a model."""
    places = Places()

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, nn.Conv2d):
            places.add(_convolution_slide(module), inputs[0].shape[2:], output.shape[2:])
        elif isinstance(module, RoutedLayer) and output.pose.dim() == 5:
            pose = inputs[0].pose if isinstance(inputs[0], Capsules) else inputs[0]
            before = pose.shape[1:-2]
            places.add(_field_slide(module.field(*before)), before, output.pose.shape[1:3])
        if isinstance(output, Capsules) and output.pose.dim() == 5:
            places.maps.append(CapsuleMap(output, places.slides))

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_hook(record).remove)
        yield places


def _convolution_slide(layer: nn.Conv2d) -> Slide | None:
    """Return how a convolution slides; None for padding by name and dilated kernels."""
    if isinstance(layer.padding, str) or layer.dilation != (1, 1):
        return None
    return Slide(layer.kernel_size, layer.stride, layer.padding)


def _field_slide(field: Field) -> Slide | None:
    """Return how the windows of a routed layer slide; None for any other field."""
    if type(field) is not ConvField:
        return None
    return Slide(*[(size, size) for size in (field.kernel, field.stride, field.padding)])
