import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from torchcaps.evaluation import equivariance, transform_images
from torchcaps.evaluation.robustness.affine import linear_map, r_squared
from torchcaps.testing import seeded
from torchcaps.types import Capsules, ModelSpec

from ..stubs import share


def rotation_matrix(degrees):
    cos = math.cos(math.radians(degrees))
    sin = math.sin(math.radians(degrees))
    return torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)


def test_the_ridge_pulls_towards_no_change():
    poses = torch.randn(20, 2, dtype=torch.float64)
    turned = poses @ rotation_matrix(90).T
    loose = linear_map(poses, turned, ridge=1e-6)
    assert_close(
        loose,
        rotation_matrix(90),
        atol=1e-3,
        rtol=0,
    )
    tight = linear_map(poses, turned, ridge=1e6)
    assert_close(
        tight,
        rotation_matrix(0),
        atol=1e-3,
        rtol=0,
    )


def test_share_of_variance_by_hand():
    true = torch.tensor([[0.0], [2.0]])
    constant = torch.ones(2, 1)
    assert r_squared(true, true) == 1
    assert r_squared(constant, true) == 0
    assert r_squared(true.flip(0), true) == pytest.approx(1 - 8 / 2)
    assert r_squared(constant, constant) == 0


class Compass(nn.Module):
    """The pose is the place of the ink around the center; one class is always there."""

    spec = ModelSpec(pose=True, activation="probability")

    def capsules(self, images):
        offsets = torch.arange(images.shape[-1]) - (images.shape[-1] - 1) / 2
        mass = images.sum(dim=(1, 2, 3)).clamp(min=1e-6)
        x = images.sum(dim=(1, 2)) @ offsets / mass
        y = images.sum(dim=(1, 3)) @ offsets / mass
        pose = torch.stack([x, y], dim=1).unsqueeze(1).expand(-1, 2, -1)
        return Capsules(pose, torch.tensor([0.9, 0.1]).expand(len(images), -1))


def test_poses_that_turn_with_the_image():
    images = torch.zeros(40, 1, 15, 15)
    corners = torch.randint(4, 10, (40, 2), generator=seeded(0))
    for image, (row, column) in zip(images, corners.tolist(), strict=True):
        image[0, row : row + 2, column : column + 2] = 1
    labels = torch.zeros(40, dtype=torch.int64)
    turned = equivariance(
        Compass(),
        images,
        labels,
        rotation=[0, 30, 180],
    )
    assert turned.equivariant == pytest.approx((1, 1, 1), abs=0.02)
    assert turned.invariant[0] == pytest.approx(1)
    assert turned.invariant[1] < 0.9
    assert turned.invariant[2] < -2
    assert turned.activation_change == pytest.approx((0, 0, 0))
    assert turned.agreement == (1, 1, 1)
    assert turned.num_samples == 20


class Dice(nn.Module):
    """Poses and activations like random numbers: any change of an image gives others."""

    spec = ModelSpec(pose=True, activation="probability")

    def capsules(self, images):
        keys = torch.arange(1.0, 1 + images[0].numel(), dtype=torch.float64)
        places = 1e5 * (images.flatten(1).double() * keys.sqrt()).sum(dim=1, keepdim=True)
        numbers = torch.sin(places * torch.arange(1, 25).sqrt()).float().unflatten(1, (2, 12))
        return Capsules(numbers, numbers[..., 0].abs())


def test_random_poses_are_neither_equivariant_nor_invariant():
    """A map that was measured where it was learned would explain half of them."""
    images = torch.rand(60, 1, 9, 9, generator=seeded(0))
    labels = torch.arange(60) % 2
    figures = equivariance(Dice(), images, labels, rotation=[15, 40])
    assert max(figures.equivariant) < 0
    assert max(figures.invariant) < -0.5
    activations = Dice().capsules(images[1::2]).activation
    turned = Dice().capsules(transform_images(images, rotation=40)[1::2]).activation
    assert figures.activation_change[1] == pytest.approx(float((turned - activations).abs().mean()))
    agreement = share(turned.argmax(dim=1) == activations.argmax(dim=1))
    assert figures.agreement[1] == pytest.approx(agreement)
