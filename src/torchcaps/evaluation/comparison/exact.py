"""Exact tests of two models on the same images.

Which is better, whether they are equally good, and which difference so many images can show. All
follow from three counts: the images that only the first model gets right, those that only the
second does, and n. The sums run over all samples that are at all likely: m of n images are
discordant (one model is right, the other wrong), and the first is right on k of these m.
"""

import math

import numpy as np
from jaxtyping import Float, Int64

from torchcaps.errors import ArgumentError, check_positive, check_range

LEVEL = 0.05
POWER = 0.8
MARGIN = 0.01

NUM_DEVIATIONS = 6  # standard deviations on either side of the mean that a sum covers
MAX_TERMS = 256  # more numbers m than these are thinned out evenly
NUM_SHARES = 25  # shares of discordant images at which the equivalence test looks for its worst
EXCLUDED = 0.001  # probability of the shares that it leaves out


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    It is the probability of so uneven a split if each discordant image is a toss of a coin: only
    images that one model gets right and the other wrong say which is better. Quinn McNemar, "Note
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
    """Return how often `mcnemar` at level 0.05 sees a true difference.

    The sum is exact up to about 300 expected discordant images. Beyond, it takes every second of
    their numbers, or every so many.

    Args:
        difference: true difference of the accuracies, in [-1, 1].
        num_samples: number of images, at least 1.
        discordant: true share of discordant images, from |difference| to 1.

    Returns:
        Share of samples on which the difference is seen, in [0, 1].

    Raises:
        ArgumentError: for arguments out of range.
    """
    from scipy.stats import binom

    check_positive(num_samples=num_samples)
    check_range("difference", difference, low=-1, high=1)
    check_range("discordant", discordant, low=abs(difference), high=1)
    first_share = (1 + difference / discordant) / 2 if discordant else 0.5
    m, probability = _probable_sizes(num_samples, discordant)
    # The largest smaller part of m that is below the level; -1 where none is.
    critical = binom.ppf(LEVEL / 2, m, 0.5) - 1
    lower_tail = binom.cdf(critical, m, first_share)
    upper_tail = binom.sf(m - critical - 1, m, first_share)
    return min(1.0, float(probability @ (lower_tail + upper_tail)))


def smallest_visible(num_samples: int, discordant: float) -> float | None:
    """Return the smallest true difference that `mcnemar` at level 0.05 sees on 80 % of samples.

    A difference cannot be larger than the share of discordant images. For larger differences, that
    share is the difference itself.

    Args:
        num_samples: number of images, at least 1.
        discordant: observed or expected share of discordant images, in [0, 1].

    Returns:
        A difference in accuracy in (0, 1], to a millionth; None where not even a difference of 1
        would be seen (fewer than 6 images).

    Raises:
        ArgumentError: for arguments out of range.
    """
    check_positive(num_samples=num_samples)
    check_range("discordant", discordant, low=0, high=1)

    def is_visible(difference: float) -> bool:
        share = max(discordant, difference)
        return mcnemar_power(difference, num_samples, share) >= POWER

    if not is_visible(1.0):
        return None
    low = 0.0
    high = 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if is_visible(middle):
            high = middle
        else:
            low = middle
    return high


