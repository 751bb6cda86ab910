"""Stacked capsule auto-encoders against float64 NumPy written from the paper: poses, drawing, likelihoods."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torchcaps.functional.affine import affine_pose, composed, inverse
from torchcaps.models import SCAE
from torchcaps.models.scae import Noise, Objects, Parts, attend, pose_likelihood

SMALL = {"parts": 3, "objects": 4, "channels": 4, "units": 8}


def small(seed=0, **options):
    torch.manual_seed(seed)
    return SCAE(**{"img_size": 24, **SMALL, **options}).eval()


def matrix(raw):
    """The sheet's pose map of six numbers, a 3x3 matrix."""
    sx, sy, th, sh, tx, ty = (float(value) for value in raw)
    sx, sy = (1 / (1 + math.exp(-s)) + 0.01 for s in (sx, sy))
    th, sh, tx, ty = 2 * math.pi * th, math.tanh(5 * sh), math.tanh(5 * tx), math.tanh(5 * ty)
    cos, sin = math.cos(th), math.sin(th)
    return np.array(
        [
            [sx * cos + sh * sy * sin, -sx * sin + sh * sy * cos, tx],
            [sy * sin, sy * cos, ty],
            [0, 0, 1],
        ]
    )


def bilinear(image, u, v):
    """The value at column u and row v, in [-1, 1] from the center of the first pixel to that of the last; else 0."""
    rows, columns = image.shape
    x, y, value = (u + 1) / 2 * (columns - 1), (v + 1) / 2 * (rows - 1), 0.0
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < rows and 0 <= column < columns:
                value += image[row, column] * max(0, 1 - abs(y - row)) * max(0, 1 - abs(x - column))
    return value


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(x, mean, scale):
    return -0.5 * ((x - mean) / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)


def test_six_numbers_are_a_matrix():
    raw = torch.randn(20, 6, dtype=torch.float64)
    found = affine_pose(raw).numpy().reshape(20, 2, 3)
    for numbers, pose in zip(raw, found, strict=True):
        np.testing.assert_allclose(pose, matrix(numbers)[:2], atol=1e-12)
        sx, sy = sigmoid(numbers[:2].numpy()) + 0.01
        assert np.linalg.det(pose[:, :2]) == pytest.approx(sx * sy)  # a turn and a shear keep areas
    rest = affine_pose(torch.zeros(6))
    torch.testing.assert_close(rest, torch.tensor([0.51, 0.0, 0.0, 0.0, 0.51, 0.0]))
    assert affine_pose(torch.zeros(6, dtype=torch.bfloat16)).dtype == torch.float32


def test_poses_are_multiplied_and_undone():
    a, b = affine_pose(torch.randn(2, 7, 6, dtype=torch.float64))
    for outer, inner, found in zip(a, b, composed(a, b), strict=True):
        whole = [np.vstack([pose.reshape(2, 3), [0, 0, 1]]) for pose in (outer, inner)]
        np.testing.assert_allclose(found.reshape(2, 3), (whole[0] @ whole[1])[:2], atol=1e-12)
    still = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64).expand(7, 6)
    torch.testing.assert_close(composed(a, inverse(a)), still)


def test_pixels_are_a_mixture_of_placed_templates():
    in_chans = 2
    model = small(in_chans=in_chans, pixel_scale=0.7).double()
    capsules = model.part_capsules
    with torch.no_grad():
        capsules.alpha.normal_()
        capsules.background.fill_(-0.4)
        capsules.background_logit.fill_(0.3)
    images = torch.rand(2, in_chans, 24, 24, dtype=torch.float64)
    parts = Parts(*(x.detach() for x in capsules(images, None)))
    parts = parts._replace(pose=affine_pose(0.5 * torch.randn(2, 3, 6, dtype=torch.float64)))
    with torch.no_grad():
        drawn, share = capsules.draw(parts)
    found = capsules.log_likelihood(images, drawn, share)
    template, alpha = (
        x.detach().numpy() for x in (torch.sigmoid(10 * capsules.template), capsules.alpha)
    )
    for b in range(2):
        total = 0.0
        color = capsules.color(parts.feature[b]).sigmoid().detach().numpy()
        back = [
            np.linalg.inv(np.vstack([p.detach().reshape(2, 3), [0, 0, 1]])) for p in parts.pose[b]
        ]
        for row in range(24):
            for column in range(24):
                place = np.array([2 * column / 23 - 1, 2 * row / 23 - 1, 1])
                logits, values = [], []
                for m in range(3):
                    u, v, _ = back[m] @ place
                    presence = sigmoid(float(parts.logit[b, m]))
                    logits.append(bilinear(alpha[m, 0], u, v) + math.log(presence))
                    values.append(
                        [color[m, c] * bilinear(template[m, c], u, v) for c in range(in_chans)]
                    )
                logits, values = (
                    [*logits, math.log1p(math.exp(0.3))],
                    [*values, [sigmoid(-0.4)] * in_chans],
                )
                shares = np.exp(logits) / np.exp(logits).sum()
                for c in range(in_chans):
                    x = float(images[b, c, row, column])
                    total += math.log(
                        sum(
                            s * math.exp(normal(x, v[c], 0.7))
                            for s, v in zip(shares, values, strict=True)
                        )
                    )
        assert float(found[b]) == pytest.approx(total, rel=1e-9)


