"""One implementation for a whole model."""

import pytest
import torch

import torchcaps
from torchcaps.nn import CapsuleLinear, set_impl


def impls(model):
    return [m.impl for m in model.modules() if hasattr(m, "operators")]


def test_every_layer_that_has_it_takes_it():
    model = torchcaps.create_model("capsnet", channels=8, primary_types=2)
    assert impls(model) == ["auto", "auto"]
    set_impl(model, "reference")
    assert impls(model) == ["reference", "reference"]
    set_impl(model, "numba")
    assert (model.primary.conv.impl, model.class_capsules.router.impl) == ("reference", "numba")
    torchcaps.set_impl(model, "auto")
    assert impls(model) == ["auto", "auto"]


def test_a_model_is_built_with_it_and_gives_the_same():
    torch.manual_seed(0)
    model = torchcaps.create_model("capsnet", channels=8, primary_types=2, impl="blocked")
    assert impls(model) == ["blocked", "blocked"]
    images = torch.rand(3, 1, 28, 28)
    found = model(images)
    set_impl(model, "reference")
    torch.testing.assert_close(found, model(images))


def test_names_that_no_layer_knows_are_refused():
    with pytest.raises(ValueError, match="impl.*'fast'"):
        set_impl(CapsuleLinear(4, 3, 2, 2), "fast")
    with pytest.raises(ValueError, match="no layer of this Linear has an implementation 'blocked'"):
        set_impl(torch.nn.Linear(2, 2), "blocked")
