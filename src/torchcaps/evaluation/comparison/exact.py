"""Exact tests of two models on the same images: which is better, whether they are equally good, and what can be seen.

All follow from three counts: the images that only the first model gets right, those that only the second does, and n.
The sums run over all samples that are at all likely: m of n images tell the models apart, the first is right on k of m.
"""

import math

import numpy as np
from jaxtyping import Float, Int64

from torchcaps.errors import ArgumentError, check_range

LEVEL, POWER, MARGIN = 0.05, 0.8, 0.01

DEVIATIONS = 6  # standard deviations on either side of the mean that a sum covers
TERMS = 256  # more sample sizes m than these are thinned out evenly
CHECKED = 25  # shares of discordant images at which the equivalence test looks for its worst case
EXCLUDED = 0.001  # probability of the shares that it leaves out


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided exact p-value: how likely so uneven a split is if each discordant image is a toss of a coin.

    Quinn McNemar, "Note on the sampling error of the difference between correlated proportions", Psychometrika 1947:
    only images that one model gets right and the other wrong say which is better. In (0, 1], and 1 without such images.
    Raises ValueError for a negative number of them.
    """
    from scipy.stats import binomtest

    check_range("only_first", only_first, low=0)
    check_range("only_second", only_second, low=0)
    discordant = only_first + only_second
    return float(binomtest(only_first, discordant, 0.5).pvalue) if discordant else 1.0


def mcnemar_power(difference: float, num_samples: int, discordant: float) -> float:
    """How often `mcnemar` at level 0.05 sees a true difference, in [-1, 1], on a sample of so many images, in [0, 1].
    Exact up to 300 expected discordant images; beyond, the sum over their number takes every second or every so many.
    Their true share, of images that one model gets right and the other wrong, is from |difference| to 1. Raises
    ValueError for arguments out of range."""
    from scipy.stats import binom

    check_range("num_samples", num_samples, low=1)
    check_range("difference", difference, low=-1, high=1)
    check_range("discordant", discordant, low=abs(difference), high=1)
    ahead = (1 + difference / discordant) / 2 if discordant else 0.5
    m, probability = _sizes(num_samples, discordant)
    critical = (
        binom.ppf(LEVEL / 2, m, 0.5) - 1
    )  # the largest smaller part of m that is below the level; -1: none is
    seen = binom.cdf(critical, m, ahead) + binom.sf(m - critical - 1, m, ahead)
    return min(1.0, float(probability @ seen))


def smallest_visible(num_samples: int, discordant: float) -> float | None:
    """The smallest true difference in accuracy that `mcnemar` at level 0.05 sees on 80 % of samples: in (0, 1], to a
    millionth; None where not even a difference of 1 would be seen (fewer than 6 images).

    The share of discordant images, in [0, 1], is the observed or the expected one. A difference cannot be larger than
    it: for larger ones the share is the difference itself. Raises ValueError for arguments out of range.
    """
    check_range("num_samples", num_samples, low=1)
    check_range("discordant", discordant, low=0, high=1)

    def power(difference: float) -> float:
        return mcnemar_power(difference, num_samples, max(discordant, difference))

    if power(1.0) < POWER:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


def equivalence_test(
    only_first: int, only_second: int, num_samples: int, *, margin: float = MARGIN
) -> float:
    """The p-value of the hypothesis that the accuracies differ by the margin or more; small: they are equally good.

    Two one-sided tests, of which the larger p-value counts. Samples are ordered by the score of Tango, "Equivalence
    test and confidence interval for the difference in proportions for the paired-sample design", Statistics in Medicine
    1998. The p-value is exact and unconditional as in Hsueh, Liu, Chen, "Unconditional exact tests for equivalence or
    noninferiority for paired binary endpoints", Biometrics 2001: the largest over the share of discordant images, which
    is not known. Shares that the sample contradicts (together less than 0.1 %, which is added) are left out, after
    Berger, Boos, "P values maximized over a confidence set for the nuisance parameter", JASA 1994.

    The margin is in (0, 1), the p-value in (0, 1]; without discordant images it is about (1 - margin)^n: 301 images are
    enough for one point. Raises ValueError for arguments out of range, such as more discordant images than there are.
    """
    from scipy.stats import binom

    check_range("only_first", only_first, low=0)
    check_range("only_second", only_second, low=0)
    check_range("num_samples", num_samples, low=max(1, only_first + only_second))
    check_margin(margin)
    m = only_first + only_second
    k = min(only_first, only_second)  # the side on which it is harder to reject
    observed = _score(np.array(m), np.array(k), num_samples, margin) - 1e-9
    worst = 0.0
    for discordant in _plausible(m / num_samples, num_samples, margin):
        sizes, probability = _sizes(num_samples, discordant)
        # The smallest k of each m whose score is as large, by bisection.
        low = np.zeros_like(sizes)
        high = sizes + 1
        while (low < high).any():
            middle = (low + high) // 2
            reached = _score(sizes, middle, num_samples, margin) >= observed
            low = np.where(reached, low, middle + 1)
            high = np.where(reached, middle, high)
        ahead = max(0.0, 1 - margin / discordant) / 2
        worst = max(worst, float(probability @ binom.sf(low - 1, sizes, ahead)))
    return min(1.0, worst + EXCLUDED)


def check_margin(margin: float) -> None:
    """Raise ArgumentError unless the margin is a difference in accuracy in (0, 1)."""
    if not 0 < margin < 1:
        raise ArgumentError(
            "margin", f"expected a difference in accuracy between 0 and 1, got {margin}"
        )


def _score(
    m: Int64[np.ndarray, "*sizes"], k: Int64[np.ndarray, "*sizes"], n: int, margin: float
) -> Float[np.ndarray, "*sizes"]:
    """How far the first model is above second - margin, in standard deviations as they are under that hypothesis."""
    # The most likely share q of images that only the second gets right, if that of the first is q - margin.
    w = m * (1 + margin) + 2 * margin * (n - k)
    q = (w + np.sqrt((w**2 - 8 * n * margin * (1 + margin) * (m - k)).clip(min=0))) / (4 * n)
    variance = n * (2 * q - margin * (1 + margin))
    return np.asarray((2 * k - m + n * margin) / np.sqrt(variance.clip(min=1e-12)))


def _plausible(observed: float, n: int, margin: float) -> list[float]:
    """Shares of discordant images from the margin to 1 that the observed one does not contradict."""
    from scipy.special import rel_entr

    # Chernoff's bound: beyond log(2 / EXCLUDED), such a sample has a probability below EXCLUDED.
    shares = np.linspace(margin, 1, 20_001).clip(max=1 - 1e-12)
    divergence = rel_entr(observed, shares) + rel_entr(1 - observed, 1 - shares)
    left = shares[n * divergence <= math.log(2 / EXCLUDED)]
    return np.linspace(left[0], left[-1], CHECKED).tolist() if len(left) else []


def _sizes(
    n: int, discordant: float
) -> tuple[Int64[np.ndarray, " sizes"], Float[np.ndarray, " sizes"]]:
    """The likely numbers m of discordant images among n, and the probability of each."""
    from scipy.stats import binom

    middle, reach = n * discordant, DEVIATIONS * math.sqrt(n * discordant * (1 - discordant)) + 20
    m = np.arange(max(0, math.floor(middle - reach)), min(n, math.ceil(middle + reach)) + 1)
    m = m[:: -(-len(m) // TERMS)]
    probability = binom.pmf(m, n, discordant)
    return m, probability / probability.sum()
