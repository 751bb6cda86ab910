"""The controls of uncrowding: their equation, their size, a step of training."""

import pytest
import torch

from claims.recurrent_cnn import RecurrentCNN
from torchcaps.errors import ArgumentError
from torchcaps.models import create_model, model_info

SMALL = {"img_size": (17, 21), "channels": 4, "primary_channels": 6, "unit_dim": 3}


def test_the_layer_is_computed_so_many_times():
    model = RecurrentCNN(2, **SMALL, steps=3)
    images = torch.rand(3, 1, 17, 21)
    drive = model.layer(model.convolutions(images).flatten(1))
    assert drive.shape == (3, 6)
    h = torch.zeros_like(drive)
    for _ in range(3):  # from h = 0 the first step is the feed-forward one
        h = torch.relu(drive + h @ model.lateral.weight.T)
    assert torch.allclose(model.logits(images), model.classes_layer(h))
    assert torch.allclose(model(images).sum(dim=1), torch.ones(3))
    model(images).square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_one_step_is_feed_forward_and_several_classes_have_sigmoids():
    model = RecurrentCNN(2, **SMALL, steps=1, multilabel=True)
    images = torch.rand(3, 1, 17, 21)
    assert model.lateral is None
    assert torch.equal(model(images), model.logits(images).sigmoid())
    assert model.spec.multilabel


def test_the_published_size():
    with torch.device("meta"):
        model = create_model("recurrent_cnn")
    num_parameters = sum(weight.numel() for weight in model.parameters())
    assert num_parameters == model_info("recurrent_cnn").parameters
    with pytest.raises(ArgumentError, match="img_size: expected at least 17, got 16"):
        RecurrentCNN(img_size=(16, 20))
