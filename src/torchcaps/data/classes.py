"""Classes of a set, matched with those of a model by name."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from torchcaps.data.dataset import NO_LABEL, ImageSet
from torchcaps.errors import DataError

S = TypeVar("S", bound=ImageSet)
CLASS_INDICES = ("labels", "masks")  # tensors of sets that hold indices into the classes


def match_classes(images: S, classes: tuple[str, ...]) -> S:
    """The set with the classes of a model, matched by name.

    Args:
        images: the set.
        classes: names of the classes of the model. Some of them may have no images here.

    Returns:
        The set with labels that are indices into `classes`, and masks where it has them.

    Raises:
        DataError: images are of a class that is not among these; the message names it.
    """
    if images.classes == classes:
        return images
    positions = {name: index for index, name in enumerate(classes)}
    new_indices = torch.tensor([positions.get(name, -1) for name in images.classes])
    tensors: dict[str, Any] = {}
    for field in CLASS_INDICES:
        if field in images.per_image:
            tensor = getattr(images, field)
            indices = tensor.long()
            is_class = indices != NO_LABEL
            names = [images.classes[index] for index in indices[is_class].unique().tolist()]
            unknown = [name for name in names if name not in positions]
            if unknown:
                raise unknown_classes(images.name, unknown, classes)
            matched = new_indices.to(indices.device)[indices].where(is_class, NO_LABEL)
            tensors[field] = matched.to(tensor.dtype)
    return replace(images, classes=classes, **tensors)


def unknown_classes(name: str, unknown: Sequence[str], classes: Sequence[str]) -> DataError:
    """The error of images, in the set of this name, of classes that a model does not have."""
    return DataError(
        f"{name}: there are images of {', '.join(unknown)}, which the model does not know; its "
        f"{len(classes)} classes are {', '.join(classes)}"
    )
