"""Folds of cross-validation: disjoint parts of a set that have every class in equal shares."""

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape


def stratified_folds(
    labels: Int64[Tensor, " n"],
    num_folds: int,
    seed: int = 0,
    *,
    groups: Int64[Tensor, " n"] | None = None,
) -> Int64[Tensor, " n"]:
    """Divide images into folds, each with its share of every class.

    Args:
        labels: `[n]` classes, integers from 0.
        num_folds: 2 or more; at most n, and at most the number of groups.
        seed: 0 or more. The same seed gives the same folds on every machine and version.
        groups: `[n]` integers. Images with equal values are in one fold, whatever their classes.
            Without groups the folds differ by at most one image, in all and of each class. With
            groups they are as even as the groups allow.

    Returns:
        `[n]` the fold of each image, from 0, on the CPU. No fold is empty.

    Raises:
        ArgumentError: a number of folds out of range, or tensors that do not fit.
    """
    check_shape("labels", labels, ("n",))
    check_range("folds", num_folds, low=2)
    array = labels.cpu().numpy()
    units = np.arange(len(array))
    if groups is not None:
        check_shape("groups", groups, ("n",), n=len(labels))
        _, units = np.unique(groups.cpu().numpy(), return_inverse=True)
    num_units = int(units.max()) + 1
    if num_units < num_folds:
        kind = "images" if groups is None else "groups"
        raise ArgumentError("folds", f"expected at most {num_units}, the {kind}, got {num_folds}")
    # RandomState is frozen by numpy's policy; see `stratified_split`.
    order = np.random.RandomState(seed).permutation(num_units)
    if groups is None:
        return torch.from_numpy(_deal(array, order, num_folds))
    counts = np.zeros((num_units, int(array.max()) + 1))
    np.add.at(counts, (units, array), 1)
    return torch.from_numpy(_assign(counts, order, num_folds)[units])


def _deal(labels: NDArray[np.int64], order: NDArray[np.int64], num_folds: int) -> NDArray[np.int64]:
    """Deal images out to the folds in turn, class after class, as cards."""
    by_class = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(len(labels), dtype=np.int64)
    folds[by_class] = np.arange(len(labels)) % num_folds
    return folds


def _assign(
    counts: NDArray[np.float64], order: NDArray[np.int64], num_folds: int
) -> NDArray[np.int64]:
    """Assign groups to folds, the largest first, each where the classes then are most even.

    Args:
        counts: images of each class in each group, `[groups, classes]`.
        order: of groups of equal size.
        num_folds: number of folds.

    Returns:
        `[groups]` the fold of each.
    """
    # A class counts the same whatever its size.
    shares = counts / counts.sum(axis=0).clip(min=1)
    sizes = counts.sum(axis=1)
    by_size = order[np.argsort(-sizes[order], kind="stable")]
    fold_shares = np.zeros((num_folds, counts.shape[1]))
    fold_sizes = np.zeros(num_folds)
    folds = np.empty(len(counts), dtype=np.int64)
    for place, group in enumerate(by_size):
        # Adding s to a fold of share f raises the sum of squares by 2 f s + s²: the smaller the
        # sum, the more even are the folds.
        increases = fold_shares @ shares[group]
        fold = np.lexsort((fold_sizes, increases))[0]
        num_left = len(by_size) - place
        num_empty = int((fold_sizes == 0).sum())
        if num_left == num_empty:  # the other folds would stay empty
            fold = int(np.flatnonzero(fold_sizes == 0)[0])
        folds[group] = fold
        fold_shares[fold] += shares[group]
        fold_sizes[fold] += sizes[group]
    return folds
