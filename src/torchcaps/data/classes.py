"""Classes of a set: 0 or 1 for each, matched with those of a model by name, and their label tree.

Classes whose names are paths from coarse to fine, such as `clothing/tops/shirt`, form a label tree.
A set carries its tree in the names of its classes. So do its subsets, its splits, and the models
trained on it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int64, Shaped
from torch import Tensor

from torchcaps.data.dataset import Dataset
from torchcaps.errors import DataError

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
        return F.pad(labels, (0, num_classes - labels.shape[1]))
    targets = torch.zeros(len(labels), num_classes, dtype=torch.uint8, device=labels.device)
    return targets.scatter_(1, labels.unsqueeze(1), 1)


def class_counts(
    labels: Shaped[Tensor, " n *classes"], num_classes: int
) -> Int64[Tensor, " classes"]:
    """Number of items that show each class; labels as `multi_hot` takes them."""
    if labels.dim() == 1:
        return labels.bincount(minlength=num_classes)
    return multi_hot(labels, num_classes).sum(dim=0)


def match_classes(images: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The set with the classes of a model, matched by name.

    Args:
        images: the set.
        classes: names of the classes of the model. Some of them may have no images here.

    Returns:
        The set with labels and masks that refer to `classes`.

    Raises:
        DataError: images are of a class that is not among these; the message names it.
    """
    if images.classes == classes:
        return images
    positions = {name: index for index, name in enumerate(classes)}
    new_indices = torch.tensor([positions.get(name, -1) for name in images.classes])
    targets = dict(images.targets)
    for target in {"label", "labels", "mask"} & targets.keys():
        rows = targets[target]
        is_hot = target == "labels"
        shown = rows.any(dim=0).nonzero().flatten() if is_hot else rows.long().unique()
        names = [images.classes[index] for index in shown.tolist()]
        unknown = [name for name in names if name not in positions]
        if unknown:
            raise unknown_classes(images.name, unknown, classes)
        mapping = new_indices.to(rows.device)
        if is_hot:
            targets[target] = rows.new_zeros(len(rows), len(classes))
            targets[target][:, mapping[shown]] = rows[:, shown]
        else:
            targets[target] = mapping[rows.long()].to(rows.dtype)
    return replace(images, classes=classes, targets=targets)


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

    levels: tuple[tuple[str, ...], ...]
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
