import json
from statistics import NormalDist

import pytest
import torch

from torchcaps.evaluation import compare_answers, mcnemar, smallest_visible
from torchcaps.evaluation.comparison.compare import format_points


def answers(only_first, only_second, n):
    """Two models of which one alone is right on so many of n images."""
    first, second = torch.ones(2, n, dtype=torch.bool)
    second[:only_first] = False
    first[only_first : only_first + only_second] = False
    return first, second


def test_only_images_on_which_models_differ_count():
    first = torch.tensor([1, 1, 1, 1, 0, 0, 1, 0], dtype=torch.bool)
    second = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0], dtype=torch.bool)
    comparison = compare_answers(first, second)
    assert (comparison.first, comparison.second) == (0.625, 0.375)
    assert (comparison.only_first, comparison.only_second) == (3, 1)
    assert comparison.difference == pytest.approx(0.25)
    assert comparison.p_value == pytest.approx(mcnemar(3, 1))
    low, high = comparison.interval
    assert low < 0.25 < high
    assert comparison.outcome == "undecided"


@pytest.mark.parametrize(
    ("counts", "outcome", "words"),
    [
        ((0, 0, 256), "undecided", ["same answers", "nor show", "p = 0.077", "3.1 points"]),
        ((0, 0, 1000), "equivalent", ["within 1 point (the same answers", "p = 0.001 for"]),
        ((3, 4, 1000), "equivalent", ["within 1 point", "from -0.60 to +0.40, p = 0.0059 for"]),
        ((40, 9, 1000), "first", ["first model is better", "+3.10 points", "p = 9.3e-06)"]),
        ((2, 20, 10_000), "second", ["second model is better", "by less than 1 point"]),
        ((1, 0, 4), "undecided", ["+25.00 points", "no difference would be seen"]),
    ],
)
def test_there_are_three_answers_and_each_gives_its_figures(counts, outcome, words):
    comparison = compare_answers(*answers(*counts))
    assert comparison.outcome == outcome
    for word in words:
        assert word in comparison.verdict
    document = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert document["outcome"] == outcome
    assert document["verdict"] == comparison.verdict
    assert document["margin"] == 0.01


def test_equal_answers_name_what_their_p_value_allows_for():
    first, second = answers(0, 0, 1000)
    assert "for a larger gap, adjusted for 3 tests)" in (
        compare_answers(first, second, adjust=[0.5, 0.9]).verdict
    )
    grouped = compare_answers(first, second, groups=torch.arange(1000) // 2)
    assert "for a larger gap, by 500 groups of images)" in grouped.verdict


@pytest.mark.parametrize(
    ("difference", "words"),
    [(0.01, "1 point"), (0.031, "3.1 points"), (0.998, "100 points"), (1e-7, "0.00001 points")],
)
def test_points_are_written_without_an_exponent(difference, words):
    assert format_points(difference) == words


def test_whether_two_models_pass_as_equal_depends_on_the_margin():
    first, second = answers(6, 4, 400)
    assert compare_answers(first, second).outcome == "undecided"
    wide = compare_answers(first, second, margin=0.03)
    assert wide.outcome == "equivalent"
    assert "within 3 points" in wide.verdict
    assert "within 0.5 points" in compare_answers(first, second, margin=0.005).verdict


def test_the_interval_is_that_of_the_difference():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 4000, generator=generator) < torch.tensor([[0.9], [0.8]])
    comparison = compare_answers(first, second)
    low, high = comparison.interval
    deviation = ((0.9 * 0.1 + 0.8 * 0.2) / 4000) ** 0.5
    discordant = comparison.only_first + comparison.only_second
    normal = NormalDist()
    quantiles = normal.inv_cdf(0.95) + normal.inv_cdf(0.9)
    assert comparison.smallest_margin == pytest.approx(quantiles * (discordant + 4) ** 0.5 / 4000)
    assert comparison.visible == smallest_visible(4000, discordant / 4000)
    few = (first[:200], second[:200])
    family = compare_answers(*few, adjust=[0.9, 0.8])
    single = compare_answers(*few)
    assert 1e-6 < single.p_value < single.equivalence_p
    assert family.p_value == pytest.approx(3 * single.p_value)
    assert family.equivalence_p == pytest.approx(min(1, 3 * single.equivalence_p))
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.1)
    assert comparison == compare_answers(first, second)
    assert compare_answers(second, first).outcome == "second"
