"""Classes of a set: 0 or 1 for each, and matched with those of a model by name."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Int64, Shaped
from torch import Tensor

from torchcaps.data.dataset import Dataset
from torchcaps.errors import DataError


def multi_hot(
    labels: Shaped[Tensor, " n *classes"], num_classes: int
) -> Shaped[Tensor, "n classes"]:
    """1 for each class that an item shows, and 0 for the others.

    Args:
        labels: class indices `[n]`, or 0 and 1 `[n, classes]` of some of the classes.
        num_classes: number of classes.
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
    for target, rows in images.targets.items():
        if target in ("label", "mask"):
            indices = rows.long()
            check_known_classes(images, indices.unique(), classes)
            targets[target] = new_indices.to(rows.device)[indices].to(rows.dtype)
        elif target == "labels":
            shown = rows.any(dim=0).nonzero().flatten()
            check_known_classes(images, shown, classes)
            targets[target] = rows.new_zeros(len(rows), len(classes))
            targets[target][:, new_indices.to(rows.device)[shown]] = rows[:, shown]
    return replace(images, classes=classes, targets=targets)


def check_known_classes(images: Dataset, indices: Tensor, classes: tuple[str, ...]) -> None:
    """Check that the classes of a set with these indices are among those of a model.

    Raises:
        DataError: some are not; the message names them.
    """
    names = [images.classes[index] for index in indices.tolist()]
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise unknown_classes(images.name, unknown, classes)


def unknown_classes(name: str, unknown: Sequence[str], classes: Sequence[str]) -> DataError:
    """The error of images, in the set of this name, of classes that a model does not have."""
    return DataError(
        f"{name}: there are images of {', '.join(unknown)}, which the model does not know; its "
        f"{len(classes)} classes are {', '.join(classes)}"
    )
