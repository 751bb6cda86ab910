"""Images with a class for each pixel: a folder of images beside one of masks, or a CSV that names both."""

from __future__ import annotations

import colorsys
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Generator, Tensor

from torchcaps.data._registry import register_format
from torchcaps.data.augment.crop import center_crop
from torchcaps.data.budget import MemoryBudget, open_reader, read_errors
from torchcaps.data.dataset import ImageBatch, ImageSet
from torchcaps.data.entries import check_sizes, in_split, row_split
from torchcaps.data.images import decode_image, is_gray, is_image_name, natural_key, opened
from torchcaps.data.pixels import Size, fit_images
from torchcaps.errors import DataError

TABLES = ("classes.txt", "classes.csv")
TINT = 0.45  # share of the color in an overlay
LARGEST = 32  # value of a mask without a table of classes
# Told apart with every common color blindness, as far as that goes; the background is black.
COLORS = (
    (0, 0, 0),
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
    (160, 160, 160),
)


@dataclass(frozen=True, eq=False, repr=False)
class MaskedSet(ImageSet):
    """Images with a class for each pixel; the first class is the background.

    The label of an image is the class with most of its pixels, the background only where there is no other.
    """

    masks: UInt8[Tensor, "n height width"] = field(kw_only=True)  # indices into `classes`
    per_image: ClassVar[tuple[str, ...]] = ("images", "labels", "masks")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masks.dtype != torch.uint8 or self.masks.shape != (len(self), *self.img_size):
            want = f"a uint8 mask {list(self.img_size)} for each of {len(self)} images"
            raise DataError(
                f"{self.name}: expected {want}, got {list(self.masks.shape)} of {self.masks.dtype}"
            )
        if int(self.masks.max()) >= self.num_classes:
            raise DataError(
                f"{self.name}: class {int(self.masks.max())} of a mask is none of {self.num_classes}"
            )

    @classmethod
    def of(cls, images: Tensor, masks: Tensor, classes: tuple[str, ...], name: str) -> Self:
        """A set of these images and masks, which are as the attributes."""
        return cls(images, main_classes(masks, len(classes)), classes, name, masks=masks)

    def sample_batch(self, indices: Tensor | Sequence[int], *, generator: Generator) -> ImageBatch:
        return (
            super()
            .sample_batch(indices, generator=generator)
            ._replace(masks=self.masks[self._index(indices)].long())
        )

    def resized(self, img_size: Size, in_chans: int | None) -> Self:
        images = fit_images(self.images, img_size, in_chans)
        return replace(self, images=images, masks=_resized(self.masks, images.shape[2:]))

    def cropped(self, side: int) -> Self:
        masks = center_crop(self.masks.unsqueeze(1), side).squeeze(1).contiguous()
        return replace(super().cropped(side), masks=masks)


def main_classes(masks: Tensor, classes: int) -> Tensor:
    """The class with most pixels of each mask `[n, height, width]`, the background only where there is no other."""
    counts = torch.stack([(masks == k).flatten(1).sum(dim=1) for k in range(1, classes)], dim=1)
    return torch.where(counts.sum(dim=1) > 0, 1 + counts.argmax(dim=1), 0)


def palette(count: int) -> NDArray[np.uint8]:
    """Colors of so many classes `[count, 3]`, the background first."""
    more = [
        colorsys.hsv_to_rgb(0.618 * k % 1, 0.65, 0.9 - 0.35 * (k % 3) / 2)
        for k in range(len(COLORS), count)
    ]
    found = [*COLORS[:count], *np.rint(255 * np.array(more).reshape(-1, 3))]
    return np.array(found, dtype=np.uint8)


def write_mask(path: Path, mask: NDArray[np.uint8], classes: int) -> None:
    """Write a mask `[height, width]` as an indexed PNG: numbers of classes, in the colors of `palette`."""
    image = Image.fromarray(mask)
    image.putpalette(palette(classes).tobytes())
    image.save(path, format="PNG")


def overlaid(image: NDArray[np.uint8], mask: NDArray[np.uint8], classes: int) -> NDArray[np.uint8]:
    """An image `[channels, height, width]` with the colors of its mask over it, `[height, width, 3]`."""
    shown = np.broadcast_to(image, (3, *mask.shape))
    colors, inside = palette(classes), mask > 0
    found = shown.transpose(1, 2, 0).astype(np.float32)
    found[inside] = (1 - TINT) * found[inside] + TINT * colors[mask[inside]]
    for axis in (0, 1):  # lines where one class ends
        other = np.roll(mask, 1, axis=axis)
        edge = mask != other
        edge[(0,) if axis == 0 else (slice(None), 0)] = False
        found[edge] = colors[np.maximum(mask, other)[edge]]
    return found.round().clip(0, 255).astype(np.uint8)


class Pair(NamedTuple):
    """An image file, its mask, and its split where one is given."""

    image: Path
    mask: Path
    split: str | None


