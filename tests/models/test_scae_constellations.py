"""Constellations (section 2.1 of the paper): moving shapes of points are told apart without labels.

Two squares and a triangle, each turned, sized and placed at random, and each absent from a third of
the images. A capsule has one pose, so that it can explain the points of one shape, and not those of
two.
"""

import math

import pytest
import torch

from torchcaps.models.scae import NOISE_RANGE, Noise, ObjectCapsules, pose_likelihood

SQUARE = ((-1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (1.0, -1.0))
TRIANGLE = ((0.0, -1.2), (1.0, 0.6), (-1.0, 0.6))
POINTS = torch.tensor(SQUARE + SQUARE + TRIANGLE)
SHAPE_OF_POINT = torch.tensor([0] * 4 + [1] * 4 + [2] * 3)
NUM_POINTS = 11
NUM_SHAPES = 3
STEPS = 1200
BATCH = 64
DYNAMIC = 1000.0  # with the weight of 10 an object bends, and explains points of all three


def sample_constellations(count, generator):
    """Poses of points `[n, 11, 6]`, turned and sized with their shape, and logits of presence."""
    turn, size, x, y = torch.rand(4, count, NUM_SHAPES, generator=generator)
    turn = (turn - 0.5) * math.pi
    size = 0.15 + 0.2 * size
    cos = (size * turn.cos())[:, SHAPE_OF_POINT]
    sin = (size * turn.sin())[:, SHAPE_OF_POINT]
    center_x = 1.2 * (x - 0.5)[:, SHAPE_OF_POINT]
    center_y = 1.2 * (y - 0.5)[:, SHAPE_OF_POINT]
    px, py = POINTS.T
    place_x = center_x + cos * px - sin * py
    place_y = center_y + sin * px + cos * py
    pose = torch.stack([cos, -sin, place_x, sin, cos, place_y], dim=-1)
    is_present = torch.rand(count, NUM_SHAPES, generator=generator) > 1 / 3
    return pose, torch.where(is_present, 4.0, -4.0)[:, SHAPE_OF_POINT]


def sample_noise(generator):
    shapes = ((BATCH, NUM_POINTS), (BATCH, NUM_SHAPES), (BATCH, NUM_SHAPES, NUM_POINTS))
    return Noise(
        *(NOISE_RANGE * (torch.rand(shape, generator=generator) - 0.5) for shape in shapes)
    )


def explain(capsules, pose, logit, noise=None):
    presence = logit.sigmoid()
    names = torch.eye(NUM_POINTS).expand(len(pose), -1, -1)
    members = torch.cat([pose, presence.unsqueeze(-1), names], dim=-1)
    objects = capsules(members, logit, noise)
    log_density, posterior = pose_likelihood(pose, objects)
    return objects, (presence * log_density).sum(dim=1), posterior


@pytest.mark.slow
def test_shapes_are_told_apart():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    capsules = ObjectCapsules(7 + NUM_POINTS, NUM_POINTS, NUM_SHAPES, 32)
    optimizer = torch.optim.Adam(capsules.parameters(), 3e-3)
    for _ in range(STEPS):
        pose, logit = sample_constellations(BATCH, generator)
        objects, likelihood, _ = explain(capsules, pose, logit, sample_noise(generator))
        penalty = DYNAMIC * 0.5 * objects.dynamic.square().sum() / BATCH
        loss = -likelihood.mean() + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    pose, logit = sample_constellations(500, generator)
    with torch.no_grad():
        _, _, posterior = explain(capsules, pose, logit)
    explaining = posterior[..., :-1].argmax(dim=-1)
    counts = torch.zeros(NUM_SHAPES, NUM_SHAPES)
    for shape in range(NUM_SHAPES):
        for k in range(NUM_SHAPES):
            is_explained = (logit > 0) & (explaining == k)
            counts[shape, k] = is_explained[:, shape == SHAPE_OF_POINT].sum()
    assert counts.amax(dim=1).sum() / counts.sum() > 0.65  # 0.41 where objects bend freely
