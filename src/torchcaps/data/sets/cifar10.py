"""CIFAR-10: small color photographs.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. The batches of the binary
version are records of one label byte and 3,072 pixel bytes (red, green, blue planes of 32 × 32).
"""

from dataclasses import replace
from pathlib import Path

import torch

from torchcaps.data._registry import ReadRequest, register_directory_format
from torchcaps.data.dataset import Dataset, check_labels
from torchcaps.data.folder import read_folder
from torchcaps.data.reading import read_bytes
from torchcaps.data.sources import published_set
from torchcaps.errors import DataError
from torchcaps.types import StrPath

RECORD = 1 + 3 * 32 * 32  # bytes
PATTERNS = {"train": "data_batch_[0-9].bin", "test": "test_batch.bin"}
FOLDER = "cifar-10-batches-bin"
JPEG_COPY = "cifar10-jpg"  # the name of a folder, and of the archive in it
INFO = published_set("cifar10")


def read_cifar(folder: StrPath, split: str = "train", name: str = "cifar10") -> Dataset:
    """Read the batches `data_batch_*.bin` or `test_batch.bin` of the binary version.

    Args:
        folder: that holds the batches.
        split: "train" or "test".
        name: of the set.

    Returns:
        Images, uint8 `[n, 3, 32, 32]`.

    Raises:
        DataError: no batch, a gap in their numbers, a truncated one, or a label outside the ten
            classes.
    """
    folder = Path(folder)
    files = sorted(folder.glob(PATTERNS[split]))
    if not files:
        raise DataError(
            f"{folder}: no {split} batch ({PATTERNS[split]}, of CIFAR-10's binary version) in it"
        )
    if split == "train" and files[-1].stem[-1] != str(len(files)):
        raise DataError(f"{folder}: a batch is missing between data_batch_1 and {files[-1].name}")
    batches = []
    for file in files:
        content = read_bytes(file)
        if not content or len(content) % RECORD:
            raise DataError(
                f"{file}: truncated or not CIFAR-10, {len(content)} bytes are no multiple of {RECORD}"
            )
        batch = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, RECORD)
        check_labels(str(file), batch[:, 0].long(), INFO.classes)
        batches.append(batch)
    records = torch.cat(batches)
    images = records[:, 1:].unflatten(1, INFO.image_shape).contiguous()
    return Dataset(images, {"label": records[:, 0].long()}, INFO.classes, name)


def _find_place(folder: Path) -> Path | None:
    """The folder that holds batches, itself or in `folder`; or an archive of JPEGs."""
    for place in (folder, folder / FOLDER):
        if any(next(place.glob(pattern), None) for pattern in PATTERNS.values()):
            return place
    archives = (place / f"{JPEG_COPY}.tar.gz" for place in (folder, folder / JPEG_COPY))
    return next(filter(Path.is_file, archives), None)


def _read(folder: Path, request: ReadRequest, name: str) -> Dataset:
    """The batches of a folder, or else its archive of JPEGs."""
    place = _find_place(folder) or folder
    if place.is_file():  # JPEGs lose detail, so that the set is then called "cifar10-jpg"
        return replace(read_folder(place, replace(request, in_chans=3)), name=JPEG_COPY)
    return read_cifar(place, request.split, name)


register_directory_format(
    INFO,
    "a folder of CIFAR-10 batches",
    lambda folder: _find_place(folder) is not None,
    _read,
)
