"""smallNORB: stereo photographs of fifty toys from 162 viewpoints under six lights, and the novel-viewpoint protocols.

LeCun, Huang, Bottou, "Learning methods for generic object recognition with invariance to pose and lighting", CVPR 2004;
protocols of Hinton, Sabour, Frosst, ICLR 2018, section 5. Files are binary matrices, little-endian: a magic number that
names the type, the number of axes, the sizes (three at least, unused ones are 1), then the values row after row.
"""

import math
import struct
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from torchcaps.data._registry import (
    DatasetInfo,
    ReadRequest,
    register_dataset,
    register_derived,
    register_format,
)
from torchcaps.data.budget import MemoryBudget, open_reader
from torchcaps.data.dataset import ImageSet
from torchcaps.data.entries import plain_or_packed
from torchcaps.data.sources import Mirror
from torchcaps.errors import ArgumentError, DataError, UnknownNameError

TYPES = {
    0x1E3D4C51: "<f4",
    0x1E3D4C53: "<f8",
    0x1E3D4C54: "<i4",
    0x1E3D4C55: "|u1",
    0x1E3D4C56: "<i2",
}
PACKED = 0x1E3D4C52
MAGIC = {np.dtype(kind): magic for magic, kind in TYPES.items()}
FACTORS = ("instance", "elevation", "azimuth", "lighting")
STEMS = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
PATTERNS = {"train": "{}-*-training-{}.mat", "test": "{}-*-testing-{}.mat"}
ANY = "*norb"
EYES = {"both": slice(None), "left": slice(0, 1), "right": slice(-1, None), "each": slice(None)}
CHUNK = 1024  # photographs made smaller at a time
CATEGORIES = "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e"  # of both splits
# Codes of the familiar views: azimuths of 300° to 40° (in tens of degrees), elevations of 30° to 40°.
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
CODES = {"azimuth": 18, "elevation": 9}
INFO = DatasetInfo(
    name="smallnorb",
    title="smallNORB, stereo photographs of toys",
    image_shape=(2, 48, 48),
    train=24_300,
    test=24_300,
    classes=("animal", "human", "airplane", "truck", "car"),
    license="for research only, as its authors state",
    source="https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
    sha256={
        f"{STEMS['train']}-dat.mat": "4813bf104d229583fea8ed57fdc3e9258c927b8dfb43d75412e854a7a9588067",
        f"{STEMS['train']}-cat.mat": CATEGORIES,
        f"{STEMS['train']}-info.mat": "6b4075d3800ba0c6fa8c46a02f672572abe7b93f7ed82fb7668354a99ef03306",
        f"{STEMS['test']}-dat.mat": "2b1de646c57ffdc259b8fb973a6453e90915248a8fdb4d9df948786bdae72b34",
        f"{STEMS['test']}-cat.mat": CATEGORIES,
        f"{STEMS['test']}-info.mat": "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
    },
    sources=(Mirror("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"),),
)


def read_matrix(path: str | Path, budget: MemoryBudget | None = None) -> np.ndarray:
    """The array in a binary matrix, plain or gzip (told by its first bytes, not its name).

    It is float32, float64, int32, uint8 or int16, of the shape in the header. DataError: absent, of another format,
    packed, truncated, or longer than its header says.
    """
    with open_reader(path, budget) as reader:
        start = reader.read(8)
        if len(start) < 8:
            raise DataError(
                f"{path}: truncated binary matrix, {len(start)} bytes where magic number and axes take 8"
            )
        magic, axes = struct.unpack("<Ii", start)
        if magic not in TYPES:
            found = "packed, which is not read here" if magic == PACKED else f"0x{magic:08X}"
            raise DataError(
                f"{path}: expected the magic number of a binary matrix (0x1E3D4C51 to 56), got {found}"
            )
        sizes = reader.read(4 * max(axes, 3)) if 1 <= axes <= 8 else b""
        if len(sizes) < 4 * max(axes, 3):
            raise DataError(
                f"{path}: truncated or damaged header of a binary matrix of {axes} axes"
            )
        shape, dtype = struct.unpack(f"<{axes}i", sizes[: 4 * axes]), np.dtype(TYPES[magic])
        if min(shape) < 1:
            raise DataError(f"{path}: damaged, the header {list(shape)} has a size below 1")
        data = reader.read_exact(math.prod(shape) * dtype.itemsize, f"the header {list(shape)}")
    return np.frombuffer(data, dtype).reshape(shape)


