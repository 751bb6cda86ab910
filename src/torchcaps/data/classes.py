"""Classes of a set: 0 or 1 for each, and their label tree.

Classes whose names are paths from coarse to fine, such as `clothing/tops/shirt`, form a label tree.
A set carries its tree in the names of its classes. So do its subsets, its splits, and the models
trained on it.

Items are held out, and divided into folds, class by class, and the same way each time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from torchcaps.errors import ArgumentError, DataError, check_positive, check_range, check_shape
from torchcaps.types import Names

Labels = Int64[Tensor, " n"]  # class indices

TEST_FRACTION = 0.2  # of the images of a folder without splits
SEPARATOR = "/"  # between the levels of a label tree in the name of a class


def multi_hot(
    labels: Shaped[Tensor, " n *classes"], num_classes: int
) -> Shaped[Tensor, "n classes"]:
    """1 for each class that an item shows, and 0 for the others.

    Args:
        labels: class indices `[n]`, or 0 and 1 `[n, classes]` of some of the classes.
        num_classes: number of classes.

    Returns:
        0 and 1, `[n, num_classes]`.
    """
    if labels.dim() == 2:
        return torch.nn.functional.pad(labels, (0, num_classes - labels.shape[1]))
    targets = torch.zeros(len(labels), num_classes, dtype=torch.uint8, device=labels.device)
    return targets.scatter_(1, labels.unsqueeze(1), 1)


def class_counts(
    labels: Shaped[Tensor, " n *classes"], num_classes: int
) -> Int64[Tensor, " classes"]:
    """Number of items that show each class; labels as `multi_hot` takes them."""
    if labels.dim() == 1:
        return labels.bincount(minlength=num_classes)
    return multi_hot(labels, num_classes).sum(dim=0)


def unknown_classes(name: str, unknown: Sequence[str], classes: Sequence[str]) -> DataError:
    """The error of images, in the set of this name, of classes that a model does not have."""
    return DataError(
        f"{name}: there are images of {', '.join(unknown)}, which the model does not know; its "
        f"{len(classes)} classes are {', '.join(classes)}"
    )


class LabelTree(NamedTuple):
    """The levels of a label tree, two or more.

    Attributes:
        levels: the paths of the classes of each level, coarse to fine. The last level has the
            classes of the set.
        parents: of each level but the first, the indices of its classes' parents in the level
            above.
    """

    levels: tuple[Names, ...]
    parents: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each level."""
        return tuple(map(len, self.levels))

    @property
    def ancestors(self) -> list[list[int]]:
        """The index of each class in every level, coarse to fine: `[classes][levels]`."""
        paths = [[index] for index in range(self.sizes[-1])]
        for parents in reversed(self.parents):
            paths = [[parents[path[0]], *path] for path in paths]
        return paths


def label_tree(classes: Sequence[str]) -> LabelTree | None:
    """The tree in the names of classes, such as "clothing/tops/shirt".

    Args:
        classes: names of the classes.

    Returns:
        The tree; None unless all names are paths of one depth of at least 2.
    """
    depths = {name.count(SEPARATOR) for name in classes}
    if len(depths) != 1 or depths == {0}:
        return None
    levels = [tuple(classes)]
    parents: list[tuple[int, ...]] = []
    for _ in range(depths.pop()):
        parent_names = [name.rpartition(SEPARATOR)[0] for name in levels[0]]
        level = tuple(dict.fromkeys(parent_names))
        levels.insert(0, level)
        parents.insert(0, tuple(map(level.index, parent_names)))
    return LabelTree(tuple(levels), tuple(parents))


