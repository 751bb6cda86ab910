"""Parameter counts of published networks and of their stages, beside those of `ModelInfo`."""

import pytest
import torch

import torchcaps as tc
from torchcaps.models.notebook import parameter_count
from torchcaps.nn import RoutingHead

UNUSED_NORM = 1024  # of the authors' network for dynamic routing, which never applies it
GRAY = {"in_chans": 1, "img_size": 28}
COUNTS = [
    ("inverted_attention", {"num_classes": 100, "pose_size": 6, "hidden": (20,)}, 2_799_629),
    ("matrix_caps", {"in_chans": 1}, 315_850),  # one eye of the stereo pair
    ("matrix_caps_small", {"in_chans": 1}, 67_018),
    ("resnet20", {"shortcut": "B"}, 272_474),
    ("resnet20", GRAY, 269_434),
    ("resnet20", GRAY | {"shortcut": "B"}, 272_186),
    ("resnet20", {"in_chans": 2}, 269_578),
    ("resnet20", {"in_chans": 1, "width": 12}, 151_966),
    ("resnet20", {"in_chans": 1, "width": 80}, 6_692_410),
    ("sr_capsnet", {"depth": 2}, 3_187_536),
    ("sr_capsnet", {"head": "dynamic"}, 5_807_888),
    ("sr_capsnet", {"head": "dynamic", "depth": 2}, 4_236_048 - UNUSED_NORM),
    ("sr_capsnet", {"head": "em"}, 911_204),
    ("sr_capsnet", {"head": "em", "depth": 2}, 813_988),
    ("sr_capsnet", {"head": "average"}, 269_722),
    ("sr_capsnet", {"head": "linear"}, 892_698),
    ("sr_capsnet", {"backbone": "convnet", "in_chans": 1, "num_classes": 5}, 814_960),
    # Thirty capsules of 10 recognition and 20 generation units on 28x28 images (ICANN 2011).
    ("transforming_autoencoder", {"recognition": 10}, 30 * 24_407),
    ("transforming_autoencoder", {"recognition": 10, "pose": "affine"}, 30 * 24_624),
]
# B; C and D; convolutions; channels; classes; and the count, 145, 172 and 323 thousand on CIFAR-10.
VB_COUNTS = [
    (8, (16, 16), 1, 2, 5, 68_714),  # the authors' code
    (8, (16, 16), 3, 2, 5, 142_698),
    (16, (16, 16), 3, 2, 5, 169_866),
    (16, (32, 32), 3, 2, 5, 318_666),
    (8, (16, 16), 3, 3, 10, 145_588),
    (16, (16, 16), 3, 3, 10, 172_756),
    (16, (32, 32), 3, 3, 10, 322_836),
]
STAGES = {
    "cnn_baseline": {
        "convolutions": 25 * 256 + 256 + (25 * 256 * 256 + 256) + (25 * 256 * 128 + 128),
        "hidden": 28 * 28 * 128 * 328 + 328 + (328 * 192 + 192),
        "classes_layer": 192 * 10 + 10,
    },
    "heinsen_2019": {
        "part_capsules": 64 * (16 + 16 + 2),
        "class_capsules": 64 * 5 * (16 + 16 + 2),
    },
    "inverted_attention": {
        "backbone": 1_340_224,
        "capsule_layers.layers.0.votes": 9 * 32 * 32 * 16,
        "capsule_layers.layers.1.votes": 9 * 32 * 32 * 16,
        "capsule_layers.layers.2.votes": 800 * 10 * 16,
        "capsule_layers.layers.2.router": 32,
    },
    "matrix_caps": {
        "conv": 5 * 5 * 2 * 32 + 32,
        "primary": 17 * 32 * 32,
        "conv_capsules": 2 * (16 * 9 * 32 * 32 + 2 * 32),
        "class_capsules": 16 * 32 * 5 + 2 * 5,
    },
    "resnet20": {
        "trunk.0": 432 + 32,
        "trunk.1": 13_824 // 3 + 2 * 32,
        "trunk.9": 2 * 9 * 64 * 64 + 2 * 128,
    },
    "sr_capsnet": {"trunk": 269_072},
}
# Of the authors' code, which counts the means and variances of batch norms as well.
DEEPCAPS = [
    (64, 3, {"stem": 9 * 3 * 128 + 5 * 128, "class_capsules": 6_553_920, "decoder": 67_603}),
    (28, 1, {"stem": 9 * 128 + 5 * 128, "class_capsules": 1_638_720, "decoder": 58_449}),
]
CELLS = [589_824, 2_064_384, 2_359_296, 1_788_160]


def make_model(name, **options):
    with torch.device("meta"):
        return tc.create_model(name, **options)


def count_with_statistics(module):
    statistics = [buffer.numel() for buffer in module.buffers() if buffer.is_floating_point()]
    return parameter_count(module) + sum(statistics)


@pytest.mark.parametrize(("name", "options", "count"), COUNTS)
def test_networks_of_other_sizes(name, options, count):
    assert parameter_count(make_model(name, **options)) == count


@pytest.mark.parametrize("name", STAGES)
def test_stages(name):
    model = make_model(name)
    counts = {stage: parameter_count(model.get_submodule(stage)) for stage in STAGES[name]}
    assert counts == STAGES[name]


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


@pytest.mark.parametrize(("img_size", "in_chans", "counts"), DEEPCAPS)
def test_deepcaps(img_size, in_chans, counts):
    model = make_model("deepcaps", img_size=img_size, in_chans=in_chans)
    for stage, count in counts.items():
        assert count_with_statistics(model.get_submodule(stage)) == count, stage
    assert [count_with_statistics(cell) for cell in model.cells] == CELLS
    assert count_with_statistics(model) == sum(counts.values()) + sum(CELLS)


def test_layers_of_the_head_of_2022():
    """`EfficientVectorRouting(n_inp=64, n_out=64, d_inp=1024, d_out=1024)` and one of any length."""
    n = m = 64
    d = 1024
    first, second, _ = RoutingHead(d, 10).routings
    assert parameter_count(first) == d + 1 + 4 * m * d + 2 * d * d + 2 * m + 2 * (d * m + m)
    assert parameter_count(second) == n * d + n + 2 * m * d + 2 * d * d + 2 * m * d + 4 * n * m
