from __future__ import annotations

from functools import cache
from math import comb

import numpy as np
import pytest

from torchcaps.evaluation import equivalence_test, mcnemar, mcnemar_power, smallest_visible

cached_mcnemar, cached_equivalence = cache(mcnemar), cache(equivalence_test)


@pytest.mark.parametrize(("one", "two"), [(0, 0), (1, 0), (3, 3), (2, 9), (10, 1), (0, 12)])
def test_mcnemar_is_a_toss_of_coins(one: int, two: int) -> None:
    n = one + two
    tail = sum(comb(n, k) for k in range(min(one, two) + 1)) / 2**n
    assert mcnemar(one, two) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(one, two) == mcnemar(two, one)


def test_mcnemar_of_thousands() -> None:
    assert mcnemar(5000, 5000) == pytest.approx(1)
    assert 0 < mcnemar(5300, 4700) < 1e-8


def samples(n: int, discordant: float, difference: float, count: int) -> list[list[int]]:
    """Draws of (only first, only second) for models whose accuracies truly differ by `difference`."""
    shares = [(discordant + difference) / 2, (discordant - difference) / 2, 1 - discordant]
    drawn: list[list[int]] = (
        np.random.default_rng(0).multinomial(n, shares, size=count)[:, :2].tolist()
    )
    return drawn


def test_power_of_few_images_is_a_sum_by_hand() -> None:
    """Seven images, all discordant: seen with none or all of them for one side."""
    assert mcnemar_power(0.6, 7, 1.0) == pytest.approx(0.8**7 + 0.2**7)
    assert mcnemar_power(0.0, 7, 0.0) == mcnemar_power(1.0, 5, 1.0) == 0


@pytest.mark.parametrize(
    ("n", "discordant", "difference"),
    [
        (256, 0.01, 0.003),
        (256, 0.06, 0.03),
        (1000, 0.05, 0.02),
        (1000, 0.05, 0.0),
        (10_000, 0.05, 0.006),
    ],
)
def test_power_is_that_of_simulated_samples(n: int, discordant: float, difference: float) -> None:
    seen = np.mean(
        [cached_mcnemar(*sample) < 0.05 for sample in samples(n, discordant, difference, 5000)]
    )
    assert mcnemar_power(difference, n, discordant) == pytest.approx(seen, abs=0.02)


def test_256_images_do_not_show_three_tenths_of_a_point() -> None:
    """One image in a hundred tells the models apart, as for two good networks on MNIST."""
    assert mcnemar_power(0.003, 256, 0.01) == pytest.approx(0.0031, abs=1e-4)
    visible = smallest_visible(256, 0.01)
    assert visible == pytest.approx(0.031, abs=5e-4)
    seen = np.mean(
        [cached_mcnemar(*sample) < 0.05 for sample in samples(256, visible, visible, 10_000)]
    )
    assert seen == pytest.approx(0.8, abs=0.015)


@pytest.mark.parametrize("discordant", [0.0, 0.04])
def test_the_smallest_visible_difference_is_seen_in_four_of_five_tries(discordant: float) -> None:
    visible = smallest_visible(1000, discordant)
    assert visible is not None
    assert mcnemar_power(visible, 1000, max(visible, discordant)) == pytest.approx(0.8, abs=1e-3)


def test_more_images_show_smaller_differences() -> None:
    found = [smallest_visible(n, 0.02) for n in (6, 100, 1000, 10_000, 1_000_000)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx((1.96 + 0.84) * (0.02 / 1e6) ** 0.5, rel=0.01)
    assert smallest_visible(5, 0.02) is None


@pytest.mark.parametrize("discordant", [0.02, 0.024])
def test_models_that_differ_by_the_margin_pass_as_equal_in_at_most_5_percent(
    discordant: float,
) -> None:
    """The level at the boundary, where it is hardest to keep: few discordant images, nearly all on one side."""
    found = [
        cached_equivalence(*sample, 256, margin=0.02) < 0.05
        for sample in samples(256, discordant, 0.02, 4000)
    ]
    assert 0.01 < np.mean(found) < 0.05 + 0.007  # two standard errors of 4,000 tries


def test_equal_models_pass_as_equal_where_there_are_enough_images() -> None:
    found = [cached_equivalence(*sample, 1000) < 0.05 for sample in samples(1000, 0.01, 0.0, 300)]
    assert np.mean(found) > 0.7


def test_without_discordant_images_their_number_decides() -> None:
    assert equivalence_test(0, 0, 256) == pytest.approx(0.99**256 + 0.001, rel=1e-3)
    assert equivalence_test(0, 0, 300) > 0.05 > equivalence_test(0, 0, 301)
    assert equivalence_test(0, 0, 60, margin=0.05) < 0.05
    assert equivalence_test(0, 0, 10**6) == pytest.approx(0.001)


def test_equivalence_is_the_harder_the_larger_the_difference() -> None:
    found = [equivalence_test(k, 10 - k, 1000) for k in range(5, -1, -1)]
    assert found == sorted(found)
    assert equivalence_test(0, 10, 1000) == equivalence_test(10, 0, 1000) > 0.3
    assert equivalence_test(0, 30, 1000) > 0.99
    assert equivalence_test(500, 500, 10_000) == pytest.approx(
        0.0018, abs=2e-4
    )  # 3.16 standard deviations, 0.0008


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="only_second: expected at least 0, got -1"):
        mcnemar(0, -1)
    with pytest.raises(ValueError, match=r"discordant: expected between 0\.3 and 1, got 0\.2"):
        mcnemar_power(-0.3, 10, 0.2)
    with pytest.raises(ValueError, match="num_samples: expected at least 7, got 6"):
        equivalence_test(3, 4, 6)
    with pytest.raises(
        ValueError, match="margin: expected a difference in accuracy between 0 and 1, got 1"
    ):
        equivalence_test(3, 4, 60, margin=1)
    with pytest.raises(ValueError, match="num_samples: expected at least 1, got 0"):
        smallest_visible(0, 0.5)
