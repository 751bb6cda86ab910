"""Methods whose true accuracies are known, because their answers are simulated."""

import json
from statistics import NormalDist

import numpy as np
import pytest
import torch

from torchcaps.evaluation import compare_runs, holm

from ..stubs import refuses

# Standard deviations: how much images differ, and how much single answers are left to chance.
HARDNESS = 1.0
CHANCE = 0.7
CDF = NormalDist().cdf


def simulate_runs(rng, num_runs, n, *, lead=0.0, by_seed, shared=0.0):
    """Answers of two methods: right where skill + seed + chance exceeds an image's hardness."""
    hardness = rng.normal(0, HARDNESS, n)
    pair_skill = rng.normal(0, shared, (num_runs, 1))
    answers = []
    for gain in (lead, 0.0):
        seed_skill = rng.normal(0, by_seed, (num_runs, 1))
        skill = 2 + gain + pair_skill + seed_skill + rng.normal(0, CHANCE, (num_runs, n))
        answers.append(torch.from_numpy(skill > hardness))
    return answers


def true_lead(lead, by_seed, shared=0.0):
    """The true difference of the accuracies."""
    deviation = (HARDNESS**2 + CHANCE**2 + by_seed**2 + shared**2) ** 0.5
    return CDF((2 + lead) / deviation) - CDF(2 / deviation)


def compare_simulated(num_tries, num_runs, n, *, paired=False, margin=0.01, **skills):
    rng = np.random.default_rng(0)
    options = {"paired": paired, "margin": margin}
    comparisons = []
    for _ in range(num_tries):
        first, second = simulate_runs(rng, num_runs, n, **skills)
        comparisons.append(compare_runs(first, second, **options))
    return comparisons


def share_covering(comparisons, difference):
    is_inside = []
    for comparison in comparisons:
        low, high = comparison.interval
        is_inside.append(low <= difference <= high)
    return np.mean(is_inside)


def share_of(comparisons, *outcomes):
    return np.mean([comparison.outcome in outcomes for comparison in comparisons])


def share_equivalent(comparisons):
    return np.mean([comparison.equivalence_p < 0.05 for comparison in comparisons])


def median_visible(comparisons):
    return np.median([comparison.visible or 1 for comparison in comparisons])


@pytest.mark.parametrize(("num_runs", "by_seed"), [(3, 0.03), (3, 0.2), (5, 0.2)])
def test_the_interval_holds_the_truth_in_95_percent(num_runs, by_seed):
    """Where images decide, and where seeds do; three resampled runs would give 80 to 93 %."""
    comparisons = compare_simulated(200, num_runs, 1000, by_seed=by_seed)
    assert 0.92 <= share_covering(comparisons, 0.0) <= 0.995
    assert share_of(comparisons, "first", "second") <= 0.08


@pytest.mark.parametrize("paired", [False, True])
def test_a_true_difference_is_covered_and_seen(paired):
    skills = {"lead": 0.25, "by_seed": 0.05, "shared": 0.2 if paired else 0.0}
    comparisons = compare_simulated(120, 4, 2000, paired=paired, **skills)
    assert 0.91 <= share_covering(comparisons, true_lead(**skills)) <= 0.995
    assert share_of(comparisons, "first") > 0.7
    assert share_of(comparisons, "second") == 0


def test_pairs_see_more_where_seeds_are_shared():
    skills = {"by_seed": 0.02, "shared": 0.3}
    paired = compare_simulated(30, 5, 2000, paired=True, **skills)
    unpaired = compare_simulated(30, 5, 2000, **skills)
    assert median_visible(paired) < 0.8 * median_visible(unpaired)


def test_the_smallest_visible_difference_is_seen_in_four_of_five_tries():
    visible = median_visible(compare_simulated(60, 5, 1000, by_seed=0.05))
    lead = next(k / 1000 for k in range(1000) if true_lead(k / 1000, 0.05) >= visible)
    comparisons = compare_simulated(200, 5, 1000, lead=lead, by_seed=0.05)
    assert 0.7 < share_of(comparisons, "first") < 0.9


