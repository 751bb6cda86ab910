"""Parameter counts of networks that capsules were compared with, and of the first capsules."""

import pytest

import torchcaps as tc
from torchcaps.models import TransformingAutoencoder


def counts(model):
    return {
        name: sum(p.numel() for p in part.parameters())
        for name, part in model.named_children()
        if part.parameters
    }


@pytest.mark.parametrize(
    ("name", "count"),
    [("cnn_baseline", 35_445_522), ("cnn_multimnist", 24_563_978), ("cnn_smallnorb", 4_253_349)],
)
def test_parameter_counts(name, count):
    """35.4 and 24.56 million in arXiv 1710.09829; 4.2 million in "Matrix capsules with EM routing" (ICLR 2018)."""
    assert sum(p.numel() for p in tc.create_model(name).parameters()) == count


def test_stages_of_the_mnist_baseline():
    found = counts(tc.create_model("cnn_baseline"))
    convolutions = 25 * 256 + 256 + (25 * 256 * 256 + 256) + (25 * 256 * 128 + 128)
    hidden = 28 * 28 * 128 * 328 + 328 + (328 * 192 + 192)
    assert found == {
        "convolutions": convolutions,
        "hidden": hidden,
        "dropout": 0,
        "classes_layer": 192 * 10 + 10,
    }


@pytest.mark.parametrize(("pose", "each"), [("translation", 24_407), ("affine", 24_624)])
def test_transforming_autoencoder(pose, each):
    """Thirty capsules of 10 recognition and 20 generation units on 28x28 images (ICANN 2011)."""
    model = TransformingAutoencoder(pose=pose)
    assert sum(p.numel() for p in model.parameters()) == 30 * each


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 269_722),
        ({"shortcut": "B"}, 272_474),
        ({"in_chans": 1, "img_size": 28}, 269_434),
        ({"in_chans": 1, "img_size": 28, "shortcut": "B"}, 272_186),
        ({"in_chans": 2}, 269_578),
        ({"in_chans": 1, "width": 12}, 151_966),
        ({"in_chans": 1, "width": 38}, 1_512_676),
        ({"in_chans": 1, "width": 72}, 5_421_826),
        ({"in_chans": 1, "width": 80}, 6_692_410),
    ],
)
def test_resnet20(options, count):
    """0.27 million in arXiv 1512.03385, table 6, with shortcuts without parameters (option A)."""
    assert sum(p.numel() for p in tc.create_model("resnet20", **options).parameters()) == count


def test_stages_of_resnet20():
    blocks = [
        sum(p.numel() for p in block.parameters()) for block in tc.create_model("resnet20").trunk
    ]
    norms = [32] + [64] * 3 + [128] * 3 + [256] * 3
    stages = [sum(blocks[at : at + 3]) - sum(norms[at : at + 3]) for at in (1, 4, 7)]
    assert (blocks[0] - 32, *stages, sum(norms)) == (432, 13_824, 50_688, 202_752, 1376)
