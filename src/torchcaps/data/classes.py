"""Classes of a set, matched with those of a model by name."""

from dataclasses import replace
from typing import Any, TypeVar

import torch

from torchcaps.data.dataset import ImageSet
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
            indices = getattr(images, field)
            names = [images.classes[index] for index in indices.unique().tolist()]
            unknown = [name for name in names if name not in positions]
            if unknown:
                raise DataError(
                    f"{images.name}: there are images of {', '.join(unknown)}, which the model "
                    f"does not know; its {len(classes)} classes are {', '.join(classes)}"
                )
            matched = new_indices.to(indices.device)[indices.long()]
            tensors[field] = matched.to(indices.dtype)
    return replace(images, classes=classes, **tensors)
