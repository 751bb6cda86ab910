"""The papers' convolutional baselines, and CNNs of a capsule network's size."""

import pytest
import torch

import torchcaps as tc
from checks import assert_equal
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import perturb
from torchcaps.models import CNN, matched_cnn
from torchcaps.models.notebook import parameter_count
from torchcaps.testing import seeded

SMALL = {
    "channels": (4, 6),
    "kernels": (5, 3),
    "pool": True,
    "hidden": (10, 8),
}
CAPSNET = {"channels": 8, "primary_types": 2}


def small_cnn(**options):
    return CNN(3, 1, 12, **SMALL | options)


def sample_images(count=3):
    return torch.rand(count, 1, 12, 12, generator=seeded())


def test_probabilities_of_several_classes_are_sigmoids():
    model = small_cnn(multilabel=True).eval()
    torch.testing.assert_close(model(sample_images()), model.logits(sample_images()).sigmoid())


def test_dropout_in_training_alone():
    model = small_cnn(dropout=0.5)
    assert not torch.equal(model.logits(sample_images()), model.logits(sample_images()))
    model.eval()
    assert torch.equal(model.logits(sample_images()), model.logits(sample_images()))


def test_a_cnn_has_no_capsules():
    model = small_cnn()
    with pytest.raises(ArgumentError, match="capsules: expected a capsule network; this is a CNN"):
        model.capsules(sample_images())
    with pytest.raises(ArgumentError, match="reconstruct: .* no decoder"):
        model.reconstruct(None)
    with pytest.raises(ArgumentError, match="model: expected one with class capsules"):
        perturb(model, sample_images())
    with pytest.raises(ArgumentError, match="model: expected a capsule network .* got CNN"):
        tc.record_routing(model).__enter__()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("capsnet", {}),
        ("matrix_caps", {"num_classes": 10}),
        ("capsnet", CAPSNET | {"num_classes": 3, "img_size": (18, 20)}),
    ],
)
def test_a_matched_cnn_has_the_parameters_and_sizes_of_the_model(name, options):
    capsules = tc.create_model(name, **options)
    cnn = matched_cnn(capsules)
    assert parameter_count(cnn) == pytest.approx(parameter_count(capsules), rel=0.05)
    assert cnn.num_classes == capsules.num_classes
    assert cnn.image_shape == capsules.image_shape


def test_matching_leaves_the_random_numbers_as_they_were():
    torch.manual_seed(3)
    cnn = tc.create_model("cnn_matched", **CAPSNET)
    torch.manual_seed(3)
    expected = CNN(
        channels=(cnn.convolutions[0].out_channels, cnn.convolutions[3].out_channels),
        kernels=(5, 5),
        pool=True,
        hidden=(cnn.hidden[0].out_features,),
    )
    assert_equal(list(cnn.parameters()), list(expected.parameters()))


def test_too_small_to_be_matched():
    smallest = torch.nn.Linear(2, 2)
    smallest.num_classes = 10
    smallest.in_chans = 1
    smallest.img_size = (28, 28)
    message = "model: no CNN has about as many parameters as this one, 6; the nearest has"
    with pytest.raises(ArgumentError, match=message):
        matched_cnn(smallest)
