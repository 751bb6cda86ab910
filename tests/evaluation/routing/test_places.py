"""Which map capsules stand on, and how it sees the image."""

from functools import partial

import torch
from torch import nn

from torchcaps.evaluation.routing.coupling_maps import places_of
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
    options = {"kernel_size": 3, "padding": 1, "pose_size": (4, 4)}
    layers = nn.Sequential(ConvCaps(2, 2, **options), ConvCaps(2, 2, **options))
    places = watch(layers, random_capsules())
    first, second, *_ = places.maps
    pose, activation = first.capsules
    assert pose.shape == second.capsules.pose.shape
    assert places.map_of(first.capsules) is first
    assert len(first.slides) == 1
    assert len(places.map_of(second.capsules).slides) == 2
    row = Capsules(pose.flatten(1, 3), activation.flatten(1))
    assert places.map_of(row) is first
    assert places.map_of(random_capsules()) is None


def test_any_routed_layer_with_windows_slides_and_transposed_ones_do_not():
    sizes = LayerSizes(children=9 * 2, in_dim=4, parents=2, dim=4)
    field = partial(ConvField, kernel=3, stride=2, padding=1)
    layer = RoutedLayer(LinearVotes(sizes), "dynamic", field)
    places = watch(layer, random_capsules())
    assert places.slides == (Slide((3, 3), (2, 2), (1, 1)),)
    transposed = partial(ConvTransposeField, kernel=3, stride=2)
    layers = [
        TransposedConvCaps(2, 2, kernel_size=2, stride=2, pose_size=(4, 4)),
        RoutedLayer(LinearVotes(sizes), "dynamic", transposed),
    ]
    for layer in layers:
        places = watch(layer, random_capsules())
        assert places.slides is None


def test_poses_alone_have_places_too():
    layer = ConvCaps(2, 3, 3, 2, pose_size=(4, 4), routing="dynamic")
    [capsule_map] = watch(layer, torch.rand(1, 7, 9, 2, 4)).maps
    assert capsule_map.capsules.pose.shape == (1, 3, 4, 3, 4)
    [slide] = capsule_map.slides
    assert slide.stride == (2, 2)
