"""Is one model better than another? Two models on the same test images.

Quinn McNemar, "Note on the sampling error of the difference between correlated proportions", Psychometrika 1947: only
images that one model gets right and the other wrong say anything. Compare a capsule network with a plain network of
equal size that was trained in the same way, and with itself under uniform coupling; and never the best of several
seeds with a mean.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.accuracy import Evaluation

LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Two models on the same images; accuracies are in [0, 1].

    Attributes:
        first: accuracy of the model in question.
        second: accuracy of the baseline.
        difference: first - second.
        interval: (low, high), of the difference: 95 % of bootstrap resamples of the images lie within.
        only_first: images that only the first gets right.
        only_second: images that only the second gets right.
        p_value: of McNemar's exact test that both are equally good.
        num_samples: n.
    """

    first: float
    second: float
    difference: float
    interval: tuple[float, float]
    only_first: int
    only_second: int
    p_value: float
    num_samples: int

    @property
    def verdict(self) -> str:
        """One sentence."""
        low, high = (100 * bound for bound in self.interval)
        figures = f"{100 * self.difference:+.2f} points, 95 % from {low:+.2f} to {high:+.2f}, p = {self.p_value:.2g}"
        if self.p_value >= LEVEL:
            return f"These images do not tell the two models apart ({figures})."
        return f"The {'first' if self.difference > 0 else 'second'} model is better on these images ({figures})."

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"verdict": self.verdict}


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided exact p-value: how likely so uneven a split is if each discordant image is a toss of a coin.

    Args:
        only_first: images that only the first model gets right, at least 0.
        only_second: images that only the second gets right, at least 0.

    Returns:
        In (0, 1]; 1 without discordant images.

    Raises:
        ValueError: for a negative number.
    """
    check_range("only_first", only_first, low=0)
    check_range("only_second", only_second, low=0)
    n = only_first + only_second
    # Logarithms: 2^-n is no float for a thousand images.
    fewer = range(min(only_first, only_second) + 1)
    log = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2) for k in fewer)
    return min(1.0, 2 * math.fsum(map(math.exp, log)))


def compare(first: Evaluation, second: Evaluation, *, resamples: int = 10_000, seed: int = 0) -> Comparison:
    """Two evaluations on the same images in the same order.

    Args:
        first: of the model in question.
        second: of the baseline.
        resamples: of the bootstrap, at least 100.
        seed: of the bootstrap.

    Raises:
        ValueError: for evaluations on other images, as far as their labels show, or too few resamples.
    """
    if not torch.equal(first.labels, second.labels):
        raise ValueError(
            "second: expected the labels of first, image for image, "
            f"got {len(second.labels)} labels that are not those {len(first.labels)}"
        )
    right = [one.predictions == one.labels for one in (first, second)]
    return compare_answers(right[0], right[1], resamples=resamples, seed=seed)


def compare_answers(
    first: Bool[Tensor, " n"], second: Bool[Tensor, " n"], *, resamples: int = 10_000, seed: int = 0
) -> Comparison:
    """`compare` for answers that are known to be right or wrong.

    Args:
        first: `[n]` booleans, whether the model in question is right; n at least 1.
        second: the same of the baseline, on the same images.
        resamples: of the bootstrap, at least 100.
        seed: of the bootstrap.

    Raises:
        ValueError: for shapes that do not fit, or too few resamples.
    """
    check_shape("first", first, ("n",))
    check_shape("second", second, ("n",), n=len(first))
    check_range("number of images", len(first), low=1)
    check_range("resamples", resamples, low=100)
    n, one, two = len(first), int((first & ~second).sum()), int((second & ~first).sum())
    # Resampling images with replacement draws the three kinds of them from a multinomial distribution.
    drawn = np.random.default_rng(seed).multinomial(n, [one / n, two / n, (n - one - two) / n], size=resamples)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / n, [0.025, 0.975])
    return Comparison(
        first=float(first.double().mean()),
        second=float(second.double().mean()),
        difference=(one - two) / n,
        interval=(float(low), float(high)),
        only_first=one,
        only_second=two,
        p_value=mcnemar(one, two),
        num_samples=n,
    )
