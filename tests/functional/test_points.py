"""Rigid motions between sets that correspond, and Chamfer distances: by hand, by loops, and their gradients."""

import math

import numpy as np
import pytest
import torch

from torchcaps.functional import chamfer_distance, procrustes
from torchcaps.testing import seeded


def turned(dim, seed=0):
    q, r = torch.linalg.qr(torch.randn(4, dim, dim, generator=seeded(seed), dtype=torch.float64))
    q = q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)
    q[:, :, 0] *= torch.linalg.det(q).unsqueeze(1)
    return q


def cloud(dim, seed=1):
    return torch.randn(4, 6, dim, generator=seeded(seed), dtype=torch.float64)


def by_svd(source, target):
    p, q = source - source.mean(0), target - target.mean(0)
    u, _, v = np.linalg.svd(q.T @ p)
    signs = np.ones(len(u))
    signs[-1] = np.linalg.det(u @ v)
    rotation = u @ np.diag(signs) @ v
    return rotation, target.mean(0) - rotation @ source.mean(0)


def test_a_quarter_turn_by_hand():
    source = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    rotation, shift = procrustes(source, torch.tensor([[[3.0, 1.0], [3.0, -1.0]]]))
    torch.testing.assert_close(rotation[0], torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    torch.testing.assert_close(shift[0], torch.tensor([3.0, 0.0]))


@pytest.mark.parametrize("dim", [2, 3])
def test_a_rigid_motion_is_found_again(dim):
    rotation, shift, source = (
        turned(dim),
        torch.randn(4, dim, generator=seeded(3), dtype=torch.float64),
        cloud(dim),
    )
    found = procrustes(source, source @ rotation.mT + shift.unsqueeze(1))
    torch.testing.assert_close(found, (rotation, shift))


@pytest.mark.parametrize("dim", [2, 3])
def test_the_best_rotation_is_numpys(dim):
    source, target = cloud(dim), cloud(dim, 5)
    target[0] = source[0] * torch.tensor(
        [-1.0, *[1.0] * (dim - 1)]
    )  # a mirror image, which no rotation reaches
    rotation, shift = procrustes(source, target)
    for i in range(4):
        want = by_svd(source[i].numpy(), target[i].numpy())
        np.testing.assert_allclose(rotation[i], want[0], atol=1e-9)
        np.testing.assert_allclose(shift[i], want[1], atol=1e-9)
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("dim", [2, 3])
def test_gradients_are_those_of_finite_differences(dim):
    inputs = cloud(dim)[:2].requires_grad_(), cloud(dim, 5)[:2].requires_grad_()
    assert torch.autograd.gradcheck(procrustes, inputs)
    assert torch.autograd.gradcheck(
        chamfer_distance, (cloud(dim)[:2].requires_grad_(), cloud(dim, 7)[:2, :4])
    )


@pytest.mark.parametrize("dim", [2, 3])
def test_gradients_are_finite_where_nothing_tells_a_rotation(dim):
    square = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]])[None, :, :dim]
    for source, target in (
        (torch.zeros(1, 4, dim), torch.zeros(1, 4, dim)),
        (square, torch.zeros(1, 4, dim)),
        (square, square),
        (square[:, :2], square[:, 1:3]),
        (square, square[:, [0, 3, 2, 1]]),
    ):
        source, target = source.clone().requires_grad_(), target.clone().requires_grad_()
        rotation, shift = procrustes(source, target)
        torch.testing.assert_close(rotation @ rotation.mT, torch.eye(dim)[None], atol=1e-5, rtol=0)
        (rotation.sum() + shift.sum()).backward()
        assert source.grad.isfinite().all()
        assert target.grad.isfinite().all()


def test_chamfer_by_hand_and_by_loops():
    points, others = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    assert chamfer_distance(points, others).item() == (1 + 2) / 2 + 1
    x, y = cloud(3), cloud(3, 2)[:, :5]
    for i, found in enumerate(chamfer_distance(x, y).tolist()):
        table = [[float(((a - b) ** 2).sum()) for b in y[i]] for a in x[i]]
        want = sum(map(min, table)) / 6 + sum(map(min, zip(*table, strict=True))) / 5
        assert math.isclose(found, want)
    assert chamfer_distance(x, x).abs().max() == 0


def test_half_precision_and_shapes_that_do_not_fit():
    x = cloud(2).bfloat16()
    assert chamfer_distance(x, x).dtype == torch.float32
    assert procrustes(x, x)[0].dtype == torch.float32
    with pytest.raises(ValueError, match="dim: expected between 2 and 3, got 4"):
        procrustes(torch.zeros(1, 3, 4), torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match=r"target: expected \[batch=4, points=6, dim=2\]"):
        procrustes(x, x[:, :3])
    with pytest.raises(ValueError, match=r"others: expected \[batch=4, m, dim=2\]"):
        chamfer_distance(x, cloud(3))
