"""Exact tests of two models on the same images: which is better, whether they are equally good, and what can be seen.

All follow from three counts: the images that only the first model gets right, those that only the second does, and n.
The sums run over all samples that are at all likely: m of n images tell the models apart, the first is right on k of m.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.errors import check_range

LEVEL = 0.05
POWER = 0.8
MARGIN = 0.01

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
    check_range("only_first", only_first, low=0)
    check_range("only_second", only_second, low=0)
    n = only_first + only_second
    # Logarithms: 2^-n is no float for a thousand images.
    fewer = range(min(only_first, only_second) + 1)
    log = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2) for k in fewer)
    return min(1.0, 2 * math.fsum(map(math.exp, log)))


def mcnemar_power(difference: float, num_samples: int, discordant: float) -> float:
    """How often `mcnemar` at level 0.05 sees a true difference on a sample of images. Raises ValueError for arguments
    out of range.

    Args:
        difference: true accuracy of one model minus that of the other, in [-1, 1].
        num_samples: n, at least 1.
        discordant: true share of images that one model gets right and the other wrong, from |difference| to 1.

    Returns:
        In [0, 1], the probability of a p-value below 0.05. Exact up to 300 expected discordant images; beyond, the sum
        over their number takes every second or every so many.
    """
    check_range("num_samples", num_samples, low=1)
    check_range("difference", difference, low=-1, high=1)
    check_range("discordant", discordant, low=abs(difference), high=1)
    ahead = (1 + difference / discordant) / 2 if discordant else 0.5
    m, k, probability = _samples(num_samples, discordant, ahead)
    seen = torch.minimum(k, m - k) <= _critical(m)
    return min(1.0, float(probability[seen].sum()))


def smallest_visible(num_samples: int, discordant: float) -> float | None:
    """The smallest true difference in accuracy that `mcnemar` at level 0.05 sees on 80 % of samples. Raises ValueError
    for arguments out of range.

    Args:
        num_samples: n, at least 1.
        discordant: share of images that one model gets right and the other wrong, in [0, 1], as observed or expected.
            A difference cannot be larger than this share: for larger ones the share is the difference itself.

    Returns:
        In (0, 1], to a millionth; None where not even a difference of 1 would be seen (fewer than 6 images).
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


def equivalence_test(only_first: int, only_second: int, num_samples: int, *, margin: float = MARGIN) -> float:
    """The p-value of the hypothesis that the accuracies differ by the margin or more; small: they are equally good.

    Two one-sided tests, of which the larger p-value counts. Samples are ordered by the score of Tango, "Equivalence
    test and confidence interval for the difference in proportions for the paired-sample design", Statistics in Medicine
    1998. The p-value is exact and unconditional as in Hsueh, Liu, Chen, "Unconditional exact tests for equivalence or
    noninferiority for paired binary endpoints", Biometrics 2001: the largest over the share of discordant images, which
    is not known. Shares that the sample contradicts (together less than 0.1 %, which is added) are left out, after
    Berger, Boos, "P values maximized over a confidence set for the nuisance parameter", JASA 1994. Raises ValueError
    for arguments out of range.

    Args:
        only_first: images that only the first model gets right, at least 0.
        only_second: images that only the second gets right, at least 0.
        num_samples: n, at least only_first + only_second and at least 1.
        margin: smallest difference in accuracy that matters, in (0, 1); 0.01 is one point.

    Returns:
        In (0, 1]. Without discordant images about (1 - margin)^n: 301 images are enough for one point.
    """
    check_range("only_first", only_first, low=0)
    check_range("only_second", only_second, low=0)
    check_range("num_samples", num_samples, low=max(1, only_first + only_second))
    if not 0 < margin < 1:
        raise ValueError(f"margin: expected a difference in accuracy between 0 and 1, got {margin}")
    m = only_first + only_second
    k = min(only_first, only_second)  # the side on which the hypothesis is harder to reject
    observed = _score(torch.tensor(m), torch.tensor(k), num_samples, margin) - 1e-9
    worst = 0.0
    for discordant in _plausible(m / num_samples, num_samples, margin):
        sizes, ahead, probability = _samples(num_samples, discordant, max(0.0, 1 - margin / discordant) / 2)
        worst = max(worst, float(probability[_score(sizes, ahead, num_samples, margin) >= observed].sum()))
    return min(1.0, worst + EXCLUDED)


