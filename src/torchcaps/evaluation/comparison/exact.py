"""Exact tests of two models on the same test set.

Three questions: which model is better, whether the two are equally good within a margin, and which
difference a test set of n images can show. The answers need three counts: the images that only the
first model gets right, those that only the second model gets right, and n.

An image is discordant if one model is right and the other wrong. Of n images, m are discordant, and
the first model is right on k of these m. So (m, k) describes a test set of n images. Power and
equivalence are sums over the likely (m, k).
"""

import math
from bisect import bisect_left

import numpy as np

from torchcaps.errors import ArgumentError, check_positive, check_range

LEVEL = 0.05
POWER = 0.8
MARGIN = 0.01

NUM_DEVIATIONS = 6  # a sum over m covers so many standard deviations on either side of its mean
MAX_TERMS = 256  # a sum over more m than these skips some, evenly
PARTS = 2**20  # of a difference of 1, to which the smallest visible one is found
NUM_SHARES = 25  # the equivalence test takes the largest p-value over so many discordant shares
EXCLUDED = 0.001  # bound of the error from implausible discordant shares that it leaves out


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Only discordant images, which one model gets right and the other wrong, say which is better. The
    p-value is the probability that they split so unevenly or more, if each is the toss of a fair
    coin. Quinn McNemar, "Note
    on the sampling error of the difference between correlated proportions", Psychometrika 1947.

    Args:
        only_first: number of images that only the first model gets right.
        only_second: number of images that only the second model gets right.

    Returns:
        A number in (0, 1]; 1 without discordant images.

    Raises:
        ArgumentError: for a negative number.
    """
    from scipy.stats import binomtest

    check_range("only_first", only_first, low=0)
    check_range("only_second", only_second, low=0)
    num_discordant = only_first + only_second
    return float(binomtest(only_first, num_discordant, 0.5).pvalue) if num_discordant else 1.0


def mcnemar_power(difference: float, num_samples: int, discordant: float) -> float:
    """Return the power of `mcnemar` at level 0.05: how often it detects a true difference.

    The sum over m leaves out improbable m. Beyond about 300 expected discordant images, it also
    takes only every second m, or every third, and so on.

    Args:
        difference: true difference of the accuracies, in [-1, 1].
        num_samples: number of images, at least 1.
        discordant: true share of discordant images, from |difference| to 1.

    Returns:
        Share of test sets on which the difference is detected, in [0, 1].

    Raises:
        ArgumentError: for arguments out of range.
    """
    from scipy.stats import binom

    check_positive(num_samples=num_samples)
    check_range("difference", difference, low=-1, high=1)
    check_range("discordant", discordant, low=abs(difference), high=1)
    first_share = (1 + difference / discordant) / 2 if discordant else 0.5
    m, probability = _probable_discordant(num_samples, discordant)
    # The test rejects where k or m - k is at most `critical`; -1 where it never does.
    critical = binom.ppf(LEVEL / 2, m, 0.5) - 1
    lower_tail = binom.cdf(critical, m, first_share)
    upper_tail = binom.sf(m - critical - 1, m, first_share)
    return min(1.0, float(probability @ (lower_tail + upper_tail)))


def smallest_visible(num_samples: int, discordant: float) -> float | None:
    """Return the smallest true difference that `mcnemar` detects with a power of 80 %, at level 0.05.

    A difference cannot be larger than the share of discordant images. Where a difference is larger
    than `discordant`, the share is taken to be the difference itself.

    Args:
        num_samples: number of images, at least 1.
        discordant: observed or expected share of discordant images, in [0, 1].

    Returns:
        A difference in accuracy in (0, 1], to a millionth; None where not even a difference of 1
        would be detected (fewer than 6 images).

    Raises:
        ArgumentError: for arguments out of range.
    """
    check_positive(num_samples=num_samples)
    check_range("discordant", discordant, low=0, high=1)

    def is_visible(difference: float) -> bool:
        return mcnemar_power(difference, num_samples, max(discordant, difference)) >= POWER

    if not is_visible(1.0):
        return None
    part = bisect_left(range(PARTS), True, lo=1, key=lambda part: is_visible(part / PARTS))
    return part / PARTS


def equivalence_test(
    only_first: int,
    only_second: int,
    num_samples: int,
    *,
    margin: float = MARGIN,
) -> float:
    """Return the p-value of the hypothesis that the accuracies differ by the margin or more.

    A small p-value says that both models are equally good within the margin. Of two one-sided
    tests, one for each sign of the difference, the larger p-value counts. By symmetry, it is that
    of the model with fewer images that it alone gets right, so only this one is computed.

    Test sets are ordered by the score of Tango, "Equivalence test and confidence interval for the
    difference in proportions for the paired-sample design", Statistics in Medicine 1998. The
    p-value is unconditional as in Hsueh, Liu, Chen, "Unconditional exact tests for equivalence or
    noninferiority for paired binary endpoints", Biometrics 2001: the largest over the share of
    discordant images, which is not known. Shares that the observed one contradicts are left out,
    and 0.1 % is added for them, after Berger, Boos, "P values maximized over a confidence set for
    the nuisance parameter", JASA 1994.

    The p-value is exact but for two approximations: the maximum is that of 25 shares, and each sum
    over m leaves out improbable m and, above 256 of them, skips some evenly.

    Args:
        only_first: number of images that only the first model gets right.
        only_second: number of images that only the second model gets right.
        num_samples: number of images, at least 1 and at least the sum of the two counts.
        margin: smallest difference in accuracy that matters, in (0, 1).

    Returns:
        A number in (0, 1]. Without discordant images it is about (1 - margin)^n: 301 images are
        enough for a margin of one percentage point at level 0.05.

    Raises:
        ArgumentError: for arguments out of range.
    """
    from scipy.special import rel_entr
    from scipy.stats import binom

    check_range("only_first", only_first, low=0)
    check_range("only_second", only_second, low=0)
    num_discordant = only_first + only_second
    check_range("num_samples", num_samples, low=max(1, num_discordant))
    check_margin(margin)
    k = min(only_first, only_second)  # of the one-sided test with the larger p-value
    # Less a little, so that rounding does not exclude test sets of an equal score.
    observed_score = _score(np.array(num_discordant), np.array(k), num_samples, margin) - 1e-9
    # Shares of discordant images, from the margin to 1, that fit the observed one; none where far
    # fewer images are discordant than the margin. Chernoff's bound: if n times the divergence is
    # beyond log(2 / EXCLUDED), an observed share so far from the true one, on either side, has a
    # probability below EXCLUDED.
    observed = num_discordant / num_samples
    shares = np.linspace(margin, 1, 20_001).clip(max=1 - 1e-12)
    divergence = rel_entr(observed, shares) + rel_entr(1 - observed, 1 - shares)
    shares = shares[num_samples * divergence <= math.log(2 / EXCLUDED)]
    if len(shares):
        shares = np.linspace(shares[0], shares[-1], NUM_SHARES)
    largest = 0.0
    for discordant in shares.tolist():
        m, probability = _probable_discordant(num_samples, discordant)
        # The smallest k of each m whose score is at least the observed one, by bisection.
        low = np.zeros_like(m)
        high = m + 1
        while (low < high).any():
            middle = (low + high) // 2
            is_extreme = _score(m, middle, num_samples, margin) >= observed_score
            low = np.where(is_extreme, low, middle + 1)
            high = np.where(is_extreme, middle, high)
        # The first model is right on this share of discordant images if it is worse by the margin.
        first_share = max(0.0, 1 - margin / discordant) / 2
        largest = max(largest, float(probability @ binom.sf(low - 1, m, first_share)))
    return min(1.0, largest + EXCLUDED)


def check_margin(margin: float) -> None:
    """Check that a margin is a difference in accuracy in (0, 1).

    Raises:
        ArgumentError: for another number.
    """
    if not 0 < margin < 1:
        raise ArgumentError(
            "margin", f"expected a difference in accuracy between 0 and 1, got {margin}"
        )


def _score(m: np.ndarray, k: np.ndarray, n: int, margin: float) -> np.ndarray:
    """Return Tango's score of k of m discordant images, of n: (2 k - m + n margin) / deviation.

    It is how far the first model is above the second less the margin. The deviation is the standard
    deviation of 2 k - m if the first model is worse by just the margin.
    """
    # If the share of images that only the second model gets right is q, that of the first is
    # q - margin. The most likely q is the larger root of
    #     2 n q^2 - linear q + margin (1 + margin) (m - k) = 0.
    linear = m * (1 + margin) + 2 * margin * (n - k)
    discriminant = linear**2 - 8 * n * margin * (1 + margin) * (m - k)
    q = (linear + np.sqrt(discriminant.clip(min=0))) / (4 * n)
    variance = n * (2 * q - margin * (1 + margin))
    return np.asarray((2 * k - m + n * margin) / np.sqrt(variance.clip(min=1e-12)))


def _probable_discordant(n: int, discordant: float) -> tuple[np.ndarray, np.ndarray]:
    """Return likely counts m of discordant images among n, and their probabilities (of sum 1).

    discordant: true share of discordant images.
    """
    from scipy.stats import binom

    mean = n * discordant
    # 20 more, for small n, where a binomial distribution is far from a normal one.
    distance = NUM_DEVIATIONS * math.sqrt(mean * (1 - discordant)) + 20
    m = np.arange(max(0, math.floor(mean - distance)), min(n, math.ceil(mean + distance)) + 1)
    m = m[:: -(-len(m) // MAX_TERMS)]
    probability = binom.pmf(m, n, discordant)
    return m, probability / probability.sum()
