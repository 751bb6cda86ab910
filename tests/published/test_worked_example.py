"""Two children, two parents, one dimension, worked by hand (arXiv 1710.09829).

Votes: child 0 says 2 to parent 0 and 0 to parent 1; child 1 says 1 and 1.
Pass 1: c = 1/2. s = (1.5, 0.5). |v| = n^2/(1+n^2) = (2.25/3.25, 0.25/1.25) = (0.6923, 0.2).
b = votes * v = [[1.3846, 0], [0.6923, 0.2]].
Pass 2: c_0 = softmax(1.3846, 0) = (0.7997, 0.2003); c_1 = softmax(0.6923, 0.2) = (0.6206, 0.3794).
s = (2 * 0.7997 + 0.6206, 0.3794) = (2.2200, 0.3794);
|v| = (4.9285/5.9285, 0.14395/1.14395) = (0.8313, 0.1258).
"""

import pytest
import torch

import torchcaps as tc

VOTES = torch.tensor([[[[2.0], [0.0]], [[1.0], [1.0]]]])


def test_one_pass():
    routed = tc.functional.dynamic_routing(VOTES, 1)
    assert routed.activation[0].tolist() == pytest.approx([0.6923, 0.2], abs=1e-4)


def test_two_passes():
    routed = tc.functional.dynamic_routing(VOTES, 2)
    expected = [0.7997, 0.2003, 0.6206, 0.3794]
    assert routed.coupling[0].flatten().tolist() == pytest.approx(expected, abs=1e-4)
    assert routed.activation[0].tolist() == pytest.approx([0.8313, 0.1258], abs=1e-4)
