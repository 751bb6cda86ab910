from __future__ import annotations

import pytest

from torchcaps.evaluation import compare_viewpoints
from torchcaps.evaluation.robustness.viewpoints import match_familiar

FAMILIAR, NOVEL = [0.5, 0.7, 0.9, 0.85], [0.4, 0.5, 0.8, 0.78]


def test_novel_accuracy_lies_on_the_line_between_epochs() -> None:
    found = match_familiar(FAMILIAR, NOVEL, 0.8)
    assert found.interpolated == pytest.approx(0.65)
    found = match_familiar(FAMILIAR, NOVEL, 0.74)
    assert found.interpolated == pytest.approx(0.5 + 0.3 * 0.2)
    assert (found.epoch, found.familiar, found.novel) == (1, 0.7, 0.5)


def test_a_target_that_an_epoch_meets() -> None:
    assert match_familiar(FAMILIAR, NOVEL, 0.7).interpolated == 0.5


def test_a_target_crossed_downwards() -> None:
    assert match_familiar([0.9, 0.5], [0.8, 0.4], 0.7).interpolated == pytest.approx(0.6)


@pytest.mark.parametrize("target", [0.3, 0.95])
def test_a_target_that_is_never_crossed(target: float) -> None:
    assert match_familiar(FAMILIAR, NOVEL, target).interpolated is None


def test_the_published_gap() -> None:
    """Hinton et al. 2018, table 2: 3.7 % familiar error of both, 20 % and 13.5 % novel."""
    found = compare_viewpoints(([0.963], [0.865]), ([0.963], [0.8]))
    assert found.gain == pytest.approx(0.065)
    assert found.gap_closed == pytest.approx((20 - 13.5) / (20 - 3.7))
    assert found.interpolated
    assert "better on novel ones by 6.5 points" in found.verdict


def test_models_meet_at_the_lower_of_their_best() -> None:
    found = compare_viewpoints((FAMILIAR, NOVEL), ([0.6, 0.8], [0.3, 0.6]))
    assert found.target == 0.8
    assert found.gain == pytest.approx(0.65 - 0.6)
    assert found.gap_closed == pytest.approx(0.05 / 0.2)


def test_without_a_crossing_the_nearest_epochs_are_compared() -> None:
    found = compare_viewpoints(([0.9, 0.95], [0.7, 0.8]), ([0.6], [0.6]))
    assert not found.interpolated
    assert found.gain == pytest.approx(0.7 - 0.6)
    assert found.gap_closed is None  # the baseline loses nothing


@pytest.mark.parametrize(
    ("familiar", "novel", "message"),
    [
        ([], [], "number of familiar accuracies: expected at least 1, got 0"),
        ([0.5, 0.6], [0.5], "novel: expected 2 epochs, as in familiar, got 1"),
        ([50.0], [0.5], r"familiar: expected accuracies in \[0, 1\], got 50.0"),
        ([0.5], [float("nan")], r"novel: expected accuracies in \[0, 1\], got nan"),
    ],
)
def test_curves_that_do_not_fit(familiar, novel, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        match_familiar(familiar, novel, 0.5)
