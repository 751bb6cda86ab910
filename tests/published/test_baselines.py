"""Parameter counts of networks that capsules were compared with, and of the first capsules."""

import pytest

import torchcaps as tc
from torchcaps.models import TransformingAutoencoder


def counts(model):
    return {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children() if part.parameters}


@pytest.mark.parametrize(
    ("name", "count"), [("cnn_baseline", 35_445_522), ("cnn_multimnist", 24_563_978), ("cnn_smallnorb", 4_253_349)]
)
def test_parameter_counts(name, count):
    """35.4 and 24.56 million in arXiv 1710.09829; 4.2 million in "Matrix capsules with EM routing" (ICLR 2018)."""
    assert sum(p.numel() for p in tc.create_model(name).parameters()) == count


def test_stages_of_the_mnist_baseline():
    found = counts(tc.create_model("cnn_baseline"))
    convolutions = 25 * 256 + 256 + (25 * 256 * 256 + 256) + (25 * 256 * 128 + 128)
    hidden = 28 * 28 * 128 * 328 + 328 + (328 * 192 + 192)
    assert found == {"convolutions": convolutions, "hidden": hidden, "dropout": 0, "classes_layer": 192 * 10 + 10}


@pytest.mark.parametrize(("pose", "each"), [("translation", 24_407), ("affine", 24_624)])
def test_transforming_autoencoder(pose, each):
    """Thirty capsules of 10 recognition and 20 generation units on 28x28 images (ICANN 2011)."""
    model = TransformingAutoencoder(pose=pose)
    assert sum(p.numel() for p in model.parameters()) == 30 * each