def stratified_split(
    labels: Tensor,
    fraction_or_count: float,
    seed: int = 0,
    *,
    groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Split images in two parts, in the same proportion from every class.

    Args:
        labels: `[n]` integers.
        fraction_or_count: a float in (0, 1) is the fraction of each class to hold out, at least one
            image of every class that has two. An int in 1..n-1 is the number in all, divided among
            the classes by largest remainder.
        seed: 0 or more. The same seed gives the same split on every machine and version.
        groups: `[n]` integers. Images of one class with equal values stay together: the fraction is
            then one of the groups of each class, and a count is taken as the fraction it is of all
            images.

    Returns:
        Indices to keep and indices to hold out: int64 on the CPU, each ascending, together all of
        0..n-1.

    Raises:
        DataError: nothing is left on one side.

    Example:
        >>> train, test = stratified_split(torch.tensor([0, 0, 0, 1, 1, 1]), 2)
        >>> len(train), len(test)
        (4, 2)
    """
    array = labels.cpu().numpy()
    num_images = len(array)
    if groups is None:
        _, sizes = np.unique(array, return_counts=True)
        is_test = np.zeros(num_images, bool)
        is_test[_choose(array, _quotas(sizes, fraction_or_count), seed)] = True
    else:  # each group counts once
        members = np.column_stack([array, groups.cpu().numpy()])
        pairs, group_of_image = np.unique(members, axis=0, return_inverse=True)
        fraction = fraction_or_count
        if isinstance(fraction_or_count, int):
            fraction = fraction_or_count / num_images
        _, test_groups = stratified_split(torch.from_numpy(pairs[:, 0]), fraction, seed)
        is_test = np.isin(group_of_image.ravel(), test_groups.numpy())
    if is_test.all() or not is_test.any():
        raise DataError(
            f"holdout: {fraction_or_count} of {num_images} images leaves nothing on one side"
        )
    kept, held_out = map(np.flatnonzero, (~is_test, is_test))
    return torch.from_numpy(kept), torch.from_numpy(held_out)


def first_labels(labels: Tensor) -> Labels:
    """The class of each item `[n]`; of several classes `[n, classes]` the first one."""
    return labels if labels.dim() == 1 else labels.argmax(dim=1)


def group_strata(labels: Tensor, groups: Tensor | None) -> Labels:
    """The class by which each image is counted in a split that keeps groups together.

    A group whose images are of several classes counts for the rarest of them, which would else be
    easily missing on one side.

    Args:
        labels: `[n]` integers.
        groups: `[n]` integers; None where each image is by itself.

    Returns:
        `[n]`, on the CPU with groups: one class for all images of a group.
    """
    if groups is None:
        return labels
    array = labels.cpu().numpy()
    rarest_first = np.argsort(np.bincount(array)[array], kind="stable")
    group_array = groups.cpu().numpy()[rarest_first]
    _, positions, group_of_image = np.unique(group_array, return_index=True, return_inverse=True)
    strata = np.empty_like(array)
    strata[rarest_first] = array[rarest_first][positions[group_of_image.ravel()]]
    return torch.from_numpy(strata)


def few_labels(labels: Tensor, per_class: int, seed: int = 0) -> Tensor:
    """Choose random images of each class; a smaller choice is part of a larger one.

    Args:
        labels: `[n]` integers.
        per_class: from 1 to the images of the rarest class.
        seed: 0 or more. The same seed gives the same images on every machine and version.

    Returns:
        Ascending indices `[classes * per_class]`.

    Raises:
        ArgumentError: another shape of labels, or `per_class` out of range.
    """
    check_shape("labels", labels, ("n",))
    array = labels.cpu().numpy()
    classes, sizes = np.unique(array, return_counts=True)
    check_positive(per_class=per_class)
    if sizes.min() < per_class:
        raise ArgumentError(
            "per_class",
            f"expected at most {sizes.min()}, the images of class {classes[sizes.argmin()]}, "
            f"got {per_class}",
        )
    return torch.from_numpy(np.sort(_choose(array, np.full(len(classes), per_class), seed)))


def _choose(labels: np.ndarray, quotas: np.ndarray, seed: int) -> np.ndarray:
    """Random indices, so many of each class."""
    # RandomState is frozen by numpy's policy; default_rng and torch.randperm may change between
    # versions.
    random = np.random.RandomState(seed)
    return np.concatenate(
        [
            random.permutation(np.flatnonzero(labels == label))[:quota]
            for label, quota in zip(np.unique(labels), quotas, strict=True)
        ]
    )


def _quotas(sizes: np.ndarray, fraction_or_count: float) -> np.ndarray:
    """How many images of each class to hold out."""
    if isinstance(fraction_or_count, int):
        count = fraction_or_count
        total = int(sizes.sum())
        if not 0 < count < total:
            raise DataError(f"holdout: expected a count from 1 to {total - 1}, got {count}")
        exact = sizes * (count / total)
        quotas = np.floor(exact).astype(np.int64)
        remainders = np.argsort(quotas - exact, kind="stable")  # largest first
        quotas[remainders[: count - int(quotas.sum())]] += 1
        return quotas
    if not 0 < fraction_or_count < 1:
        raise DataError(
            f"holdout: expected a fraction between 0 and 1 or a whole count, got {fraction_or_count}"
        )
    quotas = np.rint(sizes * fraction_or_count).clip(1)
    return np.minimum(quotas, sizes - 1).astype(np.int64)


def stratified_folds(
    labels: Labels,
    num_folds: int,
    seed: int = 0,
    *,
    groups: Labels | None = None,
) -> Labels:
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
    folds = np.empty(num_units, np.int64)
    if groups is None:
        # Dealt out to the folds in turn, class after class, as cards.
        folds[order[np.argsort(array[order], kind="stable")]] = np.arange(num_units) % num_folds
        return torch.from_numpy(folds)
    # The largest groups first, each where the classes then are most even; `order` is that of groups
    # of equal size. A class counts the same whatever its size.
    counts = np.zeros((num_units, int(array.max()) + 1))  # [groups, classes]
    np.add.at(counts, (units, array), 1)
    shares = counts / counts.sum(axis=0).clip(min=1)
    sizes = counts.sum(axis=1)
    by_size = order[np.argsort(-sizes[order], kind="stable")]
    fold_shares = np.zeros((num_folds, counts.shape[1]))
    fold_sizes = np.zeros(num_folds)
    for place, group in enumerate(by_size):
        # Adding s to a fold of share f raises the sum of squares by 2 f s + s²: the smaller the
        # sum, the more even are the folds.
        fold = np.lexsort((fold_sizes, fold_shares @ shares[group]))[0]
        empty = np.flatnonzero(fold_sizes == 0)
        if num_units - place == len(empty):  # the other folds would stay empty
            fold = empty[0]
        folds[group] = fold
        fold_shares[fold] += shares[group]
        fold_sizes[fold] += sizes[group]
    return torch.from_numpy(folds[units])
