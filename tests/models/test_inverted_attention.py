"""Networks with inverted attention at other sizes than the published ones, and their schedules."""

import pytest
import torch

import torchcaps as tc
from torchcaps.testing import seeded

TINY = {"backbone": "simple", "types": 2}


@pytest.mark.parametrize(("in_chans", "img_size"), [(1, 13), (1, 28), (3, (20, 33))])
def test_any_size(in_chans, img_size):
    model = tc.create_model(
        "inverted_attention", num_classes=4, in_chans=in_chans, img_size=img_size, **TINY
    )
    images = torch.rand(2, in_chans, *model.img_size, generator=seeded())
    capsules = model.capsules(images)
    assert capsules.pose.shape == (2, 4, 16)
    torch.testing.assert_close(capsules.activation.sum(dim=1), torch.ones(2))
    torch.testing.assert_close(model.logits_of(capsules).softmax(dim=1), capsules.activation)


def test_maps_of_the_paper():
    model = tc.create_model("inverted_attention", **TINY)
    with tc.record_routing(model) as record:
        model(torch.rand(1, 3, 32, 32, generator=seeded()))
    shapes = {name: tuple(passes[-1].coupling.shape) for name, passes in record.items()}
    assert shapes == {
        "capsule_layers.layers.0": (1, 7, 7, 9 * 2, 2),
        "capsule_layers.layers.1": (1, 5, 5, 9 * 2, 2),
        "capsule_layers.layers.2": (1, 25 * 2, 10),
    }
    assert {len(passes) for passes in record.values()} == {2}  # all layers together, twice


def test_schedules_differ_from_two_iterations_on():
    images, found = torch.rand(2, 3, 32, 32, generator=seeded()), {}
    for iterations in (1, 2, 3):
        for sequential in (False, True):
            model = tc.create_model(
                "inverted_attention",
                generator=seeded(),
                iterations=iterations,
                sequential=sequential,
                **TINY,
            )
            found[iterations, sequential] = model.capsules(images).pose
    torch.testing.assert_close(found[1, False], found[1, True])
    assert not torch.allclose(found[2, False], found[2, True])
    assert not torch.allclose(found[3, False], found[2, False])


def test_wrong_arguments():
    with pytest.raises(
        ValueError,
        match="img_size: expected images of at least 13x13",
    ):
        tc.create_model("inverted_attention", img_size=12)
    with pytest.raises(ValueError, match="unknown backbone 'resnt'; did you mean 'resnet'"):
        tc.create_model("inverted_attention", backbone="resnt")
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        tc.create_model("inverted_attention", iterations=0, **TINY)
