"""Holding images out, class by class and the same way each time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import DataError

TEST_FRACTION = 0.2


def holdout(labels: Tensor, fraction_or_count: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices to keep and indices to hold out, in the same proportion from every class.

    Within each class the indices are permuted by a seeded generator and the first of them are held out.

    Args:
        labels: `[n]`, integers, the class of each image.
        fraction_or_count: a float in (0, 1) is the fraction of each class, at least one image of every class that
            has two; an int in 1..n-1 is the number in all, shared among the classes by largest remainder.
        seed: 0 or more; the same seed gives the same split on every machine and version.

    Returns:
        (kept, held out): int64 index tensors on the CPU, each ascending, disjoint, together all of 0..n-1.

    Raises:
        DataError: the fraction or count leaves nothing on one side.
    """
    array = labels.cpu().numpy()
    classes, sizes = np.unique(array, return_counts=True)
    quotas = _quotas(sizes, fraction_or_count)
    # RandomState is frozen by numpy's policy; default_rng and torch.randperm may change between versions.
    random = np.random.RandomState(seed)
    held = np.zeros(len(array), dtype=bool)
    for label, quota in zip(classes, quotas, strict=True):
        held[random.permutation(np.flatnonzero(array == label))[:quota]] = True
    if held.all() or not held.any():
        raise DataError(f"holdout: {fraction_or_count} of {len(array)} images leaves nothing on one side")
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def default_split(name: str, labels: Tensor, split: str) -> Tensor:
    """Indices of "train" or "test" for a set that has no split of its own: 80 : 20, class by class, by seed 0.

    Args:
        name: the set's name or path, for errors.
        labels: `[n]`, integers, the class of each image.
        split: "train" or "test".

    Raises:
        DataError: no class has two images.
    """
    try:
        return holdout(labels, TEST_FRACTION, seed=0)[split == "test"]
    except DataError:
        raise DataError(f"{name}: no class has two images, so that none can be held out to test on") from None


def _quotas(sizes: np.ndarray, fraction_or_count: float) -> np.ndarray:
    if isinstance(fraction_or_count, int):
        return _share(sizes, fraction_or_count)
    if not 0 < fraction_or_count < 1:
        raise DataError(f"holdout: expected a fraction between 0 and 1 or a whole count, got {fraction_or_count}")
    return np.minimum(np.maximum(np.rint(sizes * fraction_or_count), 1), sizes - 1).astype(np.int64)


def _share(sizes: np.ndarray, count: int) -> np.ndarray:
    total = int(sizes.sum())
    if not 0 < count < total:
        raise DataError(f"holdout: expected a count from 1 to {total - 1}, got {count}")
    exact = sizes * (count / total)
    quotas = np.floor(exact).astype(np.int64)
    most_owed = np.argsort(quotas - exact, kind="stable")[: count - int(quotas.sum())]
    quotas[most_owed] += 1
    return quotas
