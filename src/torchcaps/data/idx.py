"""IDX files, the format of MNIST: a magic number, the sizes, then the bytes; plain or gzip.

The format is described on the MNIST page (LeCun, Cortes, Burges): two zero bytes, a type code (8 for unsigned
bytes), the number of axes, one big-endian 32-bit size per axis, the data in row-major order.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import ImageSet, check_labels
from torchcaps.errors import DataError

UNSIGNED_BYTE = 0x08
STEMS = {"train": "train", "test": "t10k"}


def read_idx(path: Path | str) -> Tensor:
    """The array in an IDX file of unsigned bytes, plain or gzip (told by its first bytes, not its name).

    Returns:
        uint8 tensor of the shape in the header, 1 to 4 axes.

    Raises:
        DataError: absent, not IDX, truncated, or longer than its header says.
    """
    path = Path(path)
    data = read_bytes(path)
    if len(data) < 4:
        raise DataError(f"{path}: truncated IDX file, {len(data)} bytes where the magic number takes 4")
    zero, code, axes = struct.unpack(">HBB", data[:4])
    if zero != 0 or code != UNSIGNED_BYTE or not 1 <= axes <= 4:
        raise DataError(
            f"{path}: wrong magic number 0x{data[:4].hex()}, expected 0x000008 and 1 to 4 axes (an IDX file of bytes)"
        )
    return _payload(path, data, axes)


def _payload(path: Path, data: bytearray, axes: int) -> Tensor:
    start = 4 + 4 * axes
    if len(data) < start:
        raise DataError(f"{path}: truncated IDX file, {len(data)} bytes where the header takes {start}")
    shape = struct.unpack(f">{axes}I", data[4:start])
    expected, found = math.prod(shape), len(data) - start
    if found != expected:
        what = "truncated" if found < expected else "too long"
        raise DataError(f"{path}: {what}, the header {list(shape)} asks for {expected} bytes of data, got {found}")
    if expected == 0:
        raise DataError(f"{path}: the IDX header {list(shape)} says that there is nothing in it")
    return torch.frombuffer(data, dtype=torch.uint8, offset=start).reshape(shape)


def read_bytes(path: Path) -> bytearray:
    """The bytes of a file, decompressed when they begin as gzip does.

    Raises:
        DataError: the file cannot be read, or its gzip stream is damaged or cut short.
    """
    try:
        data = path.read_bytes()
        return bytearray(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except EOFError:
        raise DataError(f"{path}: truncated gzip file, it ends before its data does") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def find_idx(folder: Path, split: str, kind: str) -> Path | None:
    """The IDX file of `split` ("train", "test") and `kind` ("images", "labels") in `folder`, or None.

    Both spellings found in the wild, `train-images-idx3-ubyte` and `train-images.idx3-ubyte`, plain or `.gz`.
    """
    pattern = f"{STEMS[split]}-{kind}[-.]idx?-ubyte"
    found = sorted(folder.glob(pattern)) + sorted(folder.glob(f"{pattern}.gz"))
    return found[0] if found else None


def holds_idx(folder: Path) -> bool:
    """Whether `folder` holds at least one IDX file under MNIST's names."""
    return any(find_idx(folder, split, kind) for split in STEMS for kind in ("images", "labels"))


def read_idx_set(folder: Path, split: str, name: str, classes: tuple[str, ...] | None = None) -> ImageSet:
    """One split of a folder of IDX files named as MNIST's are.

    Args:
        folder: holds `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two `t10k-` files, plain or .gz.
        split: "train" or "test".
        name: the set's name.
        classes: names of the classes; None takes "0" up to the largest training label.

    Returns:
        uint8 images `[n, channels, height, width]`: IDX of 3 axes is grey, 4 axes are [n, channels, height, width].

    Raises:
        DataError: a file is absent or damaged, counts differ, or a label lies outside the classes.
    """
    images_path, labels_path = (_require(folder, split, kind) for kind in ("images", "labels"))
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim < 3:
        raise DataError(f"{images_path}: expected images of 3 or 4 axes, got {images.ndim}")
    if labels.ndim != 1:
        raise DataError(f"{labels_path}: expected labels of 1 axis, got {labels.ndim}")
    if len(images) != len(labels):
        raise DataError(f"{labels_path}: {len(labels)} labels for the {len(images)} images of {images_path.name}")
    classes = classes or _numbered(folder, labels)
    check_labels(str(labels_path), labels.long(), classes)
    images = images.unsqueeze(1) if images.ndim == 3 else images
    return ImageSet(images, labels.long(), classes, name)


def _require(folder: Path, split: str, kind: str) -> Path:
    path = find_idx(folder, split, kind)
    if path is None:
        axes = 3 if kind == "images" else 1
        raise DataError(f"{folder}: no {STEMS[split]}-{kind}-idx{axes}-ubyte (plain or .gz) in it")
    return path


def _numbered(folder: Path, labels: Tensor) -> tuple[str, ...]:
    training = find_idx(folder, "train", "labels")
    known = read_idx(training) if training else labels
    return tuple(str(label) for label in range(int(known.max()) + 1))
