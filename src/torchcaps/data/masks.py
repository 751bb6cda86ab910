"""Masks, a class for each pixel: sets with them, their pictures, and the files that hold them."""

import colorsys
import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadRequest, register_format
from torchcaps.data.dataset import Dataset, main_classes
from torchcaps.data.entries import Entry, check_fits, read_entries, row_split
from torchcaps.data.folder import split_folders
from torchcaps.data.images import contents_note, is_image_file, natural_key, opened, upright_size
from torchcaps.data.pixels import MAX_MASK_VALUE, resize_masks, size_pair
from torchcaps.data.reading import read_bytes, read_errors
from torchcaps.errors import DataError
from torchcaps.types import Names, StrPath

CLASS_TABLES = ("classes.txt", "classes.csv")
OPACITY = 0.45  # of the class colors in an overlay
# Distinct under every common color blindness, as far as possible; the background is black.
COLORS = bytes.fromhex("000000 E69F00 56B4E9 009E73 F0E442 0072B2 D55E00 CC79A7 A0A0A0")


def masked_set(images: Tensor, masks: Tensor, classes: Names, name: str) -> Dataset:
    """A set of images and masks, whose label is the class with most pixels of a mask.

    Args:
        images: `[n, channels, height, width]`, uint8 in 0..255 or float32 in [0, 1].
        masks: indices into `classes`, uint8 `[n, height, width]`.
        classes: names of the classes, the background first.
        name: name of the set.

    Returns:
        The set.
    """
    targets = {"label": main_classes(masks, len(classes)), "mask": masks}
    return Dataset(images, targets, classes, name)