def matrix_bytes(array: np.ndarray) -> bytes:
    """A binary matrix of this array, as `read_matrix` reads it; ValueError for a type that the format lacks."""
    little = array.astype(
        array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype
    )
    if little.dtype not in MAGIC:
        raise ArgumentError(
            "array", f"expected float32, float64, int32, uint8 or int16, got {array.dtype}"
        )
    sizes = (*array.shape, 1, 1)[: max(array.ndim, 3)]
    return (
        struct.pack(f"<Ii{len(sizes)}i", MAGIC[little.dtype], array.ndim, *sizes) + little.tobytes()
    )


def _file(folder: Path, split: str, kind: str, stem: str = ANY) -> Path | None:
    return plain_or_packed(folder, PATTERNS[split].format(stem, kind))


def _holds(folder: Path, stem: str = ANY) -> bool:
    return any(_file(folder, split, "dat", stem) for split in PATTERNS)


def read_norb(
    folder: str | Path,
    split: str = "train",
    *,
    eyes: str = "both",
    halve: bool = True,
    name: str = "smallnorb",
    stem: str = ANY,
    budget: MemoryBudget | None = None,
) -> ImageSet:
    """Read one split of smallNORB, or of a set in its layout, as uint8 images.

    Their factors are "instance", "elevation" (0..8 is 30° to 70°), "azimuth" (0, 2, .. 34; times 10°) and "lighting"
    (0..5). The group is the instance: `train_val_split` holds out whole toys.

    `folder` holds `smallnorb-…-training-dat.mat`, `-cat.mat` and `-info.mat`, and those of `-testing-`; they begin with
    `stem`, in which * stands for anything. No toy is in both splits. `halve` makes photographs of 96 × 96, and no
    others, 48 × 48 by the mean of 2 × 2 pixels. The `eyes` "both" give the stereo pair as two channels, left first;
    "left" or "right" one channel; "each" every photograph by itself, left and right of a scene next to each other, with
    the factor "eye".

    DataError: a file is absent or damaged, shapes differ, or a category lies outside the five. UnknownNameError: eyes.
    """
    folder = Path(folder)
    if eyes not in EYES:
        raise UnknownNameError("choice of eyes", eyes, EYES)
    paths = {kind: _file(folder, split, kind, stem) or folder for kind in ("dat", "cat", "info")}
    for kind, path in paths.items():
        if path == folder:
            raise DataError(f"{folder}: no {STEMS[split]}-{kind}.mat (plain or .gz) in it")
    budget = budget or MemoryBudget()
    photographs, categories, info = (read_matrix(path, budget) for path in paths.values())
    _check_shapes(paths, photographs, categories, info)
    pixels = photographs[:, EYES[eyes]]
    if eyes == "each":
        pixels = pixels.reshape(-1, 1, *pixels.shape[2:])
    if halve and pixels.shape[2:] == (96, 96):
        pixels = np.concatenate(
            [_halved(pixels[at : at + CHUNK]) for at in range(0, len(pixels), CHUNK)]
        )
    images = torch.from_numpy(np.require(pixels, requirements=["C", "W"]))
    factors = {
        kind: torch.from_numpy(info[:, i].astype(np.int64)) for i, kind in enumerate(FACTORS)
    }
    labels = torch.from_numpy(categories.astype(np.int64))
    if eyes == "each":
        factors = {
            kind: values.repeat_interleave(photographs.shape[1]) for kind, values in factors.items()
        }
        factors["eye"] = torch.arange(photographs.shape[1]).repeat(len(labels))
        labels = labels.repeat_interleave(photographs.shape[1])
    return ImageSet(images, labels, INFO.classes, name, factors, group="instance")


