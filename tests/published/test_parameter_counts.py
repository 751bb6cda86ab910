"""Parameter counts of published networks, beside those of `ModelInfo`."""

import pytest
import torch

import torchcaps as tc
from torchcaps.models.notebook import parameter_count

UNUSED_NORM = 1024  # of the authors' network for dynamic routing, which never applies it
COUNTS = [
    ("capsnet", {"decoder": False}, 6_804_224),
    ("deepcaps", {"in_chans": 1, "img_size": 28}, 8_500_337),
    ("inverted_attention", {"num_classes": 100, "pose_size": 6, "hidden": (20,)}, 2_799_629),
    ("matrix_caps", {"in_chans": 1}, 315_850),  # one eye of the stereo pair
    ("matrix_caps_small", {"in_chans": 1}, 67_018),
    ("resnet20", {"shortcut": "B"}, 272_474),
    ("resnet20", {"in_chans": 1, "width": 80}, 6_692_410),
    ("sr_capsnet", {"depth": 2}, 3_187_536),
    ("sr_capsnet", {"head": "dynamic"}, 5_807_888),
    ("sr_capsnet", {"head": "dynamic", "depth": 2}, 4_236_048 - UNUSED_NORM),
    ("sr_capsnet", {"head": "em"}, 911_204),
    ("sr_capsnet", {"head": "em", "depth": 2}, 813_988),
    ("sr_capsnet", {"head": "linear"}, 892_698),
    ("sr_capsnet", {"backbone": "convnet", "in_chans": 1, "num_classes": 5}, 814_960),
    # Thirty capsules of 10 recognition and 20 generation units on 28x28 images (ICANN 2011).
    ("transforming_autoencoder", {"recognition": 10}, 30 * 24_407),
    ("transforming_autoencoder", {"recognition": 10, "pose": "affine"}, 30 * 24_624),
]
# B; C and D; convolutions; channels; classes; and the count, 145, 172 and 323 thousand on CIFAR-10.
VB_COUNTS = [
    (8, (16, 16), 1, 2, 5, 68_714),  # the authors' code
    (16, (32, 32), 3, 2, 5, 318_666),
    (8, (16, 16), 3, 3, 10, 145_588),
    (16, (32, 32), 3, 3, 10, 322_836),
]


def make_model(name, **options):
    with torch.device("meta"):
        return tc.create_model(name, **options)


@pytest.mark.parametrize(("name", "options", "count"), COUNTS)
def test_networks_of_other_sizes(name, options, count):
    assert parameter_count(make_model(name, **options)) == count


@pytest.mark.parametrize(
    ("primary_types", "types", "convolutions", "in_chans", "num_classes", "count"), VB_COUNTS
)
def test_variational_bayes(primary_types, types, convolutions, in_chans, num_classes, count):
    """The code counts two costs for each parent, which a batch norm after them cancels."""
    model = make_model(
        "vb_caps",
        primary_types=primary_types,
        types=types,
        convolutions=convolutions,
        in_chans=in_chans,
        num_classes=num_classes,
    )
    assert parameter_count(model) == count - 2 * (sum(types) + num_classes)
