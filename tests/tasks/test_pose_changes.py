import json
import math

import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.models import TransformedPairs, TransformingAutoencoder
from torchcaps.tasks import evaluate_transforming, pose_changes
from torchcaps.types import Capsules

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(40, 1, 4, 4, generator=GENERATOR)


class KnownPoses(TransformingAutoencoder):
    """Looks the pose of each image up by its first pixel, which is its number.

    Capsule 2 has the negative pose, and capsule 3 is absent.
    """

    def __init__(self, poses, kind="translation"):
        super().__init__(1, 4, capsules=3, pose=kind)
        self.poses = poses

    def capsules(self, images):
        poses = self.poses[images[:, 0, 0, 0].round().long()]
        pose = torch.stack([poses, -poses, poses * 5], dim=1)
        presence = torch.tensor([0.8, 0.2, 0.0]).expand(len(images), 3)
        return Capsules(pose, presence)


def numbered(first, count):
    images = IMAGES[:count].clone()
    images[:, 0, 0, 0] = torch.arange(first, first + count).float()
    return images


def test_figures_of_shifts(monkeypatch):
    monkeypatch.setattr(pose_changes, "BATCH", 7)
    shifts = torch.randn(40, 2, generator=GENERATOR)
    origin = torch.randn(40, 2, generator=GENERATOR)
    model = KnownPoses(torch.cat([origin, origin + shifts]))
    evaluation = evaluate_transforming(
        model, TransformedPairs(numbered(0, 40), numbered(40, 40), shifts)
    )
    assert_close(evaluation.capsule_correlation[:2], torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    assert_close(evaluation.capsule_slope[:2], torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    assert evaluation.capsule_correlation[2].isnan().all()
    figures = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert figures["mean_capsule_correlation"] == pytest.approx(0.8 - 0.2)
    share = (0.64 - 0.04) / 0.68
    assert_close(evaluation.predicted, share * shifts)
    spread = 2 * math.sqrt(0.8 * 0.2)  # of slopes 1 and -1 with these parts
    for name in ("dx", "dy"):
        assert figures[f"correlation_{name}"] == pytest.approx(1.0)
        assert figures[f"slope_{name}"] == pytest.approx(share)
        # +1 and -1 squared; the dead capsule has no part.
        assert figures[f"mean_capsule_r2_{name}"] == pytest.approx(1.0)
        assert figures[f"capsule_slope_spread_{name}"] == pytest.approx(spread)
    assert figures["cross_correlation"] == pytest.approx(0.0, abs=1e-6)
    assert (figures["capsules_alive"], figures["presence_change"]) == (2, 0.0)
    assert figures["num_samples"] == 40
    assert evaluation.summary == "correlation of estimated and true dx 1.000, dy 1.000 on 40 pairs"
    heads, rows = evaluation.table()
    assert set(map(len, rows)) == {len(heads)}
    assert ("capsules alive", "2") in rows


def test_a_capsule_that_is_present_and_never_moves_has_no_part():
    class StillCapsule(KnownPoses):
        def capsules(self, images):
            pose, presence = super().capsules(images)
            pose[:, 1] = 3.0
            return Capsules(pose, presence)

    shifts = torch.randn(40, 2, generator=GENERATOR)
    model = StillCapsule(torch.cat([torch.zeros(40, 2), shifts]))
    pairs = TransformedPairs(numbered(0, 40), numbered(40, 40), shifts)
    figures = evaluate_transforming(model, pairs).figures
    assert figures["mean_capsule_correlation"] == pytest.approx(1.0)
    assert figures["capsule_slope_spread_dx"] == pytest.approx(0.0, abs=1e-6)


def test_axes_that_mix_have_a_cross_correlation():
    shifts = torch.randn(40, 2, generator=GENERATOR)
    origin = torch.randn(40, 2, generator=GENERATOR)
    model = KnownPoses(torch.cat([origin, origin + shifts.flip(1)]))
    evaluation = evaluate_transforming(
        model, TransformedPairs(numbered(0, 40), numbered(40, 40), shifts)
    )
    assert evaluation.figures["cross_correlation"] > 0.9


def test_matrices_are_estimated_by_least_squares():
    matrices = torch.eye(3) + 0.3 * torch.randn(40, 3, 3, generator=GENERATOR)
    matrices[:, 2] = torch.tensor([0.0, 0.0, 1.0])
    origin = torch.eye(3) + 0.3 * torch.randn(40, 3, 3, generator=GENERATOR)
    model = KnownPoses(torch.cat([origin, matrices @ origin]).flatten(1), "affine")
    evaluation = evaluate_transforming(
        model, TransformedPairs(numbered(0, 40), numbered(40, 40), matrices)
    )
    assert_close(evaluation.predicted, matrices[:, :2].flatten(1), rtol=1e-3, atol=1e-4)
    assert evaluation.names == ("xx", "xy", "x", "yx", "yy", "y")
    for name in evaluation.names:
        assert evaluation.figures[f"correlation_{name}"] == pytest.approx(1.0)


def test_errors_beside_the_trivial_ones():
    model = TransformingAutoencoder(1, 4, capsules=2)
    source = IMAGES[:20]
    target = IMAGES[20:]
    shifts = torch.ones(20, 2)
    evaluation = evaluate_transforming(model.train(), TransformedPairs(source, target, shifts))
    shifted = torch.zeros_like(source)
    shifted[:, :, 1:, 1:] = source[:, :, :-1, :-1]
    for name, prediction in (
        ("pixel_mse", model(source, shifts)),
        ("copy_mse", source),
        ("mean_mse", target.mean(dim=0)),
        ("moved_mse", shifted),
    ):
        error = (prediction - target).square().mean().item()
        assert evaluation.figures[name] == pytest.approx(error, rel=1e-5), name
    assert model.training
    # Shifts that never change have no correlation.
    assert math.isnan(evaluation.figures["correlation_dx"])
    assert evaluation.to_dict()["correlation_dx"] is None
    assert ("correlation dx", "-") in evaluation.table().rows


def test_too_few_pairs_and_images_of_another_size_are_refused():
    model = TransformingAutoencoder(1, 4, capsules=2)
    with pytest.raises(ArgumentError, match="number of pairs: expected at least 2, got 1"):
        evaluate_transforming(model, TransformedPairs(IMAGES[:1], IMAGES[:1], torch.zeros(1, 2)))
    with pytest.raises(
        ArgumentError, match=r"images: expected \[batch, channels=1, height=4, width=4\], got"
    ):
        big = torch.zeros(2, 1, 5, 5)
        evaluate_transforming(model, TransformedPairs(big, big, torch.zeros(2, 2)))