def _check_shapes(
    paths: dict[str, Path], photographs: np.ndarray, categories: np.ndarray, info: np.ndarray
) -> None:
    if photographs.ndim != 4 or photographs.dtype != np.uint8 or photographs.shape[1] not in (1, 2):
        found = f"{list(photographs.shape)} of {photographs.dtype}"
        raise DataError(
            f"{paths['dat']}: expected photographs [n, eyes, height, width] of uint8, got {found}"
        )
    count = len(photographs)
    for kind, array, shape, what in (
        ("cat", categories, (count,), "a category"),
        ("info", info, (count, len(FACTORS)), ", ".join(FACTORS)),
    ):
        if array.shape != shape or array.dtype.kind != "i":
            found = f"{list(array.shape)} of {array.dtype}"
            raise DataError(
                f"{paths[kind]}: expected {what} for each of {count} photographs, got {found}"
            )


def _halved(images: np.ndarray) -> np.ndarray:
    """Means of 2 × 2 pixels, rounded half up, in whole numbers so that every machine gives the same."""
    rows = images[..., 0::2, :].astype(np.int16) + images[..., 1::2, :]
    return ((rows[..., 0::2] + rows[..., 1::2] + 2) // 4).astype(np.uint8)


class Views(NamedTuple):
    """A set in two parts: a model is trained on the `familiar` views of the training split."""

    familiar: ImageSet
    novel: ImageSet


def split_views(images: ImageSet, by: str) -> Views:
    """Split a set by viewpoint: train on `split_views(train, by).familiar`, test on both parts of the test split.

    `by` is "azimuth" (familiar: 300° to 40°, six of eighteen) or "elevation" (familiar: 30° to 40°, three of nine), in
    smallNORB's codes. UnknownNameError for another; DataError where the set does not have this factor, or all of its
    images are on one side.
    """
    if by not in FAMILIAR:
        raise UnknownNameError("viewpoint", by, FAMILIAR)
    if by not in images.factors:
        raise DataError(
            f"{images.name}: expected the factor {by!r}, got {', '.join(images.factors) or 'none'}"
        )
    known = torch.isin(images.factors[by], torch.tensor(FAMILIAR[by]))
    if known.all() or not known.any():
        raise DataError(
            f"{images.name}: all of its images are {'familiar' if known.all() else 'novel'} by {by}"
        )
    return Views(
        images.subset(known.nonzero().flatten()), images.subset((~known).nonzero().flatten())
    )


def register_norb(info: DatasetInfo) -> None:
    """Register a set in smallNORB's layout whose files begin with its name, and its four novel-viewpoint sets."""

    @register_dataset(info)
    def read(folder: Path, request: ReadRequest) -> ImageSet | None:
        if not _holds(folder, info.name):
            return None
        return read_norb(
            folder, request.split, name=info.name, stem=info.name, budget=request.budget
        )

    for by, codes in FAMILIAR.items():
        known = info.train * len(codes) // CODES[by]
        title = f"{info.title.split(',')[0]}: trained on one third of the {by}s, tested on"
        for ending, others, test in (
            ("", "the other two", info.test - known),
            ("-familiar", "the same", known),
        ):
            register_derived(
                info,
                partial(_view, by=by, novel=not ending),
                name=f"{info.name}-{by}{ending}",
                title=f"{title} {others}",
                train=known,
                test=test,
            )


def _view(images: ImageSet, split: str, by: str, novel: bool) -> ImageSet:
    views = split_views(images, by)
    return views.novel if split == "test" and novel else views.familiar


register_norb(INFO)
register_format(
    "a folder of smallNORB's files",
    _holds,
    lambda path, r: read_norb(path, r.split, name=path.resolve().name, budget=r.budget),
)
