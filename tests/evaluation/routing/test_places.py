"""Which map capsules stand on, and how it sees the image."""

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


def random_capsules():
    return Capsules(torch.rand(2, 6, 6, 2, 4), torch.rand(2, 6, 6, 2))


def watch(layer, inputs):
    with places_of(layer) as places:
        layer(inputs)
    return places


def test_two_maps_of_one_shape_are_distinguished():
    layers = [ConvCaps(2, 2, kernel_size=3, padding=1, pose_size=(4, 4)) for _ in range(2)]
    places = watch(nn.Sequential(*layers), random_capsules())
    first, second = (capsule_map.capsules for capsule_map in places.maps[:2])
    assert first.pose.shape == second.pose.shape
    assert torch.equal(places.map_of(first).capsules.pose, first.pose)
    assert len(places.map_of(first).slides) == 1
    assert len(places.map_of(second).slides) == 2
    row = Capsules(first.pose.flatten(1, 3), first.activation.flatten(1))
    assert torch.equal(places.map_of(row).capsules.pose, first.pose)
    assert places.map_of(random_capsules()) is None


def test_any_routed_layer_with_windows_slides_and_transposed_ones_do_not():
    sizes = LayerSizes(children=9 * 2, in_dim=4, parents=2, dim=4)
    field = partial(ConvField, kernel=3, stride=2, padding=1)
    places = watch(RoutedLayer(LinearVotes(sizes), "dynamic", field), random_capsules())
    assert places.slides == (Slide((3, 3), (2, 2), (1, 1)),)
    transposed = [
        TransposedConvCaps(2, 2, kernel_size=2, stride=2, pose_size=(4, 4)),
        RoutedLayer(LinearVotes(sizes), "dynamic", partial(ConvTransposeField, kernel=3, stride=2)),
    ]
    for layer in transposed:
        assert watch(layer, random_capsules()).slides is None


def test_poses_alone_have_places_too():
    layer = ConvCaps(2, 3, 3, 2, pose_size=(4, 4), routing="dynamic")
    [capsule_map] = watch(layer, torch.rand(1, 7, 9, 2, 4)).maps
    assert capsule_map.capsules.pose.shape == (1, 3, 4, 3, 4)
    assert [slide.stride for slide in capsule_map.slides] == [(2, 2)]
