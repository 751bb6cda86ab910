import pytest
import torch

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import carlini_wagner

from ..stubs import Linear, RoutedPixels, assert_model_is_back

WEIGHT = torch.tensor([1.0, -2.0, 0.5, 3.0])


def test_on_a_linear_model_it_goes_just_over_the_plane():
    images = torch.rand(3, 1, 2, 2) * 0.4 + 0.3
    score = (images - 0.5).flatten(1) @ WEIGHT
    model = Linear(WEIGHT, offset=0.5)
    changed = carlini_wagner(model, images, (score < 0).long(), steps=100)
    distance = (changed - images).flatten(1).norm(dim=1)
    expected = score.abs() / WEIGHT.norm()
    assert distance.tolist() == pytest.approx(expected.tolist(), rel=0.01)
    assert ((changed - 0.5).flatten(1) @ WEIGHT * score < 0).all()


def test_images_that_cannot_be_turned_stay():
    model = Linear(torch.ones(4))  # never negative on images
    images = torch.rand(3, 1, 2, 2)
    labels = torch.zeros(3, dtype=torch.int64)
    assert torch.equal(carlini_wagner(model, images, labels, steps=5, searches=2), images)


def test_pixels_stay_in_range_and_the_model_as_it_was():
    model = RoutedPixels(6, 3).train()
    images = torch.rand(2, 1, 6, 4).round()
    labels = model(images).argmax(dim=1)
    changed = carlini_wagner(model, images, labels, steps=20, searches=2)
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert_model_is_back(model)
    with pytest.raises(ArgumentError, match="searches: expected at least 1, got 0"):
        carlini_wagner(model, images, labels, searches=0)
