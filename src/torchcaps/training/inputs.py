"""What a person has, as a set of images: arrays of any usual layout, pictures, paths, labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from torchcaps.data import ImageSet, load_dataset
from torchcaps.data.dataset import numbered
from torchcaps.data.entries import check_sizes
from torchcaps.data.floats import ArraySet
from torchcaps.data.images import decode_image, natural_key
from torchcaps.data.pixels import MAX_CHANNELS, deep_to_bytes, to_channels
from torchcaps.errors import ArgumentError
from torchcaps.types import declares

NAME = "images in memory"
Array = ArrayLike | Tensor
Pictures = Sequence[Image.Image | str | Path]
Data = ImageSet | tuple[Array | Pictures, Array | Sequence[str]] | Array | Pictures | str | Path


class ModelSizes(NamedTuple):
    """What a model declares of its images and classes; None where it does not."""

    img_size: tuple[int, int] | None = None
    in_chans: int | None = None
    num_classes: int | None = None


UNKNOWN = ModelSizes()


def model_sizes(model: Any) -> ModelSizes:
    """The sizes of a model of the library; attributes of other modules mean other things."""
    if not declares(model):
        return ModelSizes()
    return ModelSizes(*(getattr(model, name, None) for name in ModelSizes._fields))


def as_set(data: Data, labels: Any = None, sizes: ModelSizes = UNKNOWN) -> ImageSet:
    """Images and labels as a set.

    Args:
        data: a set; the path of one; (images, labels); or images. Images are an array or a tensor
            `[n, channels, height, width]`, `[n, height, width, channels]` or `[n, height, width]`,
            uint8, uint16 or floats; or a list of pictures and paths of pictures.
        labels: `[n]` whole numbers or names, where `data` is images alone.
        sizes: of the model. Pictures and paths are brought to its size and channels.

    Returns:
        The set; an `ArraySet` where floats leave [0, 1], as after a normalization.

    Raises:
        ArgumentError: neither images nor labels.
        DataError: images and labels that make no set.
    """
    if isinstance(data, ImageSet) and labels is None:
        return data
    if isinstance(data, str | Path) and labels is None:
        return load_dataset(data, "train", img_size=sizes.img_size, in_chans=sizes.in_chans)
    images: Any = data
    if labels is None and isinstance(data, tuple) and len(data) == 2:
        images, labels = data
    if labels is None:
        raise ArgumentError(
            "data",
            "expected an ImageSet, a path, (images, labels), a Dataset, a DataLoader, or images "
            f"with labels beside them, got {type(data).__name__}",
        )
    pixels = image_tensor(images, sizes)
    classes, indices = class_indices(labels, sizes.num_classes)
    return make_set(pixels, indices, classes)


def make_set(
    pixels: Tensor, labels: Tensor, classes: tuple[str, ...], name: str = NAME
) -> ImageSet:
    """A set of images `[n, channels, height, width]`, an `ArraySet` where floats leave [0, 1]."""
    set_class = ImageSet if are_pictures(pixels) else ArraySet
    return set_class(pixels, labels, classes, name)


def are_pictures(pixels: Tensor) -> bool:
    """Whether values are meant to be those of pictures.

    Whole numbers up to 255 as floats are pictures that are not scaled, which `ImageSet` refuses.
    """
    if not pixels.is_floating_point() or pixels.numel() == 0:
        return True
    low, high = pixels.aminmax()
    if low >= 0 and high <= 1:
        return True
    return bool(low >= 0 and high <= 255 and (pixels == pixels.round()).all())


def image_tensor(images: Any, sizes: ModelSizes = UNKNOWN) -> Tensor:
    """Images of any usual layout as uint8 or float32 `[n, channels, height, width]`.

    Args:
        images: as in `as_set`.
        sizes: of the model, for pictures and paths.

    Raises:
        ArgumentError: no images.
        DataError: a picture that cannot be read, or pictures of several sizes.
    """
    if isinstance(images, list | tuple) and images and _is_picture(images[0]):
        return _decode(images, sizes)
    try:
        # numpy is asked first, because torch knows no uint16 in most of its functions.
        array = images if isinstance(images, Tensor) else np.asarray(images)
        if array.dtype == np.uint16:
            array = deep_to_bytes(array)
        pixels = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            "data", f"expected images as an array, a tensor or a list of pictures ({error})"
        ) from None
    if pixels.dim() == 3:
        pixels = pixels.unsqueeze(1)
    elif pixels.dim() == 4 and pixels.shape[3] <= MAX_CHANNELS < pixels.shape[1]:
        pixels = pixels.movedim(3, 1)
    if pixels.is_floating_point():
        return pixels.float().contiguous()
    if pixels.dtype != torch.uint8 and pixels.numel() and 0 <= pixels.min() <= pixels.max() <= 255:
        pixels = pixels.to(torch.uint8)
    return pixels.contiguous()


def _is_picture(image: Any) -> bool:
    return isinstance(image, Image.Image | str | Path)


def _decode(pictures: Pictures, sizes: ModelSizes) -> Tensor:
    """Pictures and paths, at the size of the model if it is known."""
    decoded = {}
    for index, picture in enumerate(pictures):
        name = str(picture) if isinstance(picture, str | Path) else f"image {index}"
        decoded[f"{index}: {name}"] = decode_image(
            picture, sizes.img_size, sizes.in_chans, name=name
        )
    check_sizes(NAME, decoded)
    channels = max(len(image) for image in decoded.values())
    return torch.cat([to_channels(image.unsqueeze(0), channels) for image in decoded.values()])


def class_indices(
    labels: Any, num_classes: int | None = None
) -> tuple[tuple[str, ...], Int64[Tensor, " n *k"]]:
    """Names of classes, and labels as indices into them.

    Numbers from 0 are indices. Numbers that begin later, as 1 to 3, are names, unless all of them
    are indices of the model's classes.

    Args:
        labels: `[n]` or `[n, k]` whole numbers, or `[n]` names.
        num_classes: of the model, if known.

    Returns:
        Names, in natural order, and indices.

    Raises:
        ArgumentError: other labels, or names that are not as many as the model's classes.
    """
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind == "f" and (array == np.rint(array)).all():
        array = array.astype(np.int64)
    if array.dtype.kind in "OUS" and all(isinstance(label, str) for label in array.ravel()):
        array = array.astype(str)
    elif array.dtype.kind not in "biu":
        raise ArgumentError("labels", f"expected whole numbers or names, got {array.dtype}")
    elif array.size == 0 or array.min() < 0:
        lowest = array.min() if array.size else "none"
        raise ArgumentError("labels", f"expected numbers from 0, or names, got {lowest}")
    elif array.min() == 0 or (num_classes is not None and array.max() < num_classes):
        classes = numbered("labels", max(int(array.max()), (num_classes or 0) - 1))
        return classes, torch.as_tensor(array.astype(np.int64))
    names = sorted(map(str, np.unique(array).tolist()), key=natural_key)
    if num_classes is not None and len(names) != num_classes:
        raise ArgumentError(
            "labels",
            f"expected {num_classes} classes, as the model has, got {len(names)}; "
            f"build it with num_classes={len(names)}",
        )
    index = dict(zip(names, range(len(names)), strict=True))
    indices = [index[name] for name in map(str, array.ravel().tolist())]
    return tuple(names), torch.tensor(indices).reshape(array.shape)
