"""Images with a class for each pixel: folders of images and masks, or a CSV that names both."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadRequest, register_format
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import check_fits, in_split, row_split
from torchcaps.data.folder import split_folders
from torchcaps.data.images import (
    check_sizes,
    decode_image,
    is_gray,
    is_image_file,
    natural_key,
    opened,
)
from torchcaps.data.masks import main_classes
from torchcaps.data.pixels import fit_images, resize_masks
from torchcaps.data.reading import read_bytes, read_errors
from torchcaps.errors import DataError

CLASS_TABLES = ("classes.txt", "classes.csv")
MAX_MASK_VALUE = 32  # of a mask without a table of classes


class MaskPair(NamedTuple):
    """An image file, its mask file, and its split where one is stated."""

    image: Path
    mask: Path
    split: str | None


def read_masks(root: str | Path, request: ReadRequest) -> Dataset:
    """Read `root/images/*` with `root/masks/*`, or both within `root/train/` and `root/test/`.

    The names of an image and its mask are equal but for the ending. Without train/ and test/, 20 %
    of the images are the test split, chosen as in `read_folder` by the main class of each image.

    A mask has the size of its image. Its pixels are class indices (of a palette, or gray values; 0
    and 255 alone are background and foreground), unless a table says otherwise: `root/classes.txt`
    or `classes.csv` with a line for each class, the background first. A line has the name, then
    nothing, a gray value, or the three numbers of a color, separated by commas or blanks.

    Args:
        root: the folder.
        request: without a size, all images must have one size. Without channels, they are 1 when
            every image is gray, otherwise 3.

    Returns:
        The images of the split that is requested, with their masks.

    Raises:
        DataError: an image without a mask or the reverse, a mask of another size, a color or value
            that is no class, masks that hold the background alone, an unreadable file, or mixed
            sizes.
    """
    root = Path(root)
    pairs = []
    with read_errors(root):
        for folder, split in split_folders(root, _has_masks):
            images, masks = (_files_by_stem(folder / kind) for kind in ("images", "masks"))
            for stem in sorted({*images, *masks}, key=natural_key):
                if stem not in images or stem not in masks:
                    missing = "mask" if stem in images else "image"
                    file = images.get(stem) or masks[stem]
                    raise DataError(f"{file}: there is no {missing} of this name beside it")
                pairs.append(MaskPair(images[stem], masks[stem], split))
        return _read_pairs(root.resolve().name, pairs, root, request)


def read_mask_table(path: Path, rows: csv.DictReader[str], request: ReadRequest) -> Dataset:
    """Read the images and masks that a CSV with the columns `image` and `mask` names."""
    pairs = []
    for row in rows:
        line = f"{path} line {rows.line_num}"
        image, mask = (path.parent / (row[column] or "").strip() for column in ("image", "mask"))
        for file in (image, mask):
            if not file.is_file():
                raise DataError(f"{line}: no such file {file}")
        pairs.append(MaskPair(image, mask, row_split(line, row)))
    return _read_pairs(path.stem, pairs, path.parent, request)


def _has_masks(folder: Path) -> bool:
    return (folder / "images").is_dir() and (folder / "masks").is_dir()


register_format(
    "a folder with images/ and masks/",
    lambda path: any(map(_has_masks, (path, path / "train", path / "test"))),
    read_masks,
    splits=SPLITS_WITH_VAL,
)


def _files_by_stem(folder: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file in folder.iterdir():
        if is_image_file(file) and file.is_file():
            if file.stem in files:
                raise DataError(
                    f"{file}: another file of {folder.name}/ has the same name but for the ending"
                )
            files[file.stem] = file
    return files


def _read_pairs(
    name: str, pairs: Sequence[MaskPair], folder: Path, request: ReadRequest
) -> Dataset:
    if not pairs:
        raise DataError(f"{name}: there are no images")
    table = _read_class_table(folder)
    pixels: list[NDArray[np.int64]] = []
    num_bytes = 0
    files = [str(file) for pair in pairs for file in (pair.image, pair.mask)]
    for pair in pairs:
        pixels.append(_mask_pixels(pair.mask, table is not None and table.is_colored))
        num_bytes += pixels[-1].size
        check_fits(name, num_bytes, files, request)
    table = table or _number_classes(pairs, pixels)
    masks = []
    for pair, values in zip(pairs, pixels, strict=True):
        masks.append(torch.from_numpy(table.to_indices(pair.mask, values))[None])
    labels = torch.cat([main_classes(mask, len(table.names)) for mask in masks])
    if not labels.any():
        raise DataError(
            f"{name}: every mask holds {table.names[0]!r} alone, the background; "
            "expected another class"
        )
    indices = in_split(name, [pair.split for pair in pairs], labels, request)
    in_chans = request.in_chans or (1 if all(is_gray(pair.image) for pair in pairs) else 3)
    images = {}
    split_masks = []
    for index in indices:
        file, mask_file, _ = pairs[index]
        image = decode_image(file)
        size, mask_size = (tuple(each.shape[1:]) for each in (image, masks[index]))
        if size != mask_size:
            raise DataError(
                f"{mask_file}: expected (height, width) {size}, as its image {file.name} has, "
                f"got {mask_size}"
            )
        image = fit_images(image[None], request.img_size, in_chans)[0]
        images[f"{index}: {file}"] = image
        split_masks.append(resize_masks(masks[index], image.shape[1:]))
    check_sizes(name, images)
    targets = {"label": labels[indices], "mask": torch.cat(split_masks)}
    return Dataset(torch.stack(list(images.values())), targets, table.names, name)


class _ClassTable(NamedTuple):
    """Names of classes, and the pixel value of each, `[classes]`: a color is one number."""

    names: tuple[str, ...]
    values: NDArray[np.int64]
    source: str  # what states the values, for errors
    is_colored: bool = False

    def to_indices(self, file: Path, pixels: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The class of each pixel."""
        order = np.argsort(self.values)
        ranks = np.searchsorted(self.values, pixels, sorter=order)
        indices = order[ranks.clip(max=len(order) - 1)]
        unknown = np.argwhere(self.values[indices] != pixels)
        if len(unknown):
            row, column = unknown[0]
            value = int(pixels[row, column])
            pixel = f"color {tuple(value.to_bytes(3))}" if self.is_colored else f"value {value}"
            raise DataError(
                f"{file}: {pixel} at row {row}, column {column} is no class of {self.source}"
            )
        return indices.astype(np.uint8)


