"""Holding images out, class by class and the same way each time."""

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import DataError, check_range, check_shape

TEST_FRACTION = 0.2


def holdout(
    labels: Tensor, fraction_or_count: float, seed: int = 0, *, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Indices to keep and indices to hold out, in the same proportion from every class.

    Args:
        labels: `[n]`, integers, the class of each image.
        fraction_or_count: a float in (0, 1) is the fraction of each class, at least one image of every class that
            has two; an int in 1..n-1 is the number in all, shared among the classes by largest remainder.
        seed: 0 or more; the same seed gives the same split on every machine and version.
        groups: `[n]`, integers; images of one class with equal values stay together. The fraction is then one of the
            groups of each class, and a count is taken as the fraction it is of all images.

    Returns:
        (kept, held out): int64 indices on the CPU, each ascending, together all of 0..n-1. DataError where the
        fraction or count leaves nothing on one side.
    """
    array = labels.cpu().numpy()
    if groups is not None:  # each counts once
        pairs, member = np.unique(np.stack([array, groups.cpu().numpy()], axis=1), axis=0, return_inverse=True)
        share = fraction_or_count / len(array) if isinstance(fraction_or_count, int) else fraction_or_count
        sides = holdout(torch.from_numpy(pairs[:, 0].astype(np.int64)), share, seed)
        kept, out = (torch.from_numpy(np.flatnonzero(np.isin(member.reshape(-1), side.numpy()))) for side in sides)
        return kept, out
    _, sizes = np.unique(array, return_counts=True)
    held = np.zeros(len(array), dtype=bool)
    held[_drawn(array, _quotas(sizes, fraction_or_count), seed)] = True
    if held.all() or not held.any():
        raise DataError(f"holdout: {fraction_or_count} of {len(array)} images leaves nothing on one side")
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def few_labels(labels: Tensor, per_class: int, seed: int = 0) -> Tensor:
    """`[classes * per_class]` ascending indices of random images of each class; a smaller choice is part of a larger.

    `labels` are `[n]`, integers; ValueError unless `per_class` is from 1 to the images of the rarest class. The same
    seed, 0 or more, gives the same images on every machine and version.
    """
    check_shape("labels", labels, ("n",))
    array = labels.cpu().numpy()
    classes, counts = np.unique(array, return_counts=True)
    check_range("per_class", per_class, low=1)
    if counts.min() < per_class:
        rarest = int(classes[counts.argmin()])
        raise ValueError(f"per_class: expected at most {counts.min()}, the images of class {rarest}, got {per_class}")
    return torch.from_numpy(np.sort(_drawn(array, np.full(len(classes), per_class), seed)))


def _drawn(labels: np.ndarray, quotas: np.ndarray, seed: int) -> np.ndarray:
    # RandomState is frozen by numpy's policy; default_rng and torch.randperm may change between versions.
    random = np.random.RandomState(seed)
    pairs = zip(np.unique(labels), quotas, strict=True)
    return np.concatenate([random.permutation(np.flatnonzero(labels == label))[:quota] for label, quota in pairs])


def default_split(name: str, labels: Tensor, split: str) -> Tensor:
    """Indices of "train" or "test", 80 : 20 by seed 0; DataError, naming `name`, where no class has two images."""
    try:
        return holdout(labels, TEST_FRACTION, seed=0)[split == "test"]
    except DataError:
        raise DataError(f"{name}: no class has two images, so that none can be held out to test on") from None


def _quotas(sizes: np.ndarray, fraction_or_count: float) -> np.ndarray:
    if isinstance(fraction_or_count, int):
        total, count = int(sizes.sum()), fraction_or_count
        if not 0 < count < total:
            raise DataError(f"holdout: expected a count from 1 to {total - 1}, got {count}")
        exact = sizes * (count / total)
        quotas = np.floor(exact).astype(np.int64)
        quotas[np.argsort(quotas - exact, kind="stable")[: count - int(quotas.sum())]] += 1  # to those most owed
        return quotas
    if not 0 < fraction_or_count < 1:
        raise DataError(f"holdout: expected a fraction between 0 and 1 or a whole count, got {fraction_or_count}")
    return np.minimum(np.maximum(np.rint(sizes * fraction_or_count), 1), sizes - 1).astype(np.int64)
