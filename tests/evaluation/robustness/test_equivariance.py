from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torchcaps.evaluation import equivariance
from torchcaps.evaluation.robustness.equivariance import linear_map, r_squared
from torchcaps.types import Capsules, ModelSpec

from ..stubs import Linear


def turn(degrees: float) -> Tensor:
    a = math.radians(degrees)
    return torch.tensor(
        [[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]], dtype=torch.float64
    )


def test_a_known_rotation_is_learned() -> None:
    poses = torch.randn(50, 2, dtype=torch.float64)
    found = linear_map(poses, poses @ turn(20).T, ridge=0.0)
    assert torch.allclose(found, turn(20))
    assert r_squared(poses @ found.T, poses @ turn(20).T) == pytest.approx(1)


def test_the_ridge_draws_towards_no_change() -> None:
    poses = torch.randn(20, 2, dtype=torch.float64)
    loose, tight = (linear_map(poses, poses @ turn(90).T, ridge=ridge) for ridge in (1e-6, 1e6))
    assert torch.allclose(loose, turn(90), atol=1e-3)
    assert torch.allclose(tight, torch.eye(2, dtype=torch.float64), atol=1e-3)
    constant = linear_map(
        torch.ones(5, 3).double(), 2 * torch.ones(5, 3).double(), ridge=0.0
    )  # no single solution
    assert constant.isfinite().all()


def test_share_of_variance_by_hand() -> None:
    true = torch.tensor([[0.0], [2.0]])
    assert r_squared(true, true) == 1
    assert r_squared(torch.ones(2, 1), true) == 0
    assert r_squared(true.flip(0), true) == pytest.approx(1 - 8 / 2)
    assert r_squared(torch.ones(2, 1), torch.ones(2, 1)) == 0


class Compass(nn.Module):
    """The pose is the place of the ink around the center; one class is always there."""

    spec = ModelSpec(pose=True, activation="probability")

    def capsules(self, images: Tensor) -> Capsules:
        side = torch.arange(images.shape[-1]) - (images.shape[-1] - 1) / 2
        mass = images.sum(dim=(1, 2, 3)).clamp(min=1e-6)
        x, y = images.sum(dim=(1, 2)) @ side / mass, images.sum(dim=(1, 3)) @ side / mass
        pose = torch.stack([x, y], dim=1).unsqueeze(1).expand(-1, 2, -1)
        return Capsules(pose, torch.tensor([0.9, 0.1]).expand(len(images), -1))


def test_poses_that_turn_with_the_image() -> None:
    images = torch.zeros(40, 1, 15, 15)
    generator = torch.Generator().manual_seed(0)
    for image in images:
        row, column = torch.randint(4, 10, (2,), generator=generator)
        image[0, row : row + 2, column : column + 2] = 1
    found = equivariance(
        Compass(), images, torch.zeros(40, dtype=torch.int64), rotation=[0, 30, 180]
    )
    assert found.equivariant == pytest.approx((1, 1, 1), abs=0.02)
    assert found.invariant[0] == pytest.approx(1)
    assert found.invariant[1] < 0.9
    assert found.invariant[2] < -2
    assert found.activation_change == pytest.approx((0, 0, 0))
    assert found.agreement == (1, 1, 1)
    assert found.num_samples == 20


def test_arguments_that_do_not_fit() -> None:
    images, labels = torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="model: expected one with class capsules, got Linear"):
        equivariance(Linear(torch.ones(4)), images, labels)
    with pytest.raises(ValueError, match="number of rotations: expected at least 1, got 0"):
        equivariance(Compass(), images, labels, rotation=[])
    with pytest.raises(ValueError, match="labels: expected class indices from 0 to 1, got 2"):
        equivariance(Compass(), images, labels + 2)