def equivalence_test(
    only_first: int,
    only_second: int,
    num_samples: int,
    *,
    margin: float = MARGIN,
) -> float:
    """Return the p-value of the hypothesis that the accuracies differ by the margin or more.

    A small one says that both models are equally good. There are two one-sided tests, of which the
    larger p-value counts. Samples are ordered by the score of Tango, "Equivalence test and
    confidence interval for the difference in proportions for the paired-sample design", Statistics
    in Medicine 1998. The p-value is exact and unconditional as in Hsueh, Liu, Chen, "Unconditional
    exact tests for equivalence or noninferiority for paired binary endpoints", Biometrics 2001:
    the largest over the share of discordant images, which is not known. Shares that the sample
    contradicts (together less than 0.1 %, which is added) are left out, after Berger, Boos, "P
    values maximized over a confidence set for the nuisance parameter", JASA 1994.

    Args:
        only_first: number of images that only the first model gets right.
        only_second: number of images that only the second model gets right.
        num_samples: number of images, at least the sum of these, and 1.
        margin: smallest difference in accuracy that matters, in (0, 1).

    Returns:
        A number in (0, 1]. Without discordant images it is about (1 - margin)^n: 301 images are
        enough for one point.

    Raises:
        ArgumentError: for arguments out of range.
    """
    from scipy.stats import binom

    check_range("only_first", only_first, low=0)
    check_range("only_second", only_second, low=0)
    num_discordant = only_first + only_second
    check_range("num_samples", num_samples, low=max(1, num_discordant))
    check_margin(margin)
    k = min(only_first, only_second)  # the side on which it is harder to reject
    observed = _score(np.array(num_discordant), np.array(k), num_samples, margin) - 1e-9
    largest = 0.0
    for discordant in _plausible_shares(num_discordant / num_samples, num_samples, margin):
        m, probability = _probable_sizes(num_samples, discordant)
        # The smallest k of each m whose score is as large, by bisection.
        low = np.zeros_like(m)
        high = m + 1
        while (low < high).any():
            middle = (low + high) // 2
            is_extreme = _score(m, middle, num_samples, margin) >= observed
            low = np.where(is_extreme, low, middle + 1)
            high = np.where(is_extreme, middle, high)
        first_share = max(0.0, 1 - margin / discordant) / 2
        p_value = float(probability @ binom.sf(low - 1, m, first_share))
        largest = max(largest, p_value)
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


def _score(
    m: Int64[np.ndarray, "*sizes"],
    k: Int64[np.ndarray, "*sizes"],
    n: int,
    margin: float,
) -> Float[np.ndarray, "*sizes"]:
    """Return how far the first model is above second - margin, in standard deviations.

    The deviations are those under the hypothesis of just this margin.
    """
    # q is the most likely share of images that only the second gets right, if that of the first
    # is q - margin.
    w = m * (1 + margin) + 2 * margin * (n - k)
    root = np.sqrt((w**2 - 8 * n * margin * (1 + margin) * (m - k)).clip(min=0))
    q = (w + root) / (4 * n)
    variance = n * (2 * q - margin * (1 + margin))
    return np.asarray((2 * k - m + n * margin) / np.sqrt(variance.clip(min=1e-12)))


def _plausible_shares(observed: float, n: int, margin: float) -> list[float]:
    """Return shares of discordant images, from the margin to 1, that fit the observed one."""
    from scipy.special import rel_entr

    # Chernoff's bound: beyond log(2 / EXCLUDED), such a sample has a probability below EXCLUDED.
    shares = np.linspace(margin, 1, 20_001).clip(max=1 - 1e-12)
    divergence = rel_entr(observed, shares) + rel_entr(1 - observed, 1 - shares)
    plausible = shares[n * divergence <= math.log(2 / EXCLUDED)]
    if not len(plausible):
        return []
    return np.linspace(plausible[0], plausible[-1], NUM_SHARES).tolist()


def _probable_sizes(
    n: int,
    discordant: float,
) -> tuple[Int64[np.ndarray, " sizes"], Float[np.ndarray, " sizes"]]:
    """Return likely numbers m of discordant images among n, and the probability of each."""
    from scipy.stats import binom

    mean = n * discordant
    distance = NUM_DEVIATIONS * math.sqrt(n * discordant * (1 - discordant)) + 20
    first = max(0, math.floor(mean - distance))
    last = min(n, math.ceil(mean + distance))
    m = np.arange(first, last + 1)
    step = -(-len(m) // MAX_TERMS)
    m = m[::step]
    probability = binom.pmf(m, n, discordant)
    return m, probability / probability.sum()
