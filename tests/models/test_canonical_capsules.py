"""Canonical Capsules: the equations by loops, permutations and motions of points, sizes."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.models import CanonicalCapsules
from torchcaps.models.canonical_capsules import ContextNorm, pool
from torchcaps.testing import seeded

SMALL = {
    "capsules": 3,
    "channels": 6,
    "grid": 4,
    "decoder": (8, 5),
}
FIELDS = ("keypoints", "descriptors", "canonical", "rotation", "translation")


def small_model(dim=2, **options):
    with tc.nn.use_generator(seeded(0)):
        return CanonicalCapsules(dim, (12, 1), **SMALL | options).eval()


def sample_points(dim=2):
    return 0.4 * torch.randn(4, dim, 12, 1, generator=seeded(1))


def context_norm(points, weight, bias):
    """Points `[n, c]` of one set, by the definition."""
    logits = points @ weight.T + bias
    a = np.exp(logits - logits.max(1, keepdims=True))
    a = a / a.sum(1, keepdims=True)
    outputs = np.zeros_like(points)
    for g in range(a.shape[1]):
        share = a[:, g : g + 1] / max(a[:, g].sum(), 1e-3)
        mean = (share * points).sum(0)
        variance = (share * (points - mean) ** 2).sum(0)
        outputs += a[:, g : g + 1] * (points - mean) / np.sqrt(variance + 1e-3)
    return outputs


def test_context_normalization_by_its_definition():
    norm = ContextNorm(5, 3).double()
    x = 3 * torch.randn(2, 7, 5, generator=seeded(2), dtype=torch.float64) + 10
    weight = norm.attention.weight.detach().numpy()
    bias = norm.attention.bias.detach().numpy()
    outputs = norm(x).detach().numpy()
    for points, normalized in zip(x.numpy(), outputs, strict=True):
        expected = context_norm(points, weight, bias)
        np.testing.assert_allclose(normalized, expected, rtol=1e-6, atol=1e-8)


def test_a_group_without_points_keeps_it_finite():
    norm = ContextNorm(2, 2)
    norm.attention.weight.data.zero_()
    norm.attention.bias.data.copy_(torch.tensor([50.0, -50.0]))
    x = torch.randn(1, 6, 2, generator=seeded(3)).requires_grad_()
    y = norm(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_keypoints_are_weighted_means_and_points_are_moved():
    model = small_model()
    points = sample_points()
    aligned = model.align(points)
    assert_close(aligned.attention.sum(dim=2), torch.ones(4, 12))
    for b in range(4):
        for k in range(3):
            a = aligned.attention[b, :, k]
            mean = (a * points[b, :, :, 0]).sum(dim=1) / a.sum()
            assert_close(aligned.keypoints[b, k], mean)
    center = aligned.canonical.mean(dim=1)
    assert_close(center, torch.zeros(4, 2), atol=1e-6, rtol=0)
    rotated = aligned.rotation @ points.squeeze(3)
    expected = rotated + aligned.translation.unsqueeze(2)
    assert_close(aligned.upright, expected.mT)


def test_capsules_are_keypoints_descriptors_and_shares_of_the_points():
    model = small_model()
    points = sample_points()
    aligned = model.align(points)
    capsules = model.capsules(points)
    assert capsules.pose.shape == (4, 3, 8)
    keypoints = pool(aligned.attention, aligned.upright)
    assert_close(capsules.pose[..., :2], keypoints)
    assert_close(capsules.activation.sum(dim=1), torch.ones(4))
    assert model(points).shape == (4, 2, 12, 1)
    assert_close(model.decode(capsules), model(points))


def test_the_order_of_points_does_not_matter():
    model = small_model(3).double()
    points = sample_points(3).double()
    order = torch.randperm(12, generator=seeded(4))
    aligned = model.align(points)
    permuted = model.align(points[:, :, order])
    assert_close(permuted.attention, aligned.attention[:, order])
    assert_close(permuted.upright, aligned.upright[:, order])
    for field in FIELDS:
        assert_close(getattr(permuted, field), getattr(aligned, field))
    assert_close(model(points[:, :, order]), model(points))


@pytest.mark.parametrize("dim", [2, 3])
def test_a_motion_that_attention_does_not_see_leaves_the_canonical_pose(dim):
    """With fixed attention and canonical keypoints it is exact: the rest is for training."""
    model = small_model(dim).double()
    points = sample_points(dim).double()
    matrix = torch.randn(dim, dim, generator=seeded(5), dtype=torch.float64)
    turn, _ = torch.linalg.qr(matrix)
    turn[:, 0] *= torch.linalg.det(turn)
    before = model.align(points)
    features = model.aligner(points.squeeze(3).mT)
    model.aligner.forward = lambda x: features  # as if it were invariant
    turned = turn @ points.squeeze(3) + 0.3
    after = model.align(turned.unsqueeze(3))
    assert_close(after.keypoints, before.keypoints @ turn.mT + 0.3)
    assert_close(after.rotation @ turn, before.rotation)
    assert_close(after.upright, before.upright)


def test_without_canonical_pose_points_stay_where_they_are():
    points = sample_points()
    upright = small_model(canonical=False).align(points).upright
    assert_close(upright, points.squeeze(3).mT)


def test_points_in_one_place_have_finite_gradients():
    points = torch.zeros(2, 3, 12, 1, requires_grad=True)
    small_model(3)(points).sum().backward()
    assert points.grad.isfinite().all()


def test_poses_are_in_full_precision():
    with torch.autocast("cpu", torch.bfloat16):
        aligned = small_model().align(sample_points())
    assert {part.dtype for part in aligned} == {torch.float32}
    products = aligned.rotation @ aligned.rotation.mT
    assert_close(products, torch.eye(2).expand(4, 2, 2))
