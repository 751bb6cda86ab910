"""Which map capsules stand on, and how it sees the image."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from torchcaps.evaluation.routing.places import places_of
from torchcaps.functional.fields import ConvField, ConvTransposeField
from torchcaps.functional.geometry import Slide
from torchcaps.nn import ConvCaps, TransposedConvCaps
from torchcaps.nn.routed import RoutedLayer
from torchcaps.nn.votes import LinearVotes
from torchcaps.types import Capsules, LayerSizes


def children(side=6, types=2, dim=4):
    return Capsules(*(torch.rand(2, side, side, types, *rest) for rest in [(dim,), ()]))


def test_two_maps_of_one_shape_are_told_apart() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(
        *(ConvCaps(2, 2, kernel_size=3, padding=1, pose_size=(4, 4)) for _ in range(2))
    )
    with places_of(layers) as seen:
        layers(children())
    first, second = (found.capsules for found in seen.maps[:2])
    assert first.pose.shape == second.pose.shape
    assert torch.equal(seen.map_of(first).capsules.pose, first.pose)
    assert len(seen.map_of(first).slides) == 1
    assert len(seen.map_of(second).slides) == 2
    flat = Capsules(first.pose.flatten(1, 3), first.activation.flatten(1))
    assert torch.equal(seen.map_of(flat).capsules.pose, first.pose)
    assert seen.map_of(children()) is None


def test_any_routed_layer_with_windows_slides_and_transposed_ones_do_not() -> None:
    torch.manual_seed(0)
    sizes = LayerSizes(children=9 * 2, in_dim=4, parents=2, dim=4)
    layer = RoutedLayer(
        LinearVotes(sizes), "dynamic", partial(ConvField, kernel=3, stride=2, padding=1)
    )
    with places_of(layer) as seen:
        layer(children())
    assert seen.slides == (Slide((3, 3), (2, 2), (1, 1)),)
    for layer in [
        TransposedConvCaps(2, 2, kernel_size=2, stride=2, pose_size=(4, 4)),
        RoutedLayer(LinearVotes(sizes), "dynamic", partial(ConvTransposeField, kernel=3, stride=2)),
    ]:
        with places_of(layer) as seen:
            layer(children())
        assert seen.slides is None


def test_poses_alone_have_places_too():
    layer = ConvCaps(2, 3, 3, 2, pose_size=(4, 4), routing="dynamic")
    with places_of(layer) as seen:
        layer(torch.rand(1, 7, 9, 2, 4))
    assert seen.maps[0].capsules.pose.shape == (1, 3, 4, 3, 4)
    assert [slide.stride for slide in seen.maps[0].slides] == [(2, 2)]