def test_equal_methods_pass_as_equal_and_those_a_margin_apart_do_not():
    skills = {"lead": 0.25, "by_seed": 0.03}
    margin = true_lead(**skills)
    equal = compare_simulated(100, 5, 2000, margin=margin, by_seed=0.03)
    assert share_equivalent(equal) > 0.8
    distant = compare_simulated(150, 5, 2000, margin=margin, **skills)
    assert share_equivalent(distant) <= 0.09


def test_seeds_that_vary_widen_the_interval():
    """The same accuracies on average, the same images; only the spread of the runs differs."""

    def runs(mistakes):
        return torch.stack([torch.arange(1000) >= count for count in mistakes])

    widths = []
    for mistakes in ([40, 40, 40], [35, 40, 45], [20, 40, 60]):
        comparison = compare_runs(runs(mistakes), runs([40, 40, 40]))
        assert comparison.difference == pytest.approx(0)
        widths.append(comparison.interval[1] - comparison.interval[0])
    assert widths == sorted(widths)
    assert widths[2] > 3 * widths[0]
    paired = compare_runs(runs([20, 40, 60]), runs([21, 41, 61]), paired=True)
    assert paired.interval[1] < 0.01


def test_more_runs_see_more():
    visible = []
    for num_runs in (2, 3, 6):
        comparisons = compare_simulated(30, num_runs, 1000, by_seed=0.1)
        visible.append(median_visible(comparisons))
    assert visible == sorted(visible, reverse=True)


def test_the_same_answers_are_equivalent_where_there_are_enough_images():
    correct = torch.ones(3, 1000, dtype=torch.bool)
    assert compare_runs(correct, correct).outcome == "equivalent"
    on_few_images = compare_runs(correct[:, :100], correct[:, :100])
    assert on_few_images.outcome == "undecided"
    assert on_few_images.interval[0] < 0 < on_few_images.interval[1]
    assert "only a difference of" in on_few_images.verdict


def test_two_runs_on_two_images_show_nothing():
    correct = torch.tensor([[True, False], [True, True]])
    comparison = compare_runs(correct, correct & correct.flip(0).logical_not())
    assert comparison.visible is None
    assert "no difference would be seen" in comparison.verdict


def test_figures_verdict_and_table_of_a_clear_difference():
    first, second = simulate_runs(np.random.default_rng(3), 4, 2000, lead=1.0, by_seed=0.02)
    comparison = compare_runs(first, second)
    assert comparison == compare_runs(first, second)
    accuracies = first.double().mean(dim=1)
    assert comparison.first == pytest.approx(accuracies.tolist())
    difference = float(accuracies.mean() - second.double().mean())
    assert comparison.difference == pytest.approx(difference)
    assert "first method is better" in comparison.verdict
    assert "second method is better" in compare_runs(second, first).verdict
    assert "by less than 50 points" in compare_runs(first, second, margin=0.5).verdict
    (_, accuracy, runs), _ = comparison.table().rows
    assert accuracy == f"{100 * accuracies.mean():.2f} ± {100 * accuracies.std():.2f} %"
    assert runs.count(",") == 3
    document = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert (document["outcome"], document["paired"]) == ("first", False)


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        ((3, 8), (3, 5), {}, r"second: expected \[runs, n=8\]"),
        ((1, 8), (3, 8), {}, "first: number of runs: expected at least 2"),
        ((3, 1), (3, 1), {}, "number of images: expected at least 2"),
        ((3, 8), (2, 8), {"paired": True}, "second: expected 3 runs"),
        ((3, 8), (3, 8), {"margin": 0}, "margin: expected"),
        ((3, 8), (3, 8), {"groups": [1, 2]}, "groups: expected one label for each of 8 images"),
        ((3, 8), (3, 8), {"groups": ["a"] * 8}, "groups: expected two groups or more, got 1"),
        ((3, 8), (3, 8), {"adjust": [1.2]}, "p_values: expected"),
    ],
)
def test_arguments_that_do_not_fit(first, second, options, message):
    with refuses(message):
        compare_runs(torch.ones(first).bool(), torch.ones(second).bool(), **options)


def test_p_values_are_adjusted_as_by_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
