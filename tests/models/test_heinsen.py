"""Convolutions with Heinsen's routings at other sizes than the published ones."""

import pytest
import torch

import torchcaps as tc
from torchcaps.testing import seeded

TINY = {
    "heinsen": {"channels": 8, "hidden": (4,)},
    "heinsen_2019": {"channels": 8, "parts": 3, "strides": (1, 2, 1)},
}


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("in_chans", "img_size"), [(1, 9), (3, (20, 33))])
def test_any_size(name, in_chans, img_size):
    model = tc.create_model(
        name, num_classes=4, in_chans=in_chans, img_size=img_size, **TINY[name]
    ).eval()
    images = torch.rand(2, in_chans, *model.img_size, generator=seeded())
    capsules = model.capsules(images)
    assert capsules.pose.shape == (2, 4, 1 if name == "heinsen" else 16)
    assert model.logits_of(capsules).argsort().tolist() == capsules.activation.argsort().tolist()
    with pytest.raises(ValueError, match="img_size: expected images of at least 9x9"):
        tc.create_model(name, img_size=8, **TINY[name])


def test_the_sequence_is_as_long_as_the_map():
    with tc.record_routing(model := tc.create_model("heinsen").eval()) as record:
        model(torch.rand(1, 1, 28, 28, generator=seeded()))
    assert [tuple(one[0].coupling.shape) for one in record.values()] == [
        (1, 100, 64),
        (1, 64, 64),
        (1, 64, 10),
    ]


def test_logits_of_2019_are_those_that_the_router_had():
    with tc.record_routing(
        model := tc.create_model("heinsen_2019", **TINY["heinsen_2019"]).eval()
    ) as record:
        capsules = model.capsules(torch.rand(2, 2, 96, 96, generator=seeded()))
    torch.testing.assert_close(
        model.logits_of(capsules),
        record["class_capsules"][0].extras["logits"],
        atol=1e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize(("side", "smallest"), [(29, 2), (37, 1)])
def test_a_map_of_one_position_needs_two_images(side, smallest):
    """Batch norm in training needs two values of each channel."""
    model = tc.create_model("heinsen_2019", img_size=side, channels=8, parts=4).train()
    assert model.spec.smallest_batch == smallest
    assert model(torch.rand(smallest, 2, side, side)).isfinite().all()
    if smallest > 1:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            model(torch.rand(1, 2, side, side))
