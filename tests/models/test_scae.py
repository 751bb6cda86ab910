"""Stacked capsule auto-encoders against float64 NumPy written from the paper.

Poses, drawing and likelihoods are computed by loops.
"""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps.functional.affine import affine_pose
from torchcaps.models import SCAE
from torchcaps.models.scae import Noise, Objects, pose_likelihood
from torchcaps.nn.set_transformer import attend

SMALL = {
    "parts": 3,
    "objects": 4,
    "channels": 4,
    "units": 8,
}


def small_scae(**options):
    torch.manual_seed(0)
    return SCAE(**{"img_size": 24, **SMALL, **options}).eval()


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def pose_matrix(raw):
    """The 3x3 matrix that six numbers stand for."""
    sx, sy, turn, shear, tx, ty = map(float, raw)
    sx = sigmoid(sx) + 0.01
    sy = sigmoid(sy) + 0.01
    angle = 2 * math.pi * turn
    shear = math.tanh(5 * shear)
    cos = math.cos(angle)
    sin = math.sin(angle)
    return np.array(
        [
            [sx * cos + shear * sy * sin, -sx * sin + shear * sy * cos, math.tanh(5 * tx)],
            [sy * sin, sy * cos, math.tanh(5 * ty)],
            [0, 0, 1],
        ]
    )


def full_matrix(pose):
    """The 3x3 matrix whose upper two rows are a pose."""
    return np.vstack([pose.detach().reshape(2, 3), [0, 0, 1]])


def bilinear(image, u, v):
    """The image at column u and row v, in [-1, 1] between centers of pixels; 0 outside."""
    rows, columns = image.shape
    x = (u + 1) / 2 * (columns - 1)
    y = (v + 1) / 2 * (rows - 1)
    total = 0.0
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < rows and 0 <= column < columns:
                share = max(0, 1 - abs(y - row)) * max(0, 1 - abs(x - column))
                total += image[row, column] * share
    return total


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def log_normal(x, mean, scale):
    error = (x - mean) / scale
    return -0.5 * error**2 - math.log(scale) - 0.5 * math.log(2 * math.pi)


def test_six_numbers_are_a_matrix():
    raw = randn(20, 6)
    poses = affine_pose(raw).numpy().reshape(20, 2, 3)
    for numbers, pose in zip(raw, poses, strict=True):
        np.testing.assert_allclose(pose, pose_matrix(numbers)[:2], atol=1e-12)
        sx, sy = sigmoid(numbers[:2].numpy()) + 0.01
        assert np.linalg.det(pose[:, :2]) == pytest.approx(sx * sy)  # a turn and a shear keep areas
    at_zero = affine_pose(torch.zeros(6))
    assert_close(at_zero, torch.tensor([0.51, 0.0, 0.0, 0.0, 0.51, 0.0]))
    assert affine_pose(torch.zeros(6, dtype=torch.bfloat16)).dtype == torch.float32


def test_pixels_are_a_mixture_of_placed_templates():
    num_channels = 2
    model = small_scae(in_chans=num_channels, pixel_scale=0.7).double()
    capsules = model.part_capsules
    images = torch.rand(2, num_channels, 24, 24, dtype=torch.float64)
    with torch.no_grad():
        capsules.alpha.normal_()
        capsules.background.fill_(-0.4)
        capsules.background_logit.fill_(0.3)
        parts = capsules(images, None)._replace(pose=affine_pose(0.5 * randn(2, 3, 6)))
        drawings, share = capsules.draw(parts)
        likelihood = capsules.log_likelihood(images, drawings, share)
        colors = capsules.color(parts.feature).sigmoid().numpy()
    templates = torch.sigmoid(10 * capsules.template).detach().numpy()
    alphas = capsules.alpha.detach().numpy()

    def pixel_likelihood(b, row, column):
        place = np.array([2 * column / 23 - 1, 2 * row / 23 - 1, 1])
        logits = []
        means = []
        for m in range(3):
            u, v, _ = np.linalg.inv(full_matrix(parts.pose[b, m])) @ place
            presence = sigmoid(float(parts.presence_logit[b, m]))
            logits.append(bilinear(alphas[m, 0], u, v) + math.log(presence))
            template = np.array([bilinear(channel, u, v) for channel in templates[m]])
            means.append(colors[b, m] * template)
        logits.append(math.log1p(math.exp(0.3)))  # the background
        means.append(np.full(num_channels, sigmoid(-0.4)))
        shares = np.exp(logits) / np.exp(logits).sum()
        pixel = images[b, :, row, column].numpy()
        densities = np.exp(log_normal(pixel, np.array(means), 0.7))
        return np.log(shares @ densities).sum()

    for b in range(2):
        total = 0.0
        for row in range(24):
            for column in range(24):
                total += pixel_likelihood(b, row, column)
        assert float(likelihood[b]) == pytest.approx(total, rel=1e-9)