def _score(m: Int64[Tensor, "*sizes"], k: Int64[Tensor, "*sizes"], n: int, margin: float) -> Float[Tensor, "*sizes"]:
    """How far the first model is above second - margin, in standard deviations as they are under that hypothesis."""
    first, second = k.double(), (m - k).double()
    # The most likely share q of images that only the second gets right, if that of the first is q - margin.
    w = m * (1 + margin) + 2 * margin * (n - first)
    q = (w + (w.square() - 8 * n * margin * (1 + margin) * second).clamp_min(0).sqrt()) / (4 * n)
    variance = n * (2 * q - margin * (1 + margin))
    return (first - second + n * margin) / variance.clamp_min(1e-12).sqrt()


def _plausible(observed: float, n: int, margin: float) -> list[float]:
    """Shares of discordant images from the margin to 1 that the observed one does not contradict."""
    # Chernoff's bound: beyond log(2 / EXCLUDED), such a sample has a probability below EXCLUDED.
    shares = torch.linspace(margin, 1, 20_001, dtype=torch.float64).clamp(max=1 - 1e-12)
    seen = torch.tensor(observed, dtype=torch.float64)
    divergence = torch.xlogy(seen, seen / shares) + torch.xlogy(1 - seen, (1 - seen) / (1 - shares))
    left = shares[n * divergence <= math.log(2 / EXCLUDED)]
    return torch.linspace(left[0], left[-1], CHECKED, dtype=torch.float64).tolist() if len(left) else []


def _samples(
    n: int, discordant: float, ahead: float
) -> tuple[Int64[Tensor, "sizes 1"], Int64[Tensor, "sizes counts"], Float[Tensor, "sizes counts"]]:
    """All likely samples: m of n images are discordant, on k of those the first model is right; and the probability of
    each pair, 0 where there is none."""
    middle, reach = n * discordant, DEVIATIONS * math.sqrt(n * discordant * (1 - discordant)) + 20
    m = torch.arange(max(0, math.floor(middle - reach)), min(n, math.ceil(middle + reach)) + 1)
    if len(m) > TERMS:
        m = m[:: -(-len(m) // TERMS)]
    of_size = _binomial(m, torch.tensor(n), discordant)
    m = m[:, None]
    k = _likely_of(m, ahead)
    return m, k, (of_size / of_size.sum())[:, None] * _binomial(k, m, ahead)


def _likely_of(m: Int64[Tensor, "sizes 1"], share: float) -> Int64[Tensor, "sizes counts"]:
    reach = math.ceil(DEVIATIONS * math.sqrt(float(m.max()) * share * (1 - share))) + 20
    return (m * share).long() + torch.arange(-reach, reach + 1)


def _binomial(k: Tensor, n: Tensor, share: float) -> Float[Tensor, "*sizes"]:
    """Probability of k of n; 0 outside 0 to n."""
    inside = (k >= 0) & (k <= n)
    k, n = k.double().clamp_min(0), n.double()
    rest = (n - k).clamp_min(0)
    p = torch.tensor(share, dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(rest + 1)
    return (ways + torch.xlogy(k, p) + torch.xlogy(rest, 1 - p)).exp() * inside


def _critical(m: Int64[Tensor, "sizes 1"]) -> Int64[Tensor, "sizes 1"]:
    """The largest smaller part of m for which `mcnemar` is below its level; negative if there is none."""
    k = _likely_of(m, 0.5)
    below = 2 * _binomial(k, m, 0.5).cumsum(dim=1) < LEVEL
    return k[:, :1] + below.sum(dim=1, keepdim=True) - 1