def palette(num_classes: int) -> np.ndarray:
    """Colors of classes, uint8 `[num_classes, 3]`, the background first."""
    colors = list(COLORS)  # red, green and blue of each class
    for index in range(len(COLORS) // 3, num_classes):
        rgb = colorsys.hsv_to_rgb(0.618 * index % 1, 0.65, 0.9 - 0.35 * (index % 3) / 2)
        colors += [round(255 * level) for level in rgb]
    return np.array(colors, np.uint8).reshape(-1, 3)[:num_classes]


def write_mask(path: Path, mask: np.ndarray, num_classes: int) -> None:
    """Write a mask `[height, width]` as an indexed PNG, in the colors of `palette`."""
    image = Image.fromarray(mask)
    image.putpalette(palette(num_classes).tobytes())
    image.save(path, format="PNG")


def overlaid(image: np.ndarray, mask: np.ndarray, num_classes: int) -> np.ndarray:
    """An image with the colors of its mask over it, and lines where one class ends.

    Args:
        image: uint8 `[channels, height, width]`, gray or color.
        mask: class indices `[height, width]`.
        num_classes: number of classes with the background.

    Returns:
        uint8 `[height, width, 3]`.
    """
    colors = palette(num_classes)
    overlay = np.broadcast_to(image, (3, *mask.shape)).transpose(1, 2, 0).astype(np.float32)
    is_foreground = mask > 0
    overlay[is_foreground] *= 1 - OPACITY
    overlay[is_foreground] += OPACITY * colors[mask[is_foreground]]
    for axis, length in enumerate(mask.shape):
        previous = mask.take([0, *range(length - 1)], axis)
        is_edge = mask != previous
        overlay[is_edge] = colors[np.maximum(mask, previous)[is_edge]]
    return overlay.round().clip(0, 255).astype(np.uint8)


class MaskPair(NamedTuple):
    """An image file, its mask file, and its split where one is stated."""

    image: Path
    mask: Path
    split: str | None


def read_masks(root: StrPath, request: ReadRequest) -> Dataset:
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
            files = images | masks
            for stem in sorted(files, key=natural_key):
                if stem not in images or stem not in masks:
                    raise DataError(
                        f"{files[stem]}: there is no {'mask' if stem in images else 'image'} "
                        "of this name beside it"
                    )
                pairs.append(MaskPair(images[stem], masks[stem], split))
        return _read_pairs(root.resolve().name, pairs, root, request)


def read_mask_table(path: Path, rows: "csv.DictReader[str]", request: ReadRequest) -> Dataset:
    """Read the images and masks that a CSV with the columns `image` and `mask` names."""
    pairs = []
    for row in rows:
        line = f"{path} line {rows.line_num}"
        image, mask = (path.parent / row[column].strip() for column in ("image", "mask"))
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
        raise DataError(f"{name}: there are no images{contents_note(folder)}")
    sizes = []
    for pair in pairs:
        sizes.append(upright_size(pair.image))
        mask_size = upright_size(pair.mask)
        if mask_size != sizes[-1]:
            raise DataError(
                f"{pair.mask}: expected (height, width) {sizes[-1]}, as its image "
                f"{pair.image.name} has, got {mask_size}"
            )
    files = [str(file) for pair in pairs for file in pair[:2]]
    check_fits(name, sum(height * width for height, width in sizes), files, request)

    table = _read_class_table(folder)
    pixels = [_mask_pixels(pair.mask, table is not None and table.is_colored) for pair in pairs]
    table = table or _number_classes(pairs, pixels)
    size = size_pair(request.img_size or sizes[0])
    entries = []
    masks = []
    for pair, values in zip(pairs, pixels, strict=True):
        mask = table.to_indices(pair.mask, values)
        label = int(main_classes(mask, len(table.names)))
        entries.append(Entry(str(pair.image), (table.names[label],), pair.split))
        masks.append(resize_masks(mask, size))
    targets = {"mask": torch.cat(masks)}
    if not targets["mask"].any():
        raise DataError(
            f"{name}: every mask holds {table.names[0]!r} alone, the background; expected another class"
        )
    return read_entries(
        name, entries, request, can_stay=False, classes=table.names, targets=targets
    )


class _ClassTable(NamedTuple):
    """Names of classes, and the pixel value of each: a color is one number."""

    names: Names
    values: Sequence[int]
    source: str  # what states the values, for errors
    is_colored: bool = False

    def to_indices(self, file: Path, pixels: np.ndarray) -> Tensor:
        """The class of each pixel, uint8 `[1, height, width]`."""
        values, places = np.unique(pixels, return_inverse=True)
        for value in values.tolist():
            if value not in self.values:
                pixel = f"color {tuple(value.to_bytes(3))}" if self.is_colored else f"value {value}"
                raise DataError(f"{file}: {pixel} is no class of {self.source}")
        indices = np.array(list(map(self.values.index, values.tolist())), np.uint8)
        return torch.from_numpy(indices[places].reshape(1, *pixels.shape))


def _read_class_table(folder: Path) -> _ClassTable | None:
    file = next(filter(Path.is_file, map(folder.joinpath, CLASS_TABLES)), None)
    if not file:
        return None
    rows: list[tuple[str, bytes]] = []  # the name of a class, and the numbers after it
    with read_errors(file, "cannot be read as a table of classes"):
        for line in filter(str.strip, read_bytes(file).decode("utf-8-sig").splitlines()):
            name, numbers = re.findall(r"^(.+?)((?:[,;\s]+\d+)*)$", line.strip(" \t,;"))[0]
            rows.append((name, bytes(map(int, re.findall(r"\d+", numbers)))))
    if len(rows) > 1 and not rows[0][1] and rows[1][1]:
        rows = rows[1:]  # titles of columns
    names = tuple(name for name, _ in rows)
    counts = {len(numbers) for _, numbers in rows}
    values = [int.from_bytes(numbers) for _, numbers in rows] if any(counts) else range(len(rows))
    is_distinct = len(set(names)) == len(set(values)) == len(rows)
    if counts not in ({0}, {1}, {3}) or not is_distinct or not 2 <= len(rows) <= 256:
        raise DataError(
            f"{file}: expected a line for each of 2 to 256 classes, the background first: a name "
            "of its own, and in every line nothing more, a value up to 255, or the three of a "
            "color, which no other class has"
        )
    return _ClassTable(names, values, file.name, counts == {3})


def _number_classes(pairs: Sequence[MaskPair], pixels: Sequence[np.ndarray]) -> _ClassTable:
    """Classes of masks without a table."""
    maxima = [int(mask.max()) for mask in pixels]
    largest = max(maxima)
    if largest == 255 and all(np.isin(mask, (0, 255)).all() for mask in pixels):
        return _ClassTable(("background", "foreground"), (0, 255), "0 and 255")
    if largest > MAX_MASK_VALUE:
        raise DataError(
            f"{pairs[maxima.index(largest)].mask}: value {largest} is no class index up to "
            f"{MAX_MASK_VALUE}; name the classes and their values or colors in {CLASS_TABLES[0]}"
        )
    names = ("background", *(f"class {index}" for index in range(1, max(largest, 1) + 1)))
    return _ClassTable(names, range(len(names)), "the masks")


def _mask_pixels(file: Path, is_colored: bool) -> np.ndarray:
    """The number of each pixel of a mask, `[height, width]`.

    It is an index of a palette, a gray value, or red, green and blue in one number.
    """
    with opened(file) as image:
        if image.mode in ("P", "PA") and not is_colored:
            image = image.convert("P")
        elif not image.mode.startswith(("I", "F")):  # those are deeper than a byte
            image = image.convert("RGB")
        pixels = np.array(image, np.int64)
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