def read_masks(
    root: str | Path,
    split: str = "train",
    img_size: Size = None,
    in_chans: int | None = None,
    budget: MemoryBudget | None = None,
) -> MaskedSet:
    """Read `root/images/*` with `root/masks/*`, whose names are equal but for the ending; or both within train/, test/.

    Without the level train/ and test/, 20 % of the images are the test split, chosen as in `read_folder` by the main
    class of each image; the arguments are as there. A mask has the size of its image. Its pixels are numbers of classes
    (indices of a palette, or gray values; 0 and 255 alone are background and foreground), unless a table says
    otherwise: `root/classes.txt` or `classes.csv` with a line for each class, the background first: its name, then
    nothing, a gray value, or the three numbers of a color, apart by commas or blanks.

    DataError: an image without a mask or the reverse, a mask of another size, a color or value that is no class, masks
    that show background alone, an unreadable file, or mixed sizes.
    """
    root = Path(root)
    levels = [root / name for name in ("train", "test") if _holds(root / name)]
    if len(levels) == 1:
        raise DataError(
            f"{root}: {levels[0].name}/ has no train/ or test/ with images/ and masks/ beside it"
        )
    with read_errors(root):
        pairs = [] if levels else [*_paired(root, None)]
        for level in levels:
            pairs += _paired(level, level.name)
        budget = budget or MemoryBudget()
        return _read(root.resolve().name, pairs, root, split, img_size, in_chans, budget)


def read_mask_table(
    path: Path,
    rows: csv.DictReader[str],
    split: str,
    img_size: Size,
    in_chans: int | None,
    budget: MemoryBudget,
) -> MaskedSet:
    """Read the images and masks that a CSV with the columns `image` and `mask` names, as `read_table` does."""
    pairs = []
    for row in rows:
        files = [path.parent / (row[column] or "").strip() for column in ("image", "mask")]
        for file in files:
            if not file.is_file():
                raise DataError(f"{path} line {rows.line_num}: no such file {file}")
        pairs.append(Pair(files[0], files[1], row_split(f"{path} line {rows.line_num}", row)))
    return _read(path.stem, pairs, path.parent, split, img_size, in_chans, budget)


def _holds(folder: Path) -> bool:
    return (folder / "images").is_dir() and (folder / "masks").is_dir()


register_format(
    "a folder with images/ and masks/",
    lambda path: any(map(_holds, (path, path / "train", path / "test"))),
    lambda path, r: read_masks(path, r.split, r.img_size, r.in_chans, r.budget),
)


def _paired(folder: Path, split: str | None) -> Iterator[Pair]:
    both: list[dict[str, Path]] = []
    for part in ("images", "masks"):
        files = [f for f in (folder / part).iterdir() if is_image_name(f.name) and f.is_file()]
        both.append({f.stem: f for f in files})
        if len(both[-1]) < len(files):
            twice = next(f for f in files if both[-1][f.stem] != f)
            raise DataError(
                f"{twice}: another file of {part}/ has the same name but for the ending"
            )
    images, masks = both
    for some, others, what in ((images, masks, "mask"), (masks, images, "image")):
        alone = sorted(some.keys() - others.keys(), key=natural_key)
        if alone:
            more = f" (and {len(alone) - 1} more)" if len(alone) > 1 else ""
            raise DataError(f"{some[alone[0]]}: there is no {what} of this name beside it{more}")
    yield from (Pair(images[stem], masks[stem], split) for stem in sorted(images, key=natural_key))


def _read(
    name: str,
    pairs: Sequence[Pair],
    folder: Path,
    split: str,
    img_size: Size,
    in_chans: int | None,
    budget: MemoryBudget,
) -> MaskedSet:
    if not pairs:
        raise DataError(f"{name}: there are no images")
    table = _table(folder, budget)
    is_colored = table is not None and table.channels == 3
    values = [_values(pair.mask, is_colored, budget) for pair in pairs]
    table = table or _numbered(pairs, values)
    masks = [
        torch.from_numpy(table.indices(pair.mask, found))
        for pair, found in zip(pairs, values, strict=True)
    ]
    labels = torch.cat([main_classes(mask.unsqueeze(0), len(table.names)) for mask in masks])
    if not labels.any():
        raise DataError(
            f"{name}: every mask shows {table.names[0]!r} alone, the background; expected another class"
        )
    chosen = in_split(name, [pair.split for pair in pairs], labels, split)
    channels = in_chans or (1 if all(is_gray(pair.image) for pair in pairs) else 3)
    resized = [_resized_pair(pairs[i], masks[i], img_size, channels, budget) for i in chosen]
    images, chosen_masks = zip(*resized, strict=True)
    files = [str(pairs[i].image) for i in chosen]
    check_sizes(name, files[0], dict(zip(files, images, strict=True)))
    return MaskedSet(
        torch.stack(images), labels[chosen], table.names, name, masks=torch.stack(chosen_masks)
    )


