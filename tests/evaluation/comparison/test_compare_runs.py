"""Methods whose true accuracies are known, because their answers are simulated."""

import json
from statistics import variance

import numpy as np
import pytest
import torch
from scipy.stats import t

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import compare_runs, holm

# Standard deviations: how much images differ, and how much single answers are left to chance.
HARDNESS = 1.0
CHANCE = 0.7


def simulate_runs(num_runs, n, lead=0.0, by_seed=0.3):
    """Answers of two methods: right where skill + seed + chance exceeds an image's hardness."""
    rng = np.random.default_rng(3)
    hardness = rng.normal(0, HARDNESS, n)
    answers = []
    for gain in (lead, 0.0):
        skill = (
            2 + gain + rng.normal(0, by_seed, (num_runs, 1)) + rng.normal(0, CHANCE, (num_runs, n))
        )
        answers.append(torch.from_numpy(skill > hardness))
    return answers


def sources_of_variance(first, second, group, paired):
    """Variance of the difference by groups; of each method's (or pair's) runs, and by chance."""
    n = first.shape[1]
    count = group.max() + 1
    is_member = group == np.arange(count)[:, None]
    methods = [first - second] if paired else [first, second]
    deviations = [(runs - runs.mean(axis=1, keepdims=True)) @ is_member.T for runs in methods]
    # Deviations of a group from the mean of its run, averaged over runs.
    by_image = [runs.mean(axis=0) for runs in deviations]
    difference = by_image[0] if paired else by_image[0] - by_image[1]
    images = (np.sum(difference**2) * count / (count - 1) + 4) / n**2
    seeds = [variance(runs.mean(axis=1).tolist()) for runs in methods]
    chance = [np.var(runs, axis=0, ddof=1).sum() for runs in deviations]
    return images, seeds, [squares * count / (count - 1) / n**2 for squares in chance]


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("num_groups", [None, 200])
def test_every_figure_by_formulas_of_its_own(paired, num_groups):
    num_runs = 4
    answers = simulate_runs(num_runs, 300, lead=0.4)
    first, second = (runs.double().numpy() for runs in answers)
    group = np.arange(300) % (num_groups or 300)  # of one or two images each
    images, seeds, chance = sources_of_variance(first, second, group, paired)
    error = (images + max(0, (sum(seeds) - sum(chance)) / num_runs)) ** 0.5
    pooled = sum(seeds) / len(seeds)
    terms = sum((max(seed, pooled) / num_runs) ** 2 / (num_runs - 1) for seed in seeds)
    units = 300**2 / (np.bincount(group) ** 2).sum()
    degrees = max(error**4 / (images**2 / (units - 1) + terms), num_runs - 1)
    difference = first.mean() - second.mean()
    p_value = 2 * t.sf(abs(difference) / error, degrees)
    gap = t.sf((0.1 - difference) / error, degrees)
    low, high = t.interval(0.95, degrees, difference, error)
    visible = (t.ppf(0.975, degrees) + t.ppf(0.8, degrees)) * error

    groups = None if num_groups is None else group
    options = {"paired": paired, "groups": groups, "margin": 0.1}
    comparison = compare_runs(*answers, **options)
    family = compare_runs(*answers, **options, adjust=[p_value / 2, 0.9])
    assert comparison.difference == pytest.approx(difference)
    assert comparison.interval == family.interval == pytest.approx((low, high))
    assert (comparison.p_value, comparison.unadjusted_p) == pytest.approx((p_value, p_value))
    assert comparison.equivalence_p == pytest.approx(gap)
    assert comparison.visible == pytest.approx(visible)
    smallest_margin = (t.ppf(0.95, degrees) + t.ppf(0.9, degrees)) * error
    assert comparison.smallest_margin == pytest.approx(smallest_margin)
    # The second smallest of three p-values counts twice by Holm, an equivalence three times.
    assert family.p_value == pytest.approx(min(1, max(2 * p_value, 3 * p_value / 2)))
    assert family.equivalence_p == pytest.approx(min(1, 3 * gap))
    assert (family.unadjusted_p, family.family) == (pytest.approx(p_value), 3)
    assert comparison.num_groups == num_groups


def test_runs_that_agree_more_than_by_chance_leave_the_variance_of_images():
    first = ~torch.eye(40, dtype=torch.bool).view(4, 10, 40).any(dim=1)  # each misses ten others
    second = first.roll(5, dims=1)
    comparison = compare_runs(first, second)
    group = np.arange(40)
    answers = first.double().numpy(), second.double().numpy()
    images, seeds, chance = sources_of_variance(*answers, group, paired=False)
    assert seeds == [0.0, 0.0] < chance
    low, high = comparison.interval
    widest = t.interval(0.95, 3, 0.0, images**0.5)[1]  # four runs leave three degrees of freedom
    narrowest = t.interval(0.95, 39, 0.0, images**0.5)[1]
    assert narrowest <= (high - low) / 2 * (1 + 1e-9)
    assert (high - low) / 2 <= widest


def test_the_same_answers_are_equivalent_where_there_are_enough_images():
    correct = torch.ones(3, 1000, dtype=torch.bool)
    assert compare_runs(correct, correct).outcome == "equivalent"
    on_few_images = compare_runs(correct[:, :100], correct[:, :100])
    assert on_few_images.outcome == "undecided"
    assert on_few_images.interval[0] < 0 < on_few_images.interval[1]
    assert "only a difference of" in on_few_images.verdict


def test_figures_verdict_and_table_of_a_clear_difference():
    first, second = simulate_runs(4, 2000, lead=1.0, by_seed=0.02)
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
        ((3, 8), (2, 8), {"paired": True}, "second: expected 3 runs"),
        ((3, 8), (3, 8), {"margin": 0}, "margin: expected"),
        ((3, 8), (3, 8), {"groups": [1, 2]}, "groups: expected one label for each of 8 images"),
        ((3, 8), (3, 8), {"groups": ["a"] * 8}, "groups: expected two groups or more, got 1"),
        ((3, 8), (3, 8), {"adjust": [1.2]}, "p_values: expected"),
    ],
)
def test_arguments_that_do_not_fit(first, second, options, message):
    with pytest.raises(ArgumentError, match=message):
        compare_runs(torch.ones(first).bool(), torch.ones(second).bool(), **options)


def test_p_values_are_adjusted_as_by_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