def some_objects(seed=0, k=4, m=3):
    """What objects say of two images, at random."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(2, *shape, generator=random, dtype=torch.float64)

    return Objects(
        affine_pose(draw(k, 6)),
        affine_pose(draw(k, m, 6)),
        draw(k, m).exp(),
        -draw(k, m).exp(),
        draw(k, m, 6),
    )


def test_parts_are_a_mixture_of_votes():
    objects, pose = some_objects(), affine_pose(torch.randn(2, 3, 6, dtype=torch.float64))
    found, posterior = pose_likelihood(pose, objects)
    torch.testing.assert_close(posterior.sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))
    for b in range(2):
        for m in range(3):
            each = []
            for k in range(4):
                votes, spread = objects.vote[b, k, m], float(objects.spread[b, k, m])
                terms = (
                    normal(float(x), float(v), spread)
                    for x, v in zip(pose[b, m], votes, strict=True)
                )
                each.append(math.exp(float(objects.log_weight[b, k, m]) + sum(terms)))
            each.append(math.exp(2 * (-2 * math.log(10))))  # nobody
            assert float(found[b, m]) == pytest.approx(math.log(sum(each)))
            np.testing.assert_allclose(posterior[b, m], np.array(each) / sum(each))
    np.testing.assert_allclose(objects.presence, objects.log_weight.exp().amax(dim=-1))


def test_votes_are_products_of_poses():
    model = small().double()
    capsules, m = model.object_capsules, 3
    x, noise = (
        torch.randn(2, 4, 8, dtype=torch.float64),
        torch.randn(2, 4, 1 + m, dtype=torch.float64),
    )
    with torch.no_grad():
        capsules.rest.normal_()
        found = capsules.decode(x, Noise(noise[0, :, :3].T, noise[..., 0], noise[..., 1:]))
    weight, bias = (
        [p.detach().numpy() for p in group] for group in (capsules.weight, capsules.bias)
    )
    rest, static = capsules.rest.detach().numpy(), capsules.static.detach().numpy()
    for b in range(2):
        for k in range(4):
            h = np.maximum(x[b, k].numpy() @ weight[0][k] + bias[0][k], 0)
            h = h @ weight[1][k] + bias[1][k]
            h = np.maximum(
                np.append(h, 1) @ np.vstack([weight[2][k], bias[2][k]]), 0
            )  # the sheet appends a one
            told = h @ weight[3][k]
            dynamic, others = told[: 6 * m].reshape(m, 6), told[6 * m :] + rest[k]
            viewed = matrix(others[:6])
            np.testing.assert_allclose(found.pose[b, k].detach(), viewed[:2].flatten(), atol=1e-9)
            for part in range(m):
                vote = viewed @ matrix(dynamic[part] + static[k, part])
                np.testing.assert_allclose(
                    found.vote[b, k, part].detach(), vote[:2].flatten(), atol=1e-9
                )
                weighs = sigmoid(others[6] + float(noise[b, k, 0])) * sigmoid(
                    others[7 + part] + float(noise[b, k, 1 + part])
                )
                assert float(found.log_weight[b, k, part]) == pytest.approx(math.log(weighs))
                spread = math.log1p(math.exp(others[7 + m + part] + 0.5)) + 0.01
                assert float(found.spread[b, k, part]) == pytest.approx(spread)


def test_published_size():
    """40 parts, 32 objects on 40x40: counted by the sheet's shapes."""
    with torch.device("meta"):
        model = SCAE()
    convolutions = 128 * 9 + 128 + 3 * (128 * 128 * 9 + 128)
    told = 128 * 40 * 24 + 40 * 24  # 6 + 16 + 1 numbers and a map of attention
    parts = convolutions + 25 * 128 + told + 40 * 2 * 121 + (16 * 32 + 32) + (32 + 1) + 2
    block = 16 * 48 + 48 + 16 * 16 + 16 + 4 * 16 + (16 * 32 + 32) + (32 * 16 + 16)
    together = 144 * 16 + 16 + 3 * block + 16 * 256 + 256 + 256 * 256 + 256 * 256 + 256 + 32 * 256
    capsule = 256 * 128 + 128 + 128 * 32 + 32 + 33 * 128 + 128 * 327 + (327 - 240) + 240
    assert sum(p.numel() for p in model.part_capsules.parameters()) == parts
    assert sum(p.numel() for p in model.object_capsules.parameters()) == together + 32 * capsule
    with torch.device("meta"):
        assert model.explain(torch.empty(1, 1, 40, 40)).drawn.shape == (1, 41, 1, 40, 40)


