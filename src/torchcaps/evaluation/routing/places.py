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


class CapsuleMap(NamedTuple):
    """Capsules with places."""

    capsules: Capsules  # pose `[batch, height, width, types, dim]`, activation likewise
    slides: (
        tuple[Slide, ...] | None
    )  # of the layers below, from the image on; None: no chain of plain convolutions


@dataclass
class Watched:
    """What a forward pass has made so far."""

    maps: list[CapsuleMap] = field(
        default_factory=list
    )  # of capsules, in the order in which they came about
    slides: (
        tuple[Slide, ...] | None
    ) = ()  # from the image on; None once a layer did not take what another gave
    _size: tuple[int, ...] | None = None

    def add(self, slide: Slide | None, before: Sequence[int], after: Sequence[int]) -> None:
        """A layer has slid over a map of this size and made one of that size."""
        if slide is None or self.slides is None or self._size not in (None, tuple(before)):
            self.slides = None
        else:
            self.slides = (*self.slides, slide)
        self._size = tuple(after)

    def map_of(self, children: Capsules) -> CapsuleMap | None:
        """The newest map that holds these capsules, with their places or in a row, position after position."""
        for found in reversed(self.maps):
            pose = found.capsules.pose
            if any(torch.equal(same, children.pose) for same in (pose, pose.flatten(1, 3))):
                return found
        return None


@contextmanager
def places_of(model: nn.Module) -> Iterator[Watched]:
    """Watch forward passes of a model while the block runs."""
    seen = Watched()

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, nn.Conv2d):
            seen.add(_slide(module), inputs[0].shape[2:], output.shape[2:])
        elif isinstance(module, RoutedLayer) and output.pose.dim() == 5:
            pose = inputs[0].pose if isinstance(inputs[0], Capsules) else inputs[0]
            before = pose.shape[1:-2]
            seen.add(_window(module.field(*before)), before, output.pose.shape[1:3])
        if isinstance(output, Capsules) and output.pose.dim() == 5:
            seen.maps.append(CapsuleMap(output, seen.slides))

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_hook(watch).remove)
        yield seen


def _slide(layer: nn.Conv2d) -> Slide | None:
    """How a convolution slides; None for padding by name and dilated kernels."""
    if isinstance(layer.padding, str) or layer.dilation != (1, 1):
        return None
    return Slide(*((size[0], size[1]) for size in (layer.kernel_size, layer.stride, layer.padding)))


def _window(field: Field) -> Slide | None:
    """How the windows of a routed layer slide; None for any other field."""
    if type(field) is not ConvField:
        return None
    return Slide(*((size, size) for size in (field.kernel, field.stride, field.padding)))
