import pytest

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import compare_viewpoints
from torchcaps.evaluation.robustness.viewpoints import match_familiar

FAMILIAR = [0.5, 0.7, 0.9, 0.85]
NOVEL = [0.4, 0.5, 0.8, 0.78]


@pytest.mark.parametrize(
    ("target", "novel"),
    [
        (0.8, 0.65),  # between epochs
        (0.74, 0.5 + 0.3 * 0.2),
        (0.7, 0.5),  # in an epoch
        (0.3, None),  # never
        (0.95, None),
    ],
)
def test_novel_accuracy_lies_on_the_line_between_epochs(target, novel):
    assert match_familiar(FAMILIAR, NOVEL, target).interpolated == pytest.approx(novel)


def test_the_nearest_epoch_is_kept_too():
    matched = match_familiar(FAMILIAR, NOVEL, 0.74)
    assert (matched.epoch, matched.familiar, matched.novel) == (1, 0.7, 0.5)


def test_a_target_crossed_downwards():
    assert match_familiar([0.9, 0.5], [0.8, 0.4], 0.7).interpolated == pytest.approx(0.6)


def test_the_published_gap():
    """Hinton et al. 2018, table 2: 3.7 % familiar error of both, 20 % and 13.5 % novel."""
    comparison = compare_viewpoints(([0.963], [0.865]), ([0.963], [0.8]))
    assert comparison.gain == pytest.approx(0.065)
    assert comparison.gap_closed == pytest.approx((20 - 13.5) / (20 - 3.7))
    assert comparison.interpolated
    assert "gains +6.5 points on novel ones" in comparison.verdict


def test_models_meet_at_the_lower_of_their_best():
    comparison = compare_viewpoints((FAMILIAR, NOVEL), ([0.6, 0.8], [0.3, 0.6]))
    assert comparison.target == 0.8
    assert comparison.gain == pytest.approx(0.65 - 0.6)
    assert comparison.gap_closed == pytest.approx(0.05 / 0.2)


def test_the_gap_is_measured_at_the_target_between_epochs():
    comparison = compare_viewpoints((FAMILIAR, NOVEL), ([0.6, 0.95], [0.3, 0.6]))
    baseline = 0.3 + 0.3 * 0.3 / 0.35
    assert comparison.second.familiar == 0.95
    assert comparison.second.novel_at_target == pytest.approx(baseline)
    assert comparison.gap_closed == pytest.approx((0.8 - baseline) / (0.9 - baseline))


def test_without_a_crossing_the_nearest_epochs_are_compared():
    comparison = compare_viewpoints(([0.9, 0.95], [0.7, 0.8]), ([0.6], [0.6]))
    assert not comparison.interpolated
    assert comparison.gain == pytest.approx(0.7 - 0.6)
    assert comparison.gap_closed is None  # the baseline loses nothing


def test_the_loss_of_a_baseline_above_the_target_is_its_own():
    comparison = compare_viewpoints(([0.6], [0.55]), ([0.9, 0.95], [0.5, 0.6]))
    assert comparison.second.interpolated is None
    assert comparison.gap_closed == pytest.approx((0.55 - 0.5) / (0.9 - 0.5))


@pytest.mark.parametrize(
    ("familiar", "novel", "message"),
    [
        ([], [], "number of familiar accuracies: expected at least 1"),
        ([0.5, 0.6], [0.5], "novel: expected 2 epochs"),
        ([50.0], [0.5], "familiar: expected between 0 and 1, got 50.0"),
        ([0.5], [float("nan")], "novel: expected between 0 and 1, got nan"),
    ],
)
def test_curves_that_do_not_fit(familiar, novel, message):
    with pytest.raises(ArgumentError, match=message):
        match_familiar(familiar, novel, 0.5)
