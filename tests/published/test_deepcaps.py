"""Parameter counts of the code of "DeepCaps: Going Deeper with Capsule Networks" (CVPR 2019).

They include the means and variances of batch norms, which are no parameters here. The paper itself
has 7.22 million.
"""

import pytest

import torchcaps as tc

CELLS = (589_824, 2_064_384, 2_359_296, 1_788_160)


def count_with_statistics(module):
    count = sum(parameter.numel() for parameter in module.parameters())
    return count + sum(b.numel() for b in module.buffers() if b.is_floating_point())


@pytest.mark.parametrize(
    ("img_size", "in_chans", "classes", "decoder", "total"),
    [
        (64, 3, 6_553_920, 67_603, 13_427_283),
        (28, 1, 1_638_720, 58_449, 8_500_625),
    ],
)
def test_parameter_counts(img_size, in_chans, classes, decoder, total):
    model = tc.create_model("deepcaps", img_size=img_size, in_chans=in_chans)
    assert count_with_statistics(model) == total
    assert count_with_statistics(model.stem) == 9 * in_chans * 128 + 5 * 128
    for cell, count in zip(model.cells, CELLS, strict=True):
        assert count_with_statistics(cell) == count
    assert count_with_statistics(model.class_capsules) == classes
    assert count_with_statistics(model.decoder) == decoder
