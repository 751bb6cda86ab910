"""smallNORB: stereo photographs of fifty toys from 162 viewpoints under six lights.

LeCun, Huang, Bottou, "Learning methods for generic object recognition with invariance to pose and
lighting", CVPR 2004. Protocols of novel viewpoints: Hinton, Sabour, Frosst, "Matrix capsules with
EM routing", ICLR 2018, section 5.

Files are binary matrices, little-endian: a magic number that names the type, the number of axes,
the sizes (three at least, unused ones are 1), then the numbers row after row.
"""

import struct
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torchcaps.data._registry import (
    DatasetInfo,
    register_dataset,
    register_derived,
    register_format,
)
from torchcaps.data.classes import Labels
from torchcaps.data.dataset import Dataset
from torchcaps.data.reading import open_file, plain_or_packed, to_array
from torchcaps.data.sources import published_set
from torchcaps.errors import ArgumentError, DataError, check_known
from torchcaps.types import StrPath

DTYPES: dict[int, np.dtype[Any]] = {
    0x1E3D4C51: np.dtype("<f4"),
    0x1E3D4C53: np.dtype("<f8"),
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("u1"),
    0x1E3D4C56: np.dtype("<i2"),
}
MAGIC = {dtype: magic for magic, dtype in DTYPES.items()}
KINDS = ("dat", "cat", "info")  # of files: photographs, categories, codes
FACTORS = ("instance", "elevation", "azimuth", "lighting")
STEMS = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
ANY = "*norb"
EYES = {"both": slice(None), "left": slice(0, 1), "right": slice(-1, None)}
# Codes of the familiar views: azimuths of 300° to 40°, in tens of degrees; elevations of 30° to
# 40°. A third of all views is familiar.
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
INFO = published_set("smallnorb")


def read_matrix(path: StrPath) -> np.ndarray:
    """The array in a binary matrix, plain or gzip (told by its first bytes, not its name).

    Args:
        path: of the file.

    Returns:
        float32, float64, int32, uint8 or int16, of the shape in the header.

    Raises:
        DataError: absent, of another format, packed, truncated, or longer than its header says.
    """
    with open_file(path, "truncated or no binary matrix") as file:
        contents = file.read()
        magic, num_axes = struct.unpack_from("<Ii", contents)
        if magic not in DTYPES or not 1 <= num_axes <= 8:
            raise DataError(
                f"{path}: expected the magic number of a binary matrix that is not packed, "
                f"got 0x{magic:08X} and {num_axes} axes"
            )
        shape = struct.unpack_from(f"<{num_axes}i", contents, 8)
        return to_array(path, contents, 8 + 4 * max(num_axes, 3), shape, DTYPES[magic])


def matrix_bytes(array: np.ndarray) -> bytes:
    """A binary matrix of this array, as `read_matrix` reads it.

    Raises:
        ValueError: for a type that the format lacks.
    """
    magic = MAGIC.get(array.dtype.newbyteorder("<"))
    if magic is None:
        raise ArgumentError(
            "array", f"expected one of {', '.join(map(str, MAGIC))}, got {array.dtype}"
        )
    sizes = (*array.shape, 1, 1)[: max(array.ndim, 3)]
    header = struct.pack(f"<Ii{len(sizes)}i", magic, array.ndim, *sizes)
    return header + array.astype(DTYPES[magic]).tobytes()


def _find_file(folder: Path, split: str, kind: str, stem: str) -> Path | None:
    """The file of a kind ("dat", "cat", "info"), or None."""
    return plain_or_packed(folder, f"{stem}-*-{split}ing-{kind}.mat")


def _holds(folder: Path, stem: str = ANY) -> bool:
    """Whether a folder has photographs of a split."""
    return any(_find_file(folder, split, "dat", stem) for split in STEMS)


