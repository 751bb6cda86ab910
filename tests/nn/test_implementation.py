"""One implementation for a whole model."""

import pytest
import torch

import torchcaps
from torchcaps.errors import ArgumentError
from torchcaps.nn import CapsuleLinear, set_impl


def make_model(**options):
    return torchcaps.create_model(
        "capsnet",
        channels=8,
        primary_types=2,
        **options,
    )


def get_impls(model):
    return [module.impl for module in model.modules() if hasattr(module, "operators")]


def test_every_layer_that_has_it_takes_it():
    model = make_model()
    assert get_impls(model) == ["auto", "auto"]
    set_impl(model, "reference")
    assert get_impls(model) == ["reference", "reference"]
    set_impl(model, "triton")
    assert (model.primary.conv.impl, model.class_capsules.router.impl) == ("reference", "triton")


def test_a_model_is_built_with_it_and_gives_the_same():
    model = make_model(impl="blocked")
    assert get_impls(model) == ["blocked", "blocked"]
    images = torch.rand(3, 1, 28, 28)
    activation = model(images)
    torchcaps.set_impl(model, "reference")
    torch.testing.assert_close(activation, model(images))


def test_names_that_no_layer_knows_are_refused():
    with pytest.raises(ArgumentError, match="impl.*'fast'"):
        set_impl(CapsuleLinear(4, 3, 2, 2), "fast")
    with pytest.raises(
        ArgumentError, match="no layer of this Linear has an implementation 'blocked'"
    ):
        set_impl(torch.nn.Linear(2, 2), "blocked")