def _read_class_table(folder: Path) -> _ClassTable | None:
    file = next(filter(Path.is_file, map(folder.joinpath, CLASS_TABLES)), None)
    if file is None:
        return None
    rows: list[tuple[str, list[int]]] = []  # the name of a class, and the numbers after it
    with read_errors(file, "cannot be read as a table of classes"):
        for line in filter(str.strip, read_bytes(file).decode("utf-8-sig").splitlines()):
            words = re.split(r"[,;\s]+", line.strip().strip(",;"))
            numbers: list[int] = []
            while len(words) > 1 and words[-1].isdecimal():
                numbers.insert(0, int(words.pop()))
            rows.append((" ".join(words), numbers))
    if len(rows) > 1 and not rows[0][1] and rows[1][1]:
        rows = rows[1:]  # titles of columns
    names = tuple(name for name, _ in rows)
    counts = {len(numbers) for _, numbers in rows}
    is_valid = counts in ({0}, {1}, {3}) and max(max(row[1], default=0) for row in rows) < 256
    if not (is_valid and all(names) and 2 <= len(set(names)) == len(names) <= 256):
        raise DataError(
            f"{file}: expected a line for each of 2 to 256 classes, the background first: a name "
            "of its own, and in every line nothing more, a value up to 255, or the three of a color"
        )
    values = np.arange(len(names))
    if counts != {0}:
        values = np.array([int.from_bytes(bytes(numbers)) for _, numbers in rows])
    if len(np.unique(values)) < len(values):
        raise DataError(f"{file}: two classes have the same value or color")
    return _ClassTable(names, values, file.name, counts == {3})


def _number_classes(pairs: Sequence[MaskPair], pixels: Sequence[NDArray[np.int64]]) -> _ClassTable:
    """Classes of masks without a table."""
    maxima = [int(mask.max()) for mask in pixels]
    largest = max(maxima)
    if largest == 255 and all(np.isin(mask, (0, 255)).all() for mask in pixels):
        return _ClassTable(("background", "foreground"), np.array([0, 255]), "0 and 255")
    if largest > MAX_MASK_VALUE:
        raise DataError(
            f"{pairs[maxima.index(largest)].mask}: value {largest} is no class index up to "
            f"{MAX_MASK_VALUE}; name the classes and their values or colors in {CLASS_TABLES[0]}"
        )
    names = ("background", *(f"class {index}" for index in range(1, max(largest, 1) + 1)))
    return _ClassTable(names, np.arange(len(names)), "the masks")


def _mask_pixels(file: Path, is_colored: bool) -> NDArray[np.int64]:
    """The number of each pixel of a mask, `[height, width]`.

    It is an index of a palette, a gray value, or red, green and blue in one number.
    """
    with opened(file) as image:
        if image.mode in ("P", "PA") and not is_colored:
            image = image.convert("P")
        elif not (image.mode.startswith("I") or image.mode == "F"):  # those are deeper than a byte
            image = image.convert("RGB")
        pixels = np.asarray(image).astype(np.int64)
    if pixels.ndim == 2:
        return pixels
    red, green, blue = np.moveaxis(pixels, 2, 0)
    if is_colored:
        return red << 16 | green << 8 | blue
    if (pixels != red[..., None]).any():
        raise DataError(
            f"{file}: the mask is in colors; name the classes and their colors in {CLASS_TABLES[0]}"
        )
    return red