def test_what_flows_back_from_the_objects():
    model = small()
    model.explain(torch.rand(2, 1, 24, 24)).part_log_likelihood.mean().backward()
    assert model.part_capsules.template.grad is None  # templates, poses and presences are targets
    told = model.part_capsules.head.weight.grad.unflatten(0, (3, -1))
    assert not told[:, :6].any()
    assert not told[:, 22].any()
    assert told[:, 6:22].any()


def test_an_absent_part_is_not_seen():
    query, key, value = torch.randn(3, 2, 4, 6)
    logit = torch.tensor([0.3, -1e9, 0.1, -1e9]).expand(2, 4).clone().requires_grad_()
    found = attend(query, key, value, logit)
    present = attend(query, key[:, ::2], value[:, ::2], logit[:, ::2])
    torch.testing.assert_close(found, present)
    found.sum().backward()
    assert logit.grad.isfinite().all()
    half = (x.bfloat16() for x in (query, key, value, torch.full((2, 4), -1e4)))
    assert attend(*half).isfinite().all()  # a mask of 1e32 would be infinite


def test_noise_is_for_training_alone():
    model, images = small(), torch.rand(2, 1, 24, 24)
    first, second = (model.train(mode)(images) for mode in (True, False))
    assert torch.equal(first, second)  # it is given, or there is none
    noise = Noise(torch.full((2, 3), 2.0), torch.full((2, 4), -2.0), torch.zeros(2, 4, 3))
    quiet, noisy = model.explain(images), model.explain(images, noise)
    torch.testing.assert_close(noisy.parts.logit, quiet.parts.logit + 2)
    assert (noisy.objects.presence < quiet.objects.presence).all()


def test_gradients_stay_finite_for_extreme_images_and_weights():
    for images in (torch.zeros(1, 1, 24, 24), torch.ones(1, 1, 24, 24)):
        model = small()
        with torch.no_grad():
            model.part_capsules.head.bias.mul_(1e4)
            model.object_capsules.rest.fill_(-50.0)
        found = model.explain(images)
        (
            found.log_likelihood + found.part_log_likelihood + found.objects.presence.sum()
        ).sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_likelihoods_are_in_full_precision():
    model, images = small(), torch.rand(3, 1, 24, 24)
    whole = model.explain(images)
    with torch.autocast("cpu", torch.bfloat16):
        half = model.explain(images)
    assert half.log_likelihood.dtype == half.part_log_likelihood.dtype == torch.float32
    torch.testing.assert_close(half.log_likelihood, whole.log_likelihood, rtol=0.02, atol=1.0)


def test_what_it_cannot_take():
    for options, complaint in (
        ({"img_size": 22}, "img_size: expected images of at least 23x23 pixels, got 22x22"),
        ({"parts": 0}, "parts: expected at least 1, got 0"),
        ({"pixel_scale": 0.0}, "pixel_scale: expected at least"),
        ({"strides": (2, 0)}, "strides: expected at least 1, got 0"),
        ({"weights": {"pixel": 1.0}}, "unknown weight 'pixel'; did you mean 'pixels'"),
        ({"weights": {"poses": -1.0}}, "poses: expected at least 0"),
    ):
        with pytest.raises(ValueError, match=complaint):
            small(**options)
