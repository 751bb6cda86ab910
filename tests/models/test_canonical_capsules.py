"""Canonical Capsules: the equations by loops, permutations and motions of points, sizes, precision."""

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.models import CanonicalCapsules
from torchcaps.models.canonical_capsules import ContextNorm, pool
from torchcaps.testing import seeded


def tiny(dim=2, points=12, **options):
    generator, size = seeded(0), (points, 1)
    with tc.nn.use_generator(generator):
        small = {"capsules": 3, "channels": 6, "grid": 4, "decoder": (8, 5)}
        return CanonicalCapsules(dim, size, **(small | options)).eval()


def sets(dim=2, count=4, points=12, seed=1):
    return 0.4 * torch.randn(count, dim, points, 1, generator=seeded(seed))


def test_the_numbers_of_parameters_of_the_sheet_and_of_the_authors_code():
    count = lambda name: sum(p.numel() for p in tc.create_model(name).parameters())  # noqa: E731
    assert count("canonical_capsules_small") == 68_320
    encoder = 3 * 128 + 128 + 6 * (128 * 128 + 128) + 7 * (1290 + 256) + 1290
    keypoints = 1280 * 1280 + 1280 + 1280 * 30 + 30
    decoder = 138 * 1280 + 1280 * 640 + 640 * 320 + 320 * 3 + 3 + 3 * (1280 + 640 + 320)
    with torch.device("meta"):
        assert count("canonical_capsules") == 2 * encoder + keypoints + 10 * decoder + 10 * 102 * 10


def test_context_normalization_by_its_definition():
    norm, x = (
        ContextNorm(5, 3).double(),
        torch.randn(2, 7, 5, generator=seeded(2), dtype=torch.float64) * 3 + 10,
    )
    found = norm(x).detach().numpy()
    weight, bias = norm.attention.weight.detach().numpy(), norm.attention.bias.detach().numpy()
    for s, points in enumerate(x.numpy()):
        a = np.exp(points @ weight.T + bias - (points @ weight.T + bias).max(1, keepdims=True))
        a = a / a.sum(1, keepdims=True)
        want = np.zeros_like(points)
        for g in range(3):
            share = a[:, g] / max(a[:, g].sum(), 1e-3)
            mean = sum(share[n] * points[n] for n in range(7))
            variance = sum(share[n] * (points[n] - mean) ** 2 for n in range(7))
            want += a[:, g : g + 1] * (points - mean) / np.sqrt(variance + 1e-3)
        np.testing.assert_allclose(found[s], want, rtol=1e-6, atol=1e-8)


def test_a_group_without_points_keeps_it_finite():
    norm, x = ContextNorm(2, 2), torch.randn(1, 6, 2, generator=seeded(3)).requires_grad_()
    norm.attention.weight.data.zero_()
    norm.attention.bias.data.copy_(torch.tensor([50.0, -50.0]))
    y = norm(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_keypoints_are_weighted_means_and_the_pose_is_put_together_right():
    model, points = tiny(), sets()
    found = model.align(points)
    torch.testing.assert_close(found.attention.sum(dim=2), torch.ones(4, 12))
    for b in range(4):
        for k in range(3):
            a = found.attention[b, :, k]
            want = sum(a[n] * points[b, :, n, 0] for n in range(12)) / a.sum()
            torch.testing.assert_close(found.keypoints[b, k], want)
    torch.testing.assert_close(found.canonical.mean(dim=1), torch.zeros(4, 2), atol=1e-6, rtol=0)
    moved = torch.einsum(
        "bij,bjn->bin", found.rotation, points.squeeze(3)
    ) + found.translation.unsqueeze(2)
    torch.testing.assert_close(found.upright, moved.mT)
    capsules = model.capsules(points)
    assert capsules.pose.shape == (4, 3, 8)
    torch.testing.assert_close(capsules.activation.sum(dim=1), torch.ones(4))
    torch.testing.assert_close(capsules.pose[..., :2], pool(found.attention, found.upright))
    assert model(points).shape == (4, 2, 12, 1)
    torch.testing.assert_close(model.decode(capsules), model(points))


def test_the_order_of_points_does_not_matter():
    dim = 3
    model, points, order = (
        tiny(dim).double(),
        sets(dim).double(),
        torch.randperm(12, generator=seeded(4)),
    )
    one, other = model.align(points), model.align(points[:, :, order])
    torch.testing.assert_close(other.attention, one.attention[:, order])
    torch.testing.assert_close(other.upright, one.upright[:, order])
    for name in ("keypoints", "descriptors", "canonical", "rotation", "translation"):
        torch.testing.assert_close(getattr(other, name), getattr(one, name))
    torch.testing.assert_close(model(points[:, :, order]), model(points))


@pytest.mark.parametrize("dim", [2, 3])
def test_a_motion_that_attention_does_not_see_leaves_the_canonical_pose(dim):
    """With attention and canonical keypoints that are given, it is exact: what training has to reach is the rest."""
    model, points = tiny(dim).double(), sets(dim).double()
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=seeded(5), dtype=torch.float64))[0]
    turn[:, 0] *= torch.linalg.det(turn)
    moved = (turn @ points.squeeze(3) + 0.3).unsqueeze(3)
    before = model.align(points)
    features = model.aligner(points.squeeze(3).mT)
    model.aligner.forward = lambda x: features  # as if it were invariant
    after = model.align(moved)
    torch.testing.assert_close(after.keypoints, before.keypoints @ turn.mT + 0.3)
    torch.testing.assert_close(after.rotation @ turn, before.rotation)
    torch.testing.assert_close(after.upright, before.upright)


def test_without_canonical_pose_points_stay_where_they_are():
    points = sets()
    torch.testing.assert_close(tiny(canonical=False).align(points).upright, points.squeeze(3).mT)


@pytest.mark.parametrize("dim", [2, 3])
def test_every_parameter_but_the_unused_attention_learns(dim):
    model, points = tiny(dim).train(), sets(dim).requires_grad_()
    model(points).square().sum().backward()
    assert points.grad.isfinite().all()
    left = [name for name, p in model.named_parameters() if p.grad is None]
    assert left == ["encoder.attention.weight", "encoder.attention.bias"]
    same = torch.zeros(2, dim, 12, 1, requires_grad=True)  # all points in one place
    model(same).sum().backward()
    assert same.grad.isfinite().all()


def test_sizes_that_cannot_be():
    for arguments, words in (
        ((4, (12, 1)), r"in_chans \(coordinates of a point\): expected between 2 and 3, got 4"),
        ((2, (12, 2)), r"img_size: expected \(10 or more points, 1\), got \(12, 2\)"),
        ((2, (9, 1)), r"img_size: expected \(10 or more points, 1\), got \(9, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            CanonicalCapsules(*arguments)
