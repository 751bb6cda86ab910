"""Networks with inverted attention at other sizes than the published ones, and their schedules."""

import pytest
import torch

import torchcaps as tc
from torchcaps.testing import seeded

SMALL = {"backbone": "simple", "types": 2}


def make_model(**options):
    return tc.create_model("inverted_attention", **SMALL | options)


def sample_images(model):
    return torch.rand(2, *model.image_shape, generator=seeded())


@pytest.mark.parametrize(
    ("in_chans", "img_size"),
    [
        (1, 13),
        (3, (20, 33)),
    ],
)
def test_any_size(in_chans, img_size):
    model = make_model(num_classes=4, in_chans=in_chans, img_size=img_size)
    capsules = model.capsules(sample_images(model))
    assert capsules.pose.shape == (2, 4, 16)
    torch.testing.assert_close(capsules.activation.sum(dim=1), torch.ones(2))
    torch.testing.assert_close(model.logits_of(capsules).softmax(dim=1), capsules.activation)


def poses(**options):
    model = make_model(generator=seeded(), **options)
    return model.capsules(sample_images(model)).pose


def test_one_iteration_has_one_schedule():
    torch.testing.assert_close(poses(iterations=1), poses(iterations=1, sequential=True))


def test_schedules_differ_from_two_iterations_on():
    assert not torch.allclose(poses(iterations=2), poses(iterations=2, sequential=True))
