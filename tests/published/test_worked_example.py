"""Two children, two parents, one dimension, worked by hand.

Votes: child 0 says 2 to parent 0 and 0 to parent 1; child 1 says 1 and 1.
Pass 1: c = 1/2. s = (1.5, 0.5). |v| = n^2/(1+n^2) = (2.25/3.25, 0.25/1.25) = (0.6923, 0.2).
b = votes * v = [[1.3846, 0], [0.6923, 0.2]].
Pass 2: c_0 = softmax(1.3846, 0) = (0.7997, 0.2003); c_1 = softmax(0.6923, 0.2) = (0.6206, 0.3794).
s = (2 * 0.7997 + 0.6206, 0.3794) = (2.2200, 0.3794); |v| = (4.9285/5.9285, 0.14395/1.14395) = (0.8313, 0.1258).
"""

import pytest
import torch

import torchcaps as tc

VOTES = torch.tensor([[[[2.0], [0.0]], [[1.0], [1.0]]]])


def test_two_passes():
    routed = tc.functional.dynamic_routing(VOTES, 2)
    assert routed.coupling[0].flatten().tolist() == pytest.approx(
        [0.7997, 0.2003, 0.6206, 0.3794], abs=1e-4
    )
    assert routed.activation[0].tolist() == pytest.approx([0.8313, 0.1258], abs=1e-4)


def test_one_pass():
    assert tc.functional.dynamic_routing(VOTES, 1).activation[0].tolist() == pytest.approx(
        [0.6923, 0.2], abs=1e-4
    )


def test_parameter_counts():
    """The table of arXiv 1710.09829 by stages; 6.8 million without and 8.2 million with the decoder."""
    model = tc.create_model("capsnet")
    counts = {
        name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()
    }
    assert counts == {
        "conv": 20_992,
        "primary": 5_308_672,
        "class_capsules": 1_474_560,
        "decoder": 1_411_344,
    }
    assert (
        sum(p.numel() for p in tc.create_model("capsnet", decoder=False).parameters()) == 6_804_224
    )
    assert (
        sum(p.numel() for p in tc.create_model("capsnet", bias=True).parameters())
        == 8_215_568 + 160
    )


def test_parameter_count_of_multimnist():
    """On 36x36 images there are 3,200 primary capsules, and the 11.36 million parameters that are often quoted."""
    model = tc.create_model("capsnet", img_size=36)
    assert model.class_capsules.in_capsules == 3200
    without_bias = 11_361_968 - 160
    assert sum(p.numel() for p in model.parameters()) == without_bias
