from __future__ import annotations

from math import comb

import pytest
import torch

from torchcaps.evaluation import compare, compare_answers, mcnemar, score


@pytest.mark.parametrize(("one", "two"), [(0, 0), (1, 0), (3, 3), (2, 9), (10, 1), (0, 12)])
def test_mcnemar_is_a_toss_of_coins(one: int, two: int) -> None:
    n = one + two
    tail = sum(comb(n, k) for k in range(min(one, two) + 1)) / 2**n
    assert mcnemar(one, two) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(one, two) == mcnemar(two, one)


def test_mcnemar_of_thousands() -> None:
    assert mcnemar(5000, 5000) == pytest.approx(1)
    assert 0 < mcnemar(5300, 4700) < 1e-8


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
    assert "do not tell" in found.verdict


def test_the_interval_is_that_of_the_difference() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 4000, generator=generator) < torch.tensor([[0.9], [0.8]])
    found = compare_answers(first, second)
    spread = ((0.9 * 0.1 + 0.8 * 0.2) / 4000) ** 0.5
    assert found.interval[1] - found.interval[0] == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert "first model is better" in found.verdict
    assert "second model is better" in compare_answers(second, first).verdict
    assert found == compare_answers(first, second)


def test_evaluations_on_the_same_images() -> None:
    labels = torch.tensor([0, 1, 0])
    good = score(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.1]]), labels, ("a", "b"))
    bad = score(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.7]]), labels, ("a", "b"))
    found = compare(good, bad)
    assert (found.only_first, found.only_second) == (2, 0)
    other = score(good.activations[:2], labels[:2], ("a", "b"))
    with pytest.raises(ValueError, match="second: expected the labels of first"):
        compare(good, other)


def test_arguments_that_do_not_fit() -> None:
    some = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"second: expected \[n=3\]"):
        compare_answers(some, some[:2])
    with pytest.raises(ValueError, match="resamples: expected at least 100, got 5"):
        compare_answers(some, some, resamples=5)
    with pytest.raises(ValueError, match="only_second: expected at least 0, got -1"):
        mcnemar(0, -1)
