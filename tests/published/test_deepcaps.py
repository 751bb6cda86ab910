"""Parameter counts of the code of "DeepCaps: Going Deeper with Capsule Networks" (CVPR 2019), by stage.

They include the means and variances of batch norms, which are no parameters here. The paper itself has 7.22 million.
"""

import pytest

import torchcaps as tc

CELLS = {"cells.0": 589_824, "cells.1": 2_064_384, "cells.2": 2_359_296, "cells.3": 1_788_160}


def count(module):
    tensors = (*module.parameters(), *(b for b in module.buffers() if b.is_floating_point()))
    return sum(x.numel() for x in tensors)


@pytest.mark.parametrize(
    ("img_size", "in_chans", "classes", "decoder", "total"),
    [(64, 3, 6_553_920, 67_603, 13_427_283), (28, 1, 1_638_720, 58_449, 8_500_625)],
)
def test_parameter_counts(img_size, in_chans, classes, decoder, total):
    model = tc.create_model("deepcaps", img_size=img_size, in_chans=in_chans)
    assert count(model) == total
    assert count(model.stem) == 9 * in_chans * 128 + 5 * 128
    assert {name: count(model.get_submodule(name)) for name in CELLS} == CELLS
    assert (count(model.class_capsules), count(model.decoder)) == (classes, decoder)