def read_norb(
    folder: StrPath,
    split: str = "train",
    *,
    eyes: str = "both",
    halve: bool = True,
    name: str = "smallnorb",
    stem: str = ANY,
) -> Dataset:
    """Read one split of smallNORB, or of a set in its layout, as uint8 images.

    No toy is in both splits.

    Args:
        folder: holds `smallnorb-...-training-dat.mat`, `-cat.mat` and `-info.mat`, and those of
            `-testing-`.
        split: "train" or "test".
        eyes: "both" gives the stereo pair as two channels, left first; "left" or "right" one
            channel.
        halve: make photographs of 96 × 96, and no others, 48 × 48 by the mean of 2 × 2 pixels.
        name: of the set.
        stem: with which the files' names begin; * stands for anything.

    Returns:
        The set. Its targets are "label", "instance", "elevation" (0 to 8 is 30° to 70°), "azimuth" (0, 2,
        ..., 34; times 10°) and "lighting" (0 to 5). A group is a toy, an instance of a
        category: `train_val_split` holds out whole toys.

    Raises:
        DataError: a file is absent or damaged, shapes differ, or a category lies outside the five.
        UnknownNameError: for other eyes.
    """
    check_known("choice of eyes", eyes, EYES)
    matrices = []
    for kind in KINDS:
        path = _find_file(Path(folder), split, kind, stem)
        if not path:
            raise DataError(f"{folder}: no {STEMS[split]}-{kind}.mat (plain or .gz) in it")
        matrices.append(read_matrix(path))
    photographs, categories, codes = matrices
    count = len(photographs)
    shapes = [list(matrix.shape) for matrix in matrices]
    is_stack = photographs.dtype == np.uint8 and photographs.ndim == 4
    if not is_stack or shapes[1:] != [[count], [count, len(FACTORS)]]:
        raise DataError(
            f"{folder}: expected photographs [n, eyes, height, width] of uint8, categories [n], "
            f"codes [n, {len(FACTORS)}], got {photographs.dtype} {shapes}"
        )

    columns = torch.from_numpy(np.column_stack([categories, codes])).long().unbind(dim=1)
    targets = dict(zip(("label", *FACTORS), columns, strict=True))
    pixels = photographs[:, EYES[eyes]]
    if halve and pixels.shape[2:] == (96, 96):
        # Means of 2 × 2 pixels, rounded half up, by whole numbers so that all machines agree.
        rows = pixels[..., 0::2, :].astype(np.int16) + pixels[..., 1::2, :]
        pixels = ((rows[..., 0::2] + rows[..., 1::2] + 2) // 4).astype(np.uint8)
    images = torch.from_numpy(np.require(pixels, requirements=["C", "W"]))
    toys = toy_numbers(targets["label"], targets["instance"])
    return Dataset(images, targets, INFO.classes, name, toys)


def toy_numbers(categories: Labels, instances: Labels) -> Labels:
    """A number for each toy: instances are numbered from 0 to 99 in each category."""
    return 100 * categories + instances


class Views(NamedTuple):
    """A set in two parts by viewpoint.

    Attributes:
        familiar: images of the viewpoints that a model is trained with.
        novel: images of all other viewpoints, to test it with.
    """

    familiar: Dataset
    novel: Dataset


def split_views(images: Dataset, by: str) -> Views:
    """Split a set by viewpoint.

    A model is trained on `split_views(train, by).familiar`, and tested on both parts of the test
    split.

    Args:
        images: with smallNORB's codes.
        by: "azimuth" (familiar: 300° to 40°, six of eighteen) or "elevation" (familiar: 30° to
            40°, three of nine).

    Returns:
        The two parts, in the order of the set.

    Raises:
        UnknownNameError: for another viewpoint.
        DataError: the set does not have this target, or all of its images are on one side.
    """
    check_known("viewpoint", by, FAMILIAR)
    if by not in images.targets:
        raise DataError(f"{images.name}: expected the target {by!r}, got {list(images.targets)}")
    is_familiar = torch.isin(images.targets[by], torch.tensor(FAMILIAR[by]))
    familiar, novel = (side.nonzero().flatten() for side in (is_familiar, ~is_familiar))
    if not (len(familiar) and len(novel)):
        raise DataError(
            f"{images.name}: all of its images are {'familiar' if len(familiar) else 'novel'} by {by}"
        )
    return Views(images.subset(familiar), images.subset(novel))


def register_norb(info: DatasetInfo) -> None:
    """Register a set in smallNORB's layout, and its four novel-viewpoint sets.

    Args:
        info: of the set; its files begin with its name.
    """

    register_dataset(info)(
        lambda folder, request: (
            read_norb(folder, request.split, name=info.name, stem=info.name)
            if _holds(folder, info.name)
            else None
        )
    )
    num_familiar = info.train // 3
    for by in FAMILIAR:
        for ending, views, num_test in (
            ("", "the other two", info.test - num_familiar),
            ("-familiar", "the same", num_familiar),
        ):
            register_derived(
                info,
                partial(_split_by, by=by, is_novel=not ending),
                name=f"{info.name}-{by}{ending}",
                title=f"{info.title.split(',')[0]}: trained on one third of the {by}s, "
                f"tested on {views}",
                train=num_familiar,
                test=num_test,
            )


def _split_by(images: Dataset, split: str, by: str, is_novel: bool) -> Dataset:
    """Familiar views, or the novel views of the test split."""
    views = split_views(images, by)
    return views.novel if split == "test" and is_novel else views.familiar


register_norb(INFO)
register_format(
    "a folder of smallNORB's files",
    _holds,
    lambda path, request: read_norb(path, request.split, name=path.resolve().name),
)
