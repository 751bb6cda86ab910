from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps.evaluation.base import check_labeled
from torchcaps.evaluation.forward import device_of, evaluating, image_activations, right_answers

from .stubs import PixelReader


def test_every_submodule_gets_its_own_flag_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).train()
    model[1].eval()  # frozen statistics, as in fine-tuning
    with evaluating(model):
        assert [module.training for module in model.modules()] == [False, False, False]
        assert torch.is_inference_mode_enabled()
    assert [module.training for module in model.modules()] == [True, True, False]


def test_flags_come_back_after_an_error() -> None:
    model = nn.Dropout().train()
    with pytest.raises(RuntimeError, match="inside"), evaluating(model):
        raise RuntimeError("inside")
    assert model.training


def test_device_of_parameters_buffers_and_nothing() -> None:
    assert device_of(nn.Linear(1, 1, device="meta")).type == "meta"
    assert device_of(nn.BatchNorm1d(1, affine=False, device="meta")).type == "meta"
    assert device_of(nn.ReLU()).type == "cpu"


def test_batches_are_joined_in_order_and_the_mode_comes_back() -> None:
    model, images = PixelReader(3).train(), torch.rand(5, 1, 1, 3)
    found = image_activations(model, images, batch_size=2)
    assert torch.equal(found, images.flatten(1))
    assert [size for size, _, _ in model.seen] == [2, 2, 1]
    assert model.training
    assert not found.is_inference()
    assert right_answers(model, images, images.flatten(1).argmax(dim=1), 4).all()


def test_a_model_that_gives_maps() -> None:
    with pytest.raises(
        ValueError, match=r"model: expected \[batch, classes\] activations, got \[2, 1, 4, 4\]"
    ):
        image_activations(nn.Identity(), torch.rand(2, 1, 4, 4))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.rand(2, 1, 4, 4) + 0.5,
            torch.tensor([0, 1]),
            r"images: expected pixels in \[0, 1\]",
        ),
        (
            torch.full((2, 1, 4, 4), float("nan")),
            torch.tensor([0, 1]),
            r"images: expected pixels in \[0, 1\]",
        ),
        (torch.rand(2, 1, 4, 4), torch.tensor([0]), r"labels: expected \[n=2\], got \[n=1\]"),
        (torch.rand(2, 1, 4, 4), torch.tensor([0.0, 1.0]), "labels: expected int64"),
    ],
)
def test_arguments_that_do_not_fit(images, labels, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_labeled(images, labels)
