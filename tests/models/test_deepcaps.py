"""DeepCaps: its maps, its decoder and its losses, at other sizes than the published ones."""

import pytest
import torch

import torchcaps as tc
from torchcaps.nn import MapRouting

from .small import sample_images, small_model


@pytest.mark.parametrize(
    ("local", "iterations"),
    [
        (False, 3),
        (True, 2),
    ],
)
def test_options_reach_both_routings(local, iterations):
    model = small_model("deepcaps", local=local, iterations=iterations)
    router = model.cells[3].skip.router
    assert isinstance(router, MapRouting)
    assert router.local == local
    assert router.iterations == model.class_capsules.router.iterations == iterations


def test_the_decoder_is_not_told_the_class():
    """Equal poses of other classes are drawn alike."""
    model = small_model("deepcaps")
    capsules = model.capsules(sample_images(model, 3))
    pose = capsules.pose[:, :1].expand_as(capsules.pose)
    capsules = tc.Capsules(pose, capsules.activation)
    first = model.reconstruct(capsules, torch.full((3,), 0))
    second = model.reconstruct(capsules, torch.full((3,), 2))
    torch.testing.assert_close(first, second)
