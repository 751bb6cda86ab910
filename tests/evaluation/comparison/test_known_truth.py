"""Two methods whose true accuracies are known: how often is a claim of `compare_runs` false?

`pytest -m slow -s tests/evaluation/comparison/test_known_truth.py` prints the figures.
"""

from statistics import NormalDist

import numpy as np
import pytest
import torch

from torchcaps.evaluation import compare_runs

TRIES = 2000
NORMAL = NormalDist()

# Standard deviations of what decides an answer: the group and the image, which all runs share;
# what a method finds hard, by group; and the skill of a run, over all, by group and by image.
SKILLS = {"group": 1.0, "image": 1.0, "method": 0.4, "run": 0.1, "run_group": 0.2, "chance": 0.7}


def deviation(skills):
    return sum(skill**2 for skill in skills.values()) ** 0.5


def draw_answers(rng, shape, num_runs, accuracies, skills):
    """Booleans `[runs, groups * views]` of each method."""
    num_groups = shape[0]
    shared = skills["group"] * rng.standard_normal((num_groups, 1))
    shared = shared + skills["image"] * rng.standard_normal(shape)
    methods = []
    for count, accuracy in zip(num_runs, accuracies, strict=True):
        skill = NORMAL.inv_cdf(accuracy) * deviation(skills)
        skill = skill + shared + skills["method"] * rng.standard_normal((num_groups, 1))
        skill = skill + skills["run"] * rng.standard_normal((count, 1, 1))
        skill = skill + skills["run_group"] * rng.standard_normal((count, num_groups, 1))
        skill = skill + skills["chance"] * rng.standard_normal((count, *shape))
        methods.append(torch.from_numpy(skill.reshape(count, -1) > 0))
    return methods


def compare_often(shape, num_runs, accuracies, **changes):
    """The comparisons of many pairs of methods, by groups of `views` images each."""
    rng = np.random.default_rng(0)
    groups = None if shape[1] == 1 else np.repeat(np.arange(shape[0]), shape[1])
    comparisons = []
    for _ in range(TRIES):
        first, second = draw_answers(rng, shape, num_runs, accuracies, SKILLS | changes)
        comparisons.append(compare_runs(first, second, groups=groups))
    return comparisons


@pytest.mark.slow
@pytest.mark.parametrize("num_runs", [(3, 3), (5, 5), (12, 12), (3, 12)])
@pytest.mark.parametrize("accuracies", [(0.9, 0.9), (0.95, 0.9)])
@pytest.mark.parametrize("shape", [(400, 1), (25, 16), (100, 4)])
def test_claims_about_methods_hold(shape, accuracies, num_runs):
    for spread in (0.1, 0.3):
        comparisons = compare_often(shape, num_runs, accuracies, run=spread)
        truth = accuracies[0] - accuracies[1]
        covered = 0
        seen = 0
        for comparison in comparisons:
            low, high = comparison.interval
            covered += low <= truth <= high
            seen += comparison.outcome in ("first", "second")
        coverage = covered / TRIES
        print(f"\n{shape} {accuracies} {num_runs} {spread}: {coverage:.1%} {seen / TRIES:.1%}")
        assert coverage >= 0.93
        if truth == 0:
            assert seen / TRIES <= 0.06


@pytest.mark.slow
def test_images_of_one_toy_are_no_evidence_by_themselves():
    """The same answers without their groups: a false claim in far more than 6 % of tries."""
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(TRIES):
        first, second = draw_answers(rng, (25, 16), (5, 5), (0.9, 0.9), SKILLS)
        seen += compare_runs(first, second).p_value < 0.05
    print(f"\nwithout groups: {seen / TRIES:.1%}")
    assert seen / TRIES > 0.1


def seeds_needed(difference, first, second, **options):
    return compare_runs(first, second, margin=difference, **options).seeds_needed


def test_seeds_needed_are_enough_and_no_more():
    rng = np.random.default_rng(0)
    first, second = draw_answers(rng, (4000, 1), (12, 12), (0.9, 0.9), SKILLS | {"run": 0.3})
    counts = [seeds_needed(difference, first, second) for difference in (0.05, 0.03, 0.02)]
    assert counts == sorted(counts)
    assert counts[0] < counts[2]
    assert seeds_needed(0.001, first, second) is None
    toys = np.arange(4000) // 500
    first, second = draw_answers(rng, (8, 500), (12, 12), (0.9, 0.9), SKILLS)
    assert seeds_needed(0.02, first, second, groups=toys) is None
    assert seeds_needed(0.02, first, second) is not None
