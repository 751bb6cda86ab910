"""DeepCaps: its maps, its decoder and its losses, at other sizes than the published ones."""

import pytest
import torch

import torchcaps as tc
from torchcaps.nn import MapRouting
from torchcaps.testing import seeded

SMALL = {
    "channels": 4,
    "types": 3,
    "dims": (2, 3, 4, 4),
    "class_dim": 5,
}
SIZES = {
    "num_classes": 3,
    "in_chans": 1,
    "img_size": 16,
}


def make_model(**options):
    return tc.create_model("deepcaps", **SIZES | SMALL | options)


def sample_images(model):
    return torch.rand(3, *model.image_shape, generator=seeded())


@pytest.mark.parametrize(
    ("local", "iterations"),
    [
        (False, 3),
        (True, 2),
    ],
)
def test_options_reach_both_routings(local, iterations):
    model = make_model(local=local, iterations=iterations)
    router = model.cells[3].skip.router
    assert isinstance(router, MapRouting)
    assert router.local == local
    assert router.iterations == model.class_capsules.router.iterations == iterations


def test_the_decoder_is_not_told_the_class():
    """Equal poses of other classes are drawn alike."""
    model = make_model().eval()
    capsules = model.capsules(sample_images(model))
    pose = capsules.pose[:, :1].expand_as(capsules.pose)
    capsules = tc.Capsules(pose, capsules.activation)
    first = model.reconstruct(capsules, torch.full((3,), 0))
    second = model.reconstruct(capsules, torch.full((3,), 2))
    torch.testing.assert_close(first, second)
