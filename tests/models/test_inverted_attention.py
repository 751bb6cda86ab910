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


def test_maps_of_the_paper():
    model = make_model()
    with tc.record_routing(model) as record:
        model(sample_images(model))
    shapes = [tuple(passes[-1].coupling.shape) for passes in record.values()]
    assert shapes == [
        (2, 7, 7, 9 * 2, 2),
        (2, 5, 5, 9 * 2, 2),
        (2, 25 * 2, 10),
    ]
    assert {len(passes) for passes in record.values()} == {2}  # all layers together, twice


def poses(**options):
    model = make_model(generator=seeded(), **options)
    return model.capsules(sample_images(model)).pose


def test_one_iteration_has_one_schedule():
    torch.testing.assert_close(poses(iterations=1), poses(iterations=1, sequential=True))


def test_schedules_differ_from_two_iterations_on():
    assert not torch.allclose(poses(iterations=2), poses(iterations=2, sequential=True))


def test_a_third_iteration_changes_the_poses():
    assert not torch.allclose(poses(iterations=3), poses(iterations=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"img_size": 12}, "img_size: expected images of at least 13x13"),
        ({"backbone": "resnt"}, "unknown backbone 'resnt'; did you mean 'resnet'"),
        ({"iterations": 0}, "iterations: expected at least 1, got 0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)
