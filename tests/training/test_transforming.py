"""Pairs of views and the training of a transforming auto-encoder."""

from __future__ import annotations

import math

import pytest
import torch

from torchcaps.errors import TrainingError
from torchcaps.evaluation import evaluate_transforming
from torchcaps.functional import move_by_matrix
from torchcaps.models import TransformingAutoencoder
from torchcaps.training import train_transforming, transformed_pairs


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def dots(size=11, count=6):
    """Images with one bright pixel in the middle."""
    images = torch.zeros(count, 1, size, size)
    images[:, :, size // 2, size // 2] = 1
    return images


def blobs(count=400, size=12):
    """Round blobs somewhere near the middle."""
    centres = size / 2 + 4 * torch.rand(count, 2, generator=generator(1)) - 2
    y, x = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    distance = (x - centres[:, :1, None]) ** 2 + (y - centres[:, 1:, None]) ** 2
    return torch.exp(-distance / 3).unsqueeze(1)


def brightest(image):
    """(x, y) of the brightest pixel, from the left upper corner."""
    row, column = divmod(int(image.flatten().argmax()), image.shape[-1])
    return column, row


def test_shifts_are_those_between_the_bright_pixels():
    pairs = transformed_pairs(dots(), shift=2, generator=generator())
    assert pairs.transformation.shape == (6, 2)
    for source, target, (dx, dy) in zip(*pairs, strict=True):
        (x0, y0), (x1, y1) = brightest(source), brightest(target)
        assert (x1 - x0, y1 - y0) == (dx, dy)
        assert max(abs(v - 5) for v in (x0, y0, x1, y1)) <= 2
    assert pairs.source.sum(dim=(1, 2, 3)).tolist() == pytest.approx([1.0] * 6, abs=1e-4)


def test_affine_pairs_are_two_views_with_the_matrix_between_them():
    images = blobs(5, 20)
    pairs = transformed_pairs(images, "affine", generator=generator())
    assert pairs.transformation.shape == (5, 3, 3)
    torch.testing.assert_close(pairs.transformation[:, 2], torch.tensor([0.0, 0.0, 1.0]).expand(5, 3))
    again = move_by_matrix(pairs.source, pairs.transformation)
    assert (again - pairs.target).square().mean() < 0.1 * (pairs.source - pairs.target).square().mean()
    determinants = torch.linalg.det(pairs.transformation)  # shear and rotation leave areas as they are
    assert (determinants > (0.85 / 1.15) ** 2 - 1e-4).all()
    assert (determinants < (1.15 / 0.85) ** 2 + 1e-4).all()
    for options, right in (
        ({"zoom": 0, "shear": 0}, lambda t: t @ t.mT),  # rotations: orthogonal
        ({"zoom": 0, "degrees": 0}, lambda t: (t - torch.eye(2)) @ (t - torch.eye(2)) + torch.eye(2)),  # shears
    ):
        matrices = transformed_pairs(images, "affine", generator=generator(), **options).transformation[:, :2, :2]
        torch.testing.assert_close(right(matrices), torch.eye(2).expand(5, 2, 2))
        assert (matrices - torch.eye(2)).abs().max() > 0.02
        assert matrices[:, 0, 1].abs().max() < math.sin(math.radians(40)) + 1e-5
    assert not matrices[:, 1, 0].any()  # sheared rows stay rows


def test_pairs_repeat_by_seed():
    first, second = (transformed_pairs(blobs(5), "affine", generator=generator(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_short_run_finds_where_blobs_are():
    torch.manual_seed(0)
    model = TransformingAutoencoder(1, 12, capsules=3, recognition=20, generation=20)
    losses = train_transforming(model, blobs(), epochs=30, batch_size=32, lr=1e-2)
    assert losses[-1] < 0.3 * losses[0]
    found = evaluate_transforming(model, transformed_pairs(blobs(100), generator=generator(9)))
    assert min(found.correlation.values()) > 0.95
    best = found.presence.argmax()
    assert found.capsule_slope[best].tolist() == pytest.approx([1, 1], abs=0.1)
    assert not model.training


def test_a_run_repeats_by_seed():
    outcomes = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = TransformingAutoencoder(1, 12, capsules=2, recognition=3, generation=3)
        told = []
        losses = train_transforming(
            model, blobs(20), epochs=2, seed=seed, listener=lambda e, v, told=told: told.append((e, v))
        )
        assert told == list(enumerate(losses, start=1))
        outcomes.append((losses, model.state_dict()))
    assert outcomes[0][0] == outcomes[1][0] != outcomes[2][0]
    assert all(torch.equal(a, b) for a, b in zip(outcomes[0][1].values(), outcomes[1][1].values(), strict=True))


def test_wrong_settings():
    model = TransformingAutoencoder(1, 12, capsules=1)
    for setting, complaint in (({"epochs": 0}, "epochs: expected at least 1"), ({"lr": 0.0}, "lr: expected a number"),
                               ({"shift": -1}, "shift: expected at least 0"),
                               ({"zoom": 1.0}, "zoom: expected between 0 and 0.9, got 1.0")):  # fmt: skip
        with pytest.raises(ValueError, match=complaint):
            train_transforming(model, blobs(4), **setting)
    with pytest.raises(ValueError, match="unknown pose 'shift'"):
        transformed_pairs(blobs(2), "shift", generator=generator())
    with pytest.raises(ValueError, match="number of images: expected at least 1, got 0"):
        train_transforming(model, blobs(4)[:0])
    with torch.no_grad():
        model.bias["draw"].fill_(math.inf)
    with pytest.raises(TrainingError, match="the loss became .* in epoch 1"):
        train_transforming(model, blobs(4), epochs=1)