def test_parts_are_a_mixture_of_votes():
    pose = affine_pose(randn(2, 3, 6))
    objects = Objects(
        pose=affine_pose(randn(2, 4, 6)),
        vote=affine_pose(randn(2, 4, 3, 6)),
        spread=randn(2, 4, 3).exp(),
        log_vote_presence=-randn(2, 4, 3).exp(),
        dynamic=randn(2, 4, 3, 6),
    )
    likelihood, posterior = pose_likelihood(pose, objects)
    assert_close(posterior.sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))
    for b in range(2):
        for m in range(3):
            joint = []
            for k in range(4):
                vote = objects.vote[b, k, m].numpy()
                spread = float(objects.spread[b, k, m])
                log_density = log_normal(pose[b, m].numpy(), vote, spread).sum()
                log_weight = float(objects.log_vote_presence[b, k, m])
                joint.append(math.exp(log_weight + log_density))
            joint.append(math.exp(2 * (-2 * math.log(10))))  # none of them
            assert float(likelihood[b, m]) == pytest.approx(math.log(sum(joint)))
            np.testing.assert_allclose(posterior[b, m], np.array(joint) / sum(joint))
    np.testing.assert_allclose(objects.presence, objects.log_vote_presence.exp().amax(dim=-1))


def test_votes_are_products_of_poses():
    m = 3
    capsules = small_scae().double().object_capsules
    x = randn(2, 4, 8)
    noise = Noise(randn(2, m), randn(2, 4), randn(2, 4, m))
    with torch.no_grad():
        capsules.output_bias.normal_()
        objects = capsules.decode(x, noise)
    weight = [p.detach().numpy() for p in capsules.weight]
    bias = [p.detach().numpy() for p in capsules.bias]
    for b in range(2):
        for k in range(4):
            h = np.maximum(x[b, k].numpy() @ weight[0][k] + bias[0][k], 0)
            h = h @ weight[1][k] + bias[1][k]
            extended = np.vstack([weight[2][k], bias[2][k]])  # the paper's code appends a one
            h = np.maximum(np.append(h, 1) @ extended, 0)
            outputs = h @ weight[3][k]
            dynamic = outputs[: 6 * m].reshape(m, 6)
            rest = outputs[6 * m :] + capsules.output_bias[k].detach().numpy()
            viewed = pose_matrix(rest[:6])
            np.testing.assert_allclose(full_matrix(objects.pose[b, k]), viewed, atol=1e-9)
            present = sigmoid(rest[6] + float(noise.objects[b, k]))
            for part in range(m):
                relation = pose_matrix(dynamic[part] + capsules.static[k, part].detach().numpy())
                vote = full_matrix(objects.vote[b, k, part])
                np.testing.assert_allclose(vote, viewed @ relation, atol=1e-9)
                in_object = sigmoid(rest[7 + part] + float(noise.votes[b, k, part]))
                weight_of_vote = float(objects.log_vote_presence[b, k, part].exp())
                assert weight_of_vote == pytest.approx(present * in_object)
                spread = math.log1p(math.exp(rest[7 + m + part] + 0.5)) + 0.01
                assert float(objects.spread[b, k, part]) == pytest.approx(spread)


