from functools import cache
from math import comb

import numpy as np
import pytest

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import equivalence_test, mcnemar, mcnemar_power, smallest_visible

cached_mcnemar = cache(mcnemar)
cached_equivalence = cache(equivalence_test)


def simulate_counts(n, discordant, difference, num_samples):
    """Draw (only first, only second) of models whose accuracies truly differ by a difference."""
    shares = [(discordant + difference) / 2, (discordant - difference) / 2, 1 - discordant]
    counts = np.random.default_rng(0).multinomial(n, shares, size=num_samples)
    return counts[:, :2].tolist()


def detection_rate(n, discordant, difference, num_samples):
    """How often McNemar's test sees a difference in simulated samples."""
    samples = simulate_counts(n, discordant, difference, num_samples)
    return np.mean([cached_mcnemar(*counts) < 0.05 for counts in samples])


def share_equivalent(samples, n, margin):
    """How often models pass as equally good in simulated samples."""
    return np.mean([cached_equivalence(*counts, n, margin=margin) < 0.05 for counts in samples])


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (3, 3), (2, 9), (10, 1), (0, 12)])
def test_mcnemar_is_a_toss_of_coins(first, second):
    n = first + second
    tail = sum(comb(n, k) for k in range(min(first, second) + 1)) / 2**n
    assert mcnemar(first, second) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(first, second) == mcnemar(second, first)


def test_mcnemar_of_thousands():
    assert mcnemar(5000, 5000) == pytest.approx(1)
    assert 0 < mcnemar(5300, 4700) < 1e-8


def test_power_of_few_images_is_a_sum_by_hand():
    """Seven images, all discordant: seen with none or all of them for one side."""
    assert mcnemar_power(0.6, 7, 1.0) == pytest.approx(0.8**7 + 0.2**7)
    assert mcnemar_power(0.0, 7, 0.0) == mcnemar_power(1.0, 5, 1.0) == 0


@pytest.mark.parametrize(
    ("n", "discordant", "difference"),
    [
        (256, 0.06, 0.03),
        pytest.param(10_000, 0.05, 0.006, marks=pytest.mark.slow),
    ],
)
def test_power_is_that_of_simulated_samples(n, discordant, difference):
    rate = detection_rate(n, discordant, difference, 4000)
    assert mcnemar_power(difference, n, discordant) == pytest.approx(rate, abs=0.02)


def test_256_images_do_not_show_three_tenths_of_a_point():
    """One image in a hundred tells the models apart, as for two good networks on MNIST."""
    assert mcnemar_power(0.003, 256, 0.01) == pytest.approx(0.0031, abs=1e-4)
    visible = smallest_visible(256, 0.01)
    assert visible == pytest.approx(0.031, abs=5e-4)
    assert detection_rate(256, visible, visible, 5000) == pytest.approx(0.8, abs=0.015)


@pytest.mark.parametrize("discordant", [0.0, 0.04])
def test_the_smallest_visible_difference_is_seen_in_four_of_five_tries(discordant):
    visible = smallest_visible(1000, discordant)
    assert mcnemar_power(visible, 1000, max(visible, discordant)) == pytest.approx(0.8, abs=1e-3)


def test_more_images_show_smaller_differences():
    visible = [smallest_visible(n, 0.02) for n in (6, 100, 1000, 1_000_000)]
    assert visible == sorted(visible, reverse=True)
    assert visible[-1] == pytest.approx((1.96 + 0.84) * (0.02 / 1e6) ** 0.5, rel=0.01)
    assert smallest_visible(5, 0.02) is None


def test_models_that_differ_by_the_margin_pass_as_equal_in_at_most_5_percent():
    """At the boundary, where the level is hardest to keep: few discordant images on one side."""
    samples = simulate_counts(256, 0.02, 0.02, 4000)
    # Two standard errors of 4,000 tries.
    assert 0.01 < share_equivalent(samples, 256, 0.02) < 0.05 + 0.007


def test_without_discordant_images_their_number_decides():
    assert equivalence_test(0, 0, 256) == pytest.approx(0.99**256 + 0.001, rel=1e-3)
    assert equivalence_test(0, 0, 300) > 0.05 > equivalence_test(0, 0, 301)
    assert equivalence_test(0, 0, 60, margin=0.05) < 0.05
    assert equivalence_test(0, 0, 10**6) == pytest.approx(0.001)


def test_equivalence_is_the_harder_the_larger_the_difference():
    p_values = [equivalence_test(k, 10 - k, 1000) for k in range(5, -1, -1)]
    assert p_values == sorted(p_values)
    assert equivalence_test(0, 10, 1000) == equivalence_test(10, 0, 1000) > 0.3
    assert equivalence_test(0, 30, 1000) > 0.99
    # 3.16 standard deviations: 0.0008, and the share that is left out.
    assert equivalence_test(500, 500, 10_000) == pytest.approx(0.0018, abs=2e-4)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (lambda: mcnemar(0, -1), "only_second: expected at least 0, got -1"),
        (lambda: mcnemar_power(-0.3, 10, 0.2), "discordant: expected between 0.3 and 1"),
        (lambda: equivalence_test(3, 4, 6), "num_samples: expected at least 7, got 6"),
        (lambda: equivalence_test(3, 4, 60, margin=1), "margin: expected"),
        (lambda: smallest_visible(0, 0.5), "num_samples: expected at least 1, got 0"),
    ],
)
def test_arguments_that_do_not_fit(test, message):
    with pytest.raises(ArgumentError, match=message):
        test()
