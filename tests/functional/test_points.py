"""Rigid motions between sets of points, and Chamfer distances: by hand, by loops, and gradients."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.functional import chamfer_distance, procrustes
from torchcaps.testing import seeded

ALL_DIMENSIONS = pytest.mark.parametrize("dim", [2, 3])


def random_points(dim, seed=1, batch=4):
    points = torch.randn(
        4,
        6,
        dim,
        generator=seeded(seed),
        dtype=torch.float64,
    )
    return points[:batch]


def rotation_by_svd(source, target):
    """The best rotation in NumPy (Kabsch)."""
    centered_source = source - source.mean(0)
    centered_target = target - target.mean(0)
    u, _, v = np.linalg.svd(centered_target.T @ centered_source)
    signs = np.ones(len(u))
    signs[-1] = np.linalg.det(u @ v)
    return u @ np.diag(signs) @ v


@ALL_DIMENSIONS
def test_the_best_rotation_is_that_of_numpy(dim):
    source = random_points(dim)
    target = random_points(dim, 5)
    # A mirror image, which no rotation reaches.
    target[0] = source[0] * torch.tensor([-1.0, *[1.0] * (dim - 1)])
    rotation, translation = procrustes(source, target)
    for n in range(4):
        expected = rotation_by_svd(source[n].numpy(), target[n].numpy())
        np.testing.assert_allclose(rotation[n], expected, atol=1e-9)
        shift = target[n].mean(0).numpy() - expected @ source[n].mean(0).numpy()
        np.testing.assert_allclose(translation[n], shift, atol=1e-9)


@ALL_DIMENSIONS
def test_gradients(dim):
    source = random_points(dim, batch=2).requires_grad_()
    target = random_points(dim, 5, batch=2).requires_grad_()
    assert torch.autograd.gradcheck(procrustes, (source, target))
    assert torch.autograd.gradcheck(chamfer_distance, (source, target.detach()[:, :4]))


SQUARE = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]])
ORIGIN = torch.zeros(4, 3)


@ALL_DIMENSIONS
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (ORIGIN, ORIGIN),
        (SQUARE, ORIGIN),
        (SQUARE, SQUARE),
        (SQUARE[:2], SQUARE[1:3]),
        (SQUARE, SQUARE[[0, 3, 2, 1]]),
    ],
    ids=["points", "square to point", "square", "line", "mirror"],
)
def test_gradients_are_finite_where_many_rotations_are_optimal(dim, source, target):
    source = source[None, :, :dim].clone().requires_grad_()
    target = target[None, :, :dim].clone().requires_grad_()
    rotation, translation = procrustes(source, target)
    assert_close(
        rotation @ rotation.mT,
        torch.eye(dim)[None],
        atol=1e-5,
        rtol=0,
    )
    (rotation.sum() + translation.sum()).backward()
    assert source.grad.isfinite().all()
    assert target.grad.isfinite().all()


def test_chamfer_equals_a_table():
    x = random_points(3)
    y = random_points(3, 2)[:, :5]
    table = (x.unsqueeze(2) - y.unsqueeze(1)).square().sum(dim=3)
    distance_x = table.amin(dim=2).mean(dim=1)
    distance_y = table.amin(dim=1).mean(dim=1)
    assert_close(chamfer_distance(x, y), distance_x + distance_y)


def test_half_precision_is_computed_in_float32():
    x = random_points(2).bfloat16()
    assert chamfer_distance(x, x).dtype == torch.float32
    assert procrustes(x, x)[0].dtype == torch.float32


def test_shapes_that_do_not_fit():
    x = random_points(2)
    with pytest.raises(ArgumentError, match="dim: expected between 2 and 3, got 4"):
        procrustes(torch.zeros(1, 3, 4), torch.zeros(1, 3, 4))
    with pytest.raises(ArgumentError, match=r"target: expected \[batch=4, points=6, dim=2\]"):
        procrustes(x, x[:, :3])
    with pytest.raises(ArgumentError, match=r"targets: expected \[batch=4, m, dim=2\]"):
        chamfer_distance(x, random_points(3))


@pytest.mark.parametrize("argument", ["source", "target"])
def test_points_without_a_batch_are_refused_by_name(argument):
    points = {"source": random_points(2), "target": random_points(2)}
    points[argument] = points[argument][0]
    with pytest.raises(ArgumentError, match=f"^{argument}: "):
        procrustes(**points)
