"""Convolutions with Heinsen's routings at other sizes than the published ones."""

import pytest
import torch

import torchcaps as tc

from .small import sample_images, small_model


def test_logits_of_2019_are_those_of_the_router():
    model = small_model("heinsen_2019")
    with tc.record_routing(model) as record:
        capsules = model.capsules(sample_images(model))
    logits = record["class_capsules"][0].extras["logits"]
    torch.testing.assert_close(model.logits_of(capsules), logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("side", "smallest"),
    [
        (29, 2),
        (37, 1),
    ],
)
def test_the_smallest_batch(side, smallest):
    model = tc.create_model("heinsen_2019", img_size=side, channels=8, parts=4).train()
    assert model.spec.smallest_batch == smallest
    assert model(torch.rand(smallest, 2, side, side)).isfinite().all()