def test_published_size():
    """40 parts and 32 objects on 40x40, counted by the paper's shapes."""
    with torch.device("meta"):
        model = SCAE()
        explained = model.explain(torch.empty(1, 1, 40, 40))
    convolutions = 128 * 9 + 128 + 3 * (128 * 128 * 9 + 128)
    head = 128 * 40 * 24 + 40 * 24  # 6 + 16 + 1 numbers and a map of attention
    drawing = 40 * 2 * 121 + (16 * 32 + 32) + (32 + 1) + 2
    block = 16 * 48 + 48 + 16 * 16 + 16 + 4 * 16 + (16 * 32 + 32) + (32 * 16 + 16)
    shared = 144 * 16 + 16 + 3 * block + 16 * 256 + 256 + 256 * 256 + 256 * 256 + 256 + 32 * 256
    capsule = 256 * 128 + 128 + 128 * 32 + 32 + 33 * 128 + 128 * 327 + (327 - 240) + 240
    parts = convolutions + 25 * 128 + head + drawing
    assert sum(p.numel() for p in model.part_capsules.parameters()) == parts
    assert sum(p.numel() for p in model.object_capsules.parameters()) == shared + 32 * capsule
    assert explained.drawings.shape == (1, 41, 1, 40, 40)


def test_the_gradient_of_the_objects_reaches_features_alone():
    model = small_scae()
    model.explain(torch.rand(2, 1, 24, 24)).pose_log_likelihood.mean().backward()
    assert model.part_capsules.template.grad is None  # templates, poses and presences are targets
    gradient = model.part_capsules.head.weight.grad.unflatten(0, (3, -1))
    assert not gradient[:, :6].any()
    assert gradient[:, 6:22].any()
    assert not gradient[:, 22].any()


def test_an_absent_part_is_not_attended():
    query, key, value = torch.randn(3, 2, 4, 6)
    logit = torch.tensor([0.3, -1e9, 0.1, -1e9]).expand(2, 4).clone()
    logit.requires_grad_()
    outputs = attend(query, key, value, logit)
    expected = attend(query, key[:, ::2], value[:, ::2], logit[:, ::2])
    assert_close(outputs, expected)
    outputs.sum().backward()
    assert logit.grad.isfinite().all()


def test_absent_parts_are_finite_in_half_precision():
    """A mask of 1e32 would be infinite."""
    query, key, value = torch.randn(3, 2, 4, 6, dtype=torch.bfloat16)
    logit = torch.full((2, 4), -1e4, dtype=torch.bfloat16)
    assert attend(query, key, value, logit).isfinite().all()


def test_attention_is_in_full_precision():
    """Products of these numbers are infinite in float16."""
    query, key, value = 1e3 * torch.randn(3, 2, 4, 6)
    logit = torch.randn(2, 4)
    expected = attend(query, key, value, logit)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(attend(query, key, value, logit), expected)


def test_noise_is_an_argument():
    model = small_scae()
    images = torch.rand(2, 1, 24, 24)
    assert torch.equal(model.train()(images), model.eval()(images))
    noise = Noise(
        parts=torch.full((2, 3), 2.0),
        objects=torch.full((2, 4), -2.0),
        votes=torch.zeros(2, 4, 3),
    )
    quiet = model.explain(images)
    noisy = model.explain(images, noise)
    assert_close(noisy.parts.presence_logit, quiet.parts.presence_logit + 2)
    assert (noisy.objects.presence < quiet.objects.presence).all()


@pytest.mark.parametrize("pixel", [0.0, 1.0])
def test_gradients_stay_finite_for_extreme_images_and_weights(pixel):
    model = small_scae()
    with torch.no_grad():
        model.part_capsules.head.bias.mul_(1e4)
        model.object_capsules.output_bias.fill_(-50.0)
    explained = model.explain(torch.full((1, 1, 24, 24), pixel))
    likelihood = explained.pixel_log_likelihood + explained.pose_log_likelihood
    (likelihood.sum() + explained.objects.presence.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
