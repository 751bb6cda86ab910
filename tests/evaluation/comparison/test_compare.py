from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from torchcaps.evaluation import compare_answers, mcnemar


def test_only_images_on_which_models_differ_count() -> None:
    first = torch.tensor([1, 1, 1, 1, 0, 0, 1, 0], dtype=torch.bool)
    second = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0], dtype=torch.bool)
    found = compare_answers(first, second)
    assert (found.first, found.second) == (0.625, 0.375)
    assert (found.only_first, found.only_second) == (3, 1)
    assert found.difference == pytest.approx(0.25)
    assert found.p_value == pytest.approx(mcnemar(3, 1))
    low, high = found.interval
    assert low < 0.25 < high
    assert found.outcome == "undecided"


def answers(only_first: int, only_second: int, n: int) -> tuple[Tensor, Tensor]:
    """Two models of which one alone is right on so many of n images."""
    first, second = torch.ones(2, n, dtype=torch.bool)
    second[:only_first] = False
    first[only_first : only_first + only_second] = False
    return first, second


@pytest.mark.parametrize(
    ("only_first", "only_second", "n", "outcome", "verdict"),
    [
        (
            2,
            0,
            256,
            "undecided",
            "These images do not tell the two models apart, nor show that they are equally good "
            "within 1 point (+0.78 points, 95 % from +0.00 to +1.95, p = 0.5). On so many images, only a difference of "
            "3.1 points or more is seen in 80 % of tries; a smaller one may be there.",
        ),
        (
            0,
            0,
            256,
            "undecided",
            "The two models give the same answers, right or wrong, on all 256 images; these do "
            "not show that they are equally good within 1 point (p = 0.077 for a larger gap). On so many images, "
            "only a difference of 3.1 points or more is seen in 80 % of tries; a smaller one may be there.",
        ),
        (
            0,
            0,
            1000,
            "equivalent",
            "The two models give the same answers, right or wrong, on all 1,000 images, and are "
            "equally good within 1 point (p = 0.001 for a larger gap).",
        ),
        (
            3,
            4,
            1000,
            "equivalent",
            "The two models are equally good within 1 point (-0.10 points, 95 % from -0.60 to "
            "+0.40, p = 0.0059 for a larger gap).",
        ),
        (
            40,
            9,
            1000,
            "first",
            "The first model is better on these images (+3.10 points, 95 % from +1.70 to +4.50, "
            "p = 9.3e-06).",
        ),
        (
            2,
            20,
            10_000,
            "second",
            "The second model is better on these images, by less than 1 point (-0.18 points, "
            "95 % from -0.28 to -0.09, p = 0.00012).",
        ),
        (
            1,
            0,
            4,
            "undecided",
            "These images do not tell the two models apart, nor show that they are equally good "
            "within 1 point (+25.00 points, 95 % from +0.00 to +75.00, p = 1). On so many images, no difference "
            "would be seen, however large.",
        ),
    ],
)
def test_there_are_three_answers_and_each_gives_its_figures(
    only_first: int, only_second: int, n: int, outcome: str, verdict: str
) -> None:
    found = compare_answers(*answers(only_first, only_second, n))
    assert found.outcome == outcome
    assert found.verdict == verdict
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["outcome"], told["verdict"], told["margin"]) == (outcome, verdict, 0.01)
    assert [row[0] for row in found.table().lines] == ["model", "first", "second"]


def test_a_large_p_never_says_that_there_is_no_difference() -> None:
    """Whether two models pass as equal depends on the margin."""
    first, second = answers(6, 4, 400)
    assert compare_answers(first, second).outcome == "undecided"
    assert compare_answers(first, second, margin=0.03).outcome == "equivalent"
    assert "within 3 points" in compare_answers(first, second, margin=0.03).verdict
    assert "within 0.5 points" in compare_answers(first, second, margin=0.005).verdict


def test_the_interval_is_that_of_the_difference() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 4000, generator=generator) < torch.tensor([[0.9], [0.8]])
    found = compare_answers(first, second)
    spread = ((0.9 * 0.1 + 0.8 * 0.2) / 4000) ** 0.5
    assert found.interval[1] - found.interval[0] == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert "first model is better" in found.verdict
    assert "second model is better" in compare_answers(second, first).verdict
    assert found == compare_answers(first, second)


def test_arguments_that_do_not_fit() -> None:
    some = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"second: expected \[n=3\]"):
        compare_answers(some, some[:2])
    with pytest.raises(
        ValueError, match="margin: expected a difference in accuracy between 0 and 1, got 0"
    ):
        compare_answers(some, some, margin=0)
