"""Affine poses: the six entries of the upper two rows of a 3x3 matrix."""

import pytest
import torch
from torch.testing import assert_close

from torchcaps.functional.affine import affine_pose, composed, inverse
from torchcaps.testing import seeded

SHAPES = [(), (4,), (2, 3)]


def random_poses(shape, seed=0):
    raw = torch.randn(*shape, 6, generator=seeded(seed), dtype=torch.float64)
    return affine_pose(raw)


def as_matrix(pose):
    """The whole 3x3 matrix."""
    last_row = torch.tensor([0.0, 0.0, 1.0], dtype=pose.dtype).expand(*pose.shape[:-1], 1, 3)
    return torch.cat([pose.unflatten(-1, (2, 3)), last_row], dim=-2)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_composition_is_the_product_of_the_matrices(shape):
    outer = random_poses(shape)
    inner = random_poses(shape, seed=1)
    expected = as_matrix(outer) @ as_matrix(inner)
    assert_close(as_matrix(composed(outer, inner)), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_inverse_is_that_of_the_matrix(shape):
    pose = random_poses(shape)
    assert_close(as_matrix(inverse(pose)), torch.linalg.inv(as_matrix(pose)))