def _resized_pair(
    pair: Pair, mask: Tensor, img_size: Size, channels: int, budget: MemoryBudget
) -> tuple[Tensor, Tensor]:
    image = decode_image(pair.image, budget=budget)
    if image.shape[1:] != mask.shape:
        want, came = (f"{height} × {width}" for height, width in (image.shape[1:], mask.shape))
        raise DataError(
            f"{pair.mask}: expected {want} pixels, as its image {pair.image.name} has, got {came}"
        )
    image = fit_images(image.unsqueeze(0), img_size, channels)[0]
    return image, _resized(mask.unsqueeze(0), image.shape[1:])[0]


def _resized(masks: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(masks.unsqueeze(1), tuple(size), mode="nearest-exact").squeeze(1)


@dataclass(frozen=True)
class _Table:
    """Names of classes, and which number or color (as one number) stands for each; `channels` are 1 or 3."""

    names: tuple[str, ...]
    known: dict[int, int]
    channels: int
    where: str

    def indices(self, file: Path, values: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The class of each pixel."""
        present, places = np.unique(values, return_inverse=True)
        for value in present.tolist():
            if value not in self.known:
                row, column = np.argwhere(values == value)[0]
                color = value >> 16, value >> 8 & 255, value & 255
                shown = f"color {color}" if self.channels == 3 else f"value {value}"
                raise DataError(
                    f"{file}: {shown} at row {row}, column {column} is no class of {self.where}"
                )
        mapped = np.array([self.known[value] for value in present.tolist()], dtype=np.uint8)
        return mapped[places].reshape(values.shape)


def _table(folder: Path, budget: MemoryBudget) -> _Table | None:
    file = next((folder / name for name in TABLES if (folder / name).is_file()), None)
    if file is None:
        return None
    with open_reader(file, budget, "cannot be read as a table of classes") as reader:
        lines = [
            re.split(r"[,;\s]+", line.strip().strip(",;"))
            for line in reader.lines()
            if line.strip()
        ]
    found = [_line(words) for words in lines]
    if len(found) > 1 and not found[0][1] and found[1][1]:
        found = found[1:]  # titles of columns
    names, numbers = tuple(name for name, _ in found), [given for _, given in found]
    count = len(numbers[0]) if numbers else 0
    good = count in (0, 1, 3) and all(
        len(given) == count and all(n < 256 for n in given) for given in numbers
    )
    if not good or not all(names) or len(set(names)) < max(2, len(names)) or len(names) > 256:
        raise DataError(
            f"{file}: expected a line for each of 2 to 256 classes, the background first: a name of its own, and in "
            "every line nothing more, a value up to 255, or the three of a color"
        )
    keys = [int.from_bytes(bytes(given)) if given else place for place, given in enumerate(numbers)]
    if len(set(keys)) < len(keys):
        raise DataError(f"{file}: two classes have the same value or color")
    return _Table(
        names, {key: place for place, key in enumerate(keys)}, 3 if count == 3 else 1, file.name
    )


def _line(words: list[str]) -> tuple[str, list[int]]:
    numbers: list[int] = []
    while len(words) > 1 and words[-1].isascii() and words[-1].isdigit() and len(words[-1]) < 9:
        numbers.insert(0, int(words.pop()))
    return " ".join(words), numbers


def _numbered(pairs: Sequence[Pair], values: Sequence[NDArray[np.int64]]) -> _Table:
    largest = [int(found.max()) for found in values]
    if max(largest) == 255 and all(set(np.unique(found).tolist()) <= {0, 255} for found in values):
        return _Table(("background", "foreground"), {0: 0, 255: 1}, 1, "0 and 255")
    if max(largest) > LARGEST:
        worst = pairs[largest.index(max(largest))].mask
        how = f"name the classes and their values or colors in {TABLES[0]}"
        raise DataError(
            f"{worst}: value {max(largest)} is no number of a class up to {LARGEST}; {how}"
        )
    names = ("background", *(f"class {k}" for k in range(1, max(*largest, 1) + 1)))
    return _Table(names, {k: k for k in range(len(names))}, 1, "the masks")


def _values(file: Path, colors: bool, budget: MemoryBudget) -> NDArray[np.int64]:
    """The number of each pixel of a mask, `[height, width]`: of a palette, a gray value, or red, green, blue in one."""
    with opened(file) as image:
        budget.add_file(file.stat())
        budget.reserve("the set", image.width * image.height)
        if image.mode in ("P", "PA") and not colors:
            return np.asarray(image.convert("P") if image.mode == "PA" else image).astype(np.int64)
        if image.mode.startswith("I") or image.mode == "F":  # deeper than a byte
            return np.asarray(image).astype(np.int64)
        found = np.asarray(image.convert("RGB")).astype(np.int64)
    if colors:
        return found[..., 0] << 16 | found[..., 1] << 8 | found[..., 2]
    if (found != found[..., :1]).any():
        raise DataError(
            f"{file}: the mask is in colors; name the classes and their colors in {TABLES[0]}"
        )
    return found[..., 0]
