from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchcaps.evaluation import carlini_wagner

from ..stubs import Linear, RoutedPixels

WEIGHT = torch.tensor([1.0, -2.0, 0.5, 3.0])


class Shifted(Linear):
    """Its decision plane goes through the middle of the cube."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images - 0.5)


def test_on_a_linear_model_it_finds_the_distance_to_the_plane() -> None:
    images = torch.rand(3, 1, 2, 2) * 0.4 + 0.3
    score = (images - 0.5).flatten(1) @ WEIGHT
    found = carlini_wagner(
        Shifted(WEIGHT), images, (score < 0).long(), steps=100, searches=6, step_size=0.03
    )
    distance = (found - images).flatten(1).norm(dim=1)
    want = score.abs() / WEIGHT.norm()
    assert distance.tolist() == pytest.approx(want.tolist(), rel=0.01)
    assert ((found - 0.5).flatten(1) @ WEIGHT * score < 0).all()


def test_what_cannot_be_turned_stays() -> None:
    model = Linear(torch.ones(4))  # never negative on images
    images = torch.rand(3, 1, 2, 2)
    assert torch.equal(
        carlini_wagner(model, images, torch.zeros(3, dtype=torch.int64), steps=5, searches=2),
        images,
    )


def test_pixels_stay_in_range_and_the_model_as_it_was() -> None:
    model, images = RoutedPixels(6, 3).train(), torch.rand(2, 1, 6, 4).round()
    found = carlini_wagner(
        model, images, model(images).argmax(dim=1), steps=20, searches=2, step_size=0.1
    )
    assert found.min() >= 0
    assert found.max() <= 1
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(ValueError, match="searches: expected at least 1, got 0"):
        carlini_wagner(model, images, torch.zeros(2, dtype=torch.int64), searches=0)
