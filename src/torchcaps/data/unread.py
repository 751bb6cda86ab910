"""Images of a data set before they are read: their number, sizes and classes."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data._registry import (
    FORMATS,
    ReadOptions,
    ReadRequest,
    dataset_info,
    list_datasets,
)
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import list_entries
from torchcaps.data.folder import label_files, scan_folder
from torchcaps.data.images import is_gray, opened
from torchcaps.data.pixels import Size, size_pair
from torchcaps.errors import DataError


def unread_images(name_or_path: str, img_size: Size, options: ReadOptions) -> Dataset | None:
    """The training images of a named set or of a folder of class folders, without their pixels.

    Of a folder, names are listed and the header of the first image is read.

    Args:
        name_or_path: see `load_dataset`.
        img_size: (height, width), or one side of a square, to resize to; None keeps the size.
        options: how image files are read.

    Returns:
        Black images that take no memory; None for what has to be read before this is known, such as
        a file of arrays, or has no images.
    """
    if name_or_path in list_datasets():
        info = dataset_info(name_or_path)
        if len(info.classes) < 2:  # no images, such as sets of points
            return None
        labels = torch.zeros(info.train, dtype=torch.long)
        return _black(info.name, labels, info.classes, info.image_shape, img_size)
    root = Path(name_or_path).expanduser()
    if not root.is_dir() or any(data_format.holds(root) for data_format in FORMATS.values()):
        return None
    request = ReadRequest("train", img_size, options=options)
    try:
        listing = list_entries(root.name, label_files(root, scan_folder(root), request), request)
        with opened(listing.files[0]) as image:
            width, height = image.size
        channels = 1 if is_gray(listing.files[0], listing.files[0]) else 3
    except DataError:  # said in words where the folder is read
        return None
    image_shape = (channels, height, width)
    return _black(
        root.name,
        (listing.targets.get("label") if "label" in listing.targets else listing.targets["labels"]),
        listing.classes,
        image_shape,
        img_size,
    )


def _black(
    name: str,
    labels: Tensor,
    classes: Sequence[str],
    image_shape: Sequence[int],
    img_size: Size,
) -> Dataset:
    """A set of black images, all of which are the same pixel in memory."""
    channels, *own_size = image_shape
    height, width = own_size if img_size is None else size_pair(img_size)
    pixels = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(len(labels), channels, height, width)
    target = "label" if labels.dim() == 1 else "labels"
    return Dataset(pixels, {target: labels}, tuple(classes), name)
