import pytest
import torch
from torch import nn

from torchcaps.errors import ArgumentError
from torchcaps.evaluation.base import (
    check_labeled,
    device_of,
    evaluating,
    image_activations,
    right_answers,
)

from .stubs import PixelReader

IMAGES = torch.full((2, 1, 4, 4), 0.5)


def test_every_submodule_gets_its_own_flag_back():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).train()
    model[1].eval()  # frozen statistics, as in fine-tuning
    dropout, normalization = model
    with evaluating(model):
        assert not (model.training or dropout.training or normalization.training)
        assert torch.is_inference_mode_enabled()
    assert model.training
    assert dropout.training
    assert not normalization.training


def test_flags_come_back_after_an_error():
    model = nn.Dropout().train()
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert model.training


def test_device_of_parameters_buffers_and_nothing():
    assert device_of(nn.Linear(1, 1, device="meta")).type == "meta"
    assert device_of(nn.BatchNorm1d(1, affine=False, device="meta")).type == "meta"
    assert device_of(nn.ReLU()).type == "cpu"


def test_batches_are_joined_in_order_and_the_mode_comes_back():
    model = PixelReader(3).train()
    images = torch.rand(5, 1, 1, 3)
    activations = image_activations(model, images, batch_size=2)
    assert torch.equal(activations, images.flatten(1))
    assert model.calls == [(2, False), (2, False), (1, False)]
    assert model.training
    assert not activations.is_inference()
    assert right_answers(model, images, activations.argmax(dim=1)).all()


def test_a_model_that_gives_maps_is_refused():
    with pytest.raises(ArgumentError, match="output of the model: expected"):
        image_activations(nn.Identity(), IMAGES)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES + 1, [0, 1], "images: expected between 0 and 1"),
        (IMAGES * torch.nan, [0, 1], "images: expected between 0 and 1"),
        (IMAGES.byte(), [0, 1], "images: expected floating point"),
        (IMAGES[0], [0, 1], r"images: expected \[batch"),
        (IMAGES[:0], [], "number of images: expected at least 1"),
        (IMAGES, [0], r"labels: expected \[n=2\]"),
        (IMAGES, [[0, 1]], r"labels: expected \[n=2\]"),
        (IMAGES, [0.0, 1.0], "labels: expected int64"),
    ],
)
def test_images_and_labels_that_do_not_fit(images, labels, message):
    with pytest.raises(ArgumentError, match=message):
        check_labeled(images, torch.tensor(labels))
