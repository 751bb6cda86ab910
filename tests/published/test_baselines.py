"""Parameter counts of networks that capsules were compared with, and of the first capsules."""

import pytest

import torchcaps as tc
from torchcaps.models import TransformingAutoencoder
from torchcaps.models.notebook import parameter_count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("cnn_baseline", 35_445_522),
        ("cnn_multimnist", 24_563_978),
        ("cnn_smallnorb", 4_253_349),
    ],
)
def test_convolutional_baselines(name, count):
    """35.4 and 24.56 million in arXiv 1710.09829; 4.2 million in "Matrix capsules" (ICLR 2018)."""
    assert parameter_count(tc.create_model(name)) == count


def test_stages_of_the_mnist_baseline():
    model = tc.create_model("cnn_baseline")
    convolutions = 25 * 256 + 256 + (25 * 256 * 256 + 256) + (25 * 256 * 128 + 128)
    hidden = 28 * 28 * 128 * 328 + 328 + (328 * 192 + 192)
    assert parameter_count(model.convolutions) == convolutions
    assert parameter_count(model.hidden) == hidden
    assert parameter_count(model.classes_layer) == 192 * 10 + 10


@pytest.mark.parametrize(
    ("pose", "count"),
    [
        ("translation", 24_407),
        ("affine", 24_624),
    ],
)
def test_a_capsule_of_the_transforming_autoencoder(pose, count):
    """Thirty capsules of 10 recognition and 20 generation units on 28x28 images (ICANN 2011)."""
    assert parameter_count(TransformingAutoencoder(pose=pose)) == 30 * count


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 269_722),
        ({"shortcut": "B"}, 272_474),
        ({"in_chans": 1, "img_size": 28}, 269_434),
        ({"in_chans": 1, "img_size": 28, "shortcut": "B"}, 272_186),
        ({"in_chans": 2}, 269_578),
        ({"in_chans": 1, "width": 12}, 151_966),
        ({"in_chans": 1, "width": 80}, 6_692_410),
    ],
)
def test_resnet20(options, count):
    """0.27 million in arXiv 1512.03385, table 6, with shortcuts without parameters (option A)."""
    assert parameter_count(tc.create_model("resnet20", **options)) == count


def test_stages_of_resnet20():
    stem, *blocks = tc.create_model("resnet20").trunk
    norms = {
        16: 32,
        32: 64,
        64: 128,
    }  # numbers of a norm, by its channels
    assert parameter_count(stem) == 432 + norms[16]
    for stage, width, count in ((0, 16, 13_824), (3, 32, 50_688), (6, 64, 202_752)):
        total = sum(parameter_count(block) for block in blocks[stage : stage + 3])
        assert total == count + 6 * norms[width]
