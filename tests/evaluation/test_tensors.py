from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps.evaluation.tensors import check_labelled, image_activations, right_answers

from .stubs import PixelReader


def test_batches_are_joined_in_order_and_the_mode_comes_back() -> None:
    model, images = PixelReader(3).train(), torch.rand(5, 1, 1, 3)
    found = image_activations(model, images, batch_size=2)
    assert torch.equal(found, images.flatten(1))
    assert [size for size, _, _ in model.seen] == [2, 2, 1]
    assert model.training
    assert not found.is_inference()
    assert right_answers(model, images, images.flatten(1).argmax(dim=1), 4).all()


def test_a_model_that_gives_maps() -> None:
    with pytest.raises(ValueError, match=r"model: expected \[batch, classes\] activations, got \[2, 1, 4, 4\]"):
        image_activations(nn.Identity(), torch.rand(2, 1, 4, 4))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.rand(2, 1, 4, 4) + 0.5, torch.tensor([0, 1]), r"images: expected pixels in \[0, 1\]"),
        (torch.full((2, 1, 4, 4), float("nan")), torch.tensor([0, 1]), r"images: expected pixels in \[0, 1\]"),
        (torch.rand(2, 1, 4, 4), torch.tensor([0]), r"labels: expected \[n=2\], got \[n=1\]"),
        (torch.rand(2, 1, 4, 4), torch.tensor([0.0, 1.0]), "labels: expected int64"),
    ],
)
def test_arguments_that_do_not_fit(images, labels, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_labelled(images, labels)
